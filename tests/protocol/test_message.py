"""Messages are checked, versioned and the same everywhere."""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpca.errors import MessageError
from fedpca.protocol.message import (
    MARK,
    PREFIX_BYTES,
    VERSION,
    compose,
    decode,
    encode,
    encoded_size,
)

arrays = hnp.arrays(
    dtype=st.sampled_from([np.float64, np.float32, np.int64, np.uint8]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


@given(st.dictionaries(st.text(min_size=1, max_size=8), arrays, max_size=4))
def test_decoding_gives_back_what_was_encoded(fields):
    composed = compose({"round": 3, "site": "nörd"}, fields)
    data = encode(composed)
    message = decode(data)
    assert message.header == {"round": 3, "site": "nörd"}
    assert message.n_bytes == composed.n_bytes == len(data) == encoded_size(data[:PREFIX_BYTES])
    assert list(message.arrays) == list(fields)
    for name, array in fields.items():
        assert message.arrays[name].dtype == array.dtype
        assert message.arrays[name].shape == array.shape
        assert message.arrays[name].tobytes() == array.tobytes()
        assert not message.arrays[name].flags.writeable


def test_memory_order_does_not_change_the_bytes():
    rows = np.arange(12.0).reshape(3, 4)
    both = [encode(compose({}, {"x": a})) for a in (rows, np.asfortranarray(rows))]
    assert both[0] == both[1]


def test_fields_are_aligned_for_fast_products():
    fields = {"a": np.zeros(3, np.uint8), "b": np.ones(2), "c": np.ones(5, np.float32)}
    message = decode(encode(compose({}, fields)))
    assert all(array.flags.aligned for array in message.arrays.values())


@given(st.data())
def test_an_altered_message_is_refused(data):
    good = encode(compose({"question": "q"}, {"x": np.arange(6.0)}))
    place = data.draw(st.integers(0, len(good) - 1))
    flip = data.draw(st.integers(1, 255))
    bad = good[:place] + bytes([good[place] ^ flip]) + good[place + 1 :]
    with pytest.raises(MessageError):
        decode(bad)


@given(st.integers(0, 400))
def test_a_truncated_or_extended_message_is_refused(n):
    good = encode(compose({"question": "q"}, {"x": np.arange(6.0)}))
    for bad in (good[: min(n, len(good) - 1)], good + bytes(n + 1)):
        with pytest.raises(MessageError):
            decode(bad)


def test_an_oversized_message_is_refused_at_both_ends():
    message = compose({}, {"x": np.zeros(100)})
    with pytest.raises(MessageError, match="exceeds the limit of 500"):
        compose({}, {"x": np.zeros(100)}, limit=500)
    with pytest.raises(MessageError, match="exceeds the limit of 500"):
        decode(encode(message), limit=500)


def test_another_version_is_refused_by_its_number():
    data = bytearray(encode(compose({}, {})))
    data[4] = 9
    with pytest.raises(MessageError, match="format 9"):
        decode(bytes(data))


@pytest.mark.parametrize("bad", [np.array([1 + 2j]), np.array(["a"]), np.array([object()]), True])
def test_only_plain_numbers_travel(bad):
    with pytest.raises(MessageError, match="use one of float64"):
        compose({}, {"x": bad})


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b"[]",
        b"{}",
        json.dumps({"fields": [["x", "object", [1]]]}).encode(),
        json.dumps({"fields": [["x", "float64", [-1]]]}).encode(),
        json.dumps({"fields": [["x", "float64", [2]]]}).encode(),
        json.dumps({"fields": [["x", "float64", [0]], ["x", "float64", [0]]]}).encode(),
        json.dumps({"fields": [["x", "float64", ["a"]]]}).encode(),
        json.dumps({"fields": [["x", "float64", [10**30]]]}).encode(),
        json.dumps({"fields": [[1, "float64", [0]]]}).encode(),
        json.dumps({"fields": [[None, "float64", [0]]]}).encode(),
        json.dumps({"fields": [[["x"], "float64", [0]]]}).encode(),
        b"[" * 100_000,
        json.dumps({"fields": []}).encode() + b"\0\0",
    ],
)
def test_a_message_with_a_right_checksum_and_wrong_contents_is_refused(header):
    total = PREFIX_BYTES + len(header)
    prefix = struct.pack("<4sIIIQ", MARK, VERSION, zlib.crc32(header), len(header), total)
    with pytest.raises(MessageError, match="cannot be read"):
        decode(prefix + header)
