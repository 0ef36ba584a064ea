"""Read single cells as rows: AnnData objects and ``.h5ad`` files, whose columns are genes.

    y = log(1 + S x / sum(x)),   where the sum runs over all genes of a cell

Sparse values stay sparse: a zero stays zero, and rows are centered only in products. Genes are chosen
after cells are normalized, as in scanpy, so the choice of genes does not change the values. The package
anndata is not needed: an object is recognized by its attributes, and a file is read with h5py.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.rows.cells.h5ad import NAMES_OF_CELLS, CellFile, StoredRows
from fedpca.rows.columns import distinct_names, some_of
from fedpca.rows.formats.array_files import is_array_on_disk, open_array
from fedpca.rows.in_memory import (
    Block,
    DenseRows,
    Rows,
    SparseRows,
    batches,
    is_sparse,
    rows_per_block,
    sparse_rows_per_block,
)
from fedpca.rows.reading import Reading

SAME_SUM = 1e-3  # relative difference; sums of raw counts differ more than this between cells


class Cells(Protocol):
    """The interface of everything that holds cells."""

    @property
    def genes(self) -> Sequence[str]: ...

    @property
    def n_cells(self) -> int: ...

    def column(self, table: str, name: str) -> Array: ...  # of obs or var

    def columns_of(self, table: str) -> list[str]: ...

    def values(self, layer: str | None) -> Rows: ...


@dataclass(frozen=True)
class LoadedCells:
    """Cells in memory with the names of their genes, for use without AnnData.

    Parameters
    ----------
    X : array or sparse array of shape (n_cells, n_genes)
        The values.
    genes : tuple of str
        The names of the columns.
    """

    X: Any
    genes: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Return the number of cells and the number of genes."""
        n_cells, n_genes = self.X.shape
        return int(n_cells), int(n_genes)

    @property
    def n_cells(self) -> int:
        return self.shape[0]

    @property
    def obs_names(self) -> Sequence[str]:
        return [str(i) for i in range(self.n_cells)]

    @property
    def var_names(self) -> Sequence[str]:
        return self.genes

    @property
    def layers(self) -> dict[str, Any]:
        return {}

    def __getitem__(self, chosen: Array) -> LoadedCells:
        return LoadedCells(self.X[chosen], self.genes)

    def column(self, table: str, name: str) -> Array:
        raise KeyError(name)

    def columns_of(self, table: str) -> list[str]:
        return []

    def values(self, layer: str | None) -> Rows:
        if layer is not None:
            raise InputError(
                f"layer={layer!r} does not apply: these cells have no layers; omit layer"
            )
        return _rows_of(self.X)


class AnnDataCells:
    """The cells of an AnnData object, in memory or backed by a file."""

    def __init__(self, adata: Any) -> None:
        self._adata = adata
        self.genes = tuple(str(name) for name in adata.var_names)
        self.n_cells = len(adata.obs_names)

    def column(self, table: str, name: str) -> Array:
        frame = getattr(self._adata, table)
        if name == NAMES_OF_CELLS and name not in frame:
            return np.asarray(frame.index)
        column = frame[name]
        if isinstance(column.dtype, np.dtype) and column.dtype.kind != "O":
            return np.asarray(column)
        values = np.array(column, dtype=object)  # text, categories, or values with gaps
        values[np.asarray(column.isna())] = None
        return values

    def columns_of(self, table: str) -> list[str]:
        return [str(name) for name in getattr(self._adata, table).columns]

    def values(self, layer: str | None) -> Rows:
        if layer is not None and layer not in self._adata.layers:
            layers = some_of(list(self._adata.layers)) or "none"
            raise InputError(f"there is no layer {layer!r}; the layers are: {layers}")
        matrix = self._adata.X if layer is None else self._adata.layers[layer]
        if matrix is None:
            raise InputError("X is None; name the layer that holds the values")
        return _rows_of(matrix)


