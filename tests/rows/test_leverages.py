"""A direction that few rows have to themselves is found, however short, and named by its columns."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine

from fedpca.rows import in_memory, leverages
from fedpca.rows.gaps import DROP, MEAN
from fedpca.rows.in_memory import DenseRows, SparseRows
from fedpca.rows.leverages import look_for_alone
from fedpca.rows.shares import shares_of
from fedpca.rows.weighted import WeightedRows
from support import draws

M = 5
NONE: list[int] = []


def found_in(rows, most=0.99, gaps=MEAN):
    """The columns in which one row stands out, and in which fewer than M rows do."""
    rows = DenseRows(rows) if isinstance(rows, np.ndarray) else rows
    found = look_for_alone(rows, gaps, shares_of(rows, gaps), most, M)
    return np.flatnonzero(found.of_row).tolist(), np.flatnonzero(found.of_rows).tolist()


def largest_share(values, weights):
    """Leave out each row in turn; return the largest share that falls away along any direction."""

    def scatter(w):
        about = values - np.average(values, weights=w, axis=0)
        return (about.T * w) @ about

    root = np.linalg.inv(np.linalg.cholesky(scatter(weights)))
    n = len(values)
    left = [scatter(np.where(np.arange(n) == i, 0, weights)) for i in range(n)]
    return max(1 - np.linalg.eigvalsh(root @ each @ root.T)[0] for each in left)


@draws(40)
@given(
    n=st.integers(8, 30),
    kind=st.sampled_from(["dense", "sparse", "weighted"]),
    drops=st.booleans(),
    block=st.integers(1, 40),
    seed=st.integers(0, 10**6),
)
def test_a_leverage_is_what_falls_away_without_the_row(n, kind, drops, block, seed):
    rng = np.random.default_rng(seed)
    values = rng.standard_t(2, size=(n, 3)) @ rng.normal(size=(3, 3)) + 100
    weights, rows = np.ones(n), DenseRows(values)
    if drops:
        values[rng.permutation(n)[:2], 0] = np.nan
    if kind == "sparse":
        rows = SparseRows(sp.csr_array(values))
    elif kind == "weighted":
        weights = rng.exponential(size=n) + 0.1
        rows = WeightedRows(rows, weights)
    used = ~np.isnan(values).any(axis=1)
    expected = largest_share(values[used], weights[used])
    before, in_memory.BLOCK_BYTES = in_memory.BLOCK_BYTES, 8 * 3 * block
    try:
        assert found_in(rows, expected - 1e-7, DROP if drops else MEAN)[0]
        assert not found_in(rows, expected + 1e-7, DROP if drops else MEAN)[0]
    finally:
        in_memory.BLOCK_BYTES = before


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-7, 1e-9, 1e-10])
@pytest.mark.parametrize("n_apart", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("has_gaps", [False, True])
def test_columns_that_agree_but_for_few_rows_are_found_however_small_the_difference(
    n_apart, size, has_gaps
):
    rng = np.random.default_rng(n_apart)
    rows = rng.normal(size=(80, 6)) * 10.0 ** np.arange(-2, 4)
    rows[:, 4] = 3 * rows[:, 1]
    rows[20 : 20 + n_apart, 4] += size * 0.1 * rng.choice([-1, 1], n_apart)
    if has_gaps:
        rows[60:70, 2] = np.nan
    of_row, of_rows = found_in(rows)
    assert of_row == ([1, 4] if n_apart == 1 else NONE)
    assert of_rows == ([1, 4] if n_apart < M else NONE)


def test_columns_that_depend_on_others_up_to_rounding_are_no_direction():
    rng = np.random.default_rng(0)
    for scale in (1.0, 1e-100, 1e100):
        rows = rng.normal(size=(200, 8)) * scale
        rows[:, 3] = rows[:, 0] + rows[:, 1] / 3
        rows[:, 5] = rows[:, 4]
        rows[:, 6] = 7 * scale
        assert found_in(rows) == (NONE, NONE)
        assert found_in(rows + 1e3 * scale) == (NONE, NONE)


def test_categories_of_which_few_rows_have_none_are_found():
    rng = np.random.default_rng(1)
    for n_without in range(M + 1):
        rows = np.hstack([np.eye(4)[rng.integers(0, 4, 90)], rng.normal(size=(90, 3))])
        rows[:n_without, :4] = 0
        of_row, of_rows = found_in(rows)
        assert of_row == ([0, 1, 2, 3] if n_without == 1 else NONE)
        assert of_rows == ([0, 1, 2, 3] if 1 <= n_without < M else NONE)


def test_few_of_many_rows_with_large_leverages_are_found():
    """The other rows that belong to a set need not be those with the largest leverages."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        rows = rng.standard_t(2, size=(100, 20))
        rows[:, 7] = rows[:, 2]
        rows[rng.permutation(100)[:3], 7] += rng.normal(size=3)
        assert found_in(rows)[1] == [2, 7]


