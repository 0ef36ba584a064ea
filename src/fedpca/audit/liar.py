"""Send a site whatever a lying coordinator would send, in the form of real messages.

A liar has the coordinator's credentials. It declares any plan, asks any installed question with any
numbers, and claims anything in a message's header. Then it hears the answer of one site, or only the
total of several sites' answers, as with secure sums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.stats import norm

from fedpca.arrays import Array, Arrays
from fedpca.protocol.message import Message, compose, decode, encode
from fedpca.protocol.plan import DECLARE, RunPlan
from fedpca.protocol.question import find_question

Ask = Callable[[bytes], bytes]  # sends one site an encoded question; returns the encoded answer

RELATIVE_ERROR = 1e-6  # a record or a value counts as recovered up to this error


class Refused(Exception):
    """A site refused to answer; the text is the reason that it gave."""


@dataclass(frozen=True)
class Found:
    """What an attack claims to have recovered.

    Parameters
    ----------
    records : ndarray of shape (m, d)
        Whole rows.
    values : dict
        Single values, by the index of their column.
    facts : dict
        What else the attacker knows about the sites that it heard, by name: "row count", "mean", "X'X",
        "smallest", "largest". Any other name says what a site was made to do; its value is None.
    """

    records: Array | None = None
    values: Mapping[int, Array] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """How many records and single values of the sites an attack really recovered, and which facts."""

    records: int = 0
    values: int = 0
    facts: tuple[str, ...] = ()

    def is_better_than(self, guess: Score) -> bool:
        """Return whether this score has more records or more single values than a guess's score."""
        return self.records > guess.records or self.values > guess.values


