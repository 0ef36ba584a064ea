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
    """How many rows are used and left out, and in which columns fewer than m rows stand out."""

    n_rows: int  # rows that are used; counting may stop after 2 m
    n_left_out: int  # rows left out because they have gaps; counting may stop after m
    rare: list[str]  # columns in which at least one row, but fewer than m, differ from most
    gapped: Sequence[str] = ()  # columns where fewer than m rows have a gap and a value elsewhere


def look_for_few(rows: Rows, m: int, missing: int) -> Few:
    """Count the rows that are used and those that are left out, and name the rare columns.

    ``missing`` says what happens to gaps, as a position in `fedpca.rows.gaps.MISSING`. A gap counts as
    a value of its own. Rows with weight zero do not count.
    """
    if are_counted(rows, missing):
        differ = rows.n_rows - rows.counts.max(axis=1)
        gapped = _has_few_gaps(rows, m) if missing == MEAN else np.zeros(0, bool)
        return Few(rows.n_rows, 0, _names(rows, (differ > 0) & (differ < m)), _names(rows, gapped))
    head: list[Array] = []
    n = n_left_out = 0
    usual: Array | None = None  # the value that is the most frequent in each column that is rare
    differ, open_columns = np.zeros(0, int), np.arange(rows.n_features)
    for block, _ in weighted_blocks(rows):
        if missing == DROP and has_gaps(block):
            whole = ~rows_with_gaps(block)
            n_left_out += int(block.shape[0] - whole.sum())
            block = block[whole]
        n += block.shape[0]
        if usual is None:
            start = min(block.shape[0], 2 * m - sum(part.shape[0] for part in head))
            head.append(_dense(block[:start]))
            block = block[start:]
            if n >= 2 * m:
                first = np.sort(np.vstack(head), axis=0)
                usual = first[m]
                differ = (~_same(first, usual)).sum(axis=0)
                open_columns = np.flatnonzero(differ < m)
        if usual is not None and open_columns.size and block.shape[0]:
            differ[open_columns] += _n_other(block, open_columns, usual[open_columns])
            open_columns = open_columns[differ[open_columns] < m]
        if usual is not None and not open_columns.size and (missing != DROP or n_left_out >= m):
            break
    if usual is None:
        is_rare = _is_rare(np.sort(np.vstack(head), axis=0), m) if n >= m else np.zeros(0, bool)
    else:
        is_rare = (differ > 0) & (differ < m)
    is_gapped = _has_few_gaps(rows, m) if missing == MEAN else np.zeros(0, bool)
    return Few(n, n_left_out, _names(rows, is_rare), _names(rows, is_gapped))


def _has_few_gaps(rows: Rows, m: int) -> Array:
    """Return in which columns fewer than m rows have a gap and also a value in some other column.

    If gaps are filled with the mean, then changing the mean of the column with the gaps reveals the sum
    of the other column over these rows. If there are too many gaps to compare columns in pairs, all
    columns with gaps are marked.
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


def _names(rows: Rows, chosen: Array) -> list[str]:
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
