"""Find the leading directions of one site's rows outside a given subspace U.

    V = leading eigenvectors of (I - UU') A'A (I - UU'),   U'V = 0

If there are few features, A'A is decomposed. If there are few rows, AA' is decomposed. Otherwise, V is
computed in a Krylov space from products with A, so large sparse rows stay sparse, and rows in files are
read in blocks. The search never starts from an earlier V, because a small residual would then show only
that V spans an invariant subspace, not that V spans the leading subspace.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from fedpca.arrays import Array
from fedpca.linalg.blas_threads import threads_for
from fedpca.linalg.dense import orth, outside, top_eigen
from fedpca.linalg.grid import norms_left, to_grid
from fedpca.linalg.krylov import NEGLIGIBLE_DIRECTION, leading_eigen
from fedpca.rows.standardized import StandardizedRows

MAX_DENSE_SIDE = 256  # up to this many features or rows, LAPACK is faster than a Krylov space
MAX_DENSE_BYTES = 64 << 20  # a few rows are made dense if they take at most this much
TOL = 1e-11  # residual, as a fraction of the largest eigenvalue
MAX_LEADING_PRODUCTS = 300


def leading_directions(
    rows: StandardizedRows,
    k: int,
    energy: float,
    taken: Array | None = None,
    *,
    tol: float = TOL,
) -> tuple[Array, Array]:
    """Return the k largest eigenvalues and eigenvectors, ``(d, k)``, outside ``taken``, ``(d, r)``.

    ``energy`` is the sum of the squared entries of A. If fewer than k directions exceed rounding error,
    fewer columns are returned. ``tol`` bounds the residual of the Krylov search as a fraction of the
    largest eigenvalue.
    """
    d = rows.n_features
    U = np.empty((d, 0)) if taken is None else taken
    k = min(k, d - U.shape[1])
    if not k or not energy:
        return np.empty(0), np.empty((d, 0))
    if d <= MAX_DENSE_SIDE:
        values, V = _by_features(rows, U, k)
    elif rows.n_rows <= MAX_DENSE_SIDE and 8 * rows.n_rows * d <= MAX_DENSE_BYTES:
        values, V = _by_rows(rows, U, k)
    else:
        values, V = _by_products(rows, U, k, tol)
    # compared with the energy, since the largest eigenvalue outside U may itself be a rounding error
    is_kept = values > NEGLIGIBLE_DIRECTION * energy
    values, V = values[is_kept], V[:, is_kept]
    if not V.size or not U.size:
        return values, V
    with threads_for(V):
        # one projection is not enough for a vector with a large part in U
        return values, orth(outside(U, outside(U, V)))


def _by_features(rows: StandardizedRows, U: Array, k: int) -> tuple[Array, Array]:
    M = outside(U, outside(U, rows.gram()).T)
    # projected from both sides, M is symmetric but for rounding
    return top_eigen((M + M.T) / 2, k)


def _by_rows(rows: StandardizedRows, U: Array, k: int) -> tuple[Array, Array]:
    if not rows.n_rows:
        return np.empty(0), np.empty((rows.n_features, 0))
    A = np.vstack([part.dense() for _, part in rows.parts()])
    B = outside(U, A.T)  # (d, n)
    _, C = top_eigen(B.T @ B, min(k, rows.n_rows))
    norms = np.sqrt(rows.squares())
    n_terms = sum(U.shape) if U.size else 1
    # U may cancel the rows up to their rounding, which must not show in the directions
    found = B @ C
    shares = rows.shares(found.shape, U)
    to_grid(found, norms_left(norms, U), np.ones(C.shape[1]), n_terms, shares)
    # squares of what is left on the grid, since the eigenvalues of B'B have more digits than may show
    return np.einsum("dk,dk->k", found, found), orth(found)


def _by_products(rows: StandardizedRows, U: Array, k: int, tol: float) -> tuple[Array, Array]:
    # always the same start, because a restarted site must find the same bits
    block = np.random.default_rng(0).standard_normal((rows.n_features, k))
    with threads_for(block):
        start = orth(outside(U, block))
    times = partial(_outside_product, rows, U)
    return leading_eigen(times, start, k, tol=tol, most=MAX_LEADING_PRODUCTS)


def _outside_product(rows: StandardizedRows, U: Array, Z: Array) -> Array:
    """Return ``(I - UU') A'A (I - UU') Z``, ``(d, k)``.

    Z is orthogonal to U up to rounding, but normalizing a small block magnifies rounding errors. So
    both sides are projected; otherwise, the effective matrix would not be symmetric.
    """
    return outside(U, rows.gram_times(outside(U, Z)))
