"""Represent numbers as whole numbers in a ring, where sums are exact and all masks cancel.

    x  ->  round(x 2^f) mod 2^64   or   mod 2^128

A number is multiplied by a power of 2 and rounded, so its error is at most ``2^-(f+1)``. Sums in the
ring are exact, so the total does not depend on the order of the sites. A narrow ring has 64 bits, which
is enough for the entries of a matrix. A wide ring has 128 bits. It is for numbers of very different
sizes, such as the sums of columns in different units.

Arrays of a narrow ring are uint64. Arrays of a wide ring are uint64 with one more axis of length 2: the
low and the high 64 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedpca.arrays import Array

NARROW, WIDE = 64, 128
_HALF = 2.0**64
MAX_FACTOR_EXPONENT = 1000  # up to here, a power of 2 and its inverse are float64 numbers


@dataclass(frozen=True)
class Ring:
    """A ring of whole numbers, and the power of 2 by which numbers are multiplied."""

    bits: int  # 64 or 128
    fraction_bits: int

    @classmethod
    def for_bound(cls, bits: int, bound: float) -> Ring:
        """Return the finest ring that holds totals up to this bound.

        The narrow ring without fraction bits is reserved for whole numbers. If it is the finest, the
        next coarser ring takes its place.
        """
        exponent = math.frexp(bound)[1] if bound > 0 else 0  # bound < 2^exponent
        ring = cls(bits, bits - 2 - exponent)
        return ring if ring != WHOLE else cls(bits, ring.fraction_bits - 1)

    @property
    def largest(self) -> float:
        """Return the size that no number in the ring may reach."""
        return math.ldexp(1.0, self.bits - 2 - self.fraction_bits)

    def encode(self, values: Array) -> Array:
        """Return a new array with the numbers as elements of the ring; whole numbers are int64."""
        if values.dtype == np.int64 and self.bits == NARROW and self.fraction_bits == 0:
            return values.copy().view(np.uint64)
        scaled = _times_power_of_two(values.astype(np.float64), self.fraction_bits)
        np.rint(scaled, out=scaled)
        if self.bits == NARROW:
            return scaled.astype(np.int64).view(np.uint64)
        # both steps are exact, because `high` and `low` have no more digits than `size`
        size = np.abs(scaled)
        high = np.floor(size / _HALF)
        low = size - high * _HALF
        elements = np.stack([low.astype(np.uint64), high.astype(np.uint64)], axis=-1)
        return np.where((scaled < 0)[..., None], _opposite(elements), elements)

    def decode(self, elements: Array) -> Array:
        """Return elements of the ring as numbers, each rounded once to float64."""
        if self.bits == NARROW:
            return _times_power_of_two(
                elements.view(np.int64).astype(np.float64), -self.fraction_bits
            )
        is_negative = elements[..., 1].view(np.int64) < 0
        size = np.where(is_negative[..., None], _opposite(elements), elements)
        whole = size[..., 1].astype(np.float64) * _HALF + size[..., 0].astype(np.float64)
        return np.ldexp(np.where(is_negative, -whole, whole), -self.fraction_bits)

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that an array of this shape has once it is encoded."""
        return shape if self.bits == NARROW else (*shape, 2)


WHOLE = Ring(NARROW, 0)  # for whole numbers


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


def add(total: Array, elements: Array, bits: int) -> None:
    """Add elements of a ring to a total, in place; a total has at least one axis."""
    if bits == NARROW:
        total += elements
        return
    low, high = total[..., :1], total[..., 1:]
    low += elements[..., :1]
    high += elements[..., 1:]
    high += low < elements[..., :1]  # the carry


def subtract(total: Array, elements: Array, bits: int) -> None:
    """Subtract elements of a ring from a total, in place; a total has at least one axis."""
    if bits == NARROW:
        total -= elements
        return
    low, high = total[..., :1], total[..., 1:]
    high -= elements[..., 1:]
    high -= low < elements[..., :1]  # the borrow
    low -= elements[..., :1]
