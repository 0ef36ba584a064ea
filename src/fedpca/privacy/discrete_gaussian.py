"""Draw noise from the discrete Gaussian distribution, without rounding errors.

    P[X = x]  proportional to  exp(-x^2 / (2 s))    for whole x,  s = sigma^2

A trial proposes ``|x| = v t + u`` and a sign. Here t is the power of 2 with ``t/2 < sigma <= t``, u is
uniform below t, and v has probability ``2^-(v+1)``. The trial is kept with probability ``p = 2^(v-1)
exp((s - x^2) / (2 s))``.

Exactness: A kept x has weight ``2^-(v+1) p``, which is ``exp(-x^2 / (2 s))`` times a constant. No p
exceeds 1: since ``|x| >= v sigma``, p is at most ``2^(v-1) exp((1 - v^2) / 2)``, which is 1 for v = 1
and less for any other v. Minus zero is dropped, so zero counts once. Trials with v >= 64 are dropped
too: there, the discrete Gaussian has probability below ``2^-2900``. So ``|x| < 64 t <= 2^61`` always.
To keep a trial with probability p, draw a uniform real number, and keep the trial if the number is
below p. The first 64 bits of the number and a p in float64 decide, unless the two are closer than an
error bound. Then both get more digits until the answer is certain.

Whole numbers: The sums that noise in floating point can reach depend on the value that it is added to,
and so reveal that value (Mironov 2012). A whole number plus whole noise is exact and can be any whole
number.

Source: Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy" (2020), for the
noise; Karney, "Sampling exactly from the normal distribution" (2016), for blocks as wide as sigma and
for bits drawn when needed; Mironov, "On significance of the least significant bits for differential
privacy" (2012).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError

MAX_VARIANCE = 1 << 110
BATCH_TRIALS = 1 << 15  # the words of so many trials fit into a processor's cache
DRAWN_BYTES, DRAWN_BITS = 8, 64

# How far the float64 p and the first word of the uniform number may be from the true ones, together.
# With e = 2^-53, the roundings of x (twice, as it is squared), x^2, 2 s, their quotient, and 1/2
# minus the quotient change the exponent by less than 7 e (x^2 / (2 s) + 1). That changes p by less
# than 15 e, because p x^2 / (2 s) < 1: with a = |x| / sigma >= v, this product is at most
# 2^(a-1) exp((1 - a^2) / 2) a^2 / 2 < 0.93. The word is off by less than e. All these errors together
# are below 2^-48. What is left of the bound is for np.exp, which may thus be wrong by 2^12 units in
# the last place; known implementations are wrong by a few.
ERROR_BOUND = 2.0**-40

RandomBytes = Callable[[int], bytes]


def discrete_gaussian(variance: int, size: int, *, random_bytes: RandomBytes = os.urandom) -> Array:
    """Return independent draws from the discrete Gaussian around 0, as int64 of size below 2^62.

    ``variance`` is the parameter s, a whole number from 1 to 2^110. The variance of the draws is
    smaller than s by less than 10^-6 of s. ``random_bytes`` is only for tests, which must repeat draws.
    Privacy needs the default: the system's random bytes, which nobody can repeat.
    """
    if not isinstance(variance, int) or not 1 <= variance <= MAX_VARIANCE:
        raise InputError(
            f"variance={variance!r} must be a whole number from 1 to 2^110, so that noise fits into 64 "
            "bits; use a coarser grid for larger noise, and a finer one for smaller noise"
        )
    values = np.empty(size, np.int64)
    n_drawn = 0
    while n_drawn < size:
        n_missing = size - n_drawn
        n_trials = min(4 * n_missing, BATCH_TRIALS)  # between 1/4 and about 1/2 of them are kept
        kept = _kept_trials(variance, n_trials, random_bytes)[:n_missing]
        values[n_drawn : n_drawn + len(kept)] = kept
        n_drawn += len(kept)
    return values


def _kept_trials(variance: int, n_trials: int, random_bytes: RandomBytes) -> Array:
    """Run trials, and return the values of those that are kept."""
    data = random_bytes(3 * DRAWN_BYTES * n_trials)
    places, coins, uniforms = np.frombuffer(data, "<u8", 3 * n_trials).reshape(3, n_trials)
    block_bits = ((variance - 1).bit_length() + 1) // 2  # t = 2^block_bits, and 4^block_bits >= s
    block = np.bitwise_count(~coins & (coins - np.uint64(1)))  # number of zeros at the end
    within = (places & np.uint64((1 << block_bits) - 1)).view(np.int64)
    magnitude = (block.astype(np.int64) << block_bits) | within
    is_negative = places >> np.uint64(DRAWN_BITS - 1) == 1  # a bit that `within` does not use
    is_kept = _are_below(variance, magnitude, block, uniforms, random_bytes)
    # a zero of each sign would make zero twice as likely; coins without a one end no block
    is_kept &= (coins != 0) & ~(is_negative & (magnitude == 0))
    kept: Array = np.where(is_negative, -magnitude, magnitude)[is_kept]
    return kept


def _are_below(
    variance: int, magnitude: Array, block: Array, uniforms: Array, random_bytes: RandomBytes
) -> Array:
    """Return which uniform numbers are below p; ``uniforms`` has the first word of each."""
    p = _probability(variance, magnitude, block)
    excess = p - uniforms * 2.0**-DRAWN_BITS
    are_below: Array = excess > 0
    for i in np.flatnonzero(np.abs(excess) <= ERROR_BOUND):
        trial = int(magnitude[i]), int(block[i]), int(uniforms[i])
        are_below[i] = _is_below_exactly(variance, *trial, random_bytes)
    return are_below


def _probability(variance: int, magnitude: Array, block: Array) -> Array:
    """Return p, the probability of keeping each trial, in float64."""
    x = magnitude.astype(np.float64)
    p: Array = np.ldexp(np.exp(0.5 - x * x / (2.0 * variance)), block.astype(np.int32) - 1)
    return p


def _is_below_exactly(
    variance: int, magnitude: int, block: int, uniform: int, random_bytes: RandomBytes
) -> bool:
    """Return whether a uniform number is below p; draw as many bits after its first word as needed.

    Divisions and powers of `Decimal` are rounded correctly. So the exponent, whose size is below 10^4,
    changes by less than ``10^(4 - digits)``, and p, which is at most 1, changes by less than
    ``10^(5 - digits) < 2^-n_bits``.
    """
    n_bits = DRAWN_BITS
    while True:
        context = Context(n_bits // 3 + 6, ROUND_HALF_EVEN, Emin=-9999, Emax=9999, traps=[])
        exponent = context.divide(Decimal(variance - magnitude**2), Decimal(2 * variance))
        p = Fraction(context.exp(exponent)) * Fraction(2) ** (block - 1 + n_bits)
        if uniform + 1 <= p - 1:
            return True
        if uniform >= p + 1:
            return False
        uniform = uniform << DRAWN_BITS | int.from_bytes(random_bytes(DRAWN_BYTES), "little")
        n_bits += DRAWN_BITS
