"""Present rows with gaps as rows without gaps. A gap is a missing value, marked by NaN.

    "error"   gaps are refused
    "mean"    a gap is filled with the mean of its column over all sites
    "drop"    rows with a gap are left out

The mean of a column is the mean of the values present. So after centering, a filled gap is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeGuard

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.rows.columns import some_of
from fedpca.rows.genotypes.genotype_rows import GenotypeRows
from fedpca.rows.gpu.device_rows import DeviceRows, MovedRows, OnDevice
from fedpca.rows.gpu.products import sums_on_device
from fedpca.rows.in_memory import (
    FILL_OR_DROP,
    Block,
    Rows,
    is_sparse,
    is_wide,
    refuse_non_finite,
    weighted_blocks,
    wide_views,
)
from fedpca.rows.panels import Panels

# what to do with gaps; messages contain the position in this list
MISSING = ("error", "mean", "drop")
ERROR, MEAN, DROP = range(3)
WAY_OUT = (
    "use FederatedPCA with missing='mean' or missing='drop', or RobustPCA, which finds components "
    "despite missing values"
)


class Totals(NamedTuple):
    """Totals over the rows of a site that count: their number, weight, and column sums."""

    n: int
    weight: float  # of all rows; n if the rows have no weights
    sums: Array  # (d,), over the values present
    present: Array  # (d,), the weight of the values present


def column_totals(
    rows: Rows, missing: int = ERROR, also: Callable[[Block, Array | None], None] | None = None
) -> Totals:
    """Return the totals of the rows that count; refuse values that are not finite.

    ``also`` is a function that is called with each block and its weights.
    """
    d = rows.n_features
    if are_counted(rows, missing):
        return _totals_of_counts(rows.counts, rows.features, missing)
    there = on_device(rows, missing)
    if there is not None:
        n, sums = sums_on_device(there)
        if np.isfinite(sums).all():  # otherwise, the blocks show where values are not finite
            return Totals(n, float(n), sums, np.full(d, float(n)))
    n, weight, sums = 0, 0.0, np.zeros(d)
    n_absent, absent = np.zeros(d), np.zeros(d)
    with np.errstate(over="ignore", invalid="ignore"):
        for block, weights in counting_blocks(rows, missing, may_be_tall=True):
            if also is not None:
                also(block, weights)
            each = np.ones(block.shape[0]) if weights is None else weights
            n += block.shape[0]
            weight += float(each.sum())
            if missing == MEAN and has_gaps(block):
                gaps = gaps_of(block)
                # in rows as well as in weight, because only the rows tell without rounding that no
                # value is left
                n_absent += np.ones(block.shape[0]) @ gaps
                absent += each @ gaps
                block = filled(block, np.zeros(d))
            # multiplying by ones sums in float64, at the speed of BLAS
            sums += Panels(np.zeros(d)).sums(block, each) if is_wide(block) else each @ block
    if not np.isfinite(sums).all():
        way_out = WAY_OUT if missing == ERROR else FILL_OR_DROP
        refuse_non_finite(rows, way_out=way_out, accepts_nan=missing != ERROR)
    return Totals(n, weight, sums, np.where(n_absent < n, weight - absent, 0.0))


def are_counted(rows: Rows, missing: int) -> TypeGuard[GenotypeRows]:
    """Return whether rows are genotypes, none of them left out, so values can simply be counted."""
    return isinstance(rows, GenotypeRows) and missing != DROP


def _totals_of_counts(counts: Array, names: Sequence[str], missing: int) -> Totals:
    """Return the totals of genotypes, given how often each value occurs in each column."""
    n = int(counts[0].sum())
    absent = counts[:, 3]
    if missing == ERROR and absent.any():
        columns = some_of([names[i] for i in np.flatnonzero(absent).tolist()])
        raise InputError(f"Input contains NaN in columns {columns}; {WAY_OUT}")
    sums = (counts[:, 1] + 2 * counts[:, 2]).astype(np.float64)
    return Totals(n, float(n), sums, (n - absent).astype(np.float64))


def on_device(rows: Rows, missing: int) -> OnDevice | None:
    """Return the rows if they can be multiplied on a device, or else None.

    Rows with weights are read in blocks instead, and so are rows with gaps, unless gaps are refused.
    """
    if isinstance(rows, DeviceRows | MovedRows) and (missing == ERROR or not rows.has_gaps):
        return rows
    return None


def counting_blocks(
    rows: Rows, missing: int, fill: Array | None = None, *, may_be_tall: bool = False
) -> Iterator[tuple[Block, Array | None]]:
    """Yield blocks of the rows that count, and their weights; fill gaps with ``fill``, ``(d,)``.

    Without ``fill``, gaps stay. If ``may_be_tall`` is true, blocks of wide rows may be larger than
    usual where that needs no copy.
    """
    views = wide_views(rows) if may_be_tall and missing == ERROR else None
    if views is not None:
        yield from ((block, None) for block in views)
        return
    for block, weights in weighted_blocks(rows):
        if missing == ERROR or not has_gaps(block):
            yield block, weights
        elif missing == DROP:
            is_whole = ~rows_with_gaps(block)
            yield block[is_whole], None if weights is None else weights[is_whole]
        else:
            yield block if fill is None else filled(block, fill), weights


def has_gaps(block: Block) -> bool:
    """Return whether any value in a block is missing."""
    values = block.data if is_sparse(block) else block
    # the minimum is NaN if any value is NaN, and computing it takes no memory
    return values.dtype.kind == "f" and bool(np.isnan(np.min(values, initial=0.0)))


def gaps_of(block: Block) -> Block:
    """Return an array or CSR matrix, float64, that is 1 where a value is missing and 0 elsewhere."""
    if not is_sparse(block):
        return np.isnan(block).astype(np.float64)
    gaps = block.astype(np.float64)
    gaps.data = np.isnan(block.data).astype(np.float64)
    return gaps


def filled(block: Block, fill: Array) -> Block:
    """Return a float64 copy of a block with missing values replaced by ``fill``, ``(d,)``."""
    if not is_sparse(block):
        return np.where(np.isnan(block), fill, block)
    copy = block.astype(np.float64, copy=True)
    copy.data = np.where(np.isnan(copy.data), fill[copy.indices], copy.data)
    return copy


def rows_with_gaps(block: Block) -> Array:
    """Return which rows of a block have a missing value, ``(m,)`` of bool."""
    gaps = gaps_of(block)
    return np.asarray(gaps @ np.ones(block.shape[1]) > 0)
