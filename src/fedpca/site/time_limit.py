"""Interrupt a question that takes too long, so that a site goes on to the next one.

A timer of the operating system interrupts the process's main thread, in which `fedpca join` computes
answers. Python looks for an interrupt between two of its own instructions. So a loop over blocks of
rows or over steps ends almost immediately, but a single call into numpy, BLAS, or a file reader first
runs to its end. A question that ignores every exception cannot be interrupted. Only a package that the
site has installed can add a question like that.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fedpca.errors import SiteFailed
from fedpca.protocol.question import Question

REPEAT_S = 1.0  # time between interrupts, in case something catches the first one


@contextmanager
def interrupted_after(seconds: float | None) -> Iterator[None]:
    """Raise `SiteFailed` in a question that is still running after this many seconds.

    Only the question's own work is interrupted, because the site can then restore its memory from
    before the question. Checking and saving an answer takes little time and is never interrupted. If
    ``seconds`` is None, or if the system has no timer, nothing is interrupted.
    """
    if seconds is None or not hasattr(signal, "setitimer"):
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _is_in_question(frame):
            raise SiteFailed(
                f"work on this question was stopped after {seconds:g} s, the site's time limit; ask "
                "the site to increase --timeout, or ask for less"
            )

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _is_in_question(frame: FrameType | None) -> bool:
    """Return whether a question is being computed in this frame or in one that called it."""
    while frame is not None:
        if frame.f_code is Question.__call__.__code__:
            return True
        frame = frame.f_back
    return False
