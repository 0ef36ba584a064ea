"""Find how large the sites' numbers are without learning more than the largest size.

Each site sets the bins of all sizes up to that of its largest number to random words. The words of all
sites are summed under masks. A bin that no site has set stays zero, and all other bins are random. So
the total shows the largest size, and nothing about who has it. The same question must get the same
words, because the difference of two answers under the same masks would show a site's own size.

No site ever sets the last bin. If its total is not zero, the masks do not cancel.
"""

from __future__ import annotations

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError

BIN_BITS = 8  # each bin covers this many powers of 2
LEAST_EXPONENT, MOST_EXPONENT = -512, 512
N_SIZES = (MOST_EXPONENT - LEAST_EXPONENT) // BIN_BITS
N_BINS = N_SIZES + 1  # and one that stays empty


def size_bins(values: Array, words: Array) -> Array:
    """Return random words in the bins up to the size of the largest number, and zeros above.

    ``words`` has a random word for each bin, which nobody but the site knows.
    """
    bins = np.zeros(N_BINS, np.uint64)
    largest = float(np.abs(values).max(initial=0.0))
    if largest > 0:
        n_set = max(_bin(largest) + 1, 1)
        if n_set > N_SIZES:
            raise InputError(f"the rows lead to numbers beyond 2^{MOST_EXPONENT}; rescale them")
        # a sum of random words is zero with probability 2^-64
        bins[:n_set] = words[:n_set]
    return bins


def masks_cancel(total: Array) -> bool:
    """Return whether the bin that no site sets is empty, as it is without masks."""
    return int(total[N_SIZES]) == 0


def bound_from_bins(total: Array) -> float:
    """Return a bound on the largest number of any site, or 0 if all numbers are zero."""
    is_set = np.flatnonzero(total)
    if not is_set.size:
        return 0.0
    return 2.0 ** (LEAST_EXPONENT + BIN_BITS * (int(is_set[-1]) + 1))


def _bin(largest: float) -> int:
    exponent = int(np.frexp(largest)[1])  # largest < 2^exponent
    return (exponent - 1 - LEAST_EXPONENT) // BIN_BITS
