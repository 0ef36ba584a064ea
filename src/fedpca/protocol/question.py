"""Define questions, which are functions that a site looks up by name and runs on its rows.

::

    @question(asks={"Z": "float64 d k"}, answers={"Y": "float64 d k"})
    def covariance_product(site: Site, Z: Array) -> Arrays:
        return {"Y": site.standardized.gram_times(Z)}

A question declares its arrays in the notation defined in `fedpca.arrays`; ``d`` is the number of
features. Both sides check every message against these declarations, so neither the function nor the
solver ever receives an array that contains NaN or has the wrong shape or dtype.

A question that writes to ``site.memory`` must declare ``remembers=True``; for all other questions,
memory is read-only. A question whose answer reveals nothing about the rows, such as the column names,
should declare ``reads_rows=False``; no policy refuses such a question.
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
    """A function that runs at a site, with declarations of its input and output arrays."""

    name: str
    function: Callable[..., Mapping[str, Any]]
    asks: Mapping[str, Declared]
    answers: Mapping[str, Declared]
    remembers: bool
    reads_rows: bool
    doing: str  # what a user reads instead of the name, as in "adding up squares"

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
        return _check(self.answers, arrays, dimensions, "the answer")


_REGISTRY: dict[str, Question] = {}


def question(
    *,
    answers: Mapping[str, str],
    asks: Mapping[str, str] | None = None,
    remembers: bool = False,
    reads_rows: bool = True,
    doing: str = "",
) -> Callable[[Callable[..., Mapping[str, Any]]], Question]:
    """Register a function as a question under its own name.

    ``doing`` says in a few words what the site does, for progress and errors; by default, it is the
    question's name in words.
    """

    def register(function: Callable[..., Mapping[str, Any]]) -> Question:
        name = function.__name__
        other = _REGISTRY.get(name)
        if other is not None and other.function.__module__ != function.__module__:
            raise ValueError(
                f"question {name!r} already exists in {other.function.__module__}; rename it"
            )
        tables = declare(asks or {}), declare(answers)
        words = doing or f"answering {name.replace('_', ' ')!r}"
        _REGISTRY[name] = Question(name, function, *tables, remembers, reads_rows, words)
        return _REGISTRY[name]

    return register


def find_question(name: str) -> Question:
    """Return the installed question with this name."""
    try:
        return _REGISTRY[name]
    except KeyError:
        raise MessageError(
            f"question {name!r} is not installed here; install the same version of fedpca and the "
            "same solver packages everywhere"
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
