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
from fedpca.linalg.scratch import Scratch
from fedpca.models.linear import Model
from fedpca.rows.in_memory import is_sparse

TIMES_MEDIAN = 4.0  # ratio of threshold to median size; 2.7 standard deviations for normal noise
THRESHOLD_DECAY = 0.8  # each round multiplies the threshold by this
MAX_PASSES = 200  # after this many passes, all thresholds fall; at most this many more follow
SCORE_TOL = 1e-12  # relative change at which scores have converged
CG_STEPS = 3  # conjugate gradient steps per pass
OTHER_BITS = 48  # how many bits of a float64 follow its exponent and first four binary digits
MAX_BINS = 1 << 12  # bins of leading bits, which reach down to 1e-77 times the largest number
DAMPING = 1e-3  # for a row in which no entry counts; each entry that counts reduces it


class Parts(NamedTuple):
    """The two parts that rows are split into, each ``(n, d)``; the noise is in neither part.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import RobustPCA
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 12))
    >>> rows[5, 3] += 100
    >>> parts = RobustPCA(2, random_state=0).fit([rows[:30], rows[30:]]).split(rows)
    >>> np.argwhere(parts.sparse).tolist()
    [[5, 3]]
    """

    low_rank: Array  # missing values are filled in here
    sparse: Array


class OutlierScores(NamedTuple):
    """Each entry's distance from the low-rank part, and each row's share of outliers.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import RobustPCA
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 12)) + 0.1 * rng.normal(size=(60, 12))
    >>> rows[5, 3] += 100
    >>> scores = RobustPCA(2, random_state=0).fit([rows[:30], rows[30:]]).outlier_scores(rows)
    >>> np.argwhere(scores.cells > 10).tolist()
    [[5, 3]]
    """

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
        """Make a model from the components and the variances of the low-rank part of n rows."""
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


def values_about(
    rows: Array,
    center: Array,
    scale: Array | float = 1.0,
    *,
    is_whole: bool = False,
    scratch: Scratch | None = None,
) -> tuple[Array, Array]:
    """Return centered and scaled rows, with zeros for NaN, and a mask of the values present.

    With ``is_whole``, no value is missing.
    """
    new = scratch or Scratch()
    values = np.subtract(rows, center, out=new("values", rows.shape))
    if np.any(scale != 1):
        values /= scale
    present = new("present", rows.shape, bool)
    if is_whole:
        present.fill(True)
        return values, present
    missing = np.isnan(values, out=present)
    if missing.any():
        values[missing] = 0.0
    return values, np.logical_not(missing, out=present)


def median_size(sizes: Array) -> float:
    """Return the median of absolute values, or zero if there are none.

    Only values near the median are sorted: those with the same leading bits as the median. Leading bits
    have the same order as the numbers themselves.
    """
    if not len(sizes):
        return 0.0
    middle = len(sizes) // 2
    leading = sizes.view(np.int64) >> OTHER_BITS
    # values far below the largest are unlikely to be the median, so they all share a bin
    bins = np.maximum(leading - (leading.max() - MAX_BINS), 0)
    ends = np.cumsum(np.bincount(bins))
    own = int(np.searchsorted(ends, middle, side="right"))
    near = sizes[bins == own]
    place = middle - int(ends[own] - len(near))
    return float(np.partition(near, place)[place])


def residuals(A: Array, V: Array, U: Array, scratch: Scratch) -> Array:
    """Return ``A - V U'``, computed in the scratch array named R."""
    R = np.matmul(V, U.T, out=scratch("R", A.shape))
    return np.subtract(A, R, out=R)


def without_large(A: Array, threshold: Array | float) -> Array:
    """Return A with entries beyond the threshold replaced by zeros."""
    return np.where(np.abs(A) > threshold, 0.0, A)


class Residuals(NamedTuple):
    """Residuals of rows, ``(n, d)``, and masks of ones and zeros for entries that count in a fit."""

    R: Array
    inliers: Array  # 1 for entries that are present and within the threshold
    counted: Array  # 1 for entries that count: all inliers, plus outliers that count when clipped
    pull: Array  # the residuals of counted entries, clipped, and zero elsewhere
    mostly_outliers: Array  # (n,), whether most entries of a row are beyond the threshold


