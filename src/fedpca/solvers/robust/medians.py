"""Find medians over all sites from sums alone, with histograms that close in on the middle.

The sites count each feature's values in bins, and the counts are summed. The next round divides the bin
that holds the middle value. A bin is a range of a number's leading bits: the sign and the exponent come
before the digits. So bins are fine where values are small, and a value that is 1e15 times too large
costs the other values no digits. Six rounds find the median to a relative error of 2e-7, and eleven
rounds find it to the last bit. The later rounds are needed if an offset puts too many values into one
bin or if many values are equal. Missing values (NaN) are not counted.

No histogram shall close in on the value of one row. So a site with twenty values or more divides a bin
only if it holds at least five of them. The site spreads fewer values evenly over their bin. The number
found then has up to four values of each site on the wrong side. A site with fewer values protects them
only if its policy says so.

For one number per site, such as the size of its residuals, one round is enough. From a millionth of a
reference to 16 times the reference, each bin grows by a factor of the sixteenth root of 2, which gives
a median to within 2 %. Below that range, the factor is 2. One such answer takes 3 kB.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedpca.arrays import Array, Arrays

BITS = 6  # bits of a median that are found in a round
FIRST_SHIFT = 60  # low bits that the first round's bins ignore
SHIFTS = range(FIRST_SHIFT, -1, -BITS)
LAST_SHIFT = 30  # low bits that may remain unknown at the end, unless the bin is too full
MIN_CELL = 5  # a site with many values divides a bin only if it holds at least this many
MANY = 20  # values of a site
MAX_BIN_SHARE = 0.01  # share of a feature's values that the last bin may hold
BINS = 1 << BITS
KINDS = ("values", "sizes", "sizes above zero")
SIGN = np.uint64(1 << 63)
PER_OCTAVE = 16  # fine bins between a number and its double
EDGES = 2.0 ** np.concatenate(
    [np.arange(-64, -20), np.arange(-20 * PER_OCTAVE, 4 * PER_OCTAVE + 1) / PER_OCTAVE]
)  # relative to the reference
FINE = 2.0**-20  # bins are fine above this multiple of the reference
N_BINS = len(EDGES) + 1


def count_in_bins(
    values: Array,
    present: Array,
    guess: Array,
    shift: int,
    kind: str,
    undivided: Array | None = None,
) -> Arrays:
    """Count values, ``(n, m)``, below the bin of a guess, in each part of it, and above it.

    Also count the values less than the guess and the values equal to it. ``kind`` selects what is
    counted: values, their sizes, or sizes above zero. Values in bins that are not divided
    (`undivided_bins`) do not count.
    """
    values, present = _of_kind(values, present, kind)
    ordered, own = _ordered(values), _ordered(guess)
    away = ordered ^ own  # in the bin of the guess, the leading bits are the same
    if undivided is not None and (undivided >= 0).any():
        present = present & ~((undivided >= 0) & _shares_bin(away, undivided))
    m, width, bits = len(guess), np.uint64(shift), np.uint64(BITS)
    first = own >> width >> bits << bits << width  # the least number in the bin
    inside = np.flatnonzero(present & _shares_bin(away, shift))
    part = (ordered.take(inside) >> width) & np.uint64(BINS - 1)
    cells = part.astype(np.int64) + (inside % max(1, m)) * BINS
    counts = np.zeros((m, BINS + 2), np.int64)
    counts[:, 1:-1] = np.bincount(cells, minlength=m * BINS).reshape(m, BINS)
    counts[:, 0] = _in_columns(present & (ordered < first))
    counts[:, -1] = _in_columns(present) - counts.sum(axis=1)
    return {
        "counts": counts,
        "less": _in_columns(present & (ordered < own)),
        "equal": _in_columns(present & (away == 0)),
    }


def inside_bins(values: Array, present: Array, guess: Array, shift: int, kind: str) -> Array:
    """Count the values in the guess's bin of each histogram so far, ``(levels, m)``."""
    values, present = _of_kind(values, present, kind)
    away = _ordered(values) ^ _ordered(guess)
    levels = [at for at in SHIFTS if at >= shift]
    return np.array([_in_columns(present & _shares_bin(away, at)) for at in levels])


def may_be_undivided(counts: Array, min_count: int) -> bool:
    """Return whether a bin of a histogram so far may hold too few values to be divided.

    Each bin lies in the one before, so a look at the last one, from `count_in_bins`, may be enough.
    """
    inside, n = counts[:, 1:-1].sum(axis=1), counts.sum(axis=1)
    return bool((inside < _least_in_bin(n, min_count)).any())


def _least_in_bin(n: Array, min_count: int) -> Array:
    """Return how many of a feature's n values a bin must hold to be divided."""
    return np.maximum(min_count, np.where(n >= MANY, MIN_CELL, 1))


def undivided_bins(inside: Array, min_count: int) -> tuple[Array, Array]:
    """Return which histogram's bin holds too few values to be divided, or -1, and how many it holds.

    Both are ``(m,)``. ``min_count`` is that of the site's policy.
    """
    least = _least_in_bin(inside[0], min_count)
    few = (inside > 0) & (inside < least)
    level = np.argmax(few, axis=0)
    number = np.take_along_axis(inside, level[None], 0)[0]
    has_few = few.any(axis=0)
    return np.where(has_few, np.array(SHIFTS)[level], -1), np.where(has_few, number, 0)


