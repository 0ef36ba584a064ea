"""Show how far a command has come, and roughly how much is left.

On a terminal, a bar shows the progress. Elsewhere, such as in a log file, a fit prints a line at most
once a second, and commands that read files print nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from rich.progress import BarColumn, Progress, TextColumn

from fedpca.cli.console import err
from fedpca.coordinator.approval import OnWaiting
from fedpca.protocol.printable import printable
from fedpca.protocol.question import find_question
from fedpca.report.remaining import Remaining, duration

SECONDS_BETWEEN_LINES = 1.0
SECONDS_BETWEEN_ANSWERS = 0.1  # drawing a bar more often could take longer than the answers do
MIN_SHARE = 0.02  # share of the work that must be done before the rest is estimated

OnEntry = Callable[[dict[str, Any]], None]


class OnDone(Protocol):
    """A function that shows how much is done, and what is being done."""

    def __call__(self, done: float, doing: str = ..., /) -> None: ...


class Watchers(NamedTuple):
    """The functions that a federation calls after each round and for each answer, or None."""

    on_round: OnEntry | None = None
    on_answer: OnEntry | None = None


@contextmanager
def progress(quiet: bool, *, tol: float, max_rounds: int) -> Iterator[Watchers]:
    """Yield functions that show the rounds of a fit, or no functions if quiet."""
    if quiet:
        yield Watchers()
    elif _is_screen():
        with _bar() as bar:
            yield _on_bar(bar, Remaining(tol, max_rounds))
    else:
        yield Watchers(_on_lines(Remaining(tol, max_rounds)))


@contextmanager
def counting(
    quiet: bool, unit: str, total: Callable[[], float | None] = lambda: None
) -> Iterator[OnDone | None]:
    """Yield a function that shows how much is done, or None if quiet or not on a terminal.

    The total may be an estimate, such as the number of rows in a text file.
    """
    if quiet or not _is_screen():
        yield None
        return
    n = total()
    with _bar() as bar:
        task, began = bar.add_task("", total=n or None, left=""), time.monotonic()

        def show(done: float, doing: str = "", /) -> None:
            spent = time.monotonic() - began
            text = in_words(done, n, unit, spent)
            bar.update(task, completed=done, description=doing or f"reading {unit}", left=text)

        yield show


def in_words(done: float, total: float | None, unit: str, seconds: float) -> str:
    """Return how much is done, and how long the rest will take if that can be estimated yet."""
    if not total:
        return f"{done:,.0f} {unit}"
    most = max(total, done)
    text = f"{done:,.0f} of about {most:,.0f} {unit}"
    if done < MIN_SHARE * most:
        return text
    return f"{text}, {duration(seconds * (most - done) / done)} left"


def approvals(quiet: bool) -> OnWaiting | None:
    """Return a function that prints which sites must still approve a run, or None if quiet."""

    def show(run: str, sites: tuple[str, ...]) -> None:
        if sites:
            names = ", ".join(printable(site) for site in sites)
            text = f"run {run} waits for approval at {names}: fedpca approve {run}"
        else:
            text = f"run {run} was approved at all sites"
        err.print(text, soft_wrap=True)

    return None if quiet else show


def _is_screen() -> bool:
    return err.is_terminal and not err.is_dumb_terminal


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[left]}"))
    return Progress(*columns, console=err, transient=True)


def _on_bar(bar: Progress, remaining: Remaining) -> Watchers:
    """Return functions that move a bar, which only pulses until there is an estimate."""
    task = bar.add_task("asking the sites", total=None, left="")
    last, n_answered = -math.inf, 0

    def show_answer(entry: dict[str, Any]) -> None:
        nonlocal last, n_answered
        n_answered = 0 if entry["site"] is None else n_answered + 1
        if time.monotonic() - last >= SECONDS_BETWEEN_ANSWERS or n_answered == 0:
            last = time.monotonic()
            answered = f", {n_answered:,} of {len(entry['sites']):,} sites"
            bar.update(task, description=f"{_round(entry)}{answered}")

    def show_round(entry: dict[str, Any]) -> None:
        remaining.add(entry)
        left = remaining.rounds_left
        total = None if left is None else entry["round"] + left
        text = f"{_residual(entry)}{remaining.in_words}"
        bar.update(
            task, description=_round(entry), completed=entry["round"], total=total, left=text
        )

    return Watchers(show_round, show_answer)


def _on_lines(remaining: Remaining) -> OnEntry:
    """Return a function that prints a line about a round, at most one line a second."""
    last = -math.inf

    def show(entry: dict[str, Any]) -> None:
        nonlocal last
        remaining.add(entry)
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            text = f"{_round(entry)}  {_residual(entry)}{remaining.in_words}".rstrip()
            err.print(text, soft_wrap=True)

    return show


def _round(entry: dict[str, Any]) -> str:
    return f"round {entry['round']}: {find_question(entry['question']).doing}"


def _residual(entry: dict[str, Any]) -> str:
    return "" if entry["residual"] is None else f"residual {entry['residual']:.1e}  "
