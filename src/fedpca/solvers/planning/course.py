"""Describe the course of a fit: what its sites are asked, in order, and how it ended.

A course is known before a fit if the solver lists its questions and states how many rounds it takes.
Otherwise, the program runs in this process on made-up rows, and the ledger of that run shows the
course. The size of a message follows from the lengths of its fields. So the course of a small run
becomes that of a large one when the lengths that depend on the size of the fit are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from fedpca.coordinator.ledger import Entry, Ledger
from fedpca.protocol.question import Question, find_question
from fedpca.solvers.costs import Asked
from fedpca.solvers.planning.traffic import Party

N_REHEARSALS = 3

Lengths = Mapping[str, Mapping[str, int]]  # the lengths to replace, by the name of the question


@dataclass(frozen=True)
class Course:
    """The course of a fit with one solver.

    ``asked`` returns all questions that a site is asked. ``parameters`` are those in the plan that
    the sites would receive. ``solver_rounds`` are the rounds that depend on the rows.
    """

    program: str
    solver: str
    guarantee: str
    asked: Callable[[Party], list[Asked]]
    parameters: Mapping[str, Any]
    solver_rounds: int = 0
    stop_reason: str = ""
    needs_each: bool = False  # whether the coordinator must see each site's answers
    is_counted: bool = True  # whether all bytes follow from the questions
    more_bytes: int = 0  # bytes to and from each site if the solver does not list its questions
    angle_bound: float = 0.0
    problem: str = ""


class Rehearsal(NamedTuple):
    """What made-up sites were asked, and how the fit ended."""

    asked: list[Asked]
    stop_reason: str


def usual(rehearse: Callable[[int], Rehearsal]) -> Rehearsal:
    """Return the rehearsal with the median number of rounds, out of a few with different seeds.

    If the first rehearsal runs out of rounds, no other is tried.
    """
    found: list[Rehearsal] = []
    for seed in range(N_REHEARSALS):
        found.append(rehearse(seed))
        if found[0].stop_reason == "max_rounds":
            return found[0]
    return sorted(found, key=lambda each: sum(a.times for a in each.asked))[N_REHEARSALS // 2]


def recorded(ledger: Ledger) -> list[Asked]:
    """Return what the first site in a ledger was asked, in order, with the lengths of all fields."""
    entries = iter(ledger)
    first = next(entries, None)
    if first is None:
        return []
    own = (entry for entry in (first, *entries) if entry.site == first.site)
    asked = (_asked(list(each)) for _, each in groupby(own, key=lambda entry: entry.round))
    return list(merged(asked))


def merged(asked: Iterable[Asked]) -> Iterator[Asked]:
    """Yield the same questions, but merge consecutive ones that have the same lengths."""
    for (name, lengths), each in groupby(asked, key=lambda a: (a.question.name, dict(a.lengths))):
        times = sum(one.times for one in each)
        if times:
            yield Asked(find_question(name), lengths, times)


def with_lengths(asked: Iterable[Asked], lengths: Lengths) -> list[Asked]:
    """Return the same questions with some of their lengths replaced."""
    return [
        each._replace(lengths={**each.lengths, **lengths.get(each.question.name, {})})
        for each in asked
    ]


def times_asked(asked: Iterable[Asked], *questions: Question) -> int:
    """Return how many times these questions are asked in total."""
    return sum(each.times for each in asked if each.question in questions)


def _asked(entries: list[Entry]) -> Asked:
    """Return the question of one round, with the lengths that its fields show."""
    asked = find_question(entries[0].question)
    lengths: dict[str, int] = {}
    for entry in entries:
        declared = (asked.asks if entry.direction == "down" else asked.answers).get(entry.field)
        for name, length in zip(declared.dimensions if declared else (), entry.shape, strict=False):
            if not name.isdigit() and name not in ("d", "triangle"):
                lengths[name] = length
    return Asked(asked, lengths)
