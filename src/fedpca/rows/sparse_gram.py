"""Multiply a sparse block of rows with itself, X'X, without going through pairs of zeros.

    X = [D S],   X'X = [D'D, D'S; S'D, S'S]

D holds the columns with the most entries, and S the others. A sparse product takes a step for each pair
of entries in a row, and most pairs are in few columns: in a table of cells, a tenth of the genes has
most of the counts. BLAS takes a step for each pair of columns, but its steps are a hundred times as
fast. So D is multiplied as a dense array, a few megabytes of rows at a time, and S as a sparse matrix.
"""

from __future__ import annotations

import numpy as np

from fedpca.arrays import Array
from fedpca.rows.in_memory import Block, rows_per_block

DENSE_FILL = 1 / 16  # dense products are faster for a column with a larger share of stored entries


def sparse_gram(block: Block) -> Array:
    """Return X'X, ``(d, d)``, for a CSR matrix X of float64."""
    n, d = block.shape
    is_full = np.bincount(block.indices, minlength=d) > DENSE_FILL * n
    gram = np.zeros((d, d))
    full, rest = np.flatnonzero(is_full), np.flatnonzero(~is_full)
    if not full.size:
        return np.asarray((block.T @ block).toarray())
    sparse = block[:, rest]
    inner, across = np.zeros((full.size, full.size)), np.zeros((rest.size, full.size))
    dense, step = block[:, full], rows_per_block(full.size)
    for start in range(0, n, step):
        tile = dense[start : start + step].toarray()
        inner += tile.T @ tile
        across += sparse[start : start + step].T @ tile
    gram[np.ix_(full, full)] = inner
    gram[np.ix_(rest, full)] = across
    gram[np.ix_(full, rest)] = across.T
    gram[np.ix_(rest, rest)] = (sparse.T @ sparse).toarray()
    return gram
