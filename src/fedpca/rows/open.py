"""Open a site's rows from any supported source, and detect files that change or disappear."""

from __future__ import annotations

import glob
import os
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
import scipy.sparse as sp

from fedpca.errors import InputError, SiteFailed
from fedpca.rows.cells.cell_rows import open_cells
from fedpca.rows.columns import some_of
from fedpca.rows.formats.array_files import is_array_on_disk, open_array
from fedpca.rows.formats.files import BED, ENDINGS, format_of, kind_of, name_of
from fedpca.rows.formats.partitions import NO_PARTITION, Partition, partition_of
from fedpca.rows.formats.query import Query
from fedpca.rows.formats.tables import InMemoryTable, TableRows
from fedpca.rows.genotypes.genotype_rows import GenotypeRows, open_genotypes
from fedpca.rows.genotypes.plink_files import Genotypes
from fedpca.rows.gpu.device_rows import device_rows, rows_on
from fedpca.rows.in_memory import DenseRows, JoinedRows, Rows, SparseRows, is_cells, is_foreign
from fedpca.rows.pieces import PieceRows, Pieces
from fedpca.rows.reading import AS_STORED, OptionKind, Reading
from fedpca.rows.weighted import WeightedRows
from fedpca.storage.regular import refuse_special

_GONE = "gone"
# the exceptions that numpy, zipfile, and Arrow can raise for a file with arbitrary contents
_UNREADABLE = (
    ArithmeticError,
    AttributeError,
    BadZipFile,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TokenError,
    TypeError,
    ValueError,
    zlib.error,
)


def open_rows(source: Any, reading: Reading = AS_STORED) -> Rows:
    """Return the rows in any source: an array, sparse matrix, table, AnnData, pieces, or files.

    ``source`` may also be a database, if the reading has a query. An array on a device stays there.
    """
    source, reading = resolved(source, reading)
    rows = open_unweighted(source, reading)
    if isinstance(source, Query):
        # a query deletes its result when nothing refers to the query any more
        weakref.finalize(rows, id, source)
    return on_device_and_weighted(rows, reading)


def resolved(source: Any, reading: Reading) -> tuple[Any, Reading]:
    """Return the source that ``query``, ``keep``, and ``extract`` choose, and the other options.

    A database is queried when the rows are first opened, and again only when its `Query` is told to.
    """
    if reading.keep is not None or reading.extract is not None:
        paths = [] if reading.query is not None else paths_of(source)
        if len(paths) != 1 or kind_of(Path(paths[0])) != BED:
            Reading(keep=reading.keep, extract=reading.extract).refuse_for(OptionKind.TABLE)
        source = Genotypes(paths[0], reading.keep, reading.extract)
    elif reading.query is not None:
        source = Query(source, reading.query)
    else:
        return source, reading
    return source, replace(reading, query=None, keep=None, extract=None)


def on_device_and_weighted(rows: Rows, reading: Reading) -> Rows:
    """Return rows that are multiplied on the reading's device, with the reading's weights."""
    if reading.device is not None or reading.precision is not None:
        rows = rows_on(rows, reading.device, reading.precision)
    return rows if reading.weight is None else WeightedRows(rows, reading.weight)


def open_unweighted(source: Any, reading: Reading = AS_STORED) -> Rows:
    """Return the rows in a resolved source, where a column of weights is one of the features.

    So a check before a fit finds what is wrong with the weights, too.
    """
    paths = paths_of(source)
    if paths:
        return open_paths(paths, reading)
    if isinstance(source, Query):
        try:
            return open_path(source.result, reading)
        except InputError as error:
            raise InputError(
                str(error).replace(str(source.result), "the query's result", 1)
            ) from None
    if isinstance(source, Genotypes):
        return _opened(source.bed, reading, lambda: open_genotypes(source, reading))
    if isinstance(source, Pieces):
        return PieceRows(source, partial(open_unweighted, reading=reading))
    if is_cells(source):
        reading.refuse_for(OptionKind.CELLS)
        return open_cells(source, reading)
    if hasattr(source, "__arrow_c_stream__"):
        reading.refuse_for(OptionKind.TABLE)
        return TableRows(InMemoryTable(source), reading)
    if reading is not AS_STORED:  # there may be thousands of sites with arrays
        reading.refuse_for(OptionKind.TABLE)
        reading.check_unnamed()
    if sp.issparse(source):
        return SparseRows(source)
    if not isinstance(source, np.ndarray) and is_array_on_disk(source):
        return open_array(source)
    return device_rows(source) if is_foreign(source) else DenseRows(source)


def is_dask(table: Any) -> bool:
    """Return whether a table is a Dask collection, whose pieces are computed only when needed."""
    return hasattr(type(table), "__dask_graph__")


