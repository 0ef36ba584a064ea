"""Encode a header and named arrays as bytes, and decode them again.

A message is ``prefix | header | arrays``. The prefix (24 bytes) holds a mark, the format version, the
CRC-32 of all bytes after the prefix, the header length, and the total message length. The header is
JSON with sorted keys and lists each array's name, dtype, and shape. The arrays follow in that order as
little-endian C-order bytes. Each array starts at a multiple of 8 bytes. The same values always produce
the same bytes. Decoding never executes code or copies data; the arrays are read-only views of the
bytes.

The checksum detects accidental corruption. The TLS channel that carries the bytes protects them against
tampering.

A message from another machine is checked against all limits before its parts are built: see
``MAX_BYTES`` and the constants after it. These limits do not apply to this machine's own journals and
memory files.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

import numpy as np

from fedpca.arrays import DTYPES, Array, Arrays, Dimensions
from fedpca.errors import MessageError
from fedpca.protocol.printable import printable

Header = dict[str, Any]

MARK = b"FedP"
VERSION = 2
MAX_BYTES = 1 << 30
MAX_HEADER_BYTES = 1 << 20  # the longest holds an error's text; column names are sent as arrays
MAX_HEADER_DEPTH = 16  # the fields take four levels
MAX_FIELDS = 256
MAX_NAME_CHARS = 100  # of a field
MAX_RANK = 8  # dimensions of an array

_PREFIX = struct.Struct("<4sIIIQ")  # mark, version, CRC of the rest, header bytes, total bytes
_DTYPE_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}
_ALIGN_BYTES = 8
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
PREFIX_BYTES = _PREFIX.size

# matching takes time in proportion to the header's length, whatever the header contains
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_STRING = re.compile(rb'"[^"]*"?')
_NOT_A_BRACKET = re.compile(rb"[^][{}]+")

# the exceptions that Python and numpy can raise for a header with arbitrary contents
_UNREADABLE = (ArithmeticError, LookupError, ValueError, TypeError, AttributeError, RecursionError)


class Checked(NamedTuple):
    """Arrays that passed the checks of a question, and the lengths of their dimensions."""

    arrays: Arrays
    dimensions: Dimensions
    asked: Arrays | None = None  # for an answer: the question's arrays


@dataclass(frozen=True)
class Message:
    """A header, named read-only arrays, and the encoded size of the message.

    ``max_answer_bytes`` and ``checked`` are not sent. An engine refuses answers larger than
    ``max_answer_bytes`` without reading them. ``checked`` keeps what has passed checks in this process:
    a message to many sites is checked once, and an answer that its site has checked is not checked
    again.
    """

    header: Header
    arrays: Arrays
    n_bytes: int
    max_answer_bytes: int = MAX_BYTES
    checked: dict[Any, Checked] = field(default_factory=dict, init=False, compare=False, repr=False)

    @cached_property
    def digest(self) -> bytes:
        """Return the hash of the header and the arrays, which is the same at both ends."""
        return self._digest_with(self.header)

    def digest_without(self, name: str) -> bytes:
        """Return the hash of the message without an entry of its header."""
        return self._digest_with({key: each for key, each in self.header.items() if key != name})

    def _digest_with(self, header: Header) -> bytes:
        return hashlib.sha256(_header_text(header, self.arrays) + self.arrays_digest).digest()

    @cached_property
    def question_header(self) -> Header:
        """Return the header after checking that it is one of a question."""
        check_header(self.header, QUESTION)
        return self.header

    @cached_property
    def arrays_digest(self) -> bytes:
        """Return the hash of the contents of the arrays."""
        digest = hashlib.sha256()
        for array in self.arrays.values():
            digest.update(array.reshape(-1).view(np.uint8).data)
        return digest.digest()


def compose(
    header: Mapping[str, Any], arrays: Mapping[str, Any], *, limit: int | None = MAX_BYTES
) -> Message:
    """Return a message with these arrays; copy only those that need a new layout or byte order."""
    ready = {name: _plain(name, array) for name, array in arrays.items()}
    n_header = _header_bytes(header, ready)
    if limit is not None:
        _check_length(n_header)
        _check_fields([(name, array.shape) for name, array in ready.items()])
    total = _total_bytes(n_header, ready)
    if limit is not None and total > limit:
        raise MessageError(f"the message has {total:,} bytes, which exceeds the limit of {limit:,}")
    return Message(dict(header), ready, total)


def size_of(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> int:
    """Return the encoded size of a message; the values in the arrays do not matter."""
    return _total_bytes(_header_bytes(header, arrays), arrays)


def encode(message: Message) -> bytes:
    """Return the message's bytes, which depend only on its values, not on the machine."""
    text = _header_text(message.header, message.arrays)
    chunks: list[bytes | memoryview] = [text]
    for array in message.arrays.values():
        chunks += [array.reshape(-1).view(np.uint8).data, b"\0" * _padding(array.nbytes)]
    crc = 0
    for chunk in chunks:
        crc = zlib.crc32(chunk, crc)
    prefix = _PREFIX.pack(MARK, VERSION, crc, len(text), message.n_bytes)
    return b"".join([prefix, *chunks])


