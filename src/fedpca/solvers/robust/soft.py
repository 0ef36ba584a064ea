"""Robust PCA by soft thresholds, which need only a bound on the rank.

    min  sum 1/2 ||A_i - V_i U' - S_i||^2 + lambda ||S_i||_1 + rho/2 (||V_i||^2 + ||U||^2)

``least-squares`` lowers lambda and rho in each round. It finds U from sums of d x r and r x r matrices.
Components beyond the true rank end up with small singular values, so the rank can be read off.

``dcf`` is the published method: lambda and rho stay fixed, sites take gradient steps, and the results
are averaged. Its error grows with lambda.

Source: DCF-PCA, "Distributed robust principal component analysis" by consensus factorization, Algorithm
1, for ``dcf``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.linalg.dense import orth
from fedpca.models.robust import TIMES_MEDIAN
from fedpca.solvers.contract import check_positive, check_whole
from fedpca.solvers.robust.at_site import gradient_round, soft_round
from fedpca.solvers.robust.contract import (
    NEGLIGIBLE,
    Carry,
    Limits,
    Rank,
    RobustFit,
    RobustMoments,
    RobustProblem,
    Solved,
)
from fedpca.solvers.robust.hard import by_hard_threshold
from fedpca.solvers.robust.medians import median_of_bins

PASSES = 2  # passes over a site's rows in a round
SOFT_DECAY = 0.7  # each round multiplies the threshold and the ridge by this factor
MIN_RIDGE_SHARE = 1e-12  # of the first ridge; without a ridge, a fit of lower rank is singular
RANK_ROUNDS = 25  # rounds after which the rank is read off
SOFT_ROUNDS = 12  # rounds of soft thresholds at the start if component sizes differ
TIMES_SOFT_THRESHOLD = 10.0  # first hard threshold over the last soft threshold
CLEAR_FALL = 5.0  # ratio of consecutive singular values that shows a rank by itself
MIN_VALUE_SHARE = 1e-4  # of the largest singular value; smaller values are treated as equal
RANK_GIVEN_RIDGE = 1e-3  # the published method's ridge over the typical entry, for a given rank


@dataclass(frozen=True)
class Auto:
    """Use hard thresholds, starting with soft ones unless the first rounds lead to an exact fit."""

    name: ClassVar[str] = "auto"
    needs_rank: ClassVar[bool] = False

    def solve(self, fed: Federation, problem: RobustProblem) -> Solved:
        """Return the components; if only a bound is given, find the rank by soft thresholds first."""
        U, moments, limits = problem.U, problem.moments, problem.limits
        if problem.rank is not None:
            fit, had_soft_start = by_both_thresholds(fed, U, moments, limits)
            methods = "least-squares, threshold" if had_soft_start else "threshold"
            return Solved(fit, Rank(problem.rank), methods)
        until_read = Limits(0.0, min(RANK_ROUNDS, limits.max_rounds))
        searched, values = by_least_squares(fed, U, moments, until_read)
        rank = rank_of(values, problem.bound)
        start = searched.cut(rank.number)
        fit = by_hard_threshold(fed, start.U, moments, limits, carry=start.carry)
        return Solved(fit, rank, "least-squares, threshold")


@dataclass(frozen=True)
class LeastSquares:
    """Lower soft thresholds and a ridge in each round; this needs only a bound on the rank."""

    name: ClassVar[str] = "least-squares"
    needs_rank: ClassVar[bool] = False

    def solve(self, fed: Federation, problem: RobustProblem) -> Solved:
        """Return the components and the rank that the singular values show."""
        fit, values = by_least_squares(fed, problem.U, problem.moments, problem.limits)
        return Solved(fit, _rank(problem, values), self.name)


@dataclass(frozen=True)
class Dcf:
    """Average the sites' gradient steps: the published DCF-PCA, for comparison.

    Parameters
    ----------
    local_steps : int
        The number of gradient steps that a site takes in each round.
    step : float, optional
        The first step length, which decays; by default, each site chooses its own.
    """

    name: ClassVar[str] = "dcf"
    needs_rank: ClassVar[bool] = False

    local_steps: int = 2
    step: float | None = None

    def __post_init__(self) -> None:
        check_whole("local_steps", self.local_steps, 1, 1000)
        if self.step is not None:
            check_positive("step", self.step)

    def solve(self, fed: Federation, problem: RobustProblem) -> Solved:
        """Return the components and the rank that the singular values show."""
        moments, d = problem.moments, len(problem.U)
        threshold = moments.size / 2
        ridge = RANK_GIVEN_RIDGE * moments.size
        if problem.rank is None:
            ridge = threshold * np.sqrt(max(moments.n, d)) / 2
        fit, values = by_gradients(
            fed,
            problem.U,
            moments,
            problem.limits,
            threshold=threshold,
            ridge=ridge,
            step=self.step,
            local_steps=self.local_steps,
        )
        return Solved(fit, _rank(problem, values), self.name)


def _rank(problem: RobustProblem, values: Array) -> Rank:
    """Return the given rank or the rank that the singular values show."""
    return Rank(problem.rank) if problem.rank is not None else rank_of(values, problem.bound)


def by_least_squares(
    fed: Federation, U: Array, moments: RobustMoments, limits: Limits
) -> tuple[RobustFit, Array]:
    """Fit U by decreasing soft thresholds; return the fit and singular values, which show the rank."""
    d, r = U.shape
    U = in_unit(U, moments)
    threshold = moments.first_threshold
    ridge = threshold * np.sqrt(max(moments.n, d)) / 2
    least_ridge = MIN_RIDGE_SHARE * ridge
    carry, reason = Carry.first(r, np.zeros(d)), "max_rounds"
    for done in range(limits.max_rounds):
        answer = fed.sum(
            soft_round,
            U=U,
            **carry.asked,
            threshold=np.float64(threshold),
            ridge=np.float64(ridge),
            passes=np.int64(PASSES),
            is_first=np.int64(done == 0),
        )
        median = median_of_bins(answer["sizes"], threshold)
        mean = answer["total"] / moments.n if moments.moves else np.zeros(d)
        # scores are V = D U (U'U + ridge)^-1, and so is their mean
        scores = np.linalg.solve(U.T @ U + ridge * np.eye(r), U.T @ mean)
        squares = answer["VV"] - moments.n * np.outer(scores, scores)
        products = answer["AV"] - moments.n * np.outer(mean, scores)
        last, U = U, np.linalg.solve(squares + ridge * np.eye(r), products.T).T
        carry = Carry(np.eye(r), carry.center + mean, scores)
        if done < RANK_ROUNDS:  # later, the ridge is too small to hold down surplus components
            values = singular_values(U, squares)
        change = relative_change(last, U)
        fed.report(change, partial(orth, U))
        if change <= limits.tol:
            reason = "converged"
            break
        threshold, ridge = max(SOFT_DECAY * threshold, median), max(SOFT_DECAY * ridge, least_ridge)
    least = max(10 * limits.tol, NEGLIGIBLE) * moments.size
    bound = max(threshold, TIMES_MEDIAN * median, least)
    axes = leading_axes(U, squares)
    carry = Carry(U.T @ axes, carry.center, carry.mean_scores)
    fit = RobustFit(axes, bound, median, reason, carry.center, np.zeros(d, bool), carry)
    return fit, values


def by_both_thresholds(
    fed: Federation, U: Array, moments: RobustMoments, limits: Limits
) -> tuple[RobustFit, bool]:
    """Fit U by hard thresholds; start with soft ones unless the first rounds lead to an exact fit.

    Return the fit and whether soft thresholds ran.

    A start from clipped rows misses components that are much smaller than the largest one: artifacts of
    clipping take their place. Hard thresholds would then treat the small components as noise. Soft
    thresholds find them.
    """
    fit = by_hard_threshold(fed, U, moments, limits, while_exact=True)
    if fit.stop_reason != "inexact":
        return fit, False
    at_start = Limits(0.0, min(SOFT_ROUNDS, limits.max_rounds))
    soft, _ = by_least_squares(fed, U, moments, at_start)
    first = TIMES_SOFT_THRESHOLD * soft.threshold
    return by_hard_threshold(fed, soft.U, moments, limits, carry=soft.carry, first=first), True


def by_gradients(
    fed: Federation,
    U: Array,
    moments: RobustMoments,
    limits: Limits,
    *,
    threshold: float,
    ridge: float,
    step: float | None,
    local_steps: int,
) -> tuple[RobustFit, Array]:
    """Run the published method, which averages gradient steps; return the fit and singular values."""
    reason, VV, U = "max_rounds", np.eye(U.shape[1]), in_unit(U, moments)
    for done in range(limits.max_rounds):
        # a given step decays with the square root of the rounds; for 0, each site chooses its own
        eta = 0.0 if step is None else step / np.sqrt(1 + done)
        answer = fed.sum(
            gradient_round,
            U=U,
            threshold=np.float64(threshold),
            ridge=np.float64(ridge),
            step=np.float64(eta),
            steps=np.int64(local_steps),
            passes=np.int64(PASSES),
            n=np.int64(moments.n),
            is_first=np.int64(done == 0),
        )
        last, U, VV = U, answer["U"], answer["VV"]
        change = relative_change(last, U)
        fed.report(change, partial(orth, U))
        if change <= limits.tol:
            reason = "converged"
            break
    d = len(U)
    fit = RobustFit(leading_axes(U, VV), threshold, 0.0, reason, np.zeros(d), np.zeros(d, bool))
    return fit, singular_values(U, VV)


def in_unit(U: Array, moments: RobustMoments) -> Array:
    """Scale U to the size of its scores, so that a change in the rows' units changes nothing else."""
    return np.asarray(U * np.sqrt(moments.size))


