"""Show the progress of a command on a page in the browser."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from fedpca.cli.console import err, in_words
from fedpca.cli.progress import Watchers
from fedpca.coordinator.federation import Federation
from fedpca.report.boards import Feed, RunBoard
from fedpca.report.live import HOST, PORT, LivePage

log = logging.getLogger("fedpca.cli")

Page = Annotated[
    bool,
    typer.Option("--page", help=f"Show the progress in a browser, at http://{HOST}:{PORT}/."),
]
PageAt = Annotated[
    str | None,
    typer.Option(
        metavar="[HOST:]PORT",
        help="Show the same page as --page, but at this address; port 0 means any free port. Everyone "
        "who can reach HOST can read the page.",
    ),
]


@contextmanager
def live_page(feed: Feed, page: bool, page_at: str | None, quiet: bool) -> Iterator[None]:
    """If the user wants a page, open its port, and serve the page while the block runs."""
    if not page and page_at is None:
        yield
        return
    served = LivePage(feed, page_at or "")
    try:
        if not quiet:
            err.print(f"follow this at {served.url}", soft_wrap=True)
            if served.is_for_others:
                err.print("everyone who can reach this address can read the page", soft_wrap=True)
        yield
    finally:
        served.close()


@contextmanager
def live_run(board: RunBoard, page: bool, page_at: str | None, quiet: bool) -> Iterator[None]:
    """Serve a page about a run while the block runs, and show on it how the run ended."""
    with live_page(board.feed, page, page_at, quiet):
        try:
            yield
        except BaseException as error:
            text = "Interrupted" if isinstance(error, KeyboardInterrupt) else in_words(error)
            board.end(f"Stopped: {text}" if str(error) else text, is_good=False)
            raise
        board.end("Done: the model is written", is_good=True)


def watch(fed: Federation, shown: Watchers, board: RunBoard) -> None:
    """Show the progress of a federation on the terminal and on the page."""

    def on_round(entry: dict[str, Any]) -> None:
        board.show_round(entry, fed.record.lost)

    fed.watch(
        each_of(shown.on_round, harmless(on_round)),
        each_of(shown.on_answer, harmless(board.show_answer)),
    )


def harmless(show: Callable[..., None]) -> Callable[..., None]:
    """Return a function that logs its first error and then does nothing: a page must not end a fit."""
    has_failed = False

    def shown(*arguments: Any) -> None:
        nonlocal has_failed
        if has_failed:
            return
        try:
            show(*arguments)
        except Exception:
            has_failed = True
            log.warning("the page can no longer be updated; the run continues", exc_info=True)

    return shown


def what_runs(model: Any) -> str:
    """Return the names of the estimator and its solver, for people to read."""
    solver = getattr(model, "solver", "")
    return f"{type(model).__name__}, {getattr(solver, 'name', solver)}"


def each_of(*calls: Callable[..., None] | None) -> Callable[..., None]:
    """Return a function that calls each of the given functions, and skips those that are None."""
    made = [call for call in calls if call is not None]

    def call_each(*arguments: Any) -> None:
        for call in made:
            call(*arguments)

    return call_each
