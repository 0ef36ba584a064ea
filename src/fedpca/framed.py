"""Rows as a run sees them: in the common order of features, about the common mean, in its scale.

With ``X`` a site's rows, ``m`` the global mean and ``s`` the global scale, the frame is
``A = (X - 1 m') / s`` and the products are ``A'A`` and ``A'(A Z)``. ``A`` is never stored: blocks are
centred on the fly, the scale and the order of columns are moved onto ``Z`` and the result.

Centring comes before multiplying. Raw second moments minus ``n m m'`` lose every digit at an offset
of 1e8, so they serve only for a block where the diagonal shows that at most five bits are lost.
Sparse rows stay sparse: columns without a zero are shifted where they are stored, and the mean of the
others, whose variance is at least ``m^2 / n``, is subtracted from the products.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp

from fedpca.message import Array
from fedpca.rows import Block, Rows

MOST_CANCELLATION = 32.0  # how far a raw second moment may exceed the central one: five bits
MEMORY_LIMIT = 256 << 20  # bytes that a site may spend on a cached A'A


def column_sums(rows: Rows) -> tuple[int, Array]:
    """The number of rows and the sum of each column, in the rows' own order."""
    count = 0
    total = np.zeros(rows.n_features)
    for block in rows.blocks():
        # a product with ones is numpy's sum at the speed of BLAS, and in float64
        total += np.ones(block.shape[0]) @ block
        count += block.shape[0]
    return count, total


class FramedRows:
    """A site's rows about a mean and in a scale, and the products that solvers ask for."""

    def __init__(
        self,
        rows: Rows,
        *,
        mean: Array,
        scale: Array,
        order: Array | None = None,
        n_products: int = 1,
        memory_limit: int = MEMORY_LIMIT,
    ) -> None:
        self._rows = rows
        self._order = slice(None) if order is None else order
        self._mean = self._to_own_order(mean)
        self._scale = scale
        self._n_products = n_products
        self._memory_limit = memory_limit
        self._gram: Array | None = None

    def squares(self) -> Array:
        """The sum of squares of each column of A, ``(d,)``."""
        total = np.zeros(len(self._mean))
        for block, shift in self._blocks():
            if shift is None:
                total += np.einsum("ij,ij->j", block, block)
            else:
                total += (block * block).sum(axis=0) - 2 * shift * block.sum(axis=0)
                total += block.shape[0] * shift**2
        return total[self._order] / self._scale**2

    def gram(self) -> Array:
        """A'A, ``(d, d)``; kept for later products where the memory limit allows."""
        if self._gram is not None:
            return self._gram
        d = len(self._mean)
        gram = np.zeros((d, d))
        raw_works = True
        for block in self._rows.blocks():
            part = _gram_from_raw_moments(block, self._mean) if raw_works else None
            if part is None:
                raw_works = False
                part = _gram(*self._centre(block))
            gram += part
        if not isinstance(self._order, slice):
            gram = gram[np.ix_(self._order, self._order)]
        if (self._scale != 1).any():
            gram /= np.outer(self._scale, self._scale)
        if self._gram_fits():
            self._gram = gram
        return gram

    def gram_times(self, Z: Array) -> Array:
        """A'(A Z), ``(d, k)``, through the cached A'A where that is cheaper over the run."""
        if self._gram is not None or self._gram_pays(Z.shape[1]):
            return np.asarray(self.gram() @ Z)
        own = self._to_own_order(Z / self._scale[:, None])
        total = np.zeros_like(own)
        for block, shift in self._blocks():
            if shift is None:
                total += block.T @ (block @ own)
            else:
                scores = block @ own - shift @ own
                total += block.T @ scores - np.outer(shift, scores.sum(axis=0))
        return total[self._order] / self._scale[:, None]

    def energy_along(self, V: Array) -> float:
        """``||A V||^2``: what the directions V, ``(d, k)``, carry of the rows' sum of squares."""
        if self._gram is not None:
            return float(np.vdot(V, self._gram @ V))
        own = self._to_own_order(V / self._scale[:, None])
        total = 0.0
        for block, shift in self._blocks():
            scores = block @ own if shift is None else block @ own - shift @ own
            total += float(np.vdot(scores, scores))
        return total

    def energy(self) -> float:
        """``||A||^2``: the rows' whole sum of squares."""
        return float(np.trace(self._gram) if self._gram is not None else self.squares().sum())

    def _blocks(self) -> Iterator[tuple[Block, Array | None]]:
        return map(self._centre, self._rows.blocks())

    def _centre(self, block: Block) -> tuple[Block, Array | None]:
        """The centred block and None, or a sparse block and the mean that it still has."""
        if not sp.issparse(block):
            return np.subtract(block, self._mean, dtype=np.float64), None
        full = np.bincount(block.indices, minlength=block.shape[1]) == block.shape[0]
        if not full.any():
            return block, self._mean
        shifted = block.astype(np.float64)
        shifted.data -= np.where(full, self._mean, 0.0)[block.indices]
        return shifted, np.where(full, 0.0, self._mean)

    def _gram_fits(self) -> bool:
        return 8 * len(self._mean) ** 2 <= self._memory_limit

    def _gram_pays(self, width: int) -> bool:
        """Whether A'A once and d x d products cost less than passes over the rows all along."""
        if not self._gram_fits():
            return False
        n, d = self._rows.n_rows, len(self._mean)
        columns = max(self._n_products, width)
        one_pass = n * d * self._rows.pass_cost
        cached = n * d**2 + 2 * d**2 * columns + one_pass
        streamed = 4 * n * d * columns + one_pass * columns / max(1, width)
        return cached < streamed

    def _to_own_order(self, array: Array) -> Array:
        own = np.empty_like(array, dtype=np.float64)
        own[self._order] = array
        return own


def _gram(block: Block, shift: Array | None) -> Array:
    if shift is None:
        return np.asarray(block.T @ block)
    sums = np.outer(block.sum(axis=0), shift)
    central = (block.T @ block).toarray() - sums - sums.T
    return np.asarray(central + block.shape[0] * np.outer(shift, shift))


def _gram_from_raw_moments(block: Block, mean: Array) -> Array | None:
    """The block's A'A without a centred copy, or None where that would cost accuracy."""
    if sp.issparse(block) or block.dtype != np.float64:
        return None
    raw = np.asarray(block.T @ block)
    sums = np.outer(np.ones(len(block)) @ block, mean)
    central = raw - sums - sums.T + len(block) * np.outer(mean, mean)
    return central if (raw.diagonal() <= MOST_CANCELLATION * central.diagonal()).all() else None


