"""Find the leading eigenvectors of a sum of B_i L_i B_i' over sites while each B_i stays at its site.

    M = sum_i B_i L_i B_i',   M V = V diag(theta),   B_i of d x r, L_i diagonal

For d features and k eigenvectors, one round moves the triangle of M, or block Lanczos moves a d x k
block in each of about fifteen rounds. The cheaper method is used. Both methods need only sums. If the
coordinator is allowed to see each site's columns, one round of d x r numbers is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.federation import Federation
from fedpca.linalg.blas_threads import threads_for
from fedpca.linalg.dense import orth, pack_triangle, top_eigen, unpack_triangle
from fedpca.linalg.krylov import leading_eigen
from fedpca.protocol.question import question
from fedpca.protocol.script import Order, either, repeat
from fedpca.solvers.costs import LANCZOS_ROUNDS, triangle_is_cheaper

if TYPE_CHECKING:
    from fedpca.site.site import Site

MAX_SVD_COLUMNS = 500  # with more columns, Lanczos is faster than an SVD
TOL = 1e-8  # default residual of Lanczos
MAX_PRODUCTS = 4 * LANCZOS_ROUNDS


@dataclass(frozen=True)
class Basis:
    """A site's B_i and two choices of the diagonal of its L_i, which the site remembers."""

    B: Array  # (d, r)
    weight: float  # w_i, the same for all columns
    variance: Array  # (r,), w_i times the variance along each column

    def lengths(self, by_variance: Array) -> Array:
        """Return the diagonal of L_i."""
        return self.variance if by_variance else np.full(self.B.shape[1], self.weight)


def times_energy(asked: Arrays) -> float | None:
    """Return a bound on a sum of ``B_i L_i B_i' Z`` as a multiple of the rows' sum of squares.

    If L_i holds variances, its trace is at most that sum, and Z is orthonormal.
    """
    return 1.0 if asked["by_variance"] else None


@question(
    doing="comparing the sites' directions",
    asks={"by_variance": "int64, flag"},
    answers={"triangle": "float64 triangle, semidefinite"},
    times_energy=times_energy,
)
def basis_triangle(site: Site, by_variance: Array) -> dict[str, Array]:
    """Send the upper triangle of B_i L_i B_i'."""
    basis = site.recall(Basis)
    return {"triangle": pack_triangle((basis.B * basis.lengths(by_variance)) @ basis.B.T)}


@question(
    doing="comparing the sites' directions",
    asks={"Z": "float64 d k, orthonormal", "by_variance": "int64, flag"},
    answers={"Y": "float64 d k"},
    times_energy=times_energy,
)
def basis_product(site: Site, Z: Array, by_variance: Array) -> dict[str, Array]:
    """Send B_i L_i (B_i' Z)."""
    basis = site.recall(Basis)
    return {"Y": (basis.B * basis.lengths(by_variance)) @ (basis.B.T @ Z)}


@question(
    verb="gather",
    doing="comparing the sites' directions",
    asks={"by_variance": "int64, flag"},
    answers={"B": "float64 d r"},
    at_most={"r": "d"},
)
def whole_basis(site: Site, by_variance: Array) -> dict[str, Array]:
    """Send B_i itself, with columns scaled by the square roots of L_i."""
    basis = site.recall(Basis)
    return {"B": basis.B * np.sqrt(basis.lengths(by_variance))}


def leading_of_bases(
    fed: Federation,
    d: int,
    k: int,
    columns: int,
    *,
    gather: bool = False,
    by_variance: bool = False,
    tol: float = TOL,
) -> tuple[Array, Array]:
    """Return the sum's k largest eigenvalues, in descending order, and eigenvectors, ``(d, k)``.

    ``columns`` is an upper bound on the total number of columns in all B_i. ``by_variance`` chooses the
    variances for L_i instead of the site's weight. ``tol`` is the residual of Lanczos, as a share of
    the largest eigenvalue.
    """
    flag = np.int64(by_variance)
    if triangle_is_cheaper(columns, d, k):
        summed = fed.sum(basis_triangle, by_variance=flag)
        return top_eigen(unpack_triangle(summed["triangle"]), k)
    if gather:
        bases = fed.gather(whole_basis, by_variance=flag)
        return leading_of_columns(np.hstack([basis["B"] for basis in bases.values()]), k)
    start = fed.rng().standard_normal((d, k))
    with threads_for(start):
        start = orth(start)
    times = partial(_summed_product, fed, by_variance)
    return leading_eigen(times, start, k, tol=tol, most=MAX_PRODUCTS)


def bases_order(n_times: int = 1, *, gather: bool = False) -> Order:
    """Return the order in which at most ``n_times`` calls of `leading_of_bases` ask."""
    whole = [whole_basis] if gather else []
    return repeat(either(basis_triangle, basis_product, *whole), most=n_times * MAX_PRODUCTS)


def leading_of_columns(B: Array, k: int) -> tuple[Array, Array]:
    """Return the k largest eigenvalues of B B', in descending order, and their eigenvectors.

    If B has fewer than k columns, the last eigenvalues are zero, and fewer eigenvectors are returned.
    """
    if min(B.shape) > MAX_SVD_COLUMNS:
        start = orth(np.random.default_rng(0).standard_normal((len(B), k)))
        return leading_eigen(lambda Z: B @ (B.T @ Z), start, k, tol=TOL, most=MAX_SVD_COLUMNS)
    U, s, _ = np.linalg.svd(B, full_matrices=False)
    values = np.zeros(k)
    values[: len(s)] = s[:k] ** 2
    return values, U[:, :k]


def _summed_product(fed: Federation, by_variance: bool, Z: Array) -> Array:
    """Multiply Z by the sum of B_i L_i B_i'."""
    return fed.sum(basis_product, Z=Z, by_variance=np.int64(by_variance))["Y"]
