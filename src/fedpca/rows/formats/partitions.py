"""Read columns whose values are in the folder names of a dataset, as in ``hospital=north/``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fedpca.rows.formats.tables import Table

_NOTHING = "__HIVE_DEFAULT_PARTITION__"  # the name of the folder for rows without a value

Partition = Mapping[str, str | None]
NO_PARTITION: Partition = {}


def partition_of(file: Path, folder: Path) -> Partition:
    """Return the values in the names of the folders between ``folder`` and a file in it."""
    parts = [part.partition("=") for part in file.relative_to(folder).parts[:-1]]
    values = {unquote(name): unquote(value) for name, equals, value in parts if name and equals}
    return {name: None if value == _NOTHING else value for name, value in values.items()}


class PartitionedTable:
    """A table in one file of a partitioned dataset, with columns made from its folders' names.

    The columns from folder names hold text, so they are not features. But they can name each row's site
    or identify rows. If the file itself has a column of the same name, the file's column is used.
    """

    has_names = True

    def __init__(self, table: Table, partition: Partition) -> None:
        import pyarrow as pa

        self._table = table
        self._added = {k: v for k, v in partition.items() if k not in set(table.names)}
        self.names = [*table.names, *self._added]
        self.index = [*table.index, *self._added]
        fields = [pa.field(name, pa.string()) for name in self._added]
        self.schema = pa.schema([*table.schema, *fields])
        self.pass_cost = table.pass_cost

    @property
    def n_rows(self) -> int:
        return self._table.n_rows

    @property
    def about_n_rows(self) -> float:
        return self._table.about_n_rows

    def batches(self, columns: Sequence[str], size: int) -> Iterator[Any]:
        import pyarrow as pa

        own = [name for name in columns if name not in self._added]
        for batch in self._table.batches(own, size):
            arrays = {name: batch.column(name) for name in own}
            for name in columns:
                if name in self._added:
                    value = pa.scalar(self._added[name], pa.string())
                    arrays[name] = pa.repeat(value, batch.num_rows)
            yield pa.record_batch([arrays[name] for name in columns], names=list(columns))
