"""Connect a site as a Flower node: fetch questions and send answers.

The site runs its own installation of fedpca. It never fetches the app in a Flower run, so no code
reaches it. All connections are outbound, from the site to the coordinator's server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NoReturn, TypeVar

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

from fedpca.engines import credentials
from fedpca.engines.flower.connection import (
    QUESTION_HOLD_S,
    Link,
    beating,
    is_unauthorized,
    mapped_errors,
)
from fedpca.engines.flower.envelope import Incoming, send, unwrap, wrap
from fedpca.errors import LinkError, LinkRefused, MessageError
from fedpca.protocol.proof import Proof
from fedpca.site.answer_log import Recorded

T = TypeVar("T")

# pause between requests for questions; the server holds them until a question comes
QUESTION_POLL_S = 0.05
OBJECT_POLL_S = 0.01  # pause between requests for parts of a question that are on their way
MESSAGE_TIMEOUT_S = 60.0  # how long to wait for all parts of an announced question
# the server considers a node offline after this much silence
SILENCE_LIMIT_S = HEARTBEAT_PATIENCE * HEARTBEAT_MIN_INTERVAL
BUSY_QUIET_S = HEARTBEAT_MIN_INTERVAL / 2  # between heartbeats of a site that is working
# while a site waits for questions, an answered request counts as a heartbeat
WAITING_QUIET_S = 2 * QUESTION_HOLD_S + 0.5
REJOIN_PATIENCE_S = SILENCE_LIMIT_S + 5.0  # by then, the server knows that a node is offline
RETRY_AFTER_S = 2.0  # how long to wait before reconnecting


def join(
    link: Link,
    key: EllipticCurvePrivateKey,
    answer: Callable[[bytes], Recorded],
    tell: Callable[[str], None],
) -> NoReturn:
    """Answer questions until interrupted, and reconnect whenever the connection is lost.

    ``answer`` is usually `AnswerLog.reply`. The site's key signs each answer. ``tell`` is called with
    messages about the connection. `LinkRefused` is raised if the server does not recognize the site's
    key, or if the site rejects the server's certificate.
    """
    patience = REJOIN_PATIENCE_S
    while True:
        try:
            with mapped_errors(link), _connected(link, key) as (client, node, presence):
                tell(f"connected to {link.address}; waiting for questions")
                patience = REJOIN_PATIENCE_S
                _answer_questions(client, node, presence, partial(_signed, key, answer), tell)
        except _NotLetIn as error:
            patience -= RETRY_AFTER_S
            if patience < 0:
                raise LinkRefused(str(error)) from None
            tell(f"{error}; retrying for {patience:.0f} s")
        except LinkRefused:
            raise
        except LinkError as error:
            tell(f"{error}; retrying in {RETRY_AFTER_S:g} s")
        time.sleep(RETRY_AFTER_S)


class _NotLetIn(LinkError):
    """Signal that the server does not know the key, or considers a killed site still online."""


class _Presence:
    """A tracker for the time since the server last heard from this node.

    After a long silence, the server may have admitted a second process with the same key. A suspended
    machine or a stopped process resumes without noticing the silence. So after a long silence, this
    process must not send answers or heartbeats until the server has admitted it again.
    """

    def __init__(self) -> None:
        self._heard, self._is_waiting = _now(), False

    def beat(self, call: Callable[[], object]) -> None:
        """Send a heartbeat if one is due, unless a second process may have taken this node's place."""
        quiet = WAITING_QUIET_S if self._is_waiting else BUSY_QUIET_S
        if quiet <= self.silence <= SILENCE_LIMIT_S:
            self._hear(call)

    def wait(self, call: Callable[[], T]) -> T:
        """Return the server's answer to a request for questions, which counts as a heartbeat."""
        self._is_waiting = True
        try:
            return self._hear(call)
        finally:
            self._is_waiting = False

    def _hear(self, call: Callable[[], T]) -> T:
        began = _now()
        answer = call()
        self._heard = max(began, self._heard)
        return answer

    def check(self) -> None:
        """Raise an error if the server may consider this node offline."""
        if self.silence > SILENCE_LIMIT_S:
            raise LinkError(
                f"this process was paused or disconnected for {self.silence:.0f} s; the server may "
                "have admitted a second process with the same key"
            )

    @property
    def silence(self) -> float:
        """Return the number of seconds since the server last heard from this node."""
        return _now() - self._heard


def _now() -> float:
    """Return a time in seconds from a clock that keeps running while the machine sleeps."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time()


@contextmanager
def _connected(
    link: Link, key: EllipticCurvePrivateKey
) -> Iterator[tuple[FleetHttpClient, Node, _Presence]]:
    """Yield a client and a node that stays online until the block ends."""
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
                    f"{link.address} does not accept this site's signature; set this machine's "
                    "clock, which may be at most 5 s fast or 5 minutes slow"
                ) from None
            if error.response.status_code < 500:
                raise _NotLetIn(
                    f"{link.address} did not admit this site: the server was not given the site's "
                    "NAME.pub, or a different process with the same key is online, or was recently"
                ) from None
            raise
        node = Node(node_id=activated.node_id)
        beat = SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_MIN_INTERVAL)
        stop = beating(
            lambda: presence.beat(lambda: client.SendNodeHeartbeat(beat)),
            BUSY_QUIET_S / 2,
        )
        try:
            yield client, node, presence
        finally:
            stop.set()
            # after a longer silence, this call could take a different process offline
            if presence.silence <= SILENCE_LIMIT_S:
                with suppress(httpx.HTTPError):
                    client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))


def _answer_questions(
    client: FleetHttpClient,
    node: Node,
    presence: _Presence,
    answer: Callable[[bytes], tuple[bytes, bytes]],
    tell: Callable[[str], None],
) -> NoReturn:
    """Fetch and answer questions until an error ends the connection."""
    while True:
        presence.check()
        waiting = presence.wait(lambda: client.PullMessages(PullMessagesRequest(node=node)))
        if not waiting.messages_list:
            time.sleep(QUESTION_POLL_S)
            continue
        run_id = waiting.messages_list[0].metadata.run_id
        try:
            question = _whole(Incoming(client, node, run_id, waiting.message_object_trees[0]))
            reply = FlowerMessage(wrap(*answer(unwrap(question))), reply_to=question)
        except MessageError as error:
            tell(f"could not answer a message: {error}")
            continue
        presence.check()
        try:
            send(client, node, [reply], partial(_announce, client, node))
        except httpx.HTTPStatusError as error:
            if error.response.status_code >= 500:
                raise
            tell("an answer was not sent because its run is over")


def _signed(
    key: EllipticCurvePrivateKey, answer: Callable[[bytes], Recorded], request: bytes
) -> tuple[bytes, bytes]:
    """Return an answer, and the proof that this site gave this answer to this question."""
    recorded = answer(request)
    signature = credentials.sign(key, recorded.statement())
    return recorded.data, Proof(recorded.head, recorded.salt, signature).to_bytes()


def _whole(incoming: Incoming) -> FlowerMessage:
    """Wait for the complete message, and return it."""
    until = time.monotonic() + MESSAGE_TIMEOUT_S
    while time.monotonic() < until:
        message = incoming.fetch()
        if message is not None:
            return message
        time.sleep(OBJECT_POLL_S)
    raise MessageError(f"the message did not fully arrive within {MESSAGE_TIMEOUT_S:g} s")


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
