"""Open rows whose columns must match those of a fitted model, and score them in blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.rows.columns import some_of
from fedpca.rows.in_memory import Block, Rows, refuse_non_finite
from fedpca.rows.open import open_rows
from fedpca.rows.reading import AS_STORED, Reading


def open_matching(
    source: Any,
    features: Sequence[str] | None,
    n_features: int,
    reading: Reading = AS_STORED,
    *,
    log_normalized: float = 0.0,
) -> Rows:
    """Return the rows in the columns that a model uses, in the model's order.

    If both the model and the source have column names, columns are matched by name, and other columns
    of the source are ignored. Otherwise, columns are matched by position, and ``reading`` may drop
    some.
    Cells are normalized as in the fit; other rows are assumed to be normalized already.
    """
    reading = replace(reading, log_normalize=log_normalized, of_model=True)
    if features is not None:
        both = [name for name in features if name in (*reading.drop, *reading.id)]
        if both:
            raise InputError(
                f"{some_of(both)} cannot be in drop or id, because the model uses it as a feature"
            )
        reading = replace(reading, columns=tuple(features), drop=())
    rows = open_rows(source, reading)
    if rows.n_features != n_features:
        where = source if isinstance(source, str | os.PathLike) else "the table"
        raise InputError(
            f"{where} has {rows.n_features} columns, but the model has {n_features} features; use the "
            "same columns as in the fit"
        )
    return rows


def scores_in_blocks(
    rows: Rows, score: Callable[[Block], Array], *, with_ids: bool = False
) -> Iterator[tuple[Array, Any]]:
    """Yield the scores of each block, with the ids of its rows if ``with_ids``, else with None."""
    for block, ids in _blocks(rows, with_ids):
        scores = score(block)
        if not np.isfinite(scores).all():
            refuse_non_finite(rows)
        yield scores, ids


def _blocks(rows: Rows, with_ids: bool) -> Iterator[tuple[Block, Any]]:
    if with_ids:
        yield from cast(Any, rows).blocks_with_ids()
    else:
        for block in rows.blocks():
            yield block, None
