"""The leading eigenvectors of a sum over sites of B_i L_i B_i', each B_i staying at its site.

For d features and k eigenvectors one round moves the triangle of the sum, or block Lanczos a d x k
block in each of about fifteen: whichever moves fewer bytes. Both need sums alone. Where a site's own
columns may be seen, one round of d x r numbers does, r being the columns of a site.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from fedpca.federation import Federation
from fedpca.krylov import leading_eigen
from fedpca.linalg import orth, pack_triangle, threads_for, top_eigen, unpack_triangle
from fedpca.message import Array
from fedpca.planner import EXPECTED_ROUNDS, choose_solver
from fedpca.question import question

BASIS, LENGTHS = "basis", "lengths"  # where a site keeps its B_i, (d, r), and the diagonal of L_i
MANY = 500  # columns, beyond which products are faster than an SVD
TOL = 1e-8  # residual of Lanczos, as a part of the largest eigenvalue


@question(answers={"triangle": "float64 triangle"})
def basis_triangle(site: Any) -> dict[str, Array]:
    """The upper triangle of B_i L_i B_i'."""
    B, lengths = site.remembered(BASIS, LENGTHS)
    return {"triangle": pack_triangle((B * lengths) @ B.T)}


@question(asks={"Z": "float64 d k"}, answers={"Y": "float64 d k"})
def basis_product(site: Any, Z: Array) -> dict[str, Array]:
    """B_i L_i (B_i' Z)."""
    B, lengths = site.remembered(BASIS, LENGTHS)
    return {"Y": (B * lengths) @ (B.T @ Z)}


@question(answers={"B": "float64 d r"})
def whole_basis(site: Any) -> dict[str, Array]:
    """B_i itself, its columns as long as the roots of L_i."""
    B, lengths = site.remembered(BASIS, LENGTHS)
    return {"B": B * np.sqrt(lengths)}


def leading_of_bases(
    fed: Federation, d: int, k: int, columns: int, *, gather: bool = False
) -> tuple[Array, Array]:
    """The k largest eigenvalues of the sum of B_i L_i B_i', falling, and their vectors, ``(d, k)``.

    ``columns`` is at least the number of columns of all B_i together.
    """
    if choose_solver(columns, d, k) == "covariance":
        return top_eigen(unpack_triangle(fed.sum(basis_triangle)["triangle"]), k)
    if gather:
        return leading_of_columns(np.hstack([b["B"] for b in fed.gather(whole_basis).values()]), k)
    start = fed.rng().standard_normal((d, k))
    with threads_for(start):
        start = orth(start)
    times = partial(_summed_product, fed)
    return leading_eigen(times, start, k, tol=TOL, most=4 * EXPECTED_ROUNDS)


def leading_of_columns(B: Array, k: int) -> tuple[Array, Array]:
    """The k largest eigenvalues of B B', falling, and their vectors; zeros where B has too few."""
    if min(B.shape) > MANY:
        start = orth(np.random.default_rng(0).standard_normal((len(B), k)))
        return leading_eigen(lambda Z: B @ (B.T @ Z), start, k, tol=TOL, most=MANY)
    U, s, _ = np.linalg.svd(B, full_matrices=False)
    values = np.zeros(k)
    values[: len(s)] = s[:k] ** 2
    return values, U[:, :k]


def _summed_product(fed: Federation, Z: Array) -> Array:
    return fed.sum(basis_product, Z=Z)["Y"]
