"""Read single cells from ``.h5ad`` files with only h5py, a few megabytes at a time.

The layout is that of AnnData's on-disk format: ``X`` and ``layers`` are dense datasets or groups with
the three arrays of a sparse matrix, and ``obs`` and ``var`` are groups with a dataset or a group for
each column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedpca.arrays import Array
from fedpca.errors import InputError, SiteFailed
from fedpca.rows.columns import some_of
from fedpca.rows.formats.array_files import ArrayRows, package
from fedpca.rows.in_memory import Block, Rows, SparseRows, check_numeric, sparse_rows_per_block

H5AD = ".h5ad"
NAMES_OF_CELLS = "obs_names"  # stands for the index of obs, which names the cells
DAMAGED_MATRIX = "the file is damaged: its sparse matrix is not consistent; write it again"

Opened = Callable[[], AbstractContextManager[Any]]


class StoredRows:
    """Rows of a sparse matrix on disk that is stored row by row.

    Parameters
    ----------
    opened : callable
        A function that opens the group for one pass over the rows; it returns a context manager.
    name : str
        The name of the matrix in errors.
    """

    pass_cost = 20.0
    features = None

    def __init__(self, opened: Opened, name: str) -> None:
        self._opened, self._name = opened, name
        with opened() as group:
            self.n_rows, self.n_features = shape_of(group)
            self._ends = _checked_ends(group, self.n_rows)
            check_numeric(group["data"].dtype)
            self.dtypes = (str(group["data"].dtype),) * self.n_features
        self._step = sparse_rows_per_block(self.n_rows, self.n_features, int(self._ends[-1]))

    def blocks(self) -> Iterator[Block]:
        """Yield the same blocks as if the rows were in memory, so that all sums have the same bits."""
        try:
            with self._opened() as group:
                for start in range(0, self.n_rows, self._step):
                    yield self._block(group, start, min(start + self._step, self.n_rows))
        except InputError:
            raise
        except (OSError, RuntimeError, ValueError, KeyError):
            raise SiteFailed(
                f"{self._name} can no longer be read; the site must restore it"
            ) from None

    def _block(self, group: Any, start: int, stop: int) -> Block:
        ends = self._ends[start : stop + 1]
        first, last = int(ends[0]), int(ends[-1])
        values, columns = group["data"][first:last], group["indices"][first:last]
        if columns.size and not 0 <= columns.min() <= columns.max() < self.n_features:
            # a column number out of range could crash the process
            raise InputError(f"{self._name}: {DAMAGED_MATRIX}")
        block = sp.csr_array((values, columns, ends - first), (stop - start, self.n_features))
        block.sum_duplicates()
        return block


class CellFile:
    """An ``.h5ad`` file: its genes, the columns of its tables, and its matrices.

    Parameters
    ----------
    path : Path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self._h5py, self._path = package("h5py", path, extra="anndata"), path
        with self.opened() as file:
            tables = [file.get(name) for name in ("obs", "var")]
            if any(table is None or "_index" not in table.attrs for table in tables):
                raise InputError(
                    "the file has no obs and var as AnnData has written them since version 0.7; "
                    "read it and write it again with a newer AnnData"
                )
            self.genes = tuple(str(name) for name in _values_of(file["var"], NAMES_OF_CELLS))
            self.n_cells = len(_values_of(file["obs"], NAMES_OF_CELLS))

    @contextmanager
    def opened(self, where: str = "/") -> Iterator[Any]:
        """Open the file for reading, and yield a group or a dataset in it."""
        with self._h5py.File(self._path, "r") as file:
            yield file[where]

    def column(self, table: str, name: str) -> Array:
        """Return a column of ``obs`` or ``var``; missing text is None."""
        with self.opened(table) as group:
            return _values_of(group, name)

    def columns_of(self, table: str) -> list[str]:
        """Return the names of the columns of ``obs`` or ``var``."""
        with self.opened(table) as group:
            return [str(name) for name in group.attrs.get("column-order", ())]

    def values(self, layer: str | None) -> Rows:
        """Return the rows in ``X`` or in a layer; their columns have no names."""
        where = "X" if layer is None else f"layers/{layer}"
        with self.opened() as file:
            if where not in file or file[where].attrs.get("encoding-type") == "null":
                layers = some_of(list(file.get("layers", ()))) or "none"
                raise InputError(f"the file has no {where}; its layers are: {layers}")
            item = file[where]
            kind = str(item.attrs.get("encoding-type", "array"))
            if kind == "csc_matrix":
                return SparseRows(_by_columns(item))
        name = f"{self._path}, {where},"
        if kind == "csr_matrix":
            return StoredRows(lambda: self.opened(where), name)
        if kind != "array":
            raise InputError(
                f"{where} is a {kind}; store the values as an array or a sparse matrix"
            )
        return ArrayRows(lambda: self.opened(where), name)


def shape_of(group: Any) -> tuple[int, int]:
    """Return the shape of a sparse matrix on disk."""
    n_rows, n_columns = (int(length) for length in group.attrs["shape"])
    return n_rows, n_columns


def _checked_ends(group: Any, n_vectors: int) -> Array:
    """Return the ends of the rows, or columns, of a sparse matrix; refuse inconsistent arrays."""
    ends = np.asarray(group["indptr"][:], dtype=np.int64)
    n_stored = group["data"].shape
    is_whole = len(ends) == n_vectors + 1 and n_stored == group["indices"].shape == (ends[-1],)
    if not is_whole or ends[0] != 0 or (np.diff(ends) < 0).any():
        raise InputError(DAMAGED_MATRIX)
    return ends


def _by_columns(group: Any) -> Any:
    """Read a whole sparse matrix that is stored column by column."""
    shape = shape_of(group)
    ends = _checked_ends(group, shape[1])
    rows = group["indices"][:]
    if rows.size and not 0 <= rows.min() <= rows.max() < shape[0]:
        raise InputError(DAMAGED_MATRIX)
    return sp.csc_array((group["data"][:], rows, ends), shape)


def _values_of(table: Any, name: str) -> Array:
    """Return a column of a table, or its index."""
    own = str(table.attrs["_index"])
    item = table[own if name == NAMES_OF_CELLS and name not in table else name]
    kind = str(item.attrs.get("encoding-type", "array"))
    if kind == "categorical":
        return _of_codes(item["codes"][:], _array_of(item["categories"]))
    if kind.startswith("nullable"):
        values = _array_of(item["values"]).astype(object)
        values[item["mask"][:]] = None
        return values
    if "categories" in item.attrs:  # categories as AnnData 0.7 wrote them
        return _of_codes(item[:], _array_of(item.file[item.attrs["categories"]]))
    return _array_of(item)


def _array_of(item: Any) -> Array:
    """Return a dataset as an array of numbers or of text."""
    if item.attrs.get("encoding-type") == "nullable-string-array":
        item = item["values"]
    return np.asarray(item.asstr()[:] if item.dtype.kind == "O" else item[:])


def _of_codes(codes: Array, categories: Array) -> Array:
    """Return the categories that codes stand for; -1 stands for None."""
    if codes.size and not -1 <= codes.min() <= codes.max() < len(categories):
        raise InputError(
            "the file is damaged: a column has codes without a category; write it again"
        )
    values = np.empty(len(categories) + 1, dtype=object)
    values[:-1] = categories
    return np.asarray(values[codes])
