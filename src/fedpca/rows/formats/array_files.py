"""Read rows from arrays on disk: HDF5 datasets and Zarr arrays, a few megabytes at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from fedpca.errors import InputError, SiteFailed
from fedpca.rows.in_memory import Block, batches, check_numeric, rows_per_block

ROWS_ARRAY = "X"  # the name of the array of rows in a file with several arrays
ZARR = ".zarr"  # ends the name of a folder that holds one Zarr array or group
_OF_PACKAGES = ("h5py", "zarr")
_MAX_CHUNK_RATIO = 4  # a chunk longer than this many blocks is read in pieces


class ArrayRows:
    """Rows in an array on disk.

    Parameters
    ----------
    opened : callable
        A function that opens the array for one pass over the rows; it returns a context manager.
    name : str
        The name of the array in errors.
    """

    pass_cost = 60.0
    features = None

    def __init__(
        self, opened: Callable[[], AbstractContextManager[Any]], name: str = "the array"
    ) -> None:
        self._opened, self._name = opened, name
        with opened() as array:
            if len(array.shape) != 2:
                raise InputError(
                    f"{name} has {len(array.shape)} dimension(s); use a 2-D array, rows by features"
                )
            check_numeric(array.dtype)
            self.n_rows, self.n_features = (int(length) for length in array.shape)
            self.dtypes = (str(array.dtype),) * self.n_features

    def blocks(self) -> Iterator[Block]:
        """Yield the same blocks as if the rows were in memory, so that all sums have the same bits."""
        yield from batches(self._pieces(), rows_per_block(self.n_features))

    def _pieces(self) -> Iterator[Block]:
        try:
            with self._opened() as array:
                step = self._rows_per_read(array)
                for start in range(0, self.n_rows, step):
                    yield array[start : min(start + step, self.n_rows)]
        except (OSError, RuntimeError, ValueError, KeyError):
            raise SiteFailed(
                f"{self._name} can no longer be read; the site must restore it"
            ) from None

    def _rows_per_read(self, array: Any) -> int:
        """Return how many rows to read at a time, so that each chunk is read once if memory allows."""
        step = rows_per_block(self.n_features)
        chunk = int(array.chunks[0]) if array.chunks else 1
        if chunk > _MAX_CHUNK_RATIO * step:
            return step
        return chunk * max(1, step // chunk)


def is_array_on_disk(source: Any) -> bool:
    """Return whether a source is an open HDF5 dataset or Zarr array, which may exceed memory."""
    package = type(source).__module__.partition(".")[0]
    return package in _OF_PACKAGES and hasattr(source, "shape")


def open_array(array: Any) -> ArrayRows:
    """Return the rows in an open HDF5 dataset or Zarr array."""
    return ArrayRows(lambda: nullcontext(array))


def open_hdf5(path: Path) -> ArrayRows:
    """Return the rows in an HDF5 file."""
    h5py = package("h5py", path)

    with h5py.File(path, "r") as file:
        found: list[str] = []
        file.visititems(lambda name, item: found.append(name) if _is_table(item) else None)
        name = _only(found)

    @contextmanager
    def opened() -> Iterator[Any]:
        with h5py.File(path, "r") as file:
            yield file[name]

    return ArrayRows(opened, f"{path}, dataset {name!r},")


def open_zarr(path: Path) -> ArrayRows:
    """Return the rows in a Zarr array, or in the array of rows of a Zarr group."""
    zarr = package("zarr", path)

    def root() -> Any:
        return zarr.open(path, mode="r")

    if _is_table(root()):
        _refuse_empty(root())
        return ArrayRows(lambda: nullcontext(root()), str(path))
    name = _only([name for name, array in root().arrays() if _is_table(array)])
    _refuse_empty(root()[name])
    return ArrayRows(lambda: nullcontext(root()[name]), f"{path}, array {name!r},")


def _refuse_empty(array: Any) -> None:
    """Refuse a Zarr array without chunks, in which every value would be the fill value."""
    if array.size and not array.nchunks_initialized:
        raise InputError(
            "the array has no chunks, so every value would be the fill value; copy or write it again"
        )


def zarr_parts(path: Path) -> list[Path]:
    """Return the files and folders whose modification times change when a Zarr array changes.

    A chunk is replaced by renaming a new file, which changes the modification time of the chunk's
    folder.
    """
    below = path.rglob("*")
    described = {"zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"}
    return [path, *sorted(p for p in below if p.name in described or p.is_dir())]


def _is_table(item: Any) -> bool:
    return len(getattr(item, "shape", ())) == 2 and item.dtype.kind in "fiub"


def _only(names: list[str]) -> str:
    """Return the name of the array of rows, given the names of all 2-D arrays of numbers."""
    if not names:
        raise InputError("the file contains no 2-D array of numbers; save the rows as a 2-D array")
    if ROWS_ARRAY in names or len(names) == 1:
        return ROWS_ARRAY if ROWS_ARRAY in names else names[0]
    raise InputError(
        f"the file contains the arrays {', '.join(sorted(names))}; name the rows {ROWS_ARRAY!r}, or "
        "pass the open array in Python"
    )


def package(name: str, path: Path, extra: str = "arrays") -> Any:
    """Return the package that reads a file; if it is missing, name the extra that installs it."""
    try:
        return import_module(name)
    except ImportError:
        raise InputError(
            f"{path} requires {name}; install it with: pip install 'fedpca[{extra}]'"
        ) from None
