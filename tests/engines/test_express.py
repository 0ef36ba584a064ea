"""Frequent requests are answered directly, and whatever is unusual is left to Flower's server."""

from __future__ import annotations

import asyncio
import datetime
from base64 import b64encode

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLWR_IN_MEMORY_DB_NAME,
    TASK_TOKEN_HEADER,
)
from flwr.supercore.date import now
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager

from fedpca.engines.flower.express import MAX_EXPRESS_BYTES, Express

HEARTBEAT, PULL = "/v1/fleet/send-node-heartbeat", "/v1/fleet/pull-messages"


@pytest.fixture
def state():
    made = LinkStateFactory(
        FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
    ).state()
    for name, key in KEYS.items():
        made.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 10.0, name=name)
    return made


KEYS = {
    name: public_key_to_bytes(ec.generate_private_key(ec.SECP384R1()).public_key())
    for name in ("north", "south")
}


def ask(state, path, request, headers=(), **changed):
    """Return the reply to a request, or "Flower's" if it was left to Flower's server."""
    replies, body = [], request.SerializeToString()
    usual = {"content-type": PROTOBUF_MEDIA_TYPE, "content-length": str(len(body))}
    given = {**usual, **dict(headers), **changed}
    scope = {
        "type": "http",
        "path": path,
        "headers": [(key.lower().encode(), value.encode()) for key, value in given.items()],
    }

    async def receive():
        return {"type": "http.request", "body": body}

    async def send(message):
        replies.append(message)

    async def flower(scope, receive, send):
        assert (await receive())["body"] == body
        replies.append("Flower's")

    asyncio.run(Express(flower, state)(scope, receive, send))
    if replies == ["Flower's"]:
        return replies[0]
    assert replies[0]["status"] == 200
    return replies[1]["body"]


def signed(site, seconds_ago=0.0):
    at = now() - datetime.timedelta(seconds=seconds_ago)
    key = b64encode(KEYS[site]).decode()
    return {FLEET_HTTP_PUBLIC_KEY_HEADER: key, TIMESTAMP_HEADER: at.isoformat()}


def test_a_node_is_heard_under_its_own_key_and_while_its_signature_is_fresh(state):
    node = Node(node_id=state.get_node_id_by_public_key(KEYS["north"]))
    beat = SendNodeHeartbeatRequest(node=node, heartbeat_interval=10.0)
    reply = ask(state, HEARTBEAT, beat, signed("north"))
    assert SendNodeHeartbeatResponse.FromString(reply).success
    for headers in (signed("south"), signed("north", 3600), signed("north", -60), {}):
        assert ask(state, HEARTBEAT, beat, headers) == "Flower's"
    other = SendNodeHeartbeatRequest(node=node, heartbeat_interval=1.0)  # which Flower refuses
    assert ask(state, HEARTBEAT, other, signed("north")) == "Flower's"


def test_a_node_that_asks_for_questions_is_online(state):
    number = state.get_node_id_by_public_key(KEYS["north"])
    assert state.nodes[number].status != "online"
    assert ask(state, PULL, PullMessagesRequest(node=Node(node_id=number)), signed("north")) == b""
    assert state.nodes[number].status == "online"
    assert state.nodes[number].online_until > now().timestamp() + 15


def test_only_the_frequent_small_requests_of_known_fits_and_sites_are_answered_here(state):
    pull = PullObjectRequest(node=Node(node_id=1), run_id=1, object_id="0" * 64)
    runtime = "/v1/runtime/pull-object"
    assert ask(state, runtime, pull, {TASK_TOKEN_HEADER: "guessed"}) == "Flower's"
    assert ask(state, runtime, pull) == "Flower's"
    assert ask(state, "/v1/fleet/activate-node", pull, signed("north")) == "Flower's"
    node = Node(node_id=state.get_node_id_by_public_key(KEYS["north"]))
    beat = SendNodeHeartbeatRequest(node=node, heartbeat_interval=10.0)
    large = {"content-length": str(MAX_EXPRESS_BYTES + 1)}
    assert ask(state, HEARTBEAT, beat, signed("north") | large) == "Flower's"
    assert ask(state, HEARTBEAT, beat, signed("north") | {"content-type": "text"}) == "Flower's"
