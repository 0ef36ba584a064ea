"""Find devices, and move arrays to them and back.

PyTorch and CuPy are imported only here, and only if somebody names a device. Other code uses the array
API standard, with which an array itself gives access to the functions of its library.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.rows.in_memory import is_foreign

DEVICE_NAMES = "'cuda', 'cuda:1' for the second GPU, and so on, or 'cpu'"
INSTALL = "install it with: pip install 'fedpca[gpu]'"


class Device(NamedTuple):
    """A device and the array library that uses it."""

    xp: Any  # the namespace of the array API
    device: Any
    free_bytes: int  # free memory on the device; 0 if the device is this process


def is_device_name(name: Any) -> bool:
    """Return whether this is a name that `find_device` accepts."""
    return isinstance(name, str) and re.fullmatch(r"(cpu|cuda)(:[0-9]+)?", name) is not None


def find_device(name: str) -> Device:
    """Return the device "cpu", "cuda", or "cuda:N" in PyTorch, or else in CuPy."""
    kind, _, index = name.partition(":")
    if not is_device_name(name):
        raise InputError(f"device={name!r} must be {DEVICE_NAMES}")
    if optional("array_api_compat") is None:
        raise InputError(f"device={name!r} requires array-api-compat; {INSTALL}")
    library = "PyTorch"
    engine = optional("torch")
    if engine is not None:
        n_devices = 1 if kind == "cpu" else engine.cuda.device_count()
    else:
        library, engine = "CuPy", None if kind == "cpu" else optional("cupy")
        if engine is None:
            either = "PyTorch" if kind == "cpu" else "PyTorch or CuPy"
            raise InputError(
                f"device={name!r} requires {either}, which is not installed; install it, or omit "
                "device to use numpy"
            )
        n_devices = _n_cupy_devices(engine)
    if int(index or 0) >= n_devices:
        raise InputError(
            f"device={name!r} does not exist: {library} finds {n_devices} GPU(s) here; use a GPU that "
            "exists, or omit device to use numpy"
        )
    xp = importlib.import_module(f"array_api_compat.{engine.__name__}")
    if kind == "cpu":
        return Device(xp, engine.device("cpu"), 0)
    if library == "PyTorch":
        device = engine.device(kind, int(index or 0))
        return Device(xp, device, int(engine.cuda.mem_get_info(device)[0]))
    device = engine.cuda.Device()
    if int(index or device.id) != device.id:
        raise InputError(
            f"device={name!r} is not the device that CuPy uses at present; call "
            f"cupy.cuda.Device({index}).use() first"
        )
    return Device(xp, device, int(device.mem_info[0]))


def top_eigen_on(there: Device, symmetric: Array, k: int) -> tuple[Array, Array]:
    """Return what `fedpca.linalg.dense.top_eigen` returns, computed on a device.

    The matrix is first multiplied by a power of two that brings its largest diagonal entry near one.
    """
    largest = float(np.abs(symmetric.diagonal()).max(initial=0.0))
    factor = 2.0 ** -max(-1000, min(1000, math.frexp(largest)[1]))
    values, vectors = there.xp.linalg.eigh(to_device(symmetric * factor, there.xp, there.device))
    # eigenvalues are in ascending order
    first = symmetric.shape[0] - k
    top, V = to_host(values[first:]), to_host(vectors[:, first:])
    return np.array(top[::-1]) / factor, np.array(V[:, ::-1])


def to_device(values: Array, xp: Any, device: Any) -> Any:
    """Return a numpy array as an array on a device."""
    if not values.flags.writeable:
        values = values.copy()  # PyTorch warns about read-only arrays
    return xp.asarray(values, device=device)


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
    is_there = is_foreign(X) and optional("array_api_compat") is not None
    return to_host(X) if is_there else X


def selected_rows(array: Any, chosen: Array) -> Any:
    """Return the rows that a mask, ``(n,)``, chooses from an array, on the array's own device."""
    if not is_foreign(array) or optional("array_api_compat") is None:
        return array[chosen]
    compat = importlib.import_module("array_api_compat")
    xp, positions = compat.array_namespace(array), np.flatnonzero(chosen)
    return xp.take(array, to_device(positions, xp, compat.device(array)), axis=0)


def check_float64(xp: Any, device: Any) -> None:
    """Refuse a device without float64, on which sums would be too inaccurate."""
    try:
        has_float64 = xp.zeros(1, dtype=xp.float64, device=device).dtype == xp.float64
    except TypeError:  # PyTorch raises this for Apple's GPUs
        has_float64 = False
    if not has_float64:
        raise InputError(f"device {device} has no float64, which sums need; pass a numpy array")


@contextmanager
def matrix_products_in(precision: str) -> Iterator[None]:
    """Make PyTorch multiply float32 matrices in full precision or in tf32, whatever its settings.

    CuPy takes this setting from the environment, where a different setting is refused.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        if precision != "tf32" and os.environ.get("CUPY_TF32", "0") != "0":
            raise InputError(
                f"CUPY_TF32 is set, so CuPy does not multiply in {precision}; unset it, or use "
                "precision='tf32'"
            )
        yield
        return
    settings = torch.backends.cuda.matmul
    # two names for the same setting; newer versions warn about the older one
    names: dict[str, dict[str, Any]] = {
        "fp32_precision": {"tf32": "tf32", "float32": "ieee"},
        "allow_tf32": {"tf32": True, "float32": False},
    }
    name = next(name for name in names if hasattr(settings, name))
    before = getattr(settings, name)
    setattr(settings, name, names[name][precision])
    try:
        yield
    finally:
        setattr(settings, name, before)


def _n_cupy_devices(cupy: Any) -> int:
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:  # there is no driver
        return 0


def optional(module: str) -> Any:
    """Return a module, or None if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None
