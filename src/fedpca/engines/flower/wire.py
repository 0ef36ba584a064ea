"""One of our encoded messages within one of Flower's, and where Flower's server is.

Flower takes a message apart into objects that are known by their hashes and carries each on its own.
So a question to many sites is uploaded once, and a large one travels in pieces.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from flwr.app import DEFAULT_TTL, Array, ArrayRecord, Metadata, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.date import now
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError

from fedpca.errors import LinkError, LinkRefused, MessageError

_RECORD, _FIELD = "fedpca", "message"


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
    """The content of Flower's message that carries ``data``."""
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
    try:
        record = message.content.array_records[_RECORD]
        return bytes(record[_FIELD].data)
    except (KeyError, ValueError):
        raise MessageError("not a message of fedpca") from None


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
