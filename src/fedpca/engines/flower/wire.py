"""One of our encoded messages within one of Flower's, there and back.

Flower takes a message apart into objects that are known by their hashes and carries each on its own.
So a question to many sites is uploaded once, and a large one travels in pieces.
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
_ONE_PIECE = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE  # bytes that travel as one object


def wrap(data: bytes) -> RecordDict:
    """The content of Flower's message that carries ``data``, of as few objects as it allows."""
    if len(data) <= _ONE_PIECE:
        return RecordDict({_RECORD: ConfigRecord({_FIELD: data})})
    array = Array("uint8", (len(data),), _RECORD, data)
    return RecordDict({_RECORD: ArrayRecord({_FIELD: array})})


def message_to(node_id: int, run_id: int, content: RecordDict) -> FlowerMessage:
    """A message from the server's side to a node.

    Its constructor would take the run from a variable of the whole process, which may have two.
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
    """What `wrap` was given."""
    record = message.content.get(_RECORD) if message.has_content() else None
    part = record.get(_FIELD) if isinstance(record, ConfigRecord | ArrayRecord) else None
    data = part.data if isinstance(part, Array) else part
    if not isinstance(data, bytes):
        raise MessageError("not a message of fedpca")
    return data


class Carrier(Protocol):
    """What Flower's clients for both ends have in common."""

    def PushObject(self, request: PushObjectRequest) -> PushObjectResponse: ...
    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse: ...
    def ConfirmMessageReceived(
        self, request: ConfirmMessageReceivedRequest
    ) -> ConfirmMessageReceivedResponse: ...


class Incoming:
    """A message that was announced, and those of its objects that have come."""

    def __init__(self, client: Carrier, node: Node, run_id: int, tree: ObjectTree) -> None:
        self._pull = make_pull_object_fn_protobuf(client.PullObject, node, run_id)
        self._confirm = make_confirm_message_received_fn_protobuf(
            client.ConfirmMessageReceived, node, run_id
        )
        self._tree, self._contents = tree, dict[str, bytes]()

    def fetch(self) -> FlowerMessage | None:
        """The message once it is whole, and None until then: it is announced before it is sent."""
        for part in iterate_object_tree(self._tree):
            if part.object_id not in self._contents:
                try:
                    self._contents[part.object_id] = self._pull(part.object_id)
                except ObjectUnavailableError:
                    return None
        self._confirm(self._tree.object_id)
        try:
            message = inflate_object_from_contents(self._tree.object_id, self._contents)
        except Exception as error:  # what anybody's bytes can make Flower raise
            raise MessageError(f"not a message of fedpca: {type(error).__name__}") from None
        if not isinstance(message, FlowerMessage):
            raise MessageError(f"not a message of fedpca: {type(message).__name__}")
        _number(message, self._tree.object_id)
        return message


def send(
    client: Carrier,
    node: Node,
    messages: Sequence[FlowerMessage],
    announce: Callable[[list[ProtoMessage], list[ObjectTree]], Any],
) -> Any:
    """Announce messages, and upload the objects that the other side does not have."""
    with no_object_id_recompute():
        for message in messages:
            _number(message, message.object_id)
        accepted = announce(
            [message_to_proto(remove_content_from_message(message)) for message in messages],
            [get_object_tree(message) for message in messages],
        )
        objects = {key: part for m in messages for key, part in get_all_nested_objects(m).items()}
        push_objects(
            objects,
            make_push_object_fn_protobuf(
                client.PushObject, node, messages[0].metadata.run_id, accepted.session_id
            ),
            object_ids_to_push=set(accepted.objects_to_push),
        )
    return accepted


def _number(message: FlowerMessage, number: str) -> None:
    """Give a message the number by which Flower knows it; no public way sets it."""
    message.metadata.__dict__["_message_id"] = number
