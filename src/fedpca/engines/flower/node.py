"""A site as one of Flower's nodes: it fetches questions, and sends the answers.

The site's program is this installation's own. The app that belongs to a run of Flower is never
fetched, so no code reaches a site. The connection goes from the site to the coordinator only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NoReturn

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import Message as FlowerMessage
from flwr.common.constant import HEARTBEAT_MIN_INTERVAL
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

from fedpca.engines.flower.wire import (
    Link,
    fetch,
    is_unauthorized,
    mapped_errors,
    send,
    unwrap,
    wrap,
)
from fedpca.errors import LinkError, LinkRefused

PAUSE, IDLE_PAUSE = 0.05, 1.0  # seconds between two looks for a question, in a run and out of one
IDLE_AFTER = 30.0
_TROUBLE = (httpx.HTTPError, RuntimeError)  # what a client raises, also one that was closed
STILL_ONLINE = 2.5 * HEARTBEAT_MIN_INTERVAL  # seconds after which a silent node is known to be gone
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
            with mapped_errors(link), _connected(link, key) as (client, node):
                tell(f"connected to {link.address}, waiting for questions")
                patience = STILL_ONLINE
                _answer_questions(client, node, answer, tell)
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


@contextmanager
def _connected(link: Link, key: EllipticCurvePrivateKey) -> Iterator[tuple[FleetHttpClient, Node]]:
    """A node that the server knows and sees alive, until the block ends."""
    public_key = public_key_to_bytes(key.public_key())
    with FleetHttpClient.from_server_address(
        link.address,
        link.plain,
        link.ca,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(key, key.public_key()),
        ],
    ) as client:
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
        stop = threading.Event()
        heart = threading.Thread(target=_beat, args=(client, node, stop), daemon=True)
        heart.start()
        try:
            yield client, node
        finally:
            stop.set()
            heart.join()
            with suppress(*_TROUBLE):
                client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))


def _beat(client: FleetHttpClient, node: Node, stop: threading.Event) -> None:
    """Tell the server that the node lives, also while it works on a question."""
    request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_MIN_INTERVAL)
    while not stop.wait(HEARTBEAT_MIN_INTERVAL / 2):
        with suppress(
            *_TROUBLE
        ):  # the loop that fetches questions meets the same trouble and handles it
            client.SendNodeHeartbeat(request)


def _answer_questions(
    client: FleetHttpClient,
    node: Node,
    answer: Callable[[bytes], bytes],
    tell: Callable[[str], None],
) -> NoReturn:
    last = -IDLE_AFTER
    while True:
        waiting = client.PullMessages(PullMessagesRequest(node=node))
        if not waiting.messages_list:
            time.sleep(PAUSE if time.monotonic() - last < IDLE_AFTER else IDLE_PAUSE)
            continue
        run_id = waiting.messages_list[0].metadata.run_id
        question = fetch(client, node, run_id, waiting.message_object_trees[0])
        reply = FlowerMessage(wrap(answer(unwrap(question))), reply_to=question)
        try:
            send(client, node, [reply], partial(_announce, client, node))
        except httpx.HTTPStatusError as error:
            if error.response.status_code >= 500:
                raise
            tell("the run is over; nobody waits for this answer, and it was not sent")
        last = time.monotonic()


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
