"""Answer the requests of a round directly, without the layers of Flower's server.

Flower's server passes each request through nine layers of middleware and hands it to a thread. That
costs several times as much as a small request itself. So the frequent requests of sites and fits go
straight to the functions that Flower would call in the end, after the same checks of the sender.
Everything else goes to Flower's server: other requests, large ones, and those that the checks or the
functions refuse. So Flower itself words each refusal.
"""

from __future__ import annotations

import datetime
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any

from flwr.common.constant import (
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
)
from flwr.server.superlink.linkstate import InMemoryLinkState
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, TASK_TOKEN_HEADER
from flwr.supercore.date import now
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from fedpca.engines.flower.request_filter import FLEET, RUNTIME, SMALL_BYTES, again, whole_body

# a larger request would keep others waiting, so a thread of Flower's server handles it
MAX_EXPRESS_BYTES = SMALL_BYTES

Handler = Callable[[Any, InMemoryLinkState], Any]


def _pull_questions(request: Any, state: InMemoryLinkState) -> Any:
    """Hand out a question to a node; asking for one keeps the node online."""
    node = request.node.node_id
    state.acknowledge_node_heartbeat(node, state.nodes[node].heartbeat_interval)
    return fleet_handlers.pull_messages(request, state, state.object_store)


FLEET_HANDLERS: Mapping[str, Handler] = {
    "pull-messages": _pull_questions,
    "push-messages": fleet_handlers.push_messages,
    "pull-object": fleet_handlers.pull_object,
    "push-object": fleet_handlers.push_object,
    "confirm-message-received": lambda request, state: fleet_handlers.confirm_message_received(
        request, state, state.object_store
    ),
    "send-node-heartbeat": fleet_handlers.send_node_heartbeat,
}
RUNTIME_HANDLERS: Mapping[str, Callable[[Any, InMemoryLinkState, Any], Any]] = {
    "pull-messages": runtime_handlers.pull_messages,
    "push-messages": runtime_handlers.push_messages,
    "pull-object": runtime_handlers.pull_object,
    "push-object": runtime_handlers.push_object,
    "confirm-message-received": runtime_handlers.confirm_message_received,
}


class Express:
    """Middleware that answers frequent requests itself; it must stand behind the `Gate`.

    The gate has verified that a site's request is signed with the key in its header.
    """

    def __init__(self, app: ASGIApp, state: InMemoryLinkState) -> None:
        self._app, self._state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if not _is_frequent(scope, headers):
            await self._app(scope, receive, send)
            return
        body = await whole_body(receive)
        if body is None:
            return  # the caller is gone
        try:
            reply = self._reply(scope["path"], headers, body)
        except Exception:  # Flower's server will say what is wrong with this request
            await self._app(scope, again(body, receive), send)
            return
        length = str(len(reply)).encode()
        head = [(b"content-type", PROTOBUF_MEDIA_TYPE.encode()), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": reply})

    def _reply(self, path: str, headers: Headers, body: bytes) -> bytes:
        request = PROTOBUF_REQUEST_TYPES["POST", path].FromString(body)
        if path.startswith(FLEET):
            self._check_node(request, headers)
            reply = FLEET_HANDLERS[path.removeprefix(FLEET)](request, self._state)
        else:
            (token,) = headers.getlist(TASK_TOKEN_HEADER)
            task = self._state.get_task_by_token(token)
            if task is None:
                raise PermissionError(path)
            reply = RUNTIME_HANDLERS[path.removeprefix(RUNTIME)](request, self._state, task)
        data: bytes = reply.SerializeToString()
        return data

    def _check_node(self, request: Any, headers: Headers) -> None:
        """Refuse a signature that is too old, and a key that is not the node's."""
        signed_at = datetime.datetime.fromisoformat(headers[TIMESTAMP_HEADER])
        age = (now() - signed_at).total_seconds()
        key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        is_fresh = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
        if not is_fresh or self._state.get_node_id_by_public_key(key) != request.node.node_id:
            raise PermissionError(request.node.node_id)


def _is_frequent(scope: Scope, headers: Headers) -> bool:
    """Return whether this middleware answers the request itself."""
    if scope["type"] != "http" or headers.get("content-type") != PROTOBUF_MEDIA_TYPE:
        return False
    path = scope["path"]
    known = (path.startswith(FLEET) and path.removeprefix(FLEET) in FLEET_HANDLERS) or (
        path.startswith(RUNTIME) and path.removeprefix(RUNTIME) in RUNTIME_HANDLERS
    )
    # the gate refuses a body without a declared length
    return known and int(headers.get("content-length", "0")) <= MAX_EXPRESS_BYTES
