"""Products with rows about a mean, in a scale and in an order."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from fedpca.rows.gaps import MISSING, column_totals
from fedpca.rows.open import open_rows
from fedpca.rows.standardized import FEW_FEATURES, Frame, RawMoments, StandardizedRows, column_sums
from fedpca.rows.weighted import WeightedRows

RNG = np.random.default_rng(0)


MAKERS = {
    "dense": np.asarray,
    "float32": lambda A: A.astype(np.float32),
    "integer": lambda A: np.round(A).astype(np.int32),
    "sparse": lambda A: sp.csr_array(np.where(abs(A) < 0.7, 0, A)),
    "sparse with full columns": lambda A: sp.csr_array(np.where(abs(A - A.mean(0)) < 0.1, 0, A)),
}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("offset", [0.0, 3.0, 1e6])
@pytest.mark.parametrize("n_products", [1, 10_000])
@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("is_wide", [False, True])
def test_products_are_those_of_the_centered_scaled_ordered_rows(
    make, offset, n_products, blocks, is_wide, monkeypatch
):
    monkeypatch.setattr("fedpca.rows.in_memory.BLOCK_BYTES", 8 * 5 * 40 // blocks)
    if is_wide:
        monkeypatch.setattr("fedpca.rows.in_memory.WIDE_FEATURES", 5)
        monkeypatch.setattr("fedpca.rows.in_memory.WIDE_ROWS", 7)
        monkeypatch.setattr("fedpca.rows.panels.TILE_COLUMNS", 2)
    rng = np.random.default_rng(1)
    X = MAKERS[make](rng.standard_normal((40, 5)) + offset)
    dense = X.toarray() if sp.issparse(X) else X.astype(float)
    order = np.array([3, 0, 4, 1, 2])
    mean = dense[:, order].mean(axis=0) + 0.25  # the global mean is not the site's own
    scale = np.linspace(0.5, 2, 5)
    A = (dense[:, order] - mean) / scale
    rows = open_rows(X)
    count, sums = column_sums(rows)
    assert count == 40
    np.testing.assert_allclose(sums, dense.sum(axis=0), rtol=1e-14)
    no_gram = {"max_cache_bytes": 0} if is_wide else {}
    view = StandardizedRows(rows, Frame(mean, scale, order, sums, n_products), **no_gram)
    Z = rng.standard_normal((5, 2))
    tolerance = {"rtol": 1e-11, "atol": 1e-11 * max(1.0, offset) * 40}
    if offset == 0 or "sparse" not in make:
        tolerance = {"rtol": 1e-12, "atol": 1e-11}
    np.testing.assert_allclose(view.gram_times(Z), A.T @ (A @ Z), **tolerance)
    np.testing.assert_allclose(view.gram(), A.T @ A, **tolerance)
    np.testing.assert_allclose(view.squares(), (A**2).sum(axis=0), **tolerance)
    energy = float((A**2).sum())
    along = view.energy_along(Z, energy)
    assert along == pytest.approx(np.sum((A @ Z) ** 2), rel=1e-8)


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("missing", MISSING)
def test_products_by_panels_know_weights_and_gaps(is_weighted, missing, monkeypatch):
    monkeypatch.setattr("fedpca.rows.in_memory.WIDE_FEATURES", 5)
    monkeypatch.setattr("fedpca.rows.panels.TILE_COLUMNS", 2)
    X = RNG.standard_normal((40, 5)).astype(np.float32) + 3
    weights = RNG.uniform(0.5, 3, 40) if is_weighted else np.ones(40)
    mean, Z = X.mean(axis=0, dtype=np.float64), RNG.standard_normal((5, 2))
    A = np.sqrt(weights)[:, None] * (X - mean)
    if missing != "error":
        X[::6, 1] = np.nan
        A[::6, 1 if missing == "mean" else slice(None)] = 0
    rows = WeightedRows(open_rows(X), weights) if is_weighted else open_rows(X)
    position = MISSING.index(missing)
    frame = Frame(mean, np.ones(5), missing=position, fill=mean if missing == "mean" else None)
    view = StandardizedRows(rows, frame, max_cache_bytes=0)
    np.testing.assert_allclose(view.gram_times(Z), A.T @ (A @ Z), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(view.squares(), (A**2).sum(axis=0), rtol=1e-12)
    assert view.energy_along(Z, 1.0) == pytest.approx(np.sum((A @ Z) ** 2), rel=1e-12)
    counted = weights if missing != "drop" else weights * (np.arange(40) % 6 > 0)
    totals = column_totals(rows, position)
    np.testing.assert_allclose(totals.sums, counted @ np.nan_to_num(X), rtol=1e-6)


def test_raw_moments_serve_near_the_origin_and_nowhere_else():
    near = RawMoments(np.zeros(3))
    assert near.add(RNG.standard_normal((50, 3)), None)
    assert not near.add(RNG.standard_normal((50, 3)).astype(np.float32), None)
    far = RawMoments(np.full(3, 1e3))
    assert not far.add(RNG.standard_normal((50, 3)) + 1e3, None)


@pytest.mark.parametrize(
    ("d", "n_products", "max_cache_bytes", "kept"),
    [
        (FEW_FEATURES + 1, 1, 1 << 22, False),
        (FEW_FEATURES + 1, 500, 1 << 22, True),
        (20, 1, 1 << 20, True),  # whatever it costs, since directions must not select rows
        (20, 500, 8 * 400 - 1, False),
    ],
)
def test_the_gram_matrix_is_cached_where_it_pays_or_is_small_and_fits(
    d, n_products, max_cache_bytes, kept
):
    rows = open_rows(RNG.standard_normal((1000, d)))
    frame = Frame(np.zeros(d), np.ones(d), n_products=n_products)
    view = StandardizedRows(rows, frame, max_cache_bytes=max_cache_bytes)
    view.gram_times(np.ones((d, 2)))
    assert (view._gram is not None) == kept


@pytest.mark.parametrize("only_sums", [False, True])
def test_the_gram_matrix_is_not_kept_for_no_products_unless_directions_may_lie(only_sums):
    rows, Z = RNG.standard_normal((1000, 20)), np.eye(20, 2)
    frame = Frame(np.zeros(20), np.ones(20), n_products=0)
    view = StandardizedRows(open_rows(rows), frame, only_sums=only_sums)
    gram = view.gram()
    assert (view._gram is gram) == only_sums
    assert view.energy_along(Z, np.trace(gram)) == pytest.approx(np.sum((rows @ Z) ** 2))


def test_an_empty_site_adds_nothing():
    view = StandardizedRows(open_rows(np.empty((0, 4))), Frame(np.ones(4), np.ones(4)))
    assert not view.gram_times(np.ones((4, 2))).any()
    assert not view.gram().any()
    assert view.energy_along(np.ones((4, 1)), 0.0) == 0
