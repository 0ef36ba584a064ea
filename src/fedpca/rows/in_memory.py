"""Read rows from memory in blocks of bounded size.

Every source of rows, whether in memory or in files, has the same interface: the number of rows, the
column names, and an iterator over blocks. A block is a dense ``(m, d)`` array or a sparse CSR matrix.
This module does not center, scale, or reorder rows; `fedpca.rows.standardized` does that on the fly.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, cast

import numpy as np
import scipy.sparse as sp

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.rows.columns import HasColumns, matching_order, some_of

BLOCK_BYTES = 16 << 20  # size of a dense block; of a file, at most this much is in memory
WIDE_FEATURES = 8192  # dense blocks with at least this many features are multiplied in panels
WIDE_ROWS = 512  # how many rows that wide to take at a time, if no copy is needed
# a sparse block has at most this many times as many rows as a dense one
MAX_SPARSE_BLOCK_RATIO = 32
FILL_OR_DROP = "drop these rows or fill in the values"  # advice on values that are not finite

Block = Any  # a dense (m, d) array, or a CSR matrix of that shape


class Rows(HasColumns, Protocol):
    """The interface that every source of rows implements."""

    @property
    def n_rows(self) -> int: ...

    @property
    def pass_cost(self) -> float: ...  # the cost of reading one entry once, in multiplications

    @property
    def dtypes(self) -> Sequence[str]: ...  # the type of each column in the source

    def blocks(self) -> Iterator[Block]: ...


def about_n_rows(rows: Rows) -> float:
    """Return the number of rows, or an estimate if counting would take a pass over the rows."""
    estimate = getattr(rows, "about_n_rows", None)
    return float(rows.n_rows if estimate is None else estimate)


def weighted_blocks(rows: Rows) -> Iterator[tuple[Block, Array | None]]:
    """Yield each block with the weights of its rows, or with None if the rows have no weights."""
    own = getattr(rows, "weighted_blocks", None)
    yield from ((block, None) for block in rows.blocks()) if own is None else own()


def canonical(matrix: Any) -> Any:
    """Return a sparse matrix in any format as a CSR array without duplicate entries."""
    rows = sp.csr_array(matrix)
    if not rows.has_canonical_format:
        rows = rows.copy()  # the caller's matrix must not change
        rows.sum_duplicates()
    return rows


def is_sparse(block: Any) -> bool:
    """Return whether a block is sparse, without narrowing its type to one of scipy's classes."""
    return bool(sp.issparse(block))


def is_foreign(source: Any) -> bool:
    """Return whether rows are in an array of a library other than numpy, such as PyTorch."""
    is_array = hasattr(source, "__dlpack_device__") and hasattr(source, "shape")
    return is_array and not isinstance(source, np.ndarray)


def is_cells(source: Any) -> bool:
    """Return whether a source is AnnData or `fedpca.rows.cells.cell_rows.LoadedCells`."""
    # check only the class, because looking at the object could read or copy its values
    parts = ("obs_names", "var_names", "layers")
    return all(hasattr(type(source), name) for name in parts)


def is_wide(block: Block) -> bool:
    """Return whether a block is so wide that it is multiplied in panels of columns."""
    return block.shape[1] >= WIDE_FEATURES and not is_sparse(block)


def wide_views(rows: Rows) -> Iterator[Block] | None:
    """Return large blocks of wide rows, or None if rows are not wide or would have to be copied."""
    views = getattr(rows, "views", None)
    return None if views is None or rows.n_features < WIDE_FEATURES else views(WIDE_ROWS)


