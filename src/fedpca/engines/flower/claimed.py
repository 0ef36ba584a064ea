"""A run of Flower whose program is this process.

Flower starts a run's program itself from an app that it is sent. Ours is the process that fits: it
starts a run with an app that holds no code, and claims it from outside the server.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress

import httpx
from flwr.common.constant import SUPERLINK_NODE_ID, SubStatus
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
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.runtime import RuntimeHttpClient

from fedpca.engines.flower.wire import Link, access_token, fetch, message_to, send, unwrap, wrap
from fedpca.errors import LinkError, MessageError, SiteError, SiteFailed

# What Flower asks for to start a run.
_APP = """
[project]
name = "fedpca"
version = "1.0.0"
description = "Questions to the sites' own installations of fedpca; this app holds no code."
license = { text = "BSD-3-Clause" }
[tool.flwr.app]
publisher = "fedpca"
[tool.flwr.app.components]
serverapp = "fedpca:none"
clientapp = "fedpca:none"
"""


def control_client(link: Link, secret: bytes) -> ControlHttpClient:
    """What starts runs and tells which nodes are online."""
    return ControlHttpClient.from_server_address(
        link.address, link.plain, link.ca, interceptors=[_Bearer(access_token(secret))]
    )


class ClaimedRun:
    """Carries bytes to nodes and back, until closed."""

    def __init__(self, link: Link, secret: bytes, control: ControlHttpClient) -> None:
        bundle = io.BytesIO()
        with zipfile.ZipFile(bundle, "w") as archive:
            archive.writestr(zipfile.ZipInfo("pyproject.toml"), _APP)
        control.StartRun(StartRunRequest(fab=Fab(content=bundle.getvalue())))
        self._client = RuntimeHttpClient.from_server_address(
            link.address,
            link.plain,
            link.ca,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="flwr-serverapp"),
                RuntimeTokenHttpInterceptor(_claim(link, secret)),
            ],
        )
        self._node = Node(node_id=SUPERLINK_NODE_ID)
        self._run_id = self._client.PullTaskInput(PullTaskInputRequest()).run.run_id
        self._heart = HeartbeatSender(self._beat)
        self._heart.start()

    def push(self, data: bytes, node_ids: Sequence[int]) -> list[str]:
        """Send the same bytes to nodes; Flower's numbers of the messages come back."""
        content = wrap(data)
        messages = [message_to(node_id, self._run_id, content) for node_id in node_ids]
        numbers = list(send(self._client, self._node, messages, self._announce).message_ids)
        if not all(numbers):
            raise LinkError("the server did not take every message")
        return numbers

    def pull(self, numbers: Sequence[str]) -> Iterator[tuple[str, bytes | SiteError | None]]:
        """The replies that are there; None for one that cannot be had."""
        if not numbers:
            return
        found = self._client.PullMessages(PullAppMessagesRequest(message_ids=numbers))
        for proto, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            number = proto.metadata.reply_to_message_id
            try:
                yield number, unwrap(fetch(self._client, self._node, self._run_id, tree))
            except ObjectPullError:  # its sender died while it sent
                yield number, None
            except MessageError as error:
                yield number, SiteFailed(str(error))

    def close(self) -> None:
        """End the run."""
        if self._heart.is_running:
            self._heart.stop()
        with suppress(httpx.HTTPError):
            self._client.PushTaskOutput(
                PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details="")
            )
        self._client.close()

    def _announce(
        self, messages: list[ProtoMessage], trees: list[ObjectTree]
    ) -> PushAppMessagesResponse:
        return self._client.PushMessages(
            PushAppMessagesRequest(messages_list=messages, message_object_trees=trees)
        )

    def _beat(self) -> bool:
        """Tell the server that the program lives; the engine meets what goes wrong and handles it."""
        with suppress(httpx.HTTPError):
            self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        return True


class _Bearer:
    """Shows the coordinator's token with every request."""

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        add_headers(context.request, {"authorization": f"Bearer {self._token}"})
        return call_next(context)


def _claim(link: Link, secret: bytes) -> str:
    """The token of a run that waits for its program; which of several does not matter."""
    with RuntimeHttpClient.from_server_address(
        link.address,
        link.plain,
        link.ca,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(
                master_secret=secret, protected_methods=["/flwr.proto.Runtime/AcquireTask"]
            ),
        ],
    ) as client:
        claimed = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
    if not claimed.token:
        raise LinkError(f"the server at {link.address} gave its run to somebody else")
    return claimed.token
