"""A site's private rows, whatever they come in, read in blocks of bounded size.

Every kind of rows gives the same few things: how many there are, what the columns are called, and
an iterator of blocks, each a dense ``(m, d)`` array or a sparse CSR matrix. Nothing here centres,
scales or reorders; `fedpca.framed` does that on the fly.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp

from fedpca.errors import InputError
from fedpca.message import Array

BLOCK_BYTES = 16 << 20  # of one dense block; the bound on what reading a file holds at a time
MOST_ROWS_A_BLOCK = 32  # times as many rows as in a dense block, for sparse ones

Block = Any  # a dense (m, d) array, or a CSR matrix of that shape


class HasColumns(Protocol):
    """Anything with columns that may have names."""

    @property
    def features(self) -> tuple[str, ...] | None: ...

    @property
    def n_features(self) -> int: ...


class Rows(HasColumns, Protocol):
    """What every kind of rows offers."""

    @property
    def n_rows(self) -> int: ...

    @property
    def pass_cost(self) -> float: ...  # of reading one entry once, in multiplications

    def blocks(self) -> Iterator[Block]: ...


def open_rows(source: Any) -> Rows:
    """Rows from an array, a sparse matrix, a data frame, a table, files, or folders of files."""
    paths = paths_of(source)
    if paths:
        from fedpca.files import open_paths

        return open_paths(paths)
    if sp.issparse(source):
        return SparseRows(source)
    if hasattr(source, "__arrow_c_stream__"):
        from fedpca.tables import TableRows

        return TableRows(source)
    return DenseRows(source)


def paths_of(source: Any) -> list[str]:
    """The names of files, patterns and folders that a source is; none where it is in memory."""
    paths = source if isinstance(source, list | tuple) and source else [source]
    is_named = all(isinstance(path, str | os.PathLike) for path in paths)
    return [os.fspath(path) for path in paths] if is_named else []


def canonical(matrix: Any) -> Any:
    """A sparse matrix of any kind as a CSR array in which each entry stands once."""
    rows = sp.csr_array(matrix)
    if not rows.has_canonical_format:
        rows = rows.copy()  # the caller's matrix is not ours to tidy
        rows.sum_duplicates()
    return rows


def is_sparse(block: Any) -> bool:
    """Whether a block is sparse; the type checker need not know which of scipy's classes it is."""
    return bool(sp.issparse(block))


