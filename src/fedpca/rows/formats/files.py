"""Read rows from files of every supported kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedpca.errors import InputError, SiteFailed
from fedpca.rows.cells.cell_rows import open_cells
from fedpca.rows.cells.h5ad import H5AD
from fedpca.rows.formats.array_files import open_hdf5, open_zarr, zarr_parts
from fedpca.rows.formats.csv_file import CsvFile
from fedpca.rows.formats.partitions import Partition, PartitionedTable
from fedpca.rows.formats.tables import Table, TableRows
from fedpca.rows.genotypes.genotype_rows import open_genotypes
from fedpca.rows.genotypes.plink_files import Genotypes, fileset
from fedpca.rows.in_memory import (
    Block,
    DenseRows,
    Rows,
    SparseRows,
    check_numeric,
    rows_per_block,
)
from fedpca.rows.reading import OptionKind, Reading

BED = ".bed"  # ends the name of a file of genotypes, which comes with two text files
BUFFER_BYTES = 1 << 16  # raw bytes to read at a time from each column of a Parquet file
MAX_MAPPED_BYTES = 64 << 20  # to map at a time, because mapped bytes count as the process's memory

Opener = Callable[[Path, Reading, Partition], Rows]


class Format(NamedTuple):
    """What is known about the files with one ending; a new format is a row in `ENDINGS`."""

    open: Opener
    kind: OptionKind = OptionKind.TABLE  # says which options of a reading apply
    parts: Callable[[Path], list[Path]] | None = None  # the files that hold the rows, if several do
    is_folder: bool = False


class NpyRows:
    """Rows in a ``.npy`` file, mapped block by block, so that memory is freed after each block."""

    pass_cost = 40.0
    features = None

    def __init__(self, path: Path) -> None:
        whole = np.lib.format.open_memmap(path, mode="r")
        if whole.ndim != 2:
            raise InputError(f"the array has {whole.ndim} dimension(s); save a 2-D array")
        check_numeric(whole.dtype)
        self._path, self._dtype, self._offset = path, whole.dtype, whole.offset
        # rows in Fortran order are not contiguous, so map the whole file; the system pages it
        self._whole = None if whole.flags.c_contiguous else whole
        self.n_rows, self.n_features = whole.shape
        self.dtypes = (str(whole.dtype),) * self.n_features

    def blocks(self) -> Iterator[Block]:
        return self.views(rows_per_block(self.n_features))

    def views(self, step: int) -> Iterator[Block]:
        """Yield blocks of ``step`` rows, or of fewer rows if so many must not be mapped at a time."""
        row_bytes = max(1, self.n_features * self._dtype.itemsize)
        step = min(step, max(rows_per_block(self.n_features), MAX_MAPPED_BYTES // row_bytes))
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
            raise SiteFailed(
                f"{self._path} can no longer be read; the site must restore it"
            ) from None


class ParquetFile:
    """A Parquet file, decoded one block at a time."""

    pass_cost = 200.0
    has_names = True

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._open() as file:
            self.schema = file.schema_arrow
            self.n_rows = file.metadata.num_rows
        self.about_n_rows = float(self.n_rows)
        self.names = self.schema.names
        self.index = pandas_index(self.schema)

    def batches(self, columns: Sequence[str], size: int) -> Iterator[Any]:
        import pyarrow as pa

        try:
            with self._open() as file:
                yield from file.iter_batches(size, columns=list(columns))
        except (OSError, pa.ArrowException):
            raise SiteFailed(
                f"{self._path} can no longer be read; the site must restore it"
            ) from None

    def _open(self) -> Any:
        import pyarrow.parquet as pq

        # otherwise, memory would hold the raw bytes of a row group and its decoded columns
        return pq.ParquetFile(self._path, pre_buffer=False, buffer_size=BUFFER_BYTES)


class FeatherFile:
    """A Feather file, read one batch at a time."""

    pass_cost = 50.0
    has_names = True

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._open(None) as file:
            self.schema = file.schema
        self.names = self.schema.names
        self.index = pandas_index(self.schema)

    @cached_property
    def n_rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches(self.schema.names[:1], 0))

    @property
    def about_n_rows(self) -> float:
        return float(self.n_rows)

    def batches(self, columns: Sequence[str], size: int) -> Iterator[Any]:
        """Yield batches of at most ``size`` rows, or the file's own batches if ``size`` is 0."""
        import pyarrow as pa

        try:
            with self._open(columns) as file:
                for i in range(file.num_record_batches):
                    batch = file.get_batch(i).select(list(columns))
                    step = size or batch.num_rows
                    for start in range(0, batch.num_rows, max(1, step)):
                        yield batch.slice(start, step)
        except (OSError, pa.ArrowException):
            raise SiteFailed(
                f"{self._path} can no longer be read; the site must restore it"
            ) from None

    def _open(self, columns: Sequence[str] | None) -> Any:
        import pyarrow as pa

        fields = None
        if columns is not None:
            fields = [self.schema.get_field_index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        return pa.ipc.open_file(pa.OSFile(str(self._path)), options=options)


def pandas_index(schema: Any) -> list[str]:
    """Return the columns that hold the row index of a pandas data frame."""
    names = (schema.pandas_metadata or {}).get("index_columns", [])
    return [name for name in names if isinstance(name, str)]


def _open_npz(path: Path) -> Rows:
    # if numpy got the path, it would not close a damaged file
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
                "of each site in a separate file"
            )
        return DenseRows(archive[chosen])


