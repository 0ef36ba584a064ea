"""One block of rows about a mean, the few products with it, and how means are joined.

Centring comes before multiplying, so that an offset of 1e8 takes no digits. A sparse block stays
sparse: columns without a zero are shifted where they are stored, and the mean of the others, whose
variance is at least ``m^2 / n``, is subtracted from the products. So is that of a dense block so near
to the origin that at most eight bits are lost, which saves a copy.

The scatter of rows about their mean (the sum of ``(x - m)(x - m)'``) of two groups of rows together is

    S = S_1 + S_2 + n_1 n_2 / (n_1 + n_2) (m_2 - m_1)(m_2 - m_1)',

so one more row, that of `Mean.join`, is all that joining two means takes. A mean is kept in two
parts: at an offset of 1e8 one float64 has eight digits left for the distance between two means, and
two have all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Self

import numpy as np
from scipy.linalg.blas import dgemm, dger

from fedpca.errors import InputError
from fedpca.message import Array
from fedpca.rows import Block, Rows, is_sparse, refuse_non_finite

MOST_CANCELLATION = 256.0  # how far a raw second moment may exceed the central one: eight bits

SURELY_SMALL = 1e145  # values whose squares do not overflow, however many there are


class Centred(NamedTuple):
    """Rows ``Y`` about a mean: as they are, or with a shift that is still due."""

    rows: Block  # (b, d)
    shift: Array | None = None  # (d,): Y is rows - 1 shift'

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return int(self.rows.shape[0])

    def sums(self) -> Array:
        """The sum of each column, ``(d,)``."""
        total = np.ones(self.n_rows) @ self.rows
        return np.asarray(total if self.shift is None else total - self.n_rows * self.shift)

    def squares(self) -> Array:
        """The sum of squares of each column, ``(d,)``."""
        if self.shift is None:
            return np.asarray(np.einsum("ij,ij->j", self.rows, self.rows))
        if is_sparse(self.rows):
            raw = (self.rows * self.rows).sum(axis=0)
        else:
            raw = np.einsum("ij,ij->j", self.rows, self.rows)
        return np.asarray(raw - self.shift * (2 * self.sums() + self.n_rows * self.shift))

    def overflows(self, others: float) -> bool:
        """Whether the squares of the rows as they are stored, and ``others``, have no finite sum."""
        values = np.ravel(self.rows.data if is_sparse(self.rows) else self.rows)
        if max(others, values.max(initial=0.0), -values.min(initial=0.0)) < SURELY_SMALL:
            return False
        with np.errstate(over="ignore"):
            return not np.isfinite(others + float(np.einsum("i,i->", values, values)))

    def inner(self) -> Array:
        """Y'Y, ``(d, d)``."""
        if self.shift is None:
            return np.asarray(self.rows.T @ self.rows)
        half = np.outer(self.sums() + self.n_rows / 2 * self.shift, self.shift)
        return np.asarray(_dense(self.rows.T @ self.rows) - half - half.T)

    def outer(self) -> Array:
        """Y Y', ``(b, b)``."""
        if self.shift is None:
            return np.asarray(self.rows @ self.rows.T)
        along = self.rows @ self.shift
        raw = _dense(self.rows @ self.rows.T) - along[:, None] - along
        return np.asarray(raw + self.shift @ self.shift)

    def times(self, V: Array) -> Array:
        """Y V, ``(b, k)``."""
        scores = np.asarray(self.rows @ V)
        return scores if self.shift is None else scores - self.shift @ V

    def add_combined(self, W: Array, total: Array) -> Array:
        """``total + W Y``, ``(k, d)``, for ``W`` of ``(k, b)``; in the place of ``total``."""
        if is_sparse(self.rows):
            total += (self.rows.T @ W.T).T
        else:
            # by BLAS in place: fresh memory of this size costs as much as the product
            rows = np.asarray(self.rows, np.float64, order="C")
            total = dgemm(1.0, rows.T, W.T, beta=1.0, c=total.T, overwrite_c=True).T
        if self.shift is not None:
            total = dger(-1.0, self.shift, W.sum(axis=1), a=total.T, overwrite_a=True).T
        return np.asarray(total)

    def dense(self) -> Array:
        """Y itself, ``(b, d)``."""
        return np.asarray(self.rows if self.shift is None else _dense(self.rows) - self.shift)


