"""What a lying coordinator would learn from sums over few rows, changed rows, and many runs."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from fedpca import FederatedPCA, Policy, Site
from fedpca.audit import lying_sums
from fedpca.audit.liar import Liar, Refused, made_up_key, score
from fedpca.audit.lying import ATTACKS, attack_site
from fedpca.errors import PolicyRefused
from fedpca.site.policy import JOINING

N, D = 60, 8
RULES = {
    "rare flag": "min_count=",
    "rare flag, totals": "min_count=",
    "one row less": "min_change=",
    "one row less, totals": "min_change=",
    "gaps": "min_count=",
}


def three_sites(n=N, d=D):
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(n, d)) for name in ("north", "east", "south")}


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


@pytest.mark.parametrize("has_store", [False, True])
def test_a_run_that_is_declared_again_after_another_one_counts_again(has_store, tmp_path):
    store = tmp_path if has_store else None
    policy = Policy(max_runs_per_day=1)
    site = Site(three_sites()["north"], name="north", policy=policy, store=store)
    liar = Liar({"north": site.answer_bytes}, ["east", "south"])
    liar.begin(**ATTACKS["honest run"].plans[0])
    plan = liar.plan
    lying_sums.honest_run(liar)
    liar.begin_with(plan, "another")
    liar.begin_with(plan, plan.run)
    with pytest.raises(Refused, match="max_runs_per_day"):
        lying_sums.honest_run(liar)


def test_a_new_run_does_not_answer_from_the_state_of_the_run_before():
    site = Site(three_sites()["north"], name="north", policy=JOINING)
    liar = Liar({"north": site.answer_bytes}, ["east", "south"])
    liar.begin(**ATTACKS["moved mean"].plans[0])
    lying_sums._standardized(liar)
    liar.again()
    liar.go_back()
    with pytest.raises(Refused, match="no plan was declared"):
        liar.ask("standardize", mean=np.ones(D), scale=np.ones(D), n_products=np.int64(1))


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


@pytest.mark.slow
def test_robust_rows_stay_hidden_from_sites_that_allow_robust_by_name():
    rows = three_sites(N // 2, D // 2)
    allowed = Policy(allow=("federated", "robust"))
    robust = ["robust rows", "robust rows, totals", "single values", "single values, totals"]
    found = attack_site(rows, policy=allowed, attacks=[*robust, "extreme values"])
    assert found.of("robust rows", "open").records == N // 2
    assert found.better_than_guess("yours") == []
    for name in found.attacks:
        rules = found.of(name, "yours").rules
        assert not any("does not allow" in rule or "declares no script" in rule for rule in rules)


@pytest.mark.slow
def test_a_moved_center_recovers_records_from_sites_that_allow_robust_by_name():
    allowed = replace(JOINING, allow=("federated", "robust"))
    policies = {"robust": allowed, "once": replace(allowed, max_runs_per_day=1)}
    found = attack_site(three_sites(), policy=policies, attacks=["moved center, totals"])
    in_one_run, in_a_day = (found.of(*found.attacks, name).records for name in ("once", "robust"))
    assert found.guess.records < in_one_run < in_a_day
    assert in_a_day >= 0.9 * 3 * N


def test_honest_fits_of_rows_without_rare_columns_go_on():
    sites = [Site(each, name=name, policy=Policy()) for name, each in three_sites().items()]
    assert FederatedPCA(2).fit(sites).n_samples_ == 3 * N
    flagged = np.column_stack([three_sites()["north"], np.eye(N, 1)])
    with pytest.raises(PolicyRefused, match="min_count"):
        FederatedPCA(2).fit([Site(flagged, name="north", policy=Policy())])
