"""Count what a site's private answers spend, in a file that outlives the process.

    mu^2 of all releases together  <=  the mu^2 of Policy.total_epsilon and delta

A release is one noisy answer (`fedpca.privacy.gaussian`). Each has a line of JSON in the file::

    {"entry": 2, "time": "2026-11-18T12:00:00+00:00", "run": "1f..0", "session": "5e..", "round": 3,
     "question": "noisy_scatter", "purpose": "", "epsilon": 1.0, "delta": 1e-06, "mu2": 0.0532,
     "total": 0.0560, "previous": "c4..9", "chain": "0b..2"}

``epsilon`` and ``delta`` are what the run promises, ``mu2`` is what the release spends, and ``total``
is what all releases so far have spent. `fedpca.site.chained_lines` describes the chain.

The line is on disk before the site saves the answer, and the answer is saved before it leaves. So there
are three cases if a site is killed. If the line was not written yet, nothing was spent, and no answer
left. If the line was written but the answer was not saved, the release was counted but did not leave.
When the round is repeated, the site computes a new answer, finds the line, and does not count it again.
If the answer was saved, a repeated round gets the saved bytes.

Two releases are the same if they have the same session, round, and question. A session is a random key
that a site draws when it begins a run and keeps in its memory of the run. If that memory is lost,
earlier answers cannot be repeated. An answer with different noise is then a new release, whatever the
coordinator calls the run.
"""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any

from fedpca.arrays import Array
from fedpca.errors import PolicyRefused
from fedpca.facts import (
    COUNT,
    DATA,
    EPSILON,
    TIME,
    Column,
    Fact,
    Records,
    Section,
    Sections,
    cautions,
)
from fedpca.privacy.gaussian import Privacy, epsilon_of
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.printable import printable
from fedpca.protocol.proof import NO_HEAD
from fedpca.site.chained_lines import ChainCheck, add, opened, verified
from fedpca.site.policy import Policy
from fedpca.site.store import PRIVACY

SESSION_BYTES = 16
Key = tuple[str, str, int, str]  # identifies a release
State = tuple[int, int, int, int]  # of a file
ROUNDING = 1e-12  # how much rounding may change a sum, as a share of the budget


@dataclass(frozen=True)
class Session:
    """A random key for one beginning of a private run; the site remembers it."""

    key: Array  # (16,), random bytes


@dataclass(frozen=True)
class Release:
    """One noisy answer that may leave a site, and what it spends."""

    time: str
    run: str  # with the number of the attempt
    session: str
    round: int
    question: str
    purpose: str
    epsilon: float  # what the run promises, together with delta
    delta: float
    mu2: float
    total: float = 0.0  # the mu2 of this release and of all earlier ones

    @classmethod
    def now(
        cls, run: str, session: Session, number: int, question: str, plan: RunPlan, mu2: float
    ) -> Release:
        """Return the release that answers a question, as of now."""
        settings = Privacy.of(plan)
        return cls(
            time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            run=printable(run),
            session=session.key.tobytes().hex(),
            round=number,
            question=question,
            purpose=printable(plan.purpose),
            epsilon=float(settings.epsilon),
            delta=float(settings.delta),
            mu2=mu2,
        )

    @property
    def key(self) -> Key:
        """Return what stays the same if a round is repeated."""
        return self.run, self.session, self.round, self.question

    def to_plain(self) -> dict[str, Any]:
        """Return the release as values for a line of JSON, which has no infinite numbers."""
        return {k: str(v) if v == math.inf else v for k, v in asdict(self).items()}

    @classmethod
    def from_plain(cls, entry: Mapping[str, Any]) -> Release:
        """Return the release in a line that fits `fedpca.site.store.PRIVACY`."""
        plain: dict[str, Any] = {each.name: entry[each.name] for each in fields(cls)}
        numbers = {
            each.name: float(plain[each.name]) for each in fields(cls) if each.type == "float"
        }
        return cls(**plain | numbers)


@dataclass
class Spent:
    """The releases in a file, and the problems found in the file."""

    releases: list[Release] = field(default_factory=list)
    heads: list[str] = field(default_factory=lambda: [NO_HEAD])
    problem: str = ""
    notes: list[str] = field(default_factory=list)
    state: State | None = None  # of the file, before it was read

    @property
    def mu2(self) -> float:
        """Return what all releases have spent."""
        return self.releases[-1].total if self.releases else 0.0

    def facts(self, policy: Policy, delta: float) -> Sections:
        """Return what runs have spent at a delta, and what a policy leaves, as sections of facts."""
        runs: dict[tuple[str, str], list[Release]] = {}
        for each in self.releases:
            runs.setdefault((each.run, each.session), []).append(each)
        rows = [
            (
                of_run[0].time,
                run,
                of_run[0].purpose,
                len(of_run),
                epsilon_spent(math.fsum(each.mu2 for each in of_run), delta),
            )
            for (run, _), of_run in runs.items()
        ]
        total = [
            Fact("epsilon", epsilon_spent(self.mu2, delta), EPSILON, "epsilon spent"),
            Fact("delta", delta, EPSILON),
            Fact("mu2", self.mu2, DATA),
            Fact("n_answers", len(self.releases), COUNT, "answers"),
            Fact("n_runs", len(runs), COUNT, "runs"),
        ]
        if not policy.is_open:
            # the budget is defined at the policy's delta, but what is left is stated at this delta
            left = epsilon_spent(max(0.0, policy.max_mu2 - self.mu2), delta)
            total += [
                Fact("total_epsilon", policy.total_epsilon, EPSILON, "epsilon of the policy"),
                Fact("left", left, EPSILON, "epsilon left"),
            ]
        return (
            Records("runs", SPENT, rows),
            cautions(self.notes),
            Section("", (*total, Fact("head", self.heads[-1], note="the chain is whole"))),
        )

    @classmethod
    def read(cls, path: Path) -> Spent:
        """Read a file up to the first wrong line; treat a missing file as empty.

        A line that was not written completely is no problem, because its answer never left the site.
        """
        spent, check = cls(state=_state_of(path)), ChainCheck()
        try:
            for entry in verified(path, check, PRIVACY):
                release = Release.from_plain(entry)
                if release.total != spent.mu2 + release.mu2:
                    spent.problem = (
                        f"the total of entry {entry['entry']} is not the sum of the spending so far"
                    )
                    return spent
                spent.releases.append(release)
                spent.heads.append(entry["chain"])
        except FileNotFoundError:
            return spent
        spent.notes = check.notes + ([check.problem] if check.is_torn else [])
        spent.problem = "" if check.is_torn else check.problem
        return spent


