"""Sum the covariance in one round: every site sends the upper triangle of its A_i'A_i.

    A'A = sum_i A_i'A_i,   A_i = (X_i - 1 m') / s

The method is exact. After the mean is known, it takes one round and ``4 d (d + 1)`` bytes from each
site. It is suitable for up to about a thousand features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.federation import Federation
from fedpca.errors import InputError
from fedpca.linalg.dense import (
    angle_bounds,
    pack_triangle,
    residual_traces,
    top_eigen,
    unpack_triangle,
)
from fedpca.linalg.rank_rules import Spectrum
from fedpca.protocol.message import MAX_BYTES
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import question
from fedpca.protocol.script import Script
from fedpca.rows.gpu.devices import DEVICE_NAMES, find_device, is_device_name, top_eigen_on
from fedpca.solvers.contract import Problem, Solution, after_moments, moments_and_rank
from fedpca.solvers.sign_flips import draw_signs, flips_order
from fedpca.solvers.standardize import SCALES, ColumnSums

if TYPE_CHECKING:
    from fedpca.site.site import Site

MAX_TRACED = 500  # with more features, the traces of the residual are not computed
ROWS_PER_FEATURE_TO_KEEP = 4  # with more rows per feature, A'A is much smaller than the rows
FEATURES_TO_KEEP = 128  # with no more features, A'A is so small that keeping it costs nothing


@dataclass(frozen=True)
class Covariance:
    """Sum the sites' covariances in one round and decompose the total.

    Parameters
    ----------
    device : str, optional
        The device on which the coordinator finds the eigenvectors, such as "cuda". With thousands of
        features, a GPU is many times as fast as a CPU. By default, numpy finds them on the CPU.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> from fedpca.solvers import Covariance
    >>> rows = np.random.default_rng(0).normal(size=(90, 6)) * [4, 3, 1, 1, 1, 1]
    >>> sites = [rows[:50], rows[50:]]
    >>> pca = FederatedPCA(2, solver=Covariance(), random_state=0).fit(sites)
    >>> pca.run_.solver, pca.run_.stop_reason
    ('covariance', 'exact')
    """

    name: ClassVar[str] = "covariance"
    guarantee: ClassVar[str] = "exact"
    seen: ClassVar[tuple[str, ...]] = ()

    device: str | None = None

    def __post_init__(self) -> None:
        if self.device is not None and not is_device_name(self.device):
            raise InputError(f"device={self.device!r} must be {DEVICE_NAMES}, or None for numpy")

    def script(self, plan: RunPlan) -> Script:
        looks = (draw_signs.name,)
        return after_moments(plan, covariance_triangle, flips_order(plan), looks=looks)

    def solve(self, fed: Federation, problem: Problem) -> Solution:
        """Return the leading eigenvectors of the summed covariance, without iterating."""
        moments, rank = moments_and_rank(fed, problem)
        if 4 * moments.d * (moments.d + 1) > MAX_BYTES:
            raise InputError(
                f"the covariance of {moments.d} features does not fit in a message of "
                f"{MAX_BYTES >> 30} GiB; use solver='lanczos'"
            )
        there = None if self.device is None else find_device(self.device)
        C = unpack_triangle(
            fed.sum(covariance_triangle, mean=moments.mean, scale=moments.scale)["triangle"]
        )
        energy = float(np.trace(C))
        n, d = moments.n, moments.d
        for look in (rank.first_look, min(n, d)):
            n_found = min(look + 1, d)
            values, V = top_eigen(C, n_found) if there is None else top_eigen_on(there, C, n_found)
            values, V = np.maximum(values, 0.0), V[:, :look]
            found = rank(Spectrum(values[:look], energy, n, d, vectors=V))
            if found is not None:
                break
        k = found or look
        fed.report(0.0, lambda: V)
        others = 0.0 if len(values) == d else None
        rounding = problem.common.rounding
        residuals = np.zeros(len(values))
        residuals[:k] = moments.residuals_of_mean(V[:, :k], energy)
        bounds = angle_bounds(values, residuals, k, others=others, rounding=rounding)
        V, values = V[:, :k], values[:k]
        residual = residual_traces(C, V) if d <= MAX_TRACED else None
        solution = Solution(moments, V, values, energy, "exact", residual=residual)
        return solution.certified(bounds, problem.angle_tol)


@question(
    doing="computing the covariance",
    asks={"mean": "float64 d, fixed", "scale": f"float64 d, fixed, {SCALES}"},
    answers={"triangle": "float64 triangle, semidefinite, energy"},
    remembers=True,
    work="scatter",
)
def covariance_triangle(site: Site, mean: Array, scale: Array) -> Arrays:
    """Send the upper triangle of A_i'A_i, and store the mean and the scale."""
    d = len(mean)
    # if A'A is much smaller than the rows, it is kept to answer later questions
    is_kept = d <= FEATURES_TO_KEEP or site.rows.n_rows > ROWS_PER_FEATURE_TO_KEEP * d
    n_products = d if is_kept else 0
    frame = site.recall(ColumnSums).frame(mean, scale, n_products)
    site.remember(frame)
    gram = site.standardized.gram()
    site.remember(replace(frame, energy=float(np.trace(gram))))
    return {"triangle": pack_triangle(gram)}
