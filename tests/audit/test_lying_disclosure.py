"""What a lying coordinator would learn from sums over few rows, changed rows, and many runs."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fedpca import FederatedPCA, Policy, Site
from fedpca.audit import lying_sums
from fedpca.audit.liar import Liar, Refused, made_up_key, score
from fedpca.audit.lying import ATTACKS, attack_site
from fedpca.errors import PolicyRefused

N, D = 60, 8
RULES = {
    "rare flag": "min_count=",
    "rare flag, totals": "min_count=",
    "one row less": "min_change=",
    "one row less, totals": "min_change=",
    "gaps": "min_count=",
}


def three_sites():
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(N, D)) for name in ("north", "east", "south")}


@pytest.fixture(scope="module")
def lying():
    return attack_site(three_sites(), attacks=RULES)


@pytest.mark.parametrize("policy", ["default", "strict"])
@pytest.mark.parametrize("attack", RULES)
def test_the_default_policy_keeps_a_record_that_stands_alone(attack, policy, lying):
    assert lying.of(attack, "open").records == 1
    outcome = lying.of(attack, policy)
    assert outcome.records <= lying.guess.records
    assert any(re.search(RULES[attack], rule) for rule in outcome.rules)


@pytest.mark.parametrize("rule", ["max_runs_per_day", "max_rounds_per_day"])
def test_a_budget_ends_an_attack_that_takes_many_runs(rule, tmp_path):
    rows = three_sites()["north"]
    policy = Policy(**{rule: 6})
    site = Site(rows, name="north", policy=policy, store=tmp_path)
    liar = Liar({"north": site.answer_bytes}, ["east", "south"])
    plan = ATTACKS["honest run"].plans[0]
    n_runs = 0
    with pytest.raises(Refused, match=rule):  # noqa: PT012
        for _ in range(10):
            liar.begin(**plan)
            lying_sums.honest_run(liar)
            n_runs += 1
    assert n_runs == (6 if rule == "max_runs_per_day" else 2)


def test_invented_sites_are_refused_by_a_site_that_knows_its_peers():
    rows = three_sites()
    policy = Policy(peers=[made_up_key(name) for name in rows])
    site = Site(rows["north"], name="north", policy=policy)
    liar = Liar({"north": site.answer_bytes}, rows)
    with pytest.raises(Refused, match=r"peers.*invented-0"):
        lying_sums.invented_sites(liar)
    liar = Liar({"north": site.answer_bytes}, rows)
    liar.begin(**ATTACKS["honest run"].plans[0])
    assert score(lying_sums.honest_run(liar), rows["north"]).facts == ("row count", "mean", "X'X")


def test_robust_rows_stay_hidden_from_sites_that_allow_robust_by_name():
    rows = three_sites()
    allowed = Policy(allow=("federated", "robust"))
    robust = ["robust rows", "robust rows, totals", "single values", "single values, totals"]
    found = attack_site(rows, policy=allowed, attacks=[*robust, "extreme values"])
    assert found.of("robust rows", "open").records == N
    assert found.better_than_guess("yours") == []
    for name in found.attacks:
        rules = found.of(name, "yours").rules
        assert not any("does not allow" in rule or "declares no script" in rule for rule in rules)


def test_honest_fits_of_rows_without_rare_columns_go_on():
    sites = [Site(each, name=name, policy=Policy()) for name, each in three_sites().items()]
    assert FederatedPCA(2).fit(sites).n_samples_ == 3 * N
    flagged = np.column_stack([three_sites()["north"], np.eye(N, 1)])
    with pytest.raises(PolicyRefused, match="min_count"):
        FederatedPCA(2).fit([Site(flagged, name="north", policy=Policy())])
