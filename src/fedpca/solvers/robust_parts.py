"""Rows as two parts, with the components known: what thresholds leave, and what scores fit.

A = V U' + S + noise,   S where |A - V U'| is beyond the threshold
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpca.message import Array

TIMES_MEDIAN = 4.0  # a threshold, in median sizes: 2.7 deviations of normal noise
FALL = 0.8  # of the threshold in a round
MOST_PASSES, SETTLED = 200, 1e-12  # until scores change by no more than this part
STEPS = 3  # of conjugate gradients in a pass
DAMPING = 1e-3  # of steps, where nothing is known


def typical_size(residuals: Array, present: Array) -> float:
    """The median size of the entries that are present; zero of none."""
    if not present.any():
        return 0.0
    return float(np.median(np.abs(residuals if present.all() else residuals[present])))


def without_large(A: Array, threshold: Array | float) -> Array:
    """A with zeros for what is beyond the threshold."""
    return np.where(np.abs(A) > threshold, 0.0, A)


class Judged(NamedTuple):
    """Residuals of rows, ``(n, d)``, and which of them count."""

    R: Array
    good: Array  # what is present and within the threshold
    known: Array  # what is good, and what draws nevertheless
    pull: Array  # the residuals of what is known, as far as they count, else zero
    lost: Array  # (n,), rows of which most is beyond the threshold


def judged(
    A: Array, present: Array, L: Array, threshold: Array | float, reach: Array | float = 0.0
) -> Judged:
    """Take what is missing or beyond the threshold as unknown, as if it were L.

    Of a row or column that is mostly beyond it nothing would be left to draw it to where it belongs: a
    large one would stay at zero for ever. In such rows residuals count as far as the threshold, and in
    columns as far as their ``reach``, ``(d,)``; in others it is 0.
    """
    R = A - L
    good = known = present & (np.abs(R) <= threshold)
    pull = np.where(good, R, 0.0)
    lost = 2 * good.sum(axis=1) < present.sum(axis=1)
    drawn = np.maximum(np.where(lost[:, None], threshold, 0.0), reach)
    if drawn.any():
        pull += np.where(present & ~good, np.clip(R, -drawn, drawn), 0.0)
        known = good | (present & (drawn > 0))
    return Judged(R, good, known, pull, lost)


def fitted_scores(V: Array, U: Array, rows: Judged) -> Array:
    """Scores nearer than V to those that fit best to what is known of each row."""
    return np.asarray(V + _solved(rows.known, U, rows.pull @ U))


def _solved(known: Array, U: Array, gradients: Array) -> Array:
    """Of each row x in (U'KU + damping) x = g, K being what is known of it, by conjugate gradients.

    Where all is known the first step is the last, as U is orthonormal. Damping holds rows of which too
    little is known; what it takes off a step is made up for by the next pass.
    """
    K = known.astype(float)
    damping = DAMPING * (1 - K.mean(axis=1, keepdims=True))
    found, left, direction = np.zeros_like(gradients), gradients.copy(), gradients.copy()
    squares = _squares(left)
    least = SETTLED**2 * squares
    for _ in range(STEPS):
        product = ((direction @ U.T) * K) @ U + damping * direction
        goes_on = squares > least
        length = _ratio(squares, (direction * product).sum(axis=1, keepdims=True), goes_on)
        found += length * direction
        left -= length * product
        last, squares = squares, _squares(left)
        direction = left + _ratio(squares, last, goes_on) * direction
    return found


def _ratio(a: Array, b: Array, where: Array) -> Array:
    """a / b where told, else zero."""
    return np.divide(a, b, out=np.zeros_like(a), where=where)


def separate(
    A: Array,
    present: Array,
    U: Array,
    threshold: float,
    *,
    first: float = 0.0,
    V: Array | None = None,
) -> tuple[Array, Array]:
    """Scores of rows on orthonormal U, ``(d, r)``, and their sparse part, beyond the threshold.

    They are found from V, or from what of the rows is within ``first``.

    Outliers give way before what they hide: at first each row has a threshold of its own, that falls as
    its median residual does. Where the median is itself an outlier, it then falls without it. No row
    depends on what others are there, and none on features that are in no component.
    """
    found = _scores(A, present & U.any(axis=1), U, threshold, first, V)
    R = A - found @ U.T
    return found, np.where(present & (np.abs(R) > threshold), R, 0.0)


def _scores(
    A: Array, present: Array, U: Array, threshold: float, first: float, V: Array | None
) -> Array:
    """The scores of `separate`, by what is present."""
    own = _own_thresholds(A, present, max(first, threshold))
    V = without_large(A, own) @ U if V is None else V.copy()
    falls = np.zeros((len(A), 1), bool)
    left = np.arange(len(A))
    for done in range(2 * MOST_PASSES):
        rows, there, last = A[left], present[left], V[left]
        L = last @ U.T
        follows = _own_thresholds(rows - L, there, threshold)
        own = np.where(falls, np.maximum(FALL * own, threshold), follows)
        found = fitted_scores(last, U, judged(rows, there, L, own))
        V[left] = found
        is_settled = _squares(found - last) <= SETTLED**2 * _squares(found)
        is_last = own <= threshold
        falls |= is_settled | is_last | (done >= MOST_PASSES)
        goes_on = ~(is_settled & is_last)[:, 0]
        if not goes_on.any():
            break
        left, own, falls = left[goes_on], own[goes_on], falls[goes_on]
    return V


def _own_thresholds(R: Array, present: Array, threshold: float) -> Array:
    """Those of each row on the way to the common one, ``(n, 1)``: a multiple of its median residual."""
    sizes = np.sort(np.where(present, np.abs(R), np.inf), axis=1)
    middle = np.minimum(present.sum(axis=1, keepdims=True) // 2, R.shape[1] - 1)
    medians = np.where(present.any(axis=1, keepdims=True), np.take_along_axis(sizes, middle, 1), 0)
    return np.maximum(TIMES_MEDIAN * medians, threshold)


def _squares(V: Array) -> Array:
    """The squared length of each row, ``(n, 1)``."""
    return np.asarray(np.einsum("ij,ij->i", V, V)[:, None])
