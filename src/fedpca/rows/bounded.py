"""Put rows on a grid of whole numbers within a ball, so that one row can move a sum only so far.

    q(x) = round((x - c) min(1, r / |x - c|) 2^b / r),   |q(x)| <= 2^b

A row is centered at c, moved into the ball of radius r if it is outside, and rounded to whole numbers.
A row that is moved ends slightly inside the ball, so that rounding cannot take it out again. A row's
place on the grid does not depend on other rows. Sums of whole numbers and of their products are exact,
in any order, as long as they stay below 2^53. So adding a row changes a sum only by what the row
contributes. It never changes how other rows are rounded.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.rows.in_memory import Rows, is_sparse, rows_per_block

RADIUS_BITS = 18  # the radius is 2^18 steps of the grid
RADIUS = 1 << RADIUS_BITS  # radius of the ball, in steps of the grid
# products of this many rows add up without rounding in float64
MAX_EXACT_ROWS = 1 << (53 - 2 * RADIUS_BITS)
# at all sites together; sums of products of so many rows, and noise, fit in int64
MAX_ROWS = 1 << 25

NOT_FINITE = (
    "some values are missing or infinite, and a private run does not tell how many; drop these rows, "
    "or fill in values that do not depend on other rows; fedpca check lists the columns"
)


def bounded_blocks(
    rows: Rows, center: Array, radius: float, order: Array | None = None
) -> Iterator[Array]:
    """Yield rows on the grid, as float64 blocks ``(m, d)`` of whole numbers, at most 2^17 rows each.

    ``order`` holds the rows' column for each entry of ``center``, or is None if the order is the same.
    """
    step = min(rows_per_block(rows.n_features), MAX_EXACT_ROWS)
    for block in rows.blocks():
        for start in range(0, block.shape[0], step):
            part = block[start : start + step]
            dense = np.asarray(part.toarray() if is_sparse(part) else part, dtype=np.float64)
            if not np.isfinite(dense).all():
                raise InputError(NOT_FINITE)
            yield on_grid(dense if order is None else dense[:, order], center, radius)


def on_grid(rows: Array, center: Array, radius: float) -> Array:
    """Return finite rows as whole numbers within the ball, ``(m, d)``.

    No row is refused because it is too large: an error about one row would reveal that the row exists.
    """
    with np.errstate(over="ignore"):
        offsets = np.ascontiguousarray(rows - center)
    most = np.finfo(np.float64).max
    np.clip(offsets, -most, most, out=offsets)
    largest = np.abs(offsets).max(axis=1, initial=radius, keepdims=True)
    offsets /= largest  # so that no square overflows
    # numpy adds up each row by itself, in an order that no other row affects
    lengths = np.sqrt((offsets * offsets).sum(axis=1, keepdims=True))
    # less than 1, which leaves room for rounding
    limit = 1.0 - (np.sqrt(rows.shape[1]) / 2 + 1) / RADIUS
    with np.errstate(over="ignore", divide="ignore"):
        # an overflow does no harm: min(1, infinity) is 1
        offsets *= RADIUS * np.minimum(largest / radius, limit / lengths)
    return np.asarray(np.rint(offsets, out=offsets))
