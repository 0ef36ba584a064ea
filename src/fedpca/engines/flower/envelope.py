"""Wrap encoded fedpca messages in Flower messages, and unwrap them.

Flower splits a message into objects, identifies each object by its hash, and carries each one
separately. A question for many sites is therefore uploaded once, and a large message travels in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from flwr.app import DEFAULT_TTL, Array, ArrayRecord, ConfigRecord, Metadata, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE, SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import Node
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectUnavailableError,
    inflate_object_from_contents,
    push_objects,
)

from fedpca.errors import MessageError

_RECORD, _FIELD = "fedpca", "message"
_MAX_OBJECT_BYTES = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE  # larger messages are split


def wrap(data: bytes) -> RecordDict:
    """Return Flower message content that carries ``data`` in as few objects as possible."""
    if len(data) <= _MAX_OBJECT_BYTES:
        return RecordDict({_RECORD: ConfigRecord({_FIELD: data})})
    array = Array("uint8", (len(data),), _RECORD, data)
    return RecordDict({_RECORD: ArrayRecord({_FIELD: array})})


def message_to(node_id: int, run_id: int, content: RecordDict) -> FlowerMessage:
    """Return a message from the server to a node.

    Flower's constructor takes the run from a global variable, but a process may have two runs.
    """
    metadata = Metadata(
        run_id=run_id,
        message_id="",
        src_node_id=SUPERLINK_NODE_ID,
        dst_node_id=node_id,
        reply_to_message_id="",
        group_id="",
        created_at=now().timestamp(),
        ttl=DEFAULT_TTL,
        message_type="query",
    )
    return make_message(metadata=metadata, content=content)


def unwrap(message: FlowerMessage) -> bytes:
    """Return the bytes that were passed to `wrap`."""
    record = message.content.get(_RECORD) if message.has_content() else None
    value = record.get(_FIELD) if isinstance(record, ConfigRecord | ArrayRecord) else None
    data = value.data if isinstance(value, Array) else value
    if not isinstance(data, bytes):
        raise MessageError("this is not a fedpca message")
    return data


class Carrier(Protocol):
    """The methods that Flower's clients have in common at the server and at the sites."""

    def PushObject(self, request: PushObjectRequest) -> PushObjectResponse: ...
    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse: ...
    def ConfirmMessageReceived(
        self, request: ConfirmMessageReceivedRequest
    ) -> ConfirmMessageReceivedResponse: ...


class Incoming:
    """An announced message and the objects of it that have arrived."""

    def __init__(self, client: Carrier, node: Node, run_id: int, tree: ObjectTree) -> None:
        self._pull = make_pull_object_fn_protobuf(client.PullObject, node, run_id)
        self._confirm = make_confirm_message_received_fn_protobuf(
            client.ConfirmMessageReceived, node, run_id
        )
        self._tree, self._contents = tree, dict[str, bytes]()

    def fetch(self) -> FlowerMessage | None:
        """Return the message, or None if some of its objects have not arrived yet."""
        for branch in iterate_object_tree(self._tree):
            if branch.object_id not in self._contents:
                try:
                    self._contents[branch.object_id] = self._pull(branch.object_id)
                except ObjectUnavailableError:
                    return None
        self._confirm(self._tree.object_id)
        try:
            message = inflate_object_from_contents(self._tree.object_id, self._contents)
        except Exception as error:  # Flower can raise anything on malformed bytes
            raise MessageError(f"this is not a fedpca message: {type(error).__name__}") from None
        if not isinstance(message, FlowerMessage):
            raise MessageError(f"this is not a fedpca message: {type(message).__name__}")
        _number(message, self._tree.object_id)
        return message


def send(
    client: Carrier,
    node: Node,
    messages: Sequence[FlowerMessage],
    announce: Callable[[list[ProtoMessage], list[ObjectTree]], Any],
) -> Any:
    """Announce messages, and upload the objects that the server does not have yet."""
    with no_object_id_recompute():
        for message in messages:
            _number(message, message.object_id)
        accepted = announce(
            [message_to_proto(remove_content_from_message(message)) for message in messages],
            [get_object_tree(message) for message in messages],
        )
        objects = {key: item for m in messages for key, item in get_all_nested_objects(m).items()}
        push_objects(
            objects,
            make_push_object_fn_protobuf(
                client.PushObject, node, messages[0].metadata.run_id, accepted.session_id
            ),
            object_ids_to_push=set(accepted.objects_to_push),
        )
    return accepted


def _number(message: FlowerMessage, number: str) -> None:
    """Set Flower's message ID, which has no public setter."""
    message.metadata.__dict__["_message_id"] = number
