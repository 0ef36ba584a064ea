"""One of our encoded messages within one of Flower's, there and back, and where the server is.

Flower takes a message apart into objects that are known by their hashes and carries each on its own.
So a question to many sites is uploaded once, and a large one travels in pieces.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
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
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    pull_and_inflate_object_from_tree,
    push_objects,
)

from fedpca.errors import LinkError, LinkRefused, MessageError

_RECORD, _FIELD = "fedpca", "message"
_ONE_PIECE = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE  # bytes that travel as one object
_LOOK_AGAIN, _LOOK_AGAIN_LATER = 0.01, 0.5  # seconds
_GIVE_UP = 60.0


@dataclass(frozen=True)
class Link:
    """Where the coordinator's server is, and the certificate authority by which it is known.

    Without an authority those that the machine trusts are asked. ``plain`` is HTTP without TLS.
    """

    address: str
    ca: bytes | None = None
    plain: bool = False


def access_token(secret: bytes) -> str:
    """What a coordinator shows that knows the secret."""
    return hmac.new(secret, b"fedpca coordinator", hashlib.sha256).hexdigest()


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


def fetch(client: Carrier, node: Node, run_id: int, tree: ObjectTree) -> FlowerMessage:
    """The message whose objects a tree names; it may be announced before they are all there."""
    message = pull_and_inflate_object_from_tree(
        tree,
        make_pull_object_fn_protobuf(client.PullObject, node, run_id),
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, run_id),
        return_type=FlowerMessage,
        initial_backoff=_LOOK_AGAIN,
        backoff_cap=_LOOK_AGAIN_LATER,
        max_time=_GIVE_UP,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id
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
            message.metadata.__dict__["_message_id"] = message.object_id
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


@contextmanager
def mapped_errors(link: Link) -> Iterator[None]:
    """What Flower and its transport raise, as errors of ours that say what to do."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        told = FlowerError.from_json(error.response.text)
        said = told.message if told else error.response.reason_phrase
        raise LinkError(f"the server at {link.address} says: {said}") from error
    except httpx.TransportError as error:
        raise _unreachable(link, error) from None
    except (ObjectPullError, ObjectPushError) as error:
        raise LinkError(f"a message was cut off on its way through {link.address}") from error


def is_unauthorized(error: httpx.HTTPError | LinkError) -> bool:
    """Whether the server does not know who asks."""
    cause = error.__cause__ if isinstance(error, LinkError) else error
    return isinstance(cause, httpx.HTTPStatusError) and cause.response.status_code in (401, 403)


def _unreachable(link: Link, error: httpx.TransportError) -> LinkError:
    text = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return LinkRefused(
            f"the certificate of {link.address} is not one that the given authority vouches for "
            f"({text}); ask the coordinator for the right ca.pem and host name"
        )
    if isinstance(error.__cause__ or error.__context__, ssl.SSLError) or "SSL" in text:
        return LinkRefused(f"{link.address} does not speak TLS ({text}); is the port right?")
    if isinstance(error, httpx.RemoteProtocolError) and link.plain:
        return LinkRefused(
            f"{link.address} does not speak plain HTTP; leave --insecure out and give --ca ca.pem"
        )
    return LinkError(f"no connection to {link.address}: {text}")
