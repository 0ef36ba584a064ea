"""Attack parts of a site's rows that two runs tell apart, although the site has many rows.

The difference between two runs' products is about the rows that have come or gone between the runs, or
about the rows with gaps, if one run fills gaps and the other drops rows. If there are fewer of these
rows than columns, the attacks on X'X of small sites work (`fedpca.audit.lying_flags`,
`fedpca.audit.lying_known`). A run that fills gaps is enough for a column with few values: its products
are about the rows with these values.
"""

from __future__ import annotations

import numpy as np

from fedpca.arrays import Array
from fedpca.audit.liar import Found, Liar
from fedpca.audit.lying_flags import rows_of_flags
from fedpca.audit.lying_known import DECIMAL_PLACES, flags
from fedpca.audit.lying_sums import HonestMoments, honest_moments, products_about
from fedpca.rows.gaps import MISSING
from fedpca.solvers.common_features import names_to_bytes

N_USUAL, N_APART, D_WIDE = 520, 20, 260  # rows of both parts, and columns
N_LINKED, D_LINKED = 100, 50  # rows and columns of a table with a column that is mostly empty


def many_flags(rows: Array) -> Array:
    """Return a table of flags with twice as many rows as columns."""
    return flags(np.random.default_rng(6), N_USUAL + N_APART, D_WIDE)


def many_flags_with_gaps(rows: Array) -> Array:
    """Return a table of flags with twice as many rows as columns, and gaps in the last rows."""
    gapped = many_flags(rows)
    gapped[-N_APART:, -1:] = np.nan
    return gapped


def with_mostly_empty_column(rows: Array) -> Array:
    """Return a table whose last column has a value in fewer rows than there are columns."""
    rng = np.random.default_rng(7)
    sparse = rng.normal(size=(N_LINKED, D_LINKED)).round(DECIMAL_PLACES)
    sparse[D_LINKED - 1 :, -1:] = np.nan
    return sparse


def all_but_last(rows: Array) -> range:
    """Return the indices of all columns but the last one."""
    return range(rows.shape[1] - 1)


def rows_that_came(liar: Liar) -> Found:
    """Find the rows that go between two honest runs from the difference of their X'X."""
    before = honest_moments(liar)
    liar.meanwhile()
    liar.again()
    after = honest_moments(liar)
    return rows_of_flags(_minus(before, after))


def rows_with_gaps(liar: Liar) -> Found:
    """Find the rows with gaps from X'X of a run that fills gaps and of one that drops rows."""
    filled, dropped = (_about_zero(liar, missing) for missing in ("mean", "drop"))
    apart = _minus(filled, dropped)
    whole = np.arange(len(apart.sums) - 1)
    found = rows_of_flags(
        HonestMoments(apart.n, apart.sums[whole], apart.products[np.ix_(whole, whole)])
    )
    if found.records is None:
        return found
    return Found(np.column_stack([found.records, np.zeros(len(found.records))]))


def mostly_empty_column(liar: Liar) -> Found:
    """Solve for a column with few values from its products with columns that the liar knows."""
    found = _about_zero(liar, "mean")
    last = len(found.sums) - 1
    K = np.column_stack([np.ones(len(liar.known[0])), *liar.known.values()])
    products = np.append(found.sums[last], found.products[:last, last])
    # the liar knows which rows have a value
    return Found(values={last: np.linalg.lstsq(K[:last].T, products, rcond=None)[0]})


def _about_zero(liar: Liar, missing: str) -> HonestMoments:
    """Begin a run that treats gaps in this way; return n, the sums, and X'X, in which gaps are 0."""
    liar.begin("FederatedPCA", solver="covariance", n_components=1, missing=missing)
    liar.ask_one("column_names")
    position = np.int64(MISSING.index(missing))
    counted = liar.ask("count_and_sum", features=names_to_bytes(None), missing=position)
    products = products_about(liar, len(counted["total"]))
    return HonestMoments(int(counted["n"]), counted["total"], products)


def _minus(all_rows: HonestMoments, others: HonestMoments) -> HonestMoments:
    """Return the moments of flags that are in one set of rows and not in the other."""
    sums, products = all_rows.sums - others.sums, all_rows.products - others.products
    return HonestMoments(all_rows.n - others.n, np.rint(sums), np.rint(products))
