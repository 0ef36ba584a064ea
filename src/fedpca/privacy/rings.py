"""Represent numbers as whole numbers in a ring, where sums are exact and all masks cancel.

    x  ->  floor(x 2^f + u) mod 2^64   or   mod 2^128,    u random in [0, 1)

A number is multiplied by a power of 2 and rounded up or down at random, so its error is below ``2^-f``,
and 0 on average. If it were rounded to the nearest number, a coordinator that chooses a small f would
see how many sites are above a threshold. Sums in the ring are exact, so the total does not depend on
the order of the sites. A narrow ring has 64 bits, which
is enough for the entries of a matrix. A wide ring has 128 bits. It is for numbers of very different
sizes, such as the sums of columns in different units.

Any finite number has an element, since a number that exceeds the ring is taken modulo the ring. So a
total is right if the total itself fits, however large the numbers of single sites are. A site never has
to compare its numbers with a ring that the coordinator chose.

Arrays of a narrow ring are uint64. Arrays of a larger ring are uint64 with one more axis, of the words
of each element, beginning with the lowest 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedpca.arrays import Array

NARROW, WIDE = 64, 128
WORD_BITS = 64
_WORD = 2.0**WORD_BITS
_DRAWS = 2.0**32  # values that a random number takes, by which a number is rounded up or down
BLOCK = 1 << 14  # so many numbers are encoded at once
MAX_FACTOR_EXPONENT = 1000  # up to here, a power of 2 and its inverse are float64 numbers
MAX_EXPONENT, UNIT_EXPONENT = 1024, -1074  # floats are below 2^1024, and multiples of 2^-1074


@dataclass(frozen=True)
class Ring:
    """A ring of whole numbers, and the power of 2 by which numbers are multiplied."""

    bits: int  # 64 or 128
    fraction_bits: int

    @classmethod
    def for_exponent(cls, bits: int, exponent: int) -> Ring:
        """Return the finest ring that holds totals below ``2^exponent``.

        The narrow ring without fraction bits is reserved for whole numbers. If it is the finest, the
        next coarser ring takes its place.
        """
        ring = cls(bits, bits - 2 - exponent)
        return ring if ring != WHOLE else cls(bits, ring.fraction_bits - 1)

    @property
    def exponent(self) -> int:
        """Return the power of 2 that totals must stay below; it leaves two bits of the ring unused."""
        return self.bits - 2 - self.fraction_bits

    def encode(self, values: Array, words: Callable[[int], Array] | None = None) -> Array:
        """Return a new array with finite numbers as elements of the ring; whole numbers are int64.

        ``words`` returns so many random words, by which numbers are rounded up or down. Without it,
        they are rounded to the nearest one.
        """
        if values.dtype == np.int64 and self.bits == NARROW and self.fraction_bits == 0:
            return values.copy().view(np.uint64)
        is_within, given = exponent_of(values) <= self.exponent, values.reshape(-1)
        drawn = None if words is None else words(-(-values.size // 2)).view(np.uint32)
        elements = np.empty(self.shape(given.shape), np.uint64)
        for start in range(0, values.size, BLOCK):  # which stays in the cache
            part = slice(start, start + BLOCK)
            kept = given[part].astype(np.float64)
            scaled = _times_power_of_two(
                kept if is_within else self._modulo(kept), self.fraction_bits
            )
            if drawn is None:
                np.rint(scaled, out=scaled)
            else:
                whole = np.floor(scaled)
                scaled -= whole  # exact; only numbers below 2^52 have fractions
                scaled *= _DRAWS
                whole += drawn[part][: len(whole)] < scaled
                scaled = whole
            elements[part] = self._elements(scaled, is_within)
        return elements.reshape(self.shape(values.shape))

    def _elements(self, whole: Array, is_within: bool) -> Array:
        """Return whole numbers from ``-2^bits`` to ``2^bits`` as elements of the ring."""
        if self.bits == NARROW:
            if not is_within:  # here, all differences are exact
                whole -= _WORD * np.rint(whole / _WORD)
                # 2^63 does not fit into int64, and is the same element as -2^63
                whole[whole == _WORD / 2] *= -1
            return whole.astype(np.int64).view(np.uint64)
        # both steps are exact, because `high` and `low` have no more digits than `size`
        size = np.abs(whole)
        high = np.floor(size / _WORD)
        low = size - high * _WORD
        elements = np.stack([low.astype(np.uint64), high.astype(np.uint64)], axis=-1)
        return np.where((whole < 0)[..., None], _opposite(elements), elements)

    def _modulo(self, values: Array) -> Array:
        """Return what is left of numbers after division by the size of the ring, which is exact."""
        exponent = self.bits - self.fraction_bits  # of the ring's size, in the unit of the numbers
        if exponent < UNIT_EXPONENT:  # all numbers are multiples of the size
            return np.zeros_like(values)
        return np.fmod(values, math.ldexp(1.0, exponent)) if exponent < MAX_EXPONENT else values

    def decode(self, elements: Array) -> Array:
        """Return elements of the ring as numbers, each rounded once to float64."""
        if self.bits == NARROW:
            return _times_power_of_two(
                elements.view(np.int64).astype(np.float64), -self.fraction_bits
            )
        is_negative = elements[..., 1].view(np.int64) < 0
        size = np.where(is_negative[..., None], _opposite(elements), elements)
        whole = size[..., 1].astype(np.float64) * _WORD + size[..., 0].astype(np.float64)
        return np.ldexp(np.where(is_negative, -whole, whole), -self.fraction_bits)

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that an array of this shape has once it is encoded."""
        return shape if self.bits == NARROW else (*shape, self.bits // WORD_BITS)


WHOLE = Ring(NARROW, 0)  # for whole numbers


def exponent_of(values: Array) -> int:
    """Return the least power of 2 that all numbers are below, or less if all of them are zero."""
    largest = largest_of(values)
    return math.frexp(largest)[1] if largest else UNIT_EXPONENT


def largest_of(values: Array) -> float:
    """Return the size of the largest number, without making an array of sizes."""
    return float(max(values.max(initial=0.0), -values.min(initial=0.0)))


def _times_power_of_two(values: Array, exponent: int) -> Array:
    """Multiply numbers by a power of 2, in place if that is faster."""
    if abs(exponent) > MAX_FACTOR_EXPONENT:
        return np.ldexp(values, exponent)
    values *= 2.0**exponent
    return values


def _opposite(elements: Array) -> Array:
    """Return the elements of a wide ring with the opposite sign."""
    opposite = np.zeros_like(elements)
    subtract(opposite, elements, WIDE)
    return opposite


def add_elements(total: Array, elements: Array, bits: int) -> None:
    """Add elements of a ring to a total, in place."""
    if bits == NARROW:
        total += elements
        return
    carry: Array | int = 0
    for i in range(bits // WORD_BITS):
        word, more = total[..., i : i + 1], elements[..., i : i + 1] + carry
        # at most one of the two sums wraps around: if the first one did, `more` is 0
        overflows = more < carry
        word += more
        carry = overflows | (word < more)


def subtract(total: Array, elements: Array, bits: int) -> None:
    """Subtract elements of a ring from a total, in place."""
    if bits == NARROW:
        total -= elements
        return
    borrow: Array | int = 0
    for i in range(bits // WORD_BITS):
        word, less = total[..., i : i + 1], elements[..., i : i + 1] + borrow
        # before the word changes: a wrapped `less` is 0 and then borrows no second time
        borrow = (less < borrow) | (word < less)
        word -= less
