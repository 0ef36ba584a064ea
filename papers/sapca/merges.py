"""Merge two subspaces by the paper's three algorithms, and by Algorithm 2 as it is printed.

    U diag(s) W' = [forget U1 diag(s1), enhance U2 diag(s2)],    U1 and U2 orthonormal, (d, r)

Every function returns the r leading columns of U, ``(d, r)``, and their singular values.

Source: Grammenos et al., "Federated PCA with adaptive rank estimation", Algorithms 2, 4 and 5;
``forget`` and ``enhance`` are its lambda_1 and lambda_2.
"""

from __future__ import annotations

import numpy as np

from fedpca.arrays import Array
from fedpca.linalg.dense import orth_against

EPS = float(np.finfo(np.float64).eps)


def merge_subspaces(
    U1: Array, s1: Array, U2: Array, s2: Array, r: int, forget: float = 1.0, enhance: float = 1.0
) -> tuple[Array, Array]:
    """Merge by Algorithm 2, with two corrections.

    The printed block ``Z s2`` lacks the factor ``enhance``; without it the singular values are wrong
    unless the factor is 1. And what U1 leaves of U2 is projected twice. This is the fastest of the
    three ways: only what U2 adds to U1 is decomposed at full length.
    """
    Q, R, Z = orth_against(U1, U2, 10 * EPS)  # U2 = U1 Z + Q R
    X = np.block(
        [[np.diag(forget * s1), enhance * Z * s2], [np.zeros((len(R), len(s1))), enhance * R * s2]]
    )
    W, s, _ = np.linalg.svd(X, full_matrices=False)
    return np.hstack([U1, Q]) @ W[:, :r], s[:r]


def merge_by_qr(
    U1: Array, s1: Array, U2: Array, s2: Array, r: int, forget: float = 1.0, enhance: float = 1.0
) -> tuple[Array, Array]:
    """Merge by the QR factors of all columns: Algorithm 5."""
    Q, R = np.linalg.qr(np.hstack([forget * U1 * s1, enhance * U2 * s2]))
    W, s, _ = np.linalg.svd(R)
    return Q @ W[:, :r], s[:r]


def merge_by_svd(
    U1: Array, s1: Array, U2: Array, s2: Array, r: int, forget: float = 1.0, enhance: float = 1.0
) -> tuple[Array, Array]:
    """Merge by the SVD of all columns: Algorithm 4."""
    columns = np.hstack([forget * U1 * s1, enhance * U2 * s2])
    U, s, _ = np.linalg.svd(columns, full_matrices=False)
    return U[:, :r], s[:r]


def merge_as_printed(
    U1: Array, s1: Array, U2: Array, s2: Array, r: int, forget: float = 1.0, enhance: float = 1.0
) -> tuple[Array, Array]:
    """Merge by Algorithm 2 as the paper prints it, where only the lower block is enhanced."""
    Z = U1.T @ U2
    Q, B = np.linalg.qr(U2 - U1 @ Z)
    zeros = np.zeros((len(s2), len(s1)))
    W, s, _ = np.linalg.svd(np.block([[np.diag(forget * s1), Z * s2], [zeros, enhance * B * s2]]))
    return np.hstack([U1, Q]) @ W[:, :r], s[:r]
