"""Keep what a live page shows about a run or about a server, in words and numbers.

A run needs only a moment to update its board. Each reader's own thread composes the text for that
reader, so readers do not slow down the run. A board has sites' names and counts of what was sent. It
has no numbers about rows, no keys, and no secrets.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fedpca.facts import size
from fedpca.protocol.printable import printable
from fedpca.protocol.question import find_question
from fedpca.report.remaining import Remaining

MAX_LISTED_SITES = 200  # sites that are listed; those that need somebody's attention come first
MAX_DRAWN_RESIDUALS = 400  # residuals in the plot
MAX_DRAWN_ROUNDS = 80  # rounds whose bytes are drawn
MAX_LINES = 12  # lines of a server's log
BAD, WAITING, BUSY, GOOD, UNSTYLED = "bad", "waiting", "busy", "good", "plain"  # styles of words


class Feed:
    """The current state as JSON, for readers who wait until it changes.

    Parameters
    ----------
    compose : callable
        Returns the current state as plain values. Readers call it, at most once per change.
    """

    def __init__(self, compose: Callable[[], dict[str, Any]]) -> None:
        self._compose = compose
        self._changed = threading.Condition()
        self._composing = threading.Lock()
        self._version, self._text = 0, (-1, "")
        self.is_over = False

    @contextmanager
    def changing(self, *, is_last: bool = False) -> Iterator[None]:
        """Let the caller change the state in the block, and let no reader copy it meanwhile."""
        with self._changed:
            yield
            self._version += 1
            self.is_over = self.is_over or is_last
            self._changed.notify_all()

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Let a reader copy the state in the block, and let nobody change it meanwhile."""
        with self._changed:
            yield

    def wait(self, seen: int, seconds: float) -> tuple[int, bool]:
        """Wait until the state is newer than version ``seen``, or until the time is up.

        Return the current version, and whether it is the last one.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._version > seen or self.is_over, seconds)
            return self._version, self.is_over

    def text(self) -> str:
        """Return the current state as JSON."""
        with self._composing:
            with self._changed:
                version = self._version
            if self._text[0] != version:
                self._text = version, json.dumps(self._compose(), allow_nan=False)
            return self._text[1]


class RunBoard:
    """What is known about a run while it is in progress.

    Parameters
    ----------
    title : str
        What the run produces, such as the name of the model file.
    what : str
        The names of the estimator and its method, for people to read.
    tol, max_rounds : float, int
        The residual and the number of rounds at which the solver stops.
    """

    def __init__(self, title: str, what: str, tol: float, max_rounds: int) -> None:
        self.feed = Feed(self._compose)
        self._title, self._what, self._tol = title, what, tol
        self._remaining = Remaining(tol, max_rounds)
        self._began = time.time()
        self._run, self._doing = "", "waiting for sites"
        self._online: dict[str, bool] = {}
        self._unapproved: tuple[str, ...] = ()
        self._pending: set[str] = set()  # sites that have yet to answer the current question
        self._round = 0
        self._lost: list[tuple[str, str]] = []  # each lost site, and why it was lost
        self._residuals: list[tuple[int, float]] = []
        self._bytes: list[tuple[int, int]] = []  # sent up and sent down in each round
        self._outcome: tuple[str, bool] | None = None
        self._ended: float | None = None

    def show_online(self, sites: Collection[str], online: Collection[str]) -> None:
        """Record which of the sites are online."""
        here = frozenset(online)
        with self.feed.changing():
            self._online = {name: name in here for name in sites}

    def show_waiting(self, run: str, names: tuple[str, ...]) -> None:
        """Record which sites must still approve the run."""
        with self.feed.changing():
            self._run, self._unapproved = run, names
            self._doing = "waiting for approval" if names else "approved at all sites"

    def show_answer(self, entry: Mapping[str, Any]) -> None:
        """Record a new question or an answer, from an entry that `Federation.on_answer` receives."""
        with self.feed.changing():
            if entry["site"] is not None:
                self._pending.discard(entry["site"])
                self._online[entry["site"]] = True
                return
            self._round, self._pending = entry["round"], set(entry["sites"])
            self._doing = find_question(entry["question"]).doing
            for name in entry["sites"]:
                self._online.setdefault(name, True)

    def show_round(self, entry: Mapping[str, Any], lost: Sequence[Mapping[str, Any]]) -> None:
        """Record a round: its entry in the history, and the sites that the run has lost so far."""
        with self.feed.changing():
            self._round, self._pending = entry["round"], set()
            self._remaining.add(dict(entry))
            self._bytes.append((entry["bytes_up"], entry["bytes_down"]))
            residual = entry["residual"]
            if residual is not None and math.isfinite(residual):
                self._residuals.append((entry["round"], float(residual)))
            for loss in lost[len(self._lost) :]:
                self._lost.append((loss["site"], loss["reason"]))

    def end(self, text: str, *, is_good: bool) -> None:
        """Record how the run ended; nothing changes after that."""
        with self.feed.changing(is_last=True):
            self._outcome, self._ended = (text, is_good), time.time()
            self._pending, self._unapproved = set(), ()

    def _compose(self) -> dict[str, Any]:
        with self.feed.unchanged():
            online, pending, lost = dict(self._online), set(self._pending), list(self._lost)
            residuals, crossed = list(self._residuals), list(self._bytes)
            unapproved, outcome, ended = self._unapproved, self._outcome, self._ended
            left, words = self._remaining.rounds_left, self._remaining.in_words
            number, doing, run = self._round, self._doing, self._run
        up, down = (sum(column) for column in zip(*crossed, strict=True)) if crossed else (0, 0)
        bars = crossed[-MAX_DRAWN_ROUNDS:]
        to_go = words.replace(" left", "") or "not known yet"
        tone = BUSY if outcome is None else GOOD if outcome[1] else BAD
        state = printable(outcome[0], 2000) if outcome else f"{doing[:1].upper()}{doing[1:]}"
        if outcome is None and (unapproved or not number):
            tone = WAITING
        facts = [
            ("round", f"{number:,}"),
            ("residual", f"{residuals[-1][1]:.1e}" if residuals else "none yet"),
            ("still to go", "nothing" if outcome else to_go),
            ("from the sites", size(up)),
            ("to the sites", size(down)),
            ("sites lost", f"{len(lost):,}"),
        ]
        return {
            "title": printable(self._title),
            "what": printable(f"{self._what}{f', run {run}' if run else ''}"),
            "state": state,
            "tone": tone,
            "began": self._began,
            "ended": ended,
            "facts": facts,
            "sites": _sites(online, unapproved, pending, lost),
            "curve": self._curve(residuals, left, number, is_over=outcome is not None),
            "bytes": [[len(crossed) - len(bars) + 1, *bars]] if bars else [],
            "lines": [],
        }

    def _curve(
        self, residuals: list[tuple[int, float]], left: int | None, number: int, *, is_over: bool
    ) -> dict[str, Any] | None:
        """Return the points of the residual's curve, and where the curve is expected to end."""
        points = [(r, value) for r, value in residuals if value > 0]
        if len(points) < 2:
            return None
        step = -(-len(points) // MAX_DRAWN_RESIDUALS)
        shown = points[::-step][::-1]  # the last point is always included
        is_expected = left is not None and not is_over and self._tol > 0
        end = number + left if is_expected and left is not None else None
        return {"points": shown, "tol": self._tol, "end": end}


def _sites(
    online: Mapping[str, bool],
    unapproved: Collection[str],
    pending: Collection[str],
    lost: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    """Return a line for each site; sites that need somebody's attention come first."""
    gone = dict(lost)
    waits = set(unapproved)
    lines: list[tuple[int, str, str, str, str]] = []
    for name in dict.fromkeys([*online, *gone]):
        if name in gone:
            lines.append((0, name, "lost", BAD, gone[name]))
        elif name in waits:
            lines.append((1, name, "must approve", WAITING, "a person there decides"))
        elif not online.get(name, True):
            lines.append((2, name, "offline", WAITING, "not connected"))
        elif name in pending:
            lines.append((3, name, "asked", BUSY, "has not answered yet"))
        else:
            lines.append((4, name, "online", GOOD, ""))
    lines.sort(key=lambda line: line[0])
    n_here = sum(is_here and name not in gone for name, is_here in online.items())
    return {
        "counts": f"{n_here:,} of {len(lines):,} online",
        "rows": [
            (printable(n), s, tone, printable(t, 400))
            for _, n, s, tone, t in lines[:MAX_LISTED_SITES]
        ],
        "more": max(0, len(lines) - MAX_LISTED_SITES),
    }


class ServerBoard:
    """What a server's page shows: which sites are online, and which sites a run is using."""

    def __init__(self, title: str, sites: Collection[str]) -> None:
        self.feed = Feed(self._compose)
        self._title = title
        self._began = time.time()
        self._online = dict.fromkeys(sites, False)
        self._in_use: dict[str, str] = {}
        self._lines: deque[str] = deque(maxlen=MAX_LINES)

    def show_sites(self, online: Collection[str], in_use: Mapping[str, str]) -> None:
        """Record which sites are online, and which run uses each site, if anything has changed."""
        here = frozenset(online)
        now = {name: name in here for name in self._online}
        if now != self._online or in_use != self._in_use:
            with self.feed.changing():
                self._online, self._in_use = now, dict(in_use)

    def tell(self, text: str) -> None:
        """Record a line of the server's log."""
        with self.feed.changing():
            self._lines.append(f"{time.strftime('%H:%M:%S')}  {printable(text, 400)}")

    def _compose(self) -> dict[str, Any]:
        with self.feed.unchanged():
            online, in_use, lines = self._online, self._in_use, list(self._lines)
        rows: list[tuple[int, str, str, str, str]] = []
        for name, is_here in online.items():
            user = in_use.get(name, "")
            state, tone = ("online", GOOD) if is_here else ("offline", WAITING)
            if user:
                state, tone = ("in a run", BUSY) if is_here else ("offline in a run", BAD)
            rows.append((0 if not is_here else 1 if user else 2, name, state, tone, user))
        rows.sort(key=lambda row: row[0])
        n_here, n_used = sum(online.values()), len(set(in_use.values()))
        return {
            "title": printable(self._title),
            "what": "coordinator's server",
            "state": f"Runs in progress: {n_used}" if n_used else "Running; no run uses the sites",
            "tone": BUSY if n_used else GOOD,
            "began": self._began,
            "ended": None,
            "facts": [
                ("sites online", f"{n_here:,} of {len(online):,}"),
                ("sites in a run", f"{len(in_use):,}"),
                ("runs", f"{n_used:,}"),
            ],
            "sites": {
                "counts": f"{n_here:,} of {len(online):,} online",
                "rows": [
                    (printable(n), s, t, printable(u, 400))
                    for _, n, s, t, u in rows[:MAX_LISTED_SITES]
                ],
                "more": max(0, len(rows) - MAX_LISTED_SITES),
            },
            "curve": None,
            "bytes": [],
            "lines": lines[::-1],
        }
