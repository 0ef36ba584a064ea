"""Find rows that lie apart along a component: outliers as rows, not as entries.

    v = a row's score,   m = the median of v,   s = 1.48 times the median of |v - m|

If many rows are off in the same direction, none of their entries stands out: the direction becomes
a component. But their scores on it lie apart from those of all other rows: there is a wide gap in
the distances ``|v - m| / s``, and the rows beyond it cause much of the component's variance. Such
rows are left out, and the fit starts again without them.

If there is no gap, then the scores have a long tail, and it is not clear where it begins. The rows
stay, but a component is reported if rows whose scores are more than ``5 s`` from m cause
most of its variance.

One round of summed histograms shows the scores on all components.

Source: the outlyingness along a direction is that of Stahel (1981) and Donoho (1982); compare Hubert,
Rousseeuw, and Vanden Branden, "ROBPCA: a new approach to robust principal component analysis" (2005).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.protocol.question import question
from fedpca.solvers.robust.at_site import NO_ROWS, Scores
from fedpca.solvers.robust.blocks import PresentRows, present_rows
from fedpca.solvers.robust.contract import NORMAL
from fedpca.solvers.robust.medians import thinned
from fedpca.solvers.robust.schedule import forget_thresholds

if TYPE_CHECKING:
    from fedpca.site.site import Site

N_BINS = 2048
REACH = 16.0  # bins reach this many root mean squares of the scores on either side
MIN_ROWS = 15  # with fewer, no row can be said to be far from the others
# distances from the median, in robust standard deviations
FAR = 5.0
NEAR = 2.5  # only gaps beyond this distance count
MIN_GAP = 4.0
MIN_GAP_SHARE = 0.3  # a gap is at least this share of the distance where it ends
MIN_VARIANCE = 0.25  # share of a component's variance that rows beyond a gap must cause
MAX_APART = 0.45  # share of rows that may lie apart; with more, the others might be the ones apart
DEPENDS = 0.5  # a component depends on its far rows if they cause a larger share of its variance


@dataclass(frozen=True)
class FarRows:
    """For each component, bounds on the scores of rows that are not far, and what far rows cause."""

    axes: Array  # (r, r), turns the sites' scores into scores on the components
    low: Array  # (r,), minus infinity on components without rows that lie apart
    high: Array  # (r,)
    n: Array  # (r,), the number of far rows
    variance: Array  # (r,), the share of the variance that far rows cause

    @property
    def is_apart(self) -> Array:
        """Return on which components rows lie apart, ``(r,)``."""
        return np.isfinite(self.high)


def find_far_rows(fed: Federation, axes: Array, squares: Array) -> FarRows:
    """Compare the sites' scores with their medians; ``squares`` are the scores' mean squares, ``(r,)``.

    ``axes`` turns the scores that sites remember into scores on the components.
    """
    widths = 2 * REACH / N_BINS * np.sqrt(np.maximum(squares, np.finfo(float).tiny))
    counts = fed.sum(count_scores, axes=axes, widths=widths)["counts"]
    found = [_far(*each) for each in zip(counts, widths, strict=True)]
    return FarRows(axes, *np.array(found).T)


def leave_out(fed: Federation, far: FarRows) -> tuple[int, Array]:
    """Have sites leave out rows that lie apart; count them, and the values left in each feature."""
    answer = fed.sum(leave_out_rows, axes=far.axes, low=_finite(far.low), high=_finite(far.high))
    return int(answer["left_out"]), answer["present"]


def _finite(bounds: Array) -> Array:
    """Replace infinite bounds, which a message cannot carry, with the largest numbers."""
    return np.nan_to_num(bounds)


def _far(counts: Array, width: float) -> tuple[float, float, float, float]:
    """Return the two scores between which rows are near, and the number and variance of far rows."""
    if counts.sum() < MIN_ROWS:
        return -np.inf, np.inf, 0.0, 0.0
    scores = width * (np.arange(N_BINS) - (N_BINS - 1) / 2)
    middle = _weighted_median(scores, counts)
    away = np.abs(scores - middle)
    # if half of the rows share a bin, nothing is known below the width of a bin
    deviation = NORMAL * max(_weighted_median(away, counts), width / 2)
    squares = counts * away**2 / max((counts * away**2).sum(), np.finfo(float).tiny)
    limit = _gap(away, counts, squares, deviation)
    is_far = away > min(limit, FAR * deviation)
    return middle - limit, middle + limit, float(counts[is_far].sum()), float(squares[is_far].sum())


def _gap(away: Array, counts: Array, squares: Array, deviation: float) -> float:
    """Return a distance within the gap before rows that lie apart, or infinity if none do."""
    beyond = np.sort(away[(counts > 0) & (away > NEAR * deviation)])
    starts = np.append(NEAR * deviation, beyond[:-1]) if beyond.size else beyond
    # the tails of ordinary rows have gaps as well, wider ones farther out
    is_wide = beyond - starts >= np.maximum(MIN_GAP * deviation, MIN_GAP_SHARE * beyond)
    for start, end in zip(starts[is_wide], beyond[is_wide], strict=True):
        is_apart = away >= end
        is_few = counts[is_apart].sum() <= MAX_APART * counts.sum()
        if is_few and squares[is_apart].sum() >= MIN_VARIANCE:
            return float(start + end) / 2
    return np.inf


def _weighted_median(values: Array, counts: Array) -> float:
    """Return the median of values that occur these many times."""
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(counts[order])
    return float(values[order][np.argmax(2 * cumulative >= cumulative[-1])])


@question(
    doing="looking for rows that lie apart",
    asks={"axes": "float64 r r, orthonormal", "widths": "float64 r, positive"},
    answers={"counts": f"int64 r {N_BINS}, count"},
)
def count_scores(site: Site, axes: Array, widths: Array) -> dict[str, Any]:
    """Count the rows' scores on each component in bins of these widths about zero.

    Rows that are mostly outliers do not count, since they do not affect the components. The counts
    are in multiples of the policy's ``min_count``.
    """
    scores, r = site.recall(Scores), len(widths)
    V = np.delete(scores.V, scores.mostly_outliers, axis=0) @ axes
    bins = np.clip(np.floor(V / widths + N_BINS / 2), 0, N_BINS - 1).astype(np.int64)
    cells = (bins + N_BINS * np.arange(r)).ravel()
    counts = np.bincount(cells, minlength=r * N_BINS).reshape(r, N_BINS)
    return {"counts": thinned(counts, site.policy.min_count)}


@question(
    doing="leaving out rows that lie apart",
    asks={"axes": "float64 r r, orthonormal", "low": "float64 r", "high": "float64 r"},
    answers={"left_out": "int64, count", "present": "int64 d, count"},
    remembers=True,
)
def leave_out_rows(site: Site, axes: Array, low: Array, high: Array) -> dict[str, Any]:
    """From now on, leave out rows with a score outside these bounds; count them and the values left.

    A site leaves out no rows if it would leave out fewer than its policy's ``min_count``, or keep
    some but fewer than that: sums with and without these rows would reveal their values.
    """
    scores, rows = site.recall(Scores), site.recall(PresentRows)
    V = scores.V @ axes
    is_far = np.asarray(((low > V) | (high < V)).any(axis=1))
    is_far[scores.mostly_outliers] = False
    least = site.policy.min_count
    n_left = rows.n - int(is_far.sum())
    if is_far.sum() < least or 0 < n_left < least:
        is_far[:] = False
    before = NO_ROWS if rows.left_out is None else rows.left_out
    counted = np.delete(np.arange(rows.n + len(before)), before)
    left_out = np.union1d(before, counted[is_far])
    n = len(counted) - int(is_far.sum())
    which = PresentRows(n, rows.order, left_out, rows.is_whole)
    site.remember(which)
    present = np.zeros(site.rows.n_features, np.int64)
    for values in present_rows(site, which):
        present += np.count_nonzero(~np.isnan(values), axis=0)
    present[present < least] = 0
    forget_thresholds(site)
    return {"left_out": np.int64(is_far.sum()), "present": present}
