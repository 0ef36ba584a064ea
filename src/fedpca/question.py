"""Questions: functions that run at a site, next to its rows, found there by name.

::

    @question(asks={"Z": "float64 d k"}, answers={"Y": "float64 d k"})
    def covariance_product(site, Z):
        return {"Y": site.framed.gram_times(Z)}

A question declares its arrays: a dtype, then the dimensions. A number is that length; a name is any
length, the same wherever the name stands in one question and its answer. ``d`` is the number of
features and ``triangle`` is ``d (d + 1) / 2``. Both ends check every message against this table, so
neither the function nor the solver ever meets an array of another shape, dtype, or with a NaN.

A question that writes ``site.memory`` says ``remembers=True``; for the others it is read-only.
One whose answer says nothing of the rows (the names of their columns) says ``reads_rows=False``, and
no policy refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca.errors import MessageError
from fedpca.message import DTYPES, Array

if TYPE_CHECKING:
    from fedpca.site import Site

Arrays = dict[str, Array]
Dimensions = dict[str, int]


@dataclass(frozen=True)
class Question:
    """A function that runs at a site, and the arrays that go in and out."""

    name: str
    function: Callable[..., Mapping[str, Any]]
    asks: Mapping[str, tuple[str, ...]]
    answers: Mapping[str, tuple[str, ...]]
    remembers: bool
    reads_rows: bool

    def __call__(self, site: Site, **arrays: Array) -> Mapping[str, Any]:
        return self.function(site, **arrays)

    def check_request(self, arrays: Mapping[str, Any], dimensions: Dimensions) -> Arrays:
        """The question's arrays in their declared dtypes, or an error that names the field."""
        return _check(self.asks, arrays, dimensions, f"question {self.name!r}")

    def check_answer(self, arrays: Mapping[str, Any], dimensions: Dimensions) -> Arrays:
        """The answer's arrays in their declared dtypes, or an error that names the field."""
        return _check(self.answers, arrays, dimensions, f"answer to {self.name!r}")


_REGISTRY: dict[str, Question] = {}


def question(
    *,
    answers: Mapping[str, str],
    asks: Mapping[str, str] | None = None,
    remembers: bool = False,
    reads_rows: bool = True,
) -> Callable[[Callable[..., Mapping[str, Any]]], Question]:
    """Register a function as a question under its own name."""

    def register(function: Callable[..., Mapping[str, Any]]) -> Question:
        name = function.__name__
        known = _REGISTRY.get(name)
        if known is not None and known.function.__module__ != function.__module__:
            raise ValueError(f"question {name!r} exists already in {known.function.__module__}")
        tables = [{n: _field(n, s) for n, s in (table or {}).items()} for table in (asks, answers)]
        _REGISTRY[name] = Question(name, function, tables[0], tables[1], remembers, reads_rows)
        return _REGISTRY[name]

    return register


def find_question(name: str) -> Question:
    """The question of that name on this installation."""
    try:
        return _REGISTRY[name]
    except KeyError:
        raise MessageError(
            f"no question {name!r} is installed here; install the same fedpca everywhere"
        ) from None


def _field(name: str, spec: str) -> tuple[str, ...]:
    words = tuple(spec.split())
    if not words or words[0] not in DTYPES.values():
        allowed = ", ".join(DTYPES.values())
        raise ValueError(f"field {name!r}: {spec!r} must start with one of {allowed}")
    return words


def _check(
    table: Mapping[str, tuple[str, ...]],
    arrays: Mapping[str, Any],
    dimensions: Dimensions,
    where: str,
) -> Arrays:
    if set(arrays) != set(table):
        raise MessageError(f"{where} has fields {sorted(arrays)} instead of {sorted(table)}")
    checked: Arrays = {}
    for name, (dtype, *shape) in table.items():
        array = np.asarray(arrays[name])
        if DTYPES.get(array.dtype) != dtype:
            raise MessageError(f"field {name!r} of {where} is {array.dtype} instead of {dtype}")
        _bind(shape, array.shape, dimensions, f"field {name!r} of {where}")
        n_bad = _count_non_finite(array)
        if n_bad:
            raise MessageError(f"field {name!r} of {where} has {n_bad} values that are not finite")
        checked[name] = array
    return checked


def _count_non_finite(array: Array) -> int:
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return 0
    return int(array.size - np.isfinite(array).sum())


def _bind(names: list[str], shape: tuple[int, ...], dimensions: Dimensions, where: str) -> None:
    """Match a shape with its declaration, and note the lengths of names met for the first time."""
    fits = len(names) == len(shape)
    for name, length in zip(names, shape, strict=False):
        if name == "triangle" and "d" in dimensions:
            due = dimensions["d"] * (dimensions["d"] + 1) // 2
        else:
            due = int(name) if name.isdigit() else dimensions.setdefault(name, length)
        fits = fits and due == length
    if not fits:
        bound = ", ".join(f"{n}={dimensions[n]}" for n in names if n in dimensions)
        raise MessageError(
            f"{where} has shape {shape} instead of ({', '.join(names)})"
            f"{' with ' + bound if bound else ''}"
        )