def rows_per_block(n_features: int) -> int:
    """How many rows of float64 fill one block."""
    return max(1, BLOCK_BYTES // (8 * max(1, n_features)))


def batches(blocks: Iterable[Block], size: int) -> Iterator[Block]:
    """The same rows, ``size`` at a time but for the last, however the blocks were cut."""
    pending: list[Block] = []
    n_pending = 0
    for block in blocks:
        start = 0
        while n_pending + block.shape[0] - start >= size:
            stop = start + size - n_pending
            yield _stacked([*pending, block[start:stop]])
            pending, n_pending, start = [], 0, stop
        if start < block.shape[0]:
            pending.append(block[start:])
            n_pending += block.shape[0] - start
    if pending:
        yield _stacked(pending)


def _stacked(blocks: Sequence[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    if any(is_sparse(block) for block in blocks):
        return sp.vstack(blocks, format="csr")
    return np.vstack(blocks)


class DenseRows:
    """Rows of a numpy array, or of anything that numpy can turn into one."""

    pass_cost = 4.0
    features = None

    def __init__(self, array: Any) -> None:
        if np.ma.is_masked(array):
            raise InputError("rows have masked values; drop those rows or fill them in")
        try:
            self._array = _numeric(np.asarray(array))
        except InputError:
            raise
        except (ValueError, TypeError):  # a ragged list, whose text may quote values
            raise InputError(f"a {type(array).__name__} is not a table of numbers") from None
        self.n_rows, self.n_features = self._array.shape

    def blocks(self) -> Iterator[Block]:
        step = rows_per_block(self.n_features)
        for start in range(0, self.n_rows, step):
            yield self._array[start : start + step]


class SparseRows:
    """Rows of a scipy sparse matrix or array, which stay sparse."""

    pass_cost = 4.0
    features = None

    def __init__(self, matrix: Any) -> None:
        if matrix.ndim != 2:
            raise InputError(f"sparse rows have {matrix.ndim} dimension; give a 2-D matrix")
        check_numeric(matrix.dtype)
        self._matrix = canonical(matrix)
        self.n_rows, self.n_features = self._matrix.shape
        # a block of CSR costs 12 bytes an entry against 8 of a dense one
        density = self._matrix.nnz / max(1, self.n_rows * self.n_features)
        # and its scores cost as much as those of dense rows, however empty the rows are
        fuller = min(1 / max(1.5 * density, 1e-3), MOST_ROWS_A_BLOCK)
        self._step = max(1, int(rows_per_block(self.n_features) * fuller))

    def blocks(self) -> Iterator[Block]:
        for start in range(0, self.n_rows, self._step):
            whole = self._step >= self.n_rows
            yield self._matrix if whole else self._matrix[start : start + self._step]


class JoinedRows:
    """The rows of several parts, one after another: the files of a folder."""

    def __init__(self, parts: Sequence[tuple[str, Rows]]) -> None:
        first_name, first = parts[0]
        self._parts: list[tuple[Rows, list[int] | None]] = []
        for name, part in parts:
            where = f"{name}, compared with {first_name}"
            self._parts.append((part, matching_order(first, part, where)))
        self.features, self.n_features = first.features, first.n_features
        self.pass_cost = max(part.pass_cost for part, _ in self._parts)

    @property
    def n_rows(self) -> int:
        return sum(part.n_rows for part, _ in self._parts)

    def blocks(self) -> Iterator[Block]:
        for part, order in self._parts:
            for block in part.blocks():
                yield block if order is None else block[:, order]


def matching_order(reference: HasColumns, other: HasColumns, where: str) -> list[int] | None:
    """Where ``reference``'s columns stand in ``other``; None where they stand alike."""
    if other.features is not None and reference.features is not None:
        return column_order(reference.features, other.features, where)
    if other.n_features != reference.n_features:
        raise InputError(f"{where}: {other.n_features} columns instead of {reference.n_features}")
    if (other.features is None) != (reference.features is None):
        raise InputError(f"{where}: one has column names and the other has none; name both")
    return None


def column_order(wanted: Sequence[str], present: Sequence[str], where: str) -> list[int] | None:
    """Where each wanted column stands among those present; None where they stand alike."""
    if tuple(wanted) == tuple(present):
        return None
    missing = [name for name in wanted if name not in set(present)]
    extra = [name for name in present if name not in set(wanted)]
    if missing or extra:
        parts = [
            f"{len(group)} {word} ({some_of(group)})"
            for word, group in (("missing", missing), ("extra", extra))
            if group
        ]
        raise InputError(f"{where}: other columns: {', '.join(parts)}")
    place = {name: index for index, name in enumerate(present)}
    return [place[name] for name in wanted]


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """The column names, or an error that lists those that stand twice."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(f"duplicate columns: {some_of(twice)}; give each column a name of its own")
    return tuple(names)


def refuse_non_finite(rows: Rows) -> None:
    """Raise an error that counts the NaN and infinite values and names their columns."""
    n_nan = n_inf = 0
    columns: set[int] = set()
    for block in rows.blocks():
        values = block.data if is_sparse(block) else np.asarray(block)
        bad = ~np.isfinite(np.asarray(values, dtype=np.float64))
        if bad.any():
            n_nan += int(np.isnan(values).sum())
            n_inf += int(np.isinf(values).sum())
            where = block.indices[bad] if is_sparse(block) else np.nonzero(bad)[1]
            columns.update(int(column) for column in where)
    if not columns:
        raise InputError("values so large that sums of their squares overflow; rescale the columns")
    names = [str(c) if rows.features is None else rows.features[c] for c in sorted(columns)]
    found = [f"{n:,} {what}" for n, what in ((n_nan, "NaN"), (n_inf, "infinity")) if n]
    raise InputError(
        f"Input contains {' and '.join(found)} in columns {some_of(names)}; "
        "drop those rows or fill them in"
    )


def checksum(rows: Rows) -> str:
    """The shape and a checksum of all values, for rows in memory, which no file's state tells of."""
    crc = 0
    for block in rows.blocks():
        parts = (block.data, block.indices, block.indptr) if is_sparse(block) else (block,)
        for part in parts:
            crc = zlib.crc32(np.ascontiguousarray(part).data, crc)
    return f"{rows.n_rows} x {rows.n_features} {crc:08x}"


def _numeric(array: Array) -> Array:
    if array.ndim != 2:
        raise InputError(
            f"rows have {array.ndim} dimension(s); give a 2-D array. Reshape your data with "
            ".reshape(-1, 1) if it has one feature or .reshape(1, -1) if it is one row"
        )
    if array.dtype.kind in "OUS":
        try:
            array = array.astype(np.float64)
        except (ValueError, TypeError):
            raise InputError(f"rows of dtype {array.dtype} are not numeric") from None
    check_numeric(array.dtype)
    return array


def check_numeric(dtype: np.dtype[Any]) -> None:
    """Refuse a dtype that is not one of real numbers."""
    if dtype.kind == "c":
        raise InputError(f"Complex data not supported: rows of dtype {dtype}")
    if dtype.kind not in "fiub":
        raise InputError(f"rows of dtype {dtype} are not numeric")


def some_of(names: Sequence[str], most: int = 5) -> str:
    """The first few names and how many more there are, for an error's text."""
    shown = ", ".join(str(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
