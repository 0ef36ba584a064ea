"""Wrap encoded fedpca messages in Flower messages, using only Flower's public interface."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.app import Message as FlowerMessage

from fedpca.errors import MessageError

NAME_ACTION, ANSWER_ACTION = "fedpca_name", "fedpca_answer"  # what a ClientApp is asked for
ASK_NAME, ASK_ANSWER = f"query.{NAME_ACTION}", f"query.{ANSWER_ACTION}"

_RECORD, _FIELD, _NAME = "fedpca", "message", "name"


def wrap(data: bytes) -> RecordDict:
    """Return Flower message content that carries ``data``, which Flower splits if it is large."""
    array = Array("uint8", (len(data),), _RECORD, data)
    return RecordDict({_RECORD: ArrayRecord({_FIELD: array})})


def unwrap(message: FlowerMessage) -> bytes:
    """Return the bytes that were passed to `wrap`."""
    record = message.content.get(_RECORD) if message.has_content() else None
    array = record.get(_FIELD) if isinstance(record, ArrayRecord) else None
    if not isinstance(array, Array):
        raise MessageError("this is not a fedpca message")
    return array.data


def wrap_name(name: str) -> RecordDict:
    """Return Flower message content that carries a site's name."""
    return RecordDict({_RECORD: ConfigRecord({_NAME: name})})


def unwrap_name(message: FlowerMessage) -> str | None:
    """Return the name that was passed to `wrap_name`, or None if there is none."""
    record = message.content.get(_RECORD) if message.has_content() else None
    name = record.get(_NAME) if isinstance(record, ConfigRecord) else None
    return name if isinstance(name, str) and name else None
