"""Robust PCA over sites by soft thresholds, which stand a bound on the rank.

    min  sum 1/2 ||A_i - V_i U' - S_i||^2 + lambda ||S_i||_1 + rho/2 (||V_i||^2 + ||U||^2)

``least-squares`` lets lambda and rho fall, and finds U from sums of d x r and r x r matrices. What the
bound has too much is left with small singular values, so that the rank can be read off. ``dcf`` is the
published method: both stay, sites take gradient steps, and these are averaged. It ends as far away as
its lambda is large.

Source: DCF-PCA, "Distributed robust principal component analysis" by consensus factorisation, of which
``dcf`` is Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from fedpca.federation import Federation
from fedpca.linalg import orth
from fedpca.message import Array
from fedpca.solvers.medians import median_of_bins
from fedpca.solvers.robust import (
    NEGLIGIBLE,
    Carry,
    Known,
    Limits,
    Separated,
    by_hard_threshold,
)
from fedpca.solvers.robust_parts import TIMES_MEDIAN
from fedpca.solvers.robust_site import gradient_round, soft_round

PASSES = 2  # at a site in a round
SOFT_FALL = 0.7  # of the threshold and the ridge in a round
LEAST_RIDGE = 1e-12  # of the first one: with none, what has a lower rank cannot be solved for
RANK_ROUNDS = 25  # after which the rank is read off
SOFT_ROUNDS = 12  # to start from where components are of unlike size
AFTER_SOFT = 10.0  # where hard thresholds begin, in those at which soft ones ended
CLEAR = 5.0  # a fall from one singular value to the next that shows a rank, whatever the others
INDISTINCT = 1e-4  # of the largest singular value, below which the others are not told apart


def by_least_squares(
    fed: Federation, U: Array, known: Known, limits: Limits
) -> tuple[Separated, Array]:
    """U by soft thresholds that fall, and the singular values that tell the rank."""
    d, r = U.shape
    U = in_unit(U, known)
    threshold = known.first_threshold
    ridge = threshold * np.sqrt(max(known.n, d)) / 2
    least_ridge = LEAST_RIDGE * ridge
    carry, stopped = Carry.first(r, np.zeros(d)), "max_rounds"
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
        mean = answer["total"] / known.n if known.moves else np.zeros(d)
        # scores are V = D U (U'U + ridge)^-1, and so is their mean
        scores = np.linalg.solve(U.T @ U + ridge * np.eye(r), U.T @ mean)
        squares = answer["VV"] - known.n * np.outer(scores, scores)
        products = answer["AV"] - known.n * np.outer(mean, scores)
        last, U = U, np.linalg.solve(squares + ridge * np.eye(r), products.T).T
        carry = Carry(np.eye(r), carry.centre + mean, scores)
        if done < RANK_ROUNDS:  # later no ridge holds down what the bound has too much
            values = singular_values(U, squares)
        change = relative_change(last, U)
        fed.report(change, partial(orth, U))
        if change <= limits.tol:
            stopped = "converged"
            break
        threshold, ridge = max(SOFT_FALL * threshold, median), max(SOFT_FALL * ridge, least_ridge)
    least = max(10 * limits.tol, NEGLIGIBLE) * known.size
    bound = max(threshold, TIMES_MEDIAN * median, least)
    axes = leading_axes(U, squares)
    carry = Carry(U.T @ axes, carry.centre, carry.mean_scores)
    found = Separated(axes, bound, median, stopped, carry.centre, np.zeros(d, bool), carry)
    return found, values


def by_both_thresholds(fed: Federation, U: Array, known: Known, limits: Limits) -> Separated:
    """U by hard thresholds, from a start by soft ones unless the first rounds show an exact end.

    A start from clipped rows has mostly what was clipped in place of components that are small beside
    the largest, and hard thresholds then take these for noise. Soft ones find them.
    """
    found = by_hard_threshold(fed, U, known, limits, while_exact=True)
    if found.stopped != "inexact":
        return found
    fed.record.solver = "least-squares, threshold"
    at_start = Limits(0.0, min(SOFT_ROUNDS, limits.max_rounds))
    soft, _ = by_least_squares(fed, U, known, at_start)
    first = AFTER_SOFT * soft.threshold
    return by_hard_threshold(fed, soft.U, known, limits, carry=soft.carry, first=first)


def by_gradients(
    fed: Federation,
    U: Array,
    known: Known,
    limits: Limits,
    *,
    threshold: float,
    ridge: float,
    step: float | None,
    local_steps: int,
) -> tuple[Separated, Array]:
    """The published method: local gradient steps, averaged by rows; and the singular values."""
    stopped, VV, U = "max_rounds", np.eye(U.shape[1]), in_unit(U, known)
    for done in range(limits.max_rounds):
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
            n=np.int64(known.n),
            is_first=np.int64(done == 0),
        )
        last, U, VV = U, answer["U"], answer["VV"]
        change = relative_change(last, U)
        fed.report(change, partial(orth, U))
        if change <= limits.tol:
            stopped = "converged"
            break
    d = len(U)
    found = Separated(leading_axes(U, VV), threshold, 0.0, stopped, np.zeros(d), np.zeros(d, bool))
    return found, singular_values(U, VV)


def in_unit(U: Array, known: Known) -> Array:
    """U of the size of its scores, so that rows in another unit give the same in that unit."""
    return np.asarray(U * np.sqrt(known.size))


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


@dataclass(frozen=True)
class Rank:
    """How many components, and whether singular values show it."""

    number: int
    is_clear: bool = True


def rank_of(values: Array, bound: int) -> Rank:
    """Where singular values fall most, from one to the next, if nowhere else nearly as much.

    Else the bound. A fall is clear that is at least the square of every other, as those of real tables
    and of noise are not.
    """
    if len(values) < 2 or not values[0]:
        return Rank(1)
    floored = np.maximum(values, INDISTINCT * values[0])
    falls = floored[:-1] / floored[1:]
    largest = int(np.argmax(falls))
    others = np.delete(falls, largest).max(initial=1.0)
    if falls[largest] >= min(others**2, CLEAR):
        return Rank(largest + 1)
    return Rank(min(bound, len(values) - 1), is_clear=False)
