"""Federated simultaneous subspace iteration: the baseline in every paper.

    Z <- orth(sum_i A_i'(A_i Z))

This method sends the same messages as block Lanczos but does not keep earlier blocks. So it takes many
more rounds.

Source: SSI in Wang, Liu and Zhang, "Seeking consensus on subspaces in federated principal component
analysis"; Rutishauser, "Simultaneous iteration method for symmetric matrices" (1970).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.linalg import norm

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import StopReason
from fedpca.linalg.dense import ROUNDING, angle_bounds, orth, outside, top_eigen
from fedpca.linalg.krylov import KrylovSpace
from fedpca.linalg.rank_rules import RankRule, Spectrum
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import Script, then
from fedpca.solvers.contract import (
    LOOK_TOL,
    Problem,
    Solution,
    after_moments,
    columns_asked,
    covariance_product,
    moments_and_rank,
    scaled,
    starting_block,
)
from fedpca.solvers.costs import (
    LANCZOS_ROUNDS,
)
from fedpca.solvers.sign_flips import draw_signs, flips_order
from fedpca.solvers.standardize import Moments, standardize, standardize_sites

N_GUARDS = 3  # columns of a search for a larger eigenvalue outside the block
GUARD_ROUNDS = 40  # most rounds of that search; it takes many if the next eigenvalue is close
TELLS_APART = 0.02  # residual at which the search ends, relative to the gap before that eigenvalue
# how far that eigenvalue may exceed the value found: this many times the residual, or this share of
# the gap, whichever is more; on random tables, it was at most 7.0 times and 0.13
TIMES_RESIDUAL = 10.0
GAP_SHARE = 0.2
AT_REST = 4.0  # residuals no larger than this many rounding errors cannot shrink
TIMES_LANCZOS = 15  # approximate number of rounds per Lanczos round


def script_of_products(plan: RunPlan, most: int, columns: int) -> Script:
    """Return the script of a solver that asks for products with blocks, after the moments.

    There are at most ``most`` products. A block has one column for each component; it may have up to
    ``columns`` columns even if there are fewer components.
    """
    return after_moments(
        plan,
        standardize,
        then(covariance_product, flips_order(plan, covariance_product)),
        most={covariance_product.name: most},
        looks=(draw_signs.name,),
        bounds={f"{covariance_product.name}.Z": columns_asked(plan, columns)},
    )


@dataclass(frozen=True)
class SubspaceIteration:
    """Repeatedly multiply a block by A'A and make it orthonormal.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> from fedpca.solvers import SubspaceIteration
    >>> rows = np.random.default_rng(0).normal(size=(90, 6)) * [4, 3, 1, 1, 1, 1]
    >>> sites = [rows[:50], rows[50:]]
    >>> pca = FederatedPCA(2, solver=SubspaceIteration(), random_state=0).fit(sites)
    >>> pca.run_.solver, pca.run_.stop_reason
    ('subspace-iteration', 'converged')
    """

    name: ClassVar[str] = "subspace-iteration"
    guarantee: ClassVar[str] = "exact"
    seen: ClassVar[tuple[str, ...]] = ()

    def script(self, plan: RunPlan) -> Script:
        return script_of_products(plan, plan.max_rounds * (1 + GUARD_ROUNDS), N_GUARDS)

    def solve(self, fed: Federation, problem: Problem) -> Solution:
        """Return the leading eigenvectors, within the tolerance unless rounding prevents it."""
        moments, rank = moments_and_rank(fed, problem)
        p = rank.first_look
        n_products = p * min(problem.max_rounds, TIMES_LANCZOS * LANCZOS_ROUNDS)
        energy = standardize_sites(fed, moments, n_products)
        Z = starting_block(fed, moments.d, p, problem.start)
        return iterate(fed, moments, rank, Z, energy, problem)


def iterate(
    fed: Federation, moments: Moments, rank: RankRule, Z: Array, energy: float, problem: Problem
) -> Solution:
    """Iterate from an orthonormal Z until its directions are within the tolerance."""
    n, d, p = moments.n, moments.d, Z.shape[1]
    reason: StopReason = "max_rounds"
    following = None
    for _ in range(problem.max_rounds):
        Y = fed.sum(covariance_product, Z=Z)["Y"]
        T = Z.T @ Y
        theta, C = top_eigen((T + T.T) / 2, p)
        theta, V = np.maximum(theta, 0.0), Z @ C
        residuals = norm(Y @ C - V * theta, axis=0)
        residual = float(norm(residuals))
        fed.report(scaled(residual, energy), partial(np.asarray, V))
        spectrum = Spectrum(theta, energy, n, d, vectors=V)
        is_known = residual <= max(problem.tol, LOOK_TOL) * energy
        k = rank(spectrum) if is_known else None
        if is_known and k is None:
            p = min(2 * p, n, d)  # the rule needs to see more of the spectrum
            Y = np.hstack([Y, fed.rng().standard_normal((d, p - Y.shape[1])) * theta[-1]])
        elif k is not None and is_known and norm(residuals[:k]) <= problem.tol * energy:
            if following is None or following.certifies(theta, residuals, k, problem):
                following = following_direction(fed, V, float(theta[k - 1]))  # it lies outside V
            if following.value > theta[k - 1] + ROUNDING * theta[0]:  # a direction was missed
                Y = np.hstack([V[:, :-1] * theta[:-1], following.vector * following.value])
                following = None
            elif following.certifies(theta, residuals, k, problem):
                reason = "converged"
                break
        Z = orth(Y)
    k = k or rank(spectrum) or len(theta)
    residuals = residuals + moments.residuals_of_mean(V, energy)
    bounds = np.ones(k) if following is None else following.bounds(theta, residuals, k, problem)
    solution = Solution(moments, V[:, :k], theta[:k], energy, reason)
    return solution.certified(bounds, problem.angle_tol)


@dataclass(frozen=True)
class Following:
    """An estimate of the largest eigenvalue outside a block, with its residual and eigenvector."""

    value: float
    residual: float
    vector: Array  # (d, 1)

    def bounds(self, theta: Array, residuals: Array, k: int, problem: Problem) -> Array:
        """Bound the sine of the angle to the exact components, for the first 1 ... k directions."""
        gap = float(theta[k - 1]) - self.value
        error = max(TIMES_RESIDUAL * self.residual, GAP_SHARE * gap)
        return angle_bounds(
            theta, residuals, k, others=self.value + error, rounding=problem.common.rounding
        )

    def certifies(self, theta: Array, residuals: Array, k: int, problem: Problem) -> bool:
        """Return whether k directions are close enough, or as close as rounding allows."""
        rounding = problem.common.rounding
        at_rounding = bool((residuals[:k] <= AT_REST * rounding * theta[0]).all())
        return at_rounding or bool(
            self.bounds(theta, residuals, k, problem)[-1] <= problem.angle_tol
        )


def following_direction(fed: Federation, V: Array, last: float) -> Following:
    """Find the largest eigenvalue outside V by a few rounds of block Lanczos.

    Only that eigenvalue shows how well the directions in V are separated from the others. ``last`` is
    the smallest eigenvalue of V; the search ends once the two eigenvalues can be told apart.
    """
    d, k = V.shape
    if k == d:
        return Following(0.0, 0.0, V[:, :0])
    guards = fed.rng().standard_normal((d, min(N_GUARDS, d - k)))
    space = KrylovSpace(orth(outside(V, guards)), GUARD_ROUNDS * N_GUARDS)
    for _ in range(GUARD_ROUNDS):
        space.extend(outside(V, fed.sum(covariance_product, Z=space.Q)["Y"]))
        ritz = space.rayleigh_ritz(1)
        value, residual = float(ritz.values[0]), float(ritz.residuals[0])
        if space.is_invariant or residual <= TELLS_APART * abs(last - value):
            break
    return Following(value, residual, space.vectors())
