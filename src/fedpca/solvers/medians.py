"""Medians over all sites from sums alone: histograms whose bins close in on the middle.

For each feature the sites count their values in bins between two bounds, and the counts are summed. The
bin that holds the middle one becomes the bounds of the next round, so b rounds of m bins bring the
median to the m^b-th part of the first bounds. These are mean and standard deviation: no median is
further from the mean than that. Values that are not there (NaN) are in no bin.

For one number a site, such as the size of its residuals, one round does: bins that grow by the
sixteenth root of 2 give its median to 2 %, whatever its size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpca.federation import Federation
from fedpca.framed import refuse_overflow
from fedpca.message import Array
from fedpca.question import question
from fedpca.solvers.robust_rows import rows_about

BINS = 64  # between two bounds
ROUNDS = 5  # of narrowing: 1e-9 of the first bounds
OCTAVES, PER_OCTAVE = 64, 16  # of one number, below and above a reference


@question(asks={"about": "float64 d"}, answers={"squares": "float64 d"})
def squares_present(site: Any, about: Array) -> dict[str, Array]:
    """The sum of squares about a point of each feature's values."""
    away, _ = rows_about(site, about)
    with np.errstate(over="ignore"):
        squares = np.einsum("ij,ij->j", away, away)
    refuse_overflow(squares)
    return {"squares": squares}


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
    place = np.clip(np.floor((values - low) / width * BINS), -1, BINS) + 1
    d = values.shape[1]
    cells = (place.astype(np.int64) + np.arange(d) * (BINS + 2))[present]
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


def place_of(value: float, reference: float, weight: int) -> Array:
    """One number of a site as counts in bins, ``weight`` in its own, around a reference."""
    counts = np.zeros(2 * OCTAVES * PER_OCTAVE, np.int64)
    if weight and reference > 0:
        with np.errstate(divide="ignore"):
            place = PER_OCTAVE * (np.log2(value / reference) + OCTAVES) if value > 0 else 0.0
        counts[int(np.clip(place, 0, len(counts) - 1))] = weight
    return counts


def median_place(counts: Array, reference: float) -> float:
    """The number in the middle of the summed counts."""
    upto = np.cumsum(counts)
    place = int(np.argmax(2 * upto >= upto[-1]))
    return 0.0 if not place else reference * 2 ** ((place + 0.5) / PER_OCTAVE - OCTAVES)
