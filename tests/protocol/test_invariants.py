"""Answers keep the promises of their declarations, or are refused with the promise that they break."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpca.arrays import declare
from fedpca.errors import InputError, MessageError
from fedpca.linalg.dense import pack_triangle
from fedpca.protocol.invariants import (
    MAX_COUNT,
    MAX_NORM,
    SHORT_COLUMNS,
    broken_promise,
    norm_of,
    told,
)
from fedpca.protocol.question import question

ROWS = np.random.default_rng(0).standard_normal((20, 4))
GRAM = ROWS.T @ ROWS
TRIANGLE = pack_triangle(GRAM)


def problem(array, text, energy=None):
    shape, *words = [part.strip() for part in text.split(",")]
    array, declared = np.asarray(array), declare({"x": shape})["x"]
    return broken_promise(array, declared, words, norm_of(array, declared, words), energy)


@pytest.mark.parametrize(
    ("text", "kept", "broken", "said"),
    [
        ("int64 m, count", [0, 3, MAX_COUNT], [3, -1], "negative counts"),
        ("int64 m, count", [0], [MAX_COUNT + 1], "counts above"),
        ("float64, count", 3.0, 3.5, "not whole"),
        ("float64 m, squares", [0.0, 1e130], [1.0, -1e-300], "negative sums of squares"),
        ("float64, nonnegative, large", 1e299, -1.0, "negative values"),
        ("float64 m, share", [0.0, 0.5, 1.0], [0.5, 1.1], "between 0 and 1"),
        ("float64 m, share", [], [-0.1], "between 0 and 1"),
        ("float64 m, decreasing", [3.0, 3.0, 1.0], [1.0, 2.0], "decreasing"),
        ("float64 r d, orthonormal", np.eye(2, 5), 2 * np.eye(2, 5), "orthonormal"),
        ("float64 d r, orthonormal", np.eye(5, 2), np.ones((5, 2)), "orthonormal"),
        ("float64 k k, semidefinite", GRAM, -GRAM, "negative variances"),
        ("float64 k k, semidefinite", GRAM, GRAM + 100 * (1 - np.eye(4)), "covariances that exceed"),
        ("float64 triangle, semidefinite", TRIANGLE, -TRIANGLE, "negative variances"),
        ("float64 triangle, semidefinite", TRIANGLE, [1.0, 9.0, 1.0], "covariances that exceed"),
        ("float64 f triangle, semidefinite", [TRIANGLE], [[1.0, 9.0, 1.0]], "covariances that"),
        ("float64 d, semidefinite", [[0.0]], [[-1.0]], "negative variances"),
    ],
)  # fmt: skip
def test_a_word_refuses_what_it_does_not_mean(text, kept, broken, said):
    assert problem(kept, text) is None
    assert said in problem(broken, text)


def test_what_a_site_explains_is_limited_by_its_energy():
    text = "float64 d k, explained"
    assert problem(GRAM, text, energy=float(np.trace(GRAM))) is None
    assert "exceeds the sum of squares" in problem(1e3 * GRAM, text, energy=float(np.trace(GRAM)))
    assert problem(1e3 * GRAM, text) is None  # nothing is known about the site's rows


def test_rounding_of_what_lies_outside_the_rows_is_no_broken_promise():
    noise = -1e-12 * np.eye(2)
    text = "float64 k k, semidefinite, explained"
    assert problem(noise, text, energy=1.0) is None
    assert problem(noise, text) is None
    assert "negative variances" in problem(noise, "float64 k k, semidefinite")


@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 2**31))
def test_the_covariance_of_any_rows_is_semidefinite(d, n, seed):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, d)) * 10.0 ** rng.integers(-9, 9, d)
    C = A.T @ A
    assert problem(C, "float64 k k, semidefinite") is None
    assert problem(pack_triangle(C), "float64 triangle, semidefinite") is None


@pytest.mark.parametrize("column", [SHORT_COLUMNS - 1, SHORT_COLUMNS])
def test_a_covariance_in_any_column_of_a_long_triangle_is_limited(column):
    d = SHORT_COLUMNS + 1
    C = np.diag(np.linspace(1, 2, d))
    assert problem(pack_triangle(C), "float64 triangle, semidefinite") is None
    C[3, column] = C[column, 3] = -1.01 * np.sqrt(C[3, 3] * C[column, column])
    found = problem(pack_triangle(C), "float64 triangle, semidefinite")
    assert "covariances that exceed" in found


def test_a_triangle_tells_its_trace_and_a_vector_its_sum():
    declared = declare({"t": "float64 triangle", "v": "float64 d"})
    energy = told(TRIANGLE, declared["t"], ("semidefinite", "energy"))
    assert energy == {"energy": pytest.approx(np.trace(GRAM))}
    assert told(np.arange(3.0), declared["v"], ("squares", "energy")) == {"energy": 3.0}
    assert told(np.arange(3.0), declared["v"], ("squares",)) == {}


def test_an_unknown_word_is_refused_when_the_question_is_declared():
    with pytest.raises(ValueError, match="field 'y': 'positive' must be one of count, squares"):

        @question(answers={"y": "float64, positive"})
        def answer_positively(site):
            return {}


def test_numbers_whose_totals_overflow_are_refused_at_the_coordinator_and_at_the_site():
    @question(answers={"y": "float64 k"})
    def answer_hugely(site):
        return {}

    huge = {"y": np.array([MAX_NORM, MAX_NORM])}
    with pytest.raises(
        MessageError, match=r"field 'y'.*at most 1e\+146 in size; rescale the columns"
    ):
        answer_hugely.check_answer(huge, {}, {})
    with pytest.raises(InputError, match="rescale the columns"):
        answer_hugely.check_answer(huge, {}, {}, too_large=InputError)


def test_a_promise_between_fields_is_a_function():
    def lost_rows(answer, asked):
        return "lost rows" if answer["n"] < asked["least"] else None

    @question(asks={"least": "int64"}, answers={"n": "int64, count"}, check=lost_rows)
    def answer_count(site, least):
        return {}

    asked = {"least": np.int64(3)}
    assert answer_count.check_answer({"n": np.int64(3)}, {}, asked) == {"n": 3}
    with pytest.raises(MessageError, match="the answer lost rows"):
        answer_count.check_answer({"n": np.int64(2)}, {}, asked)
