"""Plans without enough noise are refused, and enough noise hides single rows over all runs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedpca import Policy, Site
from fedpca.audit import lying_private
from fedpca.audit.liar import Found, Liar, Refused, made_up_key, score
from fedpca.audit.lying import STRICT, with_flag
from fedpca.site.policy import JOINING, TRUSTING

N, D = 60, 7
NAMES = ("north", "east", "south")
POLICIES = {
    "default": JOINING,
    "strict": replace(STRICT, peers=tuple(map(made_up_key, NAMES))),
}


def rows_of(name, n=N, d=D):
    rng = np.random.default_rng(NAMES.index(name))
    return rng.normal(size=(n, d)) * np.arange(1, d + 1) + np.linspace(-20, 100, d)


class Clinics:
    """Sites that a liar hears, each with its rows in a file, and perhaps a folder of its own."""

    def __init__(self, folder, rows, policy, *, store=None):
        self._rows, self._first = rows, folder / f"{next(iter(rows))}.npy"
        self.sites = {}
        for name, each in rows.items():
            np.save(folder / f"{name}.npy", each)
            path = folder / f"{name}.npy"
            self.sites[name] = Site(path, name=name, policy=policy, store=store)
        asks = {name: site.answer_bytes for name, site in self.sites.items()}
        self.liar = Liar(asks, NAMES, meanwhile=self.lose_last_row)
        self.truth = np.vstack(list(rows.values()))

    def lose_last_row(self):
        np.save(self._first, next(iter(self._rows.values()))[:-1])

    def attacked(self, attack):
        try:
            found = attack(self.liar)
        except Refused:
            found = Found()
        return score(found, self.truth)


def flagged():
    """Two sites' rows; a patient of the first site is the only one with a flag."""
    rows = {"north": with_flag(rows_of("north"))}
    return rows | {"east": np.column_stack([rows_of("east"), np.zeros(N)])}


def two_sites():
    return {name: rows_of(name) for name in ("north", "east")}


def one_site():
    return {"north": rows_of("north")}


ATTACKS = {
    lying_private.noiseless_flag: (flagged, 1),
    lying_private.noiseless_patient: (two_sites, 1),
    # from a few centers, two rows may be at nearly the same distance
    lying_private.moving_ball: (one_site, N - 2),
}
each_attack = pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)


@each_attack
def test_without_noise_an_open_site_gives_records_away(attack, tmp_path):
    rows, n_records = ATTACKS[attack]
    assert Clinics(tmp_path, rows(), TRUSTING).attacked(attack).records >= n_records


@each_attack
@pytest.mark.parametrize("epsilon", [math.inf, 1e6])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_plan_with_next_to_no_noise_is_refused(attack, epsilon, policy, tmp_path, monkeypatch):
    monkeypatch.setattr(lying_private, "LYING_EPSILONS", (epsilon,))
    clinics = Clinics(tmp_path, ATTACKS[attack][0](), POLICIES[policy], store=tmp_path / "store")
    assert clinics.attacked(attack) == score(Found(), clinics.truth)
    assert clinics.liar.n_questions == 0
    (refusal,) = clinics.liar.refusals
    assert f"run_epsilon=1, but the plan asks for epsilon {epsilon:.4g} " in refusal


@pytest.mark.parametrize(
    "attack", [lying_private.noiseless_flag, lying_private.moving_ball], ids=lambda a: a.__name__
)
def test_noise_that_is_admitted_hides_every_row_until_all_of_it_is_spent(
    attack, tmp_path, monkeypatch
):
    monkeypatch.setattr(lying_private, "LYING_EPSILONS", (1.0,))
    policy = replace(JOINING, max_runs_per_day=None, max_rounds_per_day=None)
    clinics = Clinics(tmp_path, ATTACKS[attack][0](), policy)
    for _ in range(100):
        found = clinics.attacked(attack)
        assert (found.records, found.values) == (0, 0)
        if clinics.liar.refusals:
            break
    assert (
        "its policy has run_epsilon=1, so all runs together may spend 10"
        in (clinics.liar.refusals[-1])
    )
    # next to all of it: another whole run would be too much
    said = clinics.sites["north"].privacy_budget_in_words()
    assert 9.5 < float(said.split()[1]) <= 10


def test_at_an_open_site_the_rules_about_few_rows_hold_unless_there_is_noise(tmp_path):
    open_with_rules = Policy(allow=("any",), gather=True)
    clinics = Clinics(tmp_path, flagged(), open_with_rules)
    assert clinics.attacked(lying_private.noiseless_flag).values == 0
    assert f"in columns {D}, so a sum" in clinics.liar.refusals[-1]
    lying_private._sums(clinics.liar, 1.0, np.zeros(D + 1), 100.0)
