"""Questions are functions that run at a site, next to its rows; a site looks them up by name.

::

    @question(asks={"Z": "float64 d k"}, answers={"Y": "float64 d k"})
    def covariance_product(site: Site, Z: Array) -> Arrays:
        return {"Y": site.standardized.gram_times(Z)}

A question declares its arrays in the notation of `fedpca.arrays`; ``d`` is the number of features.
Both ends check every message against these declarations, so neither the function nor the solver ever
receives an array of another shape or dtype, or one that holds NaN.

A question that writes to ``site.memory`` declares ``remembers=True``; for all others memory is
read-only. A question whose answer says nothing about the rows, such as the column names, declares
``reads_rows=False``, and no policy refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpca.arrays import Array, Arrays, Declared, Dimensions, check_arrays, declare
from fedpca.errors import MessageError

if TYPE_CHECKING:
    from fedpca.site.site import Site


@dataclass(frozen=True)
class Question:
    """A function that runs at a site, with declarations of the arrays that go in and out."""

    name: str
    function: Callable[..., Mapping[str, Any]]
    asks: Mapping[str, Declared]
    answers: Mapping[str, Declared]
    remembers: bool
    reads_rows: bool

    def __call__(self, site: Site, **arrays: Array) -> Mapping[str, Any]:
        return self.function(site, **arrays)

    @property
    def package(self) -> str:
        """Return the name of the package that the question belongs to."""
        return self.function.__module__.partition(".")[0]

    def check_request(self, arrays: Mapping[str, Any], dimensions: Dimensions) -> Arrays:
        """Return the question's arrays, or raise an error that names the field."""
        return _check(self.asks, arrays, dimensions, f"question {self.name!r}")

    def check_answer(self, arrays: Mapping[str, Any], dimensions: Dimensions) -> Arrays:
        """Return the answer's arrays, or raise an error that names the field."""
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
        other = _REGISTRY.get(name)
        if other is not None and other.function.__module__ != function.__module__:
            raise ValueError(
                f"question {name!r} exists already in {other.function.__module__}; rename it"
            )
        tables = declare(asks or {}), declare(answers)
        _REGISTRY[name] = Question(name, function, *tables, remembers, reads_rows)
        return _REGISTRY[name]

    return register


def find_question(name: str) -> Question:
    """Return the question of that name in this installation."""
    try:
        return _REGISTRY[name]
    except KeyError:
        raise MessageError(
            f"no question {name!r} is installed here; install the same fedpca, and the same packages "
            "that add solvers, everywhere"
        ) from None


def _check(
    declared: Mapping[str, Declared],
    arrays: Mapping[str, Any],
    dimensions: Dimensions,
    where: str,
) -> Arrays:
    if set(arrays) != set(declared):
        raise MessageError(f"{where} has fields {sorted(arrays)} instead of {sorted(declared)}")
    return check_arrays(declared, arrays, dimensions, where, MessageError)