def open_path(
    path: Path, reading: Reading = AS_STORED, partition: Partition = NO_PARTITION
) -> Rows:
    """Return the rows in a file, or in all data files under a folder, sorted by path.

    ``partition`` holds the column values given by folder names, as in ``hospital=north/``.
    """
    if _is_folder(path):
        files = _files_below(path)
        if not files:
            raise InputError(
                f"{path} contains no {', '.join(ENDINGS)} files; choose a folder with data files"
            )
        _refuse_copies(files)
        parts = {file: partition_of(file, path) for file in files}
        return joined_rows([(str(file), open_path(file, reading, parts[file])) for file in files])
    if not path.exists():
        raise InputError(f"{path} does not exist; check the name")
    return _opened(path, reading, lambda: format_of(path).open(path, reading, partition))


def joined_rows(sources: Sequence[tuple[str, Rows]]) -> Rows:
    """Return the rows of several files; refuse genotypes, whose alleles may differ between files."""
    if len(sources) == 1:
        return sources[0][1]
    filesets = [name for name, rows in sources if isinstance(rows, GenotypeRows)]
    if filesets:
        raise InputError(
            f"{some_of(filesets)}: the genotypes of a site must be in one fileset, in which alleles "
            "agree; merge them with plink --merge-list, or make each fileset a separate site"
        )
    return JoinedRows(sources)


def _opened(path: Path, reading: Reading, opener: Callable[[], Rows]) -> Rows:
    """Return the rows that ``opener`` opens; errors name the file, but never quote its contents."""
    refuse_special(path, InputError)
    try:
        reading.refuse_for(format_of(path).kind)
        return opener()
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except _UNREADABLE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise _unreadable(path, error) from None
        raise InputError(
            f"{path} is not a readable {kind_of(path)} file; it may be damaged, so write it again"
        ) from None


def open_paths(texts: Sequence[str], reading: Reading = AS_STORED) -> Rows:
    """Return the combined rows of several files or folders; ``*`` in a name matches any text."""
    paths = _expand_patterns(texts)
    if len(paths) == 1:
        return open_path(paths[0], reading)
    _refuse_copies(paths)
    return joined_rows([(str(path), open_path(path, reading)) for path in paths])


def paths_of(source: Any) -> list[str]:
    """Return the file names, patterns, and folders in a source, or an empty list for rows in memory."""
    paths = source if isinstance(source, list | tuple) and source else [source]
    is_named = all(isinstance(path, str | os.PathLike) for path in paths)
    return [os.fspath(path) for path in paths] if is_named else []


def file_states(source: Any) -> dict[Path, str]:
    """Return the state of each file that `open_rows` would read; rows in memory have no files."""
    files: list[Path] = list(source.files) if isinstance(source, Genotypes) else []
    files += [source.result] if isinstance(source, Query) else []
    files += [part for path in opened_paths(paths_of(source)) for part in _parts(path)]
    return {file: state_of(file) for file in files}


def opened_paths(texts: Sequence[str]) -> Iterator[Path]:
    """Yield the path of each source of rows, including those inside folders."""
    for path in _expand_patterns(texts):
        yield from _files_below(path) if _is_folder(path) else [path]


def state_of(file: Path) -> str:
    """Return a file's size and modification time, which show a change without reading the file."""
    try:
        stat = file.stat()
    except OSError:
        return _GONE
    return f"{stat.st_size} bytes {stat.st_mtime_ns}"


def refuse_gone(states: Mapping[Path, str]) -> None:
    """Raise `SiteFailed` if a file has disappeared.

    After this error, the question may be asked again, because a disconnected disk may come back.
    """
    for file, state in states.items():
        if state == _GONE:
            raise SiteFailed(f"{file} can no longer be read; the site must restore it")


def _expand_patterns(texts: Sequence[str]) -> list[Path]:
    paths = []
    for text in texts:
        if not text:
            raise InputError("the name of a file or folder is empty; provide a name")
        matches = sorted(glob.glob(text)) if glob.has_magic(text) else [text]  # noqa: PTH207
        if not matches:
            raise InputError(f"no file matches {text}; check the name")
        paths += [Path(path) for path in matches]
    return paths


def _parts(file: Path) -> list[Path]:
    """Return the files whose states show whether the rows in a file have changed."""
    parts = format_of(file).parts
    return [file] if parts is None else parts(file)


def _is_folder(path: Path) -> bool:
    """Return whether a path is a folder of files; a Zarr array, also a folder, counts as a file."""
    try:
        return path.is_dir() and not format_of(path).is_folder
    except OSError as error:  # for example, if the folder above it may not be entered
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> InputError:
    why = os.strerror(error.errno or 0)  # Arrow repeats the path in its text
    return InputError(f"{path} cannot be read: {why}; check its permissions")


def _refuse_copies(files: Sequence[Path]) -> None:
    """Refuse a file that is listed twice, or that has the same name in two formats."""
    seen: dict[Path, Path] = {}
    for file in files:
        is_rows = file.is_file() or format_of(file).is_folder
        known = seen.setdefault(file.with_name(name_of(file)) if is_rows else file, file)
        if known is not file:
            raise InputError(
                f"{known} and {file} have the same name, so their rows would count twice; remove or "
                "rename one of them"
            )


def _files_below(folder: Path) -> list[Path]:
    known = (path for path in folder.rglob("*") if kind_of(path) in ENDINGS)
    return sorted(path for path in known if path.is_file() or format_of(path).is_folder)