def judge(
    R: Array,
    present: Array,
    threshold: Array | float,
    reach: Array | float = 0.0,
    scratch: Scratch | None = None,
) -> Residuals:
    """Decide from the residuals R which entries count in a fit.

    An entry that is missing or beyond the threshold does not count; it is treated as if its residual
    were zero. A row or column that is mostly beyond the threshold would then have too few entries to
    change its fit, and the fit of a large row or column would stay at zero forever. Therefore, the
    outliers in such a row do count, but they are clipped to the threshold. The outliers in such a
    column count too, clipped to the column's ``reach``. All other columns have a ``reach`` of 0.

    Masks are floats, because it is fastest to multiply by floats and to sum them through products.
    """
    new = scratch or Scratch()
    sizes = np.abs(R, out=new("pull", R.shape))
    within = np.less_equal(sizes, threshold, out=new("within", R.shape, bool))
    within &= present
    inliers = counted = new("inliers", R.shape)
    np.copyto(inliers, within)
    pull = np.multiply(R, inliers, out=sizes)
    mostly_outliers = 2 * row_sums(inliers) < _n_present(present)
    if mostly_outliers.any() or np.any(reach):
        limits = np.maximum(np.where(mostly_outliers[:, None], threshold, 0.0), reach)
        pull += np.where(present & ~within, np.clip(R, -limits, limits), 0.0)
        counted = np.where(within | (present & (limits > 0)), 1.0, 0.0)
    return Residuals(R, inliers, counted, pull, mostly_outliers)


def row_sums(A: Array) -> Array:
    """Sum each row, ``(n,)``, by a product, which takes a third of the time of `np.sum`."""
    return np.asarray(A @ np.ones(A.shape[1]))


def column_sums(A: Array) -> Array:
    """Sum each column, ``(d,)``."""
    return np.asarray(np.ones(len(A)) @ A)


def _n_present(present: Array) -> Array:
    """Count the values present in each row, ``(n,)``, with a shortcut if no value is missing."""
    if present.all():
        return np.full(len(present), present.shape[1])
    return np.asarray(np.count_nonzero(present, axis=1))


def stepped(
    V: Array, U: Array, rows: Residuals, scratch: Scratch | None = None
) -> tuple[Array, Array]:
    """Take one step of `fitted_scores`; return the scores V and the residuals R after it.

    R is changed in place, and so is ``rows.pull``.
    """
    new = scratch or Scratch()
    g = rows.pull @ U
    P = np.matmul(g, U.T, out=new("step", rows.R.shape))
    squares = _squares(g)
    known = np.multiply(P, rows.counted, out=rows.pull)
    # the best length along g for the counted entries; damping keeps it finite if none counts
    along = _squares(known) + _damping(rows.counted) * squares
    length = _ratio(squares, along, along > 0)
    P *= length
    return V + length * g, np.subtract(rows.R, P, out=rows.R)


def fitted_scores(V: Array, U: Array, rows: Residuals, scratch: Scratch | None = None) -> Array:
    """Improve the scores V toward the best fit to the counted entries in each row."""
    least = SCORE_TOL**2 * _squares(V)
    return np.asarray(V + _solve_rows(rows.counted, U, rows.pull @ U, least, scratch or Scratch()))


def _solve_rows(counted: Array, U: Array, gradients: Array, least: Array, new: Scratch) -> Array:
    """Solve (U'KU + damping) x = g for each row by conjugate gradients; K selects counted entries.

    If all entries count, one step is exact because U is orthonormal. Damping keeps a row's equations
    solvable if too few entries count. It shortens the step, but the next pass makes up for that. A row
    is solved if its squared residual is at most ``least``, ``(n, 1)``.
    """
    damping = _damping(counted)
    solution, residuals = np.zeros_like(gradients), gradients.copy()
    direction = gradients.copy()
    squares = _squares(residuals)
    # relative to the first residual too, or rows with scores near zero would never be solved
    least = np.maximum(least, SCORE_TOL**2 * squares)
    for _ in range(CG_STEPS):
        goes_on = squares > least
        if not goes_on.any():
            break
        fit = np.matmul(direction, U.T, out=new("fit", counted.shape))
        fit *= counted
        product = fit @ U + damping * direction
        length = _ratio(squares, (direction * product).sum(axis=1, keepdims=True), goes_on)
        solution += length * direction
        residuals -= length * product
        last, squares = squares, _squares(residuals)
        direction = residuals + _ratio(squares, last, goes_on) * direction
    return solution


