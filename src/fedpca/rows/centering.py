"""Center blocks of rows, multiply by them, and join the means of two groups of rows.

Rows are centered before they are multiplied, so an offset of 1e8 costs no digits. A sparse block stays
sparse. Its columns without zeros are shifted value by value. All other columns have a variance of at
least ``m^2 / n``, so their mean m can be subtracted from the products instead. If a dense block is so
near the origin that at most eight bits are lost, the mean is also subtracted from the products, which
saves a copy.

The scatter of a group of rows is the sum of ``(x - m)(x - m)'`` about its mean m. The combined scatter
of two groups is

    S = S_1 + S_2 + n_1 n_2 / (n_1 + n_2) (m_2 - m_1)(m_2 - m_1)',

so joining two groups adds just one row to the scatter, which `Mean.join` returns. A mean is stored as
the sum of two float64 vectors. At an offset of 1e8, a single vector would preserve only eight digits of
the distance between two means; two vectors preserve all digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Self

import numpy as np
from scipy.linalg.blas import dgemm, dger

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.linalg.dense import gram_of
from fedpca.rows.in_memory import FILL_OR_DROP, Block, Rows, is_sparse, refuse_non_finite
from fedpca.rows.sparse_gram import sparse_gram

MAX_CANCELLATION = 256.0  # largest ratio of raw to central second moments; it costs eight bits
CLOSE_MEAN = 1e-9  # as a share of an entry; such an error adds 1e-18 of the entry's square
FEW_ROWS = 64  # rows to look at before a whole block
MAX_SAFE_VALUE = 1e145  # the sum of squares of smaller values is finite, however many there are


class Centered(NamedTuple):
    """Rows ``Y`` about a mean, stored either centered or with a shift still to be subtracted.

    Rows with weights are multiplied by the square roots of the weights, so that Y'Y is the scatter of
    the weighted rows.
    """

    rows: Block  # (b, d)
    shift: Array | None = None  # (d,): Y is rows - roots shift'
    roots: Array | None = None  # (b,), the roots of the weights; None means ones

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return int(self.rows.shape[0])

    @property
    def weight(self) -> float:
        """Return the total weight of the rows."""
        return float(self.n_rows if self.roots is None else self.roots @ self.roots)

    def weighted(self, weights: Array) -> Centered:
        """Give weights, ``(b,)``, to rows that have none yet, and return the weighted rows."""
        roots = np.sqrt(weights)
        if not is_sparse(self.rows):
            return Centered(roots[:, None] * self.rows, self.shift, roots)
        rows = self.rows.copy()
        rows.data = rows.data * np.repeat(roots, np.diff(rows.indptr))
        return Centered(rows, self.shift, roots)

    def part(self, start: int, stop: int) -> Centered:
        """Return the rows from ``start`` up to, but not including, ``stop``."""
        roots = None if self.roots is None else self.roots[start:stop]
        return Centered(self.rows[start:stop], self.shift, roots)

    def sums(self) -> Array:
        """Return the sum of each column, ``(d,)``, with each row counted by its weight."""
        total = self._roots() @ self.rows
        return np.asarray(total if self.shift is None else total - self.weight * self.shift)

    def squares(self) -> Array:
        """Return the sum of squares of each column, ``(d,)``."""
        if self.shift is None:
            return np.asarray(np.einsum("ij,ij->j", self.rows, self.rows))
        if is_sparse(self.rows):
            raw = (self.rows * self.rows).sum(axis=0)
        else:
            raw = np.einsum("ij,ij->j", self.rows, self.rows)
        # the cross term is 2 m (sums + w m), because the stored rows are Y plus roots times the shift
        return np.asarray(raw - self.shift * (2 * self.sums() + self.weight * self.shift))

    def overflows(self, others: float) -> bool:
        """Return whether ``others`` plus the sum of squares of the stored values overflows."""
        values = np.ravel(self.rows.data if is_sparse(self.rows) else self.rows)
        # settles almost every block without squaring its values
        if max(others, values.max(initial=0.0), -values.min(initial=0.0)) < MAX_SAFE_VALUE:
            return False
        with np.errstate(over="ignore"):
            return not np.isfinite(others + float(np.einsum("i,i->", values, values)))

    def inner(self) -> Array:
        """Return Y'Y, ``(d, d)``."""
        if self.shift is None:
            return gram_of(self.rows)
        half = np.outer(self.sums() + self.weight / 2 * self.shift, self.shift)
        raw = sparse_gram(self.rows) if is_sparse(self.rows) else gram_of(self.rows)
        return np.asarray(raw - half - half.T)

    def outer(self) -> Array:
        """Return Y Y', ``(b, b)``."""
        if self.shift is None:
            return np.asarray(self.rows @ self.rows.T)
        along, raw = self.rows @ self.shift, _dense(self.rows @ self.rows.T)
        if self.roots is None:
            return np.asarray(raw - along[:, None] - along + self.shift @ self.shift)
        half = np.outer(along - self.shift @ self.shift / 2 * self.roots, self.roots)
        return np.asarray(raw - half - half.T)

    def times(self, V: Array) -> Array:
        """Return Y V, ``(b, k)``."""
        scores = np.asarray(self.rows @ V)
        return scores if self.shift is None else scores - self._spread(self.shift @ V)

    def add_combined(self, W: Array, total: Array) -> Array:
        """Return ``total + W Y``, ``(k, d)``, where W is ``(k, b)``; overwrite ``total``."""
        if is_sparse(self.rows):
            total += (self.rows.T @ W.T).T
        else:
            # BLAS adds in place; allocating this much memory costs as much as the product
            rows = np.asarray(self.rows, np.float64, order="C")
            total = dgemm(1.0, rows.T, W.T, beta=1.0, c=total.T, overwrite_c=True).T
        if self.shift is not None:
            weights = W.sum(axis=1) if self.roots is None else W @ self.roots
            total = dger(-1.0, self.shift, weights, a=total.T, overwrite_a=True).T
        return np.asarray(total)

    def dense(self) -> Array:
        """Return Y as a dense array, ``(b, d)``."""
        if self.shift is None:
            return np.asarray(self.rows)
        return np.asarray(_dense(self.rows) - self._spread(self.shift))

    def _roots(self) -> Array:
        return np.ones(self.n_rows) if self.roots is None else self.roots

    def _spread(self, values: Array) -> Array:
        """Return ``roots values'``; without weights, return the values, which numpy broadcasts."""
        return values if self.roots is None else np.outer(self.roots, values)


