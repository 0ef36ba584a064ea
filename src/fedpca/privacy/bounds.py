"""Find how large the sites' numbers are without learning more than the largest size.

There is one bin for each range of sizes. Each site puts random numbers into the bins up to the one that
its largest number falls into. The bins of all sites are summed under masks. A bin that no site has set
stays zero, and all other bins are random. So the total shows the largest size, and nothing about who
has it. If a question is repeated, a site must use the same random numbers again, because the difference
of two answers under the same masks would show the site's own size.

A bin has 32 bits, and two bins share a word: the smaller size is in the upper half. An overflow of the
lower half is added to the upper half. That does no harm, because a site that sets a bin also sets the
bins of all smaller sizes.

A bound may also be tried without asking for sizes first. Then each site raises a flag if its answer
exceeds the bound: a random word, summed in the same way. The total shows whether any site did.

No site ever sets the last word of its bins or flags. If the total of that word is not zero, the masks
do not cancel.
"""

from __future__ import annotations

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError

BIN_BITS = 8  # each bin covers this many powers of 2
LEAST_EXPONENT, MOST_EXPONENT = -512, 512
N_SIZES = (MOST_EXPONENT - LEAST_EXPONENT) // BIN_BITS
N_WORDS = N_SIZES // 2 + 1  # including a word that stays empty
N_FLAGS = 2  # including a word that stays empty
_UPPER, _LOWER = 0xFFFFFFFF00000000, 0x00000000FFFFFFFF  # halves of a word


def size_bins(values: Array, words: Array) -> Array:
    """Return random numbers in all bins up to that of the largest number, and zeros above.

    ``words`` has a random word for each word of the bins; only the site knows them.
    """
    bins = np.zeros(N_WORDS, np.uint64)
    largest = float(np.abs(values).max(initial=0.0))
    if largest > 0:
        n_set = max(_bin(largest) + 1, 1)
        if n_set > N_SIZES:
            raise InputError(
                f"numbers computed from the rows must be below 2^{MOST_EXPONENT}; rescale the rows"
            )
        # a sum of random bins is zero with probability 2^-32; the bound is then too small, and refused
        whole, has_half = divmod(n_set, 2)
        bins[:whole] = words[:whole]
        if has_half:
            bins[whole] = int(words[whole]) & _UPPER
    return bins


def flag_beyond(is_beyond: bool, words: Array) -> Array:
    """Return a site's flags: a random word if its answer exceeds the tried bound, else zero."""
    flags = np.zeros(N_FLAGS, np.uint64)
    if is_beyond:
        flags[0] = words[0]
    return flags


def masks_cancel(total: Array) -> bool:
    """Return whether the word that no site sets is zero, as it is if all masks cancel."""
    return int(total[-1]) == 0


def bound_from_bins(total: Array) -> float:
    """Return a bound on the largest number of any site, or 0 if all numbers are zero."""
    is_set = np.flatnonzero(total)
    if not is_set.size:
        return 0.0
    word = int(is_set[-1])
    n_set = 2 * word + (2 if int(total[word]) & _LOWER else 1)
    return 2.0 ** (LEAST_EXPONENT + BIN_BITS * n_set)


def _bin(largest: float) -> int:
    exponent = int(np.frexp(largest)[1])  # largest < 2^exponent
    return (exponent - 1 - LEAST_EXPONENT) // BIN_BITS
