"""Find columns in which only a few rows differ from the most frequent value.

A sum over such a column reveals a sum over these few rows. If fewer than m of n >= 2m rows differ from
the most frequent value, then more than m of the first 2m rows have this value, so it is their upper
median. The other rows are compared with it until every column has m rows that differ. In columns of
measurements, most values differ, so the first 2m rows are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from fedpca.arrays import Array
from fedpca.rows.gaps import DROP, MEAN, are_counted, gaps_of, has_gaps, rows_with_gaps
from fedpca.rows.in_memory import Block, Rows, is_sparse, weighted_blocks

MAX_PAIRS = 3e7  # pairs of gaps in a row that are compared at most; they take up to 400 MB


class Few(NamedTuple):
    """How many rows are used, and in which columns fewer than m rows stand out."""

    n_rows: int  # rows that are used; counting may stop after 2 m
    rare: list[str]  # columns in which at least one row, but fewer than m, differ from most
    # variants that fewer than m samples lack while they have another; see `fedpca.rows.gap_patterns`
    # for other rows
    gapped: Sequence[str] = ()


def look_for_few(rows: Rows, m: int, missing: int, gapped: Array | None = None) -> Few:
    """Count the rows that are used, and name the rare columns.

    ``missing`` says what happens to gaps, as a position in `fedpca.rows.gaps.MISSING`. A gap counts as
    a value of its own. Rows with weight zero do not count. If gaps are filled, the products of two
    columns are sums over the rows with both values. So each column is also looked at in the rows that
    have a value in each of the columns ``gapped``, of which one of each pattern of gaps is enough.
    """
    if are_counted(rows, missing):
        differ = rows.n_rows - rows.counts.max(axis=1)
        few_gaps = _has_few_gaps(rows, m) if missing == MEAN else np.zeros(0, bool)
        return Few(
            rows.n_rows, names_at(rows, (differ > 0) & (differ < m)), names_at(rows, few_gaps)
        )
    everywhere = Usual(rows.n_features, m)
    present = {int(j): Usual(rows.n_features, m) for j in (() if gapped is None else gapped)}
    for block, _ in weighted_blocks(rows):
        if missing == DROP and has_gaps(block):
            block = block[~rows_with_gaps(block)]
        everywhere.add(block)
        for j, usual in present.items():
            if not usual.is_settled:
                usual.add(block[~np.isnan(_dense(block[:, [j]])[:, 0])])
        if all(usual.is_settled for usual in (everywhere, *present.values())):
            break
    is_rare = np.any([usual.is_rare for usual in (everywhere, *present.values())], axis=0)
    return Few(everywhere.n_rows, names_at(rows, is_rare))


class Usual:
    """Which columns of rows, which are added block by block, are rare."""

    def __init__(self, n_features: int, m: int) -> None:
        self._m, self._head = m, np.zeros((0, n_features))
        self._usual: Array | None = None  # the most frequent value in each column that is rare
        self._differ, self._open = np.zeros(n_features, int), np.arange(n_features)
        self.n_rows = 0

    @property
    def is_settled(self) -> bool:
        """Return whether no more rows are needed, because no column is rare."""
        return self._usual is not None and not self._open.size

    @property
    def is_rare(self) -> Array:
        """Return which columns are rare, ``(d,)`` of bool."""
        if self._usual is not None:
            return (self._differ > 0) & (self._differ < self._m)
        if self.n_rows < self._m:
            return np.zeros(len(self._differ), bool)
        return _is_rare(np.sort(self._head, axis=0), self._m)

    def add(self, block: Block) -> None:
        """Add the next rows."""
        self.n_rows += block.shape[0]
        if self._usual is None:
            start = min(block.shape[0], 2 * self._m - len(self._head))
            self._head = np.vstack([self._head, _dense(block[:start])])
            block = block[start:]
            if self.n_rows >= 2 * self._m:
                first = np.sort(self._head, axis=0)
                self._usual = first[self._m]
                self._differ = (~_same(first, self._usual)).sum(axis=0)
                self._open = np.flatnonzero(self._differ < self._m)
                self._head = self._head[:0].copy()  # there may be many of these objects
        if self._usual is not None and self._open.size and block.shape[0]:
            self._differ[self._open] += _n_other(block, self._open, self._usual[self._open])
            self._open = self._open[self._differ[self._open] < self._m]


def _has_few_gaps(rows: Rows, m: int) -> Array:
    """Return the variants that fewer than m samples lack while they have some other variant.

    If gaps are filled with the mean, then changing the mean of the variant with the gaps reveals the
    sum of the other one over these samples. If there are too many gaps to compare variants in pairs,
    all variants with gaps are marked. Combinations of three and more variants are not looked at:
    random gaps in thousands of variants would leave no variant.
    """
    number, n_pairs = np.zeros(rows.n_features), 0.0
    # rows with gaps in both of two columns
    together = sp.csr_array((rows.n_features, rows.n_features))
    for block, _ in weighted_blocks(rows):
        if has_gaps(block):
            gaps = sp.csr_array(gaps_of(block))
            n_pairs += float(np.square(np.diff(gaps.indptr).astype(float)).sum())
            number += np.bincount(gaps.indices, minlength=rows.n_features)
            if n_pairs <= MAX_PAIRS:
                together = together + gaps.T @ gaps
    if n_pairs > MAX_PAIRS:
        return np.asarray(number > 0)
    pairs = together.tocoo()
    apart = number[pairs.row] - pairs.data  # rows with a gap in one column and a value in the other
    has_few = (number > 0) & (number < m)
    has_few[pairs.row[(apart > 0) & (apart < m)]] = True
    return np.asarray(has_few)


def names_at(rows: Rows, chosen: Array) -> list[str]:
    """Return the names of the chosen columns, which are a mask, or their positions as text."""
    positions = np.flatnonzero(chosen)
    return [str(i) if rows.features is None else rows.features[i] for i in positions]


def _is_rare(ordered: Array, m: int) -> Array:
    """Return which columns of sorted values are rare: fewer than m rows differ from the usual value.

    A value that occurs only once is not a usual value. So a column of m different values is not rare.
    """
    apart = max(ordered.shape[0] - m, 1)  # from the first to the last row with the usual value
    is_frequent = _same(ordered[apart:], ordered[:-apart]).any(axis=0)
    return np.asarray(is_frequent & ~_same(ordered[0], ordered[-1]))


def _same(values: Array, others: Array) -> Array:
    """Return where values are equal; NaN equals NaN."""
    return np.asarray((values == others) | (np.isnan(values) & np.isnan(others)))


def _n_other(block: Block, columns: Array, usual: Array) -> Array:
    """Return the number of rows in each chosen column that differ from its usual value."""
    if not is_sparse(block):
        return np.asarray((~_same(np.asarray(block[:, columns], np.float64), usual)).sum(axis=0))
    part = block[:, columns]
    stored = np.bincount(part.indices, minlength=len(columns))
    values = part.data.astype(np.float64)
    same = _same(values, usual[part.indices])
    other = np.bincount(part.indices[~same], minlength=len(columns))
    return np.asarray(other + (block.shape[0] - stored) * (usual != 0))


def _dense(block: Block) -> Array:
    return np.asarray(block.toarray() if is_sparse(block) else block, np.float64)
