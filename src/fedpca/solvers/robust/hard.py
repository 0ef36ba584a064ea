"""Robust PCA by hard thresholds: entries beyond a decreasing threshold z do not count.

    A_i = V_i U' + S_i + noise,   U of d x r common to all sites

    V_i <- the best fit to the entries that count
    D_i <- A_i where |A_i - V_i U'| <= z, else V_i U'
    U <- orth(sum D_i'V_i (sum V_i'V_i)^-1)

The method needs the rank r. Each round lowers z by a fifth, down to four times the median size of
residuals at the median site. Without noise, the result is exact. With noise, it is about as good as
a fit for which the bad entries are known. A site sends sums of d x r and r x r matrices. It sends
the typical size of its residuals only as the bin that contains it.

Source: hard thresholds follow Netrapalli et al., "Non-convex robust PCA" (2014). Soft thresholds, which
need only a bound on the rank, are in `fedpca.solvers.robust.soft`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import StopReason
from fedpca.linalg.dense import orth, sine_of_angle
from fedpca.linalg.scratch import Scratch
from fedpca.models.robust import (
    THRESHOLD_DECAY,
    TIMES_MEDIAN,
    column_sums,
    judge,
    residuals,
    separate,
    stepped,
    without_large,
)
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import question
from fedpca.protocol.script import Script, repeat_from_once
from fedpca.solvers.robust.at_site import (
    CARRY,
    NO_ROWS,
    SUMS,
    Round,
    Scores,
    carried_scores,
    least_count,
)
from fedpca.solvers.robust.blocks import standardized_blocks
from fedpca.solvers.robust.contract import (
    NEGLIGIBLE,
    NORMAL,
    Carry,
    Limits,
    Rank,
    RobustFit,
    RobustMoments,
    RobustProblem,
    Solved,
    rounds_of,
)
from fedpca.solvers.robust.medians import median_of_bins
from fedpca.solvers.robust.schedule import check_reach, follow_threshold

if TYPE_CHECKING:
    from fedpca.site.site import Site

START_ROUNDS = 2  # rounds of power iteration on clipped rows
FLOOR_MARGIN = 1.05  # a threshold this close to its floor has reached the floor: bins are no finer
PATIENCE_ROUNDS = 5  # rounds at its floor after which a threshold stays fixed
MAX_NOISE_SHARE = 0.02  # converged if the rotation is at most this share of what noise causes


@dataclass(frozen=True)
class Threshold:
    """Leave out entries beyond a decreasing threshold; this method needs the rank.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import RobustPCA
    >>> from fedpca.solvers import Threshold
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 12))
    >>> rows[5, 3] += 100
    >>> sites = [rows[:30], rows[30:]]
    >>> pca = RobustPCA(2, solver=Threshold(), random_state=0).fit(sites)
    >>> worst = pca.outlier_scores(rows).cells.argmax()
    >>> [int(i) for i in np.unravel_index(worst, rows.shape)]
    [5, 3]
    """

    name: ClassVar[str] = "threshold"
    guarantee: ClassVar[str] = "exact without noise"
    needs_rank: ClassVar[bool] = True

    def script(self, plan: RunPlan) -> Script:
        return Script(repeat_from_once(hard_round, rounds_of(plan)))

    def solve(self, fed: Federation, problem: RobustProblem) -> Solved:
        """Return the components once a round rotates them by at most ``tol``."""
        fit = by_hard_threshold(fed, problem.U, problem.moments, problem.limits)
        return Solved(fit, Rank(problem.bound), self.name)


def start_clipped(fed: Federation, d: int, r: int, threshold: float) -> Array:
    """Find an initial U by power iteration on rows without entries beyond the threshold."""
    U = orth(fed.rng().standard_normal((d, r)))
    for _ in range(START_ROUNDS):
        U = orth(fed.sum(clipped_product, U=U, threshold=np.float64(threshold))["Y"])
    return U


def by_hard_threshold(
    fed: Federation,
    U: Array,
    moments: RobustMoments,
    limits: Limits,
    *,
    carry: Carry | None = None,
    first: float = np.inf,
    while_exact: bool = False,
) -> RobustFit:
    """Fit U by hard thresholds until a round rotates it by at most ``tol`` or far less than noise does.

    The rotation is measured as the sine of an angle. Residuals of at most ``tol`` times the typical
    entry count as zero.

    If the center moves, it moves to the mean of the rows without outliers. A median is robust, but it
    does not lie in the plane of low-rank rows. After a few rounds at its floor, the threshold stays
    fixed. Otherwise, it would keep cutting off more and more of any long-tailed residuals and never
    settle. In a column that is mostly outliers, residuals below the first threshold count for the same
    number of rounds, and after that only residuals below the current threshold.

    If ``carry`` is given, the fit starts from the scores that it carries over. The first
    threshold is ``first`` if that is lower than the usual one. With ``while_exact``, the fit continues
    only as long as each round at least halves the residuals, which happens on the way from a good start
    to an exact low-rank part.
    """
    d, r = U.shape
    is_first, carry = carry is None, carry or Carry.first(r, np.zeros(d))
    first = min(moments.first_threshold, first)
    threshold, median = first, np.inf
    reason: StopReason = "max_rounds"
    reach, rounds_drawn = np.zeros(d), np.zeros(d, int)  # one per column
    # without noise, residuals fall to rounding; a threshold below this would call rounding an outlier
    least = max(10 * limits.tol, NEGLIGIBLE) * moments.size
    rounds_at_floor = 0
    for _ in range(limits.max_rounds):
        answer = fed.sum(
            hard_round,
            U=U,
            **carry.asked,
            threshold=np.float64(threshold),
            reach=reach,
            is_first=np.int64(is_first),
        )
        is_first = False
        before, median = median, median_of_bins(answer["sizes"], threshold)
        last = U
        U, carry, squares = refitted(answer, U, carry.center, moves=moments.moves)
        change = sine_of_angle(last, U)
        fed.report(change, partial(np.asarray, U))
        # four medians are 2.7 standard deviations of normal noise, so few entries without outliers are
        # beyond
        floor = max(TIMES_MEDIAN * median, least)
        # rounds count only in a row: if the floor has fallen below the threshold, the count starts
        # again
        if rounds_at_floor < PATIENCE_ROUNDS:
            rounds_at_floor = rounds_at_floor + 1 if threshold <= FLOOR_MARGIN * floor else 0
        mostly_outliers = 2 * answer["good"] < moments.present
        is_fitted = median <= limits.tol * moments.size
        # outliers pull their column only until the fit is done or patience runs out
        is_drawn = mostly_outliers & (rounds_at_floor < PATIENCE_ROUNDS and not is_fitted)
        rounds_drawn += is_drawn
        # while the threshold falls and residuals remain, the next round may leave out outliers that
        # turn U
        enough = limits.tol if is_fitted or rounds_at_floor else 0.0
        if rounds_at_floor:
            # features that do not vary count as missing everywhere, so noise in them turns nothing
            varies = moments.present > 0
            inlier_share = np.maximum(answer["good"][varies], 1) / moments.present[varies]
            enough = max(
                enough, MAX_NOISE_SHARE * turn_by_noise(NORMAL * median, squares, inlier_share)
            )
        if change <= enough:
            reason = "converged"
            break
        # on the way to an exact fit, residuals halve each round; otherwise, soft thresholds must come
        # first
        if while_exact and 2 * median > before and floor > least:
            reason = "inexact"
            break
        if not rounds_at_floor:
            threshold = max(THRESHOLD_DECAY * threshold, floor)
        # with the current threshold too early, a column that is lost late never recovers; with the
        # first one for longer, a failed sensor spoils the other columns
        limit = np.where(rounds_drawn <= PATIENCE_ROUNDS, first, threshold)
        reach = np.where(is_drawn, limit, 0.0)
    return RobustFit(U, min(threshold, floor), median, reason, carry.center, mostly_outliers, carry)


def refitted(answer: Arrays, U: Array, center: Array, *, moves: bool) -> tuple[Array, Carry, Array]:
    """Return the orthonormal U that fits the scores V = D U, its carry-over, and the scores' squares.

    If the center moves, it moves to the mean of D. The squares are ``(r, r)``.
    """
    VV, AV, n = answer["VV"], answer["AV"], max(1, int(answer["rows"]))
    mean = answer["total"] / n if moves else np.zeros(len(U))
    scores = mean @ U
    # about the new center, whose part is subtracted from the sums, so that no row is asked again
    squares = VV - n * np.outer(scores, scores)
    # a component whose scores are all but zero has no direction; an inverse would make one up from
    # rounding
    fitted = (AV - n * np.outer(mean, scores)) @ np.linalg.pinv(
        squares, rcond=1e-12, hermitian=True
    )
    Q, R = np.linalg.qr(fitted)
    return Q, Carry(np.ascontiguousarray(R.T), center + mean, scores), squares


def turn_by_noise(deviation: float, squares: Array, inlier_share: Array) -> float:
    """Estimate the sine of the angle by which noise rotates components with these squared scores.

    The fewer of a feature's entries are inliers, the further off the feature is. ``inlier_share``
    is ``(d,)``.
    """
    least = float(np.linalg.eigvalsh(squares)[0])
    return deviation * float(np.sqrt((1 / inlier_share).sum() / least)) if least > 0 else 0.0


@question(
    doing="finding a start without large values",
    asks={"U": "float64 d r, orthonormal", "threshold": "float64, positive"},
    answers={"Y": "float64 d r"},
    passes=20,
)
def clipped_product(site: Site, U: Array, threshold: Array) -> dict[str, Any]:
    """Send C'(C U); C holds the rows, with zeros for missing entries and those beyond the threshold.

    A column with fewer entries left than the site's ``min_count`` counts as if it had none.
    """
    Y, most, least = np.zeros_like(U), float(threshold), site.policy.min_count
    few = np.zeros(len(U), bool)
    if least > 1:  # otherwise, there is nothing to leave out
        n_left = sum(
            np.count_nonzero(block.present & (np.abs(block.A) <= most), axis=0)
            for block in standardized_blocks(site)
        )
        few = np.asarray(n_left < least)
    for block in standardized_blocks(site):
        C = without_large(block.A, most)
        C[:, few] = 0.0
        Y += ((C @ U).T @ C).T
    return {"Y": Y}


@question(
    doing="separating outliers",
    asks={
        "U": "float64 d r, orthonormal",
        **CARRY,
        "threshold": "float64, positive",
        "reach": "float64 d, nonnegative",
        "is_first": "int64, flag",
    },
    answers={**SUMS, "good": "int64 d, count"},
    remembers=True,
    work="separate",
    passes=50,
)
def hard_round(
    site: Site,
    U: Array,
    turn: Array,
    center: Array,
    mean_scores: Array,
    threshold: Array,
    reach: Array,
    is_first: Array,
) -> dict[str, Any]:
    """Fit scores on orthonormal U by least squares, leaving out outliers, and send sums for the next U.

    Rows are centered on ``center``. If it has moved since the last round, ``mean_scores`` are the
    scores of that move. Rows that are mostly outliers get new scores from scratch. If they started from
    their current scores, a decreasing threshold would leave them behind.
    """
    first = follow_threshold(
        site, threshold, decay=THRESHOLD_DECAY, least_step=FLOOR_MARGIN, is_first=bool(is_first)
    )
    check_reach(site, reach, threshold, first)
    carried = None if is_first else carried_scores(site, turn, mean_scores)
    this, good, scratch = Round(site, U), np.zeros(len(U)), Scratch()
    for own, A, present in standardized_blocks(site, center):
        V = without_large(A, threshold) @ U if carried is None else carried[own]
        R = residuals(A, V, U, scratch)
        rows = judge(R, present, threshold, reach, scratch)
        restart = rows.mostly_outliers
        # in the first round, all rows have just started from scratch
        if restart.any() and carried is not None:
            V[restart] = separate(A[restart], present[restart], U, float(threshold))[0]
            rows = judge(residuals(A, V, U, scratch), present, threshold, reach, scratch)
        # one step of conjugate gradients, not more: the next round moves U anyway, and three steps
        # saved no round
        V, R = stepped(V, U, rows, scratch)
        rows = judge(R, present, threshold, reach, scratch)
        C, before, V = rows.pull, V, V + rows.pull @ U
        this.scores[own] = V
        this.sizes.add(own, R, present)
        good += column_sums(rows.inliers)
        if rows.mostly_outliers.any():  # such rows do not affect U until their scores fit
            counts = ~rows.mostly_outliers
            C, V, before = C[counts], V[counts], before[counts]
        this.add(C, V, before)
    site.remember(Scores(this.scores, NO_ROWS))
    inliers = this.without_small(good.astype(np.int64), least_count(site))
    return {**this.answer(threshold), "good": inliers}
