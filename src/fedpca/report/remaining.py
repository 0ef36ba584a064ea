"""Estimate how much of a run or of a file is left.

Solvers report a residual r_t after round t, and stop once the residual is at most ``tol``. The residual
falls roughly geometrically, so

    rounds left = log(r_t / tol) / log(1 / q),   q = (r_t / r_(t-m))^(1/m)
"""

from __future__ import annotations

import math
from typing import Any

WINDOW = 8  # rounds over which the decay of the residual is measured
MIN_RESIDUALS = 3  # fewer show no trend


class Remaining:
    """An estimate, from the residuals so far, of how many rounds are left."""

    def __init__(self, tol: float, max_rounds: int) -> None:
        self._tol, self._max_rounds = tol, max_rounds
        self._residuals: list[float] = []
        self._seconds: list[float] = []

    def add(self, entry: dict[str, Any]) -> None:
        """Add a round, which is an entry of a run's history."""
        if entry["residual"] is not None:
            self._residuals.append(float(entry["residual"]))
            self._seconds.append(float(entry["seconds"]))

    @property
    def rounds_left(self) -> int | None:
        """Return the number of rounds left, or None if there is no trend yet."""
        recent = self._residuals[-WINDOW:]
        if len(recent) < MIN_RESIDUALS:
            return None
        at_most = max(0, self._max_rounds - len(self._residuals))
        first, last = recent[0], recent[-1]
        if last <= self._tol:
            return 0
        if not 0 < last < first or self._tol <= 0:
            return at_most
        decay = math.log(first / last) / (len(recent) - 1)
        return min(math.ceil(math.log(last / self._tol) / decay), at_most)

    @property
    def in_words(self) -> str:
        """Return what is left as a phrase, or an empty string if there is no trend yet."""
        left = self.rounds_left
        if left is None:
            return ""
        recent = self._seconds[-WINDOW:]
        seconds = left * sum(recent) / len(recent)
        return f"about {left} rounds left, {duration(seconds)}"


def duration(seconds: float) -> str:
    """Return a number of seconds as text, in seconds, minutes, or hours."""
    if seconds < 120:
        return f"{math.ceil(seconds)} s"
    return f"{round(seconds / 60)} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
