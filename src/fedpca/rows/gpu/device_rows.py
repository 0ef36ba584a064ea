"""Present rows on a device: a GPU, or wherever PyTorch, CuPy, or another library keeps arrays.

Rows keep their dtype and stay on their device. They are multiplied there (`fedpca.rows.gpu.products`).
Solvers that need the rows themselves get them from ``blocks`` as numpy arrays, one block at a time.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from fedpca.errors import InputError
from fedpca.linalg.dense import ROUNDING
from fedpca.rows.gpu.devices import (
    INSTALL,
    Device,
    check_float64,
    find_device,
    optional,
    to_device,
    to_host,
)
from fedpca.rows.in_memory import (
    BLOCK_BYTES,
    Block,
    DenseRows,
    Rows,
    about_n_rows,
    batches,
    check_two_dimensions,
    is_sparse,
    rows_per_block,
)

CHUNK_BYTES = 256 << 20  # of float64 rows that a GPU works on at a time
ROWS_PER_PRODUCT = 2048  # a single product over more rows would leave most of a GPU idle
MAX_MEMORY_SHARE = 0.5  # share of a GPU's free memory that the rows of one site may take
EXACT_IN_FLOAT32 = {"float", "float32", "halffloat", "float16", "int8", "uint8", "int16", "uint16"}
ROUNDING_OF = {  # error in A'A, as a share of its largest eigenvalue
    "float64": ROUNDING,
    "float32": 8 * float(np.finfo(np.float32).eps),
    "tf32": 2.0**-9,  # factors have 11 bits
}


def device_rows(array: Any) -> Rows:
    """Return a reader of an array from a library other than numpy; its rows stay on their device.

    If array-api-compat is not installed, rows in the memory of this process are read as numpy arrays.
    """
    if optional("array_api_compat") is not None:
        return DeviceRows(array)
    try:
        return DenseRows(array)
    except (InputError, RuntimeError):
        raise InputError(
            f"rows in a {type(array).__name__} require array-api-compat; {INSTALL}"
        ) from None


def rows_on(rows: Rows, name: str | None, precision: str | None = None) -> Rows:
    """Return the rows prepared for products on the device ``name`` and with this precision.

    If ``name`` is None, the rows stay where they are. If ``precision`` is None, the precision does not
    change.
    """
    if precision is not None and precision not in ROUNDING_OF:
        raise InputError(f"precision={precision!r} must be one of {', '.join(ROUNDING_OF)}")
    if name is not None:
        there = find_device(name)
        if not isinstance(rows, DeviceRows):
            rows = MovedRows(rows, there)
        elif rows.xp is there.xp:
            rows = rows.moved(there.device)
        else:
            raise InputError(
                f"device={name!r} uses a different library than the array, which is on a device "
                "already; omit device"
            )
    if precision is not None:
        if not isinstance(rows, DeviceRows | MovedRows):
            raise InputError(
                f"precision={precision!r} applies to rows on a device; set device, or omit precision"
            )
        rows.precision = precision
    return rows


class DeviceRows:
    """Rows in an array of PyTorch, CuPy, or another library of the array API."""

    pass_cost = 4.0
    features = None
    precision = "float64"  # of A'A

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
        check_float64(self.xp, self.device)
        self.n_rows, self.n_features = (int(length) for length in array.shape)
        self._dtype = str(array.dtype).rpartition(".")[2]
        self.dtypes = (self._dtype,) * self.n_features

    def moved(self, device: Any) -> DeviceRows:
        """Return the same rows on a different device of the same library."""
        compat = importlib.import_module("array_api_compat")
        return DeviceRows(compat.to_device(self._array, device))

    def blocks(self) -> Iterator[Block]:
        for block in _cut(self._array, rows_per_block(self.n_features)):
            if self._dtype == "bfloat16":  # numpy has no bfloat16
                block = self.xp.astype(block, self.xp.float32)
            yield to_host(block)

    def device_blocks(self) -> Iterator[Any]:
        """Yield the rows on the device."""
        yield self._array

    @cached_property
    def has_gaps(self) -> bool:
        """Return whether any value is missing."""
        return _any_gaps(self)

    @property
    def rounding(self) -> float:
        """Return the error of products, as a share of the largest eigenvalue."""
        return ROUNDING_OF[self.precision]


class MovedRows:
    """Rows from files or from the memory of this process, moved to a device as they are read.

    The rows stay on the device if they fit; otherwise, they are moved again for each question.

    Parameters
    ----------
    rows : Rows
        The rows.
    there : Device
        The device.
    """

    precision = "float64"  # of A'A

    def __init__(self, rows: Rows, there: Device) -> None:
        check_float64(there.xp, there.device)
        self._rows, self._there = rows, there
        self.xp, self.device = there.xp, there.device
        self.features, self.n_features = rows.features, rows.n_features
        self.dtypes, self.pass_cost = rows.dtypes, rows.pass_cost
        # values that fit into float32 without rounding are moved as float32, in half the memory
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
                    "sparse rows are not multiplied on a device; omit device to keep them sparse"
                )
            moved = to_device(np.asarray(block, self._dtype), self.xp, self.device)
            if is_kept:
                kept.append(moved)
            yield moved
        if is_kept:
            self._kept = kept

    @cached_property
    def has_gaps(self) -> bool:
        """Return whether any value is missing."""
        return _any_gaps(self)

    @property
    def rounding(self) -> float:
        """Return the error of products, as a share of the largest eigenvalue."""
        return ROUNDING_OF[self.precision]

    def _fits(self) -> bool:
        n_bytes = about_n_rows(self._rows) * self.n_features * self._dtype.itemsize
        return n_bytes <= MAX_MEMORY_SHARE * self._there.free_bytes


OnDevice = DeviceRows | MovedRows


def _chunk_rows(rows: OnDevice) -> int:
    """Return the number of rows that a device works on at a time."""
    is_host = str(rows.device).lower().startswith("cpu")
    n_bytes = BLOCK_BYTES if is_host else CHUNK_BYTES
    n_rows = max(1, n_bytes // (8 * max(1, rows.n_features)))
    return n_rows // ROWS_PER_PRODUCT * ROWS_PER_PRODUCT or n_rows


def chunks(rows: OnDevice, block: Any) -> Iterator[Any]:
    """Yield a block in parts; each has the number of rows that the device works on at a time."""
    return _cut(block, _chunk_rows(rows))


def _cut(array: Any, n_rows: int) -> Iterator[Any]:
    """Yield an array in parts of ``n_rows`` rows; only the last part may be smaller."""
    end = int(array.shape[0])
    for start in range(0, end, n_rows):
        yield array[start : min(start + n_rows, end), :]


def _any_gaps(rows: OnDevice) -> bool:
    xp = rows.xp
    found = xp.zeros((), dtype=xp.bool, device=rows.device)
    for block in rows.device_blocks():
        if xp.isdtype(block.dtype, "real floating"):
            for chunk in chunks(rows, block):
                found = found | xp.any(xp.isnan(chunk))
    return bool(to_host(found))
