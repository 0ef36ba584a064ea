"""Multiply very wide rows in tiles that stay in the cache.

    S = sum_p (X_p - 1 m_p') Z_p,   Y_p = (X_p - 1 m_p')' S,   over panels p of columns

A block of bounded size holds only a few rows if there are many features: two rows of 10^6 features.
Products with so few rows read Z and write Y again for each block, and BLAS spends its time on that. So
rows in memory are taken many at a time, without a copy, and multiplied panel by panel. A tile, which is
the part of such rows in one panel, is converted to float64 in memory that the next tile reuses. Rows of
any dtype need no other float64 copy. If columns are near the origin, their mean is subtracted from the
products; otherwise, tiles are centered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

from fedpca.arrays import Array
from fedpca.linalg.blas_threads import n_threads, threads_for_entries
from fedpca.linalg.scratch import Scratch
from fedpca.rows.in_memory import WIDE_ROWS, Block

TILE_COLUMNS = 256  # of up to 256 rows, which are 512 KiB in float64
N_GROUPS = 16  # of panels, which threads share; no bit may depend on the number of threads

T = TypeVar("T")


class Panels:
    """The tiles of one block after another, about a mean.

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
        panels = []
        for start in range(0, d, TILE_COLUMNS):
            columns = slice(start, min(start + TILE_COLUMNS, d))
            is_far = bool(far[columns].any())
            panels.append(Panel(columns, mean[columns], is_far))
        step = -(-len(panels) // N_GROUPS) or 1
        self._groups = [panels[i : i + step] for i in range(0, len(panels), step)]

    def scores(self, block: Block, Z: Array) -> Array:
        """Return the scores of the centered rows, ``(b, k)``; Z is ``(d, k)``."""

        def add(group: Sequence[Panel]) -> Array:
            total = np.zeros((len(block), Z.shape[1]))
            for panel, tile in tiles(block, group):
                along = Z[panel.columns]
                total += tile @ along
                if not panel.is_far:
                    total -= panel.mean @ along
            return total

        # added in the order of the groups, whichever thread computed them
        return np.asarray(sum(self._each_group(add)))

    def add_combined(self, block: Block, W: Array, total: Array) -> None:
        """Add ``Y'W`` to ``total``, ``(d, k)``; Y holds the centered rows, and W is ``(b, k)``."""
        sums = W.sum(axis=0)

        def add(group: Sequence[Panel]) -> None:
            for panel, tile in tiles(block, group):
                product = tile.T @ W
                if not panel.is_far:
                    product -= np.outer(panel.mean, sums)
                total[panel.columns] += product

        self._each_group(add)

    def sums(self, block: Block, weights: Array) -> Array:
        """Return the sum of each column of the tiles, with each row counted by its weight, ``(d,)``."""
        return self._column_by_column(block, lambda tile: weights @ tile)

    def squares(self, block: Block, weights: Array) -> Array:
        """Return the sum of squares of each column of the tiles, by the rows' weights, ``(d,)``."""
        return self._column_by_column(block, lambda tile: weights @ np.square(tile, out=tile))

    def _column_by_column(self, block: Block, function: Callable[[Array], Array]) -> Array:
        total = np.empty(block.shape[1])

        def fill(group: Sequence[Panel]) -> None:
            for panel, tile in tiles(block, group):
                total[panel.columns] = function(tile)

        self._each_group(fill)
        return total

    def _each_group(self, work: Callable[[Sequence[Panel]], T]) -> list[T]:
        """Call a function with each group of panels, on as many threads as BLAS may use.

        A tile is too small for several threads of BLAS, which would not convert it anyway.
        """
        threads = n_threads()
        with threads_for_entries(WIDE_ROWS * TILE_COLUMNS):
            if threads == 1:
                return [work(group) for group in self._groups]
            with ThreadPoolExecutor(threads) as pool:
                return list(pool.map(work, self._groups))


class Panel(NamedTuple):
    """A range of columns, their mean, and whether tiles must be centered before they are multiplied."""

    columns: slice
    mean: Array
    is_far: bool


def tiles(block: Block, group: Sequence[Panel]) -> Iterator[tuple[Panel, Array]]:
    """Yield each panel and its tile, centered if the panel is far; each overwrites the last tile."""
    scratch = Scratch()
    for panel in group:
        part = block[:, panel.columns]
        tile = scratch("tile", part.shape)
        if panel.is_far and panel.mean.any():
            np.subtract(part, panel.mean, out=tile)
        else:
            np.copyto(tile, part)
        yield panel, tile
