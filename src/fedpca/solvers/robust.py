"""Robust PCA over sites: rows as a low-rank part with common components and a sparse part.

    A_i = V_i U' + S_i + noise,   U of d x r common to all sites

Only sums of d x r and r x r matrices leave a site, and one number of it by its bin.

``threshold`` knows the rank. Entries beyond a threshold z are unknown, and

    V_i fits best to what is known;   D_i = A_i where |A_i - V_i U'| <= z, else V_i U';
    U <- orth(sum D_i'V_i (sum V_i'V_i)^-1).

z falls by a fifth a round, down to four times the median size of residuals at the median site. It ends
exact where there is no noise, and with noise near where one ends who knows which entries are bad.

Source: hard thresholds after Netrapalli et al., "Non-convex robust PCA" (2014). Soft ones, which stand
a bound on the rank, and the published method for sites are in `fedpca.solvers.robust_soft`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fedpca.federation import Federation
from fedpca.linalg import orth, sine_of_angle
from fedpca.message import Array
from fedpca.question import Arrays
from fedpca.solvers.medians import median_of_bins
from fedpca.solvers.robust_parts import FALL, TIMES_MEDIAN
from fedpca.solvers.robust_site import clipped_product, hard_round

NORMAL = 1.4826  # a standard deviation, in median sizes of normal numbers
START_ROUNDS = 2  # of power iteration on clipped rows
REACHED = 1.05  # as near as medians from bins tell a threshold from its floor
PATIENCE = 5  # rounds at its floor after which a threshold stays
OF_NOISE = 0.02  # a turn, as a part of what noise does, that is none
NEGLIGIBLE = 1e-7  # of the size of entries: never an outlier


@dataclass(frozen=True)
class Known:
    """What all sites together know of the rows before a solver starts."""

    n: int
    present: Array  # (d,), how many values each feature has that varies
    size: float  # the typical one of entries
    moves: bool  # whether the centre becomes the mean of what is no outlier

    @property
    def first_threshold(self) -> float:
        """Where thresholds begin to fall."""
        return TIMES_MEDIAN * self.size


@dataclass(frozen=True)
class Limits:
    """When a solver stops."""

    tol: float
    max_rounds: int


@dataclass(frozen=True)
class Carry:
    """How scores of the last round become those of the next one."""

    turn: Array  # (q, r), q being the scores of the last round
    centre: Array  # (d,), of the rows
    mean_scores: Array  # (q,), by which they move

    @classmethod
    def first(cls, r: int, centre: Array) -> Carry:
        """Before the first round."""
        return cls(np.eye(r), centre, np.zeros(r))

    @property
    def asked(self) -> Arrays:
        """The fields of a question."""
        return {"turn": self.turn, "centre": self.centre, "mean_scores": self.mean_scores}


@dataclass(frozen=True)
class Separated:
    """The components, and the threshold beyond which entries are outliers."""

    U: Array  # (d, r), orthonormal
    threshold: float
    noise: float  # the median size of residuals at the median site
    stopped: str  # "converged", "max_rounds", or "inexact" where only an exact end was wanted
    centre: Array  # (d,)
    lost: Array  # (d,), whether most of a feature is beyond the threshold
    carry: Carry | None = None  # of the scores that sites have, if these fit to U

    def cut(self, r: int) -> Separated:
        """The same with r components."""
        carry = self.carry
        if carry is not None:
            carry = replace(carry, turn=np.ascontiguousarray(carry.turn[:, :r]))
        return replace(self, U=np.ascontiguousarray(self.U[:, :r]), carry=carry)


def start_clipped(fed: Federation, d: int, r: int, threshold: float) -> Array:
    """A first U: power iteration on rows without what is beyond the threshold."""
    U = orth(fed.rng().standard_normal((d, r)))
    for _ in range(START_ROUNDS):
        U = orth(fed.sum(clipped_product, U=U, threshold=np.float64(threshold))["Y"])
    return U


def by_hard_threshold(
    fed: Federation,
    U: Array,
    known: Known,
    limits: Limits,
    *,
    carry: Carry | None = None,
    first: float = np.inf,
    while_exact: bool = False,
) -> Separated:
    """U to a change of at most ``tol`` in a round, the sine of an angle, or far below the noise.

    Residuals of ``tol`` times the size of entries are none. Where the centre moves, it becomes the mean
    of the rows without their outliers: a median is robust, but beside the plane in which low-rank rows
    lie. A threshold that has been at its floor for a few rounds stays: where residuals have long tails
    it would else cut off ever more of them, and never end. A column that is lost is drawn for as many
    rounds by all that the first threshold leaves, and then only by what the present one does.

    It begins with the scores that ``carry`` takes over, or without any, and with the threshold
    ``first``, if that is lower than the usual one. ``while_exact`` goes on only as long as residuals at
    least halve in a round, as they do on the way to a low-rank part that is exact, from a good start.
    """
    d, r = U.shape
    is_first, carry = carry is None, carry or Carry.first(r, np.zeros(d))
    first = min(known.first_threshold, first)
    threshold, median, stopped = first, np.inf, "max_rounds"
    reach, rounds_lost = np.zeros(d), np.zeros(d, int)  # of columns
    least = max(10 * limits.tol, NEGLIGIBLE) * known.size
    n_resting = 0
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
        last, (U, carry, squares) = U, refitted(answer, U, carry.centre, moves=known.moves)
        change = sine_of_angle(last, U)
        fed.report(change, partial(np.asarray, U))
        floor = max(TIMES_MEDIAN * median, least)
        if n_resting < PATIENCE:
            n_resting = n_resting + 1 if threshold <= REACHED * floor else 0
        beyond = 2 * answer["good"] < known.present
        is_fitted = median <= limits.tol * known.size
        # a column is drawn to where it belongs until then; what is not found by now is given up
        lost = beyond & (n_resting < PATIENCE and not is_fitted)
        rounds_lost += lost
        enough = limits.tol if is_fitted or n_resting else 0.0
        if n_resting:
            varies = known.present > 0
            known_part = np.maximum(answer["good"][varies], 1) / known.present[varies]
            enough = max(enough, OF_NOISE * turn_by_noise(NORMAL * median, squares, known_part))
        if change <= enough:
            stopped = "converged"
            break
        if while_exact and 2 * median > before and floor > least:
            stopped = "inexact"
            break
        if not n_resting:
            threshold = max(FALL * threshold, floor)
        far = np.where(rounds_lost <= PATIENCE, first, threshold)
        reach = np.where(lost, far, 0.0)
    return Separated(U, min(threshold, floor), median, stopped, carry.centre, beyond, carry)


def refitted(answer: Arrays, U: Array, centre: Array, *, moves: bool) -> tuple[Array, Carry, Array]:
    """The U that fits to the scores V = D U, orthonormal, about the mean of D if the centre moves.

    And the squares of scores, ``(r, r)``.
    """
    VV, AV, n = answer["VV"], answer["AV"], max(1, int(answer["rows"]))
    mean = answer["total"] / n if moves else np.zeros(len(U))
    scores = mean @ U
    squares = VV - n * np.outer(scores, scores)
    fitted = np.linalg.lstsq(squares, (AV - n * np.outer(mean, scores)).T, rcond=1e-12)[0].T
    Q, R = np.linalg.qr(fitted)
    return Q, Carry(np.ascontiguousarray(R.T), centre + mean, scores), squares


def turn_by_noise(deviation: float, squares: Array, known_part: Array) -> float:
    """By how much noise turns components that have such squares of scores, the sine of an angle.

    A feature of which only a part is known, ``(d,)``, is off by as much more.
    """
    least = float(np.linalg.eigvalsh(squares)[0])
    return deviation * float(np.sqrt((1 / known_part).sum() / least)) if least > 0 else 0.0
