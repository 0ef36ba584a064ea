"""What published attacks, and attacks on honest totals, recover with and without a policy."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.audit import lying_known, lying_parts, lying_totals
from fedpca.audit.lattice import subset_of_sum
from fedpca.audit.liar import Liar, Refused, score
from fedpca.audit.lying import ATTACKS, PUBLISHED, attack_site

N, D = 60, 8
RECORDS = {
    "crossing gaps": 1,
    "three gaps": 1,
    "change between kinds": 1,
    "dominant row": 1,
    "rows that came": lying_parts.N_APART,
    "rows with gaps": lying_parts.N_APART,
    "known columns": lying_known.N_LINKED,
    "known values, flags": lying_known.N_FLAGGED,
    "counted flags": lying_known.N_COUNTED,
    "counted flags, private": lying_known.N_COUNTED,
    "patterns of flags": 36,
    "independent rows": 30,
    "independent rows, products": 30,
}
RULES = {  # by which the default policy refuses an attack
    "crossing gaps": "min_count=|min_change=",
    "three gaps": "min_count=|min_change=",
    "change between kinds": "min_change=",
    "dominant row": "max_share=",
    "rows that came": "the rows that have changed .*min_rows_per_direction=|min_change=",
    "rows with gaps": "the rows with gaps .*min_rows_per_direction=",
    "known columns": "min_rows_per_direction=",
    "counted flags": "min_rows_per_direction=",
    "counted flags, private": "run_epsilon=",
    "independent rows": "min_rows_per_direction=",
    "independent rows, products": "min_rows_per_direction=",
}
UNSTOPPED = ["known values, flags", "patterns of flags"]  # which only noise would stop
OTHERS = ["changing rosters", "mostly empty column"]
MOMENTS = ("row count", "mean", "X'X")


def sites(*names):
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(N, D)) * np.arange(1, D + 1) + 10 for name in names}


@pytest.fixture(scope="module")
def lying():
    return attack_site(sites("north", "east", "south"), attacks=[*RECORDS, *OTHERS])


def liar_who_knows(attack, policy, *, n_known=None, store=None):
    """A liar who knows what the attack needs, or only its first columns, and the attacked rows."""
    attack = ATTACKS[attack]
    rows = attack.plant(sites("north")["north"])
    known = list(attack.knows(rows))[:n_known]
    site = Site(rows, name="north", policy=policy, store=store)
    columns = {j: rows[:, j] for j in known}
    return Liar(
        {"north": site.answer_bytes}, ["east"], known=columns, n_columns=rows.shape[1]
    ), rows


def test_every_published_attack_is_tested():
    assert not set(PUBLISHED) - {*RECORDS, "changing rosters"}
    assert sorted([*RULES, *UNSTOPPED]) == sorted(RECORDS)


@pytest.mark.parametrize("attack", RECORDS)
def test_an_open_site_gives_all_records_away_that_stand_alone(attack, lying):
    outcome = lying.of(attack, "open")
    assert outcome.records == RECORDS[attack]
    assert outcome.is_better_than_guess


@pytest.mark.parametrize("policy", ["default", "strict"])
@pytest.mark.parametrize("attack", RULES)
def test_a_policy_refuses_the_attack_and_names_the_rule(attack, policy, lying):
    outcome = lying.of(attack, policy)
    assert outcome.records == 0
    assert any(re.search(RULES[attack], rule) for rule in outcome.rules)


@pytest.mark.parametrize("policy", ["default", "strict"])
@pytest.mark.parametrize("attack", UNSTOPPED)
def test_no_policy_stops_what_honest_totals_of_flags_reveal(attack, policy, lying):
    outcome = lying.of(attack, policy)
    assert outcome.records == RECORDS[attack] > 4 * outcome.guessed_records
    assert "a guess: " in outcome.in_words or not outcome.guessed_records


def test_the_values_of_a_mostly_empty_column_are_not_solved_for(lying):
    assert lying.of("mostly empty column", "open").values == lying_parts.D_LINKED - 1
    for policy in ("default", "strict"):
        outcome = lying.of("mostly empty column", policy)
        assert not outcome.has_found
        assert any("the rows with values in two columns" in rule for rule in outcome.rules)


def test_a_dominant_row_is_read_in_spite_of_min_count():
    rows = lying_totals.with_dominant_row(sites("north")["north"])
    liar = Liar(
        {"north": Site(rows, name="north", policy=Policy(min_count=30)).answer_bytes}, ["east"]
    )
    liar.begin(**ATTACKS["dominant row"].plans[0])
    assert score(lying_totals.dominant_row(liar), rows).records == 1


def test_a_row_with_nearly_all_the_weight_is_read_as_well():
    rows = sites("north")["north"]
    weight = np.full(N, 1e-9)
    weight[3] = 10.0
    site = Site(rows, name="north", policy=Policy(), weight=weight)
    liar = Liar({"north": site.answer_bytes}, ["east"])
    liar.begin(**ATTACKS["dominant row"].plans[0])
    assert score(lying_totals.dominant_row(liar), rows).records == 1


@pytest.mark.parametrize("policy", ["open", "default"])
def test_totals_over_changing_rosters_are_one_sites_own_sums(policy, lying):
    assert lying.of("changing rosters", policy).facts == MOMENTS


def test_min_sites_stops_changing_rosters_only_if_all_sites_must_take_part(lying):
    assert not lying.of("changing rosters", "strict").has_found
    assert any("min_sites=3" in rule for rule in lying.of("changing rosters", "strict").rules)
    more = attack_site(sites(*"abcde"), attacks=["changing rosters"])
    assert more.of("changing rosters", "strict").facts == MOMENTS


def test_the_models_of_two_secure_fits_give_one_sites_moments_away():
    rows = sites("north", "east", "south", "west")
    policy = Policy(min_sites=3)
    totals = []
    for names in (list(rows), ["east", "south", "west"]):
        fed = Federation.local(
            [Site(rows[name], name=name, policy=policy) for name in names], secure=True
        )
        model = FederatedPCA(D, solver="covariance").fit(fed)
        n, mean = model.n_samples_, model.mean_
        V = model.components_
        scatter = (V.T * model.explained_variance_) @ V * (n - 1)
        totals.append((n, n * mean, scatter + n * np.outer(mean, mean)))
    n, total, products = (a - b for a, b in zip(*totals, strict=True))
    assert n == N
    assert np.allclose(total, rows["north"].sum(axis=0), rtol=1e-9)
    assert np.allclose(products, rows["north"].T @ rows["north"], rtol=1e-9)


@pytest.mark.parametrize(("n_known", "records"), [(None, lying_known.N_LINKED), (20, 0)])
def test_known_columns_must_be_as_many_as_the_rows(n_known, records):
    liar, rows = liar_who_knows("known columns", None, n_known=n_known)
    liar.begin(**ATTACKS["known columns"].plans[0])
    assert score(lying_known.known_columns(liar), rows).records == records


def test_private_runs_with_enough_noise_tell_no_flags(tmp_path):
    liar, rows = liar_who_knows("counted flags, private", Policy(max_epsilon=20.0), store=tmp_path)
    found = lying_known.noisily_counted_flags(liar)
    assert liar.n_questions == 3 * lying_known.N_REPEATED
    assert score(found, rows).records == 0


def test_more_noise_leaves_fewer_records(monkeypatch):
    records = []
    for epsilon in (1000.0, 300.0, 30.0):
        monkeypatch.setattr(lying_known, "LITTLE_NOISE", epsilon)
        liar, rows = liar_who_knows("counted flags, private", None)
        records.append(score(lying_known.noisily_counted_flags(liar), rows).records)
    assert records[0] == lying_known.N_COUNTED
    assert records[0] >= records[1] > lying_known.N_COUNTED / 2 > records[2]


def test_a_liar_that_is_refused_everywhere_has_found_nothing():
    liar, _ = liar_who_knows("counted flags", Policy(min_rows=1000))
    liar.begin(**ATTACKS["counted flags"].plans[0])
    with pytest.raises(Refused, match="min_rows=1000"):
        lying_known.counted_flags(liar)


@pytest.mark.parametrize(("n", "m", "largest"), [(8, 1, 10**6), (30, 4, 10**4), (40, 2, 10**12)])
def test_flags_follow_from_a_few_sums(n, m, largest):
    rng = np.random.default_rng(n)
    for _ in range(3):
        K = rng.integers(-largest, largest, (n, m))
        flags = rng.integers(0, 2, n)
        assert np.array_equal(subset_of_sum(K, K.T @ flags), flags)


def test_sums_of_no_subset_have_no_flags():
    K = np.random.default_rng(0).integers(1, 10**6, (12, 2)) * 2
    assert subset_of_sum(K, K.sum(axis=0) // 2 | 1) is None


@pytest.mark.parametrize("d", [1, 2])
def test_attacks_on_tables_with_few_columns_end(d):
    rng = np.random.default_rng(0)
    rows = {name: rng.normal(size=(N, d)) for name in "abc"}
    gaps = ["crossing gaps", "three gaps", "change between kinds"]
    found = attack_site(rows, attacks=[*gaps, "dominant row", "known columns"])
    assert not found.of("three gaps", "open").is_better_than_guess
    assert found.of("dominant row", "open").records == 1
