"""Read rows from data frames and Arrow tables, and convert Arrow columns to blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.rows.columns import distinct_names, some_of
from fedpca.rows.in_memory import Block, rows_per_block


class TableRows:
    """Rows in a pandas or polars data frame or a pyarrow table, read through Arrow."""

    pass_cost = 20.0

    def __init__(self, table: Any) -> None:
        self._table = _arrow_table(table)
        names = distinct_names(self._table.schema.names)
        # as in scikit-learn, columns with numeric names are matched by position
        self.features = names if _has_names(table) else None
        self._schema = numeric_schema(self._table.schema)
        self.n_rows, self.n_features = self._table.num_rows, len(names)

    def blocks(self) -> Iterator[Block]:
        for batch in self._table.to_batches(max_chunksize=rows_per_block(self.n_features)):
            yield dense_batch(batch, self._schema)


def numeric_schema(schema: Any) -> Any:
    """Return the schema with every column as float64, or refuse columns that are not numeric."""
    import pyarrow as pa
    import pyarrow.types as kinds

    def is_numeric(kind: Any) -> bool:
        return bool(
            kinds.is_integer(kind)
            or kinds.is_floating(kind)
            or kinds.is_boolean(kind)
            or kinds.is_decimal(kind)
            or kinds.is_null(kind)
        )

    other = [f"{field.name} ({field.type})" for field in schema if not is_numeric(field.type)]
    if other:
        raise InputError(f"these columns are not numeric: {some_of(other)}; drop or encode them")
    return pa.schema([(field.name, pa.float64()) for field in schema])


def dense_batch(batch: Any, schema: Any) -> Array:
    """Return an Arrow record batch as a dense ``(m, d)`` block, with NaN for nulls."""
    if not batch.num_columns or not batch.num_rows:
        return np.empty((batch.num_rows, batch.num_columns))
    # a safe cast would refuse integers above 2^53; round them instead, as numpy does
    tensor = batch.cast(schema, safe=False).to_tensor(null_to_nan=True, row_major=True)
    return np.asarray(tensor.to_numpy())


def _has_names(table: Any) -> bool:
    return not _is_pandas(table) or any(isinstance(name, str) for name in table.columns)


def _is_pandas(table: Any) -> bool:
    return type(table).__module__.startswith("pandas") and hasattr(table, "columns")


def _arrow_table(table: Any) -> Any:
    """Return a data frame's columns as an Arrow table, without the pandas row index."""
    import pyarrow as pa

    if not _is_pandas(table):
        try:
            return pa.table(table)
        except (pa.ArrowException, TypeError):
            raise InputError(
                f"cannot convert {type(table).__name__} to a table; pass a data frame"
            ) from None
    names = distinct_names([str(name) for name in table.columns])
    columns = []
    for i, name in enumerate(names):
        try:
            columns.append(pa.Array.from_pandas(table.iloc[:, i]))
        except (pa.ArrowException, TypeError, ValueError):  # these messages quote a private value
            raise InputError(
                f"these columns are not numeric: {name}; drop or encode them"
            ) from None
    return pa.table(columns, names=list(names))
