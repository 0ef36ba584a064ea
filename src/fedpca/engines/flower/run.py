"""Start a run on Flower's server, driven by this process.

Flower normally starts a run's program from an app. Here, the program is the process that performs the
fit: it starts a run with an app that contains no code, and claims the run from outside the server.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress

import httpx
from flwr.common.constant import HEARTBEAT_MIN_INTERVAL, SUPERLINK_NODE_ID, SubStatus
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.runtime import RuntimeHttpClient

from fedpca.engines.flower.connection import Link, access_token, beating
from fedpca.engines.flower.envelope import (
    Incoming,
    message_to,
    send,
    unwrap,
    unwrap_proof,
    wrap,
)
from fedpca.errors import LinkError, MessageError, SiteError, SiteFailed

# Flower does not start a run without an app.
_APP = """
[project]
name = "fedpca"
version = "1.0.0"
description = "Questions for each site's own fedpca installation; this app contains no code."
license = { text = "BSD-3-Clause" }
[tool.flwr.app]
publisher = "fedpca"
[tool.flwr.app.components]
serverapp = "fedpca:none"
clientapp = "fedpca:none"
"""


def control_client(link: Link, secret: bytes) -> ControlHttpClient:
    """Return the client that starts runs and lists the nodes that are online."""
    return link.client(ControlHttpClient, _Bearer(access_token(secret)))


class ClaimedRun:
    """A run on the server that carries bytes to and from nodes until it is closed."""

    def __init__(self, link: Link, secret: bytes, control: ControlHttpClient) -> None:
        bundle = io.BytesIO()
        with zipfile.ZipFile(bundle, "w") as archive:
            archive.writestr(zipfile.ZipInfo("pyproject.toml"), _APP)
        control.StartRun(StartRunRequest(fab=Fab(content=bundle.getvalue())))
        self._client = link.client(
            RuntimeHttpClient,
            RuntimeVersionHttpInterceptor(component_name="flwr-serverapp"),
            RuntimeTokenHttpInterceptor(_claim(link, secret)),
        )
        self._node = Node(node_id=SUPERLINK_NODE_ID)
        self._run_id = self._client.PullTaskInput(PullTaskInputRequest()).run.run_id
        self._asked: dict[str, int] = {}  # the nodes asked, by Flower's message ID
        self._incoming: dict[str, Incoming] = {}  # announced replies, by the same ID
        self._stop = beating(
            lambda: self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest()),
            HEARTBEAT_MIN_INTERVAL,
        )

    def push(self, data: bytes, node_ids: Sequence[int]) -> list[str]:
        """Send the same bytes to each node, and return Flower's message IDs."""
        content = wrap(data)
        messages = [message_to(node_id, self._run_id, content) for node_id in node_ids]
        numbers = list(send(self._client, self._node, messages, self._announce).message_ids)
        if not all(numbers):
            raise LinkError("the server did not accept every message; try again")
        self._asked |= zip(numbers, node_ids, strict=True)
        return numbers

    def pull(
        self, numbers: Sequence[str], max_bytes: int
    ) -> Iterator[tuple[str, tuple[bytes, bytes | None] | SiteError | None]]:
        """Yield the replies that have arrived, each with its proof if it has one.

        None means that a reply will never arrive. A reply with more than ``max_bytes`` becomes an error
        before it is downloaded completely.
        """
        self._asked = {number: self._asked[number] for number in numbers}
        self._incoming = {n: reply for n, reply in self._incoming.items() if n in self._asked}
        awaited = [number for number in numbers if number not in self._incoming]
        if awaited:
            pulled = self._client.PullMessages(PullAppMessagesRequest(message_ids=awaited))
            for proto, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
                metadata = proto.metadata
                # accept a reply only from the node that was asked
                if self._asked.get(metadata.reply_to_message_id) == metadata.src_node_id:
                    self._incoming[metadata.reply_to_message_id] = Incoming(
                        self._client, self._node, self._run_id, tree, max_bytes
                    )
        for number, incoming in list(self._incoming.items()):
            try:
                message = incoming.fetch()
                if message is not None and message.has_error():  # the node is gone
                    yield number, None
                elif message is not None:
                    yield number, (unwrap(message), unwrap_proof(message))
            except ObjectPullError:  # the sender died while sending
                yield number, None
            except MessageError as error:
                yield number, SiteFailed(str(error))

    def close(self) -> None:
        """End the run."""
        self._stop.set()
        with suppress(httpx.HTTPError):
            self._client.PushTaskOutput(
                PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details="")
            )
        self._client.close()

    def drop(self) -> None:
        """Abandon the run without contacting the server."""
        self._stop.set()
        self._client.close()

    def _announce(
        self, messages: list[ProtoMessage], trees: list[ObjectTree]
    ) -> PushAppMessagesResponse:
        return self._client.PushMessages(
            PushAppMessagesRequest(messages_list=messages, message_object_trees=trees)
        )


class _Bearer:
    """An interceptor that adds the coordinator's token to every request."""

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        add_headers(context.request, {"authorization": f"Bearer {self._token}"})
        return call_next(context)


def _claim(link: Link, secret: bytes) -> str:
    """Return the token of a run that is waiting for its program; any waiting run will do."""
    with link.client(
        RuntimeHttpClient,
        RuntimeVersionHttpInterceptor(component_name="SuperExec"),
        SuperExecAuthHttpInterceptor(
            master_secret=secret, protected_methods=["/flwr.proto.Runtime/AcquireTask"]
        ),
    ) as client:
        claimed = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
    if not claimed.token:
        raise LinkError(
            f"the server at {link.address} gave the run to a different process; try again"
        )
    return claimed.token