class CellRows:
    """Cells as rows, with the chosen genes as columns.

    Parameters
    ----------
    cells : Cells
        The cells.
    reading : Reading
        Which genes and ids to use, which values to read, and whether to normalize the values.
    """

    def __init__(self, cells: Cells, reading: Reading) -> None:
        self._cells = cells
        self.log_normalized = reading.log_normalize
        self._values = cells.values(reading.layer)
        shape, due = (
            (self._values.n_rows, self._values.n_features),
            (cells.n_cells, len(cells.genes)),
        )
        if shape != due:
            raise InputError(f"the values have shape {shape}, but there are {due} cells and genes")
        self.features = _chosen_genes(cells, reading)
        self.n_features = len(self.features)
        self._columns = _positions(self.features, cells.genes)
        self._ids = {name: self._id(name) for name in reading.id}
        self.n_rows, self.pass_cost = self._values.n_rows, self._values.pass_cost
        self.dtypes = (self._values.dtypes[0],) * self.n_features if len(cells.genes) else ()
        if self.log_normalized:
            self._check_counts(reading)
        self._is_as_stored = self._columns is None and not self.log_normalized
        if isinstance(self._values, SparseRows) and not self._is_as_stored:
            prepared = [self._prepared(block) for block in self._values.blocks()]
            whole = prepared[0] if len(prepared) == 1 else sp.vstack(prepared, format="csr")
            self._values, self._is_as_stored = SparseRows(whole), True
        if self._is_as_stored and hasattr(self._values, "views"):
            self.views = self._values.views
        self._step = 0 if self._is_as_stored else self._rows_per_block()

    def blocks(self) -> Iterator[Block]:
        if self._is_as_stored:
            yield from self._values.blocks()
        else:
            yield from batches(map(self._prepared, self._values.blocks()), self._step)

    @property
    def ids(self) -> Any:
        """Return the ids of all rows as an Arrow record batch."""
        import pyarrow as pa

        return pa.record_batch(self._ids)

    @property
    def id_schema(self) -> Any:
        """Return the types of the ids."""
        return self.ids.schema

    def blocks_with_ids(self) -> Iterator[tuple[Block, Any]]:
        """Yield each block with the ids of its rows, as an Arrow record batch."""
        ids, start = self.ids, 0
        for block in self.blocks():
            yield block, ids.slice(start, block.shape[0])
            start += block.shape[0]

    def _prepared(self, block: Block) -> Block:
        """Normalize cells if that is chosen, and return the chosen genes."""
        if self.log_normalized:
            block = log_normalized(block, self.log_normalized)
        return block if self._columns is None else block[:, self._columns]

    def _rows_per_block(self) -> int:
        """Return how many rows a block would have if the same values were in memory."""
        if not isinstance(self._values, StoredRows):
            return rows_per_block(self.n_features)
        chosen = slice(None) if self._columns is None else self._columns
        n_stored = sum(
            int(np.bincount(block.indices, minlength=block.shape[1])[chosen].sum())
            for block in self._values.blocks()
        )
        return sparse_rows_per_block(self.n_rows, self.n_features, n_stored)

    def _id(self, name: str) -> Any:
        """Return a column of obs as an Arrow array."""
        import pyarrow as pa

        known = self._cells.columns_of("obs")
        if name not in known and name != NAMES_OF_CELLS:
            raise InputError(
                f"there is no column {name} in obs; its columns are {some_of(known, most=10)}, "
                f"and {NAMES_OF_CELLS} stands for the names of the cells"
            )
        values = self._cells.column("obs", name)
        try:
            return pa.array(values.tolist())
        except pa.ArrowException:  # a mixture of types
            return pa.array(
                [None if value is None else str(value) for value in values], pa.string()
            )

    def _check_counts(self, reading: Reading) -> None:
        """Refuse values that are already normalized; warn about other values that are not counts."""
        where = "X" if reading.layer is None else f"layer {reading.layer!r}"
        way_out = "name the layer that holds the counts, or leave out log_normalize"
        for block in self._values.blocks():
            values = np.asarray(block.data if is_sparse(block) else block)
            if values.dtype.kind != "f" or (values == np.floor(values)).all():
                return
            for scale, raw in (("", block), ("log-", _expm1(block))):
                sums = _row_sums(raw)
                sums = sums[sums > 0]
                if len(sums) > 1 and np.ptp(sums) <= SAME_SUM * sums[0]:
                    raise InputError(
                        f"the values of {where} are {scale}normalized already; {way_out}"
                    )
            warnings.warn(
                f"log_normalize expects counts, but values of {where} are not whole numbers; if these "
                f"values are already normalized, {way_out}",
                UserWarning,
                stacklevel=2,
            )
            return


