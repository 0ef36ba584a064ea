"""Define which runs a site takes part in, and which questions it answers: a table with a row a rule."""

from __future__ import annotations

import json
import math
import os
import textwrap
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from fedpca.errors import FileError, InputError, PolicyRefused
from fedpca.facts import DATA, Column, Records, Sections
from fedpca.privacy.gaussian import (
    MAX_DELTA,
    MAX_EPSILON,
    MIN_DELTA,
    MIN_EPSILON,
    Privacy,
    mu_of,
)
from fedpca.protocol.plan import NO_KEY, SECURE, RunPlan
from fedpca.protocol.question import Question
from fedpca.protocol.script import FEDERATED, Script
from fedpca.site import refusals
from fedpca.site.rules import PRIVATE_RUNS, UNLIMITED, Asked, Rule, Shape, fingerprints, rule
from fedpca.storage.regular import refuse_special

MAX_APPROVAL_DAYS = 3650
LIFETIME_RUNS = 10  # without max_epsilon, all private runs together keep this many run_epsilon
REQUIREMENTS = (SECURE, PRIVATE_RUNS)  # what a policy can require of a run
ANY = "any"  # allows every installed question, in any order
RULE = (
    Column("given"),
    Column("prevents"),
    *(Column(key, DATA) for key in ("rule", "value", "is_on")),
)
END = "end"  # the last line of a policy file
TITLE = (
    "# What this site takes part in, and what it tells. `fedpca policy --explain FILE` says more."
)
WIDTH = 96  # characters of a comment line


def _refuse_few_sites(policy: Policy, n_sites: int) -> str | None:
    """Return why a sum over so few sites is refused, in a plan or in a question."""
    if n_sites >= policy.min_sites:
        return None
    return f"the sum covers {n_sites} sites, fewer than the policy's min_sites={policy.min_sites}"


def _refuse_few_rows(policy: Policy, rows: Shape) -> str | None:
    """Return why a site with too few rows answers nothing about them."""
    if not policy.min_rows or rows.n_rows >= policy.min_rows:
        return None
    return f"the site has fewer rows than its policy's min_rows={policy.min_rows}"


