"""Define a fitted robust model, which splits rows into a low-rank part and sparse outliers.

    A = V U' + S + noise,   S = A - V U' where |A - V U'| exceeds the threshold, else 0

The components U are given; this module computes the scores V. `judge` decides which entries count,
`fitted_scores` improves the scores once, and `separate` repeats both steps until the scores converge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.models.linear import Model
from fedpca.rows.in_memory import is_sparse

TIMES_MEDIAN = 4.0  # ratio of threshold to median size; 2.7 standard deviations for normal noise
THRESHOLD_DECAY = 0.8  # each round multiplies the threshold by this
MAX_PASSES = 200  # after this many, all thresholds fall; at most as many passes follow
SCORE_TOL = 1e-12  # relative change at which scores have converged
CG_STEPS = 3  # conjugate gradient steps per pass
DAMPING = 1e-3  # for a row in which no entry counts; each entry that counts reduces it


class Parts(NamedTuple):
    """Rows split into two parts, each ``(n, d)``, apart from noise."""

    low_rank: Array  # missing values are filled in here
    sparse: Array


class OutlierScores(NamedTuple):
    """Each entry's distance from the low-rank part, and each row's share of outliers."""

    rows: Array  # (n,), the share of each row's entries that are outliers, from 0 to 1
    cells: Array  # (n, d), residuals divided by the threshold; an entry above 1 is an outlier


@dataclass(frozen=True)
class RobustModel:
    """Robust components, and the residual above which an entry is an outlier."""

    linear: Model
    threshold: float

    @classmethod
    def from_low_rank(
        cls,
        components: Array,
        variance: Array,
        *,
        mean: Array,
        scale: Array,
        noise_variance: float,
        n: int,
        threshold: float,
    ) -> RobustModel:
        """Make a model from the components of the low-rank part of n rows and its variances."""
        linear = Model(
            components=components,
            explained_variance=variance,
            singular_values=np.sqrt(variance * (n - 1)),
            mean=mean,
            scale=scale,
            noise_variance=np.array(noise_variance),
            total_variance=np.array(variance.sum() + len(mean) * noise_variance),
        )
        return cls(linear, threshold)

    def transform(self, X: Any) -> Array:
        """Return the scores of rows, ``(n, k)``, ignoring missing entries and outliers."""
        return self._separate(*self._standardized(X))[0]

    def split(self, X: Any) -> Parts:
        """Split rows into a low-rank part and a sparse part, using the fitted components."""
        scores, S = self._separate(*self._standardized(X))
        return Parts(self.linear.inverse_transform(scores), S * self.linear.scale)

    def outlier_scores(self, X: Any) -> OutlierScores:
        """Return each entry's residual divided by the threshold, and each row's share of outliers."""
        A, present = self._standardized(X)
        scores, _ = self._separate(A, present)
        cells = np.where(present, np.abs(A - scores @ self.linear.components), 0.0) / self.threshold
        n_present = np.maximum(present.sum(axis=1), 1)
        return OutlierScores((cells > 1).sum(axis=1) / n_present, cells)

    def _standardized(self, rows: Any) -> tuple[Array, Array]:
        dense = np.asarray(rows.toarray() if is_sparse(rows) else rows, np.float64)
        return values_about(dense, self.linear.mean, self.linear.scale)

    def _separate(self, A: Array, present: Array) -> tuple[Array, Array]:
        model = self.linear
        typical_entry = float(np.sqrt(model.explained_variance.sum() / len(model.mean)))
        first = TIMES_MEDIAN * typical_entry
        return separate(A, present, model.components.T, self.threshold, first=first)


def values_about(rows: Array, center: Array, scale: Array | float = 1.0) -> tuple[Array, Array]:
    """Return centered and scaled rows, with zeros for NaN, and a mask of the values present."""
    values = rows - center
    if np.any(scale != 1):
        values /= scale
    missing = np.isnan(values)
    if missing.any():
        values[missing] = 0.0
    return values, ~missing


def median_size(sizes: Array) -> float:
    """Return the median of absolute values, or zero if there are none."""
    middle = len(sizes) // 2
    return float(np.partition(sizes, middle)[middle]) if len(sizes) else 0.0


def without_large(A: Array, threshold: Array | float) -> Array:
    """Return A with entries beyond the threshold replaced by zeros."""
    return np.where(np.abs(A) > threshold, 0.0, A)


class Residuals(NamedTuple):
    """Residuals of rows, ``(n, d)``, and masks of the entries that count in a fit."""

    R: Array
    inliers: Array  # whether an entry is present and within the threshold
    counted: Array  # whether an entry counts: all inliers, plus outliers that count when clipped
    pull: Array  # the residuals of counted entries, clipped, and zero elsewhere
    mostly_outliers: Array  # (n,), whether most entries of a row are beyond the threshold


def judge(
    R: Array, present: Array, threshold: Array | float, reach: Array | float = 0.0
) -> Residuals:
    """Decide from the residuals R which entries count in a fit.

    An entry that is missing or beyond the threshold does not count; it is treated as if its residual
    were zero. A row or column that is mostly beyond the threshold would then have too few entries to
    change its fit, and a large one would stay at zero forever. Therefore, the outliers in such a row
    count, clipped to the threshold. The outliers in such a column count, clipped to the column's
    ``reach``, ``(d,)``, which is 0 for all other columns.
    """
    inliers = counted = (np.abs(R) <= threshold) & present
    pull = R * inliers
    mostly_outliers = 2 * np.count_nonzero(inliers, axis=1) < np.count_nonzero(present, axis=1)
    if mostly_outliers.any() or np.any(reach):
        limits = np.maximum(np.where(mostly_outliers[:, None], threshold, 0.0), reach)
        pull += np.where(present & ~inliers, np.clip(R, -limits, limits), 0.0)
        counted = inliers | (present & (limits > 0))
    return Residuals(R, inliers, counted, pull, mostly_outliers)


def stepped(V: Array, L: Array, U: Array, rows: Residuals) -> tuple[Array, Array]:
    """Take one step of `fitted_scores`; return the scores V and the fit ``L = V U'`` after it."""
    g = rows.pull @ U
    P = g @ U.T
    squares = _squares(g)
    along = np.einsum("ij,ij,ij->i", P, P, rows.counted)[:, None] + _damping(rows.counted) * squares
    length = _ratio(squares, along, along > 0)
    return V + length * g, L + length * P


