"""Tell how large the sites' numbers are together, without telling anything about a single site.

    size_i + R_i,    R_i a random whole number in [0, size_i)

The size of an answer is its largest number, without the sign. Any float is a multiple of 2^-1074, so a
size is a whole number. A site adds a random whole number below it, and the results of all sites are
summed under masks, in a ring that is large enough for all floats. So the total is from one to two times
the sum of the sizes. It bounds the sum of all answers, so the coordinator can choose a ring for it.

Each site's part is uniform between its size and twice that, to the last of its bits, and so is the
share of the total that other sites have. No single site shows, unless one is so large that all others
together do not matter. Then the total tells that site's size, up to a factor of 2. In other questions,
the random numbers are others. So whoever asks often learns more exactly how large the sizes are, as by
a total of theirs with noise. If the same question is asked again, the site uses the same random number.
"""

from __future__ import annotations

import numpy as np

from fedpca.arrays import Array
from fedpca.privacy.rings import MAX_EXPONENT, UNIT_EXPONENT, WORD_BITS, Ring

MAX_SITES_BITS = 24  # the sizes of up to 2^24 sites add up without an overflow
_BITS = MAX_EXPONENT + 1 + MAX_SITES_BITS - UNIT_EXPONENT
N_WORDS = -(-_BITS // WORD_BITS)
SIZE_RING = Ring(N_WORDS * WORD_BITS, -UNIT_EXPONENT)
N_RANDOM_WORDS = N_WORDS + 1  # enough for a random number with any number of digits


def hidden_size(largest: float, words: Array) -> Array:
    """Return a random whole number from the size of an answer to twice that size, ``(N_WORDS,)``.

    ``words`` has random words, ``(N_RANDOM_WORDS,)``; only the site knows them.
    """
    numerator, denominator = largest.as_integer_ratio()
    # exact, because every float64 number is a whole multiple of 2^-1074
    size = (numerator << -UNIT_EXPONENT) // denominator
    size += (size * int.from_bytes(words.tobytes(), "little")) >> (WORD_BITS * len(words))
    return np.frombuffer(size.to_bytes(8 * N_WORDS, "little"), np.uint64).copy()


def told_exponent(total: Array) -> int:
    """Return the power of 2 that the total of all answers is below, or less if all are zero."""
    return UNIT_EXPONENT + int.from_bytes(total.tobytes(), "little").bit_length()