def rows_per_block(n_features: int) -> int:
    """Return the number of float64 rows that fill one block."""
    return max(1, BLOCK_BYTES // (8 * max(1, n_features)))


def sparse_rows_per_block(n_rows: int, n_features: int, n_stored: int) -> int:
    """Return the number of rows in each block of a sparse matrix with ``n_stored`` entries."""
    # an entry takes 12 bytes in a CSR block and 8 in a dense one
    density = n_stored / max(1, n_rows * n_features)
    # the scores of sparse rows are dense and take memory, so the ratio needs a limit
    ratio = min(1 / max(1.5 * density, 1e-3), MAX_SPARSE_BLOCK_RATIO)
    return max(1, int(rows_per_block(n_features) * ratio))


def batches(blocks: Iterable[Block], size: int) -> Iterator[Block]:
    """Yield the same rows in blocks of ``size`` rows; only the last block may be smaller."""
    pending: list[Block] = []
    n_pending = 0
    for block in blocks:
        start = 0
        while n_pending + block.shape[0] - start >= size:
            stop = start + size - n_pending
            yield stacked([*pending, block[start:stop]])
            pending, n_pending, start = [], 0, stop
        if start < block.shape[0]:
            pending.append(block[start:])
            n_pending += block.shape[0] - start
    if pending:
        yield stacked(pending)


def whole(rows: Rows) -> Block:
    """Return all rows as one array or sparse matrix."""
    return stacked(list(rows.blocks()) or [np.empty((0, rows.n_features))])


def stacked(blocks: Sequence[Block]) -> Block:
    """Join blocks into one block, which is sparse if any of them is sparse."""
    if len(blocks) == 1:
        return blocks[0]
    if any(is_sparse(block) for block in blocks):
        return sp.vstack(blocks, format="csr")
    return np.vstack(blocks)


class DenseRows:
    """Rows in a numpy array, or in anything that numpy can convert to one."""

    pass_cost = 4.0
    features = None

    def __init__(self, array: Any) -> None:
        if np.ma.is_masked(array):
            raise InputError(
                "the rows contain masked values; drop these rows or fill in the values"
            )
        try:
            self._array = _numeric(np.asarray(array))
        except InputError:
            raise
        except (ValueError, TypeError):
            # as for a ragged list; numpy's message may quote private values
            raise InputError(
                f"cannot convert {type(array).__name__} to a table of numbers; pass a 2-D array"
            ) from None
        self.n_rows, self.n_features = self._array.shape
        self.dtypes = (str(self._array.dtype),) * self.n_features

    def blocks(self) -> Iterator[Block]:
        return self.views(rows_per_block(self.n_features))

    def views(self, step: int) -> Iterator[Block]:
        """Yield blocks of ``step`` rows as views, which take no memory."""
        for start in range(0, self.n_rows, step):
            yield self._array[start : start + step]


class SparseRows:
    """Rows in a scipy sparse matrix or array, which stay sparse."""

    pass_cost = 4.0
    features = None

    def __init__(self, matrix: Any) -> None:
        if matrix.ndim != 2:
            raise InputError(f"the sparse array has {matrix.ndim} dimension(s); pass a 2-D array")
        check_numeric(matrix.dtype)
        self._matrix = canonical(matrix)
        self.n_rows, self.n_features = self._matrix.shape
        self.dtypes = (str(self._matrix.dtype),) * self.n_features
        self._step = sparse_rows_per_block(self.n_rows, self.n_features, self._matrix.nnz)

    def blocks(self) -> Iterator[Block]:
        for start in range(0, self.n_rows, self._step):
            is_whole = self._step >= self.n_rows
            yield self._matrix if is_whole else self._matrix[start : start + self._step]


class JoinedRows:
    """Rows from several named sources in sequence, such as the files in a folder."""

    def __init__(self, sources: Sequence[tuple[str, Rows]]) -> None:
        first_name, first = sources[0]
        self._sources: list[tuple[Rows, list[int] | None]] = []
        for name, rows in sources:
            where = f"{name}, compared with {first_name}"
            self._sources.append((rows, matching_order(first, rows, where)))
        self.features, self.n_features = first.features, first.n_features
        self.pass_cost = max(rows.pass_cost for rows, _ in self._sources)
        dtypes = [
            rows.dtypes if order is None else [rows.dtypes[i] for i in order]
            for rows, order in self._sources
        ]
        self.dtypes = tuple(" or ".join(sorted(set(kinds))) for kinds in zip(*dtypes, strict=True))

    @property
    def n_rows(self) -> int:
        return sum(rows.n_rows for rows, _ in self._sources)

    @property
    def about_n_rows(self) -> float:
        """Return an estimate of the number of rows."""
        return sum(about_n_rows(rows) for rows, _ in self._sources)

    def blocks(self) -> Iterator[Block]:
        for rows, order in self._sources:
            for block in rows.blocks():
                yield block if order is None else block[:, order]

    @property
    def id_schema(self) -> Any:
        """Return the types of the ids; if the sources differ, all ids are text."""
        import pyarrow as pa

        schemas = [cast(Any, rows).id_schema for rows, _ in self._sources]
        if all(schema.equals(schemas[0]) for schema in schemas):
            return schemas[0]
        return pa.schema([(name, pa.string()) for name in schemas[0].names])

    def blocks_with_ids(self) -> Iterator[tuple[Block, Any]]:
        """Yield each block with the ids of its rows, if all sources are tables with ids."""
        schema = self.id_schema
        for rows, order in self._sources:
            for block, ids in cast(Any, rows).blocks_with_ids():
                yield block if order is None else block[:, order], ids.cast(schema)


def refuse_non_finite(
    rows: Rows, *, way_out: str = FILL_OR_DROP, accepts_nan: bool = False
) -> None:
    """Raise an error that names the columns with NaN or infinite values.

    The error leaves the site, so it does not count these values: few rows may have them. Call this
    after a sum turned out not to be finite. If every value is finite, the error says that the sum
    overflowed. If ``accepts_nan`` is true, only infinite values count. ``way_out`` says what to do
    about NaN.
    """
    has_nan = has_inf = False
    columns: set[int] = set()
    for block, _ in weighted_blocks(rows):
        values = np.asarray(block.data if is_sparse(block) else block, dtype=np.float64)
        bad = np.isinf(values) if accepts_nan else ~np.isfinite(values)
        if bad.any():
            has_nan |= not accepts_nan and bool(np.isnan(values).any())
            has_inf |= bool(np.isinf(values).any())
            bad_columns = block.indices[bad] if is_sparse(block) else np.nonzero(bad)[1]
            columns.update(int(column) for column in bad_columns)
    if not columns:
        raise InputError(
            "the values are so large that their sums of squares overflow; rescale the columns"
        )
    names = [str(c) if rows.features is None else rows.features[c] for c in sorted(columns)]
    kinds = [kind for has, kind in ((has_nan, "NaN"), (has_inf, "infinity")) if has]
    raise InputError(
        f"Input contains {' and '.join(kinds)} in columns {some_of(names)}; "
        + (way_out if has_nan else FILL_OR_DROP)
    )


def checksum(rows: Rows) -> str:
    """Return the shape and a checksum of all values, to detect changes to rows in memory."""
    crc = 0
    for block, weights in weighted_blocks(rows):
        arrays = [block.data, block.indices, block.indptr] if is_sparse(block) else [block]
        for array in arrays if weights is None else [*arrays, weights]:
            crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
    return f"{rows.n_rows} x {rows.n_features} {crc:08x}"


def check_two_dimensions(ndim: int) -> None:
    """Refuse an array that does not have two dimensions."""
    if ndim != 2:
        raise InputError(
            f"the array has {ndim} dimension(s); pass a 2-D array. Reshape your data with "
            ".reshape(-1, 1) if it has one feature or .reshape(1, -1) if it has one row"
        )


def _numeric(array: Array) -> Array:
    check_two_dimensions(array.ndim)
    if array.dtype.kind in "OUS":
        try:
            array = array.astype(np.float64)
        except (ValueError, TypeError):
            raise InputError(
                f"rows with dtype {array.dtype} are not numeric; drop or encode the text columns"
            ) from None
    check_numeric(array.dtype)
    return array


def check_numeric(dtype: np.dtype[Any]) -> None:
    """Refuse a dtype that does not hold real numbers."""
    if dtype.kind == "c":
        raise InputError(f"Complex data not supported: the rows are {dtype}; pass real numbers")
    if dtype.kind not in "fiub":
        raise InputError(f"rows with dtype {dtype} are not numeric; pass real numbers")
