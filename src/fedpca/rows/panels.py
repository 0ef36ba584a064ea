"""Multiply very wide rows in tiles that stay in the cache.

    S = sum_p (X_p - 1 m_p') Z_p,   Y_p = (X_p - 1 m_p')' S,   over panels p of columns

A block of bounded size holds only a few rows if there are many features: two rows of 10^6. Products
with so few rows read Z and write Y again for each of them, and BLAS spends its time on that. So rows in
memory are taken many at a time, without a copy, and multiplied panel by panel. A tile, which is the part
of such rows in one panel, is converted to float64 and centered in memory that the next tile uses again.
Rows of any dtype need no other float64 copy.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedpca.arrays import Array
from fedpca.linalg.scratch import Scratch
from fedpca.rows.in_memory import Block, Rows, is_sparse

WIDE_FEATURES = 8192  # from which products go by panels; blocks of fewer features hold many rows
TILE_ROWS, TILE_COLUMNS = 256, 512  # 1 MiB in float64


def is_wide(block: Block) -> bool:
    """Return whether to multiply a block by panels."""
    return not is_sparse(block) and block.shape[1] >= WIDE_FEATURES


def views_of(rows: Rows) -> Iterator[Block] | None:
    """Return blocks of as many wide rows as a tile has, or None if they would have to be copied."""
    views = getattr(rows, "views", None)
    return None if views is None or rows.n_features < WIDE_FEATURES else views(TILE_ROWS)


class Panels:
    """The tiles of one block after another.

    Parameters
    ----------
    mean : ndarray of shape (d,), optional
        What is subtracted from each row; None means zero.
    """

    def __init__(self, mean: Array | None = None) -> None:
        self._mean = mean if mean is not None and mean.any() else None
        self._scratch = Scratch()

    def scores(self, block: Block, Zt: Array) -> Array:
        """Return the scores of centered rows, ``(k, b)``; ``Zt`` is ``(k, d)``."""
        total = np.zeros((len(Zt), len(block)))
        for columns, tile in self._tiles(block):
            total += Zt[:, columns] @ tile.T
        return total

    def add_combined(self, block: Block, W: Array, total: Array) -> None:
        """Add ``W Y`` to ``total``, ``(k, d)``, where Y holds the centered rows and W is ``(k, b)``."""
        for columns, tile in self._tiles(block):
            total[:, columns] += W @ tile

    def sums(self, block: Block, weights: Array) -> Array:
        """Return the sum of each centered column, with each row counted by its weight, ``(d,)``."""
        total = np.empty(block.shape[1])
        for columns, tile in self._tiles(block):
            total[columns] = weights @ tile
        return total

    def squares(self, block: Block, weights: Array) -> Array:
        """Return the sum of squares of each centered column, each row by its weight, ``(d,)``."""
        total = np.empty(block.shape[1])
        for columns, tile in self._tiles(block):
            total[columns] = weights @ np.square(tile, out=tile)
        return total

    def _tiles(self, block: Block) -> Iterator[tuple[slice, Array]]:
        """Yield ranges of columns, and the centered rows there; each tile overwrites the one before."""
        m, d = block.shape
        for start in range(0, d, TILE_COLUMNS):
            columns = slice(start, min(start + TILE_COLUMNS, d))
            tile = self._scratch("tile", (m, columns.stop - start))
            if self._mean is None:
                np.copyto(tile, block[:, columns])
            else:
                np.subtract(block[:, columns], self._mean[columns], out=tile)
            yield columns, tile
