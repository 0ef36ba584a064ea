"""Find medians over all sites using only sums, with histograms that close in on the middle.

The sites count each feature's values in bins, and the counts are summed. The next round divides the
bin that holds the middle value. A bin holds the numbers that begin with the same bits: the sign and
the exponent come before the digits. So bins are fine where values are small, and a value that is
1e15 times too large costs the other values no digits. Six rounds find the median to a relative
error of 2e-7, and eleven rounds find it to the last bit. The later rounds are needed if an offset
puts too many values into one bin or if many values are equal. Missing values (NaN) are not counted.

No histogram may close in on the value of one row. So a site with twenty values or more divides a
bin only if the bin holds at least five of them. If the bin holds fewer, the site counts them as if
they were spread evenly over it. The median found may then have up to four values of each site on
the wrong side. A site with fewer than twenty values protects them only if its policy says so.

For one number per site, such as the size of its residuals, one round is enough. From a millionth of a
reference to 16 times the reference, each bin is wider than the one before by a factor of 2^(1/16),
which gives a median to within 2 %. Below that range, the factor is 2. One such answer takes 3 kB.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.linalg.scratch import Scratch

BITS = 6  # bits of a median that are found in a round
FIRST_SHIFT = 60  # low bits that the first round's bins ignore
SHIFTS = range(FIRST_SHIFT, -1, -BITS)
LAST_SHIFT = 30  # low bits that may remain unknown at the end, unless the bin is too full
MIN_CELL = 5  # a site with many values divides a bin only if the bin holds at least this many
MANY = 20  # a site with at least this many values divides only bins with at least MIN_CELL of them
MAX_BIN_SHARE = 0.01  # share of a feature's values that the last bin may hold
BINS = 1 << BITS
KINDS = ("values", "sizes", "sizes above zero")
SIGN = np.uint64(1 << 63)
PER_OCTAVE = 16  # fine bins between a number and its double
# edges of bins, relative to the reference
EDGES = 2.0 ** np.concatenate(
    [np.arange(-64, -20), np.arange(-20 * PER_OCTAVE, 4 * PER_OCTAVE + 1) / PER_OCTAVE]
)
FINE = 2.0**-20  # bins are fine above this multiple of the reference
N_BINS = len(EDGES) + 1


def count_in_bins(
    values: Array,
    present: Array,
    guess: Array,
    shift: int,
    kind: str,
    undivided: Array | None = None,
    scratch: Scratch | None = None,
) -> tuple[Arrays, Array]:
    """Count values, ``(n, m)``, below the bin of a guess, in each part of that bin, and above it.

    Also count the values less than the guess and the values equal to it, and return how many are in the
    guess's bin of each histogram so far, ``(levels, m)``. ``kind`` selects what is counted: values,
    their sizes, or sizes above zero. Values in undivided bins (`undivided_bins`) do not count.
    """
    new = scratch or Scratch()
    ordered, present = _of_kind(values, present, kind, new)
    own, shape, m = _ordered(guess), values.shape, len(guess)
    away = np.bitwise_xor(ordered, own, out=new("away", shape, np.uint64))
    if undivided is not None and (undivided >= 0).any():
        present = present & ~((undivided >= 0) & (away <= _other_bits(undivided)))
    inside = []
    for level in range(FIRST_SHIFT, shift - 1, -BITS):
        is_inside = np.less_equal(away, _other_bits(level), out=new("inside", shape, bool))
        is_inside &= present
        inside.append(_in_columns(is_inside))
    less, equal = _in_columns(present & (ordered < own)), _in_columns(present & (away == 0))
    width, bits = np.uint64(shift), np.uint64(BITS)
    first = own >> width >> bits << bits << width  # the least number in the bin
    counts = np.zeros((m, BINS + 2), np.int64)
    counts[:, 0] = _in_columns(present & (ordered < first))
    part = np.right_shift(ordered, width, out=away)
    part &= np.uint64(BINS - 1)
    part += np.arange(m, dtype=np.uint64) * np.uint64(BINS)
    cells = part.view(np.int64)[is_inside]
    counts[:, 1:-1] = np.bincount(cells, minlength=m * BINS).reshape(m, BINS)
    counts[:, -1] = _in_columns(present) - counts.sum(axis=1)
    return {"counts": counts, "less": less, "equal": equal}, np.array(inside)


def undivided_bins(inside: Array, min_count: int) -> tuple[Array, Array]:
    """Return which histogram's bin holds too few values to be divided, or -1, and how many it holds.

    Both arrays are ``(m,)``, one entry per feature. ``min_count`` is that of the site's policy.
    """
    least = np.maximum(min_count, np.where(inside[0] >= MANY, MIN_CELL, 1))
    few = (inside > 0) & (inside < least)
    level = np.argmax(few, axis=0)
    number = np.take_along_axis(inside, level[None], 0)[0]
    has_few = few.any(axis=0)
    return np.where(has_few, np.array(SHIFTS)[level], -1), np.where(has_few, number, 0)


def add_spread(counted: Arrays, guess: Array, shift: int, bins: Array, number: Array) -> None:
    """Count the values in undivided bins as if they were spread evenly over their bin."""
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


def _of_kind(values: Array, present: Array, kind: str, new: Scratch) -> tuple[Array, Array]:
    """Return the ordered bits of values or of their sizes, and which of them count."""
    if kind == "values":
        return _ordered(values, new), present
    sizes = np.abs(values, out=new("sizes", values.shape))
    if kind == "sizes above zero":
        present = present & (sizes > 0)
    return _ordered(sizes, new), present


def _in_columns(mask: Array) -> Array:
    """Count the entries of a mask in each column; in blocks of few rows, 16 bits hold the counts."""
    if len(mask) >= 1 << 16:
        return np.asarray(np.count_nonzero(mask, axis=0))
    counts = np.add.reduce(mask.view(np.uint8), axis=0, dtype=np.uint16)
    return np.asarray(counts, np.int64)


def same_bin(values: Array, others: Array, shift: Array | int) -> Array:
    """Return which values are in the same bin as ``others``, for bins that the shift divides."""
    away = _ordered(values) ^ _ordered(others)
    return np.asarray(away <= _other_bits(shift))


def _other_bits(shift: Array | int) -> Array:
    """Return the bits in which numbers may differ within a bin that this shift's histogram divides."""
    low_bits = np.asarray(shift, np.int64) + BITS
    ones = (np.uint64(1) << np.minimum(low_bits, 63).astype(np.uint64)) - np.uint64(1)
    return np.where(low_bits < 64, ones, ~np.uint64(0))


def thinned(counts: Array, least: int) -> Array:
    """Return a histogram, ``(m, b)``, whose counts are multiples of ``least``.

    Each group of ``least`` consecutive values counts where its middle value is. The remainder of a
    line's total is not counted, so no cell stands for fewer than ``least`` values.
    """
    if least <= 1:
        return counts
    cumulative = np.cumsum(counts, axis=1)
    whole = cumulative[:, -1:] // least * least
    rounded = np.minimum((cumulative + least // 2) // least * least, whole)
    return np.diff(rounded, axis=1, prepend=0)


def _ordered(values: Array, scratch: Scratch | None = None) -> Array:
    """Return the bits of numbers as integers that sort like the numbers."""
    new = scratch or Scratch()
    numbers = np.add(values, 0.0, out=new("ordered", values.shape))  # turns -0.0 into 0.0
    bits = numbers.view(np.int64)
    # flip all bits of negative numbers, but only the sign bit of others
    flipped = np.right_shift(bits, 63, out=new("flipped", values.shape, np.int64))
    flipped |= np.int64(-1 << 63)
    bits ^= flipped
    return bits.view(np.uint64)


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
