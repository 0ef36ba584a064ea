"""Multiply very wide rows in tiles that stay in the cache.

    S = sum_p (X_p - 1 m_p') Z_p,   Y_p = (X_p - 1 m_p')' S,   over panels p of columns

A block of bounded size holds only a few rows if there are many features: two rows of 10^6 features.
Products with so few rows read Z and write Y again for each block, which takes most of the time. So rows
in memory are taken many at a time, without a copy, and multiplied panel by panel. The part of these
rows in one panel is a tile. It is converted to float64 in memory that the next tile reuses, so rows of
any dtype need no other float64 copy. If columns are near the origin, their mean is subtracted from the
products; otherwise, tiles are centered. To subtract the mean, a tile has an extra row with the mean:

    [X_p; -m_p'] Z_p = [X_p Z_p; -m_p' Z_p],   [X_p; -m_p']' [S; 1'S] = X_p' S - m_p 1'S
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from fedpca.arrays import Array
from fedpca.linalg.blas_threads import map_on_threads
from fedpca.linalg.scratch import Scratch
from fedpca.rows.in_memory import Block

TILE_COLUMNS = 128  # of a tile, which has up to 512 rows and takes up to 512 KiB in float64
# of panels or variants, to share among threads; fixed, so that the number of threads changes no bit
N_GROUPS = 16

T = TypeVar("T")


class Panels:
    """Multiply very wide rows, with their mean subtracted, tile by tile.

    Parameters
    ----------
    mean : ndarray of shape (d,)
        The mean of the rows.
    is_near : ndarray of shape (d,) of bool, optional
        Whether a column is so near the origin that its mean can be subtracted from products, which
        is cheaper than to subtract it from the rows. By default, no column is.
    """

    def __init__(self, mean: Array, is_near: Array | None = None) -> None:
        d = len(mean)
        far = np.ones(d, bool) if is_near is None else ~is_near
        self.is_shifted = np.zeros(d, bool)  # whether the mean is subtracted from products
        panels = []
        for start in range(0, d, TILE_COLUMNS):
            columns = slice(start, min(start + TILE_COLUMNS, d))
            # a tile is multiplied as a whole, so one far column is reason enough to center all of them
            is_far = bool(far[columns].any())
            panels.append(Panel(columns, mean[columns], is_far))
            if not is_far:
                self.is_shifted[columns] = True
        step = -(-len(panels) // N_GROUPS) or 1
        # added in sequence in a score: within a tile, over the tiles of a group, and over groups
        self.n_terms = min(d, TILE_COLUMNS + 1 + step + N_GROUPS)
        self._groups = [panels[i : i + step] for i in range(0, len(panels), step)]

    def scores(self, block: Block, Z: Array) -> Array:
        """Return the scores of the centered rows, ``(b, k)``; Z is ``(d, k)``."""

        def add(group: Sequence[Panel]) -> Array:
            total = np.zeros((len(block), Z.shape[1]))
            for panel, tile in tiles(block, group):
                part = tile @ Z[panel.columns]
                total += part[:-1]
                total += part[-1]  # after each panel, so that large means do not add up
            return total

        # added in the order of the groups, whichever thread was first
        return np.asarray(sum(self._each_group(add)))

    def add_combined(self, block: Block, W: Array, total: Array) -> None:
        """Add ``Y'W`` to ``total``, ``(d, k)``; Y holds the centered rows, and W is ``(b, k)``."""
        # meets the last row of each tile, which holds -m, and so subtracts m (1'W)
        W = np.vstack([W, W.sum(axis=0)])

        def add(group: Sequence[Panel]) -> None:
            for panel, tile in tiles(block, group):
                total[panel.columns] += tile.T @ W

        self._each_group(add)

    def sums(self, block: Block, weights: Array) -> Array:
        """Return the weighted sum of each column of the tiles, ``(d,)``."""
        return self._column_by_column(block, lambda tile: weights @ tile)

    def squares(self, block: Block, weights: Array) -> Array:
        """Return the weighted sum of squares of each column of the tiles, ``(d,)``."""
        return self._column_by_column(block, lambda tile: weights @ np.square(tile, out=tile))

    def _column_by_column(self, block: Block, function: Callable[[Array], Array]) -> Array:
        total = np.empty(block.shape[1])

        def fill(group: Sequence[Panel]) -> None:
            for panel, tile in tiles(block, group):
                total[panel.columns] = function(tile[:-1])

        self._each_group(fill)
        return total

    def _each_group(self, work: Callable[[Sequence[Panel]], T]) -> list[T]:
        """Call a function with each group of panels, on as many threads as BLAS may use.

        A tile is too small for several BLAS threads, which would not convert it to float64 anyway.
        """
        return map_on_threads(work, self._groups)


class Panel(NamedTuple):
    """A range of columns, their mean, and whether tiles are centered before they are multiplied."""

    columns: slice
    mean: Array
    is_far: bool


def tiles(block: Block, group: Sequence[Panel]) -> Iterator[tuple[Panel, Array]]:
    """Yield each panel and its tile; each tile overwrites the tile before it.

    A tile is centered if its panel is far from the origin. Otherwise, its last row holds the mean to
    subtract.
    """
    scratch = Scratch()
    for panel in group:
        part = block[:, panel.columns]
        tile = scratch("tile", (len(part) + 1, part.shape[1]))
        if panel.is_far and panel.mean.any():
            np.subtract(part, panel.mean, out=tile[:-1])
        else:
            np.copyto(tile[:-1], part)
        tile[-1] = 0.0 if panel.is_far else -panel.mean
        yield panel, tile