@draws(60)
@given(
    n_each=st.sampled_from([2, 4, 12, 40, 120]),
    kind=st.sampled_from(["normal", "heavy tails", "one row", "few rows", "flags", "sorted"]),
    is_weighted=st.booleans(),
    is_sparse=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_bounds_save_time_but_change_no_decision(n_each, kind, is_weighted, is_sparse, seed):
    rng = np.random.default_rng(seed)
    d = 6
    values = rng.normal(size=(n_each * d, d)) * 10.0 ** rng.integers(-3, 4, d) + 10
    if kind == "heavy tails":
        values = rng.standard_t(2, size=values.shape)
    elif kind in ("one row", "few rows"):
        values[:, 1] = values[:, 4]
        values[rng.permutation(len(values))[: 1 if kind == "one row" else 3], 4] += 1e-3
    elif kind == "flags":
        values = (rng.random(values.shape) < 0.15).astype(float)
    elif kind == "sorted":
        values = np.sort(values, axis=0)
    rows = SparseRows(sp.csr_array(values)) if is_sparse else DenseRows(values)
    if is_weighted:
        rows = WeightedRows(rows, rng.exponential(size=len(values)) + 0.1)
    found = found_in(rows)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(leverages, "_is_above", lambda *_: False)
        changed.setattr(leverages, "_may_be_in_sets", lambda *_: True)
        changed.setattr(leverages, "LIMIT_MARGIN", 1.0)
        assert found_in(rows) == found


def test_rows_that_are_many_more_than_the_columns_are_read_once(monkeypatch):
    rng = np.random.default_rng(0)
    for n_each, n_read in ((60, 1), (12, 2), (3, 3)):
        rows, found = DenseRows(rng.normal(size=(n_each * 40, 40)) + 5), []

        def blocks(inner=rows.blocks, found=found):
            found.append(1)
            return inner()

        monkeypatch.setattr(rows, "blocks", blocks)
        assert found_in(rows) == (NONE, NONE)
        assert len(found) == n_read


def test_no_row_is_farther_than_its_bound():
    rng = np.random.default_rng(0)
    for n, kind in ((30, 0), (3000, 0), (3000, 1), (60000, 2)):
        values = rng.normal(size=(n, 7)) * 10.0 ** np.arange(7) + 1e4
        values = np.sort(values, axis=0) if kind == 1 else values
        weights = rng.exponential(size=n) + 0.1 if kind == 2 else np.ones(n)
        shares = shares_of(WeightedRows(DenseRows(values), weights), MEAN)
        about = (values - np.average(values, weights=weights, axis=0)) * np.sqrt(weights)[:, None]
        norms = np.linalg.norm(about, axis=0)
        largest = np.square(about / norms).sum(axis=1).max()
        bound = shares.farthest(np.arange(7), norms)
        assert largest <= bound * (1 + 1e-9)
        assert kind == 1 or bound < 4 * largest


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer, load_diabetes])
def test_ordinary_tables_have_no_such_direction(load):
    rows = load().data
    assert found_in(rows) == (NONE, NONE)
    # with twice as many rows as columns
    d = rows.shape[1]
    few = np.random.default_rng(0).permutation(rows)[: max(2 * d, 20)]
    assert found_in(few) == (NONE, NONE)


def test_extreme_values_in_few_rows_are_no_reason_to_refuse():
    rows = np.random.default_rng(3).standard_t(1, size=(400, 20))
    assert found_in(rows, most=1.0)[1] == NONE


def test_constant_columns_and_columns_that_follow_from_others_are_no_directions():
    values = np.random.default_rng(0).normal(size=(40, 10))
    more = np.column_stack([values, values, np.ones((40, 30))])
    rows, wide = DenseRows(more), DenseRows(values)
    for each, most in ((rows, 10), (wide, 9)):
        found = look_for_alone(each, MEAN, shares_of(each, MEAN), 0.99, M, most_directions=most)
        assert (found is None) == (most == 9)
