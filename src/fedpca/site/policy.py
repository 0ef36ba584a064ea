"""Define which runs a site takes part in, and which questions it answers."""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from fedpca.errors import FileError, InputError, PolicyRefused
from fedpca.privacy.gaussian import MAX_DELTA, MIN_DELTA, MIN_EPSILON, Privacy, mu_of
from fedpca.protocol.plan import NO_KEY, SECURE, RunPlan
from fedpca.protocol.printable import printable
from fedpca.protocol.question import Question
from fedpca.protocol.script import FEDERATED, Script

MAX_APPROVAL_DAYS = 3650
MAX_EPSILON = 1e6  # an epsilon this large promises nothing anymore
PRIVATE_RUNS = "private"
REQUIREMENTS = (SECURE, PRIVATE_RUNS)  # what a policy can require of a run
ANY = "any"  # allows every installed question, in any order
END = "end"  # the last line of a policy file
UNLIMITED = "unlimited"  # in a policy file, for a rule that is None
_LIMITS = {"max_runs_per_day": "runs", "max_rounds_per_day": "rounds"}
_OPTIONAL = ("min_change", *_LIMITS)
_LEAST = {
    "min_rows": 0,
    "min_count": 1,
    "min_sites": 1,
    "approval_days": 1,
    "max_attempts": 1,
    "min_change": 1,
    **dict.fromkeys(_LIMITS, 0),
}


