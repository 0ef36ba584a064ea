"""Block Lanczos on sums over sites: the default exact solver.

Each round sends one block Q, ``(d, b)``, and receives ``Y = A'A Q`` summed over the sites. The
coordinator keeps every block and searches for the eigenvectors in the whole space that the blocks span:

    K = [Q_1 Q_2 ...],   T = K'(A'A K),   V = K C with C the leading eigenvectors of T

Among methods that multiply blocks by A'A and begin with the same block, none finds better eigenvalues
in the same number of rounds. How rows are split over sites makes no difference. Only sums are needed.
The residual costs neither a round nor a product (`fedpca.linalg.krylov`).

Source: Golub and Underwood, "The block Lanczos method for computing eigenvalues" (1977). The rule that
tells components from noise is by North, Bell, Cahalan and Moeng, "Sampling errors in the estimation
of empirical orthogonal functions" (1982).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import StopReason
from fedpca.linalg.krylov import MAX_KRYLOV_BYTES, KrylovSpace, Ritz
from fedpca.linalg.rank_rules import Spectrum
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import Script
from fedpca.solvers.contract import (
    Problem,
    Solution,
    check_choice,
    check_whole,
    covariance_product,
    moments_and_rank,
    scaled,
    starting_block,
)
from fedpca.solvers.costs import expected_rounds
from fedpca.solvers.exact.subspace_iteration import script_of_products
from fedpca.solvers.standardize import standardize_sites


@dataclass(frozen=True)
class Lanczos:
    """Search for the eigenvectors in the space that all blocks span.

    Parameters
    ----------
    block : int, optional
        The number of columns in a block. The default, which is also the minimum, is the number of
        components. Twice as many columns take fewer rounds but more bytes. Fewer columns would miss
        copies of a repeated eigenvalue.
    max_krylov_bytes : int
        The coordinator's memory for blocks. When it is full, the coordinator keeps only the current
        leading eigenvectors and continues from them.
    stop : {"angle", "noise"}
        When to stop. "angle" finds all components to the tolerance. "noise" does so for the components
        that this number of rows can tell from those that follow them. The other components, whose
        variances differ by less than their sampling errors, would be different in another sample of
        rows. For these, it is enough to come as close as the sampling error. The run then ends with
        "within-noise", and `run_.n_certain` counts the components that are exact.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> from fedpca.solvers import Lanczos
    >>> rows = np.random.default_rng(0).normal(size=(90, 6)) * [4, 3, 1, 1, 1, 1]
    >>> sites = [rows[:50], rows[50:]]
    >>> pca = FederatedPCA(2, solver=Lanczos(block=4), random_state=0).fit(sites)
    >>> pca.run_.solver, pca.run_.stop_reason
    ('lanczos', 'exact')
    """

    name: ClassVar[str] = "lanczos"
    guarantee: ClassVar[str] = "exact"
    seen: ClassVar[tuple[str, ...]] = ()

    block: int | None = None
    max_krylov_bytes: int = MAX_KRYLOV_BYTES
    stop: str = "angle"

    def __post_init__(self) -> None:
        if self.block is not None:
            check_whole("block", self.block, 1)
        check_whole("max_krylov_bytes", self.max_krylov_bytes, 1)
        check_choice("stop", self.stop, ("angle", "noise"))

    def script(self, plan: RunPlan) -> Script:
        return script_of_products(plan, plan.max_rounds, self.block or 1)

    def solve(self, fed: Federation, problem: Problem) -> Solution:
        """Return the leading eigenvectors, within the tolerance unless rounding prevents it."""
        moments, rank = moments_and_rank(fed, problem)
        n, d, p = moments.n, moments.d, rank.first_look
        width = min(max(self.block or p, p), d)
        energy = standardize_sites(fed, moments, width * expected_rounds(n, d, p))
        max_columns = self.max_krylov_bytes // (8 * d)
        space = KrylovSpace(starting_block(fed, d, width, problem.start), max_columns)
        reason: StopReason = "max_rounds"
        for _ in range(problem.max_rounds):
            space.extend(fed.sum(covariance_product, Z=space.Q)["Y"])
            ritz, searched = space.rayleigh_ritz(p), space
            fed.report(scaled(ritz.residual, energy), space.vectors)
            k = None
            within_noise = self.stop == "noise" and ends_within_noise(ritz, n, energy, problem)
            if space.is_invariant or within_noise or ritz.residual <= problem.tol * energy:
                k = rank(Spectrum(ritz.wanted, energy, n, d, vectors=space.vectors()))
                if k is None:
                    p = width = min(2 * p, n, d)  # the rule needs to see more of the spectrum
                    space = KrylovSpace(starting_block(fed, d, width, space.vectors()), max_columns)
                    continue
                if space.is_invariant or can_stop(ritz, k, problem):
                    reason = "exact" if space.is_invariant else "converged"
                    break
                if within_noise:
                    reason = "within-noise"
                    break
            if space.is_full(width):
                space.restart()
        V = searched.vectors()
        k = k or rank(Spectrum(ritz.wanted, energy, n, d, vectors=V)) or ritz.n_wanted
        ritz = ritz.with_residuals(moments.residuals_of_mean(V, energy))
        bounds = ritz.angle_bounds(k, problem.common.rounding, energy)
        solution = Solution(moments, V[:, :k], ritz.wanted[:k], energy, reason)
        return solution.certified(bounds, problem.angle_tol)


def can_stop(ritz: Ritz, k: int, problem: Problem) -> bool:
    """Return whether k directions are within the tolerance, or no further round would improve them."""
    rounding = problem.common.rounding
    at_rounding = bool((ritz.residuals[:k] <= rounding * ritz.values[0]).all())
    return at_rounding or bool(ritz.angle_bounds(k, rounding)[-1] <= problem.angle_tol)


def ends_within_noise(ritz: Ritz, n: int, energy: float, problem: Problem) -> bool:
    """Return whether the components above the noise are found, and the rest are known to within it.

    The sampling error of a variance is ``theta sqrt(2 / n)``. If a residual is smaller, the direction
    combines only components whose variances differ by less than this error.
    """
    above = n_above_noise(ritz.values, ritz.n_wanted, n)
    found = ritz.residuals[:above]
    others = slice(above, ritz.n_wanted)
    is_close = ritz.residuals[others] <= ritz.values[others] * math.sqrt(2 / n)
    return (
        float(np.linalg.norm(found)) <= problem.tol * energy
        and bool(is_close.all())
        and (not above or can_stop(ritz, above, problem))
    )


def n_above_noise(values: Array, k: int, n: int) -> int:
    """Return the last j, at most k, after which the variance falls by more than its sampling error.

        theta_j - theta_(j+1) > theta_j sqrt(2 / n)

    With only n rows, components after this j cannot be told from their neighbors. Return zero
    if there is no such j. ``values`` are the variances in descending order: the first k and, if there
    is one, the next.
    """
    falls = values[:-1] - values[1:] > values[:-1] * math.sqrt(2 / n)
    return int(np.flatnonzero(falls[:k]).max(initial=-1)) + 1
