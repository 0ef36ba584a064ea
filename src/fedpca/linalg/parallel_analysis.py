"""Parallel analysis: keep the components that are larger than those of rows without structure.

    rank = the number of leading l_k, in order, with  l_k > f_k

The noise floor ``f_k`` is the 95 % quantile of the k-th eigenvalue over several tables that have the
same size and column variances, but whose columns have nothing in common. Here such tables are drawn at
random, which needs no rows. `fedpca.solvers.sign_flips` makes them from the rows themselves, and so
also copes with rows of unequal size.

Sources: Horn, "A rationale and test for the number of factors in factor analysis" (1965); Buja and
Eyuboglu, "Remarks on parallel analysis" (1992).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedpca.arrays import Array
from fedpca.linalg.krylov import leading_eigen

QUANTILE = 0.95
MANY_DRAWS, FEW_DRAWS = 20, 5  # for a small table, and for a large one, which varies less
SMALL_TABLE = 1_000_000  # entries
MAX_NOISE_SIDE = 1000
DOMINANT_COMPONENT_SHARE = 0.8  # of the variance; a component with more hides all others
LEAST_LEFT = 1e-8  # share of the variance; less than that is too close to rounding
CLOSE = 1e-2  # relative residual at which a leading eigenvalue is known well enough


def draws_for(n: float, d: int) -> int:
    """Return how many random tables to draw for a table of n rows and d features."""
    return MANY_DRAWS if n * d <= SMALL_TABLE else FEW_DRAWS


def quantile_floor(eigenvalues: Array) -> Array:
    """Return the floor, ``(p,)``, from the leading eigenvalues of each random table, ``(draws, p)``."""
    return np.asarray(np.quantile(eigenvalues, QUANTILE, axis=0))


def count_above(values: Array, floor: Array) -> int | None:
    """Return how many leading values exceed the floor, or None if all that have a floor do."""
    n_compared = min(len(values), len(floor))
    above = values[:n_compared] > floor[:n_compared]
    return None if above.all() else int(above.argmin())


def count_above_columns(
    values: Array,
    vectors: Array | None,
    squares: Array,
    floor_of: Callable[[int, Array, int], Array],
) -> int | None:
    """Return how many leading values exceed the floor, which depends on the column variances.

    A component with most of the variance can make the column variances so large that their floor hides
    all other components. If such a component exceeds the floor, it is taken out of the columns, and the
    other components are compared with the floor of what is left. ``floor_of(k, squares, p)`` returns
    the floor for p values after k components were taken out. The result is None if all values exceed
    the floor.
    """
    k, left, least = 0, squares, LEAST_LEFT * float(squares.sum())
    while True:
        n_above = count_above(values[k:], floor_of(k, left, len(values) - k))
        is_dominant = values[k] > DOMINANT_COMPONENT_SHARE * float(left.sum())
        if n_above == 0 or vectors is None or not is_dominant or k + 1 == len(values):
            return None if n_above is None else k + n_above
        # what the component leaves of each column; rounding may make it less than nothing
        left = np.maximum(left - values[k] * vectors[:, k] ** 2, 0.0)
        k += 1
        if float(left.sum()) <= least:
            return k


def noise_floor(n: float, squares: Array, p: int, *, max_side: int = MAX_NOISE_SIDE) -> Array:
    """Return the floor for p eigenvalues of the scatter of n centered rows, ``(p,)``.

    ``squares``, ``(d,)``, holds the sum of squares of each column. The result is the same every time.
    A table whose sides both exceed ``max_side`` is drawn on a smaller scale, with sides in the same
    ratio.
    """
    rng = np.random.default_rng(0)
    # centering takes one row away: n centered rows have the scatter of n - 1 free ones
    d, m = len(squares), max(1, round(n) - 1)
    shrink = max(1.0, min(m, d) / max_side)
    # every so manieth of the sorted columns, so that fewer columns vary as much as all of them
    columns = np.sort(squares)[((np.arange(round(d / shrink)) + 0.5) * shrink).astype(int)]
    rows = max(1, round(m / shrink))
    deviations = np.sqrt(columns / rows)  # so that the fewer rows have the same sums of squares
    n_needed = min(len(columns), rows, int(np.ceil(p / shrink)))
    draws = [_leading(rng, rows, deviations, n_needed) for _ in range(draws_for(n, d))]
    floor = quantile_floor(np.array(draws))
    # a value of the smaller table stands for as many values of the whole one as it was shrunk by
    at = np.minimum((np.arange(p) / shrink).astype(int), n_needed - 1)
    return np.where(np.arange(p) < min(m, d), floor[at], 0.0)


def permuted_floor(A: Array, p: int, n_draws: int, seed: int = 0) -> Array:
    """Return the floor for p eigenvalues of ``A'A``, ``(p,)``, after permuting each column of A.

    Permuting needs all rows in one place. It keeps each column's values, and so its variance.
    """
    rng = np.random.default_rng(seed)
    draws = np.zeros((n_draws, p))
    for draw in draws:
        permuted = rng.permuted(A, axis=0)
        # the smaller product has the same eigenvalues above zero
        gram = permuted.T @ permuted if A.shape[1] <= len(A) else permuted @ permuted.T
        values = np.linalg.eigvalsh(gram)[::-1][:p]
        draw[: len(values)] = np.maximum(values, 0.0)
    return quantile_floor(draws)


def _leading(rng: np.random.Generator, m: int, deviations: Array, p: int) -> Array:
    """Return the p largest eigenvalues of the scatter of m random rows."""
    d = len(deviations)
    if d <= m:  # Bartlett's triangle: d rows whose scatter has the same distribution as that of m
        G = np.tril(rng.standard_normal((d, d)), -1)
        G[np.diag_indices(d)] = np.sqrt(rng.chisquare(m - np.arange(d)))
        G = G * deviations[:, None]
    else:
        G = (rng.standard_normal((m, d)) * deviations).T
    if min(G.shape) <= MAX_NOISE_SIDE // 4:
        return np.asarray(np.linalg.svd(G, compute_uv=False)[:p] ** 2)
    start = np.linalg.qr(rng.standard_normal((G.shape[1], p)))[0]
    return leading_eigen(lambda Z: G.T @ (G @ Z), start, p, tol=CLOSE, most=MAX_NOISE_SIDE)[0]
