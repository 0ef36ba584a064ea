"""Multiply rows where they are: on a GPU, or wherever PyTorch, CuPy, or another library keeps arrays.

    sum x,   sum (x - m)^2,   A'A,   A'(A Z),   ||A V||^2,   with A = X - 1 m'

Rows keep their dtype and their place. A chunk of them at a time is centered and multiplied in float64
on the device, so an offset of 1e8 costs no digits, and the results are as accurate as those of numpy.
Only m, Z, and V are moved to the device, and only sums over rows are moved back, once for each question.

The code uses the array API standard, so it knows no library: the arrays bring their own. Solvers that
need the rows themselves get them from ``blocks`` as numpy arrays, one block at a time.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.rows.in_memory import (
    BLOCK_BYTES,
    Block,
    DenseRows,
    Rows,
    about_n_rows,
    batches,
    check_two_dimensions,
    is_foreign,
    is_sparse,
    rows_per_block,
)

CHUNK_BYTES = 256 << 20  # of rows in float64 that a GPU works on at a time
MAX_MEMORY_SHARE = 0.5  # of a GPU's free memory that may hold the rows of one site
ROWS_PER_PRODUCT = 2048  # a product over more rows would leave most of a GPU idle
MIN_PANEL, MAX_PANELS = (
    250,
    8,
)  # columns of A'A in a panel, and panels, of which only half is needed
EXACT_IN_FLOAT32 = {"float", "float32", "halffloat", "float16", "int8", "uint8", "int16", "uint16"}
INSTALL = "install it with: pip install 'fedpca[gpu]'"


class Device(NamedTuple):
    """A device and the array library that uses it."""

    xp: Any  # the namespace of the array API
    device: Any
    free_bytes: int  # memory that rows may take; 0 for the memory of this process


def find_device(name: str) -> Device:
    """Return the device "cpu", "cuda", or "cuda:N", by PyTorch or else by CuPy."""
    kind, colon, index = name.partition(":")
    if kind not in ("cpu", "cuda") or bool(colon) != index.isdigit():
        raise InputError(
            f"device={name!r} must be 'cuda', 'cuda:1' for the second GPU, and so on, or 'cpu'"
        )
    if _optional("array_api_compat") is None:
        raise InputError(f"device={name!r} requires array-api-compat; {INSTALL}")
    library = "PyTorch"
    engine = _optional("torch")
    if engine is not None:
        n_devices = 1 if kind == "cpu" else engine.cuda.device_count()
    else:
        library, engine = "CuPy", None if kind == "cpu" else _optional("cupy")
        if engine is None:
            either = "PyTorch" if kind == "cpu" else "PyTorch or CuPy"
            raise InputError(
                f"device={name!r} requires {either}, which is not installed; install it, or omit "
                "device to use numpy"
            )
        n_devices = _n_cupy_devices(engine)
    if int(index or 0) >= n_devices:
        raise InputError(
            f"device={name!r} does not exist: {library} finds {n_devices} GPU(s) here; use one of "
            "them, or omit device to use numpy"
        )
    xp = importlib.import_module(f"array_api_compat.{engine.__name__}")
    if kind == "cpu":
        return Device(xp, engine.device("cpu"), 0)
    if library == "PyTorch":
        device = engine.device(kind, int(index or 0))
        return Device(xp, device, int(engine.cuda.mem_get_info(device)[0]))
    device = engine.cuda.Device(int(index or 0))
    return Device(xp, device, int(device.mem_info[0]))


def device_rows(array: Any) -> Rows:
    """Return the rows in an array of a library other than numpy, which stay where they are.

    Without array-api-compat, rows in the memory of this process are read as numpy arrays.
    """
    if _optional("array_api_compat") is not None:
        return DeviceRows(array)
    try:
        return DenseRows(array)
    except (InputError, RuntimeError):
        raise InputError(
            f"rows in a {type(array).__name__} require array-api-compat; {INSTALL}"
        ) from None


def rows_on(rows: Rows, name: str) -> Rows:
    """Return the same rows, to be multiplied on a device."""
    there = find_device(name)
    if not isinstance(rows, DeviceRows):
        return MovedRows(rows, there)
    if rows.xp is not there.xp:
        raise InputError(
            f"device={name!r} does not apply to an array that is on a device already; omit device"
        )
    return rows.moved(there.device)


def to_host(array: Any) -> Array:
    """Return an array of any library as a numpy array."""
    compat = importlib.import_module("array_api_compat")
    if compat.is_cupy_array(array):
        return np.asarray(array.get())
    if compat.is_torch_array(array):
        return np.asarray(array.detach().cpu().numpy())
    own = compat.array_namespace(array).__array_namespace_info__().default_device()
    return np.asarray(compat.to_device(array, own))


def on_host(X: Any) -> Any:
    """Return an array on a device as a numpy array, and anything else unchanged."""
    is_there = is_foreign(X) and _optional("array_api_compat") is not None
    return to_host(X) if is_there else X


def selected_rows(array: Any, chosen: Array) -> Any:
    """Return the chosen rows of an array, ``(n,)`` of bool, where they are."""
    if not is_foreign(array) or _optional("array_api_compat") is None:
        return array[chosen]
    compat = importlib.import_module("array_api_compat")
    xp, positions = compat.array_namespace(array), np.flatnonzero(chosen)
    return xp.take(array, to_device(positions, xp, compat.device(array)), axis=0)


class DeviceRows:
    """Rows in an array of PyTorch, CuPy, or another library of the array API."""

    pass_cost = 4.0
    features = None

    def __init__(self, array: Any) -> None:
        compat = importlib.import_module("array_api_compat")
        try:
            self.xp = compat.array_namespace(array)
        except TypeError:
            raise InputError(
                f"cannot multiply by {type(array).__name__}; pass a numpy array or a PyTorch tensor"
            ) from None
        check_two_dimensions(array.ndim)
        if not str(getattr(array, "layout", "strided")).endswith("strided"):
            raise InputError("the rows are a sparse tensor; pass a scipy.sparse array instead")
        if self.xp.isdtype(array.dtype, "complex floating"):
            raise InputError(
                f"Complex data not supported: the rows are {array.dtype}; pass real numbers"
            )
        self._array = array.detach() if compat.is_torch_array(array) else array
        self.device = compat.device(array)
        _check_float64(self.xp, self.device)
        self.n_rows, self.n_features = (int(length) for length in array.shape)
        self._dtype = str(array.dtype).rpartition(".")[2]
        self.dtypes = (self._dtype,) * self.n_features

    def moved(self, device: Any) -> DeviceRows:
        """Return the same rows on a different device of the same library."""
        compat = importlib.import_module("array_api_compat")
        return DeviceRows(compat.to_device(self._array, device))

    def blocks(self) -> Iterator[Block]:
        for block in _cut(self._array, rows_per_block(self.n_features)):
            if self._dtype == "bfloat16":  # which numpy does not have
                block = self.xp.astype(block, self.xp.float32)
            yield to_host(block)

    def device_blocks(self) -> Iterator[Any]:
        """Yield the rows on the device."""
        yield self._array

    @cached_property
    def has_gaps(self) -> bool:
        """Return whether a value is missing."""
        return _any_gaps(self)


class MovedRows:
    """Rows from files or from the memory of this process, moved to a device as they are read.

    They stay on the device if they fit; otherwise, they are moved again for each question.

    Parameters
    ----------
    rows : Rows
        The rows.
    there : Device
        The device.
    """

    def __init__(self, rows: Rows, there: Device) -> None:
        _check_float64(there.xp, there.device)
        self._rows, self._there = rows, there
        self.xp, self.device = there.xp, there.device
        self.features, self.n_features = rows.features, rows.n_features
        self.dtypes, self.pass_cost = rows.dtypes, rows.pass_cost
        # files are read as float64; what float32 holds exactly takes half of the memory
        is_narrow = all(EXACT_IN_FLOAT32.issuperset(d.split(" or ")) for d in rows.dtypes)
        self._dtype = np.dtype(np.float32 if is_narrow else np.float64)
        self._kept: list[Any] | None = None

    @property
    def n_rows(self) -> int:
        return self._rows.n_rows

    @property
    def about_n_rows(self) -> float:
        """Return an estimate of the number of rows."""
        return about_n_rows(self._rows)

    def blocks(self) -> Iterator[Block]:
        return self._rows.blocks()

    def device_blocks(self) -> Iterator[Any]:
        """Yield the rows on the device, in blocks."""
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[Any] = []
        is_kept = self._fits()
        for block in batches(self._rows.blocks(), _chunk_rows(self)):
            if is_sparse(block):
                raise InputError(
                    "sparse rows are not multiplied on a device; omit device, which keeps them sparse"
                )
            moved = to_device(np.asarray(block, self._dtype), self.xp, self.device)
            if is_kept:
                kept.append(moved)
            yield moved
        if is_kept:
            self._kept = kept

    @cached_property
    def has_gaps(self) -> bool:
        """Return whether a value is missing."""
        return _any_gaps(self)

    def _fits(self) -> bool:
        n_bytes = about_n_rows(self._rows) * self.n_features * self._dtype.itemsize
        return n_bytes <= MAX_MEMORY_SHARE * self._there.free_bytes


OnDevice = DeviceRows | MovedRows


def to_device(values: Array, xp: Any, device: Any) -> Any:
    """Return a numpy array as an array on a device."""
    if not values.flags.writeable:
        values = values.copy()  # PyTorch warns about arrays that it must not write to
    return xp.asarray(values, device=device)


def sums_on_device(rows: OnDevice) -> tuple[int, Array]:
    """Return the number of rows and the sum of each column, in float64."""
    xp, n = rows.xp, 0
    total = xp.zeros(rows.n_features, dtype=xp.float64, device=rows.device)
    for block in rows.device_blocks():
        n += int(block.shape[0])
        for chunk in _chunks(rows, block):
            total += xp.sum(xp.astype(chunk, xp.float64, copy=False), axis=0)
    return n, to_host(total)


class DeviceProducts:
    """Products with rows on a device, centered, in their own order and without a scale.

    Parameters
    ----------
    rows : DeviceRows or MovedRows
        The rows, without gaps.
    mean : ndarray of shape (d,)
        The mean, in the order of the rows' own columns.
    """

    def __init__(self, rows: OnDevice, mean: Array) -> None:
        self._rows, self._xp = rows, rows.xp
        self._mean = to_device(mean, rows.xp, rows.device) if mean.any() else None
        self._gram: Any = None

    def squares(self) -> Array:
        """Return the sum of squares of each column of A, ``(d,)``."""
        total = self._zeros(self._rows.n_features)
        for A in self._stacks():
            total += self._xp.sum(A * A, axis=(0, 1))
        return to_host(total)

    def gram(self) -> Array:
        """Return A'A, ``(d, d)``."""
        return to_host(self._gram_there())

    def gram_times(self, Z: Array, *, by_gram: bool) -> Array:
        """Return A'(A Z), ``(d, k)``, by A'A if ``by_gram``, which is then kept on the device."""
        there = self._to_device(Z)
        if by_gram:
            return to_host(self._xp.matmul(self._gram_there(), there))
        total = self._zeros(Z.shape)
        for A in self._stacks():
            scores = self._xp.matmul(A, there)
            total += self._xp.sum(self._xp.matmul(self._xp.matrix_transpose(A), scores), axis=0)
        return to_host(total)

    def energy_along(self, V: Array, *, by_gram: bool) -> float:
        """Return ``||A V||^2`` for V, ``(d, k)``, by A'A if ``by_gram``."""
        there = self._to_device(V)
        if by_gram:
            product = self._xp.matmul(self._gram_there(), there)
            return float(to_host(self._xp.sum(there * product)))
        total = self._zeros(())
        for A in self._stacks():
            scores = self._xp.matmul(A, there)
            total += self._xp.sum(scores * scores)
        return float(to_host(total))

    def _gram_there(self) -> Any:
        """Return A'A on the device, computed once.

        A'A is symmetric. Each panel has the columns from its own on, which saves almost half of the
        work; the others are those of earlier panels.
        """
        if self._gram is None:
            xp, d = self._xp, self._rows.n_features
            n_panels = max(1, min(MAX_PANELS, d // MIN_PANEL))
            cuts = list(pairwise(round(i * d / n_panels) for i in range(n_panels + 1)))
            panels = [self._zeros((stop - start, d - start)) for start, stop in cuts]
            for A in self._stacks():
                for panel, (start, stop) in zip(panels, cuts, strict=True):
                    left = xp.matrix_transpose(A[:, :, start:stop])
                    panel += xp.sum(xp.matmul(left, A[:, :, start:]), axis=0)
            rows = []
            for i, (start, stop) in enumerate(cuts):
                above = [panels[j][:, start - cuts[j][0] : stop - cuts[j][0]] for j in range(i)]
                rows.append(xp.concat([*map(xp.matrix_transpose, above), panels[i]], axis=1))
            self._gram = xp.concat(rows, axis=0)
        return self._gram

    def _stacks(self) -> Iterator[Any]:
        """Yield A in float64, as stacks of matrices with at most ROWS_PER_PRODUCT rows each.

        A product with few columns gives a GPU little to do at a time, unless it works on many
        products at once.
        """
        xp, d = self._xp, self._rows.n_features
        for block in self._rows.device_blocks():
            for chunk in _chunks(self._rows, block):
                if chunk.dtype not in (xp.float32, xp.float64):
                    chunk = xp.astype(chunk, xp.float64)
                # a difference of float32 and float64 is computed in float64, without another copy
                A = (
                    xp.astype(chunk, xp.float64, copy=False)
                    if self._mean is None
                    else chunk - self._mean
                )
                n_whole = A.shape[0] // ROWS_PER_PRODUCT
                stop = n_whole * ROWS_PER_PRODUCT
                if n_whole:
                    yield xp.reshape(A[:stop, :], (n_whole, ROWS_PER_PRODUCT, d))
                if stop < A.shape[0]:
                    yield xp.reshape(A[stop:, :], (1, A.shape[0] - stop, d))

    def _zeros(self, shape: Any) -> Any:
        return self._xp.zeros(shape, dtype=self._xp.float64, device=self._rows.device)

    def _to_device(self, values: Array) -> Any:
        return to_device(np.ascontiguousarray(values), self._xp, self._rows.device)


def _chunk_rows(rows: OnDevice) -> int:
    """Return the number of rows that a device works on at a time."""
    is_host = str(rows.device).lower().startswith("cpu")
    n_bytes = BLOCK_BYTES if is_host else CHUNK_BYTES
    return max(1, n_bytes // (8 * max(1, rows.n_features)))


def _chunks(rows: OnDevice, block: Any) -> Iterator[Any]:
    return _cut(block, _chunk_rows(rows))


def _cut(array: Any, n_rows: int) -> Iterator[Any]:
    """Yield an array in parts of so many rows; only the last part may be smaller."""
    end = int(array.shape[0])
    for start in range(0, end, n_rows):
        yield array[start : min(start + n_rows, end), :]


def _any_gaps(rows: OnDevice) -> bool:
    xp = rows.xp
    found = xp.zeros((), dtype=xp.bool, device=rows.device)
    for block in rows.device_blocks():
        if xp.isdtype(block.dtype, "real floating"):
            for chunk in _chunks(rows, block):
                found = found | xp.any(xp.isnan(chunk))
    return bool(to_host(found))


def _check_float64(xp: Any, device: Any) -> None:
    """Refuse a device without float64, whose sums would be too inaccurate."""
    try:
        has_float64 = xp.zeros(1, dtype=xp.float64, device=device).dtype == xp.float64
    except TypeError:  # what PyTorch raises for Apple's GPUs
        has_float64 = False
    if not has_float64:
        raise InputError(f"device {device} has no float64, which sums need; pass a numpy array")


def _n_cupy_devices(cupy: Any) -> int:
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:  # there is no driver
        return 0


def _optional(module: str) -> Any:
    """Return a module, or None if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None