def log_normalized(block: Block, target: float) -> Block:
    """Return ``log(1 + target x / sum(x))`` for each row x; a row of zeros stays zero."""
    values = np.asarray(block.data if is_sparse(block) else block)
    if values.size and values.min() < 0:
        raise InputError(
            "log_normalize expects counts, but some values are negative; use values that are counts"
        )
    sums = _row_sums(block)
    factors = target / np.where(sums == 0, 1.0, sums)
    if not is_sparse(block):
        return np.log1p(block * factors[:, None])
    scaled = np.log1p(values * np.repeat(factors, np.diff(block.indptr)))
    return sp.csr_array((scaled, block.indices, block.indptr), block.shape)


def cells_in(source: Any) -> Cells:
    """Return the cells in an AnnData object or an ``.h5ad`` file."""
    if isinstance(source, str | os.PathLike):
        return CellFile(Path(source))
    return source if isinstance(source, LoadedCells) else AnnDataCells(source)


def open_cells(source: Any, reading: Reading) -> CellRows:
    """Return the rows in an AnnData object or an ``.h5ad`` file."""
    return CellRows(cells_in(source), reading)


def _chosen_genes(cells: Cells, reading: Reading) -> tuple[str, ...]:
    """Return the genes that are features; refuse a choice that does not fit the cells."""
    among: Sequence[str] = cells.genes
    name = reading.mask_var
    if name is not None:
        if reading.columns is not None:
            raise InputError("columns and mask_var both choose the genes; use only one of them")
        known = cells.columns_of("var")
        if name not in known:
            raise InputError(
                f"there is no column {name} in var; its columns are {some_of(known, most=10)}"
            )
        mask = cells.column("var", name).tolist()
        if not all(isinstance(is_used, bool) for is_used in mask):
            raise InputError(
                f"column {name} of var must be true or false for each gene; correct the column"
            )
        among = [gene for gene, is_used in zip(cells.genes, mask, strict=True) if is_used]
    features = replace(reading, id=()).features_among(among)
    chosen = set(features)
    distinct_names([gene for gene in cells.genes if gene in chosen])
    return features


def _positions(features: Sequence[str], genes: Sequence[str]) -> Array | None:
    """Return the column of each feature, or None if all genes are features in this order."""
    if tuple(features) == tuple(genes):
        return None
    position = {gene: i for i, gene in enumerate(genes)}
    return np.array([position[name] for name in features], dtype=np.intp)


def _rows_of(matrix: Any) -> Rows:
    """Return the rows of a matrix in an AnnData object; the matrix may be on disk."""
    if sp.issparse(matrix):
        return SparseRows(matrix)
    group = getattr(matrix, "group", None)
    if group is not None and getattr(matrix, "format", None) in ("csr", "csc"):
        if matrix.format == "csc":
            return SparseRows(matrix.to_memory())
        return StoredRows(lambda: nullcontext(group), "the file of the AnnData object")
    if is_array_on_disk(matrix):
        return open_array(matrix)
    if hasattr(type(matrix), "__dask_graph__"):
        raise InputError(
            "the values are a Dask array; pass adata.to_memory(), or the path of the file"
        )
    return DenseRows(matrix)


def _row_sums(block: Block) -> Array:
    return np.asarray(block @ np.ones(block.shape[1]))


def _expm1(block: Block) -> Block:
    with np.errstate(over="ignore"):
        return block.expm1() if is_sparse(block) else np.expm1(block)
