"""The few matrix routines that every solver shares."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import scipy.linalg
from scipy.linalg import lapack
from threadpoolctl import ThreadpoolController

from fedpca.message import Array

SMALL = 2_000_000  # entries of a matrix below which one thread is as fast as several


@contextmanager
def threads_for(*arrays: Array) -> Iterator[None]:
    """Keep BLAS to one thread while it works on small arrays.

    Its idle threads spin for a while, on cores that the sites of this process need next.
    """
    if max(array.size for array in arrays) > SMALL:
        yield
        return
    _one_thread.enter()
    try:
        yield
    finally:
        _one_thread.leave()


class _OneThread:
    """BLAS held to one thread while anybody wants it: the setting is one for the whole process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_inside = 0
        self._limiter: Any = None

    def enter(self) -> None:
        with self._lock:
            if not self._n_inside:
                self._limiter = _blas().limit(limits=1, user_api="blas")
            self._n_inside += 1

    def leave(self) -> None:
        with self._lock:
            self._n_inside -= 1
            if not self._n_inside:
                self._limiter.restore_original_limits()


_one_thread = _OneThread()


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def orth(Y: Array) -> Array:
    """An orthonormal basis of the columns of Y, ``(d, k)``, one for each column."""
    return np.asarray(np.linalg.qr(Y)[0])


def independent_columns(Y: Array, smallest: float) -> tuple[Array, Array]:
    """Q orthonormal and B with ``Y = Q B`` up to columns that add less than ``smallest``.

    Cholesky QR done twice is ten times as fast as Householder QR and as accurate where Y is well
    conditioned. Else QR with column pivoting orders the columns by what each adds to those before.
    """
    if not Y.size:
        return Y, np.empty((0, Y.shape[1]))
    try:
        L1 = np.linalg.cholesky(Y.T @ Y)
        added = L1.diagonal()
        if added.min() > max(smallest, 1e-5 * added.max()):
            nearly = Y @ np.linalg.inv(L1).T
            L2 = np.linalg.cholesky(nearly.T @ nearly)
            return nearly @ np.linalg.inv(L2).T, L2.T @ L1.T
    except np.linalg.LinAlgError:
        pass
    Q, pivoted, order = scipy.linalg.qr(Y, mode="economic", pivoting=True)
    kept = np.abs(pivoted.diagonal()) > smallest
    B = np.empty_like(pivoted)
    B[:, order] = pivoted
    return Q[:, kept], B[kept]


def orth_against(
    K: Array, Y: Array, smallest: float, *, reach: int = 0
) -> tuple[Array, Array, Array]:
    """Q, B and H with ``Y = K H + Q B``, Q orthonormal and orthogonal to the orthonormal K.

    Projecting twice is enough, and once is not: what K lacks in orthogonality would grow from block
    to block. Where Y has next to nothing in the columns before ``reach``, the first projection may
    leave them to the second. Where little is left of Y outside K, normalising magnifies what
    rounding left of K in it; then it is projected out once more.
    """
    H = np.zeros((K.shape[1], Y.shape[1]))
    near = K[:, reach:]
    H[reach:] = near.T @ Y
    W = Y - near @ H[reach:]
    again = K.T @ W
    W -= K @ again
    Q, B = independent_columns(W, smallest)
    if Q.size and np.linalg.norm(B, -2) < 1e-2 * np.linalg.norm(Y):
        Q, correction = independent_columns(Q - K @ (K.T @ Q), 0.0)
        B = correction @ B
    return Q, B, H + again


def merge_subspaces(
    U1: Array, s1: Array, U2: Array, s2: Array, r: int, forget: float = 1.0, enhance: float = 1.0
) -> tuple[Array, Array]:
    """The r leading left singular vectors and values of ``[forget U1 s1, enhance U2 s2]``.

    Algorithm 2 of Grammenos et al., "Federated PCA with adaptive rank estimation", with two things
    mended: its block ``Z s2`` lacks the factor ``enhance``, without which the singular values are wrong
    wherever it is not 1, and what U1 leaves of U2 is projected twice. The fastest of the paper's three
    ways: only what U2 adds to U1 is decomposed at full length.
    """
    Q, R, Z = orth_against(U1, U2, 10 * float(np.finfo(np.float64).eps))  # U2 = U1 Z + Q R
    X = np.block(
        [[np.diag(forget * s1), enhance * Z * s2], [np.zeros((len(R), len(s1))), enhance * R * s2]]
    )
    W, s, _ = np.linalg.svd(X, full_matrices=False)
    return np.hstack([U1, Q]) @ W[:, :r], s[:r]


