"""QR factors in one round: the only exact solver that does not square the rows.

    A_i = Q_i R_i,   [R_1; R_2; ...] = Q R,   R = U diag(s) V'

A sum of squares loses every direction whose standard deviation is below 1e-8 of the largest one. QR
factors keep them: V is as accurate as if the pooled rows were decomposed directly. A site sends the
triangle R_i, which takes as many bytes as the triangle of its covariance and reveals as much:
``R_i'R_i = A_i'A_i``. But factors cannot be summed, so the coordinator sees each of them.

Source: Demmel, Grigori, Hoemmen and Langou, "Communication-optimal parallel and sequential QR and LU
factorizations" (2012).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import shares_of
from fedpca.linalg.dense import ROUNDING, angle_bounds
from fedpca.linalg.grid import SHARE, rounded_up, to_grid
from fedpca.linalg.rank_rules import Spectrum
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import question
from fedpca.protocol.script import Script
from fedpca.solvers.contract import Problem, Solution, after_moments, moments_and_rank
from fedpca.solvers.influence import SitePart, report_angles
from fedpca.solvers.sign_flips import draw_signs, flips_order
from fedpca.solvers.standardize import SCALES, near_frame

if TYPE_CHECKING:
    from fedpca.site.site import Site

FACTOR_ROUNDING = 4 * ROUNDING  # error of the factor of stacked factors, as a share of its norm


@dataclass(frozen=True)
class Tsqr:
    """Gather the sites' QR factors in one round and decompose them together.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> from fedpca.solvers import Tsqr
    >>> rows = np.random.default_rng(0).normal(size=(90, 6)) * [4, 3, 1, 1, 1, 1]
    >>> sites = [rows[:50], rows[50:]]
    >>> pca = FederatedPCA(2, solver=Tsqr(), random_state=0).fit(sites)
    >>> pca.run_.solver, pca.run_.stop_reason
    ('tsqr', 'exact')
    """

    name: ClassVar[str] = "tsqr"
    guarantee: ClassVar[str] = "exact"
    seen: ClassVar[tuple[str, ...]] = ("triangular_factor",)
    squares_rows: ClassVar[bool] = False

    def script(self, plan: RunPlan) -> Script:
        looks = (draw_signs.name,)
        return after_moments(plan, triangular_factor, flips_order(plan), looks=looks)

    def solve(self, fed: Federation, problem: Problem) -> Solution:
        """Return the leading right singular vectors of the stacked factors, without iterating."""
        moments, rank = moments_and_rank(fed, problem)
        n, d = moments.n, moments.d
        answers = fed.gather(triangular_factor, mean=moments.mean, scale=moments.scale)
        R = reduce(stacked_factor, _factors(answers, d), np.empty((0, d)))
        _, s, Vt = np.linalg.svd(R, full_matrices=False)
        V, energy = Vt.T, float(s @ s)
        fed.report(0.0, lambda: V[:, : rank.first_look])
        k = rank(Spectrum(s**2, energy, n, d, is_all=True, vectors=V)) or len(s)
        of_grid = _residuals_of_grid(list(_factors(answers, d)), s, V)
        exact = angle_bounds(s, of_grid, k, others=0.0, rounding=FACTOR_ROUNDING)
        of_mean = np.zeros(len(s))
        of_mean[:k] = moments.residuals_of_mean(V[:, :k])
        bounds = np.minimum(1.0, exact + angle_bounds(s**2, of_mean, k, others=0.0, rounding=0.0))
        _report_influence(fed, answers, V[:, :k])
        solution = Solution(moments, V[:, :k], s[:k] ** 2, energy, "exact")
        return solution.certified(bounds, problem.angle_tol)


def misshapen_factor(answer: Arrays, asked: Arrays) -> str | None:
    """Return what is wrong with the shape of a factor in an answer, or None if nothing is."""
    rank, d = int(answer["rank"]), len(asked["mean"])
    if rank <= d and len(answer["entries"]) == rank * d - rank * (rank - 1) // 2:
        return None
    return f"has {len(answer['entries'])} entries, but not those of a factor of rank {rank}"


@question(
    verb="gather",
    doing="factoring the rows",
    asks={"mean": "float64 d, fixed", "scale": f"float64 d, fixed, {SCALES}"},
    answers={"rank": "int64, count", "entries": "float64 entries"},
    remembers=True,
    at_most={"entries": "triangle"},
    check=misshapen_factor,
    grows={"entries": "factor"},
    work="factor",
)
def triangular_factor(site: Site, mean: Array, scale: Array) -> dict[str, Any]:
    """Send the R of a QR factorization of A_i, without its zeros, and store the mean and the scale."""
    frame = near_frame(site, mean, scale)
    site.remember(frame)
    R = reduce(stacked_factor, site.standardized.dense_blocks(), np.empty((0, len(mean))))
    R = to_grid(R, np.ones(len(R)), np.linalg.norm(R, axis=0))
    site.remember(replace(frame, energy=float(np.vdot(R, R))))
    return {"rank": np.int64(len(R)), "entries": R[np.triu_indices(len(R), m=len(mean))]}


def _factors(answers: Mapping[str, Arrays], d: int) -> Iterator[Array]:
    """Yield the sites' factors, ``(r, d)``."""
    return (unpack_factor(a["entries"], int(a["rank"]), d) for a in answers.values())


def _residuals_of_grid(factors: list[Array], s: Array, V: Array) -> Array:
    """Bound what rounding the factors to their grids leaves of each triplet (s, u, v), ``(r,)``.

    Entries of column c are off by up to half of its step, ``h_c``. So the triplet leaves at most
    ``|E v| <= sum_c |E_c| |v_c|`` on one side, and ``|E' u|`` on the other, with ``|E_c' u| <= h_c sum
    |u_i|`` over the rows that reach column c. A column in large units has a large step. But it is
    nearly a direction of its own, and has next to no part in the u and v of small ones.
    """
    right, left = np.zeros(len(s)), np.zeros((len(V), len(s)))
    for R in factors:
        half_steps = SHARE / 2 * rounded_up(np.linalg.norm(R, axis=0))
        n_entries = np.minimum(np.arange(1, len(V) + 1), len(R))
        right += np.square(half_steps * np.sqrt(n_entries) @ np.abs(V))
        U = np.abs(R @ V) / np.where(
            s > 0, s, np.inf
        )  # nothing is certain about a variance of zero
        if len(R):
            left += half_steps[:, None] * np.cumsum(U, axis=0)[n_entries - 1]
    return np.asarray(np.sqrt(right + np.square(left).sum(axis=0)))


def _report_influence(fed: Federation, answers: Mapping[str, Arrays], V: Array) -> None:
    """Record each site's share of the variance and the angle by which V moves without the site."""
    d = len(V)
    energies = {name: float(np.vdot(a["entries"], a["entries"])) for name, a in answers.items()}
    fed.report_influence("variance", shares_of(energies))
    n_rows = sum(int(answer["rank"]) for answer in answers.values())

    def parts() -> list[SitePart]:
        return [SitePart(R, len(R), np.zeros(d)) for R in _factors(answers, d)]

    report_angles(fed, V, n_rows, parts)


def stacked_factor(R: Array, rows: Array) -> Array:
    """Return the triangular factor, ``(r, d)``, of R with more rows stacked below it."""
    return np.asarray(np.linalg.qr(np.vstack([R, rows]), mode="r"))


def unpack_factor(entries: Array, rank: int, d: int) -> Array:
    """Return the factor, ``(rank, d)``, that has these entries on and above its diagonal."""
    R = np.zeros((rank, d))
    R[np.triu_indices(rank, m=d)] = entries
    return R