def format_of(path: Path) -> Format:
    """Return what is known about a file by its name."""
    return ENDINGS.get(kind_of(path), _UNKNOWN)


def kind_of(path: Path) -> str:
    """Return the ending of a file's name, such as ``.csv`` or ``.csv.gz``."""
    name = path.name.lower()
    return next((kind for kind in ENDINGS if name.endswith(kind)), path.suffix)


def name_of(path: Path) -> str:
    """Return a file's name without the ending that `kind_of` returns."""
    return path.name[: len(path.name) - len(kind_of(path))]


def _unnamed(opener: Callable[[Path], Rows]) -> Opener:
    """Return an opener of files whose columns have no names."""

    def open_file(path: Path, reading: Reading, partition: Partition) -> Rows:
        reading.check_unnamed()
        return opener(path)

    return open_file


def _in_folders(table: Callable[[Path], Table]) -> Opener:
    """Return an opener of tables that may be part of a partitioned dataset."""

    def open_file(path: Path, reading: Reading, partition: Partition) -> Rows:
        opened = table(path)
        return TableRows(PartitionedTable(opened, partition) if partition else opened, reading)

    return open_file


def _open_cells(path: Path, reading: Reading, partition: Partition) -> Rows:
    return open_cells(path, reading)


def _open_csv(path: Path, reading: Reading, partition: Partition) -> Rows:
    return TableRows(CsvFile(path, reading), reading)


def _open_bed(path: Path, reading: Reading, partition: Partition) -> Rows:
    return open_genotypes(Genotypes(path), reading)


def _open_unknown(path: Path, reading: Reading, partition: Partition) -> Rows:
    raise InputError(f"cannot read {path.suffix!r} files; use {', '.join(ENDINGS)}")


_UNKNOWN = Format(_open_unknown)
ENDINGS: dict[str, Format] = {
    ".npy": Format(_unnamed(NpyRows)),
    ".npz": Format(_unnamed(_open_npz)),
    ".parquet": Format(_in_folders(ParquetFile)),
    ".feather": Format(_in_folders(FeatherFile)),
    ".arrow": Format(_in_folders(FeatherFile)),
    H5AD: Format(_open_cells, OptionKind.CELLS),
    ".h5": Format(_unnamed(open_hdf5)),
    ".hdf5": Format(_unnamed(open_hdf5)),
    ".zarr": Format(_unnamed(open_zarr), parts=zarr_parts, is_folder=True),
    BED: Format(_open_bed, OptionKind.GENOTYPES, parts=fileset),
    ".csv": Format(_open_csv),
    ".tsv": Format(_open_csv),
    ".csv.gz": Format(_open_csv),
    ".tsv.gz": Format(_open_csv),
}
