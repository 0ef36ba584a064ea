"""Compute both the scatter and the column sums in a single reading of files that are slow to read.

    S = sum (x - c)(x - c)',   t = sum (x - c),   about a provisional center c
    sum (x - m)(x - m)' = S - t e' - e t' + n e e',   where e = m - c

The mean m over all sites is known only after every site has read its rows. With few features, reading a
file again costs more than the products. So a site computes the scatter about the mean c of its first
block while it reads the rows for the first time, and corrects the scatter when m is known. If c is so
far from m that the correction would lose more than eight bits, the rows are read again.

The scatter is always computed in this way, even by a site that was restarted and has to read its rows
again. So no bit of an answer depends on when the rows were read.
"""

from __future__ import annotations

import numpy as np

from fedpca.arrays import Array
from fedpca.rows.centering import MAX_CANCELLATION, center_block
from fedpca.rows.gaps import counting_blocks
from fedpca.rows.in_memory import Block, Rows

EPS = float(np.finfo(np.float64).eps)


class ProvisionalScatter:
    """The scatter of rows about the mean of their first block.

    Parameters
    ----------
    rows : Rows
        The rows whose blocks will be added.
    missing : int
        What to do with gaps, as a position in `fedpca.rows.gaps.MISSING`.
    """

    def __init__(self, rows: Rows, missing: int) -> None:
        d = rows.n_features
        self._rows, self._missing = rows, missing
        self._center: Array | None = None
        self._gram = np.zeros((d, d))
        self._sums = np.zeros(d)
        self._weight = 0.0

    @classmethod
    def read(cls, rows: Rows, missing: int) -> ProvisionalScatter:
        """Return the scatter of all rows that count."""
        scatter = cls(rows, missing)
        for block, weights in counting_blocks(rows, missing):
            scatter.add(block, weights)
        return scatter

    def is_of(self, rows: Rows, missing: int) -> bool:
        """Return whether this is the scatter of these rows, with gaps treated as ``missing`` says."""
        return self._rows is rows and self._missing == missing

    def add(self, block: Block, weights: Array | None) -> None:
        """Add a block of rows that count, and their weights; the first block sets the center."""
        if not block.shape[0]:
            return
        if self._center is None:
            each = np.ones(block.shape[0]) if weights is None else weights
            # any point among the rows would do; the mean of the first block costs no further reading
            self._center = np.asarray(each @ block) / each.sum()
        part = center_block(block, self._center)
        part = part if weights is None else part.weighted(weights)
        self._gram += part.inner()
        self._sums += part.sums()
        self._weight += part.weight

    def about(self, mean: Array) -> Array | None:
        """Return the scatter about ``mean``, ``(d, d)``, or None if too many digits would cancel.

        In a constant column, only rounding is left, so it does not matter how many digits cancel.
        """
        if self._center is None:  # no rows
            return self._gram.copy()
        shift = mean - self._center
        half = np.outer(self._sums - self._weight / 2 * shift, shift)
        # added up first, so that the correction is symmetric to the last bit
        gram = self._gram - (half + half.T)
        squares = gram.diagonal()
        # what the rounded mean alone leaves of a column that never changes
        rounding = self._weight * np.square(EPS * mean)
        if not (self._gram.diagonal() <= MAX_CANCELLATION * np.maximum(squares, rounding)).all():
            return None
        # rounding may leave such a column just below zero
        np.fill_diagonal(gram, np.maximum(squares, 0.0))
        return np.asarray(gram)
