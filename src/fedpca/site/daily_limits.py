"""Count the runs and rounds that a site answers in a day, in a file that outlives the process.

Whoever asks often enough learns more than a single fit tells. The file has the counts of each minute in
the last 24 hours. Setting the clock back does not help: until the clock passes the latest time that was
ever seen, the site uses that time as the current time.

The file is not written in every round. Instead, the site counts several rounds in advance. These rounds
are set aside, and then used up. Rounds that are still set aside when the process ends count as spent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fedpca.errors import PolicyRefused
from fedpca.site.policy import Policy
from fedpca.site.store import Kept

DAY_MINUTES = 24 * 60
SET_ASIDE = 50  # rounds that are set aside each time the file is written
MAX_ASIDE_MINUTES = 60  # how long rounds may stay set aside

Counts = dict[int, list[int]]  # runs and rounds, by minute


class Budget:
    """The runs and rounds that a site has answered in the last 24 hours, and their limits."""

    def __init__(self, policy: Policy, file: Kept, clock: Callable[[], float] = time.time) -> None:
        self._max_runs, self._max_rounds = policy.max_runs_per_day, policy.max_rounds_per_day
        self._file, self._clock = file, clock
        self._counted: Counts | None = None
        self._latest = 0  # the latest minute that was seen
        self._run: str | None = None  # the run that was counted last
        self._starts_over = False
        self._aside, self._aside_at = 0, 0  # how many rounds are set aside, and since which minute

    def start_over(self) -> None:
        """Count the next run as a new one, even if it has the same name as the last one."""
        self._starts_over = True

    def spend(self, run: str, set_aside: int = SET_ASIDE) -> None:
        """Count a round of a run, and the run if it is new; refuse if the budget is spent.

        ``set_aside`` is the number of rounds to set aside each time the file is written.
        """
        if self._counted is None:
            self._counted = self._load()
        if self._starts_over:
            self._starts_over, self._run = False, None
        self._latest = max(self._latest, int(self._clock() // 60))
        if run == self._run and self._aside and self._latest < self._aside_at + MAX_ASIDE_MINUTES:
            self._aside -= 1
            return
        self._set_aside(run, self._counted, set_aside)

    def _set_aside(self, run: str, counted: Counts, granted: int) -> None:
        """Set rounds aside for a run, count them in the file, and use the first of them."""
        now, is_new = self._latest, run != self._run
        counts = {m: list(n) for m, n in counted.items()}
        if self._aside:  # these rounds were counted, but not used
            counts[self._aside_at][1] -= self._aside
        counts = {m: n for m, n in counts.items() if m > now - DAY_MINUTES}
        n_runs, n_rounds = (sum(each[i] for each in counts.values()) for i in (0, 1))
        if is_new:
            refuse_spent("runs", n_runs, self._max_runs, self._file.path)
        refuse_spent("rounds", n_rounds, self._max_rounds, self._file.path)
        if self._max_rounds is not None:
            granted = min(granted, self._max_rounds - n_rounds)
        runs, rounds = counts.get(now, (0, 0))
        counts[now] = [runs + is_new, rounds + granted]
        self._file.write({"latest": now, "run": run, "counted": counts}, {})
        self._counted, self._run = counts, run
        self._aside, self._aside_at = granted - 1, now

    def _load(self) -> Counts:
        kept = self._file.read(lambda message: message.header)
        if kept is None:
            return {}
        self._latest, self._run = kept["latest"], kept["run"]
        return {int(minute): list(counts) for minute, counts in kept["counted"].items()}


def refuse_spent(kind: str, used: int, limit: int | None, path: Path | None) -> None:
    """Raise an error if the budget of runs or of rounds is spent."""
    if limit is not None and used >= limit:
        where = "" if path is None else f" (counted in {path.name} in its folder)"
        raise PolicyRefused(
            f"the site has answered {limit:,} {kind} in 24 hours, which is the limit that its policy's "
            f"max_{kind}_per_day sets{where}; wait, or ask the site to raise the limit"
        )
