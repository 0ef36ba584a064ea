"""Find starting points for personalized PCA: directions that the sites probably share.

    "stack":   the leading directions of  sum_i w_i W_i W_i'          directions that most sites have
    "average": the leading directions of  sum_i w_i W_i L_i W_i'      directions of large variance
    "random":  random directions

W_i holds as many leading directions of site i as it has shared and local directions. L_i holds the
variances along them. If there are no local directions, the shared directions are the leading
directions of all rows, which are found here too.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.linalg.dense import complete_basis, orth
from fedpca.linalg.krylov import leading_eigen
from fedpca.protocol.script import Order, repeat
from fedpca.solvers.personalized.power import power_step
from fedpca.solvers.personalized.projections import (
    MAX_PRODUCTS,
    TOL,
    bases_order,
    leading_of_bases,
)

STARTS = ("stack", "average", "random")
SECOND_TOL = 1e-3  # residual of Lanczos for the second start, which need not be exact
EXACT_TOL = 1e-11  # residual of Lanczos if there are no local directions


def find_starts(
    fed: Federation, first: str, shape: tuple[int, int, int], columns: int, *, gather: bool
) -> Array:
    """Return starting points, ``shape = (n_init, d, k)``: informed ones first, then random ones.

    ``first`` is the kind of the first point; if it is random, all points are. ``columns`` is the number
    of columns in all W_i. ``gather`` allows the coordinator to see each W_i.
    """
    n_init, d, k = shape
    informed = informed_starts(first)
    points = []
    for kind, tol in zip(informed[:n_init], (TOL, SECOND_TOL), strict=False):
        by_variance = kind == "average"
        _, U = leading_of_bases(fed, d, k, columns, gather=gather, by_variance=by_variance, tol=tol)
        points.append(complete_basis(U, k))
    rng = fed.rng()
    points += [orth(rng.standard_normal((d, k))) for _ in range(n_init - len(points))]
    return np.stack(points)


def informed_starts(first: str) -> list[str]:
    """Return the kinds of starts that depend on the rows, beginning with ``first``."""
    return [] if first == "random" else [first, *({"stack", "average"} - {first})]


def starts_order(first: str, n_init: int, *, has_local: bool, gather: bool) -> Order:
    """Return the order in which `find_starts` asks.

    If there are no local directions, return the order in which `leading_of_rows` asks.
    """
    if not has_local:
        return repeat(power_step, most=MAX_PRODUCTS)
    return bases_order(len(informed_starts(first)[:n_init]), gather=gather)


def leading_of_rows(fed: Federation, d: int, k: int) -> Array:
    """Return the k leading directions of all rows, ``(1, d, k)``, if sites have no local directions."""
    start = orth(fed.rng().standard_normal((d, k)))
    _, U = leading_eigen(partial(_product, fed), start, k, tol=EXACT_TOL, most=MAX_PRODUCTS)
    return complete_basis(U, k)[None]


def _product(fed: Federation, Z: Array) -> Array:
    """Multiply Z by the sum of w_i S_i, which `power_step` returns if there is no V_i."""
    return np.asarray(fed.sum(power_step, U=Z[None])["G"][0])
