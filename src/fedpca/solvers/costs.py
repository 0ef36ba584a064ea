"""Say which of two ways to find eigenvectors moves fewer bytes.

    the triangle of A'A        4 d (d + 1) + 16 d         in one round
    block Lanczos              16 d k                     in each of about `expected_rounds` rounds

So the triangle is cheaper roughly when ``d + 1 < 4 k rounds``. `fedpca.plan` does not use these
formulas: it counts the messages of a rehearsal (`fedpca.solvers.planning.rehearsal`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np

from fedpca.protocol.question import Question

# usual number for one block column per component and a slowly decaying spectrum
LANCZOS_ROUNDS = 15


class _Rehearsed(NamedTuple):
    """The fit for which a rehearsal stands: it has more features and more sites."""

    side: int
    d: int
    times_sites: float


_REHEARSED: ContextVar[_Rehearsed | None] = ContextVar("rehearsed", default=None)


@contextmanager
def rehearsed_for(side: int, d: int, times_sites: float) -> Iterator[None]:
    """Decide inside the block as a fit would that has d features and more sites.

    Otherwise, a rehearsal with ``side`` features would take a way that is cheaper only for so few.
    """
    token = _REHEARSED.set(_Rehearsed(side, d, times_sites))
    try:
        yield
    finally:
        _REHEARSED.reset(token)


def payload(question: Question, **lengths: int) -> int:
    """Return the bytes of all fields to and from one site, given the lengths that names stand for."""
    known = {**lengths, "triangle": lengths["d"] * (lengths["d"] + 1) // 2}
    return sum(
        np.dtype(dtype).itemsize * math.prod(known[name] for name in names)
        for dtype, names in (*question.asks.values(), *question.answers.values())
    )


def expected_rounds(n: int, d: int, k: int) -> int:
    """Estimate the rounds of block Lanczos; ``min(n, d) / k`` rounds complete the Krylov space."""
    return max(1, min(LANCZOS_ROUNDS, math.ceil(min(n, d) / k)))


def triangle_is_cheaper(n: int, d: int, k: int) -> bool:
    """Return whether sending one triangle moves fewer bytes than sending Lanczos blocks.

    The n rows or columns to multiply may be those of all sites.
    """
    real = _REHEARSED.get()
    if real is not None and d == real.side:
        n, d = math.ceil(n * real.times_sites), real.d
    return 4 * d * (d + 1) + 8 * d * k < 16 * d * k * expected_rounds(n, d, k)
