"""Let in the requests that fedpca's sites and fits make, and no others.

Flower's server can do much more than fedpca needs: whoever has the coordinator's secret could register
the key of a site that does not exist, or start a program. It also reads a request before it checks who
sent it, and it stores whatever a site sends. The `RequestFilter` stands in front of that server. It
checks the path of each request, its size, and the credentials in its header, and refuses an unsuitable
request before reading the body.
"""

from __future__ import annotations

import asyncio
import binascii
import hmac
from base64 import b64decode
from collections.abc import Callable
from functools import lru_cache

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.server.superlink.linkstate import InMemoryLinkState
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TASK_TOKEN_HEADER,
)
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedpca.engines.flower.connection import access_token
from fedpca.engines.flower.reservations import HOLD_PATH, TOKEN
from fedpca.protocol.message import MAX_BYTES

MAX_BODY_BYTES = 16 << 20  # for a part of a message, or the announcement of a question
SMALL_BYTES = 64 << 10  # for any other request
MAX_SITE_BYTES = MAX_BYTES + MAX_BODY_BYTES  # how much one site may have stored at the server
MAX_SITE_OBJECTS = 1000  # the largest message has about 200

HEALTH = "/health"
ACQUIRE = "/v1/runtime/acquire-task"
OPEN = (HEALTH, ACQUIRE)  # without credentials in the header
FLEET, CONTROL, RUNTIME = "/v1/fleet/", "/v1/control/", "/v1/runtime/"
ANNOUNCE, STORE = "/v1/fleet/push-messages", "/v1/fleet/push-object"

# what site_client.py, engine.py, run.py, and envelope.py call, and how large each request may be
ROUTES = {
    ("GET", HEALTH): 0,
    ("POST", HOLD_PATH): MAX_BODY_BYTES,
    ("POST", "/v1/fleet/activate-node"): SMALL_BYTES,
    ("POST", "/v1/fleet/deactivate-node"): SMALL_BYTES,
    ("POST", "/v1/fleet/send-node-heartbeat"): SMALL_BYTES,
    ("POST", "/v1/fleet/pull-messages"): SMALL_BYTES,
    ("POST", "/v1/fleet/pull-object"): SMALL_BYTES,
    ("POST", "/v1/fleet/confirm-message-received"): SMALL_BYTES,
    ("POST", ANNOUNCE): SMALL_BYTES,
    ("POST", STORE): MAX_BODY_BYTES,
    ("POST", "/v1/control/list-nodes"): SMALL_BYTES,
    ("POST", "/v1/control/start-run"): SMALL_BYTES,
    ("POST", ACQUIRE): SMALL_BYTES,
    ("POST", "/v1/runtime/pull-task-input"): SMALL_BYTES,
    ("POST", "/v1/runtime/push-task-output"): SMALL_BYTES,
    ("POST", "/v1/runtime/send-task-heartbeat"): SMALL_BYTES,
    ("POST", "/v1/runtime/push-messages"): MAX_BODY_BYTES,
    ("POST", "/v1/runtime/pull-messages"): MAX_BODY_BYTES,
    ("POST", "/v1/runtime/push-object"): MAX_BODY_BYTES,
    ("POST", "/v1/runtime/pull-object"): SMALL_BYTES,
    ("POST", "/v1/runtime/confirm-message-received"): SMALL_BYTES,
}


