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


def typical_size(residuals: Array, present: Array) -> float:
    """The median size of the entries that are present; zero of none."""
    return float(np.median(np.abs(residuals[present]))) if present.any() else 0.0


def without_large(A: Array, threshold: Array | float) -> Array:
    """A with zeros for what is beyond the threshold."""
    return np.where(np.abs(A) > threshold, 0.0, A)


class Filled(NamedTuple):
    """Rows in which what is unknown is replaced by the low-rank part."""

    D: Array  # (n, d)
    R: Array  # (n, d), the residuals
    good: Array  # (n, d), what is present and within the threshold
    lost: Array  # (n,), rows of which most is beyond it


def filled(
    A: Array, present: Array, L: Array, threshold: Array | float, reach: Array | float = 0.0
) -> Filled:
    """Take what is missing or beyond the threshold as unknown.

    Of a row or column that is mostly beyond it nothing would be left to draw it to where it belongs: a
    large one would stay at zero for ever. In such rows residuals count as far as the threshold, and in
    columns as far as their ``reach``, ``(d,)``; in others it is 0.
    """
    R = A - L
    good = present & (np.abs(R) <= threshold)
    D = np.where(good, A, L)
    lost = 2 * good.sum(axis=1) < present.sum(axis=1)
    drawn = np.maximum(np.where(lost[:, None], threshold, 0.0), reach)
    if drawn.any():
        D += np.where(present & ~good, np.clip(R, -drawn, drawn), 0.0)
    return Filled(D, R, good, lost)


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
    depends on what others are there.
    """
    own = _own_thresholds(A, present, max(first, threshold))
    V = without_large(A, own) @ U if V is None else V.copy()
    falls = np.zeros((len(A), 1), bool)
    left = np.arange(len(A))
    for done in range(2 * MOST_PASSES):
        rows, there, last = A[left], present[left], V[left]
        L = last @ U.T
        follows = _own_thresholds(rows - L, there, threshold)
        own = np.where(falls, np.maximum(FALL * own, threshold), follows)
        found = filled(rows, there, L, own).D @ U
        V[left] = found
        is_settled = _sizes(found - last) <= SETTLED * _sizes(found)
        is_last = own <= threshold
        falls |= is_settled | is_last | (done >= MOST_PASSES)
        goes_on = ~(is_settled & is_last)[:, 0]
        if not goes_on.any():
            break
        left, own, falls = left[goes_on], own[goes_on], falls[goes_on]
    R = A - V @ U.T
    return V, np.where(present & (np.abs(R) > threshold), R, 0.0)


def _own_thresholds(R: Array, present: Array, threshold: float) -> Array:
    """Those of each row on the way to the common one, ``(n, 1)``: a multiple of its median residual."""
    sizes = np.sort(np.where(present, np.abs(R), np.inf), axis=1)
    middle = np.minimum(present.sum(axis=1, keepdims=True) // 2, R.shape[1] - 1)
    medians = np.where(present.any(axis=1, keepdims=True), np.take_along_axis(sizes, middle, 1), 0)
    return np.maximum(TIMES_MEDIAN * medians, threshold)


def _sizes(V: Array) -> Array:
    """The length of each row, ``(n, 1)``."""
    return np.asarray(np.linalg.norm(V, axis=1, keepdims=True))
