"""The one language in which arrays are declared and checked."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca.arrays import check_arrays, declare
from fedpca.errors import FileError, MessageError

TABLE = declare({"C": "float64 d k", "n": "int64", "packed": "float64 triangle"})


def checked(dimensions=None, **changes):
    arrays = {"C": np.ones((3, 2)), "n": np.int64(4), "packed": np.zeros(6)}
    found = {} if dimensions is None else dimensions
    return check_arrays(TABLE, {**arrays, **changes}, found, "the file", FileError), found


def test_names_stand_for_one_length_each_and_are_noted():
    arrays, dimensions = checked()
    assert sorted(arrays) == ["C", "n", "packed"]
    assert dimensions == {"d": 3, "k": 2}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"C": np.ones((3, 2), np.float32)}, "'C' in the file is float32 instead of float64"),
        ({"C": np.ones(3)}, r"shape \(3,\) instead of \(d, k\)"),
        ({"n": np.zeros(1, np.int64)}, r"shape \(1,\) instead of \(\)"),
        ({"packed": np.zeros(5)}, r"shape \(5,\) instead of \(triangle\)"),
        ({"C": np.array([[1, np.nan], [np.inf, 2], [3, 4]])}, "2 values that are not finite"),
    ],
)
def test_what_differs_is_named(changes, text):
    with pytest.raises(FileError, match=text):
        checked(**changes)


def test_a_known_length_binds():
    with pytest.raises(FileError, match=r"shape \(3, 2\) instead of \(d, k\) with d=4"):
        checked({"d": 4})


def test_a_missing_array_is_named():
    with pytest.raises(MessageError, match="the answer has no field 'n'"):
        check_arrays(declare({"n": "int64"}), {}, {}, "the answer", MessageError)


@pytest.mark.parametrize("text", ["", "complex64 d", "d k"])
def test_a_declaration_begins_with_a_dtype(text):
    with pytest.raises(ValueError, match="must start with one of"):
        declare({"x": text})
