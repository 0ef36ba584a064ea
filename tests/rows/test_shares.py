"""A row's share of a column is what falls away without the row, however the rows are stored."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from fedpca.rows import in_memory
from fedpca.rows.gaps import DROP, ERROR, MEAN
from fedpca.rows.in_memory import DenseRows, SparseRows
from fedpca.rows.shares import shares_of, shares_of_counts
from fedpca.rows.weighted import WeightedRows
from support import draws


def largest_share(values, weights):
    """Leave out each row in turn, and compare the sums of squares about the mean."""

    def squares(keep):
        w, x = weights[keep], values[keep]
        return float(w @ np.square(x - np.average(x, weights=w)))

    there = ~np.isnan(values)
    total = squares(there)
    if np.ptp(values[there]) == 0:
        return 0.0
    rows = np.flatnonzero(there)
    return max(1 - squares(np.setdiff1d(rows, [i])) / total for i in rows)


@draws(60)
@given(
    n=st.integers(3, 30),
    kind=st.sampled_from(["dense", "sparse", "float32", "weighted"]),
    gaps=st.sampled_from([ERROR, MEAN, DROP]),
    block=st.integers(1, 40),
    offset=st.sampled_from([0.0, 1e6]),
    seed=st.integers(0, 10**6),
)
def test_a_share_is_what_falls_away_without_the_row(n, kind, gaps, block, offset, seed):
    rng = np.random.default_rng(seed)
    values = rng.standard_t(1.5, size=(n, 4)).astype(np.float32).astype(float) + offset
    values[:, 3] = offset
    if gaps != ERROR:
        values[rng.random(values.shape) < 0.1] = np.nan
        values[:3] = rng.normal(size=(3, 4)).astype(np.float32)
    weights, rows = np.ones(n), DenseRows(values)
    if kind == "sparse":
        rows = SparseRows(sp.csr_array(values))
    elif kind == "float32":
        values = values.astype(np.float32).astype(float)
        rows = DenseRows(values.astype(np.float32))
    elif kind == "weighted":
        weights = rng.exponential(size=n) + 0.1
        rows = WeightedRows(rows, weights)
    before, in_memory.BLOCK_BYTES = in_memory.BLOCK_BYTES, 8 * 4 * block
    try:
        found = shares_of(rows, gaps).of_columns(rows, gaps)
    finally:
        in_memory.BLOCK_BYTES = before
    used = ~np.isnan(values).any(axis=1) if gaps == DROP else np.ones(n, bool)
    expected = [largest_share(column, weights[used]) for column in values[used].T]
    assert found == pytest.approx(expected, abs=1e-6)


def test_genotypes_have_the_shares_of_their_values():
    rng = np.random.default_rng(0)
    values = rng.choice([0.0, 1.0, 2.0, np.nan], size=(30, 9), p=[0.7, 0.1, 0.1, 0.1])
    values[:, 0] = 1.0
    counts = np.column_stack([(values == g).sum(axis=0) for g in range(3)])
    expected = [largest_share(column, np.ones(30)) for column in values.T]
    assert shares_of_counts(counts) == pytest.approx(expected)


def test_a_row_with_nearly_all_the_weight_is_found():
    rows = WeightedRows(
        DenseRows(np.random.default_rng(0).normal(size=(50, 3))), [4e3] + [1.0] * 49
    )
    assert shares_of(rows, ERROR).of_weight == pytest.approx(4000 / 4049)
