"""Attack sites whose gaps single out a row although no two columns' gaps do.

A run that fills gaps and moves the mean of column k reveals the sums over all rows with a value in
column k, and so the sums over its gaps (`fedpca.audit.lying_sums.moved_fill`). A run that drops rows
reveals the sums over the rows without any gap. Each of these sets may have many rows, and so may the
difference of any two, and still a combination of several of them can hold a single row.
"""

from __future__ import annotations

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.audit.liar import Found, Liar
from fedpca.audit.lying_sums import IS_ONE, products_about
from fedpca.rows.gaps import MISSING
from fedpca.solvers.common_features import names_to_bytes

MANY_GAPS = (
    11  # rows that only one column's gaps have; more than the min_count of the lab's policies
)
N_WITH_GAPS = 2 * MANY_GAPS + 1


def with_crossing_gaps(rows: Array) -> Array:
    """Return rows with gaps in the last two columns, which have only the first row in common."""
    gapped = rows.copy()
    gapped[: MANY_GAPS + 1, -1:] = np.nan
    gapped[[0, *range(MANY_GAPS + 1, min(N_WITH_GAPS, len(rows)))], -2:-1] = np.nan
    return gapped


def with_three_gaps(rows: Array) -> Array:
    """Return rows like those with crossing gaps, and another column with all of these gaps."""
    gapped = with_crossing_gaps(rows)
    gapped[:N_WITH_GAPS, -3:-2] = np.nan
    return gapped


def with_gaps_in_one_column(rows: Array) -> Array:
    """Return rows of which many lack their last value."""
    gapped = rows.copy()
    gapped[:N_WITH_GAPS, -1:] = np.nan
    return gapped


def crossing_gaps(liar: Liar) -> Found:
    """Find the row that two columns' gaps share, from two runs that fill gaps and one that drops rows.

    Over rows with a gap in the first column, in the second, and in any, the sums are a, b, and c. The
    sum over rows with both gaps is then ``a + b - c``.
    """
    filled, gaps = _sums_over_gaps(liar)
    dropped = _sums(liar, "drop")
    columns, n_gaps = _gapped(filled), _n_gaps(filled)
    n_left_out = filled["n"] - dropped["n"]
    if len(columns) != 2 or n_left_out != n_gaps[columns].sum() - 1:
        return Found()
    row = gaps[columns].sum(axis=0) - (filled["total"] - dropped["total"])
    row[columns] = 0.0  # the row has no value there
    return Found(row[None])


def three_gaps(liar: Liar) -> Found:
    """Find the row that two columns' gaps share, if a third column has all of their gaps."""
    filled, gaps = _sums_over_gaps(liar)
    columns, n_gaps = _gapped(filled), _n_gaps(filled)
    if len(columns) != 3 or 2 * n_gaps[columns].max() != n_gaps[columns].sum() - 1:
        return Found()
    widest = columns[np.argmax(n_gaps[columns])]
    row = gaps[columns].sum(axis=0) - 2 * gaps[widest]
    row[columns] = 0.0
    return Found(row[None])


def change_between_kinds(liar: Liar) -> Found:
    """Find a row that goes after a run that fills gaps, and before one that drops rows with gaps."""
    filled, gaps = _sums_over_gaps(liar)
    columns = _gapped(filled)
    if len(columns) != 1:
        return Found()
    liar.meanwhile()
    dropped = _sums(liar, "drop")
    gaps[columns, columns] = 0.0  # the total of this column holds its values only
    is_one = filled["n"] - _n_gaps(filled)[columns[0]] - dropped["n"] == 1
    row = filled["total"] - gaps[columns[0]] - dropped["total"]
    return Found(row[None] if is_one else None)


def _sums(liar: Liar, missing: str) -> Arrays:
    """Begin a run that treats gaps in this way, and return its sums."""
    liar.begin("FederatedPCA", solver="covariance", n_components=1, missing=missing)
    liar.ask_one("column_names")
    position = np.int64(MISSING.index(missing))
    return liar.ask("count_and_sum", features=names_to_bytes(None), missing=position)


def _sums_over_gaps(liar: Liar) -> tuple[Arrays, Array]:
    """Return the sums of a run that fills gaps, and each column's sums over each column's gaps.

    Row k has the sums over the gaps of column k, except in columns with gaps of their own.
    """
    products = []
    for moved in (0.0, 1.0):
        sums = _sums(liar, "mean")
        # every column with gaps moves, and all others stay
        products.append(products_about(liar, len(sums["total"]), moved * (_n_gaps(sums) > 0)))
    return sums, sums["total"] - (products[0] - products[1])


def _n_gaps(sums: Arrays) -> Array:
    return np.asarray(sums["n"] - sums["present"])


def _gapped(sums: Arrays) -> Array:
    return np.flatnonzero(_n_gaps(sums) > IS_ONE)