def decode(data: bytes, *, limit: int | None = MAX_BYTES) -> Message:
    """Return the message in ``data`` after all checks that do not depend on the question."""
    if limit is not None and len(data) > limit:
        raise MessageError(
            f"the message has {len(data):,} bytes, which exceeds the limit of {limit:,}"
        )
    if len(data) < _PREFIX.size or data[:4] != MARK:
        raise MessageError("this is not a fedpca message")
    _, version, crc, n_header, total = _PREFIX.unpack_from(data)
    if version != VERSION:
        raise MessageError(
            f"the message has format {version} instead of {VERSION}; "
            "install the same version of fedpca everywhere"
        )
    if len(data) != total:
        raise MessageError(
            f"the message has {len(data):,} bytes instead of {total:,}: it was truncated or extended"
        )
    view = memoryview(data)
    if zlib.crc32(view[_PREFIX.size :]) != crc:
        raise MessageError("the message was altered in transit: its checksum does not match")
    text = bytes(view[_PREFIX.size : _PREFIX.size + n_header])
    if limit is not None:
        _check_length(len(text))
        _check_depth(text)
    try:
        header = json.loads(text)
        fields = header.pop("fields")
        if limit is not None:
            _check_fields([(name, shape) for name, _, shape in fields])
        arrays = _read_arrays(view[_PREFIX.size + n_header :], fields)
    except _UNREADABLE as error:
        raise MessageError(f"the message cannot be read: {type(error).__name__}") from None
    return Message(header, arrays, total)


def encoded_size(prefix: bytes) -> int | None:
    """Return the size of the message that starts with ``prefix``, or None for an invalid prefix."""
    if len(prefix) < PREFIX_BYTES or prefix[:4] != MARK:
        return None
    return int(_PREFIX.unpack(prefix)[-1])


def _total_bytes(n_header: int, arrays: Mapping[str, Array]) -> int:
    total = PREFIX_BYTES + n_header
    for array in arrays.values():
        total += array.nbytes + _padding(array.nbytes)
    return total


