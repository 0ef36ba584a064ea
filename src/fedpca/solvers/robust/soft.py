"""Robust PCA by soft thresholds, which need only a bound on the rank.

    min  sum 1/2 ||A_i - V_i U' - S_i||^2 + lambda ||S_i||_1 + rho/2 (||V_i||^2 + ||U||^2)

``least-squares`` lowers lambda and rho in each round. It finds U from sums of d x r and r x r matrices.
Components beyond the true rank end up with small singular values, so the rank can be read off.

The published method, for comparison, is in `fedpca.solvers.robust.dcf`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import StopReason
from fedpca.linalg.dense import orth
from fedpca.linalg.scratch import Scratch
from fedpca.models.robust import TIMES_MEDIAN, residuals, without_large
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import question
from fedpca.protocol.script import Script, maybe, repeat_from_once, then
from fedpca.solvers.robust.at_site import CARRY, NO_ROWS, SUMS, Round, Scores, carried_scores
from fedpca.solvers.robust.blocks import standardized_blocks
from fedpca.solvers.robust.contract import (
    NEGLIGIBLE,
    Carry,
    Limits,
    Rank,
    RobustFit,
    RobustMoments,
    RobustProblem,
    Solved,
    rounds_of,
)
from fedpca.solvers.robust.growth import grown, growth_order
from fedpca.solvers.robust.hard import by_hard_threshold, hard_round
from fedpca.solvers.robust.medians import median_of_bins
from fedpca.solvers.robust.schedule import follow_threshold

if TYPE_CHECKING:
    from fedpca.site.site import Site

PASSES = 2  # passes over a site's rows in a round
SOFT_DECAY = 0.7  # each round multiplies the threshold and the ridge by this factor
# share of the first ridge; without a ridge, a fit of lower rank is singular
MIN_RIDGE_SHARE = 1e-12
RANK_ROUNDS = 25  # rounds after which the rank is read off
SOFT_ROUNDS = 12  # rounds of soft thresholds at the start if component sizes differ
TIMES_SOFT_THRESHOLD = 10.0  # the first hard threshold, as a multiple of the last soft one
CLEAR_FALL = 5.0  # ratio of consecutive singular values that shows a rank by itself
MIN_VALUE_SHARE = 1e-4  # share of the largest singular value; smaller values are treated as equal


@dataclass(frozen=True)
class Auto:
    """Use hard thresholds, starting with soft ones unless the first rounds lead to an exact fit."""

    name: ClassVar[str] = "auto"
    guarantee: ClassVar[str] = "exact without noise"
    needs_rank: ClassVar[bool] = False

    def script(self, plan: RunPlan) -> Script:
        hard = repeat_from_once(hard_round, rounds_of(plan))
        if plan.parameters["n_components"] is not None:
            soft = repeat_from_once(soft_round, rounds_of(plan, SOFT_ROUNDS))
            return Script(then(hard, maybe(soft, hard)), values={"passes": PASSES})
        soft = repeat_from_once(soft_round, rounds_of(plan, RANK_ROUNDS))
        return Script(then(soft, hard, growth_order(plan)), values={"passes": PASSES})

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
        start = searched.cut(rank.number if rank.is_clear else 1)
        fit = by_hard_threshold(fed, start.U, moments, limits, carry=start.carry)
        fit, rank = grown(fed, fit, moments, limits, problem.bound)
        return Solved(fit, rank, "least-squares, threshold")


@dataclass(frozen=True)
class LeastSquares:
    """Lower soft thresholds and a ridge in each round; this needs only a bound on the rank.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import RobustPCA
    >>> from fedpca.solvers import LeastSquares
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 12))
    >>> rows[5, 3] += 100
    >>> sites = [rows[:30], rows[30:]]
    >>> pca = RobustPCA(2, solver=LeastSquares(), random_state=0).fit(sites)
    >>> worst = pca.outlier_scores(rows).cells.argmax()
    >>> [int(i) for i in np.unravel_index(worst, rows.shape)]
    [5, 3]
    """

    name: ClassVar[str] = "least-squares"
    guarantee: ClassVar[str] = "no bound"
    needs_rank: ClassVar[bool] = False

    def script(self, plan: RunPlan) -> Script:
        order = repeat_from_once(soft_round, rounds_of(plan))
        return Script(order, values={"passes": PASSES})

    def solve(self, fed: Federation, problem: RobustProblem) -> Solved:
        """Return the components and the rank that the singular values show."""
        fit, values = by_least_squares(fed, problem.U, problem.moments, problem.limits)
        return Solved(fit, rank_in(problem, values), self.name)


def rank_in(problem: RobustProblem, values: Array) -> Rank:
    """Return the given rank or the rank that the singular values show."""
    return Rank(problem.rank) if problem.rank is not None else rank_of(values, problem.bound)


def by_least_squares(
    fed: Federation, U: Array, moments: RobustMoments, limits: Limits
) -> tuple[RobustFit, Array]:
    """Fit U by decreasing soft thresholds; return the fit and singular values, which show the rank."""
    d, r = U.shape
    U = in_unit(U, moments)
    threshold = moments.first_threshold
    # what Theorem 2 of the paper needs if only a bound on the rank is known
    ridge = threshold * np.sqrt(max(moments.n, d)) / 2
    least_ridge = MIN_RIDGE_SHARE * ridge
    carry = Carry.first(r, np.zeros(d))
    reason: StopReason = "max_rounds"
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
        # about the new center, whose part is subtracted from the sums, so that no row is asked again
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
        # below the median, most entries would count as outliers; above the last threshold, sites would
        # refuse
        threshold = min(max(SOFT_DECAY * threshold, median), threshold)
        ridge = max(SOFT_DECAY * ridge, least_ridge)
    least = max(10 * limits.tol, NEGLIGIBLE) * moments.size
    bound = max(threshold, TIMES_MEDIAN * median, least)
    # hard thresholds and models need orthonormal columns, and the leading ones first
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


def in_unit(U: Array, moments: RobustMoments) -> Array:
    """Scale U to the size of its scores, so that a change in the rows' units changes nothing else."""
    return np.asarray(U * np.sqrt(moments.size))


