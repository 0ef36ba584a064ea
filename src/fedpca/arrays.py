"""Define the Array type and the notation for declaring and checking arrays.

A declaration is a dtype followed by dimensions, as in ``"float64 d k"``. A dimension is a number or a
name. A number is the required length. A name allows any length, but it must stand for the same length
throughout a table of declarations. ``triangle`` stands for ``d (d + 1) / 2``. Messages and files are
checked against these tables before they are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedpca.errors import FedpcaError

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
Dimensions = dict[str, int]

DTYPES = {
    np.dtype(name).newbyteorder("<"): name for name in ("float64", "float32", "int64", "uint8")
}


class Declared(NamedTuple):
    """The dtype and dimensions required of an array."""

    dtype: str
    dimensions: tuple[str, ...]


def declare(table: Mapping[str, str]) -> dict[str, Declared]:
    """Parse declarations such as ``{"Z": "float64 d k"}``."""
    declared = {}
    for name, text in table.items():
        dtype, *dimensions = text.split() or [""]
        if dtype not in DTYPES.values():
            allowed = ", ".join(DTYPES.values())
            raise ValueError(f"field {name!r}: {text!r} must start with one of {allowed}")
        declared[name] = Declared(dtype, tuple(dimensions))
    return declared


def check_arrays(
    declared: Mapping[str, Declared],
    arrays: Mapping[str, Any],
    dimensions: Dimensions,
    where: str,
    error: type[FedpcaError],
) -> Arrays:
    """Return the declared arrays, or raise ``error`` if one is missing, malformed, or not finite.

    ``dimensions`` maps names to the lengths that are already fixed; new names are added to it.
    """
    checked: Arrays = {}
    for name, (dtype, names) in declared.items():
        if name not in arrays:
            raise error(f"{where} has no field {name!r}")
        array = np.asarray(arrays[name])
        if DTYPES.get(array.dtype) != dtype:
            raise error(f"field {name!r} in {where} is {array.dtype} instead of {dtype}")
        if (names or array.ndim) and not _match(names, array.shape, dimensions):
            lengths = ", ".join(f"{n}={dimensions[n]}" for n in names if n in dimensions)
            raise error(
                f"field {name!r} in {where} has shape {array.shape} instead of "
                f"({', '.join(names)}){' with ' + lengths if lengths else ''}"
            )
        n_bad = _count_non_finite(array)
        if n_bad:
            raise error(f"field {name!r} in {where} has {n_bad} values that are not finite")
        checked[name] = array
    return checked


def _match(names: tuple[str, ...], shape: tuple[int, ...], dimensions: Dimensions) -> bool:
    """Return whether a shape matches its declaration; record the lengths of new names."""
    fits = len(names) == len(shape)
    for name, length in zip(names, shape, strict=False):
        if name == "triangle" and "d" in dimensions:
            expected = dimensions["d"] * (dimensions["d"] + 1) // 2
        else:
            expected = int(name) if name.isdigit() else dimensions.setdefault(name, length)
        fits = fits and expected == length
    return fits


def _count_non_finite(array: Array) -> int:
    if array.dtype.kind != "f":
        return 0
    # a finite sum of squares means finite values; BLAS adds it up without a temporary array
    if math.isfinite(np.vdot(array, array) if array.ndim else array.item()):
        return 0
    return int(array.size - np.isfinite(array).sum())