SPENT = (
    Column("time", TIME, "since"),
    Column("run"),
    Column("purpose"),
    Column("releases", COUNT, "answers"),
    Column("epsilon", EPSILON),
)


def epsilon_spent(mu2: float, delta: float) -> float:
    """Return the epsilon of a total mu^2 at a delta."""
    return epsilon_of(math.sqrt(max(mu2, 0.0)), delta)


class PrivacyBudget:
    """What a site's private answers have spent, checked against its policy.

    A site without a folder keeps the counts in memory, so they last only as long as the site object.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._counted: dict[Key, Release] = {}  # releases that this process has counted
        self._seen: dict[Path, Spent] = {}  # what each file held when it was last read or written

    def check(self, plan: RunPlan, run: str, path: Path | None) -> None:
        """Refuse a plan if the run would take the total beyond the budget.

        What a resumed run has already spent does not count twice.
        """
        known = self._known(self._read(path))
        own = _sum({k: each for k, each in known.items() if each.run == printable(run)})
        asked = max(0.0, Privacy.of(plan).mu ** 2 - own)
        self._refuse_overspending(_sum(known), asked, "the run asks for")

    def spend(self, release: Release, path: Path | None) -> None:
        """Refuse a release beyond the budget, or count it once; then its answer may leave."""
        if path is None:
            self._is_new(release, Spent())
            self._counted[release.key] = release
            return
        with opened(path, PRIVACY) as file:
            self._write(release, path, file)
        self._counted[release.key] = release

    def in_words(self, path: Path | None) -> str:
        """Return a phrase that says what is spent and what is left."""
        spent, delta = _sum(self._known(self._read(path))), self._policy.delta
        return (
            f"epsilon {_epsilon(spent, delta)} of {self._policy.total_epsilon:g} is spent, and epsilon "
            f"{_epsilon(self._policy.max_mu2 - spent, delta)} is left (at delta {delta:g})"
        )

    def _write(self, release: Release, path: Path, file: IO[bytes]) -> None:
        """Add a release to the file, unless its line was written before the site was killed."""
        spent = self._read(path)
        if self._is_new(release, spent):
            counted = replace(release, total=spent.mu2 + release.mu2)
            spent.heads.append(add(file, counted.to_plain(), PRIVACY)["chain"])
            spent.releases.append(counted)
            spent.state = _state_of(path)
        else:
            # the site may have been killed before the line reached the disk
            os.fsync(file.fileno())

    def _is_new(self, release: Release, spent: Spent) -> bool:
        """Return whether a release has no line yet; refuse a release beyond the budget."""
        known = self._known(spent)
        if release.key not in known:
            self._refuse_overspending(_sum(known), release.mu2, "the answer asks for")
        return all(each.key != release.key for each in spent.releases)

    def _known(self, spent: Spent) -> dict[Key, Release]:
        """Return the releases in the file, and all others that this process has counted."""
        return self._counted | {each.key: each for each in spent.releases}

    def _read(self, path: Path | None) -> Spent:
        """Return the releases in the file, and refuse a file that was altered.

        The file grows with each release, so it is read again only if someone else has touched it.
        """
        if path is None:
            return Spent()
        seen = self._seen.get(path, Spent())
        if seen.state is not None and seen.state == _state_of(path):
            return seen
        spent = Spent.read(path)
        if not spent.problem and seen.heads[-1] not in spent.heads:
            spent.problem = "lines that the site wrote were removed"
        if spent.problem:
            raise PRIVACY.damaged(path, spent.problem)
        self._seen[path] = spent
        return spent

    def _refuse_overspending(self, spent: float, asked: float, who: str) -> None:
        """Refuse to go beyond the budget, and say how much is left."""
        limit, delta = self._policy.max_mu2, self._policy.delta
        if spent + asked <= limit * (1 + ROUNDING):
            return
        left, policy = _epsilon(limit - spent, delta), self._policy
        follows = policy.max_epsilon is None
        rule = "run_epsilon" if follows else "max_epsilon"
        means = f", so all runs together may spend {policy.total_epsilon:g}" if follows else ""
        raise PolicyRefused(
            f"{who} epsilon {_epsilon(asked, delta)} of the site's privacy budget, of which epsilon "
            f"{left} is left: epsilon {_epsilon(spent, delta)} is spent, and its policy has "
            f"{rule}={getattr(policy, rule):g}{means} (all at delta={delta:g}; values of epsilon do "
            f"not simply add up); ask for less, or ask the site to raise {rule}"
        )


def _state_of(path: Path) -> State | None:
    """Return what changes whenever a file changes, or None if there is no file to look at."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _sum(releases: Mapping[Key, Release]) -> float:
    return math.fsum(each.mu2 for each in releases.values())


def _epsilon(mu2: float, delta: float) -> str:
    return f"{epsilon_spent(mu2, delta):.4g}"