def relative_change(last: Array, U: Array) -> float:
    """Return the norm of the change in U over the norm of U."""
    return float(np.linalg.norm(U - last) / max(np.linalg.norm(U), np.finfo(float).tiny))


def singular_values(U: Array, VV: Array) -> Array:
    """Return the singular values of V U', in descending order, from U and V'V."""
    values, Q = np.linalg.eigh(VV)
    root = (Q * np.sqrt(np.maximum(values, 0.0))) @ Q.T
    return np.asarray(np.sqrt(np.maximum(np.linalg.eigvalsh(root @ (U.T @ U) @ root)[::-1], 0.0)))


def leading_axes(U: Array, VV: Array) -> Array:
    """Return an orthonormal basis of U, ordered by how much the rows of V U' vary along it."""
    values, Q = np.linalg.eigh(VV)
    W, _, _ = np.linalg.svd((U @ Q) * np.sqrt(np.maximum(values, 0.0)), full_matrices=False)
    return np.asarray(W)


def rank_of(values: Array, bound: int) -> Rank:
    """Return the rank at the largest drop between consecutive singular values, or the bound.

    The drop, as a ratio, must be clear: at least the square of every other drop, or `CLEAR_FALL`. The
    drops in real tables and in noise are not clear.
    """
    if len(values) < 2 or not values[0]:
        return Rank(1)
    floored = np.maximum(values, MIN_VALUE_SHARE * values[0])
    falls = floored[:-1] / floored[1:]
    largest = int(np.argmax(falls))
    others = np.delete(falls, largest).max(initial=1.0)
    if falls[largest] >= min(others**2, CLEAR_FALL):
        return Rank(largest + 1)
    return Rank(min(bound, len(values) - 1), is_clear=False)
