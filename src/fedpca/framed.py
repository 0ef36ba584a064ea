"""Rows as a run sees them: in the common order of features, about a mean, in the common scale.

With ``X`` a site's rows, ``m`` the mean of all sites, or its own, and ``s`` the global scale, the frame
is ``A = (X - 1 m') / s`` and the products are ``A'A`` and ``A'(A Z)``. ``A`` is never stored: blocks
are centred on the fly, the scale and the order of columns are moved onto ``Z`` and the result.

Centring comes before multiplying (`fedpca.blocks`). Raw second moments minus ``n m m'`` lose every
digit at an offset of 1e8, so they serve only for a block where the diagonal shows that at most eight
bits are lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg.blas import dgemm

from fedpca.blocks import MOST_CANCELLATION, Centred, Mean, centre, full_columns
from fedpca.errors import InputError
from fedpca.message import Array
from fedpca.rows import Block, Rows, is_sparse

MEMORY_LIMIT = 256 << 20  # bytes that a site may spend on a cached A'A
SMALLEST_ENERGY = 1e-140  # whose square is a number still


def column_sums(rows: Rows) -> tuple[int, Array]:
    """The number of rows and the sum of each column, in the rows' own order."""
    count = 0
    total = np.zeros(rows.n_features)
    with np.errstate(over="ignore", invalid="ignore"):  # the caller looks for what is not finite
        for block in rows.blocks():
            # a product with ones is numpy's sum at the speed of BLAS, and in float64
            total += np.ones(block.shape[0]) @ block
            count += block.shape[0]
    return count, total


def usable_energy(energy: float) -> float:
    """The total sum of squares, or an error where products of such rows would lose their digits."""
    if energy and not SMALLEST_ENERGY < energy < 1 / SMALLEST_ENERGY:
        raise InputError(
            f"the sum of squares about the mean is {energy:.1e}, outside {SMALLEST_ENERGY:.0e} to "
            f"{1 / SMALLEST_ENERGY:.0e}, where its products keep their digits; rescale the columns"
        )
    return energy


def energy_beyond_rounding(rows: FramedRows, n: int, mean: Array) -> float:
    """The sum of squares of n rows about a mean, or zero where the mean's rounding explains it.

    The bound is that of scikit-learn's StandardScaler for a constant column.
    """
    energy = usable_energy(rows.energy())
    rounding = n * float(np.sum((n * mean * np.finfo(np.float64).eps) ** 2))
    return energy if energy > rounding else 0.0


