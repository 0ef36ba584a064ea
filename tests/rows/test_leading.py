"""The leading directions of a site's rows outside a subspace, by every route."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from fedpca.linalg.dense import sine_of_angle
from fedpca.rows import leading
from fedpca.rows.leading import leading_directions
from fedpca.rows.open import open_rows
from fedpca.rows.standardized import Frame, StandardizedRows


def framed(X):
    d = X.shape[1]
    return StandardizedRows(open_rows(X), Frame(np.zeros(d), np.ones(d)))


def exact(A, k, U):
    """The k largest eigenvalues and vectors by LAPACK."""
    P = np.eye(A.shape[1]) - U @ U.T
    values, vectors = np.linalg.eigh(P @ A.T @ A @ P)
    return values[: -k - 1 : -1], vectors[:, : -k - 1 : -1]


ROUTES = {
    "features": {"MAX_DENSE_SIDE": 1000},
    "rows": {"MAX_DENSE_SIDE": 60},
    "products": {"MAX_DENSE_SIDE": 0},
}


@pytest.mark.parametrize("route", sorted(ROUTES))
@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("seed", range(5))
def test_every_route_gives_the_leading_directions(route, make, seed, monkeypatch):
    for name, value in ROUTES[route].items():
        monkeypatch.setattr(leading, name, value)
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((50, 90)) * np.linspace(2, 1, 90) ** 2
    A[:, :3] *= 30  # what is taken carries most
    U = np.linalg.qr(np.linalg.svd(A)[2][:3].T + 1e-3 * rng.standard_normal((90, 3)))[0]
    values, V = exact(A, 4, U)
    energy = float(np.sum(A**2))
    found, W = leading_directions(framed(make(A)), 4, energy, U)
    assert np.allclose(found, values, rtol=1e-9)
    assert sine_of_angle(V, W) < 1e-7
    assert np.abs(np.hstack([U, W]).T @ np.hstack([U, W]) - np.eye(7)).max() < 1e-12


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_directions_that_rows_do_not_have_are_left_out(route, monkeypatch):
    for name, value in ROUTES[route].items():
        monkeypatch.setattr(leading, name, value)
    rng = np.random.default_rng(0)
    A = rng.standard_normal((50, 2)) @ rng.standard_normal((2, 70))
    nothing = np.empty((70, 0))
    values, V = leading_directions(framed(A), 5, float(np.sum(A**2)))
    assert V.shape == (70, 2)
    assert np.allclose(values, exact(A, 2, nothing)[0])
    assert leading_directions(framed(A), 5, 0.0)[1].shape == (70, 0)
    assert leading_directions(framed(A), 5, 1.0, np.eye(70))[1].shape == (70, 0)
    assert leading_directions(framed(A[:0]), 5, 1.0)[1].shape == (70, 0)


def test_directions_that_nothing_couples_are_found_too():
    # each site has one strong direction aside from the others, to which no product leads
    for d in (40, 90, 300):
        A = np.zeros((6, d))
        A[0, 0], A[1, 1], A[2, 2], A[3:, 3] = 9, 5, 4, 2
        U = np.eye(d)[:, [1]]
        assert np.allclose(leading_directions(framed(A), 2, float(np.sum(A**2)), U)[0], [81, 16])