@dataclass(frozen=True)
class Policy:
    """A site's own rules for the runs that it takes part in and the questions that it answers.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA, Policy, Site
    >>> from fedpca.errors import PolicyRefused
    >>> rng = np.random.default_rng(0)
    >>> careful = Site(rng.normal(size=(40, 4)), name="north", policy=Policy(min_rows=50))
    >>> try:
    ...     FederatedPCA(2).fit([careful, rng.normal(size=(60, 4))])
    ... except PolicyRefused:
    ...     print("north takes no part")
    north takes no part
    """

    allow: tuple[str, ...] = rule(
        (FEDERATED,),
        off=None,
        prevents="Prevents runs that nobody here has agreed to. federated: components of the pooled "
        "rows, from sums over sites. auto: also n_components='auto', which asks for sums of rows "
        "with random signs. Open others by name: personalized, robust, merge, average, tsqr, or a "
        "solver from an installed package. any: every question, in "
        "any order and with any numbers, so that whoever has the coordinator's secret can reconstruct "
        "single rows.",
        refuses=refusals.word,
    )
    gather: bool = rule(
        False,
        off=True,
        prevents="Keeps the coordinator from seeing numbers of this site alone, such as its own "
        "variance. true: it may see them.",
        refuses=refusals.seen,
    )
    min_rows: int = rule(
        0,
        off=0,
        prevents="Prevents runs while this site has fewer rows than this.",
        refuses_rows=_refuse_few_rows,
    )
    min_count: int = rule(
        5,
        least=1,
        off=1,
        prevents="Prevents counts and sums over fewer rows than this, columns in which fewer rows "
        "differ from the most frequent value, combinations of columns in which fewer rows do, and gaps "
        "that single out fewer rows. 1 turns it off.",
    )
    min_rows_per_direction: int = rule(
        2,
        off=0,
        prevents="Keeps answers from showing nearly every direction of a table with few rows and "
        "many columns, from which single rows can be computed. 0 turns it off.",
    )
    max_share: float | None = rule(
        None,
        least=1e-9,
        most=1.0,
        off=None,
        prevents="Prevents sums of squares, of columns or of combinations of them, of which one row "
        f'has more than this share. "{UNLIMITED}" turns it off.',
    )
    min_sites: int = rule(
        1,
        least=1,
        off=1,
        prevents="Prevents runs with fewer sites, in whose sums this site would stand out.",
        refuses=lambda policy, asked: _refuse_few_sites(policy, len(asked.plan.sites)),
    )
    peers: tuple[str, ...] = rule(
        (),
        reads=fingerprints,
        off=(),
        prevents="Keeps a coordinator from inventing sites: the fingerprints of the other sites' "
        "keys, which `fedpca site-key --show NAME.pub` prints. Empty: any sites. Needed for "
        "min_sites above 1 and for require.",
        refuses=refusals.strangers,
    )
    approval: bool = rule(
        False,
        off=False,
        prevents="Prevents runs that no person here has approved with `fedpca approve`.",
    )
    approval_days: int = rule(
        7,
        least=1,
        most=MAX_APPROVAL_DAYS,
        off=None,
        prevents="Prevents requests and approvals that last longer than this many days.",
    )
    min_change: int | None = rule(
        None,
        least=1,
        off=1,
        prevents="Keeps the difference between two runs from describing few rows: if the files have "
        "changed, at least this many rows must have. By default, min_count. 1 turns it off.",
        follows="least_change",
    )
    max_runs_per_day: int | None = rule(
        None,
        off=None,
        prevents="Prevents many runs, which together tell more than one. Counted over 24 hours. "
        f'"{UNLIMITED}" turns it off.',
    )
    max_rounds_per_day: int | None = rule(
        None,
        off=None,
        prevents=f'Prevents the same for rounds; a fit takes 5 to 500. "{UNLIMITED}" turns it off.',
    )
    max_attempts: int = rule(
        5,
        least=1,
        off=None,
        prevents="Keeps a run from beginning more often than this, each time without some sites; the "
        "difference of two sums describes the sites that were left out.",
    )
    require: tuple[str, ...] = rule(
        (),
        known=REQUIREMENTS,
        off=(),
        prevents='Keeps the coordinator from reading what this site adds to a sum: "secure" takes '
        "part only in runs with secure sums over two sites or more, and needs peers. "
        '"private" keeps results from describing single rows: it takes part only in runs in which '
        "every answer has noise. Empty: takes part in all runs.",
        refuses=refusals.lacking,
    )
    run_epsilon: float = rule(
        1.0,
        least=MIN_EPSILON,
        most=MAX_EPSILON,
        off=None,
        prevents="Prevents private runs with less noise than this epsilon needs. Only such noise may "
        "take the place of min_count and the other rules about few rows.",
        refuses=refusals.little_noise,
    )
    max_epsilon: float | None = rule(
        None,
        least=MIN_EPSILON,
        most=MAX_EPSILON,  # near it, nothing is promised anymore
        off=math.inf,
        prevents="Keeps all private runs together, ever, from telling more about a single row than "
        "this epsilon allows, and other runs from telling anything. `fedpca budget` says what was "
        f"spent. By default, {LIFETIME_RUNS} times run_epsilon, and other runs are admitted too.",
        follows="total_epsilon",
    )
    delta: float = rule(
        1e-6,
        least=MIN_DELTA,
        most=MAX_DELTA,
        off=None,
        prevents="The probability that an epsilon fails; choose it far below one over the number of "
        "rows.",
    )

    def __post_init__(self) -> None:
        for row in rules():
            object.__setattr__(self, row.name, row.read(getattr(self, row.name)))
        if self.is_open and (self.peers or self.approval or self.must_be_private):
            raise InputError(
                f"allow has {ANY!r}, so the site would answer questions without a plan, and peers, "
                f"approval, max_epsilon, and require={PRIVATE_RUNS!r} would have no effect; name the "
                f"programs to allow, as in ['{FEDERATED}']"
            )

    @property
    def must_be_private(self) -> bool:
        """Return whether the site takes part only in private runs, as a privacy budget requires."""
        return self.max_epsilon is not None or PRIVATE_RUNS in self.require

    @property
    def total_epsilon(self) -> float:
        """Return the epsilon that all private runs together keep, at this policy's ``delta``.

        Without `max_epsilon`, it follows from `run_epsilon`. Noise hides a row only if it cannot be
        averaged away over any number of runs.
        """
        if self.is_open:
            return math.inf
        return LIFETIME_RUNS * self.run_epsilon if self.max_epsilon is None else self.max_epsilon

    def noise_hides_rows(self, plan: RunPlan) -> bool:
        """Return whether a plan has so much noise that the rules about few rows are not needed.

        What counts is the policy's ``delta``, because the coordinator chooses the plan's.
        """
        return plan.is_private and Privacy.of(plan).mu <= mu_of(self.run_epsilon, self.delta)

    @property
    def max_mu2(self) -> float:
        """Return the total mu^2 that all private answers may spend."""
        return mu_of(self.total_epsilon, self.delta) ** 2

    @property
    def is_open(self) -> bool:
        """Return whether the site answers every installed question, without a plan."""
        return ANY in self.allow

    @property
    def protects_few(self) -> bool:
        """Return whether any rule looks at the rows."""
        most = self.min_rows_per_direction, self.max_share
        return self.min_count > 1 or self.least_change > 1 or any(most)

    @property
    def has_budget(self) -> bool:
        """Return whether runs or rounds are limited."""
        return self.max_runs_per_day is not None or self.max_rounds_per_day is not None

    @property
    def least_change(self) -> int:
        """Return how many rows must have changed, if any have, before the next run may begin."""
        return self.min_count if self.min_change is None else self.min_change

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy from a TOML file; take rules that are not in the file from `JOINING`.

        The last line must be ``end = true``, so that a file that was cut off is refused.
        """
        refuse_special(path)
        try:
            text = Path(path).read_text(encoding="utf-8")
            given = tomllib.loads(text)
        except OSError as error:
            raise FileError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise FileError(f"{path} is not TOML: {error}") from None
        if given.pop(END, None) is not True or not _ends(text):
            raise FileError(
                f"{path} does not end with the line '{END} = true', so part of it may be missing; "
                "if the file is complete, add this line at the end"
            )
        known = {row.name: row for row in rules()}
        for name, value in given.items():
            if name not in known:
                near = get_close_matches(name, list(known), 1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise InputError(
                    f"{path}: unknown rule {name!r}; {hint}the rules are {', '.join(known)}"
                )
            if value == UNLIMITED and known[name].is_unlimited:
                given[name] = None
        try:
            return replace(JOINING, **given)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def to_text(self) -> str:
        """Return the policy as the text of a file, with a comment on what each rule prevents."""
        lines = [TITLE, ""]
        for row in rules():
            lines += [f"# {line}" for line in textwrap.wrap(row.prevents, WIDTH)]
            hidden = "# " if getattr(self, row.name) is None and row.follows else ""
            lines.append(f"{hidden}{self._as_given(row)}")
            lines.append("")
        lines.append(f"{END} = true  # the last line, so that a file that was cut off is refused")
        return "\n".join(lines) + "\n"

    def facts(self) -> Sections:
        """Return each rule with its value, whether it restricts anything, and what it prevents."""
        rows = []
        for row in rules():
            is_on = row.is_on(self)
            given = f"{self._as_given(row)}{'' if is_on else ' (off)'}"
            rows.append((given, row.prevents, row.name, row.value_in(self), is_on))
        return (Records("rules", RULE, rows, as_lines=True),)

    def in_words(self) -> str:
        """Return the rules that restrict anything as a short phrase, as they stand in a file."""
        return ", ".join(self._as_given(row) for row in rules() if row.is_on(self))

    def _as_given(self, row: Rule) -> str:
        return f"{row.name} = {_as_toml(row.value_in(self))}"

    def refuse_unknown_sites(self) -> None:
        """Refuse a rule about the number of sites if it cannot be checked without `peers`."""
        rules = {f"min_sites={self.min_sites}": "min_sites = 1"} if self.min_sites > 1 else {}
        if SECURE in self.require:
            rules[f"require={list(self.require)}"] = "require = []"
        if rules and not self.peers:
            needs = "need" if len(rules) > 1 else "needs"
            raise InputError(
                f"{' and '.join(rules)} {needs} peers across machines, because a coordinator could "
                "invent sites; list in peers the fingerprints of the other sites' keys, as "
                f"`fedpca site-key --show NAME.pub` prints them, or use {' and '.join(rules.values())}"
            )

    def admit(self, plan: RunPlan, script: Script, own_key: str = NO_KEY) -> None:
        """Refuse a plan that the policy forbids, and name the rule; ``own_key`` is a fingerprint."""
        asked = Asked(plan, script, own_key)
        for row in rules():
            reason = row.refuses(self, asked)
            if reason is not None:
                raise PolicyRefused(reason)

    def check(self, question: Question, n_sites: int, rows: Shape) -> None:
        """Refuse a question that the policy forbids, and name the rule."""
        if not question.reads_rows:
            return
        self.check_rows(rows)
        if question.verb == "gather" and not self.gather:
            raise PolicyRefused(
                "the policy does not let the coordinator see this site's own answer"
            )
        few = _refuse_few_sites(self, n_sites)
        if question.verb == "sum" and few is not None:
            raise PolicyRefused(few)

    def check_rows(self, rows: Shape) -> None:
        """Refuse to answer about a table of a size that the policy forbids, and name the rule."""
        for refuses in _about_rows():
            reason = refuses(self, rows)
            if reason is not None:
                raise PolicyRefused(reason)


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rows of all rules."""
    return tuple(
        replace(field.metadata["rule"], name=field.name, of=str(field.type))
        for field in fields(Policy)
    )


