"""Robust PCA over sites: rows as a low-rank part with common components and a sparse part.

    A_i = V_i U' + S_i + noise,   U of d x r common to all sites

Only sums of d x r and r x r matrices leave a site, and one number of it as a place among bins.

``threshold`` knows the rank. Entries beyond a threshold z are unknown, and

    D_i = A_i where |A_i - V_i U'| <= z, else V_i U';   V_i = D_i U;
    U <- orth(sum D_i'V_i (sum V_i'V_i)^-1).

z falls by a fifth a round, down to four times the median size of residuals at the median site. It ends
exact where there is no noise, and with noise near where one ends who knows which entries are bad.

``least-squares`` stands a bound on the rank: soft thresholds and a ridge, both falling, and least
squares for U. ``dcf`` is the published method, gradient steps at the sites and an average: it ends as
far away as its threshold is large.

Source: DCF-PCA, "Distributed robust principal component analysis" by consensus factorisation, of which
``dcf`` is Algorithm 1. Hard thresholds after Netrapalli et al., "Non-convex robust PCA" (2014).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from fedpca.federation import Federation
from fedpca.linalg import orth, sine_of_angle
from fedpca.message import Array
from fedpca.question import Arrays
from fedpca.solvers.medians import median_place
from fedpca.solvers.robust_site import (
    FALL,
    FIRST,
    clipped_product,
    gradient_round,
    hard_round,
    soft_round,
)

SOFT_FALL = 0.7  # of the soft one and the ridge
PASSES = 2  # at a site in a round
START_ROUNDS = 2  # of power iteration on clipped rows
RANK_ROUNDS = 25  # after which the rank is read off
INDISTINCT = 1e-4  # of the largest singular value, below which the others are not told apart


@dataclass(frozen=True)
class Separated:
    """The components, and the threshold beyond which entries are outliers."""

    U: Array  # (d, r), orthonormal
    threshold: float
    noise: float  # the median size of residuals at the median site
    stopped: str  # "converged" or "max_rounds"
    place: Place | None = None  # where sites have their scores, if these fit to U


@dataclass(frozen=True)
class Place:
    """How scores of the last round become those of the next one."""

    turn: Array  # (r, r)
    centre: Array  # (d,), of the rows
    mean_scores: Array  # (r,), by which they move

    @classmethod
    def first(cls, d: int, r: int) -> Place:
        """Before the first round."""
        return cls(np.eye(r), np.zeros(d), np.zeros(r))

    @property
    def asked(self) -> Arrays:
        """The fields of a question."""
        return {"turn": self.turn, "centre": self.centre, "mean_scores": self.mean_scores}


def start_clipped(fed: Federation, d: int, r: int, threshold: float) -> Array:
    """A first U: power iteration on rows without what is beyond the threshold."""
    U = orth(fed.rng().standard_normal((d, r)))
    for _ in range(START_ROUNDS):
        U = orth(fed.sum(clipped_product, U=U, threshold=np.float64(threshold))["Y"])
    return U


def by_hard_threshold(
    fed: Federation,
    U: Array,
    threshold: float,
    *,
    tol: float,
    max_rounds: int,
    size: float,
    present: Array,
    moves: bool,
) -> Separated:
    """U to a change of at most ``tol`` in a round, the sine of an angle.

    ``size`` is the typical one of entries, and residuals of ``tol`` times as much are none; ``present``
    are the entries of each feature, ``(d,)``. Where the centre ``moves``, it becomes the mean of the
    rows without their outliers: a median is robust, but beside the plane in which low-rank rows lie.
    """
    place, stopped = Place.first(*U.shape), "max_rounds"
    lost = np.zeros(len(U), np.int64)
    for done in range(max_rounds):
        answer = fed.sum(
            hard_round,
            U=U,
            **place.asked,
            threshold=np.float64(threshold),
            lost_columns=lost,
            passes=np.int64(PASSES),
            is_first=np.int64(done == 0),
        )
        median = median_place(answer["places"], threshold)
        last, (U, place) = U, least_squares(answer, U, place.centre, moves=moves)
        change = sine_of_angle(last, U)
        fed.report(change, partial(np.asarray, U))
        floor = FIRST * median
        beyond = (2 * answer["good"] < present).astype(np.int64)
        # once the threshold has come down, a column that is found is not given up again
        lost = beyond if threshold > floor else lost & beyond
        if change <= tol and (threshold <= floor or median <= tol * size):
            stopped = "converged"
            break
        threshold = min(threshold, max(FALL * threshold, floor))
    return Separated(U, threshold, median, stopped, place)


def least_squares(answer: Arrays, U: Array, centre: Array, *, moves: bool) -> tuple[Array, Place]:
    """The U that fits to the scores V = D U, orthonormal, about the mean of D if the centre moves."""
    VV, AV, n = answer["VV"], answer["AV"], max(1, int(answer["rows"]))
    mean = answer["total"] / n if moves else np.zeros(len(U))
    scores = mean @ U
    fitted = np.linalg.lstsq(
        VV - n * np.outer(scores, scores), (AV - n * np.outer(mean, scores)).T, rcond=1e-12
    )[0].T
    Q, R = np.linalg.qr(fitted)
    return Q, Place(np.ascontiguousarray(R.T), centre + mean, scores)


def by_least_squares(
    fed: Federation, U: Array, threshold: float, *, n: int, tol: float, max_rounds: int
) -> tuple[Separated, Array]:
    """U by soft thresholds that fall, and the singular values of the low-rank part."""
    d, r = U.shape
    ridge = threshold * np.sqrt(max(n, d)) / 2
    stopped = "max_rounds"
    for done in range(max_rounds):
        answer = fed.sum(
            soft_round,
            U=U,
            threshold=np.float64(threshold),
            ridge=np.float64(ridge),
            passes=np.int64(PASSES),
            is_first=np.int64(done == 0),
        )
        last, VV = U, answer["VV"]
        U = np.linalg.solve(VV + ridge * np.eye(r), answer["AV"].T).T
        values = singular_values(U, VV)
        change = relative_change(last, U)
        fed.report(change, partial(orth, U))
        median = median_place(answer["places"], threshold)
        if change <= tol:
            stopped = "converged"
            break
        threshold, ridge = max(SOFT_FALL * threshold, median), SOFT_FALL * ridge
    bound = max(threshold, FIRST * median)
    return Separated(leading_axes(U, VV), bound, median, stopped), values


def by_gradients(
    fed: Federation,
    U: Array,
    threshold: float,
    *,
    n: int,
    ridge: float,
    step: float | None,
    local_steps: int,
    tol: float,
    max_rounds: int,
) -> tuple[Separated, Array]:
    """The published method: local gradient steps, averaged by rows; and the singular values."""
    stopped, VV = "max_rounds", np.eye(U.shape[1])
    for done in range(max_rounds):
        # a step that is given decays with the root of the rounds; else each site finds its own
        eta = 0.0 if step is None else step / np.sqrt(1 + done)
        answer = fed.sum(
            gradient_round,
            U=U,
            threshold=np.float64(threshold),
            ridge=np.float64(ridge),
            step=np.float64(eta),
            steps=np.int64(local_steps),
            passes=np.int64(PASSES),
            n=np.int64(n),
            is_first=np.int64(done == 0),
        )
        last, U, VV = U, answer["U"], answer["VV"]
        change = relative_change(last, U)
        fed.report(change, partial(orth, U))
        if change <= tol:
            stopped = "converged"
            break
    return Separated(leading_axes(U, VV), threshold, 0.0, stopped), singular_values(U, VV)


def relative_change(last: Array, U: Array) -> float:
    """How much U changed, as a part of it."""
    return float(np.linalg.norm(U - last) / max(np.linalg.norm(U), np.finfo(float).tiny))


def singular_values(U: Array, VV: Array) -> Array:
    """Those of V U', falling, from U and V'V."""
    values, Q = np.linalg.eigh(VV)
    root = (Q * np.sqrt(np.maximum(values, 0.0))) @ Q.T
    return np.asarray(np.sqrt(np.maximum(np.linalg.eigvalsh(root @ (U.T @ U) @ root)[::-1], 0.0)))


def leading_axes(U: Array, VV: Array) -> Array:
    """An orthonormal basis of U, in the order in which the rows of V U' vary along it."""
    values, Q = np.linalg.eigh(VV)
    W, _, _ = np.linalg.svd((U @ Q) * np.sqrt(np.maximum(values, 0.0)), full_matrices=False)
    return np.asarray(W)


def rank_of(values: Array) -> int:
    """Where singular values fall most, from one to the next."""
    if len(values) < 2 or not values[0]:
        return 1
    floored = np.maximum(values, INDISTINCT * values[0])
    return int(np.argmax(floored[:-1] / floored[1:])) + 1
