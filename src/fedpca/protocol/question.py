"""Define questions, which are functions that a site looks up by name and runs on its rows.

::

    @question(asks={"Z": "float64 d k"}, answers={"Y": "float64 d k"})
    def covariance_product(site: Site, Z: Array) -> Arrays:
        return {"Y": site.standardized.gram_times(Z)}

A question declares its arrays in the notation defined in `fedpca.arrays`; ``d`` is the number of
features. Both sides check every message against these declarations, so neither the function nor the
solver ever receives an array that contains NaN or has the wrong shape or dtype.

An answer's declaration may also say what its numbers mean, as in ``"int64, count"`` or ``"float64 d,
squares"``; the words are those of `fedpca.protocol.invariants`. A promise that involves several fields
is a function, ``check=``. It takes the answer's arrays and the question's arrays, and returns what is
impossible about the answer, or None. Both sides check these promises too.

The question's own fields may have bounds in the same way, as in ``"float64 d k, orthonormal"``; the
words are those of `fedpca.protocol.parameters`. ``verb`` says what happens to the answers: "sum", or
"gather" if the coordinator sees each one. The question declares its verb, so the sites know it too.

A question that writes to ``site.memory`` must declare ``remembers=True``; for all other questions,
memory is read-only. A question whose answer reveals nothing about the rows, such as the column names,
should declare ``reads_rows=False``; no policy refuses such a question.

A secure sum needs a bound on its numbers. If every float64 field has the word "explained", the rows'
sum of squares gives such a bound. A question may instead declare ``times_energy``, which takes the
question's arrays and returns the bound as a multiple of the rows' sum of squares, or None if the bound
is unknown. Without a bound, the coordinator first asks the sites for one.

A differentially private question adds noise to its answer. Given the plan, ``spends`` returns how much
of the rows' privacy one answer spends (`fedpca.privacy.gaussian`). The site counts that amount before
the answer leaves, and repeats the same answer if it is asked again.

If an answer is larger than the declared arrays can be, the coordinator refuses it before it is
downloaded completely. If a name stands for a length that only the answer determines, ``at_most`` gives
a bound on that length: a number, another name, or a field of the question that holds a number, as in
``at_most={"r": "d"}``. Without ``at_most``, the limit for all messages applies.

A plan rehearses a fit with few features. A length that only a message determines is the same in the
real fit, unless the question declares with ``grows`` what the length is proportional to: "d", or
"factor" for the entries of a triangular factor of the site's rows. ``work`` and ``passes`` say what an
answer costs the site, in the words of `WORK`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca.arrays import Array, Arrays, Declared, Dimensions, check_arrays, declare
from fedpca.errors import FedpcaError, MessageError, PolicyRefused
from fedpca.protocol.invariants import (
    TOLD,
    Contradiction,
    broken_promise,
    check_words,
    limit_of,
    norm_of,
    told,
)
from fedpca.protocol.message import MAX_BYTES, Checked, Message
from fedpca.protocol.parameters import check_asked_words, out_of_bounds
from fedpca.protocol.plan import RunPlan

if TYPE_CHECKING:
    from fedpca.site.site import Site

VERBS = ("sum", "gather")
# what a site does to answer: multiply the block that is asked with its rows, or read its rows, if
# nothing else is declared; sum products of columns; find a triangular factor of its rows; find its
# leading directions; find its own directions outside each point that is asked; or separate outliers
WORK = ("", "scatter", "factor", "summary", "climb", "separate")
NOT_OF_SUMS = ("share", "orthonormal", "explained")  # promises that a sum does not keep
ANSWER_HEADER_BYTES = 1 << 16  # an answer's header and padding, or the text of an error
AnswerCheck = Callable[
    [Arrays, Arrays], Contradiction
]  # takes the answer's arrays and the question's arrays


@dataclass(frozen=True, eq=False)
class Question:
    """A function that runs at a site, with declarations of its input and output arrays."""

    name: str
    function: Callable[..., Mapping[str, Any]]
    asks: Mapping[str, Declared]
    answers: Mapping[str, Declared]
    remembers: bool
    reads_rows: bool
    at_most: Mapping[str, str]
    words: Mapping[str, tuple[str, ...]]  # what each field of the answer means
    doing: str  # what a user reads instead of the name, as in "adding up squares"
    verb: str = "sum"  # or "gather"
    bounds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of each asked field
    check: AnswerCheck | None = None
    times_energy: Callable[[Arrays], float | None] | None = None
    spends: Callable[[RunPlan], float] | None = None
    needs: str = ""  # the word with which a policy allows the question, beside its program's
    grows: Mapping[str, str] = field(default_factory=dict)  # what a length is proportional to
    work: str = ""  # what the site does to answer, one of `WORK`
    passes: int = 1  # how many times it does that, or reads its rows, approximately

    def __call__(self, site: Site, **arrays: Array) -> Mapping[str, Any]:
        return self.function(site, **arrays)

    @property
    def package(self) -> str:
        """Return the name of the package that the question belongs to."""
        return self.function.__module__.partition(".")[0]

    def check_request(self, arrays: Mapping[str, Any], dimensions: Dimensions) -> Arrays:
        """Return the question's arrays, or raise an error that names the field."""
        return _check(self.asks, arrays, dimensions, f"question {self.name!r}")

    def checked_request(self, request: Message, d: int) -> Checked:
        """Return the arrays of a request to a site with d features, or raise an error.

        Sites in one process get the same message, so sites with the same number of features share the
        result.
        """
        checked = request.checked.get((self.name, d))
        if checked is None:
            dimensions = {"d": d}
            checked = Checked(self.check_request(request.arrays, dimensions), dimensions)
            request.checked[self.name, d] = checked
        return checked

    def check_bounds(self, arrays: Mapping[str, Array]) -> None:
        """Raise an error that names the field if a number violates the bounds declared for it."""
        for name, words in self.bounds.items():
            problem = out_of_bounds(arrays[name], words, arrays)
            if problem is not None:
                raise PolicyRefused(f"field {name!r} of question {self.name!r} {problem}")

    def check_answer(
        self,
        arrays: Mapping[str, Any],
        dimensions: Dimensions,
        asked: Arrays,
        *,
        energy: float | None = None,
        too_large: type[FedpcaError] = MessageError,
        is_total: bool = False,
    ) -> Arrays:
        """Return the answer's arrays, or raise an error that names the field.

        ``asked`` are the question's arrays. ``energy`` is the most that the site's rows can explain, if
        it is known. Numbers whose totals could overflow raise ``too_large``. With ``is_total``, the
        arrays are a total over sites, and only the promises that a sum keeps are checked.
        """
        where = "the answer"
        checked = _check(self.answers, arrays, dimensions, where)
        for name, array in checked.items():
            declared, words = self.answers[name], self.words[name]
            if is_total:
                words = tuple(word for word in words if word not in NOT_OF_SUMS)
            norm = norm_of(array, declared, words)
            if norm > limit_of(words):
                raise too_large(
                    f"field {name!r} in {where} must be at most {limit_of(words):.0e} in size; "
                    "rescale the columns"
                )
            problem = broken_promise(array, declared, words, norm, energy) if words else None
            if problem is not None:
                raise MessageError(f"field {name!r} in {where} {problem}")
        problem = None if self.check is None or is_total else self.check(checked, asked)
        if problem is not None:
            raise MessageError(f"{where} {problem}")
        return checked

    def check_explained(self, arrays: Arrays, energy: float) -> None:
        """Raise an error if a checked answer is more than the site's rows can explain."""
        for name in self.explained:
            declared, words = self.answers[name], self.words[name]
            norm = norm_of(arrays[name], declared, words)
            problem = broken_promise(arrays[name], declared, words, norm, energy)
            if problem is not None:
                raise MessageError(f"field {name!r} in the answer {problem}")

    @cached_property
    def explained(self) -> tuple[str, ...]:
        """Return the fields that are declared as explained by the site's rows."""
        return tuple(name for name, words in self.words.items() if "explained" in words)

    def told(self, answer: Arrays) -> dict[str, float]:
        """Return what an answer says about the site's contribution: its rows and its energy."""
        amounts: dict[str, float] = {}
        for name in self._telling:
            amounts |= told(answer[name], self.answers[name], self.words[name])
        return amounts

    @cached_property
    def _telling(self) -> tuple[str, ...]:
        """Return the fields that say something about the site's contribution."""
        return tuple(name for name, words in self.words.items() if set(words) & set(TOLD))

    def max_answer_bytes(self, asked: Arrays, dimensions: Dimensions) -> int:
        """Return a size that no valid answer exceeds, given the question and the known lengths."""
        total = ANSWER_HEADER_BYTES
        for name, shape in self.answer_shapes(asked, dimensions).items():
            total += math.prod(shape) * np.dtype(self.answers[name].dtype).itemsize
        return min(total, MAX_BYTES)

    def answer_shapes(self, asked: Arrays, dimensions: Dimensions) -> dict[str, tuple[int, ...]]:
        """Return the largest shape of each field of an answer, given the question and known lengths."""
        return {
            name: tuple(self._longest(each, asked, dimensions) for each in declared.dimensions)
            for name, declared in self.answers.items()
        }

    def _longest(self, name: str, asked: Arrays, dimensions: Dimensions) -> int:
        """Return the bound on a length, or the limit for all messages if there is none."""
        if name.isdigit():
            return int(name)
        if name in dimensions:
            return dimensions[name]
        if name == "triangle" and "d" in dimensions:
            return dimensions["d"] * (dimensions["d"] + 1) // 2
        if name in self.at_most:
            return self._longest(self.at_most[name], asked, dimensions)
        return int(asked[name]) if name in asked else MAX_BYTES