@cache  # a federation in one process may ask thousands of sites
def _about_rows() -> tuple[Callable[[Policy, Shape], str | None], ...]:
    return tuple(row.refuses_rows for row in rules() if row.refuses_rows is not None)


def _as_toml(value: object) -> str:
    if value is None or value == math.inf:
        return f'"{UNLIMITED}"'
    # strings, lists, numbers, and booleans look the same in JSON
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def _ends(text: str) -> bool:
    """Return whether the last line that is not a comment marks the end of a policy file."""
    lines = [line.partition("#")[0].split() for line in text.splitlines()]
    last = next((line for line in reversed(lines) if line), [])
    return "".join(last) == f"{END}=true"


def _parameters() -> str:
    """Return the rules as the parameters in the class's docstring."""
    lines = ["    Parameters", "    ----------"]
    for row in rules():
        default = "optional" if row.follows else f"default {_as_toml(row.default)}"
        lines.append(f"    {row.name} : {row.of}, {default}")
        lines += [f"        {line}" for line in textwrap.wrap(row.prevents, WIDTH)]
    return "\n".join(lines) + "\n\n"


# the one place that describes a rule is its row
Policy.__doc__ = (Policy.__doc__ or "").replace("    Examples\n", _parameters() + "    Examples\n")


# the policy of a site in the coordinator's own process
TRUSTING = Policy(allow=(ANY,), gather=True, min_count=1, min_rows_per_direction=0)
# for a site on its own machine
JOINING = Policy(max_runs_per_day=100, max_rounds_per_day=20_000, max_share=0.99)
