"""Reuse arrays for one block of rows after another.

A new array of a block's size comes without memory: the system finds and clears each page when the page
is first written, and takes the page back when the array is freed. That costs as much as several passes
over the array. So a loop over blocks keeps its arrays.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedpca.arrays import Array


class Scratch:
    """Uninitialized arrays by name; each name's array is valid until the name is used again."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> Array:
        """Return the array of this name in this shape; allocate memory only if the array must grow."""
        size = math.prod(shape)
        array = self._arrays.get(name)
        if array is None or array.size < size:
            array = self._arrays[name] = np.empty(size, dtype)
        return array[:size].reshape(shape)
