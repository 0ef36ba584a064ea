"""Give weights to rows: a row with weight w counts as w equal rows.

    m = sum w x / sum w,   S = sum w (x - m)(x - m)'

Rows with weight zero are left out, so it does not matter what they contain.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.rows.columns import some_of
from fedpca.rows.in_memory import Block, Rows, about_n_rows


class WeightedRows:
    """Rows with weights, which are in one of the columns or in an array.

    Parameters
    ----------
    rows : Rows
        The rows, with the column of weights if they have one.
    weight : str or array of shape (n_rows,)
        The name of the column that holds the weights, or the weights.
    """

    def __init__(self, rows: Rows, weight: Any) -> None:
        self._rows = rows
        self._column: int | None = None
        self._weights: Array | None = None
        self.pass_cost = rows.pass_cost
        self.features, self.n_features = rows.features, rows.n_features
        self.dtypes = rows.dtypes
        if isinstance(weight, str):
            self._column = _position(rows, weight)
            self._others = [i for i in range(rows.n_features) if i != self._column]
            self.features = tuple(name for name in rows.features or () if name != weight)
            self.n_features -= 1
            self.dtypes = tuple(rows.dtypes[i] for i in self._others)
        else:
            self._weights = checked_weights(weight, rows.n_rows)

    @cached_property
    def n_rows(self) -> int:
        """Return the number of rows whose weight is not zero."""
        return sum(block.shape[0] for block, _ in self.weighted_blocks())

    @property
    def about_n_rows(self) -> float:
        """Return an estimate of the number of rows."""
        return about_n_rows(self._rows)

    def blocks(self) -> Iterator[Block]:
        """Raise an error, because a reader of blocks without weights would ignore the weights."""
        raise InputError("the rows have weights, which this method does not use; omit the weights")

    def weighted_blocks(self) -> Iterator[tuple[Block, Array]]:
        """Yield blocks of rows and their weights, without rows whose weight is zero."""
        start = n_rows = 0
        for block in self._rows.blocks():
            if self._weights is None:
                weights = _checked_values(np.asarray(block[:, self._column], np.float64))
                block = block[:, self._others]
            else:
                weights = self._weights[start : start + block.shape[0]]
                start += block.shape[0]
            counts = weights > 0
            n_rows += int(counts.sum())
            yield (block, weights) if counts.all() else (block[counts], weights[counts])
        self.n_rows = n_rows  # counted for free by this pass


def checked_weights(weights: Any, n_rows: int) -> Array:
    """Return weights as an array with one value per row, or refuse them."""
    array = as_numbers(weights)
    if array.shape != (n_rows,):
        raise InputError(
            f"the weights have shape {array.shape}; pass one weight for each of the {n_rows} rows"
        )
    return _checked_values(array)


def as_numbers(weights: Any) -> Array:
    """Return a float64 copy of weights, so that the caller cannot change them later."""
    try:
        return np.array(weights, dtype=np.float64)
    except (ValueError, TypeError):  # numpy's message may quote a private value
        raise InputError("the weights are not numbers; pass one number per row") from None


def weight_fingerprint(weight: str | Array) -> str:
    """Return text that identifies the weights, by which a change between runs is noticed."""
    if isinstance(weight, str):
        return f"weight {weight}"
    return f"weights {zlib.crc32(np.ascontiguousarray(weight).data):08x}"


def _checked_values(weights: Array) -> Array:
    n_bad = int(np.sum(~(np.isfinite(weights) & (weights >= 0))))
    if n_bad:
        raise InputError(
            f"{n_bad:,} weights are negative or not finite; use 0 to leave out a row, and positive "
            "numbers for all other rows"
        )
    return weights


def _position(rows: Rows, name: str) -> int:
    """Return the position of the column of weights."""
    if rows.features is None:
        raise InputError(
            f"weight={name!r} names a column, but the columns have no names; pass the weights as an "
            "array"
        )
    if name not in rows.features:
        raise InputError(
            f"weight={name!r} must be the name of a column; the columns are {some_of(rows.features)}"
        )
    return rows.features.index(name)
