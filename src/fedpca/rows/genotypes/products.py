"""Multiply genotypes by directions, decoding a few variants at a time.

    A = X - 1 m',   S = sum_j a_j z_j',   y_j = a_j' S,   over the columns a_j of A

A .bed file holds one variant after another, so products are computed column by column. A byte holds the
genotypes of four samples. A table for each variant maps each possible byte to four float64 values,
which are already centered and include the value for missing genotypes. Only a tile of values is in
memory at a time. A product reads each line of the file twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeVar

import numpy as np

from fedpca.arrays import Array
from fedpca.linalg.blas_threads import map_on_threads
from fedpca.linalg.scratch import Scratch
from fedpca.rows.genotypes.genotype_rows import CODES, PER_BYTE, GenotypeRows, byte_range
from fedpca.rows.panels import N_GROUPS

TILE_ENTRIES = 1 << 18  # entries of a tile, which takes 2 MiB in float64
MAX_TABLES = 256  # tables in memory at a time, one of 8 KiB for each variant
MAX_SAMPLES = 1 << 14  # in a tile
GRAM_SAMPLES = 512  # samples to decode at a time for A'A

T = TypeVar("T")


class VariantProducts:
    """Products with centered genotypes, in their own column order and without a scale.

    Parameters
    ----------
    rows : GenotypeRows
        The genotypes.
    mean : ndarray of shape (d,)
        The mean, in the order of the rows' own columns.
    fill : ndarray of shape (d,), optional
        The values that replace missing genotypes; None if no genotype is missing.
    """

    def __init__(self, rows: GenotypeRows, mean: Array, fill: Array | None) -> None:
        self._rows = rows
        # (d, 4), by code
        self._values = rows.values(mean if fill is None else fill) - mean[:, None]
        self._mean, self._fill = mean, fill
        # of a score: within tiles, over the tiles of a group, and over groups
        tile = min(MAX_TABLES, max(1, TILE_ENTRIES // MAX_SAMPLES))
        self.n_terms = min(len(mean), MAX_TABLES + len(mean) / N_GROUPS / tile + N_GROUPS)

    def scores(self, V: Array) -> Array:
        """Return ``A V``, ``(n, k)``, for V, ``(d, k)``."""
        each = [self._scores(lines, V) for lines in self._chunks(MAX_SAMPLES)]
        return np.vstack([np.empty((0, V.shape[1])), *each])

    def squares(self) -> Array:
        """Return the sum of squares of each column of A, ``(d,)``, from the counts of genotypes."""
        values = np.arange(3) - self._mean[:, None]
        gaps = (
            0.0 if self._fill is None else self._rows.counts[:, 3] * (self._fill - self._mean) ** 2
        )
        return np.asarray((self._rows.counts[:, :3] * values**2).sum(axis=1) + gaps)

    def gram(self) -> Array:
        """Return A'A, ``(d, d)``."""
        d = self._rows.n_features
        total = np.zeros((d, d))
        for lines in self._chunks(GRAM_SAMPLES):
            columns = np.empty((d, len(lines)))
            for start, tile in self._tiles(lines, 0, d):
                columns[start : start + len(tile)] = tile
            total += columns @ columns.T
        return total

    def gram_times(self, Z: Array) -> Array:
        """Return A'(A Z), ``(d, k)``."""
        total = np.zeros(Z.shape)
        for lines in self._chunks(MAX_SAMPLES):
            scores = self._scores(lines, Z)

            def add(start: int, stop: int, lines: Array = lines, scores: Array = scores) -> None:
                for first, tile in self._tiles(lines, start, stop):
                    total[first : first + len(tile)] += tile @ scores

            self._each_group(add)
        return total

    def energy_along(self, V: Array) -> float:
        """Return ``||A V||^2`` for V, ``(d, k)``."""
        each = (self._scores(lines, V) for lines in self._chunks(MAX_SAMPLES))
        return sum(float(np.vdot(scores, scores)) for scores in each)

    def _scores(self, lines: Array, Z: Array) -> Array:
        """Return the scores of some samples, ``(b, k)``."""
        transposed = np.ascontiguousarray(Z.T)  # makes BLAS twice as fast

        def add(start: int, stop: int) -> Array:
            total = np.zeros((Z.shape[1], len(lines)))
            for first, tile in self._tiles(lines, start, stop):
                total += transposed[:, first : first + len(tile)] @ tile
            return total

        # added in the order of the groups, whichever thread was first
        return np.ascontiguousarray(np.asarray(sum(self._each_group(add))).T)

    def _chunks(self, size: int) -> Iterator[Array]:
        for start in range(0, self._rows.n_rows, size):
            yield self._rows.lines[start : start + size]

    def _tiles(self, lines: Array, start: int, stop: int) -> Iterator[tuple[int, Array]]:
        """Yield the columns of A from ``start`` to ``stop`` in tiles, ``(m, b)``, and their positions.

        Each tile overwrites the tile before it.
        """
        scratch = Scratch()
        low, high = byte_range(lines)
        n_bytes = high - low
        width = PER_BYTE * n_bytes
        places = lines - PER_BYTE * low
        is_all = len(lines) == width and places[0] == 0
        is_start = not is_all and bool((places == np.arange(len(lines))).all())
        step = max(1, min(TILE_ENTRIES // width, MAX_TABLES))
        for first in range(start, stop, step):
            last = min(first + step, stop)
            packed = self._rows.packed(first, last, low, high)
            # take returns a contiguous array; indexing would not, and the lookup would copy it
            tables = np.take(self._values[first:last], CODES.reshape(-1), axis=1, mode="clip")
            entries = scratch("entries", packed.shape, np.intp)
            # a byte holds several genotypes, so one look into a table of 256 entries decodes all of
            # them
            np.add(packed, 256 * np.arange(last - first)[:, None], out=entries)
            tile = scratch("tile", (last - first, n_bytes, PER_BYTE))
            np.take(tables.reshape(-1, PER_BYTE), entries, axis=0, out=tile, mode="clip")
            flat = tile.reshape(last - first, width)
            if is_all:
                yield first, flat
            else:
                yield first, flat[:, : len(lines)] if is_start else flat[:, places]

    def _each_group(self, work: Callable[[int, int], T]) -> list[T]:
        """Call a function with each range of columns, on as many threads as BLAS may use."""
        cuts = np.linspace(0, self._rows.n_features, N_GROUPS + 1).astype(int).tolist()
        return map_on_threads(lambda columns: work(*columns), list(pairwise(cuts)))