def add_spread(counted: Arrays, guess: Array, shift: int, bins: Array, number: Array) -> None:
    """Count the values in bins that are not divided as if they were spread evenly over their bin."""
    for j in np.flatnonzero(bins >= 0):
        own, width = int(_ordered(guess[j : j + 1])[0]), int(bins[j]) + BITS
        start = own >> width << width
        for i in range(int(number[j])):
            place = start + ((2 * i + 1) << width) // (2 * int(number[j]))
            part, middle = place >> shift, own >> shift
            is_inside = part >> BITS == middle >> BITS
            cell = part % BINS + 1 if is_inside else 0 if part < middle else BINS + 1
            counted["counts"][j, cell] += 1
            counted["less"][j] += place < own


def feature_medians(
    ask: Callable[..., Arrays], features: Array, about: Array, *, of: str = "values"
) -> Array:
    """Find the medians of some features' values about a point, or of their sizes, ``(m,)``.

    ``ask`` returns the counts from `count_in_bins`, summed over sites. If a feature has no values, its
    median is zero.
    """
    medians = np.zeros(len(features))
    unfinished = np.arange(len(features))
    for shift in SHIFTS:
        guess = medians[unfinished]
        answer = ask(
            features=features[unfinished],
            about=about[unfinished],
            guess=guess,
            shift=np.int64(shift),
            of=np.int64(KINDS.index(of)),
        )
        counts, less = answer["counts"], answer["less"]
        cumulative = np.cumsum(counts, axis=1)
        n = cumulative[:, -1]
        more = n - less - answer["equal"]
        is_exact = ((answer["equal"] > 0) & (2 * np.maximum(less, more) <= n)) | (n == 0)
        middle = np.argmax(2 * cumulative >= n[:, None], axis=1)
        medians[unfinished] = np.where(is_exact, guess, _narrowed(guess, middle - 1, shift))
        in_bin = np.take_along_axis(counts, middle[:, None], 1)[:, 0]
        is_near = (in_bin <= np.maximum(MAX_BIN_SHARE * n, 1)) & (shift <= LAST_SHIFT)
        unfinished = unfinished[~(is_exact | is_near)]
        if not len(unfinished):
            break
    return medians


def _of_kind(values: Array, present: Array, kind: str) -> tuple[Array, Array]:
    """Return the values or their sizes, and which of them count."""
    if kind != "values":
        values = np.abs(values)
    return values, present & (values > 0) if kind == "sizes above zero" else present


def _in_columns(mask: Array) -> Array:
    """Count the entries of a mask in each column; a block has too few rows for 16 bits."""
    if len(mask) >= 1 << 16:
        return np.asarray(np.count_nonzero(mask, axis=0))
    return np.add.reduce(mask.view(np.uint8), axis=0, dtype=np.uint16).astype(np.int64)


def same_bin(values: Array, others: Array, shift: Array | int) -> Array:
    """Return which values are in the bin that a histogram of this shift divides around the others."""
    return _shares_bin(_ordered(values) ^ _ordered(others), shift)


def _shares_bin(away: Array, shift: Array | int) -> Array:
    """Return which numbers, given by the bits in which they differ from others, are in their bins."""
    low_bits = np.asarray(shift, np.int64) + BITS
    width = np.minimum(low_bits, 63).astype(np.uint64)
    return np.asarray((away >> width == 0) | (low_bits >= 64))


def thinned(counts: Array, least: int) -> Array:
    """Return a histogram, ``(m, b)``, in multiples of ``least``, each where its middle value is.

    What remains of each line's total is not counted, so no cell stands on fewer than ``least`` values.
    """
    if least <= 1:
        return counts
    cumulative = np.cumsum(counts, axis=1)
    whole = cumulative[:, -1:] // least * least
    rounded = np.minimum((cumulative + least // 2) // least * least, whole)
    return np.diff(rounded, axis=1, prepend=0)


def _ordered(values: Array) -> Array:
    """Return the bits of numbers as integers that sort like the numbers."""
    bits = (values + 0.0).view(np.int64)  # adding 0.0 turns -0.0 into 0.0
    flipped = bits >> 63  # all bits of a negative number, else none
    flipped |= np.int64(-1 << 63)  # and always the sign
    return np.asarray((bits ^ flipped).view(np.uint64))


def _narrowed(guess: Array, part: Array, shift: int) -> Array:
    """Return the number with the fewest digits in a part of the guess's bin: the end near zero."""
    width, bits = np.uint64(shift), np.uint64(BITS)
    first = (((_ordered(guess) >> width) >> bits << bits) | part.astype(np.uint64)) << width
    rest = (np.uint64(1) << width) - np.uint64(1)
    return np.where(first & SIGN, first ^ SIGN, ~(first | rest)).view(np.float64)


def as_bins(value: float, reference: float, weight: int) -> Array:
    """Return bin counts around a reference: ``weight`` in the bin of a site's number, else zero."""
    counts = np.zeros(N_BINS, np.int64)
    if reference > 0:
        counts[np.searchsorted(EDGES, value / reference)] = weight
    return counts


def median_of_bins(counts: Array, reference: float) -> float:
    """Return the median from the summed counts, or zero if it lies below all bins."""
    cumulative = np.cumsum(counts)
    middle = int(np.argmax(2 * cumulative >= cumulative[-1]))
    if not middle:
        return 0.0
    low, high = EDGES[middle - 1], EDGES[min(middle, len(EDGES) - 1)]
    return float(reference * np.sqrt(low * high))
