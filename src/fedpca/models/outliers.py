"""List the outliers among rows: where they are, and the values of the low-rank part there.

An entry is an outlier if its score, which is its residual divided by the threshold, exceeds 1. The list
contains values of rows, so it is written only where the rows are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.models.robust import RobustModel
from fedpca.rows.columns import column_order
from fedpca.rows.in_memory import Rows, is_sparse
from fedpca.storage.table_file import writing_table


class Outliers(NamedTuple):
    """The outliers among some rows, in the order of rows and then columns."""

    row: Array  # (m,), positions counted from 0
    column: Array  # (m,), positions among the model's features
    value: Array  # (m,), as in the rows
    fitted: Array  # (m,), the value of the low-rank part
    score: Array  # (m,), above 1


def outliers_in(model: RobustModel, rows: Rows, order: list[int] | None) -> Iterator[Outliers]:
    """Yield the outliers in each block of rows; ``order`` puts columns in the model's order."""
    n_seen = 0
    for block in rows.blocks():
        dense = np.asarray(block.toarray() if is_sparse(block) else block, np.float64)
        ordered = dense if order is None else dense[:, order]
        parts = model.split(ordered)
        where = np.nonzero(parts.sparse)
        threshold = model.threshold * model.linear.scale[where[1]]
        yield Outliers(
            row=where[0] + n_seen,
            column=where[1],
            value=ordered[where],
            fitted=parts.low_rank[where],
            score=np.abs(parts.sparse[where]) / threshold,
        )
        n_seen += len(dense)


def write_outliers(
    path: Path,
    model: RobustModel,
    sites: Mapping[str, Rows],
    features: Sequence[str] | None,
    *,
    private: bool = False,
) -> None:
    """Write the outliers of some sites as CSV or Parquet, one line for each outlier.

    ``features`` are the names of the model's features; without names, columns are given by position.
    If ``private`` is true, only the owner of the file can read it.
    """
    import pyarrow as pa

    named = _positions(model) if features is None else [str(name) for name in features]
    names = np.array(named, dtype=object)
    texts, numbers = ("site", "column"), ("value", "fitted", "score")
    kinds = {**dict.fromkeys(texts, pa.string()), **dict.fromkeys(numbers, pa.float64())}
    schema = pa.schema(
        [(name, kinds.get(name, pa.int64())) for name in ("site", *Outliers._fields)]
    )
    with writing_table(path, schema, private=private) as writer:
        for site, rows in sites.items():
            is_named = features is not None and rows.features is not None
            order = column_order(named, rows.features or (), f"site {site!r}") if is_named else None
            for found in outliers_in(model, rows, order):
                columns = found._replace(column=names[found.column])
                arrays = [np.full(len(found.row), site, dtype=object), *columns]
                batch = [pa.array(a, t) for a, t in zip(arrays, schema.types, strict=True)]
                writer.write_batch(pa.record_batch(batch, schema=schema))


def _positions(model: RobustModel) -> list[str]:
    return [str(j) for j in range(len(model.linear.mean))]
