"""Wait until people at the sites have approved a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from fedpca.errors import ApprovalPending

FIRST_DECLARE_PAUSE_S, MAX_DECLARE_PAUSE_S = 1.0, 30.0  # between two attempts to declare the run
PAUSE_GROWTH = 1.5  # factor by which each pause is longer than the one before

OnWaiting = Callable[[str, tuple[str, ...]], None]


class ApprovalWait:
    """A limit on the time that a run waits for approval; the clock starts with the first wait.

    Parameters
    ----------
    run : str
        The name of the run, which people at the sites use to approve the run.
    seconds : float
        How many seconds to wait in all.
    can_resume : bool
        Whether the run has a journal, so that it can continue later.
    on_waiting : callable, optional
        Called with the run's name and the names of the sites that still have to approve it, whenever
        the list of these sites changes.
    """

    def __init__(
        self, run: str, seconds: float, can_resume: bool, on_waiting: OnWaiting | None
    ) -> None:
        self._run, self._seconds, self._can_resume = run, seconds, can_resume
        self._on_waiting = on_waiting
        self._told: tuple[str, ...] = ()
        self._until: float | None = None
        self._pause_s = FIRST_DECLARE_PAUSE_S

    def pause(self, pending: Mapping[str, str]) -> None:
        """Wait a while for the pending sites, or raise an error if the time is up.

        ``pending`` maps the name of each pending site to that site's message.
        """
        self.tell(tuple(pending))
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._seconds
        if now >= self._until:
            raise ApprovalPending(self._in_words(pending))
        time.sleep(min(self._pause_s, self._until - now))
        self._pause_s = min(PAUSE_GROWTH * self._pause_s, MAX_DECLARE_PAUSE_S)

    def tell(self, names: tuple[str, ...]) -> None:
        """Report which sites still have to approve, if the list has changed since the last report."""
        if names != self._told and self._on_waiting is not None:
            self._on_waiting(self._run, names)
        self._told = names

    def _in_words(self, pending: Mapping[str, str]) -> str:
        continues = (
            "then the same fit with the same journal continues this run"
            if self._can_resume
            else "this run has no journal and cannot continue later, so use a journal or a longer wait"
        )
        return (
            f"run {self._run} was not approved within {self._seconds:g} s at {', '.join(pending)}; "
            f"someone there must run `fedpca approve {self._run}`; {continues} "
            f"({'; '.join(pending.values())})"
        )