def _header_text(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    fields = [[name, DTYPES[array.dtype], array.shape] for name, array in arrays.items()]
    text = _JSON.encode({**header, "fields": fields}).encode()
    return text + b" " * _padding(PREFIX_BYTES + len(text))


def _header_bytes(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> int:
    """Return the length of `_header_text`; a message within a process never needs the text itself."""
    n_items, total = 1, len('{"fields":[]}') + max(0, len(arrays) - 1)
    for name, value in header.items():
        if name != "fields":
            n_items += 1
            total += _key_length(name) + _json_length(value)
    total += n_items - 1  # commas
    for name, array in arrays.items():
        total += _field_length(name, array.dtype, array.shape)
    return total + _padding(PREFIX_BYTES + total)


@lru_cache(maxsize=1024)  # all messages have the same few keys
def _key_length(name: str) -> int:
    """Return the length of a key and its colon as JSON."""
    return _json_length(name) + len(":")


@lru_cache(maxsize=1024)  # many sites answer with the same fields
def _field_length(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Return the length of a field's name, dtype, and shape as JSON."""
    lengths = sum(len(str(length)) for length in shape) + max(0, len(shape) - 1)
    return len('[,"",[]]') + _json_length(name) + len(DTYPES[dtype]) + lengths


def _json_length(value: Any) -> int:
    """Return the length of a value as JSON."""
    if type(value) is str:
        return len(encode_basestring_ascii(value))
    return len(str(value)) if type(value) is int else len(_JSON.encode(value))


def _check_length(n_header: int) -> None:
    """Refuse a header that is too long."""
    if n_header > MAX_HEADER_BYTES:
        raise MessageError(
            f"the message's header has {n_header:,} bytes, which exceeds the limit of "
            f"{MAX_HEADER_BYTES:,}"
        )


def _check_depth(text: bytes) -> None:
    """Refuse a header that is nested too deeply, before it is parsed."""
    depth = 0
    for bracket in _NOT_A_BRACKET.sub(b"", _STRING.sub(b"", _ESCAPED.sub(b"", text))):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_HEADER_DEPTH:
            raise MessageError(
                "the message's header is nested more deeply than the limit of "
                f"{MAX_HEADER_DEPTH} levels"
            )


def _check_fields(fields: Sequence[tuple[str, Sequence[int]]]) -> None:
    """Refuse too many fields, and a field with too long a name or too many dimensions."""
    if len(fields) > MAX_FIELDS:
        raise MessageError(
            f"the message has {len(fields):,} fields, which exceeds the limit of {MAX_FIELDS}"
        )
    for name, shape in fields:
        if len(name) > MAX_NAME_CHARS:
            raise MessageError(
                f"the message has a field whose name has {len(name):,} characters, which exceeds the "
                f"limit of {MAX_NAME_CHARS}"
            )
        if len(shape) > MAX_RANK:
            raise MessageError(
                f"field {printable(name)!r} has {len(shape):,} dimensions, which exceeds the limit of "
                f"{MAX_RANK}"
            )


def _plain(name: str, array: Any) -> Array:
    array = np.asarray(array)
    if array.dtype not in DTYPES or not array.flags.c_contiguous:
        dtype = array.dtype.newbyteorder("<")
        if dtype not in DTYPES:
            allowed = ", ".join(DTYPES.values())
            raise MessageError(f"field {name!r} has dtype {array.dtype}; use one of {allowed}")
        # ascontiguousarray would turn a scalar into a vector
        array = np.asarray(array, dtype=dtype, order="C")
    plain: Array = array.view()
    plain.flags.writeable = False
    return plain


def _read_arrays(body: memoryview, fields: list[tuple[str, str, list[int]]]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    start = 0
    for name, dtype_name, shape in fields:
        if not isinstance(name, str) or name in arrays:
            raise ValueError("each field must have a unique name")
        if dtype_name not in _DTYPE_BY_NAME or any(type(n) is not int or n < 0 for n in shape):
            raise ValueError(name)
        dtype = _DTYPE_BY_NAME[dtype_name]
        count = math.prod(shape)
        arrays[name] = np.frombuffer(body, dtype, count, start).reshape(shape)
        start += count * dtype.itemsize
        start += _padding(start)
    if start != len(body):
        raise ValueError("the arrays must fill the message")
    return arrays


def _padding(n_bytes: int) -> int:
    return -n_bytes % _ALIGN_BYTES


# --- what a header holds, which is checked once, at both ends; other entries are never read

MAX_MESSAGE_NAME_CHARS = 200  # characters in the name of an attempt, a question, or a site
MAX_WHOLE = 1 << 48  # of rounds and sites
MAX_RING_BITS = 1 << 16
ECHOED = ("run", "round", "question")  # what an answer repeats of its question


class HeaderEntry(NamedTuple):
    """A check of a header's entry, and what the entry must be, in words."""

    is_valid: Callable[[Any], bool]
    words: str
    is_optional: bool = False


def _is_name(value: Any) -> bool:
    return (
        isinstance(value, str) and 0 < len(value) <= MAX_MESSAGE_NAME_CHARS and value.isprintable()
    )


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_WHOLE


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_HEADER_BYTES


def _is_mask(value: Any) -> bool:
    """Return whether a value is a name, or the two whole numbers of each field's ring."""
    rings = list(value.values()) if isinstance(value, dict) else None
    return _is_name(value) or (
        rings is not None
        and all(isinstance(ring, list) and len(ring) == 2 for ring in rings)
        and all(type(n) is int and abs(n) <= MAX_RING_BITS for ring in rings for n in ring)
    )


_NAME = f"printable text of 1 to {MAX_MESSAGE_NAME_CHARS} characters"
_WHOLE = f"a whole number from 0 to {MAX_WHOLE:,}"
QUESTION = {
    "run": HeaderEntry(_is_name, _NAME),
    "round": HeaderEntry(_is_whole, _WHOLE),
    "question": HeaderEntry(_is_name, _NAME),
    "verb": HeaderEntry(_is_name, _NAME),
    "n_sites": HeaderEntry(_is_whole, _WHOLE),
    "memory": HeaderEntry(_is_whole, _WHOLE),
    "mask": HeaderEntry(_is_mask, "a name, or two whole numbers for each field", is_optional=True),
}
# the other entries of an answer must equal those of the question and the site, which a round compares
ANSWER = {
    "error": HeaderEntry(_is_name, _NAME, is_optional=True),
    "text": HeaderEntry(_is_text, "text", is_optional=True),
}


def check_header(header: Header, declared: Mapping[str, HeaderEntry]) -> None:
    """Refuse a header that lacks an entry, or has one with an unexpected type or size; name it."""
    for name, (is_valid, words, is_optional) in declared.items():
        if not (is_valid(header[name]) if name in header else is_optional):
            raise MessageError(f"{name!r} in the message's header must be {words}")


def echo(asked: Header) -> Header:
    """Return what an answer repeats of its question; entries that are not valid become None."""
    return {
        name: asked[name] if name in asked and QUESTION[name].is_valid(asked[name]) else None
        for name in ECHOED
    }
