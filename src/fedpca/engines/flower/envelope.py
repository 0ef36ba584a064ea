"""Wrap encoded fedpca messages in Flower messages, and unwrap them.

Flower splits a message into objects, identifies each object by its hash, and carries each one
separately. A question for many sites is therefore uploaded once, and a large message travels in pieces.
A site's signature travels next to its answer, so the fedpca message is the same on every engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from flwr.app import DEFAULT_TTL, Array, ArrayRecord, ConfigRecord, Metadata, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.app.message import make_message, remove_content_from_message
from flwr.app.message.arraychunk import ArrayChunk
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
    get_object_body,
    get_object_head_values_from_object_content,
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
from fedpca.protocol.message import MAX_BYTES

_RECORD, _FIELD = "fedpca", "message"
_PROOF = "proof"
_MAX_OBJECT_BYTES = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE  # larger messages are split
_WRAPPING_BYTES = 1 << 16  # more than Flower adds to the largest message


def wrap(data: bytes, proof: bytes | None = None) -> RecordDict:
    """Return Flower message content that carries ``data`` in as few objects as possible.

    ``proof`` is what a site sends along with an answer; see `fedpca.protocol.proof`.
    """
    beside = {} if proof is None else {_PROOF: proof}
    if len(data) <= _MAX_OBJECT_BYTES:
        return RecordDict({_RECORD: ConfigRecord({_FIELD: data, **beside})})
    array = Array("uint8", (len(data),), _RECORD, data)
    content = RecordDict({_RECORD: ArrayRecord({_FIELD: array})})
    if beside:
        content[_PROOF] = ConfigRecord({**beside})
    return content


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


def unwrap_proof(message: FlowerMessage) -> bytes | None:
    """Return the proof that was passed to `wrap` with the data, or None if there is none."""
    records = (message.content.get(name) for name in (_RECORD, _PROOF))
    for record in records:
        proof = record.get(_PROOF) if isinstance(record, ConfigRecord) else None
        if isinstance(proof, bytes):
            return proof
    return None


class Carrier(Protocol):
    """The methods that Flower's clients at the coordinator and at the sites have in common."""

    def PushObject(self, request: PushObjectRequest) -> PushObjectResponse: ...
    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse: ...
    def ConfirmMessageReceived(
        self, request: ConfirmMessageReceivedRequest
    ) -> ConfirmMessageReceivedResponse: ...


class Incoming:
    """An announced message, and those of its objects that have arrived.

    Flower does not announce sizes. So the bytes are counted as they arrive, one object at a time, and
    no more objects are fetched once there are more than ``max_bytes``. The server accepts only small
    objects.
    """

    def __init__(
        self,
        client: Carrier,
        node: Node,
        run_id: int,
        tree: ObjectTree,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._pull = make_pull_object_fn_protobuf(client.PullObject, node, run_id)
        self._confirm = make_confirm_message_received_fn_protobuf(
            client.ConfirmMessageReceived, node, run_id
        )
        self._tree, self._contents = tree, dict[str, bytes]()
        self._max_bytes, self._n_bytes = max_bytes + _WRAPPING_BYTES, 0

    def fetch(self) -> FlowerMessage | None:
        """Return the message, or None if some of its objects have not arrived yet."""
        for branch in iterate_object_tree(self._tree):
            if branch.object_id not in self._contents:
                try:
                    content = self._pull(branch.object_id)
                except ObjectUnavailableError:
                    return None
                self._contents[branch.object_id] = content
                self._n_bytes += len(content)
                if self._n_bytes > self._max_bytes:
                    break
        self._confirm(self._tree.object_id)  # the server drops what was not fetched
        try:
            if self._n_bytes > self._max_bytes or _whole_size(self._contents) > self._max_bytes:
                self._contents.clear()
                raise MessageError(
                    f"the message exceeds its limit of {self._max_bytes:,} bytes and was refused unread"
                )
            message = inflate_object_from_contents(self._tree.object_id, self._contents)
        except MessageError:
            raise
        except Exception as error:  # Flower can raise any exception on malformed bytes
            raise MessageError(f"this is not a fedpca message: {type(error).__name__}") from None
        if not isinstance(message, FlowerMessage):
            raise MessageError(f"this is not a fedpca message: {type(message).__name__}")
        _number(message, self._tree.object_id)
        return message


def _whole_size(contents: Mapping[str, bytes]) -> int:
    """Return the size of a message's objects once its arrays are put together from their pieces.

    A piece travels once but may occur many times in an array, so a small message could fill the memory.
    """
    total = sum(map(len, contents.values()))
    for content in contents.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind != Array.__qualname__:
            continue
        indices = json.loads(get_object_body(content, Array))["arraychunk_ids"]
        pieces = [children[index] for index in indices]
        for piece in set(pieces):
            if get_object_head_values_from_object_content(contents[piece])[0] != (
                ArrayChunk.__qualname__
            ):
                raise TypeError(piece)
        total += sum(len(contents[piece]) for piece in pieces)
        total -= sum(len(contents[piece]) for piece in set(pieces))
    return total


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
