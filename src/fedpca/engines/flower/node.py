"""A site as one of Flower's nodes: it fetches questions, and sends the answers.

The site's program is this installation's own. The app that belongs to a run of Flower is never
fetched, so no code reaches a site. The connection goes from the site to the coordinator only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NoReturn

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import Message as FlowerMessage
from flwr.common.constant import HEARTBEAT_MIN_INTERVAL, HEARTBEAT_PATIENCE
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedpca.engines.flower.reach import Link, beating, is_unauthorized, mapped_errors
from fedpca.engines.flower.wire import Incoming, send, unwrap, wrap
from fedpca.errors import LinkError, LinkRefused, MessageError

PAUSE, IDLE_PAUSE = 0.05, 1.0  # seconds between two looks for a question, in a run and out of one
IDLE_AFTER = 30.0
POLITE = 10.0  # a pause is at least so many times what a look takes, as of a server with many sites
CUT_OFF = 60.0  # seconds after which a question that was announced will not come
GONE_AFTER = HEARTBEAT_PATIENCE * HEARTBEAT_MIN_INTERVAL  # seconds of silence: the server's bound
STILL_ONLINE = GONE_AFTER + 5.0  # seconds after which a silent node is known to be gone
RETRY_AFTER = 2.0  # seconds until a lost connection is tried again


def join(
    link: Link,
    key: EllipticCurvePrivateKey,
    answer: Callable[[bytes], bytes],
    tell: Callable[[str], None],
) -> NoReturn:
    """Answer questions until interrupted, and take up a lost connection again.

    ``tell`` is given what happens to the connection, in words. A server that does not know the site's
    key, or whose certificate the site refuses, ends it with `LinkRefused`.
    """
    patience = STILL_ONLINE
    while True:
        try:
            with mapped_errors(link), _connected(link, key) as (client, node, presence):
                tell(f"connected to {link.address}, waiting for questions")
                patience = STILL_ONLINE
                _answer_questions(client, node, presence, answer, tell)
        except _NotLetIn as error:
            patience -= RETRY_AFTER
            if patience < 0:
                raise LinkRefused(str(error)) from None
            tell(f"{error}; trying again for {patience:.0f} s")
        except LinkRefused:
            raise
        except LinkError as error:
            tell(f"{error}; trying again in {RETRY_AFTER:g} s")
        time.sleep(RETRY_AFTER)


class _NotLetIn(LinkError):
    """The server knows no such key, or takes a site that was killed for still online."""


class _Presence:
    """Since when the server has heard nothing of this node, and may have let another process in.

    A machine that was suspended, or a process that was stopped, goes on where it was. It must not
    answer then, nor show itself alive, until the server has let it in again.
    """

    def __init__(self) -> None:
        self._heard = _now()

    def beat(self, call: Callable[[], object]) -> None:
        """Show the server that the node is alive, unless it may be another process by now."""
        began = _now()
        if self.silence <= GONE_AFTER:
            call()
            self._heard = began

    def check(self) -> None:
        """Raise an error where the server may have taken the node for gone."""
        if self.silence > GONE_AFTER:
            raise LinkError(
                f"this process stood still or was cut off for {self.silence:.0f} s, and the server may "
                "have let another one of this key in"
            )

    @property
    def silence(self) -> float:
        """Seconds since the server last heard of the node."""
        return _now() - self._heard


def _now() -> float:
    """Seconds, with those for which the machine was suspended, where the system can count them."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time()


@contextmanager
def _connected(
    link: Link, key: EllipticCurvePrivateKey
) -> Iterator[tuple[FleetHttpClient, Node, _Presence]]:
    """A node that the server knows and sees alive, until the block ends."""
    public_key = public_key_to_bytes(key.public_key())
    with link.client(
        FleetHttpClient,
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
    ) as client:
        presence = _Presence()
        try:
            activated = client.ActivateNode(
                ActivateNodeRequest(
                    public_key=public_key, heartbeat_interval=HEARTBEAT_MIN_INTERVAL
                )
            )
        except httpx.HTTPStatusError as error:
            if is_unauthorized(error):
                raise LinkRefused(
                    f"{link.address} does not accept this site's signature: set the clock, which may "
                    "be at most 5 s fast and 5 minutes slow"
                ) from None
            if error.response.status_code < 500:
                raise _NotLetIn(
                    f"{link.address} does not let this site in: it has not been given its NAME.pub, "
                    "or a process of the same key is online, or was until just now"
                ) from None
            raise
        node = Node(node_id=activated.node_id)
        beat = SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_MIN_INTERVAL)
        stop = beating(
            lambda: presence.beat(lambda: client.SendNodeHeartbeat(beat)),
            HEARTBEAT_MIN_INTERVAL / 2,
        )
        try:
            yield client, node, presence
        finally:
            stop.set()
            if presence.silence <= GONE_AFTER:  # else it would be another process that goes offline
                with suppress(httpx.HTTPError):
                    client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))


def _answer_questions(
    client: FleetHttpClient,
    node: Node,
    presence: _Presence,
    answer: Callable[[bytes], bytes],
    tell: Callable[[str], None],
) -> NoReturn:
    last = -IDLE_AFTER
    while True:
        presence.check()
        began = time.monotonic()
        waiting = client.PullMessages(PullMessagesRequest(node=node))
        if not waiting.messages_list:
            pause = PAUSE if began - last < IDLE_AFTER else IDLE_PAUSE
            time.sleep(max(pause, POLITE * (time.monotonic() - began)))
            continue
        run_id = waiting.messages_list[0].metadata.run_id
        try:
            question = _whole(Incoming(client, node, run_id, waiting.message_object_trees[0]))
            reply = FlowerMessage(wrap(answer(unwrap(question))), reply_to=question)
        except MessageError as error:
            tell(f"something came that is not answered: {error}")
            continue
        presence.check()
        try:
            send(client, node, [reply], partial(_announce, client, node))
        except httpx.HTTPStatusError as error:
            if error.response.status_code >= 500:
                raise
            tell("the run is over; nobody waits for this answer, and it was not sent")
        last = time.monotonic()


def _whole(incoming: Incoming) -> FlowerMessage:
    """The message once it has all come."""
    until = time.monotonic() + CUT_OFF
    while time.monotonic() < until:
        message = incoming.fetch()
        if message is not None:
            return message
        time.sleep(PAUSE / 5)
    raise MessageError("it was cut off on its way")


def _announce(
    client: FleetHttpClient, node: Node, messages: list[ProtoMessage], trees: list[ObjectTree]
) -> PushMessagesResponse:
    return client.PushMessages(
        PushMessagesRequest(
            node=node,
            messages_list=messages,
            message_object_trees=trees,
            clientapp_runtime_list=[0.0],
        )
    )