class FramedRows:
    """A site's rows about a mean and in a scale, and the products that solvers ask for.

    Parameters
    ----------
    rows : Rows
        As they are.
    mean, scale : ndarray of shape (d,)
        The frame, in the common order of features.
    order : ndarray of shape (d,), optional
        Where the common features stand among the rows' own columns, unless they stand alike.
    sums : ndarray of shape (d,), optional
        The sums of the rows' own columns, where they are known already.
    n_products : int
        How many columns the rows will likely be multiplied with.
    memory_limit : int
        Bytes that may be spent on keeping A'A.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        mean: Array,
        scale: Array,
        order: Array | None = None,
        sums: Array | None = None,
        n_products: Any = 1,
        memory_limit: int = MEMORY_LIMIT,
    ) -> None:
        self._rows = rows
        self._order = slice(None) if order is None else order
        self._mean = self._to_own_order(mean)
        self._scale = scale
        self._is_unscaled = bool((scale == 1).all())
        self._sums = sums
        self._n_products = int(n_products)
        self._memory_limit = memory_limit
        self._gram: Array | None = None
        self._full_columns: dict[int, Array] = {}  # of each sparse block

    @property
    def n_features(self) -> int:
        """The number of features."""
        return len(self._mean)

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return self._rows.n_rows

    def squares(self) -> Array:
        """The sum of squares of each column of A, ``(d,)``."""
        total = np.zeros(len(self._mean))
        with np.errstate(over="ignore", invalid="ignore"):
            for block in self._blocks():
                total += block.squares()
        refuse_overflow(total)
        return np.asarray(total[self._order] / self._scale**2)

    def energy(self) -> float:
        """The sum of all squares of A, through A'A where that is formed anyway."""
        total = self.gram().diagonal() if self._gram_pays(1) else self.squares()
        return float(total.sum())

    def gram(self) -> Array:
        """A'A, ``(d, d)``; kept for later products where that pays and the memory limit allows."""
        if self._gram is not None:
            return self._gram
        with np.errstate(over="ignore", invalid="ignore"):
            gram = self._own_gram()
        refuse_overflow(gram.diagonal())
        if not isinstance(self._order, slice):
            gram = gram[np.ix_(self._order, self._order)]
        if not self._is_unscaled:
            gram /= np.outer(self._scale, self._scale)
        if self._gram_pays(1):
            self._gram = gram
        return gram

    def gram_times(self, Z: Array) -> Array:
        """A'(A Z), ``(d, k)``, through A'A where that is cheaper over the run."""
        if self._gram_pays(Z.shape[1]):
            return np.asarray(self.gram() @ Z)
        own = self._directions(Z)
        turned = np.ascontiguousarray(own.T)  # on which BLAS is up to half as fast again
        total = None
        for block, shift in self._blocks():
            if shift is None:
                product = ((turned @ block.T) @ block).T
            else:
                # not by BLAS, whose threads would then spin on the cores that sparse products need
                scores = block @ own - np.einsum("i,ij->j", shift, own)
                product = block.T @ scores
                product -= np.outer(shift, scores.sum(axis=0))
            total = product if total is None else np.add(total, product, out=total)
        if total is None:  # no rows
            return np.zeros_like(own)
        ordered = total[self._order]
        return np.asarray(ordered if self._is_unscaled else ordered / self._scale[:, None])

    def energy_along(self, V: Array, energy: float) -> float:
        """``||A V||^2``: what V, ``(d, k)``, carries of ``energy``, the sum of all squares of A."""
        if self._gram_pays(V.shape[1]):
            return float(np.vdot(V, self.gram() @ V))
        own = self._directions(V)
        turned = np.ascontiguousarray(own.T)
        offset = self._rows.n_rows * float(np.sum((self._mean[self._order] / self._scale) ** 2))
        near = offset <= MOST_CANCELLATION * energy
        total = 0.0
        for block, shift in self._raw_blocks() if near else self._blocks():
            scores = (block @ own).T if is_sparse(block) else turned @ block.T
            if shift is not None:
                scores -= (shift @ own)[:, None]
            total += float(np.vdot(scores, scores))
        return total

    def parts(self) -> Iterator[tuple[Mean, Centred]]:
        """The blocks of A, in the common order and scale, as about zero: their mean stays in them."""
        zero = np.zeros(len(self._mean))
        for block in self._blocks():
            rows = block.rows[:, self._order]
            shift = None if block.shift is None else block.shift[self._order] / self._scale
            if not self._is_unscaled:
                rows = rows / self._scale if shift is None else _scaled(rows, self._scale)
            yield Mean(float(block.n_rows), zero, zero), Centred(rows, shift)

    def _own_gram(self) -> Array:
        """The Gram matrix of the centred rows, in their own order and without the scale."""
        moments = RawMoments(self._mean)
        centred = None
        for index, block in enumerate(self._rows.blocks()):
            # once a block was too far from the origin, the others likely are
            is_whole = block.shape[0] == self._rows.n_rows
            if centred is None and moments.add(block, self._sums if is_whole else None):
                continue
            part = self._centre(index, block).inner()
            centred = part if centred is None else np.add(centred, part, out=centred)
        return moments.central() if centred is None else centred + moments.central()

    def _blocks(self) -> Iterator[Centred]:
        return map(self._centre, count(), self._rows.blocks())

    def _raw_blocks(self) -> Iterator[Centred]:
        """The blocks as they are, for products that are centred after they are formed."""
        return (Centred(block, self._mean) for block in self._rows.blocks())

    def _centre(self, index: int, block: Block) -> Centred:
        if not is_sparse(block):
            return centre(block, self._mean)
        if index not in self._full_columns:
            self._full_columns[index] = full_columns(block)
        return centre(block, self._mean, self._full_columns[index])

    def _gram_fits(self) -> bool:
        return 8 * len(self._mean) ** 2 <= self._memory_limit

    def _gram_pays(self, width: int) -> bool:
        """Whether A'A once and d x d products cost less than passes over the rows all along.

        It depends on the frame alone and not on what was asked before: a site that was started again
        must give the same bits.
        """
        if not self._gram_fits():
            return False
        n, d = self._rows.n_rows, len(self._mean)
        columns = max(self._n_products, width)
        one_pass = n * d * self._rows.pass_cost
        cached = n * d**2 + 2 * d**2 * columns + one_pass
        streamed = 4 * n * d * columns + one_pass * columns / max(1, width)
        return cached < streamed

    def _directions(self, Z: Array) -> Array:
        """Z such that the rows as they are, once centred, give the products of the frame."""
        return self._to_own_order(Z if self._is_unscaled else Z / self._scale[:, None])

    def _to_own_order(self, array: Array) -> Array:
        if isinstance(self._order, slice):
            return array
        own = np.empty_like(array)
        own[self._order] = array
        return own


def _scaled(block: Block, scale: Array) -> Block:
    return (block @ sp.diags_array(1 / scale)).tocsr()


def refuse_overflow(squares: Array) -> None:
    """Refuse rows whose sums of squares are not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = squares.sum()
    if not np.isfinite(total):
        raise InputError("values so large that their squares overflow; rescale the columns")


class RawMoments:
    """A'A without a centred copy of any block, for as long as that costs no accuracy."""

    def __init__(self, mean: Array) -> None:
        self._mean = mean
        self._gram: Array | None = None
        self._sums = np.zeros(len(mean))
        self._n = 0

    def add(self, block: Block, sums: Array | None) -> bool:
        """Take a block in, or leave it out and say False where raw moments would lose too much.

        ``sums`` are those of its columns, where they are known already.
        """
        if is_sparse(block) or block.dtype != np.float64:
            return False
        raw = block.T @ block
        if sums is None:
            sums = np.ones(len(block)) @ block
        central = raw.diagonal() - 2 * sums * self._mean + len(block) * self._mean**2
        if (raw.diagonal() > MOST_CANCELLATION * central).any():
            return False
        self._gram = raw if self._gram is None else np.add(self._gram, raw, out=self._gram)
        self._sums += sums
        self._n += len(block)
        return True

    def central(self) -> Array:
        """``X'X - s m' - m s' + n m m'`` of the blocks taken in, s being their column sums."""
        if self._gram is None:
            return np.zeros((len(self._mean), len(self._mean)))
        half = self._sums - self._n / 2 * self._mean
        pair, mirror = np.stack([half, self._mean]), np.stack([self._mean, half])
        # in place: a temporary of this size costs more than the arithmetic
        dgemm(-1.0, pair.T, mirror.T, beta=1.0, c=self._gram.T, trans_b=True, overwrite_c=True)
        return self._gram