class RequestFilter:
    """Middleware that refuses requests that no site and no fit has a reason to make.

    It also bounds what one site may have stored at the server: one answer to each question that it was
    asked, and at most `MAX_SITE_BYTES` that nobody has fetched yet. ``on_proof`` is called with the
    address and port of each caller that has proved its key or the coordinator's secret.
    """

    def __init__(
        self,
        app: ASGIApp,
        secret: bytes,
        state: InMemoryLinkState,
        on_proof: Callable[[tuple[str, int]], None],
    ) -> None:
        self._app, self._state, self._on_proof = app, state, on_proof
        self._token = access_token(secret).encode()
        self._stored: dict[int, dict[str, int]] = {}  # bytes of each object, by node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        status = self._refusal(scope, headers)
        if not status and scope["path"] not in OPEN and scope.get("client"):
            self._on_proof(tuple(scope["client"]))
        body = b"" if status else await whole_body(receive)
        if body is None:
            return  # the caller is gone
        status = status or self._storage_refusal(scope["path"], headers, body)
        if status:
            await Response(status_code=status)(scope, receive, send)
        else:
            await self._app(scope, again(body, receive), send)

    def _refusal(self, scope: Scope, headers: Headers) -> int:
        """Return the HTTP status for refusing a request before its body is read, or 0 to let it in."""
        most = ROUTES.get((scope.get("method", ""), scope["path"]))
        if most is None:
            return 404
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not _is_number(length) or int(length) > most:
            return 413
        return self._identity_refusal(scope["path"], headers)

    def _identity_refusal(self, path: str, headers: Headers) -> int:
        """Return the HTTP status for refusing a caller without valid credentials, or 0 to accept it.

        The app checks the credentials again, together with the body.
        """
        if path == HOLD_PATH or path.startswith(CONTROL):
            bearer = headers.get("authorization", "").removeprefix("Bearer ")
            shown = headers.get(TOKEN, "") if path == HOLD_PATH else bearer
            return 0 if hmac.compare_digest(shown.encode(), self._token) else 401
        if path.startswith(RUNTIME) and path != ACQUIRE:
            token = headers.get(TASK_TOKEN_HEADER, "")
            return 0 if token and self._state.get_task_by_token(token) else 401
        if path.startswith(FLEET):
            if not _is_signed(headers):
                return 401
            return 0 if self._node(headers) is not None else 404
        return 0

    def _node(self, headers: Headers) -> int | None:
        """Return the node that has the public key in the header, or None."""
        return self._state.get_node_id_by_public_key(
            b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER])
        )

    def _storage_refusal(self, path: str, headers: Headers, body: bytes) -> int:
        """Return the HTTP status for refusing what a site wants to store, or 0 to accept it."""
        if path not in (ANNOUNCE, STORE):
            return 0
        node = self._node(headers)
        assert node is not None
        try:
            if path == ANNOUNCE:
                announced = PushMessagesRequest.FromString(body)
                return 0 if self._is_awaited(announced, node) else 409
            pushed = PushObjectRequest.FromString(body)
        except DecodeError:
            return 400
        return 0 if self._has_room(node, pushed.object_id, len(pushed.object_content)) else 413

    def _is_awaited(self, announced: PushMessagesRequest, node: int) -> bool:
        """Return whether this is the first answer to a question that this node was asked."""
        if len(announced.messages_list) != 1 or len(announced.message_object_trees) != 1:
            return False
        number = announced.messages_list[0].metadata.reply_to_message_id
        question = self._state.message_ins_store.get(number)
        return (
            question is not None
            and question.metadata.dst_node_id == node
            and number not in self._state.message_ins_id_to_message_res_id
        )

    def _has_room(self, node: int, object_id: str, n_bytes: int) -> bool:
        """Return whether a node may store one more object, and if so, count the object.

        Objects that have been fetched no longer count.
        """
        stored = self._stored.setdefault(node, {})
        if sum(stored.values()) + n_bytes > MAX_SITE_BYTES or len(stored) >= MAX_SITE_OBJECTS:
            present = {key: n for key, n in stored.items() if key in self._state.object_store}
            stored = self._stored[node] = present
        if sum(stored.values()) + n_bytes > MAX_SITE_BYTES or len(stored) >= MAX_SITE_OBJECTS:
            return False
        stored[object_id] = n_bytes
        return True


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def _is_signed(headers: Headers) -> bool:
    """Return whether the time in the header was signed with the key in the header."""
    try:
        return verify_signature(
            _public_key(headers[FLEET_HTTP_PUBLIC_KEY_HEADER]),
            headers[TIMESTAMP_HEADER].encode("ascii"),
            b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True),
        )
    except (KeyError, ValueError, TypeError, binascii.Error, UnsupportedAlgorithm):
        return False


@lru_cache(maxsize=1024)
def _public_key(encoded: str) -> EllipticCurvePublicKey:
    """Return the public key in a header; keys are cached, since each site sends its own every time."""
    return bytes_to_public_key(b64decode(encoded, validate=True))


async def whole_body(receive: Receive) -> bytes | None:
    """Return a request's body, or None if the caller hung up or was too slow."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


def again(body: bytes, receive: Receive | None = None) -> Receive:
    """Return a function that gives out a body that has already been read, and then what follows it.

    Without ``receive``, nothing follows.
    """
    unread = [body]

    async def next_message() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await (asyncio.Future() if receive is None else receive())

    return next_message