@dataclass(frozen=True)
class Policy:
    """A site's own rules for the runs that it takes part in and the questions that it answers.

    Parameters
    ----------
    allow : sequence of str
        The programs that the site takes part in. "federated" stands for `FederatedPCA` with a solver
        that needs only sums and returns the components of the pooled rows. Other programs are allowed
        by name: "personalized", "robust", or the name of a solver, such as "merge" or a solver from an
        installed package. "any" allows every installed question, with any numbers and in any order.
    gather : bool
        Whether the coordinator may see this site's individual answers about its rows.
    min_rows : int
        The site answers only if it has at least this many rows.
    min_count : int
        No count or sum over fewer than this many rows leaves the site. Columns in which fewer than this
        many rows differ from the most frequent value are refused by name; see `fedpca.site.disclosure`.
        A value of 1 turns the rule off.
    min_sites : int
        A run must have at least this many sites.
    peers : sequence of str, or dict
        The fingerprints of the other sites' keys, or a table of names and fingerprints. The site takes
        part only in runs in which every other site has one of these keys. By default, the other sites
        may have any keys.
    approval : bool
        Whether a person must approve each run, with ``fedpca approve``, before the site takes part.
    approval_days : int
        How many days a request waits for a person, and how many days an approval lasts.
    min_change : int, optional
        The smallest number of rows that must have changed if the site's files have changed since the
        last run that the site answered. By default, it is ``min_count``. A value of 1 turns the rule
        off.
    max_runs_per_day, max_rounds_per_day : int, optional
        The largest number of runs and of rounds that the site answers in 24 hours. By default, there is
        no limit. A run that starts over because a site was lost counts again.
    max_attempts : int
        The largest number of times that a run may begin. A run begins again if sites were lost. The
        difference between the sums of two attempts then describes the lost sites.
    require : sequence of str
        What a run must have: "secure" for secure sums, so that the coordinator cannot read this site's
        own answers, and "private" for differential privacy, so that every answer about rows has noise
        in it.
    max_epsilon, delta : float, optional
        The site's privacy budget: over the lifetime of the site, all private runs together keep the
        promise of this epsilon and delta for each row; see `fedpca.Privacy`. The site records what
        noisy answers spend in a file in its folder, and takes part only in private runs. By default,
        there is no budget.

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

    allow: tuple[str, ...] = (FEDERATED,)
    gather: bool = False
    min_rows: int = 0
    min_count: int = 5
    min_sites: int = 1
    peers: tuple[str, ...] = ()
    approval: bool = False
    approval_days: int = 7
    min_change: int | None = None
    max_runs_per_day: int | None = None
    max_rounds_per_day: int | None = None
    max_attempts: int = 5
    require: tuple[str, ...] = ()
    max_epsilon: float | None = None
    delta: float = 1e-6

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                raise InputError(f"{name}={value!r} must be a whole number, at least {least}")
        if not isinstance(self.gather, bool):
            raise InputError(
                f"gather={self.gather!r} must be true or false, without quotes; use false to hide the "
                "site's own answers from the coordinator"
            )
        listed = self.allow
        is_list = isinstance(listed, list | tuple) and all(isinstance(q, str) and q for q in listed)
        if not is_list:
            raise InputError(f"allow={listed!r} must be a list of names, as in ['federated']")
        object.__setattr__(self, "allow", tuple(listed))
        object.__setattr__(self, "peers", _fingerprints(self.peers))
        required = self.require
        if not isinstance(required, list | tuple) or not all(r in REQUIREMENTS for r in required):
            words = " or ".join(map(repr, REQUIREMENTS))
            raise InputError(f"require={required!r} must be a list, either empty or with {words}")
        object.__setattr__(self, "require", tuple(required))
        self._check_privacy()
        if self.approval_days > MAX_APPROVAL_DAYS:
            raise InputError(
                f"approval_days={self.approval_days} must be at most {MAX_APPROVAL_DAYS}"
            )
        if not isinstance(self.approval, bool):
            raise InputError(f"approval={self.approval!r} must be true or false, without quotes")
        if self.is_open and (self.peers or self.approval or self.must_be_private):
            raise InputError(
                f"allow has {ANY!r}, so the site would answer questions without a plan, and peers, "
                f"approval, max_epsilon, and require={PRIVATE_RUNS!r} would have no effect; name the "
                f"programs to allow, as in ['{FEDERATED}']"
            )

    def _check_privacy(self) -> None:
        """Refuse a privacy budget that no run could keep, or that would not restrict any run."""
        given = {"delta": (self.delta, MIN_DELTA, MAX_DELTA)}
        if self.max_epsilon is not None:
            given["max_epsilon"] = (self.max_epsilon, MIN_EPSILON, MAX_EPSILON)
        for name, (value, least, most) in given.items():
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            if not is_number or not least <= float(value) <= most:
                raise InputError(f"{name}={value!r} must be a number from {least:g} to {most:g}")

    @property
    def must_be_private(self) -> bool:
        """Return whether the site takes part only in private runs, as a privacy budget requires."""
        return self.max_epsilon is not None or PRIVATE_RUNS in self.require

    @property
    def max_mu2(self) -> float:
        """Return the total mu^2 that all private answers may spend."""
        return math.inf if self.max_epsilon is None else mu_of(self.max_epsilon, self.delta) ** 2

    @property
    def is_open(self) -> bool:
        """Return whether the site answers every installed question, without a plan."""
        return ANY in self.allow

    @property
    def protects_few(self) -> bool:
        """Return whether any rule holds back numbers about only a few rows."""
        return self.min_count > 1 or self.least_change > 1

    @property
    def has_budget(self) -> bool:
        """Return whether runs or rounds are limited."""
        return any(getattr(self, name) is not None for name in _LIMITS)

    @property
    def least_change(self) -> int:
        """Return how many rows must have changed, if any have, before the next run may begin."""
        return self.min_count if self.min_change is None else self.min_change

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy from a TOML file; take rules that are not in the file from `JOINING`.

        The last line must be ``end = true``, so that a file that was cut off is refused.
        """
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
        rules = [field.name for field in fields(cls)]
        for name, value in given.items():
            if name not in rules:
                near = get_close_matches(name, rules, 1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise InputError(
                    f"{path}: unknown rule {name!r}; {hint}the rules are {', '.join(rules)}"
                )
            if name in (*_LIMITS, "max_epsilon") and value == UNLIMITED:
                given[name] = None
        try:
            return replace(JOINING, **given)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def in_words(self) -> str:
        """Return the policy as a short phrase."""
        rules = ["any installed question" if self.is_open else f"only {', '.join(self.allow)}"]
        if self.min_rows:
            rules.append(f"at least {self.min_rows} rows here")
        if self.min_count > 1:
            rules.append(f"no number about fewer than {self.min_count} rows")
        if self.least_change != self.min_count:
            rules.append(f"at least {self.least_change} rows changed between runs")
        if self.min_sites > 1:
            rules.append(f"at least {self.min_sites} sites")
        if not self.gather:
            rules.append("no individual answers from this site")
        if self.peers:
            rules.append(f"only with {len(self.peers)} known sites")
        if self.approval:
            rules.append(f"a person approves each run, for {self.approval_days} days")
        if SECURE in self.require:
            rules.append("only with secure sums")
        if self.must_be_private:
            rules.append("only private runs")
        if self.max_epsilon is not None:
            rules.append(
                f"all together at most epsilon {self.max_epsilon:g} at delta {self.delta:g}"
            )
        for name, kind in _LIMITS.items():
            limit = getattr(self, name)
            if limit is not None:
                rules.append(f"at most {limit:,} {kind} a day")
        return ", ".join(rules)

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
        if script.family not in self.allow:
            raise PolicyRefused(
                f"the policy does not allow {script.family!r}, only {', '.join(self.allow)}; to take "
                f"part, the site must add {script.family!r} to its policy's allow"
            )
        if SECURE in self.require and not plan.is_secure:
            raise PolicyRefused(
                "the policy requires secure sums, but the plan has none; use Federation(secure=True) "
                "or `fedpca fit --secure`"
            )
        if plan.is_private and plan.is_secure and own_key != NO_KEY and not self.peers:
            raise PolicyRefused(
                "the sites of the plan would share the noise, but the policy lists no peers, so the "
                "coordinator could have invented sites that add no noise; list the fingerprints of the "
                "other sites' keys in the policy's peers, or fit without secure sums, so that each "
                "site adds all of the noise"
            )
        if self.must_be_private:
            self._refuse_exact(plan, script)
        if script.sees and not self.gather:
            raise PolicyRefused(
                f"{plan.program} with solver {plan.solver!r} shows the coordinator this site's own "
                f"answers to {', '.join(script.sees)}, but the policy has gather=false"
            )
        self._check_sites(len(plan.sites))
        strangers = [name for name, key in plan.sites.items() if key not in (own_key, *self.peers)]
        if self.peers and strangers:
            names = ", ".join(printable(name) for name in sorted(strangers))
            raise PolicyRefused(
                f"the plan has sites whose keys are not in the policy's peers: {names}; the site must "
                "add the fingerprints of these keys, or the run must leave these sites out"
            )

    def _refuse_exact(self, plan: RunPlan, script: Script) -> None:
        """Refuse a plan that asks for answers without noise."""
        rule = (
            f"max_epsilon={self.max_epsilon:g}" if self.max_epsilon else f"require={PRIVATE_RUNS!r}"
        )
        only = f"the policy has {rule}, so the site takes part only in differentially private runs"
        run = f"{plan.program} with solver {plan.solver!r}"
        exact = [q.name for q in script.order.questions() if q.reads_rows and q.spends is None]
        if not plan.is_private:
            raise PolicyRefused(
                f"{only}, but this {run} is not private; use FederatedPCA(privacy=Privacy(...)) or "
                "`fedpca fit --epsilon`"
            )
        if exact:
            raise PolicyRefused(
                f"{only}, but {run} asks for {', '.join(dict.fromkeys(exact))} without noise"
            )
        if math.isinf(Privacy.of(plan).epsilon):
            raise PolicyRefused(
                f"the policy has {rule}, but the plan's epsilon is infinite; use a finite one"
            )

    def check(self, question: Question, n_sites: int, n_rows: int | None) -> None:
        """Refuse a question that the policy forbids, and name the rule."""
        if not question.reads_rows:
            return
        if n_rows is not None:
            self.check_rows(n_rows)
        if question.verb == "gather" and not self.gather:
            raise PolicyRefused(
                "the policy does not let the coordinator see this site's own answer"
            )
        if question.verb == "sum":
            self._check_sites(n_sites)

    def check_rows(self, n_rows: int) -> None:
        """Refuse to answer about fewer rows than the policy allows."""
        if n_rows < self.min_rows:
            raise PolicyRefused(
                f"the site has fewer rows than its policy's min_rows={self.min_rows}"
            )

    def _check_sites(self, n_sites: int) -> None:
        if n_sites < self.min_sites:
            raise PolicyRefused(
                f"the sum covers {n_sites} sites, fewer than the policy's min_sites={self.min_sites}"
            )


def _fingerprints(peers: Any) -> tuple[str, ...]:
    """Return the fingerprints of the peers' keys; the names in a table are only for people."""
    listed = list(peers.values()) if isinstance(peers, Mapping) else peers
    is_list = isinstance(listed, list | tuple) and all(
        isinstance(each, str) and re.fullmatch(r"[0-9a-f]{64}", each) for each in listed
    )
    if not is_list:
        raise InputError(
            f"peers={peers!r} must be a list of fingerprints, or a table of names and fingerprints; a "
            "fingerprint has 64 characters from 0-9 and a-f; `fedpca site-key --show NAME.pub` "
            "prints it"
        )
    if len(set(listed)) < len(listed):
        raise InputError("peers has the same fingerprint twice; list each site's fingerprint once")
    return tuple(listed)


def _ends(text: str) -> bool:
    """Return whether the last line that is not a comment marks the end of a policy file."""
    lines = [line.partition("#")[0].split() for line in text.splitlines()]
    last = next((line for line in reversed(lines) if line), [])
    return "".join(last) == f"{END}=true"


# the policy of a site in the coordinator's own process
TRUSTING = Policy(allow=(ANY,), gather=True, min_count=1)
JOINING = Policy(max_runs_per_day=100, max_rounds_per_day=20_000)  # for a site on its own machine