def center_block(block: Block, mean: Array, full: Array | None = None) -> Centered:
    """Return the block about ``mean``.

    ``full`` marks the columns of a sparse block that have no zeros, if they are already known.
    """
    if not is_sparse(block):
        if block.dtype == np.float64 and not mean.any():
            # no copy, which would cost as much as a product with few columns
            return Centered(block)
        return Centered(np.subtract(block, mean, dtype=np.float64))
    block = block.astype(np.float64, copy=False)  # products of narrow dtypes would overflow
    if full is None:
        full = full_columns(block)
    if not full.any():
        return Centered(block, mean)
    # a zero in a column bounds by how much its mean exceeds its spread; without one, all digits could
    # cancel
    shifted = block.copy()
    shifted.data -= np.where(full, mean, 0.0)[block.indices]
    return Centered(shifted, np.where(full, 0.0, mean))


def full_columns(block: Block) -> Array:
    """Return a mask of those columns of a sparse block in which every row has a stored value."""
    return np.asarray(np.bincount(block.indices, minlength=block.shape[1]) == block.shape[0])


class Mean(NamedTuple):
    """The mean ``high + low`` of rows of total weight ``n``, with twice the usual digits."""

    n: float
    high: Array  # (d,)
    low: Array  # (d,), the part of the mean that ``high`` cannot represent

    @classmethod
    def none(cls, d: int) -> Self:
        """Return the mean of no rows."""
        return cls(0.0, np.zeros(d), np.zeros(d))

    def join(self, other: Mean) -> tuple[Mean, Array]:
        """Return the mean of two groups of rows, and the row, ``(1, d)``, that joining them adds.

        If the means are equal or one group is empty, nothing is added, and the array is ``(0, d)``.
        """
        no_row = np.empty((0, len(self.high)))
        if not self.n or not other.n:
            return (self if self.n else other), no_row
        n = self.n + other.n
        # the difference of high parts within a factor of two is exact, so that digits at a large offset
        # are those of the low parts
        distance = (other.high - self.high) + (other.low - self.low)
        if not distance.any():
            return self._replace(n=n), no_row
        step = self.low + other.n / n * distance
        high = self.high + step
        added = high - self.high
        # what rounding `high` has lost, found exactly, as in the two-sum of Knuth
        low = (self.high - (high - added)) + (step - added)
        return Mean(n, high, low), np.sqrt(self.n * other.n / n) * distance[None]


