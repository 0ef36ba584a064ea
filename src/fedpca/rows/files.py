"""Read rows from ``.npy``, ``.npz``, Parquet, and CSV files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedpca.errors import InputError, SiteFailed
from fedpca.rows.columns import distinct_names
from fedpca.rows.in_memory import (
    Block,
    DenseRows,
    Rows,
    SparseRows,
    check_numeric,
    rows_per_block,
)
from fedpca.rows.tables import dense_batch, numeric_schema


class NpyRows:
    """Rows in a ``.npy`` file, mapped one block at a time so that memory is freed after each block."""

    pass_cost = 40.0
    features = None

    def __init__(self, path: Path) -> None:
        whole = np.lib.format.open_memmap(path, mode="r")
        if whole.ndim != 2:
            raise InputError(f"the array has {whole.ndim} dimension(s); save a 2-D array")
        check_numeric(whole.dtype)
        self._path, self._dtype, self._offset = path, whole.dtype, whole.offset
        # rows in a Fortran-order file are not contiguous, so map it whole; the system pages it
        self._whole = None if whole.flags.c_contiguous else whole
        self.n_rows, self.n_features = whole.shape

    def blocks(self) -> Iterator[Block]:
        step = rows_per_block(self.n_features)
        for start in range(0, self.n_rows, step):
            stop = min(start + step, self.n_rows)
            yield self._map(start, stop) if self._whole is None else self._whole[start:stop]

    def _map(self, start: int, stop: int) -> Block:
        if not self.n_features:
            return np.empty((stop - start, 0))
        offset = self._offset + start * self.n_features * self._dtype.itemsize
        shape = (stop - start, self.n_features)
        try:
            return np.memmap(self._path, self._dtype, "r", offset, shape)
        except (OSError, ValueError):
            raise SiteFailed(f"{self._path} can no longer be read") from None


class ParquetRows:
    """Rows in a Parquet file, decoded one block at a time."""

    pass_cost = 200.0

    def __init__(self, path: Path) -> None:
        self._path = path
        import pyarrow as pa

        with self._open() as file:
            schema = file.schema_arrow
            self.n_rows = file.metadata.num_rows
        index = (schema.pandas_metadata or {}).get("index_columns", [])
        fields = [field for field in schema if field.name not in index]
        self.features = distinct_names([field.name for field in fields])
        self.n_features = len(self.features)
        self._schema = numeric_schema(pa.schema(fields))

    def blocks(self) -> Iterator[Block]:
        import pyarrow as pa

        try:
            with self._open() as file:
                size = rows_per_block(self.n_features)
                for batch in file.iter_batches(size, columns=list(self.features)):
                    yield dense_batch(batch, self._schema)
        except (OSError, pa.ArrowException):
            raise SiteFailed(f"{self._path} can no longer be read") from None

    def _open(self) -> Any:
        import pyarrow.parquet as pq

        # pre_buffer would keep a row group's raw bytes in addition to the decoded columns
        return pq.ParquetFile(self._path, pre_buffer=False)


CHARACTERS = 8  # of a number in a CSV file, roughly


class CsvRows:
    """Rows in a CSV file with a header line, parsed one block at a time."""

    pass_cost = 1000.0

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self._path = path
        with self._open(None) as reader:
            schema = reader.schema
        self.features = distinct_names(_header(schema.names))
        self.n_features = len(self.features)
        self._schema = numeric_schema(schema)
        # a column may start with integers and continue with fractions, so read all columns as float64;
        # only booleans keep their type, because Arrow cannot parse "true" as a float
        booleans = [field for field in schema if pa.types.is_boolean(field.type)]
        self._types = {field.name: field.type for field in self._schema}
        self._types |= {field.name: field.type for field in booleans}

    @cached_property
    def n_rows(self) -> int:
        return sum(len(block) for block in self.blocks())

    @cached_property
    def about_n_rows(self) -> float:
        """Return an estimate of the number of rows, from the size of the file."""
        return self._path.stat().st_size / (CHARACTERS * self.n_features)

    def blocks(self) -> Iterator[Block]:
        import pyarrow as pa

        try:
            n_rows = 0
            with self._open(self._types) as reader:
                for batch in reader:
                    n_rows += batch.num_rows
                    yield dense_batch(batch, self._schema)
            self.n_rows = n_rows  # counted for free by this pass
        except pa.ArrowInvalid as error:
            # Arrow's own message quotes the value, which is private
            column = re.search(r"CSV column #(\d+)", str(error))
            where = "a line" if column is None else f"column {self.features[int(column[1])]}"
            raise InputError(
                f"{self._path}: {where} contains a value that is not a number; correct or drop it"
            ) from None
        except OSError:
            raise SiteFailed(f"{self._path} can no longer be read") from None

    def _open(self, types: dict[str, Any] | None) -> Any:
        import pyarrow.csv as csv

        # Arrow's default block of 1 MB of text stays well below BLOCK_BYTES once parsed
        convert = csv.ConvertOptions(column_types=types)
        return csv.open_csv(self._path, convert_options=convert)


def _open_npz(path: Path) -> Rows:
    # given a path, numpy would not close a damaged file
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        names = list(archive.files)
        if "format" in names and "shape" in names:
            matrix = sp.csr_array(sp.load_npz(path))
            matrix.check_format(full_check=True)  # an index out of bounds would crash the process
            return SparseRows(matrix)
        if "X" not in names and len(names) > 1:
            raise InputError(f"the file contains the arrays {', '.join(names)}; name the rows 'X'")
        chosen = "X" if "X" in names else names[0]
        others = [name for name in names if name != chosen and archive[name].ndim == 2]
        if others:
            raise InputError(
                f"besides {chosen!r}, the file contains the tables {', '.join(others)}; save the rows "
                "of a site in a file of their own"
            )
        return DenseRows(archive[chosen])


def _header(names: list[str]) -> list[str]:
    """Return the column names, or refuse a first line that lacks names or contains numbers."""
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        raise InputError("the columns are not separated by commas; save the file with commas")
    if "" in names:
        raise InputError(
            f"column {names.index('') + 1} has no name; save the file without its row index"
        )
    looks_like_data = all(_is_number(name) for name in names)
    if looks_like_data and names != [str(i) for i in range(len(names))]:
        raise InputError("the first line contains numbers; it must contain the column names")
    return names


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


OPENERS: dict[str, Callable[[Path], Rows]] = {
    ".npy": NpyRows,
    ".npz": _open_npz,
    ".parquet": ParquetRows,
    ".csv": CsvRows,
}
