"""The leading directions of one site's rows, outside a subspace that is taken already.

    V = leading eigenvectors of (I - UU') A'A (I - UU'),   U'V = 0

A'A is decomposed where there are few features, AA' where there are few rows, and a Krylov space of
products with A finds V in all other cases, so that large sparse rows stay sparse, and rows in files are
read in blocks. Nothing begins where V was last time: a small residual there would say that V is
invariant, and not that it leads.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from fedpca.framed import FramedRows
from fedpca.krylov import NEGLIGIBLE, leading_eigen
from fedpca.linalg import orth, outside, threads_for, top_eigen
from fedpca.message import Array

DENSE = 256  # features or rows up to which LAPACK is faster than a Krylov space
FEW_BYTES = 64 << 20  # that few rows may take
TOL = 1e-11  # residual, as a part of the largest eigenvalue
MOST_PRODUCTS = 300


def leading_directions(
    rows: FramedRows,
    k: int,
    energy: float,
    taken: Array | None = None,
    *,
    tol: float = TOL,
) -> tuple[Array, Array]:
    """The k largest eigenvalues and eigenvectors, ``(d, k)``, outside ``taken``, ``(d, r)``.

    ``energy`` is the sum of all squares of A. Rows that have fewer directions than k beyond rounding
    give fewer columns. ``tol`` bounds the residual where products find them, as a part of the largest
    eigenvalue.
    """
    d = rows.n_features
    U = np.empty((d, 0)) if taken is None else taken
    k = min(k, d - U.shape[1])
    if not k or not energy:
        return np.empty(0), np.empty((d, 0))
    if d <= DENSE:
        values, V = _by_features(rows, U, k)
    elif rows.n_rows <= DENSE and 8 * rows.n_rows * d <= FEW_BYTES:
        values, V = _by_rows(rows, U, k)
    else:
        values, V = _by_products(rows, U, k, tol)
    kept = values > NEGLIGIBLE * energy
    values, V = values[kept], V[:, kept]
    if not V.size or not U.size:
        return values, V
    with threads_for(V):
        # what is small beside the part in U is orthogonal to it after the second time only
        return values, orth(outside(U, outside(U, V)))


def _by_features(rows: FramedRows, U: Array, k: int) -> tuple[Array, Array]:
    M = outside(U, outside(U, rows.gram()).T)
    return top_eigen((M + M.T) / 2, k)


def _by_rows(rows: FramedRows, U: Array, k: int) -> tuple[Array, Array]:
    if not rows.n_rows:
        return np.empty(0), np.empty((rows.n_features, 0))
    A = np.vstack([part.dense() for _, part in rows.parts()])
    B = outside(U, A.T)  # (d, n)
    values, C = top_eigen(B.T @ B, min(k, rows.n_rows))
    return values, orth(B @ C)


def _by_products(rows: FramedRows, U: Array, k: int, tol: float) -> tuple[Array, Array]:
    block = np.random.default_rng(0).standard_normal((rows.n_features, k))
    with threads_for(block):
        start = orth(outside(U, block))
    times = partial(_outside_product, rows, U)
    return leading_eigen(times, start, k, tol=tol, most=MOST_PRODUCTS)


def _outside_product(rows: FramedRows, U: Array, Z: Array) -> Array:
    """``(I - UU') A'A (I - UU') Z``.

    Z is outside U but for rounding, which normalising magnifies where a block is small; from one side
    alone the product would not be that of a symmetric matrix then.
    """
    return outside(U, rows.gram_times(outside(U, Z)))