class NotFinite(InputError):
    """The rows contain a value that is not finite or a value whose square overflows."""

    def __init__(self) -> None:
        super().__init__(
            "some values are not finite, or their squares overflow; drop or rescale these values"
        )


@contextmanager
def naming_bad_values(rows: Rows, way_out: str = FILL_OR_DROP) -> Iterator[None]:
    """Replace a `NotFinite` error with an error that names the columns and the way out."""
    try:
        yield
    except NotFinite:
        refuse_non_finite(rows, way_out=way_out)


def finite_mean(block: Block) -> Array:
    """Return the mean of a block's rows, ``(d,)``, or refuse values that are not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.ones(block.shape[0]) @ block / block.shape[0]
    if not np.isfinite(mean).all():
        raise NotFinite
    return np.asarray(mean)


def about_own_mean(
    block: Block, *, center: bool = True, may_shift: bool = False
) -> tuple[Mean, Centered]:
    """Return a block's mean and its rows about that mean, or about zero if ``center`` is false.

    If ``may_shift`` is true, a block that is near enough to the origin is not copied. Its mean is
    subtracted later, from the products.
    """
    n, d = block.shape
    zero = np.zeros(d)
    mean = finite_mean(block) if n else zero
    if not center or not n:
        return Mean(float(n), zero, zero), center_block(block, zero)
    if may_shift and not is_sparse(block) and block.dtype == np.float64 and _is_near(block, mean):
        return Mean(float(n), mean, zero), Centered(block, mean)
    centered = center_block(block, mean)
    low = centered.sums() / n  # the part of the mean that rounding left in the rows
    if not is_sparse(block) and _matters(low, centered.rows):
        centered = Centered(centered.rows - low)
    return Mean(float(n), mean, low), centered


def _is_near(block: Array, mean: Array) -> bool:
    """Return whether a block is so near the origin that its raw squares lose at most eight bits.

    Each block is judged by itself, because digits that one block loses stay lost, however many blocks
    follow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if (
            np.square(mean) > MAX_CANCELLATION * np.square(block[:FEW_ROWS] - mean).max(axis=0)
        ).any():
            return False  # a few rows are enough to tell, and cheaper
        raw = np.einsum("ij,ij->j", block, block)
        return bool((raw <= MAX_CANCELLATION * (raw - len(block) * mean**2)).all())


def _matters(low: Array, rows: Array) -> bool:
    """Return whether ``low`` changes the squares of centered rows by more than rounding does."""
    return bool((np.abs(low) > CLOSE_MEAN * np.abs(rows[:FEW_ROWS]).max(axis=0)).any())


def _dense(array: Block) -> Array:
    return np.asarray(array.toarray() if is_sparse(array) else array)
