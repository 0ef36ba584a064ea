"""Attack a site as a lying coordinator would, and count the records and values that are recovered.

The coordinator has its credentials and sends whatever messages it likes (`fedpca.audit.liar`). Each
attack runs under a policy that allows everything, under the default policy of `fedpca join`, and under
a policy of your own. An attack first asks without a plan, and then declares the plans that help it
most.

>>> import numpy as np
>>> from fedpca.audit.lying import attack_site
>>> rng = np.random.default_rng(0)
>>> rows = {name: rng.normal(size=(30, 8)) for name in ("north", "east", "south")}
>>> lying = attack_site(rows, attacks=["single values"])
>>> lying.of("single values", "open").values, lying.of("single values", "default").values
(240, 0)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.audit import (
    lying_flags,
    lying_gaps,
    lying_known,
    lying_parts,
    lying_private,
    lying_robust,
    lying_rounding,
    lying_sums,
    lying_totals,
)
from fedpca.audit.liar import (
    Found,
    Liar,
    Refused,
    Score,
    guess_from_model,
    made_up_key,
    score,
)
from fedpca.errors import InputError
from fedpca.facts import COUNT, DATA, Column, Fact, Records, Section, Sections, ValueKind
from fedpca.protocol.plan import MAX_PLAN_ROUNDS
from fedpca.site.policy import JOINING, TRUSTING, Policy
from fedpca.site.site import Site
from fedpca.solvers.robust.contract import MAX_ROUNDS as MAX_ROBUST_ROUNDS

# the lab adds the keys of the sites as peers
STRICT = Policy(
    min_rows=20,
    min_count=10,
    min_change=20,
    max_share=0.9,
    min_sites=3,
    max_runs_per_day=20,
    max_rounds_per_day=2000,
)
MAX_ATTACKED_FEATURES = 100
MAX_ATTACKED_ROWS = 200  # rows of each site; more rows take longer and show nothing more
N_ROWS_WITH_GAPS = 15  # rows with gaps; more than the min_count of any policy in this module
N_MADE_UP = 2  # made-up sites, which are added if there is only one site to attack

DeclaredPlan = Mapping[str, Any]


def _pca(solver: str, **parameters: Any) -> DeclaredPlan:
    """Return a plan of `FederatedPCA` that asks as much as any plan may."""
    common = {"n_components": None, "max_rounds": MAX_PLAN_ROUNDS, "missing": "error"}
    return {"program": "FederatedPCA", "solver": solver, **common, **parameters}


ROBUST_PLAN: DeclaredPlan = {
    "program": "RobustPCA",
    "n_components": MAX_ATTACKED_FEATURES,
    "max_components": None,
    "center": "median",
    "scale": True,
    "rows": "all",
    "tol": 1e-9,
    "max_rounds": MAX_ROBUST_ROUNDS,
    "solver": "threshold",
}


@dataclass(frozen=True)
class Attack:
    """An attack: how it runs, and what it needs."""

    name: str
    run: Callable[[Liar], Found]
    plans: tuple[DeclaredPlan, ...]  # plans that help it; the best one comes first
    # "site": one site's answers; "totals": totals over all sites; "colluding": totals from which the
    # terms of colluding sites can be subtracted; "rosters": totals over sets of sites of its choice
    hears: str = "site"
    plant: Callable[[Array], Array] | None = None  # turns rows into rows that the attack can use
    knows: Callable[[Array], Sequence[int]] | None = None  # columns that the liar knows beforehand
    source: str = ""  # who published the attack
    n_leaving: int = 1  # rows at the end of the first site that go between two runs

    @property
    def words(self) -> str:
        """Return what the attack does, in a sentence."""
        return (self.run.__doc__ or "").partition("\n")[0]


def with_flag(rows: Array) -> Array:
    """Return rows with an additional column: a flag that only the first row has."""
    return np.column_stack([rows, np.eye(len(rows), 1)])


def between_constants(rows: Array) -> Array:
    """Return rows with a column of zeros before the other columns, and one after them."""
    return np.column_stack([np.zeros(len(rows)), rows, np.zeros(len(rows))])


def few_rows(rows: Array) -> Array:
    """Return six of the rows, as a small site would have."""
    return rows[:6]


def with_gap(rows: Array) -> Array:
    """Return rows without the last value of the first row."""
    gapped = rows.copy()
    gapped[0, -1] = np.nan
    return gapped


def with_gaps(rows: Array) -> Array:
    """Return rows with gaps: some rows lack their last value, and one row the value before it."""
    gapped = rows.copy()
    gapped[1:N_ROWS_WITH_GAPS, -1] = np.nan
    gapped[0, -2] = np.nan
    return gapped


COVARIANCE, LANCZOS = _pca("covariance"), _pca("lanczos")
AUTO_PLAN = _pca("lanczos", n_components="auto")  # lets the coordinator remove directions
SCALED = _pca("lanczos", scale=True)  # lets the coordinator choose the scale
ATTACKS = {
    attack.name: attack
    for attack in (
        Attack("honest run", lying_sums.honest_run, (COVARIANCE,)),
        Attack("robust rows", lying_robust.robust_rows, (ROBUST_PLAN, LANCZOS)),
        Attack("robust rows, totals", lying_robust.robust_rows, (ROBUST_PLAN, LANCZOS), "totals"),
        Attack("single values", lying_robust.single_values, (ROBUST_PLAN, LANCZOS)),
        Attack(
            "single values, totals", lying_robust.single_values, (ROBUST_PLAN, LANCZOS), "totals"
        ),
        Attack("extreme values", lying_robust.extreme_values, (ROBUST_PLAN, LANCZOS)),
        Attack("moved center", lying_robust.moved_center, (ROBUST_PLAN,)),
        Attack("moved center, totals", lying_robust.moved_center, (ROBUST_PLAN,), "totals"),
        Attack("far mean", lying_sums.far_mean, (SCALED,)),
        Attack("far mean, totals", lying_sums.far_mean, (SCALED,), "totals"),
        Attack("constant columns", lying_sums.constant_columns, (SCALED,), plant=between_constants),
        Attack("rounding", lying_rounding.rounding, (AUTO_PLAN,)),
        Attack("rounding, totals", lying_rounding.rounding, (AUTO_PLAN,), "totals"),
        Attack("bisected rounding", lying_rounding.smallest_value, (AUTO_PLAN,)),
        Attack("sign flips", lying_sums.sign_flips, (AUTO_PLAN,)),
        Attack("few rows flipped", lying_sums.few_rows_flipped, (AUTO_PLAN,), plant=few_rows),
        Attack("rare flag", lying_sums.rare_flag, (COVARIANCE,), plant=with_flag),
        Attack("rare flag, totals", lying_sums.rare_flag, (COVARIANCE,), "totals", with_flag),
        Attack("one row less", lying_sums.one_row_less, (COVARIANCE,)),
        Attack("one row less, totals", lying_sums.one_row_less, (COVARIANCE,), "totals"),
        Attack("gaps", lying_sums.with_and_without_gaps, (COVARIANCE,), plant=with_gap),
        Attack("gaps, one value", lying_sums.with_and_without_gaps, (COVARIANCE,), plant=with_gaps),
        Attack("moved fill", lying_sums.moved_fill, (COVARIANCE,), plant=with_gap),
        Attack("claimed sites", lying_sums.claimed_sites, (COVARIANCE,)),
        Attack("invented sites", lying_sums.invented_sites, (COVARIANCE,)),
        Attack("colluding sites", lying_sums.colluding_sites, (COVARIANCE,), "colluding"),
        Attack("gathered as a sum", lying_sums.gathered_as_sum, (_pca("tsqr"), LANCZOS)),
        Attack("out of turn", lying_sums.out_of_turn, (LANCZOS,)),
        Attack("asked again", lying_sums.asked_again, (COVARIANCE,)),
        Attack("replayed plan", lying_sums.replayed_plan, (COVARIANCE,)),
        Attack("moved mean", lying_sums.moved_mean, (LANCZOS,)),
        Attack("stretched direction", lying_sums.stretched_direction, (LANCZOS,)),
        Attack("endless steps", lying_sums.endless_steps, (_pca("local-power"),)),
        Attack("wide block", lying_sums.wide_block, (LANCZOS,)),
        # these declare private plans by themselves
        Attack("noiseless flag, totals", lying_private.noiseless_flag, (), "totals", with_flag),
        Attack("noiseless patient, totals", lying_private.noiseless_patient, (), "totals"),
        Attack("moving ball", lying_private.moving_ball, ()),
        Attack("crossing gaps", lying_gaps.crossing_gaps, (), plant=lying_gaps.with_crossing_gaps),
        Attack("three gaps", lying_gaps.three_gaps, (), plant=lying_gaps.with_three_gaps),
        Attack(
            "change between kinds",
            lying_gaps.change_between_kinds,
            (),
            plant=lying_gaps.with_gaps_in_one_column,
        ),
        Attack(
            "dominant row",
            lying_totals.dominant_row,
            (COVARIANCE,),
            plant=lying_totals.with_dominant_row,
        ),
        Attack(
            "rows that came",
            lying_parts.rows_that_came,
            (COVARIANCE,),
            plant=lying_parts.many_flags,
            n_leaving=lying_parts.N_APART,
        ),
        Attack(
            "rows with gaps",
            lying_parts.rows_with_gaps,
            (),
            plant=lying_parts.many_flags_with_gaps,
        ),
        Attack(
            "mostly empty column",
            lying_parts.mostly_empty_column,
            (),
            plant=lying_parts.with_mostly_empty_column,
            knows=lying_parts.all_but_last,
        ),
        Attack(
            "known columns",
            lying_known.known_columns,
            (COVARIANCE,),
            plant=lying_known.with_known_columns,
            knows=lying_known.last_columns,
            source="Huth et al. 2023",
        ),
        Attack(
            "known values, flags",
            lying_known.known_values,
            (COVARIANCE,),
            plant=lying_known.values_and_flags,
            knows=lambda _: range(lying_known.N_VALUES),
            source="Nasirigerdeh et al. 2021",
        ),
        Attack(
            "counted flags",
            lying_known.counted_flags,
            (COVARIANCE,),
            plant=lying_known.many_flags,
            knows=lambda _: range(lying_known.N_SUBSETS),
            source="Dinur and Nissim 2003",
        ),
        Attack(
            "counted flags, private",
            lying_known.noisily_counted_flags,
            (),
            plant=lying_known.many_flags,
            knows=lambda _: range(lying_known.N_SUBSETS),
            source="Dinur and Nissim 2003",
        ),
        Attack(
            "changing rosters",
            lying_totals.changing_rosters,
            (COVARIANCE,),
            "rosters",
            source="Kerkouche et al. 2023",
        ),
        Attack(
            "patterns of flags",
            lying_flags.patterns,
            (COVARIANCE,),
            plant=lying_flags.few_flags,
            source="Garfinkel et al. 2019",
        ),
        Attack(
            "independent rows",
            lying_flags.independent_rows,
            (COVARIANCE,),
            plant=lying_flags.wide_flags,
            source="Kariyappa et al. 2023",
        ),
        Attack(
            "independent rows, products",
            lying_flags.independent_rows_of_products,
            (LANCZOS,),
            plant=lying_flags.wide_flags,
            source="Kariyappa et al. 2023",
        ),
    )
}
OWN = [name for name, attack in ATTACKS.items() if not attack.source]
PUBLISHED = [name for name, attack in ATTACKS.items() if attack.source]


class AttackOutcome(NamedTuple):
    """What one attack recovered from sites with one policy."""

    attack: str
    policy: str
    records: int
    values: int
    facts: tuple[str, ...]
    questions: int
    n_records: int  # number of records that could be recovered
    rules: tuple[str, ...]  # texts of the refusals; the text for the best plan comes first
    guessed_records: int  # what a guess from the published model recovers from the same rows
    guessed_values: int

    @property
    def has_found(self) -> bool:
        """Return whether the attack recovered anything."""
        return bool(self.records or self.values or self.facts)

    @property
    def is_better_than_guess(self) -> bool:
        """Return whether the attack recovered more records or values than the guess."""
        guess = Score(self.guessed_records, self.guessed_values)
        return Score(self.records, self.values).is_better_than(guess)

    @property
    def in_words(self) -> str:
        """Return what was recovered, in a few words."""
        found = []
        if self.records:
            guessed = f" (a guess: {self.guessed_records})" if self.guessed_records else ""
            found.append(f"{self.records} of {self.n_records} records{guessed}")
        elif self.values:
            found.append(f"{self.values} value{'' if self.values == 1 else 's'}")
        found += self.facts if not self.records else ()
        return ", ".join(found) or "nothing"


@dataclass(frozen=True)
class Lying:
    """The outcomes of all attacks, and what a guess from the published model recovers."""

    outcomes: tuple[AttackOutcome, ...]
    guess: Score
    policies: Mapping[str, Policy]

    @property
    def attacks(self) -> tuple[str, ...]:
        """Return the names of the attacks."""
        return tuple(dict.fromkeys(outcome.attack for outcome in self.outcomes))

    def of(self, attack: str, policy: str) -> AttackOutcome:
        """Return the outcome of an attack on sites with a policy."""
        for outcome in self.outcomes:
            if (outcome.attack, outcome.policy) == (attack, policy):
                return outcome
        raise InputError(
            f"no attack {attack!r} on policy {policy!r}; the attacks are {', '.join(self.attacks)}, "
            f"and the policies {', '.join(self.policies)}"
        )

    def better_than_guess(self, policy: str) -> list[AttackOutcome]:
        """Return the attacks that recover more records or values than a guess from the same rows."""
        return [
            each for each in self.outcomes if each.policy == policy and each.is_better_than_guess
        ]

    def facts(self) -> Sections:
        """Return what each attack recovers under each policy, or what stopped it, as sections."""
        tables = [
            self._recovered("What a lying coordinator recovers", OWN),
            self._recovered("What a lying coordinator recovers with published attacks", PUBLISHED),
        ]
        stopped = [
            (each.attack, each.policy, each.rules[0])
            for each in self.outcomes
            if not each.has_found and each.rules
        ]
        words = [
            (
                name,
                ATTACKS[name].words,
                f"Source: {ATTACKS[name].source}." * bool(ATTACKS[name].source),
            )
            for name in self.attacks
        ]
        better = [
            (policy, [each.attack for each in self.better_than_guess(policy)])
            for policy in self.policies
        ]
        guess = (
            Fact("records", self.guess.records, COUNT, "records guessed from the published model"),
            Fact("values", self.guess.values, COUNT, "values guessed from the published model"),
        )
        return (
            *tables,
            Records("stopped", STOPPED_BY, stopped, "What stopped it"),
            Records("attacks", ATTACK, words, as_lines=True),
            Section("guess", guess),
            Records("better_than_guess", BETTER, better, "Attacks that do better", by_first=True),
            Records(
                "policies",
                POLICY,
                [(k, p.in_words()) for k, p in self.policies.items()],
                by_first=True,
            ),
            Records("outcomes", OUTCOME, self.outcomes),
        )

    def _recovered(self, title: str, group: Iterable[str]) -> Records:
        """Return a line for each attack of a group, with what it recovers under each policy."""
        columns, rows = [Column("attack")], []
        for policy in self.policies:
            columns += [Column(policy), Column(f"{policy} questions", COUNT, "questions")]
        for attack in filter(self.attacks.__contains__, group):
            outcomes = [self.of(attack, policy) for policy in self.policies]
            rows.append(
                (attack, *(x for each in outcomes for x in (each.in_words, each.questions)))
            )
        return Records(None, tuple(columns), rows, title)


STOPPED_BY = (Column("attack"), Column("policy"), Column("rule"))
ATTACK = (Column("attack"), Column("words"), Column("source"))
BETTER = (
    Column("policy"),
    Column("attacks", ValueKind(lambda names: ", ".join(names) or "none", False)),
)
POLICY = (Column("policy", DATA), Column("rules", DATA))
OUTCOME = tuple(Column(name, DATA) for name in AttackOutcome._fields)


def attack_site(
    sites: Any,
    *,
    policy: Policy | Mapping[str, Policy] | None = None,
    attacks: Iterable[str] | None = None,
    on_attack: Callable[[str], None] | None = None,
) -> Lying:
    """Attack the first of some sites, and totals over all of them, as a lying coordinator would.

    Nothing leaves this machine: the sites answer encoded messages in this process.

    Parameters
    ----------
    sites : list or dict
        Each site's rows, as for `FederatedPCA.fit`, or a `Site`; at most 100 features. The attacks use
        the first 200 rows without gaps of each site. If there is only one site, two made-up sites are
        added, with rows drawn from a normal distribution with the site's mean and covariance.
    policy : Policy or dict, optional
        A policy to attack in addition to an open policy and the default policy, or several policies by
        name. If you pass none, a strict policy is attacked.
    attacks : iterable of str, optional
        The names of the attacks; by default, all in `ATTACKS`.
    on_attack : callable, optional
        A function to call with the name of each attack before the attack starts.
    """
    rows = _rows_of(sites)
    if policy is None:
        policy = {"strict": replace(STRICT, peers=tuple(map(made_up_key, rows)))}
    own = policy if isinstance(policy, Mapping) else {"yours": policy}
    policies = {"open": TRUSTING, "default": JOINING, **own}
    outcomes = []
    for attack in _chosen(attacks):
        if on_attack is not None:
            on_attack(attack.name)
        outcomes += [_attacked(attack, rows, name, each) for name, each in policies.items()]
    pooled = np.vstack(list(rows.values()))
    return Lying(tuple(outcomes), guess_from_model(pooled, next(iter(rows.values()))), policies)


def _chosen(names: Iterable[str] | None) -> list[Attack]:
    chosen = list(ATTACKS) if names is None else list(names)
    for name in chosen:
        if name not in ATTACKS:
            raise InputError(f"no attack {name!r}; the attacks are {', '.join(ATTACKS)}")
    return [ATTACKS[name] for name in chosen]


def _attacked(
    attack: Attack, rows: Mapping[str, Array], name: str, policy: Policy
) -> AttackOutcome:
    """Return the best outcome of an attack over the plans that it may declare."""
    planted = dict(rows)
    first = next(iter(rows))
    if attack.plant is not None:
        planted = {
            site: _extended(attack.plant, each, site == first) for site, each in rows.items()
        }
    heard = [first] if attack.hears == "site" else list(planted)
    of_all = attack.hears == "totals"
    truth = np.vstack([planted[s] for s in heard]) if of_all else planted[first]
    known = {} if attack.knows is None else {j: truth[:, j] for j in attack.knows(truth)}
    modeled = np.vstack(list(rows.values()))
    if attack.plant is not None:
        whole = truth[np.isfinite(truth).all(axis=1)]
        modeled = whole if len(whole) > 1 else rows[first]  # gaps may leave no whole row
    guess = guess_from_model(modeled, truth, known)
    outcomes = []
    for plan in (None, *attack.plans):
        with tempfile.TemporaryDirectory() as folder:
            sites = _Sites(planted, heard, policy, Path(folder))
            colluding = {s: planted[s] for s in heard[1:]} if attack.hears == "colluding" else {}
            liar = Liar(
                sites.asks,
                planted,
                colluding=colluding,
                known=known,
                n_columns=truth.shape[1],
                meanwhile=partial(sites.drop_last_rows, attack.n_leaving),
            )
            found = _run(attack, liar, plan)
        got = score(found, truth)
        rules = tuple(dict.fromkeys(liar.refusals))
        outcomes.append(
            AttackOutcome(
                attack.name,
                name,
                *_fields(got),
                liar.n_questions,
                len(truth),
                rules,
                guess.records,
                guess.values,
            )
        )
        if got.facts or got.values:
            break
    best = max(outcomes, key=lambda each: (each.records, each.values, len(each.facts)))
    told = [rule for outcome in (*outcomes[1:], outcomes[0]) for rule in outcome.rules]
    questions = best.questions if best.has_found else outcomes[-1].questions
    return best._replace(rules=tuple(dict.fromkeys(told)), questions=questions)


def _fields(got: Score) -> tuple[int, int, tuple[str, ...]]:
    return got.records, got.values, got.facts


def _run(attack: Attack, liar: Liar, plan: DeclaredPlan | None) -> Found:
    """Run an attack with or without a plan; if a site refuses, the attack has found nothing."""
    try:
        liar.begin(**({} if plan is None else plan))
        return attack.run(liar)
    except Refused:
        return Found()


def _extended(plant: Callable[[Array], Array], rows: Array, is_first: bool) -> Array:
    """Return rows that an attack can use; at sites other than the first, only add columns of zeros."""
    if is_first:
        return plant(rows)
    planted = np.zeros((len(rows), plant(rows).shape[1]))
    own = rows[:, : planted.shape[1]]
    planted[:, : own.shape[1]] = own
    return planted


class _Sites:
    """Sites that answer encoded messages, each with its rows in a file."""

    def __init__(
        self, rows: Mapping[str, Array], heard: list[str], policy: Policy, folder: Path
    ) -> None:
        self._first, self._rows = folder / "0.npy", rows[heard[0]]
        self.asks: dict[str, Callable[[bytes], bytes]] = {}
        for i, name in enumerate(heard):
            np.save(folder / f"{i}.npy", rows[name])
            store = None if policy.is_open else folder / "store"
            site = Site(folder / f"{i}.npy", name=name, policy=policy, store=store)
            # only sites in the coordinator's own process answer everything; they have no rule that
            # refuses products of the rows with chosen directions
            if policy.is_open:
                site.is_in_process, site.memory_limit = True, 0
            self.asks[name] = site.answer_bytes

    def drop_last_rows(self, n: int) -> None:
        """Remove the last rows of the first site, as when patients withdraw between two runs."""
        np.save(self._first, self._rows[:-n])


def _rows_of(sites: Any) -> dict[str, Array]:
    """Return each site's first rows without gaps as arrays; if there is one site, add made-up ones."""
    if not isinstance(sites, Mapping | list | tuple) or not sites:
        raise InputError("sites must be a dict or list with each site's rows")
    if not isinstance(sites, Mapping):
        sites = {getattr(each, "name", f"site-{i}"): each for i, each in enumerate(sites)}
    rows = {str(name): _dense(str(name), each) for name, each in sites.items()}
    widths = {each.shape[1] for each in rows.values()}
    if len(widths) > 1:
        raise InputError(
            f"the sites have {sorted(widths)} columns; use the same columns everywhere"
        )
    if len(rows) == 1:
        (own,) = rows.values()
        rng = np.random.default_rng(0)
        covariance = np.atleast_2d(np.cov(own, rowvar=False))
        for i in range(N_MADE_UP):
            drawn = rng.multivariate_normal(own.mean(axis=0), covariance, len(own))
            rows[f"made-up-{i + 1}"] = np.asarray(drawn)
    return rows


def _dense(name: str, given: Any) -> Array:
    opened = (given if isinstance(given, Site) else Site(given, name=name)).rows
    if opened.n_features > MAX_ATTACKED_FEATURES:
        raise InputError(
            f"site {name!r}: {opened.n_features} features exceed the limit of {MAX_ATTACKED_FEATURES} "
            "for these attacks; attack the same rows with fewer columns"
        )
    kept: list[Array] = []
    for block in opened.blocks():
        part = np.asarray(block.toarray() if hasattr(block, "toarray") else block, np.float64)
        kept.append(part[np.isfinite(part).all(axis=1)])
        if sum(map(len, kept)) >= MAX_ATTACKED_ROWS:
            break
    rows = np.vstack(kept)[:MAX_ATTACKED_ROWS] if kept else np.empty((0, opened.n_features))
    if len(rows) < 2:
        raise InputError(f"site {name!r} has {len(rows)} rows without gaps; pass at least 2")
    return rows
