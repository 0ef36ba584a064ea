"""The few matrix routines that every solver shares."""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from fedpca.message import Array


def orth(Y: Array) -> Array:
    """An orthonormal basis of the columns of Y, ``(d, k)``, one for each column."""
    return np.asarray(np.linalg.qr(Y)[0])


def independent_columns(Y: Array, smallest: float) -> Array:
    """An orthonormal basis of Y's columns less those that add nothing above ``smallest``.

    QR with column pivoting orders the columns by what each adds to those before it.
    """
    Q, R, _ = scipy.linalg.qr(Y, mode="economic", pivoting=True)
    return np.asarray(Q[:, np.abs(R.diagonal()) > smallest])


def orth_against(K: Array, Y: Array, smallest: float) -> Array:
    """An orthonormal basis of what Y's columns add to the orthonormal columns of K.

    Projecting twice is enough for orthogonality to rounding; normalising what is left can bring a
    part of K back, so it is projected out once more.
    """
    Y = Y - K @ (K.T @ Y)
    Y = Y - K @ (K.T @ Y)
    Q = independent_columns(Y, smallest)
    return orth(Q - K @ (K.T @ Q))


def top_eigen(symmetric: Array, k: int) -> tuple[Array, Array]:
    """The k largest eigenvalues, falling, and their eigenvectors in columns, ``(d, k)``."""
    d = symmetric.shape[0]
    values, vectors = scipy.linalg.eigh(symmetric, subset_by_index=[d - k, d - 1])
    return values[::-1], vectors[:, ::-1]


def pack_triangle(symmetric: Array) -> Array:
    """The upper triangle of a symmetric matrix as one vector of ``d (d + 1) / 2``."""
    packed, _ = lapack.dtrttp(np.asfortranarray(symmetric.T), uplo="U")
    return np.asarray(packed)


def unpack_triangle(packed: Array) -> Array:
    """The symmetric matrix of which `pack_triangle` made ``packed``."""
    d = (math.isqrt(8 * packed.size + 1) - 1) // 2
    upper, _ = lapack.dtpttr(d, packed, uplo="U")
    return np.asarray(upper + np.triu(upper, 1).T)


def sine_of_angle(U: Array, V: Array) -> float:
    """The sine of the largest principal angle between the spans of orthonormal U and V.

    The norm of what one basis has outside the other keeps small angles that arccos would lose.
    """
    return float(np.linalg.norm(V - U @ (U.T @ V), ord=2)) if V.size else 0.0


def fix_signs(V: Array) -> Array:
    """V, ``(d, k)``, with each column's largest entry made positive: scikit-learn's sign rule."""
    largest = np.abs(V).argmax(axis=0)
    return np.asarray(V * np.where(V[largest, np.arange(V.shape[1])] < 0, -1.0, 1.0))