def centre(block: Block, mean: Array, full: Array | None = None) -> Centred:
    """The block about ``mean``; ``full`` says which columns have no zero, where that is known."""
    if not is_sparse(block):
        if block.dtype == np.float64 and not mean.any():
            return Centred(block)  # a copy takes as long as a product with few columns
        return Centred(np.subtract(block, mean, dtype=np.float64))
    block = block.astype(np.float64, copy=False)  # products of narrow types would overflow
    if full is None:
        full = full_columns(block)
    if not full.any():
        return Centred(block, mean)
    shifted = block.copy()
    shifted.data -= np.where(full, mean, 0.0)[block.indices]
    return Centred(shifted, np.where(full, 0.0, mean))


def full_columns(block: Block) -> Array:
    """Which columns of a sparse block store a value in every row."""
    return np.asarray(np.bincount(block.indices, minlength=block.shape[1]) == block.shape[0])


class Mean(NamedTuple):
    """The mean of ``n`` rows, which need not be whole: ``high + low``, to twice the digits."""

    n: float
    high: Array  # (d,)
    low: Array  # (d,), what rounding left out of ``high``

    @classmethod
    def none(cls, d: int) -> Self:
        """The mean of no rows."""
        return cls(0.0, np.zeros(d), np.zeros(d))

    def join(self, other: Mean) -> tuple[Mean, Array]:
        """The mean of both groups of rows, and the row that their distance adds, ``(1, d)``.

        No row where the means are the same, or one of them is of no rows.
        """
        nothing = np.empty((0, len(self.high)))
        if not self.n or not other.n:
            return (self if self.n else other), nothing
        n = self.n + other.n
        away = (other.high - self.high) + (other.low - self.low)
        if not away.any():
            return self._replace(n=n), nothing
        step = self.low + other.n / n * away
        high = self.high + step
        added = high - self.high
        low = (self.high - (high - added)) + (step - added)
        return Mean(n, high, low), np.sqrt(self.n * other.n / n) * away[None]


class NotFinite(InputError):
    """Rows hold a value that is not finite, or so large that squares of it are not."""

    def __init__(self) -> None:
        super().__init__("values not finite, or so large that their squares overflow; rescale them")


@contextmanager
def naming_bad_values(rows: Rows) -> Iterator[None]:
    """Say which columns hold what is not finite, once it is known that some do."""
    try:
        yield
    except NotFinite:
        refuse_non_finite(rows)


def finite_mean(block: Block) -> Array:
    """The mean of a block's rows, ``(d,)``, or an error where a value is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.ones(block.shape[0]) @ block / block.shape[0]
    if not np.isfinite(mean).all():
        raise NotFinite
    return np.asarray(mean)


def about_own_mean(
    block: Block, *, center: bool = True, squares_before: Array | None = None
) -> tuple[Mean, Centred]:
    """The mean of a block's rows and the rows about it; about zero unless ``center``.

    ``squares_before`` are those of each column, ``(d,)``, to which those of the block will be added: a
    mean whose square is no more than 256 times as much may be subtracted from the products.
    """
    n, d = block.shape
    zero = np.zeros(d)
    mean = finite_mean(block) if n else zero
    if not center or not n:
        return Mean(float(n), zero, zero), centre(block, zero)
    if squares_before is not None and not is_sparse(block) and block.dtype == np.float64:
        with np.errstate(over="ignore"):
            is_near = (n * mean**2 <= MOST_CANCELLATION * squares_before).all()
        if is_near:
            return Mean(float(n), mean, zero), Centred(block, mean)
    centred = centre(block, mean)
    return Mean(float(n), mean, centred.sums() / n), centred


def _dense(array: Block) -> Array:
    return np.asarray(array.toarray() if is_sparse(array) else array)
