"""Medians over all sites from sums alone: histograms whose bins close in on the middle.

For each feature the sites count their values in bins between two bounds, and the counts are summed. The
bin that holds the middle one becomes the bounds of the next round, so b rounds of m bins bring the
median to the m^b-th part of the first bounds. These are mean and standard deviation: no median is
further from the mean than that. Values that are not there (NaN) are in no bin.

For one number a site, such as the size of its residuals, one round does. Bins grow by the sixteenth
root of 2 where a median to 2 % is wanted, from a millionth of a reference to 16 times it, and below
that by 2: 3 kB in all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpca.federation import Federation
from fedpca.message import Array
from fedpca.question import question
from fedpca.solvers.robust_rows import rows_about

BINS = 64  # between two bounds
ROUNDS = 5  # of narrowing: 1e-9 of the first bounds
PER_OCTAVE = 16  # bins of one number, where they are fine
EDGES = 2.0 ** np.concatenate(
    [np.arange(-64, -20), np.arange(-20 * PER_OCTAVE, 4 * PER_OCTAVE + 1) / PER_OCTAVE]
)  # in multiples of a reference
N_BINS = len(EDGES) + 1


@question(
    asks={"about": "float64 d", "low": "float64 d", "high": "float64 d", "sizes": "int64"},
    answers={"counts": "int64 d b"},
)
def count_values(
    site: Any, about: Array, low: Array, high: Array, sizes: Array
) -> dict[str, Array]:
    """How many values of each feature lie below the bounds, in each bin between them, and above.

    Of the values about a point, or with ``sizes`` of how far they are from it.
    """
    values, present = rows_about(site, about)
    if sizes:
        values = np.abs(values)
    width = np.where(high > low, high - low, 1.0)
    own_bin = np.clip(np.floor((values - low) / width * BINS), -1, BINS) + 1
    d = values.shape[1]
    cells = (own_bin.astype(np.int64) + np.arange(d) * (BINS + 2))[present]
    counts = np.bincount(cells, minlength=d * (BINS + 2))
    return {"counts": counts.reshape(d, BINS + 2)}


def feature_medians(
    fed: Federation, about: Array, low: Array, high: Array, *, sizes: bool = False
) -> Array:
    """The median of each feature's values about a point, or of their sizes, ``(d,)``."""
    low, high = low.copy(), high.copy()
    for _ in range(ROUNDS):
        counts = fed.sum(count_values, about=about, low=low, high=high, sizes=np.int64(sizes))[
            "counts"
        ]
        upto = np.cumsum(counts, axis=1)
        middle = np.argmax(2 * upto >= upto[:, -1:], axis=1)  # 0 is below the bounds
        width = (high - low) / BINS
        chosen = np.clip(middle - 1, 0, BINS - 1)
        low, high = low + chosen * width, low + (chosen + 1) * width
    return np.asarray((low + high) / 2)


def as_bins(value: float, reference: float, weight: int) -> Array:
    """One number of a site as counts in bins, ``weight`` in its own, around a reference."""
    counts = np.zeros(N_BINS, np.int64)
    if reference > 0:
        counts[np.searchsorted(EDGES, value / reference)] = weight
    return counts


def median_of_bins(counts: Array, reference: float) -> float:
    """The number in the middle of the summed counts; zero where it is below all bins."""
    upto = np.cumsum(counts)
    middle = int(np.argmax(2 * upto >= upto[-1]))
    if not middle:
        return 0.0
    low, high = EDGES[middle - 1], EDGES[min(middle, len(EDGES) - 1)]
    return float(reference * np.sqrt(low * high))
