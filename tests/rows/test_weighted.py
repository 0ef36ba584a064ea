"""Rows with weights, and rows with gaps, as the rest of the code meets them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from fedpca.errors import InputError
from fedpca.rows.centering import Centered, center_block
from fedpca.rows.gaps import DROP, ERROR, MEAN, column_totals, counting_blocks, filled
from fedpca.rows.in_memory import DenseRows, SparseRows, checksum, weighted_blocks
from fedpca.rows.open import open_rows
from fedpca.rows.weighted import WeightedRows

RNG = np.random.default_rng(0)
X = RNG.standard_normal((20, 4)) + 2.0
W = RNG.integers(0, 3, 20).astype(float)


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_rows_without_weight_are_left_out_and_the_others_keep_theirs(make):
    rows = WeightedRows(open_rows(make(X)), W)
    assert rows.n_rows == (W > 0).sum()
    ((block, weights),) = weighted_blocks(rows)
    np.testing.assert_array_equal(weights, W[W > 0])
    dense = block.toarray() if sp.issparse(block) else block
    np.testing.assert_array_equal(dense, X[W > 0])


def test_rows_are_not_read_as_if_they_had_no_weights():
    with pytest.raises(InputError, match="the rows have weights, which this method does not use"):
        list(WeightedRows(DenseRows(X), W).blocks())


def test_a_column_of_weights_is_read_with_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("fedpca.rows.in_memory.BLOCK_BYTES", 8 * 5 * 7)  # seven rows in a block
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame.insert(2, "w", W)
    path = tmp_path / "rows.parquet"
    frame.to_parquet(path, index=False)
    rows = WeightedRows(open_rows(path), "w")
    assert rows.features == ("a", "b", "c", "d")
    blocks = list(weighted_blocks(rows))
    assert len(blocks) > 1
    np.testing.assert_array_equal(np.vstack([block for block, _ in blocks]), X[W > 0])
    np.testing.assert_array_equal(np.concatenate([w for _, w in blocks]), W[W > 0])


def test_weights_are_part_of_the_checksum():
    sums = {checksum(WeightedRows(DenseRows(X), w)) for w in (W, W + 1, W + 2)}
    assert len(sums) == 3


@pytest.mark.parametrize("make", [DenseRows, lambda rows: SparseRows(sp.csr_array(rows))])
@pytest.mark.parametrize("missing", [MEAN, DROP])
def test_totals_count_what_is_present(make, missing):
    gaps = RNG.random(X.shape) < 0.1
    gaps[:, 3] = True if missing == MEAN else gaps[:, 3]
    holes = np.where(gaps, np.nan, X)
    if missing == DROP:
        whole = ~gaps.any(axis=1)
        rows, weights, present = X[whole], W[whole], ~gaps[whole]
    else:
        rows, weights, present = X, W, ~gaps
    totals = column_totals(WeightedRows(make(holes), W), missing)
    assert totals.n == (weights > 0).sum()
    assert totals.weight == weights.sum()
    np.testing.assert_allclose(totals.present, weights @ present)
    np.testing.assert_allclose(totals.sums, weights @ np.where(present, rows, 0.0))
    if missing == MEAN:
        assert totals.present[3] == 0


def test_a_gap_in_a_zero_weight_row_is_no_gap():
    holes = np.where((W == 0)[:, None], np.nan, X)
    assert column_totals(WeightedRows(DenseRows(holes), W), ERROR).weight == W.sum()


def test_rows_without_gaps_are_not_copied():
    ((block, _),) = counting_blocks(DenseRows(X), MEAN, np.zeros(4))
    assert block.base is X or block is X


def test_filling_leaves_the_callers_rows_alone():
    holes = sp.csr_array(np.where(X > 3, np.nan, X))
    before = holes.data.copy()
    complete = filled(holes, np.arange(4.0))
    np.testing.assert_array_equal(holes.data, before)
    np.testing.assert_array_equal(complete.toarray(), np.where(X > 3, np.arange(4.0), X))


@pytest.mark.parametrize("is_sparse", [False, True])
def test_centered_rows_with_weights_have_the_products_of_weighted_rows(is_sparse):
    rows = np.where(RNG.random(X.shape) < 0.3, 0.0, X)
    rows[:, 0] = X[:, 0]
    mean, w = rows.mean(axis=0), W + 0.5
    Y = np.sqrt(w)[:, None] * (rows - mean)
    centered = center_block(sp.csr_array(rows) if is_sparse else rows, mean).weighted(w)
    assert (centered.shift is not None) == is_sparse
    V, coefficients = RNG.standard_normal((4, 2)), RNG.standard_normal((3, 20))
    assert centered.weight == pytest.approx(w.sum())
    np.testing.assert_allclose(centered.sums(), w @ (rows - mean), atol=1e-12)
    np.testing.assert_allclose(centered.squares(), (Y**2).sum(axis=0))
    np.testing.assert_allclose(centered.inner(), Y.T @ Y, atol=1e-12)
    np.testing.assert_allclose(centered.outer(), Y @ Y.T, atol=1e-12)
    np.testing.assert_allclose(centered.times(V), Y @ V, atol=1e-12)
    np.testing.assert_allclose(centered.dense(), Y, atol=1e-12)
    np.testing.assert_allclose(centered.part(3, 9).dense(), Y[3:9], atol=1e-12)
    total = centered.add_combined(coefficients, np.ones((3, 4)))
    np.testing.assert_allclose(total, 1 + coefficients @ Y, atol=1e-12)
    assert isinstance(centered, Centered)
