"""Say what a solver asks, and how many bytes that takes, before the sites are asked anything.

A solver lists its questions with the lengths of their fields (`Asked`). The size of a field follows
from the question's declaration, which sites check too. `fedpca.plan` counts these questions, and
also the headers of their messages. ``solver="auto"`` chooses between two solvers by the bytes of
their fields:

    the triangle of A'A        4 d (d + 1) + 16 d         in one round
    block Lanczos              16 d k                     in each of about `expected_rounds` rounds

So the triangle is cheaper roughly when ``d + 1 < 4 k rounds``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from fedpca.arrays import Array, Declared
from fedpca.protocol.question import Question

# usual number for one block column per component and a slowly decaying spectrum
LANCZOS_ROUNDS = 15

# how many times each question is asked, by its name and the width of its blocks
Rounds = Mapping[tuple[str, int], int]


@dataclass(frozen=True)
class Sizes:
    """The size of a fit, as seen from one site."""

    n: int  # rows of all sites
    here: int  # rows of this site
    d: int
    k: int
    center: bool = True
    scale: bool = False
    missing: str = "error"
    has_weights: bool = False
    name_bytes: int = 0  # size of the column names as JSON; 0 if the columns have no names
    in_order: bool = True  # whether all sites have their columns in the same order

    @property
    def order_bytes(self) -> int:
        """Return the size of the column names sent to sites, or 0 if no site must reorder columns."""
        return 0 if self.in_order else self.name_bytes

    @property
    def is_plain(self) -> bool:
        """Return whether all rows have the same weight and none may have gaps."""
        return self.missing == "error" and not self.has_weights


class Asked(NamedTuple):
    """One or more rounds with the same question and fields of the same lengths."""

    question: Question
    lengths: Mapping[str, int] = {}
    times: int = 1

    def to_site(self, d: int) -> dict[str, Array]:
        """Return stand-ins for the question's arrays, which take no memory."""
        return _stand_ins(self.question.asks, {"d": d, **self.lengths})

    def from_site(self, d: int) -> dict[str, Array]:
        """Return stand-ins for the answer's arrays, which take no memory."""
        return _stand_ins(self.question.answers, {"d": d, **self.lengths})


@runtime_checkable
class Counted(Protocol):
    """A solver that lists the questions that it asks, so that its bytes can be counted."""

    def asks(self, sizes: Sizes, rounds: Rounds) -> list[Asked]:
        """Return the questions that `solve` asks and those for the moments, but no others."""
        ...


@runtime_checkable
class Iterative(Protocol):
    """A solver whose number of rounds depends on the rows."""

    def usual_rounds(self, n: int, d: int, k: int) -> Rounds:
        """Estimate how many times the solver multiplies blocks, without knowing the variances."""
        ...


def blocks(rounds: Rounds, *questions: Question) -> list[Asked]:
    """Return the rounds in which a solver asks these questions with blocks."""
    by_name = {question.name: question for question in questions}
    return [Asked(by_name[name], {"k": width}, times) for (name, width), times in rounds.items()]


def payload(asks: Iterable[Asked], d: int) -> int:
    """Return the bytes of all fields to and from one site, without the headers of messages."""
    return sum(
        each.times * sum(a.nbytes for a in (*each.to_site(d).values(), *each.from_site(d).values()))
        for each in asks
    )


def usual_bytes(solver: Counted, n: int, d: int, k: int) -> int:
    """Estimate the bytes of a solver's own fields from sizes, without the fields for the mean."""
    sizes = Sizes(n, n, d, k)
    rounds = solver.usual_rounds(n, d, k) if isinstance(solver, Iterative) else {}
    own = [each for each in solver.asks(sizes, rounds) if each.question.name != "count_and_sum"]
    return payload(own, d)


def expected_rounds(n: int, d: int, k: int) -> int:
    """Estimate the rounds of block Lanczos; ``min(n, d) / k`` rounds complete the Krylov space."""
    return max(1, min(LANCZOS_ROUNDS, math.ceil(min(n, d) / k)))


def triangle_bytes(d: int, k: int) -> int:
    """Return the number of bytes to and from one site if it sends the triangle of A'A."""
    return 4 * d * (d + 1) + 8 * d * k


def block_bytes(d: int, k: int, rounds: int) -> int:
    """Return the number of bytes to and from one site if k columns go both ways in each round."""
    return 16 * d * k * rounds


def triangle_is_cheaper(n: int, d: int, k: int) -> bool:
    """Return whether sending one triangle moves fewer bytes than sending Lanczos blocks."""
    return triangle_bytes(d, k) < block_bytes(d, k, expected_rounds(n, d, k))


def _stand_ins(declared: Mapping[str, Declared], lengths: Mapping[str, int]) -> dict[str, Array]:
    """Return arrays of the declared dtypes and shapes, each of which stores only one number."""
    return {
        name: np.broadcast_to(np.zeros((), dtype), [_length(each, lengths) for each in names])
        for name, (dtype, names) in declared.items()
    }


def _length(name: str, lengths: Mapping[str, int]) -> int:
    if name.isdigit():
        return int(name)
    if name == "triangle":
        return lengths["d"] * (lengths["d"] + 1) // 2
    return lengths[name]
