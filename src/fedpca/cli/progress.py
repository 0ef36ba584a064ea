"""Show how far a fit has come, and about how much is left.

Solvers report a residual r_t after round t and stop once it is at most ``tol``. It falls about
geometrically, so

    rounds left = log(r_t / tol) / log(1 / q),   q = (r_t / r_(t-m))^(1/m)

On a terminal, a bar shows this. Elsewhere, such as in a log file, a line is printed at most once a
second.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn

from fedpca.cli.console import err
from fedpca.coordinator.approval import OnWaiting
from fedpca.printable import printable
from fedpca.protocol.question import find_question

WINDOW = 8  # rounds over which the decay of the residual is measured
MIN_RESIDUALS = 3  # fewer show no trend
SECONDS_BETWEEN_LINES = 1.0

OnRound = Callable[[dict[str, Any]], None]


class Estimate:
    """How many rounds are left, from the residuals so far."""

    def __init__(self, tol: float, max_rounds: int) -> None:
        self._tol, self._max_rounds = tol, max_rounds
        self._residuals: list[float] = []
        self._seconds: list[float] = []

    def add(self, entry: dict[str, Any]) -> None:
        """Add a round, as it stands in a run's history."""
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
        """Return what is left as a phrase, or nothing if there is no trend yet."""
        left = self.rounds_left
        if left is None:
            return ""
        recent = self._seconds[-WINDOW:]
        seconds = left * sum(recent) / len(recent)
        return f"about {left} rounds left, {_duration(seconds)}"


@contextmanager
def progress(quiet: bool, *, tol: float, max_rounds: int) -> Iterator[OnRound | None]:
    """Yield a function to call after each round, or None if quiet."""
    if quiet:
        yield None
    elif err.is_terminal and not err.is_dumb_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(20),
            TextColumn("{task.fields[left]}"),
        )
        with Progress(*columns, console=err, transient=True) as bar:
            yield _on_bar(bar, Estimate(tol, max_rounds))
    else:
        yield _on_lines(Estimate(tol, max_rounds))


def approvals(quiet: bool) -> OnWaiting | None:
    """Return a function that prints which sites have still to approve a run, or None if quiet."""

    def show(run: str, sites: tuple[str, ...]) -> None:
        if sites:
            names = ", ".join(printable(site) for site in sites)
            text = f"run {run} waits for approval at {names}: fedpca approve {run}"
        else:
            text = f"run {run} was approved at all sites"
        err.print(text, soft_wrap=True)

    return None if quiet else show


def _on_bar(bar: Progress, estimate: Estimate) -> OnRound:
    """Return a function that moves a bar; it only pulses until there is an estimate."""
    task = bar.add_task("asking the sites", total=None, left="")

    def show(entry: dict[str, Any]) -> None:
        estimate.add(entry)
        left = estimate.rounds_left
        total = None if left is None else entry["round"] + left
        text = f"{_residual(entry)}{estimate.in_words}"
        bar.update(
            task, description=_round(entry), completed=entry["round"], total=total, left=text
        )

    return show


def _on_lines(estimate: Estimate) -> OnRound:
    """Return a function that prints lines, the first at once."""
    last = -math.inf

    def show(entry: dict[str, Any]) -> None:
        nonlocal last
        estimate.add(entry)
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            text = f"{_round(entry)}  {_residual(entry)}{estimate.in_words}".rstrip()
            err.print(text, soft_wrap=True)

    return show


def _round(entry: dict[str, Any]) -> str:
    return f"round {entry['round']}: {find_question(entry['question']).doing}"


def _residual(entry: dict[str, Any]) -> str:
    return "" if entry["residual"] is None else f"residual {entry['residual']:.1e}  "


def _duration(seconds: float) -> str:
    """Return a time in the largest unit that suits it."""
    if seconds < 120:
        return f"{math.ceil(seconds)} s"
    return f"{round(seconds / 60)} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