class Liar:
    """A coordinator that claims and asks whatever it likes.

    Parameters
    ----------
    sites : dict
        How to ask each site that the liar hears. If there are several, the liar hears only totals.
    roster : iterable of str
        The names of all sites of the federation, which an honest plan would list.
    colluding : dict
        The rows of the sites that collude with the liar, and so reveal everything. The liar hears
        these sites too.
    known : dict
        The columns that the liar knows in all rows of the site that it attacks, by their indices.
    n_columns : int
        The number of columns of that site.
    meanwhile : callable, optional
        A function to call between two runs, which changes the sites.
    """

    def __init__(
        self,
        sites: Mapping[str, Ask],
        roster: Iterable[str] = (),
        *,
        colluding: Mapping[str, Array] | None = None,
        known: Mapping[int, Array] | None = None,
        n_columns: int = 0,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        self._sites = dict(sites)
        self.colluding = dict(colluding or {})
        self.known, self.n_columns = dict(known or {}), n_columns
        self.meanwhile = meanwhile or (lambda: None)
        self.roster = {name: made_up_key(name) for name in (*roster, *sites)}
        self._asked = list(self._sites)  # the sites that take part in the current run
        self.refusals: list[str] = []
        self.n_questions = 0
        self._n_runs = 0
        self.plan: RunPlan | None = None
        self._run, self._round = "", 0

    @property
    def names(self) -> list[str]:
        """Return the names of the sites that the liar hears."""
        return list(self._sites)

    def begin(self, program: str | None = None, **parameters: Any) -> None:
        """Begin a run; declare a plan if a program is given."""
        self.begin_with(program and RunPlan("", program, parameters, self.roster))

    def begin_with(self, plan: RunPlan | str | None, name: str | None = None) -> None:
        """Begin a run, and declare the plan in it if one is given."""
        self._n_runs += 1
        name = name or f"run-{self._n_runs}"
        self._run, self._round = f"{name}.1", 0
        self.plan = replace(plan, run=name) if isinstance(plan, RunPlan) else None
        if self.plan is not None:
            self.declare(self.plan)

    def declare(self, plan: RunPlan) -> None:
        """Declare a plan in the current run."""
        self._send(
            DECLARE, "gather", {"plan": np.frombuffer(plan.to_bytes(), np.uint8)}, len(plan.sites)
        )

    def begin_among(self, names: Iterable[str]) -> None:
        """Begin another run with the same plan, but only these sites."""
        self._asked = list(names)
        self.roster = {name: made_up_key(name) for name in self._asked}
        self.begin_with(self.plan and replace(self.plan, sites=self.roster))

    def again(self) -> None:
        """Begin another run with the same plan."""
        self.begin_with(self.plan)

    def go_back(self) -> None:
        """Go back one round, so that the next question gets the same number as the last question."""
        self._round -= 1

    def ask(
        self, question: str, *, verb: str | None = None, n_sites: int | None = None, **arrays: Any
    ) -> Arrays:
        """Return the answer, or the total of the answers; raise `Refused` if a site refuses."""
        self._round += 1
        self.n_questions += 1
        claimed = len(self._listed) if n_sites is None else n_sites
        answers = self._send(question, verb or find_question(question).verb, arrays, claimed)
        return {
            key: np.sum([each.arrays[key] for each in answers], axis=0) for key in answers[0].arrays
        }

    def ask_one(self, question: str, **arrays: Any) -> Arrays:
        """Return the first site's answer to a gathered question, which no sum hides."""
        self._round += 1
        self.n_questions += 1
        verb = find_question(question).verb
        return self._send(question, verb, arrays, len(self._listed))[0].arrays

    @property
    def _listed(self) -> Mapping[str, str]:
        """Return the sites that the plan lists, or that an honest plan would list."""
        return self.roster if self.plan is None else self.plan.sites

    def _send(
        self, question: str, verb: str, arrays: Mapping[str, Any], n_sites: int
    ) -> list[Message]:
        header = {
            "run": self._run,
            "round": self._round,
            "question": question,
            "verb": verb,
            "n_sites": n_sites,
            "memory": 0,
        }
        request = encode(compose(header, arrays))
        answers = [decode(self._sites[name](request)) for name in self._asked]
        for answer in answers:
            if "error" in answer.header:
                text = str(answer.header["text"])
                self.refusals.append(text)
                raise Refused(text)
        return answers


def made_up_key(name: str) -> str:
    """Return the fingerprint that a liar declares for a site."""
    return hashlib.sha256(name.encode()).hexdigest()


def score(found: Found, rows: Array) -> Score:
    """Compare what an attack claims with the rows, ``(n, d)``, of the sites that it heard.

    An attack may claim at most n records, and at most n values of each column. A recovered record also
    counts as recovered values, one for each column.
    """
    n, d = rows.shape
    claimed = np.empty((0, d)) if found.records is None else found.records[:n]
    known = np.zeros(rows.shape, bool)
    known[_matched(claimed, rows)] = True
    records = int(known[:, 0].sum())
    for column, values in found.values.items():
        own = rows[:, column : column + 1]
        known[_matched(np.asarray(values)[:n, None], own), column] = True
    facts = tuple(name for name, value in found.facts.items() if _is_true(name, value, rows))
    return Score(records, int((known & np.isfinite(rows)).sum()), facts)


def guess_from_model(pooled: Array, rows: Array, known: Mapping[int, Array] | None = None) -> Score:
    """Score a guess of a site's rows from the published model of all rows, with all its components.

    The guess for the n values of a column is n quantiles of its normal distribution. The guesses for
    records are the mean, and the mean plus or minus a step along each component. The same guesses are
    also tried rounded to whole numbers, and the better result counts. If the liar knows some columns,
    it also guesses the mean, or the nearest whole number, in all other columns.
    """
    n, d = rows.shape
    mean = pooled.mean(axis=0)
    _, s, Vt = np.linalg.svd(pooled - mean, full_matrices=False)
    steps = Vt * s[:, None] / np.sqrt(max(len(pooled) - 1, 1))
    deviations = np.sqrt(np.sum(steps**2, axis=0))
    quantiles = norm.ppf((np.arange(n) + 0.5) / n)
    columns = {j: mean[j] + deviations[j] * quantiles for j in range(d)}
    records = np.vstack([mean, mean + steps, mean - steps])
    guesses = [
        Found(records, columns),
        Found(np.rint(records), {j: np.rint(x) for j, x in columns.items()}),
    ]
    if known:
        for guess in (mean, np.rint(mean)):
            linked = np.tile(guess, (n, 1))
            linked[:, list(known)] = np.column_stack(list(known.values()))
            guesses.append(Found(linked))
    return max(
        (score(each, rows) for each in guesses), key=lambda each: (each.records, each.values)
    )


def _matched(claims: Array, rows: Array) -> Array:
    """Return the indices of rows that claims reproduce, one per claim; a row's NaN matches anything.

    A row without any value is never reproduced.
    """
    has_values: Array = np.asarray(np.isfinite(rows).any(axis=1))
    is_left: Array = has_values.copy()
    size = np.sqrt(np.nansum(rows**2, axis=1))
    for claim in claims:
        if not np.isfinite(claim).all():
            continue
        with np.errstate(over="ignore"):  # a wrong claim may be of any size
            off = np.sqrt(np.nansum((rows - claim) ** 2, axis=1))
        off[~is_left] = np.inf
        nearest = int(np.argmin(off)) if is_left.any() else 0
        if is_left.any() and off[nearest] <= RELATIVE_ERROR * max(
            float(size[nearest]), np.finfo(float).tiny
        ):
            is_left[nearest] = False
    return np.flatnonzero(has_values & ~is_left)


def _is_true(name: str, value: Any, rows: Array) -> bool:
    truths: dict[str, Callable[[], Any]] = {
        "row count": lambda: len(rows),
        "mean": lambda: np.nanmean(rows, axis=0),
        "X'X": lambda: rows.T @ rows,
        "smallest": lambda: np.nanmin(rows, axis=0),
        "largest": lambda: np.nanmax(rows, axis=0),
    }
    if name not in truths:
        return value is None
    truth = np.asarray(truths[name](), float)
    return bool(np.linalg.norm(value - truth) <= RELATIVE_ERROR * np.linalg.norm(truth))
