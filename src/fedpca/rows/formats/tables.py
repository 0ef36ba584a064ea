"""Read rows from tables with named columns, and convert Arrow columns to blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.rows.columns import distinct_names, some_of
from fedpca.rows.in_memory import Block, rows_per_block
from fedpca.rows.reading import AS_STORED, Reading


class Table(Protocol):
    """The interface of everything with named columns, in memory or in a file."""

    @property
    def names(self) -> Sequence[str]: ...  # of all columns

    @property
    def schema(self) -> Any: ...  # of all columns, or of the chosen ones

    @property
    def index(self) -> Sequence[str]: ...  # columns that are features only if they are chosen

    @property
    def has_names(self) -> bool: ...  # otherwise, columns are matched by position

    @property
    def n_rows(self) -> int: ...

    @property
    def about_n_rows(self) -> float: ...

    @property
    def pass_cost(self) -> float: ...

    def batches(self, columns: Sequence[str], size: int) -> Iterator[Any]: ...


class TableRows:
    """Rows in the chosen columns of a table."""

    def __init__(self, table: Table, reading: Reading = AS_STORED) -> None:
        self._table = table
        if not table.has_names:
            reading.check_unnamed()
            reading = AS_STORED
        features = reading.features_among(table.names, table.index)
        distinct_names([name for name in table.names if name in {*features, *reading.id}])
        chosen = [table.schema.field(name) for name in features]
        self._schema = numeric_schema(chosen)
        self._names = features
        self.features = features if table.has_names else None
        self.n_features = len(features)
        self.dtypes = tuple(str(field.type) for field in chosen)
        self.id_schema = _id_schema(table.schema, reading.id)
        self.pass_cost = table.pass_cost

    @property
    def n_rows(self) -> int:
        return self._table.n_rows

    @property
    def about_n_rows(self) -> float:
        """Return the number of rows, or an estimate if counting them would take a pass."""
        return self._table.about_n_rows

    def blocks(self) -> Iterator[Block]:
        for batch in self._table.batches(self._names, rows_per_block(self.n_features)):
            yield dense_batch(batch, self._schema)

    def blocks_with_ids(self) -> Iterator[tuple[Block, Any]]:
        """Yield each block of features with the ids of its rows, as an Arrow record batch."""
        ids = self.id_schema.names
        columns = list(dict.fromkeys([*self._names, *ids]))
        for batch in self._table.batches(columns, rows_per_block(self.n_features)):
            block = dense_batch(batch.select(list(self._names)), self._schema)
            yield block, batch.select(ids).cast(self.id_schema)


class InMemoryTable:
    """A pandas or polars data frame or a pyarrow table."""

    pass_cost = 20.0
    index = ()

    def __init__(self, table: Any) -> None:
        self._table = _arrow_table(table)
        self.schema = self._table.schema
        self.names = self.schema.names
        # as in scikit-learn, columns with numeric names are matched by position
        self.has_names = _has_names(table)
        self.n_rows = self._table.num_rows
        self.about_n_rows = float(self.n_rows)

    def batches(self, columns: Sequence[str], size: int) -> Iterator[Any]:
        yield from self._table.select(list(columns)).to_batches(max_chunksize=size)


def numeric_schema(fields: Sequence[Any]) -> Any:
    """Return a schema with every column as float64, or refuse columns that are not numeric."""
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

    other = [f"{field.name} ({field.type})" for field in fields if not is_numeric(field.type)]
    if other:
        raise InputError(
            f"these columns are not numeric: {some_of(other)}; leave them out with --drop, use --id if "
            "they identify the rows (in Python, drop= and id= of Site), or encode them as numbers"
        )
    return pa.schema([(field.name, pa.float64()) for field in fields])


def dense_batch(batch: Any, schema: Any) -> Array:
    """Return an Arrow record batch as a dense ``(m, d)`` block, with NaN for nulls."""
    if not batch.num_columns or not batch.num_rows:
        return np.empty((batch.num_rows, batch.num_columns))
    if batch.schema.types != schema.types:  # a cast takes a quarter as long as decoding
        # a safe cast would refuse integers above 2^53; round them instead, as numpy does
        batch = batch.cast(schema, safe=False)
    return np.asarray(batch.to_tensor(null_to_nan=True, row_major=True).to_numpy())


def _id_schema(schema: Any, ids: Sequence[str]) -> Any:
    """Return the types of the ids; a dictionary column has the type of its values."""
    import pyarrow as pa

    fields = [schema.field(name) for name in ids]
    plain = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in fields]
    return pa.schema(list(zip(ids, plain, strict=True)))


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
    for i in range(len(names)):
        try:
            columns.append(pa.Array.from_pandas(table.iloc[:, i]))
        except (pa.ArrowException, TypeError, ValueError):
            # a column of mixed types cannot be a feature
            columns.append(pa.array(table.iloc[:, i].astype(str), pa.string()))
    return pa.table(columns, names=list(names))