def _damping(counted: Array) -> Array:
    """Return each row's damping, ``(n, 1)``, which is larger if fewer of its entries count."""
    share = row_sums(counted)[:, None] / max(1, counted.shape[1])
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

    The search starts from the scores V if they are given. Otherwise, it starts from the entries within
    each row's threshold, which is then at least ``first``.

    Large outliers hide smaller ones, and so must be removed first. Therefore, each row starts with its
    own threshold, which falls with the row's median residual. If the scores converge or the passes run
    out, the threshold falls anyway, because the median may itself be an outlier. A row's result does
    not depend on other rows or on features that are in no component.
    """
    scores = _scores(A, present & U.any(axis=1), U, threshold, first, V)
    R = A - scores @ U.T
    return scores, np.where(present & (np.abs(R) > threshold), R, 0.0)


def _scores(
    A: Array, present: Array, U: Array, threshold: float, first: float, V: Array | None
) -> Array:
    """Compute the scores for `separate` from the present entries."""
    scratch = Scratch()
    thresholds = np.full((len(A), 1), np.inf)
    if V is None:
        thresholds = _row_thresholds(A, present, max(first, threshold), scratch)
        V = without_large(A, thresholds) @ U
    else:
        V = V.copy()
    falls = np.zeros((len(A), 1), bool)
    unfinished, last = np.arange(len(A)), V
    # in the second half, thresholds fall in any case, so every row ends at the lowest one
    for done in range(2 * MAX_PASSES):
        R = residuals(A, last, U, scratch)
        by_median = _row_thresholds(R, present, threshold, scratch)
        by_median = np.minimum(by_median, thresholds)  # else, entries could come and go forever
        thresholds = np.where(falls, np.maximum(THRESHOLD_DECAY * thresholds, threshold), by_median)
        scores = fitted_scores(last, U, judge(R, present, thresholds, scratch=scratch), scratch)
        has_converged = _squares(scores - last) <= SCORE_TOL**2 * _squares(scores)
        V[unfinished] = scores
        is_lowest = thresholds <= threshold
        falls |= has_converged | is_lowest | (done >= MAX_PASSES)
        goes_on = ~(has_converged & is_lowest)[:, 0]
        if not goes_on.any():
            break
        last = scores
        if not goes_on.all():
            A, present, last = A[goes_on], present[goes_on], last[goes_on]
            unfinished, thresholds, falls = unfinished[goes_on], thresholds[goes_on], falls[goes_on]
    return V


def _row_thresholds(R: Array, present: Array, threshold: float, scratch: Scratch) -> Array:
    """Return each row's threshold, ``(n, 1)``: a multiple of its median residual.

    No threshold is below ``threshold``. The median is needed only in rows with few small residuals.
    """
    thresholds = np.full((len(R), 1), threshold)
    sizes = np.abs(R, out=scratch("sizes", R.shape))
    small = np.less_equal(sizes, threshold / TIMES_MEDIAN, out=scratch("small", R.shape, bool))
    small &= present
    n_present = _n_present(present)
    places = np.minimum(n_present // 2, max(0, R.shape[1] - 1))
    above = np.flatnonzero((np.count_nonzero(small, axis=1) <= places) & (n_present > 0))
    if len(above):
        sizes, places, is_present = sizes[above], places[above, None], present[above]
        if is_present.all():
            middle = int(places[0, 0])
            medians = np.partition(sizes, middle, axis=1)[:, middle : middle + 1]
        else:
            sizes[~is_present] = np.inf
            medians = np.take_along_axis(np.sort(sizes, axis=1), places, 1)
        thresholds[above] = np.maximum(TIMES_MEDIAN * medians, threshold)
    return thresholds


def _squares(V: Array) -> Array:
    """Return the squared length of each row, ``(n, 1)``."""
    return np.asarray(np.einsum("ij,ij->i", V, V)[:, None])
