"""Find which rows have a flag from sums of the rows' known values: a subset sum problem.

    K'y = t,   y in {0, 1}^n,   K and t whole numbers

The vectors ``(2y - 1, +-1, 0)`` are short in the lattice of all ``(2u - v 1, v, u'K - v t)`` with whole
numbers u and v. The last part is multiplied by a scale that grows step by step, so that numbers with
many digits need no more than float64 to compare lengths.

Sources: Lenstra, Lenstra, and Lovasz, "Factoring polynomials with rational coefficients" (1982);
Coster, Joux, LaMacchia, Odlyzko, Schnorr, and Stern, "Improved low-density subset sum algorithms"
(1992).
"""

from __future__ import annotations

import numpy as np

from fedpca.arrays import Array

LOVASZ_DELTA = 0.99  # how much shorter a vector must be to move forward; 1 would be slow
MAX_TIMES = 5  # size reductions of one vector, of which the later ones only remove rounding
FIRST_SIZE = 64.0  # size of the largest sum on the first scale, and of one unit on the last scale
SCALE_GROWTH = 8.0  # factor between one scale and the next


def subset_of_sum(K: Array, total: Array) -> Array | None:
    """Return flags y with ``K'y = total``, or None if no such flags are found; K is ``(n, m)``."""
    n = len(K)
    points = np.zeros((n + 1, n + 1), np.int64)
    points[:n, :n] = 2 * np.eye(n, dtype=np.int64)
    points[n] = [-1] * n + [1]
    sums = np.vstack([K, -total[None]]).astype(np.int64)
    scale = FIRST_SIZE / max(float(np.abs(sums).max()), 1.0)
    while True:
        _reduce(points, sums, scale)
        is_flags = (np.abs(points) == 1).all(axis=1) & ~sums.any(axis=1)
        for point in points[is_flags]:
            return np.asarray((point[:n] * point[n] + 1) // 2)
        if scale > FIRST_SIZE:
            return None
        scale *= SCALE_GROWTH


def _reduce(points: Array, sums: Array, scale: float) -> None:
    """Reduce a basis of vectors ``(point, scale sum)`` in place, as Lenstra, Lenstra, and Lovasz do."""
    n = len(points)
    mu, squares = np.zeros((n, n)), np.zeros(n)
    apart = np.zeros((n, points.shape[1] + sums.shape[1]))  # the vectors, made orthogonal

    def orthogonalize(i: int) -> None:
        rest = np.concatenate([points[i], sums[i] * scale])
        mu[i, :i] = 0.0
        for _ in range(2):  # the second pass removes what rounding left
            shares = (apart[:i] @ rest) / squares[:i]
            rest = rest - shares @ apart[:i]
            mu[i, :i] += shares
        apart[i], squares[i] = rest, rest @ rest

    def shorten(i: int) -> None:
        for _ in range(MAX_TIMES):
            is_short = True
            for j in range(i - 1, -1, -1):
                times = int(np.rint(mu[i, j]))
                if times:
                    points[i] -= times * points[j]
                    sums[i] -= times * sums[j]
                    mu[i, :j] -= times * mu[j, :j]
                    mu[i, j] -= times
                    is_short = False
            if is_short:
                return
            orthogonalize(i)

    orthogonalize(0)
    i = 1
    while i < n:
        orthogonalize(i)
        shorten(i)
        if squares[i] >= (LOVASZ_DELTA - mu[i, i - 1] ** 2) * squares[i - 1]:
            i += 1
            continue
        for each in (points, sums):
            each[[i - 1, i]] = each[[i, i - 1]]
        i = max(i - 1, 1)
        orthogonalize(i - 1)
