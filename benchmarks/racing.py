"""Let contestants take turns, and print our seconds divided by theirs, next to a bound."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection


def race(
    contestants: dict[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Let contestants take turns, and return the median seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            began = clock()
            run()
            seconds[name].append(clock() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def show(
    title: str,
    seconds: dict[str, float],
    bounds: dict[str, float],
    short: Collection[str] = (),
) -> None:
    """Print each contestant's seconds, our seconds divided by theirs, and the bound on this ratio.

    Contestants that fell ``short`` of the common target have no ratio.
    """
    print(f"\n{title}")
    ours = seconds["fedpca"]
    for name, value in seconds.items():
        ratio = "" if name == "fedpca" else f"   fedpca / this {ours / value:5.3f}"
        ratio = "   not reached" if name in short or "fedpca" in short else ratio
        bound = f"   (bound {bounds[name]:.2f})" if name in bounds else ""
        print(f"  {name:32s}{value:8.3f} s{ratio}{bound}")
