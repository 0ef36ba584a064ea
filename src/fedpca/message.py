"""Named arrays and a small header, as bytes and back.

A message is ``prefix | header | arrays``. The prefix (24 bytes) holds a mark, the format version, the
CRC-32 of all that follows it and the lengths of the header and of the whole. The header is JSON with
sorted keys and lists every array's name, dtype and shape; the arrays follow in that order as
little-endian C-order bytes, each starting at a multiple of 8. The same values always give the same
bytes. Decoding never runs code and copies nothing: the arrays are read-only views of the bytes.

The checksum finds accidents. Tampering is the business of the channel (TLS) that carries the bytes.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpca.errors import MessageError

Array = npt.NDArray[Any]
Header = dict[str, Any]

MARK = b"FedP"
VERSION = 1
MAX_BYTES = 1 << 30
DTYPES = {
    np.dtype(name).newbyteorder("<"): name for name in ("float64", "float32", "int64", "uint8")
}

_PREFIX = struct.Struct("<4sIIIQ")  # mark, version, crc of the rest, header bytes, all bytes
_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}
_ALIGN = 8
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
PREFIX_BYTES = _PREFIX.size

# what a header of any contents can make Python and numpy raise
_UNREADABLE = (ArithmeticError, LookupError, ValueError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Message:
    """A header, named arrays that nobody can write to, and how many bytes they take when encoded."""

    header: Header
    arrays: dict[str, Array]
    n_bytes: int


def compose(
    header: Mapping[str, Any], arrays: Mapping[str, Any], *, limit: int | None = MAX_BYTES
) -> Message:
    """A message of these arrays, which are not copied unless their order or dtype needs it."""
    ready = {name: _plain(name, array) for name, array in arrays.items()}
    total = (
        PREFIX_BYTES
        + len(_header_text(header, ready))
        + sum(array.nbytes + _padding(array.nbytes) for array in ready.values())
    )
    if limit is not None and total > limit:
        raise MessageError(f"a message of {total:,} bytes exceeds the limit of {limit:,}")
    return Message(dict(header), ready, total)


def encode(message: Message) -> bytes:
    """The message's bytes, the same for the same values on every machine."""
    text = _header_text(message.header, message.arrays)
    parts: list[bytes | memoryview] = [text]
    for array in message.arrays.values():
        parts += [array.reshape(-1).view(np.uint8).data, b"\0" * _padding(array.nbytes)]
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    prefix = _PREFIX.pack(MARK, VERSION, crc, len(text), message.n_bytes)
    return b"".join([prefix, *parts])


def decode(data: bytes, *, limit: int | None = MAX_BYTES) -> Message:
    """The message in ``data``, after every check that needs no knowledge of the question."""
    if limit is not None and len(data) > limit:
        raise MessageError(f"message of {len(data):,} bytes exceeds the limit of {limit:,}")
    if len(data) < _PREFIX.size or data[:4] != MARK:
        raise MessageError("not a fedpca message")
    _, version, crc, n_header, total = _PREFIX.unpack_from(data)
    if version != VERSION:
        raise MessageError(
            f"message format {version} is not {VERSION}; install the same fedpca everywhere"
        )
    if len(data) != total:
        raise MessageError(f"message has {len(data):,} of {total:,} bytes: truncated or extended")
    view = memoryview(data)
    if zlib.crc32(view[_PREFIX.size :]) != crc:
        raise MessageError("message was altered on the way: its checksum does not match")
    try:
        header = json.loads(bytes(view[_PREFIX.size : _PREFIX.size + n_header]))
        fields = header.pop("fields")
        arrays = _read_arrays(view[_PREFIX.size + n_header :], fields)
    except _UNREADABLE as error:
        raise MessageError(f"message cannot be read: {type(error).__name__}") from None
    return Message(header, arrays, total)


def encoded_size(prefix: bytes) -> int | None:
    """How many bytes a message that begins with ``prefix`` has; None where none begins there."""
    if len(prefix) < PREFIX_BYTES or prefix[:4] != MARK:
        return None
    return int(_PREFIX.unpack(prefix)[-1])


def _header_text(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    fields = [[name, DTYPES[array.dtype], array.shape] for name, array in arrays.items()]
    text = _JSON.encode({**header, "fields": fields}).encode()
    return text + b" " * _padding(PREFIX_BYTES + len(text))


def _plain(name: str, array: Any) -> Array:
    array = np.asarray(array)
    dtype = array.dtype.newbyteorder("<")
    if dtype not in DTYPES:
        allowed = ", ".join(DTYPES.values())
        raise MessageError(f"field {name!r} has dtype {array.dtype}; allowed: {allowed}")
    # ascontiguousarray would turn a scalar into a vector
    plain = np.asarray(array, dtype=dtype, order="C").view()
    plain.flags.writeable = False
    return plain


def _read_arrays(body: memoryview, fields: list[tuple[str, str, list[int]]]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    start = 0
    for name, dtype_name, shape in fields:
        if dtype_name not in _BY_NAME or name in arrays or any(n < 0 for n in shape):
            raise ValueError(name)
        dtype = _BY_NAME[dtype_name]
        count = math.prod(shape)
        arrays[name] = np.frombuffer(body, dtype, count, start).reshape(shape)
        start += count * dtype.itemsize
        start += _padding(start)
    if start != len(body):
        raise ValueError("length")
    return arrays


def _padding(n_bytes: int) -> int:
    return -n_bytes % _ALIGN
