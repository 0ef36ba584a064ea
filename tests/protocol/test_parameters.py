"""Each word that bounds an asked field refuses what is outside, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca.protocol.parameters import check_asked_words, out_of_bounds, split_words

RNG = np.random.default_rng(0)
Q = np.linalg.qr(RNG.standard_normal((6, 3)))[0]
INSIDE_AND_OUTSIDE = {
    "orthonormal": (
        [Q, Q[:, :1], np.stack([Q, -Q]), np.empty((6, 0))],
        [2 * Q, Q[:, [0, 0]], np.stack([Q, 1.1 * Q]), np.ones((2, 3)), Q + 1e-6],
    ),
    "flag": ([0, 1, [0, 1]], [2, -1, [0, 2]]),
    "positive": ([1, 1e-300, [1, 2]], [0, -1.0, [1, 0]]),
    "nonnegative": ([0, 1, [0.0, 2.0]], [-1, [0.0, -1e-300]]),
    "1..8": ([1, 8, [2, 3]], [0, 9, [2, 9], 2**62, -(2**62)]),
    "-2..0.5": ([-2, 0.5], [-2.1, 0.6]),
    "columns 1..3": ([Q, Q[:, :1]], [np.empty((6, 0)), np.ones((6, 4))]),
    "one of 5 20": ([5, 20, [5, 20]], [6, 0, [5, 6]]),
    "fixed": ([0, -1, Q], []),
}


@pytest.mark.parametrize("word", INSIDE_AND_OUTSIDE)
def test_a_word_refuses_exactly_what_is_outside(word):
    inside, outside = INSIDE_AND_OUTSIDE[word]
    check_asked_words([word], "x")
    for value in inside:
        assert out_of_bounds(np.asarray(value), [word]) is None
    for value in outside:
        assert out_of_bounds(np.asarray(value), [word]).startswith("must ")


def test_columns_are_orthonormal_for_each_number_of_another_field():
    groups = np.array([0, 0, 1, 1])
    Z = np.hstack([Q[:, :2], Q[:, :2]])
    word = ["orthonormal by flips"]
    check_asked_words(word, "Z")
    assert out_of_bounds(Z, word, {"flips": groups}) is None
    for wrong in (np.zeros(4, int), np.array([0, 1, 0, 1])):
        assert out_of_bounds(Z, word, {"flips": wrong}) is not None
    assert out_of_bounds(2 * Z, word, {"flips": groups}) is not None


def test_words_are_checked_in_order_and_all_of_them():
    words = split_words("fixed, 1..8, one of 2 4")
    assert words == ["fixed", "1..8", "one of 2 4"]
    assert out_of_bounds(np.int64(9), words) == "must be from 1 to 8"
    assert out_of_bounds(np.int64(3), words) == "must be one of 2, 4"
    assert out_of_bounds(np.int64(4), words) is None
    assert split_words("") == []


@pytest.mark.parametrize("word", ["square", "1-8", "columns", "columns many", "one of x", "1.."])
def test_a_word_that_nobody_knows_is_refused(word):
    with pytest.raises(ValueError, match=r"field 'x'.*must be a range A\.\.B or one of fixed"):
        check_asked_words([word], "x")