_REGISTRY: dict[str, Question] = {}


def question(
    *,
    answers: Mapping[str, str],
    asks: Mapping[str, str] | None = None,
    verb: str = "sum",
    remembers: bool = False,
    reads_rows: bool = True,
    at_most: Mapping[str, str] | None = None,
    check: AnswerCheck | None = None,
    times_energy: Callable[[Arrays], float | None] | None = None,
    spends: Callable[[RunPlan], float] | None = None,
    needs: str = "",
    doing: str = "",
    grows: Mapping[str, str] | None = None,
    work: str = "",
    passes: int = 1,
) -> Callable[[Callable[..., Mapping[str, Any]]], Question]:
    """Register a function as a question under the function's name.

    ``doing`` says in a few words what the site does, for progress reports and errors. By default, it is
    made from the question's name. ``needs`` is a word that a site's policy must allow, in addition to
    the word for the program, before the site takes part in a run that may ask the question.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import Federation, question
    >>> @question(answers={"total": "float64 d"})
    ... def column_sums_of_rows(site):
    ...     return {"total": sum(X.sum(axis=0) for X in site.rows.blocks())}
    >>> federation = Federation.local([np.ones((3, 2)), np.ones((4, 2))])
    >>> federation.sum(column_sums_of_rows)["total"]
    array([7., 7.])
    """

    def register(function: Callable[..., Mapping[str, Any]]) -> Question:
        name = function.__name__
        other = _REGISTRY.get(name)
        if other is not None and other.function.__module__ != function.__module__:
            raise ValueError(
                f"question {name!r} already exists in {other.function.__module__}; rename it"
            )
        if verb not in VERBS:
            raise ValueError(f"question {name!r}: verb={verb!r} must be one of {', '.join(VERBS)}")
        if work not in WORK:
            raise ValueError(f"question {name!r}: work={work!r} must be one of {', '.join(WORK)}")
        shapes, words = _split_words(answers, check_words)
        asked, bounds = _split_words(asks or {}, check_asked_words)
        _REGISTRY[name] = Question(
            name,
            function,
            declare(asked),
            declare(shapes),
            remembers,
            reads_rows,
            at_most=dict(at_most or {}),
            words=words,
            doing=doing or f"answering {name.replace('_', ' ')!r}",
            verb=verb,
            bounds={field: each for field, each in bounds.items() if each},
            check=check,
            times_energy=times_energy,
            spends=spends,
            needs=needs,
            grows=dict(grows or {}),
            work=work,
            passes=passes,
        )
        return _REGISTRY[name]

    return register


def find_question(name: str) -> Question:
    """Return the installed question with this name."""
    if name not in _REGISTRY:
        import_module("fedpca.solvers")  # registers questions; too slow to import with the package
    try:
        return _REGISTRY[name]
    except KeyError:
        raise MessageError(
            f"question {name!r} is not installed here; install the same version of fedpca and the "
            "same solver packages everywhere"
        ) from None


def _split_words(
    fields: Mapping[str, str], check: Callable[[Sequence[str], str], None]
) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Split declarations such as "float64 d, squares" into arrays and words, and check the words."""
    parts = {name: [part.strip() for part in text.split(",")] for name, text in fields.items()}
    words = {name: tuple(each[1:]) for name, each in parts.items()}
    for name, each in words.items():
        check(each, name)
    return {name: each[0] for name, each in parts.items()}, words


def _check(
    declared: Mapping[str, Declared],
    arrays: Mapping[str, Any],
    dimensions: Dimensions,
    where: str,
) -> Arrays:
    if arrays.keys() != declared.keys():
        raise MessageError(f"{where} has fields {sorted(arrays)} instead of {sorted(declared)}")
    return check_arrays(declared, arrays, dimensions, where, MessageError)
