"""Rows in files are read once, and what they give does not depend on when they were read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedpca import FederatedPCA, Federation, Site
from fedpca.linalg.dense import sine_of_angle
from fedpca.rows.formats.tables import TableRows
from fedpca.rows.gaps import DROP, ERROR
from fedpca.rows.one_pass import ProvisionalScatter
from fedpca.rows.open import open_rows
from fedpca.rows.standardized import Frame, StandardizedRows
from fedpca.rows.weighted import WeightedRows

N, D, K = 300, 6, 2


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("fedpca.rows.in_memory.BLOCK_BYTES", 8 * D * 70)


@pytest.fixture
def readings(monkeypatch):
    """How often any table was read."""
    counted, blocks = [], TableRows.blocks

    def counting(self):
        counted.append(self)
        return blocks(self)

    monkeypatch.setattr(TableRows, "blocks", counting)
    return counted


def rows_about(offset):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D)) * np.linspace(3, 1, D) @ rng.standard_normal((D, D)) + offset
    X[:, 3] = 0.1 + offset  # constant, but rounding makes its mean differ
    return X


def write(path, X):
    pq.write_table(pa.table({f"c{j}": X[:, j] for j in range(X.shape[1])}), path)
    return str(path)


CASES = {
    "plain": {},
    "scaled": {"scale": True},
    "rows with gaps left out": {"missing": "drop"},
    "about zero": {"center": False},
}


@pytest.mark.parametrize("solver", ["auto", "lanczos"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("weight", [None, "w"])
def test_a_fit_reads_each_file_once(solver, case, weight, tmp_path, readings):
    X = rows_about(5.0)
    w = np.random.default_rng(1).integers(0, 4, N).astype(float)
    sites = []
    for i, part in enumerate(np.array_split(np.arange(N), 2)):
        holes = X[part].copy()
        if case.startswith("rows with gaps"):
            holes[::9, 1] = np.nan
        columns = {f"c{j}": holes[:, j] for j in np.roll(np.arange(D), i)}
        table = pa.table(columns if weight is None else {**columns, "w": w[part]})
        pq.write_table(table, tmp_path / f"{i}.parquet")
        sites.append(Site(str(tmp_path / f"{i}.parquet"), name=str(i), weight=weight))
        whole = ~np.isnan(holes).any(axis=1)
        counts = np.ones(len(part), int) if weight is None else w[part].astype(int)
        X[part[~whole]] = np.nan
        w[part] = counts * whole
    readings.clear()
    model = FederatedPCA(K, solver=solver, random_state=0, **CASES[case]).fit(
        Federation.local(sites)
    )
    assert len(readings) == len(sites)
    pooled = np.repeat(np.nan_to_num(X), w.astype(int), axis=0)
    pooled = pooled - (pooled.mean(axis=0) if case != "about zero" else 0)
    if case == "scaled":
        deviations = pooled.std(axis=0)
        pooled = pooled / np.where(deviations > 1e-12, deviations, 1.0)
    expected = np.linalg.svd(pooled, full_matrices=False)[2][:K].T
    assert sine_of_angle(expected, model.components_.T) < 1e-9


@pytest.mark.parametrize("offset", [0.0, 1e8])
@pytest.mark.parametrize("is_center_far", [False, True])
@pytest.mark.parametrize("kind", ["parquet", "weighted", "dropped"])
def test_the_scatter_has_all_its_digits_and_the_same_bits_when_it_is_read_later(
    offset, is_center_far, kind, tmp_path, monkeypatch
):
    X = rows_about(offset)
    if is_center_far:  # the first block is one row, which is far from the other blocks
        monkeypatch.setattr("fedpca.rows.in_memory.BLOCK_BYTES", 8 * D)
        X[0, 0] += 1e5
    path, missing, weights = tmp_path / "rows.parquet", ERROR, np.ones(N)
    if kind == "dropped":
        missing = DROP
        X[1:80:2, 2] = np.nan
    write(path, X)
    rows = open_rows(str(path))
    if kind == "weighted":
        weights = np.random.default_rng(2).uniform(1, 3, N)
        weights[0] = 1
        rows = WeightedRows(rows, weights)
    whole = ~np.isnan(X).any(axis=1)
    X, weights = X[whole].astype(np.longdouble), weights[whole]
    # the mean of all sites, which is not that of this one
    mean = np.asarray(weights @ X / weights.sum() + np.array([0.5, 0, 0, 0, -0.25, 0]), float)
    frame = Frame(mean, np.linspace(0.5, 2, D), missing=missing)
    A = np.sqrt(weights)[:, None] * (X - mean) / frame.scale
    exact = A.T @ A
    early = ProvisionalScatter.read(rows, missing)
    first = StandardizedRows(rows, frame, scatter=early)
    later = StandardizedRows(rows, frame)
    rounding = np.sqrt(N) * np.finfo(float).eps * abs(mean)  # all that is in a constant column
    sizes = np.sqrt(exact.diagonal()) + rounding
    assert float((abs(first.gram() - exact) / np.outer(sizes, sizes)).max()) < 1e-13
    assert first.gram().tobytes() == later.gram().tobytes()
    assert first.squares().tobytes() == later.gram().diagonal().tobytes()
    assert (early.about(mean) is None) == is_center_far


def test_gaps_that_take_the_mean_are_read_again(tmp_path, readings):
    X = rows_about(5.0)
    X[::7, 1] = np.nan
    path = write(tmp_path / "rows.parquet", X)
    model = FederatedPCA(K, missing="mean").fit(path)
    assert len(readings) == 2
    filled = np.where(np.isnan(X), np.nanmean(X, axis=0), X)
    expected = np.linalg.svd(filled - filled.mean(axis=0), full_matrices=False)[2][:K].T
    assert sine_of_angle(expected, model.components_.T) < 1e-9


def test_the_scatter_of_no_rows_is_zero(tmp_path):
    rows = open_rows(write(tmp_path / "rows.parquet", np.empty((0, D))))
    view = StandardizedRows(rows, Frame(np.ones(D), np.ones(D)))
    assert not view.gram().any()
