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
    MAX_HEADER_BYTES,
    PREFIX_BYTES,
    VERSION,
    compose,
    decode,
    encode,
    encoded_size,
)


def fields(*given):
    return json.dumps({"fields": given}).encode()


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
        json.dumps({"fields": []}).encode() + b"\0\0",
    ],
)
def test_a_message_with_a_right_checksum_and_wrong_contents_is_refused(header):
    with pytest.raises(MessageError, match="cannot be read"):
        decode(with_prefix(header))


def with_prefix(header):
    """A message of this header and no arrays, with the checksum that belongs to it."""
    total = PREFIX_BYTES + len(header)
    prefix = struct.pack("<4sIIIQ", MARK, VERSION, zlib.crc32(header), len(header), total)
    return prefix + header


@pytest.mark.parametrize(
    ("header", "bound"),
    [
        (
            b" " * (MAX_HEADER_BYTES + 1),
            "has 1,048,577 bytes, which exceeds the limit of 1,048,576",
        ),
        (b"[" * 100_000, "nested more deeply than the limit of 16 levels"),
        (b'{"a":' * 17 + b"1" + b"}" * 17, "nested more deeply than the limit of 16 levels"),
        (fields(*[[f"x{i}", "float64", [0]] for i in range(257)]), "257 fields.* limit of 256"),
        (fields(["x" * 101, "float64", [0]]), "name has 101 characters.* limit of 100"),
        (fields(["x\n", "float64", [1] * 9]), r"field 'x\\\\n' has 9 dimensions.* limit of 8"),
    ],
    ids=["bytes", "open brackets", "depth", "fields", "name", "rank"],
)
def test_a_header_beyond_a_bound_is_refused_and_the_bound_is_named(header, bound):
    with pytest.raises(MessageError, match=bound):
        decode(with_prefix(header))


@pytest.mark.parametrize(
    ("header", "arrays", "bound"),
    [
        ({"text": "x" * MAX_HEADER_BYTES}, {}, "exceeds the limit of 1,048,576"),
        ({}, {f"x{i}": 0.0 for i in range(257)}, "257 fields"),
        ({}, {"x" * 101: 0.0}, "101 characters"),
        ({}, {"x": np.zeros((1,) * 9)}, "9 dimensions"),
    ],
    ids=["bytes", "fields", "name", "rank"],
)
def test_the_sender_hears_of_the_same_bounds_and_a_file_has_none(header, arrays, bound):
    with pytest.raises(MessageError, match=bound):
        compose(header, arrays)
    kept = decode(encode(compose(header, arrays, limit=None)), limit=None)
    assert list(kept.arrays) == list(arrays)


def test_brackets_within_a_text_are_no_depth():
    header = {"text": '[{"' * 100 + "\\"}
    assert decode(encode(compose(header, {}))).header == header


hostile = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.just("fields"), inner, max_size=4)
    ),
)
hostile_fields = st.lists(
    st.tuples(
        st.text() | st.integers() | st.lists(st.text(), max_size=2),
        st.sampled_from(["float64", "int64", "uint8", "object", "", 3, None]),
        st.lists(st.integers(-2, 2**70) | st.floats() | st.booleans(), max_size=12) | hostile,
    ),
    max_size=4,
)
structured = st.builds(
    lambda a, f: a | {"fields": f}, st.dictionaries(st.text(), hostile), hostile_fields
)


@given(
    st.binary(max_size=200)
    | st.text(alphabet='[]{}",:\\0 a').map(str.encode)
    | (structured | hostile).map(lambda header: json.dumps(header).encode())
)
def test_any_header_is_read_or_refused_with_a_message_error(header):
    said = ""
    try:
        message = decode(with_prefix(header))
    except MessageError as error:
        said = str(error)
    else:
        assert isinstance(message.header, dict)
        assert all(array.size == 0 for array in message.arrays.values())
    assert said.isprintable()
    assert len(said) < 1000


@pytest.mark.parametrize("unit", [b'"', b'\\"', b'"\\', b"[]", b"\\", b'"[', b'{"":'])
def test_no_header_takes_long_to_refuse(unit):
    """A pattern that searches again from each quote would take hours here."""
    n = MAX_HEADER_BYTES // len(unit)
    for header in (unit * n, b'"' + unit * (n - 1)):
        with pytest.raises(MessageError):
            decode(with_prefix(header))