def relative_change(last: Array, U: Array) -> float:
    """Return the norm of the change in U over the norm of U."""
    return float(np.linalg.norm(U - last) / max(np.linalg.norm(U), np.finfo(float).tiny))


def singular_values(U: Array, VV: Array) -> Array:
    """Return the singular values of V U', in descending order, from U and V'V."""
    values, Q = np.linalg.eigh(VV)
    # (V'V)^(1/2) stands for V, whose rows stay at the sites
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
    # ratios of negligible values would show drops where nothing is left
    floored = np.maximum(values, MIN_VALUE_SHARE * values[0])
    falls = floored[:-1] / floored[1:]
    largest = int(np.argmax(falls))
    others = np.delete(falls, largest).max(initial=1.0)
    if falls[largest] >= min(others**2, CLEAR_FALL):
        return Rank(largest + 1)
    return Rank(min(bound, len(values) - 1), is_clear=False)


@question(
    doing="separating outliers",
    asks={
        "U": "float64 d r",
        **CARRY,
        "threshold": "float64, positive",
        "ridge": "float64, positive",
        "passes": "int64",
        "is_first": "int64, flag",
    },
    answers=SUMS,
    remembers=True,
    work="separate",
    passes=30,
)
def soft_round(
    site: Site,
    U: Array,
    turn: Array,
    center: Array,
    mean_scores: Array,
    threshold: Array,
    ridge: Array,
    passes: Array,
    is_first: Array,
) -> dict[str, Any]:
    """Fit scores on U by ridge regression, with residuals clipped to the threshold."""
    follow_threshold(site, threshold, decay=SOFT_DECAY, is_first=bool(is_first))
    carried = None if is_first else carried_scores(site, turn, mean_scores)
    this, to_scores, scratch = Round(site, U), regression(U, float(ridge)), Scratch()
    for rows, A, present in standardized_blocks(site, center):
        V = without_large(A, threshold) @ to_scores if carried is None else carried[rows]
        fit = soft_passes(A, present, U, V, float(threshold), to_scores, int(passes), scratch)
        this.scores[rows] = fit.V
        this.sizes.add(rows, fit.R, present)
        this.add(fit.C, fit.V, fit.before)
    site.remember(Scores(this.scores, NO_ROWS))
    return this.answer(threshold)


def regression(U: Array, ridge: float) -> Array:
    """Return the matrix, ``(d, r)``, that maps rows to their scores by ridge regression on U."""
    return np.asarray(U @ np.linalg.inv(U.T @ U + ridge * np.eye(U.shape[1])))


class SoftFit(NamedTuple):
    """New scores V of rows; the scores ``before``, with their residuals R; and R clipped, C."""

    V: Array
    before: Array
    R: Array
    C: Array  # zero where a value is missing


def soft_passes(
    A: Array,
    present: Array,
    U: Array,
    V: Array,
    threshold: float,
    to_scores: Array,
    passes: int,
    scratch: Scratch,
) -> SoftFit:
    """Fit the scores V in some passes; each pass fits the rows without their part beyond the threshold.

    Missing entries are filled in by the previous fit, so their residuals are zero.
    """
    turn = U.T @ to_scores
    for _ in range(passes):
        R = residuals(A, V, U, scratch)
        C = np.clip(R, -threshold, threshold, out=scratch("C", R.shape))
        if not present.all():
            C *= present
        # (V U' + C) to_scores: the regression of the rows without outliers, which are never formed
        before, V = V, V @ turn + C @ to_scores
    return SoftFit(V, before, R, C)
