"""Dense matrix routines shared by all solvers."""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from fedpca.arrays import Array
from fedpca.linalg.blas_threads import is_long, map_on_threads, threads_for, threads_for_gram

# rounding error in sums of products, relative to the largest eigenvalue
ROUNDING = 8 * float(np.finfo(np.float64).eps)

# in the Cholesky factor of the Gram matrix of nearly orthonormal columns
LEAST_OF_ORTHONORMAL = 0.9
SHARED_PRODUCT = 1e8  # multiplications in A'A; a shorter product is not worth several threads
N_PARTS = 4  # of the rows; always the same, so that no bit depends on the number of threads


def gram_of(A: Array) -> Array:
    """Return A'A, ``(d, d)``.

    If the product takes a few milliseconds, Python threads share the rows, each with one BLAS thread.
    Python threads sleep while they wait; BLAS threads would spin. However many threads there are, the
    rows are divided into the same parts, and the products of the parts are added in the same order. If
    the product takes longer, all BLAS threads share it, which needs no extra matrix for each part.
    """
    n, d = A.shape
    if n * d**2 < SHARED_PRODUCT or is_long(n, d):
        with threads_for_gram(n, d):
            return np.asarray(A.T @ A)
    parts = [A[n * i // N_PARTS : n * (i + 1) // N_PARTS] for i in range(N_PARTS)]
    total, *others = map_on_threads(lambda part: np.asarray(part.T @ part), parts)
    for other in others:
        total += other
    return total


def orth(Y: Array) -> Array:
    """Return an orthonormal basis for the span of Y, ``(d, k)``, with one vector per column."""
    return np.asarray(np.linalg.qr(Y)[0])


def independent_columns(Y: Array, smallest: float) -> tuple[Array, Array]:
    """Return an orthonormal Q, and B with ``Y = Q B``; drop columns that add less than ``smallest``.

    Running Cholesky QR twice is ten times as fast as Householder QR, and just as accurate if Y is well
    conditioned. Otherwise, QR with column pivoting sorts the columns by how much each one adds.
    """
    if not Y.size:
        return Y, np.empty((0, Y.shape[1]))
    try:
        L1 = np.linalg.cholesky(Y.T @ Y)
        added = L1.diagonal()
        # Y'Y squares the condition number; up to 1e5, the second run still restores orthogonality
        if added.min() > max(smallest, 1e-5 * added.max()):
            almost_Q = Y @ np.linalg.inv(L1).T
            L2 = np.linalg.cholesky(almost_Q.T @ almost_Q)
            # otherwise, rounding in Y'Y has hidden that a column adds nothing
            if L2.diagonal().min() > LEAST_OF_ORTHONORMAL:
                return almost_Q @ np.linalg.inv(L2).T, L2.T @ L1.T
    except np.linalg.LinAlgError:
        pass
    Q, pivoted, order = scipy.linalg.qr(Y, mode="economic", pivoting=True)
    is_kept = np.abs(pivoted.diagonal()) > smallest
    B = np.empty_like(pivoted)
    B[:, order] = pivoted
    return Q[:, is_kept], B[is_kept]


def orth_against(
    K: Array, Y: Array, smallest: float, *, reach: int = 0
) -> tuple[Array, Array, Array]:
    """Return Q, B, and H with ``Y = K H + Q B``, where Q is orthonormal and orthogonal to K.

    K must be orthonormal. Two projections are needed; after only one, the loss of orthogonality would
    grow from block to block. If Y has almost no component along the first ``reach`` columns of K, the
    first projection may skip those columns and leave them to the second. If Y lies almost entirely in
    the span of K, normalizing the small remainder magnifies its rounding errors along K, so K is
    projected out once more.
    """
    H = np.zeros((K.shape[1], Y.shape[1]))
    near = K[:, reach:]
    H[reach:] = near.T @ Y
    W = Y - near @ H[reach:]
    correction = K.T @ W
    W -= K @ correction
    Q, B = independent_columns(W, smallest)
    if Q.size and np.linalg.norm(B, -2) < 1e-2 * np.linalg.norm(Y):
        Q, change = independent_columns(Q - K @ (K.T @ Q), 0.0)
        B = change @ B
    return Q, B, H + correction


def complete_basis(V: Array, k: int) -> Array:
    """Return the orthonormal V, ``(d, r)``, extended to k orthonormal columns."""
    n_needed = k - V.shape[1]
    if n_needed <= 0:
        return V
    others = np.random.default_rng(0).standard_normal((V.shape[0], n_needed))
    return np.hstack([V, orth_against(V, others, 0.0)[0]])


def top_eigen(symmetric: Array, k: int) -> tuple[Array, Array]:
    """Return the k largest eigenvalues, in decreasing order, and their eigenvectors, ``(d, k)``.

    Only the lower triangle is read. LAPACK loses half its digits if entries are 1e-146 or smaller. So
    if the largest entry on the diagonal is very large or very small, the matrix is first multiplied by
    a power of two that brings this entry near one.
    """
    d = symmetric.shape[0]
    largest = float(np.abs(symmetric.diagonal()).max(initial=0.0))
    is_ordinary = not largest or 1e-60 < largest < 1e60
    factor = 1.0 if is_ordinary else 2.0 ** min(1000, -math.frexp(largest)[1])
    with threads_for(symmetric):
        values, vectors = scipy.linalg.eigh(
            symmetric if factor == 1 else symmetric * factor, subset_by_index=[d - k, d - 1]
        )
    return values[::-1] / factor, vectors[:, ::-1]


def pack_triangle(symmetric: Array) -> Array:
    """Return the upper triangle of a symmetric matrix as a vector, ``(d (d + 1) / 2,)``."""
    packed, _ = lapack.dtrttp(np.asfortranarray(symmetric.T), uplo="U")
    return np.asarray(packed)


def unpack_triangle(packed: Array) -> Array:
    """Return the symmetric matrix, ``(d, d)``, that `pack_triangle` packed."""
    d = (math.isqrt(8 * packed.size + 1) - 1) // 2
    upper, _ = lapack.dtpttr(d, packed, uplo="U")
    return np.asarray(upper + np.triu(upper, 1).T)


def outside(U: Array, V: Array) -> Array:
    """Return ``(I - U U') V``, the part of V outside the span of the orthonormal U."""
    return np.asarray(V - U @ (U.T @ V))


def residual_traces(C: Array, V: Array) -> Array:
    """Return ``tr R, tr R^2, tr R^3``, where R is ``C / tr C`` outside the orthonormal V, ``(d, k)``.

    R is formed as a matrix, because the difference of two traces would lose a residual that is small
    compared with the components. Since R is divided by the total variance, its powers do not overflow.
    """
    total = float(np.trace(C))
    if total <= 0:
        return np.zeros(3)
    # V is projected out on both sides, because C may not have V exactly as eigenvectors
    R = outside(V, outside(V, C / total).T)
    return np.array([max(0.0, np.trace(R)), np.vdot(R, R), max(0.0, np.vdot(R @ R, R))])


def polar(Y: Array) -> Array:
    """Return the matrix with orthonormal columns that is closest to Y, ``(d, k)``."""
    left, _, right = np.linalg.svd(Y, full_matrices=False)
    return np.asarray(left @ right)


def qr_factor(Y: Array) -> Array:
    """Return Q, ``(d, k)``, from the QR factorization of Y in which R has a nonnegative diagonal."""
    Q, R = np.linalg.qr(Y)
    return np.asarray(Q * np.where(R.diagonal() < 0, -1.0, 1.0))


def procrustes(X: Array, Z: Array) -> Array:
    """Return the rotation D, ``(k, k)``, that brings X D closest to Z."""
    return polar(X.T @ Z)


def sine_of_angle(U: Array, V: Array) -> float:
    """Return the sine of the largest principal angle between the spans of orthonormal U and V.

    The sine is computed as the norm of the part of V outside U, because arccos would lose the digits of
    small angles.
    """
    return float(np.linalg.norm(outside(U, V), ord=2)) if V.size else 0.0


def angle_bounds(
    values: Array,
    residuals: Array,
    k: int,
    *,
    others: float | None = None,
    rounding: float = ROUNDING,
) -> Array:
    """Bound the sine of the angle between the first j directions and the exact ones, j = 1 ... k.

        sin^2 <= sum_i (r_i / (theta_i - theta_(j+1) - r_(j+1)))^2   over i <= j   (Davis and Kahan)

    ``values``, in descending order, holds the eigenvalues found, and ``residuals`` their residuals r.
    ``others`` is an upper bound on all eigenvalues that are not in ``values``. Without it, the last of
    ``values`` gets no bound, and serves only as the next eigenvalue in the other bounds.
    Rounding adds ``rounding`` times the largest eigenvalue to each residual.
    """
    if not values.size or values[0] <= 0:
        return np.zeros(k)  # every direction is equally good
    r = residuals + rounding * values[0]
    # the largest that each eigenvalue can be
    most = np.maximum(np.append(values + r, 0.0), others or 0.0)
    bounds = np.ones(k)
    for j in range(1, min(k, len(values) - (others is None)) + 1):
        gaps = values[:j] - most[j]
        # otherwise, the next direction may be one of the first j, and nothing is certain
        if gaps[-1] > 0:
            bounds[j - 1] = min(1.0, float(np.linalg.norm(r[:j] / gaps)))
    return bounds


def fix_signs(V: Array) -> Array:
    """Return V, ``(d, k)``, with each column's largest entry made positive, as scikit-learn does."""
    largest = np.abs(V).argmax(axis=0)
    return np.asarray(V * np.where(V[largest, np.arange(V.shape[1])] < 0, -1.0, 1.0))
