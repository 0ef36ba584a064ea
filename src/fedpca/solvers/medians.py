"""Medians over all sites from sums alone: histograms whose bins close in on the middle.

For each feature the sites count their values in bins, and the counts are summed. The bin that holds the
middle one is divided in the next round. Bins are ranges of the first bits of a number, sign and
exponent before its digits: so they are fine where values are small, and one that is 1e15 times too
large costs no digit of the others. Six rounds bring the median to 2e-7 of itself, eleven to the last
bit. These are needed where an offset leaves too many values in one bin, or where many are alike.
Values that are not there (NaN) are in no bin.

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

BITS = 6  # that a round tells
FIRST_SHIFT, LAST_SHIFT = 60, 30  # bits that bins leave open, unless they are too full
FULL = 0.01  # of a feature's values
BINS = 1 << BITS
KINDS = ("values", "sizes", "sizes above zero")
SIGN = np.uint64(1 << 63)
PER_OCTAVE = 16  # bins of one number, where they are fine
EDGES = 2.0 ** np.concatenate(
    [np.arange(-64, -20), np.arange(-20 * PER_OCTAVE, 4 * PER_OCTAVE + 1) / PER_OCTAVE]
)  # in multiples of a reference
FINE = 2.0**-20  # from where they are
N_BINS = len(EDGES) + 1


@question(
    asks={
        "features": "int64 m",
        "about": "float64 m",
        "guess": "float64 m",
        "shift": "int64",
        "of": "int64",
    },
    answers={"counts": f"int64 m {BINS + 2}", "less": "int64 m", "equal": "int64 m"},
)
def count_values(
    site: Any, features: Array, about: Array, guess: Array, shift: Array, of: Array
) -> dict[str, Array]:
    """How many values of some features lie below the bin of the guess, in each part of it, and above.

    And how many are less than the guess, and equal to it. Of the values about a point, or of how far
    they are from it, or of those that are not at it.
    """
    values, present = rows_about(site, about, features)
    if KINDS[int(of)] != "values":
        values = np.abs(values)
    if KINDS[int(of)] == "sizes above zero":
        present &= values > 0
    part, own = (_ordered(x) >> np.uint64(shift) for x in (values, guess))
    bits, last = np.uint64(BITS), np.uint64(BINS - 1)
    inside = (part & last).astype(np.int64) + 1
    outside = np.where(part < own, 0, BINS + 1)
    m = len(features)
    cells = np.where(part >> bits == own >> bits, inside, outside) + np.arange(m) * (BINS + 2)
    return {
        "counts": np.bincount(cells[present], minlength=m * (BINS + 2)).reshape(m, BINS + 2),
        "less": (present & (values < guess)).sum(axis=0),
        "equal": (present & (values == guess)).sum(axis=0),
    }


def feature_medians(fed: Federation, features: Array, about: Array, *, of: str = "values") -> Array:
    """The median of some features' values about a point, or of their sizes, ``(m,)``; of none zero."""
    found = np.zeros(len(features))
    left = np.arange(len(features))
    for shift in range(FIRST_SHIFT, -1, -BITS):
        guess = found[left]
        answer = fed.sum(
            count_values,
            features=features[left],
            about=about[left],
            guess=guess,
            shift=np.int64(shift),
            of=np.int64(KINDS.index(of)),
        )
        counts, less = answer["counts"], answer["less"]
        upto = np.cumsum(counts, axis=1)
        n = upto[:, -1]
        more = n - less - answer["equal"]
        is_exact = ((answer["equal"] > 0) & (2 * np.maximum(less, more) <= n)) | (n == 0)
        middle = np.argmax(2 * upto >= n[:, None], axis=1)
        found[left] = np.where(is_exact, guess, _narrowed(guess, middle - 1, shift))
        in_bin = np.take_along_axis(counts, middle[:, None], 1)[:, 0]
        is_near = (in_bin <= np.maximum(FULL * n, 1)) & (shift <= LAST_SHIFT)
        left = left[~(is_exact | is_near)]
        if not len(left):
            break
    return found


def _ordered(values: Array) -> Array:
    """The bits of numbers as integers that are in the order of the numbers."""
    bits = (values + 0.0).view(np.uint64)  # of -0.0 those of 0.0
    return np.where(bits & SIGN, ~bits, bits | SIGN)


def _narrowed(guess: Array, part: Array, shift: int) -> Array:
    """The number with the fewest digits in a part of the bin of the guess: its end next to zero."""
    width, bits = np.uint64(shift), np.uint64(BITS)
    first = (((_ordered(guess) >> width) >> bits << bits) | part.astype(np.uint64)) << width
    rest = (np.uint64(1) << width) - np.uint64(1)
    return np.where(first & SIGN, first ^ SIGN, ~(first | rest)).view(np.float64)


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