def merge_by_qr(
    U1: Array, s1: Array, U2: Array, s2: Array, r: int, forget: float = 1.0, enhance: float = 1.0
) -> tuple[Array, Array]:
    """What `merge_subspaces` gives, by the QR factors of all columns: Algorithm 5 of the paper."""
    Q, R = np.linalg.qr(np.hstack([forget * U1 * s1, enhance * U2 * s2]))
    W, s, _ = np.linalg.svd(R)
    return Q @ W[:, :r], s[:r]


def merge_by_svd(
    U1: Array, s1: Array, U2: Array, s2: Array, r: int, forget: float = 1.0, enhance: float = 1.0
) -> tuple[Array, Array]:
    """What `merge_subspaces` gives, by the SVD of all columns: Algorithm 4 of the paper."""
    columns = np.hstack([forget * U1 * s1, enhance * U2 * s2])
    U, s, _ = np.linalg.svd(columns, full_matrices=False)
    return U[:, :r], s[:r]


def complete_basis(V: Array, k: int) -> Array:
    """V, ``(d, r)``, orthonormal, with further orthonormal columns up to k."""
    missing = k - V.shape[1]
    if missing <= 0:
        return V
    others = np.random.default_rng(0).standard_normal((V.shape[0], missing))
    return np.hstack([V, orth_against(V, others, 0.0)[0]])


def top_eigen(symmetric: Array, k: int) -> tuple[Array, Array]:
    """The k largest eigenvalues, falling, and their eigenvectors in columns, ``(d, k)``.

    Only the lower triangle is read. Entries of 1e-146 and less cost LAPACK half its digits, so a
    matrix far from one is brought near to it first, by a power of two.
    """
    d = symmetric.shape[0]
    largest = float(np.abs(symmetric.diagonal()).max(initial=0.0))
    power = 2.0 ** -math.frexp(largest)[1] if largest and not 1e-60 < largest < 1e60 else 1.0
    with threads_for(symmetric):
        values, vectors = scipy.linalg.eigh(
            symmetric if power == 1 else symmetric * power, subset_by_index=[d - k, d - 1]
        )
    return values[::-1] / power, vectors[:, ::-1]


def pack_triangle(symmetric: Array) -> Array:
    """The upper triangle of a symmetric matrix as one vector of ``d (d + 1) / 2``."""
    packed, _ = lapack.dtrttp(np.asfortranarray(symmetric.T), uplo="U")
    return np.asarray(packed)


def unpack_triangle(packed: Array) -> Array:
    """The symmetric matrix of which `pack_triangle` made ``packed``."""
    d = (math.isqrt(8 * packed.size + 1) - 1) // 2
    upper, _ = lapack.dtpttr(d, packed, uplo="U")
    return np.asarray(upper + np.triu(upper, 1).T)


def outside(U: Array, V: Array) -> Array:
    """``(I - U U') V``: what V has outside the span of orthonormal U."""
    return np.asarray(V - U @ (U.T @ V))


def polar(Y: Array) -> Array:
    """The matrix of orthonormal columns that is nearest to Y, ``(d, k)``."""
    left, _, right = np.linalg.svd(Y, full_matrices=False)
    return np.asarray(left @ right)


def qr_factor(Y: Array) -> Array:
    """The factor Q of Y, ``(d, k)``, in the one QR factorisation whose R has no negative diagonal."""
    Q, R = np.linalg.qr(Y)
    return np.asarray(Q * np.where(R.diagonal() < 0, -1.0, 1.0))


def procrustes(X: Array, Z: Array) -> Array:
    """The rotation D, ``(k, k)``, that brings X D nearest to Z."""
    return polar(X.T @ Z)


def sine_of_angle(U: Array, V: Array) -> float:
    """The sine of the largest principal angle between the spans of orthonormal U and V.

    The norm of what one basis has outside the other keeps small angles that arccos would lose.
    """
    return float(np.linalg.norm(outside(U, V), ord=2)) if V.size else 0.0


def fix_signs(V: Array) -> Array:
    """V, ``(d, k)``, with each column's largest entry made positive: scikit-learn's sign rule."""
    largest = np.abs(V).argmax(axis=0)
    return np.asarray(V * np.where(V[largest, np.arange(V.shape[1])] < 0, -1.0, 1.0))