def fitted_scores(V: Array, U: Array, rows: Residuals) -> Array:
    """Improve the scores V toward the best fit to the counted entries in each row."""
    return np.asarray(V + _solve_rows(rows.counted, U, rows.pull @ U))


def _solve_rows(counted: Array, U: Array, gradients: Array) -> Array:
    """Solve (U'KU + damping) x = g for each row by conjugate gradients; K selects counted entries.

    If all entries count, one step is exact because U is orthonormal. Damping keeps a row's equations
    solvable if too few entries count. It shortens the step, but the next pass makes up for that.
    """
    K = counted.astype(float)
    damping = _damping(counted)
    solution, residuals = np.zeros_like(gradients), gradients.copy()
    direction = gradients.copy()
    squares = _squares(residuals)
    least = SCORE_TOL**2 * squares
    for _ in range(CG_STEPS):
        product = ((direction @ U.T) * K) @ U + damping * direction
        goes_on = squares > least
        length = _ratio(squares, (direction * product).sum(axis=1, keepdims=True), goes_on)
        solution += length * direction
        residuals -= length * product
        last, squares = squares, _squares(residuals)
        direction = residuals + _ratio(squares, last, goes_on) * direction
    return solution


def _damping(counted: Array) -> Array:
    """Return each row's damping, ``(n, 1)``, which is larger if fewer of its entries count."""
    share = np.count_nonzero(counted, axis=1)[:, None] / max(1, counted.shape[1])
    return np.asarray(DAMPING * (1 - share))


def _ratio(a: Array, b: Array, where: Array) -> Array:
    """Divide a by b where ``where`` is true; return zero elsewhere."""
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
    """Return the scores of rows on orthonormal U, ``(d, r)``, and their sparse part.

    The search starts from the scores V if they are given; otherwise, it starts from the entries within
    ``first``.

    Outliers must be removed before the entries that they hide. Therefore, each row starts with its own
    threshold, which falls with the row's median residual. If the scores converge or the passes run out,
    the threshold falls anyway, because the median may itself be an outlier. A row's result does not
    depend on other rows or on features that are in no component.
    """
    scores = _scores(A, present & U.any(axis=1), U, threshold, first, V)
    R = A - scores @ U.T
    return scores, np.where(present & (np.abs(R) > threshold), R, 0.0)


def _scores(
    A: Array, present: Array, U: Array, threshold: float, first: float, V: Array | None
) -> Array:
    """Compute the scores for `separate` from the present entries."""
    thresholds = _row_thresholds(A, present, max(first, threshold))
    V = without_large(A, thresholds) @ U if V is None else V.copy()
    falls = np.zeros((len(A), 1), bool)
    unfinished = np.arange(len(A))
    for done in range(2 * MAX_PASSES):
        rows, is_present, last = A[unfinished], present[unfinished], V[unfinished]
        R = rows - last @ U.T
        by_median = _row_thresholds(R, is_present, threshold)
        thresholds = np.where(falls, np.maximum(THRESHOLD_DECAY * thresholds, threshold), by_median)
        scores = fitted_scores(last, U, judge(R, is_present, thresholds))
        V[unfinished] = scores
        has_converged = _squares(scores - last) <= SCORE_TOL**2 * _squares(scores)
        is_lowest = thresholds <= threshold
        falls |= has_converged | is_lowest | (done >= MAX_PASSES)
        goes_on = ~(has_converged & is_lowest)[:, 0]
        if not goes_on.any():
            break
        unfinished, thresholds, falls = unfinished[goes_on], thresholds[goes_on], falls[goes_on]
    return V


def _row_thresholds(R: Array, present: Array, threshold: float) -> Array:
    """Return each row's threshold, ``(n, 1)``: a multiple of its median residual, or ``threshold``."""
    if not R.size:
        return np.full((len(R), 1), threshold)
    if present.all():
        middle = R.shape[1] // 2
        medians = np.partition(np.abs(R), middle, axis=1)[:, middle : middle + 1]
    else:
        sizes = np.sort(np.where(present, np.abs(R), np.inf), axis=1)
        n_present = present.sum(axis=1, keepdims=True)
        places = np.minimum(n_present // 2, R.shape[1] - 1)
        medians = np.where(n_present > 0, np.take_along_axis(sizes, places, 1), 0)
    return np.maximum(TIMES_MEDIAN * medians, threshold)


def _squares(V: Array) -> Array:
    """Return the squared length of each row, ``(n, 1)``."""
    return np.asarray(np.einsum("ij,ij->i", V, V)[:, None])
