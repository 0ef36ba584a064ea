"""A coordinator that lies recovers everything from an open site, and nothing from one with a policy.

Rules about few rows, changed rows, budgets, and known sites are tested in test_lying_disclosure.py, and
attacks that others published, or that only need honest totals, in test_lying_published.py.
"""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from typer.testing import CliRunner

from command_line import told
from fedpca import FederatedPCA, Policy, Site
from fedpca.audit import lying_sums
from fedpca.audit.liar import Found, Liar, Refused, Score, guess_from_model, score
from fedpca.audit.lying import ATTACKS, PUBLISHED, STRICT, attack_site
from fedpca.cli.app import app
from fedpca.errors import InputError, PolicyRefused
from fedpca.rows.standardized import MAX_CACHE_BYTES
from fedpca.site.policy import JOINING

N, D = 60, 8
OPEN = Policy(allow=("any",), gather=True, min_count=1)
ALL_RECORDS = {
    "robust rows": N,
    "robust rows, totals": 3 * N,
    "moved center": N,
    "moved center, totals": 3 * N,
    "sign flips": N,
    "few rows flipped": 6,
    "moving ball": N,
}
ONE_RECORD = [
    "rare flag",
    "rare flag, totals",
    "one row less",
    "one row less, totals",
    "gaps",
    "noiseless flag, totals",
    "noiseless patient, totals",
]
VALUES = {
    "single values": N * D,
    "single values, totals": 3 * N * D,
    "extreme values": 2 * D,
    "gaps, one value": 1,
    "moved fill": D - 1,
    "bisected rounding": 1,
}
MOMENTS = ("row count", "mean", "X'X")
FACTS = {
    "honest run": MOMENTS,
    "claimed sites": MOMENTS,
    "invented sites": MOMENTS,
    "colluding sites": MOMENTS,
    "gathered as a sum": ("X'X",),
    "out of turn": ("X'X",),
    "stretched direction": ("X'X",),
    "asked again": ("an answer too many",),
    "replayed plan": ("answers under another run's plan",),
    "moved mean": ("a second mean in a run",),
    "endless steps": ("4000 steps for one question",),
    "wide block": ("20000 columns for one question",),
}
# attacks through the rounding of single rows, which no answer shows
BY_ROUNDING = [
    "far mean",
    "far mean, totals",
    "constant columns",
    "rounding",
    "rounding, totals",
]
RULES = {  # by which the default policy refuses an attack
    "robust rows": "'(RobustPCA|robust)'",
    "robust rows, totals": "'(RobustPCA|robust)'",
    "single values": "'(RobustPCA|robust)'",
    "single values, totals": "'(RobustPCA|robust)'",
    "extreme values": "'(RobustPCA|robust)'",
    "moved center": "'(RobustPCA|robust)'",
    "moved center, totals": "'(RobustPCA|robust)'",
    "rounding": "does not allow 'auto'",
    "rounding, totals": "does not allow 'auto'",
    "bisected rounding": "does not allow 'auto'",
    "sign flips": "does not allow 'auto'",
    "few rows flipped": "does not allow 'auto'",
    "gaps, one value": f"in columns {D - 2}, gaps .*min_count=",
    "moved fill": f"in columns {D - 1}, gaps .*min_count=",
    "claimed sites": "claims 1000 sites, but the plan has 3",
    "gathered as a sum": "does not allow 'tsqr'",
    "out of turn": "'covariance_triangle' is out of turn",
    "asked again": "'column_names' is out of turn",
    "replayed plan": "the plan is for run 'run-1', but was declared in run 'run-2.1'",
    "moved mean": "'standardize' is out of turn",
    "stretched direction": "field 'Z' .* must have orthonormal columns",
    "endless steps": "field 'steps' .* must be from 1 to 1000",
    "wide block": "field 'Z' .* must have orthonormal columns",
    "moving ball": "run_epsilon=1, but the plan asks for epsilon inf",
}
ANSWERED = ["constant columns", "far mean", "far mean, totals"]  # but the answers tell nothing
BY_AUTO = [
    "rounding",
    "rounding, totals",
    "bisected rounding",
    "sign flips",
]  # answered where "auto" is allowed
AUTO = replace(JOINING, allow=("federated", "auto"))
GAPS = ["crossing gaps", "three gaps", "change between kinds"]
PARTS = ["rows that came", "rows with gaps", "mostly empty column"]
ELSEWHERE = [*PUBLISHED, *GAPS, *PARTS, "dominant row"]  # tested in test_lying_published.py
HERE = [name for name in ATTACKS if name not in ELSEWHERE]
HONEST = ["honest run", "invented sites", "colluding sites"]  # what no policy here prevents


def three_sites(n=N, d=D):
    rng = np.random.default_rng(0)
    offsets = np.linspace(-20, 100, d)
    return {
        name: rng.normal(size=(n, d)) * np.arange(1, d + 1) + offsets
        for name in ("north", "east", "south")
    }


@pytest.fixture(scope="module")
def lying():
    return attack_site(three_sites(), attacks=HERE)


@pytest.fixture(scope="module")
def lying_with_auto():
    return attack_site(three_sites(), policy={"auto": AUTO}, attacks=[*BY_AUTO, "few rows flipped"])


def liar_of(rows, policy, roster=("north", "east", "south")):
    return Liar({"north": Site(rows, name="north", policy=policy).answer_bytes}, roster)


def test_every_attack_is_tested():
    tested = [*ALL_RECORDS, *ONE_RECORD, *VALUES, *FACTS, *BY_ROUNDING]
    assert sorted(tested) == sorted(HERE)
    assert sorted([*RULES, *ANSWERED, *ONE_RECORD, *HONEST]) == sorted(HERE)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ALL_RECORDS)
def test_an_open_site_gives_away_all_records(attack, lying):
    assert lying.of(attack, "open").records == ALL_RECORDS[attack]


@pytest.mark.parametrize("attack", ONE_RECORD)
def test_an_open_site_gives_away_the_record_that_stands_alone(attack, lying):
    assert lying.of(attack, "open").records == 1


@pytest.mark.parametrize("attack", VALUES)
def test_an_open_site_gives_away_single_values(attack, lying):
    assert lying.of(attack, "open").values == VALUES[attack]


@pytest.mark.parametrize("attack", FACTS)
def test_an_open_site_answers_what_no_honest_run_asks(attack, lying):
    assert lying.of(attack, "open").facts == FACTS[attack]


@pytest.mark.parametrize("policy", ["default", "strict"])
@pytest.mark.parametrize("attack", RULES)
def test_the_default_policy_refuses_the_attack_and_names_the_rule(attack, policy, lying):
    outcome = lying.of(attack, policy)
    assert not outcome.has_found
    assert any(re.search(RULES[attack], rule) for rule in outcome.rules)


@pytest.mark.parametrize("policy", ["default", "strict"])
@pytest.mark.parametrize("attack", ANSWERED)
def test_the_answers_that_the_default_policy_gives_tell_no_record(attack, policy, lying):
    outcome = lying.of(attack, policy)
    assert outcome.questions > 25
    assert not Score(outcome.records, outcome.values).is_better_than(lying.guess)


@pytest.mark.parametrize("attack", BY_ROUNDING)
def test_no_rounding_of_single_rows_is_seen_even_at_an_open_site(attack, lying):
    outcome = lying.of(attack, "open")
    assert outcome.questions > 10
    assert not outcome.has_found


@pytest.mark.parametrize("attack", BY_AUTO)
def test_a_policy_that_allows_auto_gives_answers_that_tell_no_record(attack, lying_with_auto):
    outcome = lying_with_auto.of(attack, "auto")
    assert outcome.questions > 10
    assert not outcome.has_found


def test_a_policy_that_allows_auto_refuses_to_flip_the_signs_of_few_rows(lying_with_auto):
    outcome = lying_with_auto.of("few rows flipped", "auto")
    assert not outcome.has_found
    assert any("fewer than 60 rows" in rule for rule in outcome.rules)


@pytest.mark.parametrize("attack", HONEST)
def test_no_policy_hides_a_sites_moments_from_who_sees_its_answers(attack, lying):
    assert lying.of(attack, "default").facts == MOMENTS
    assert lying.of(attack, "default").values == 0


def test_the_verb_of_a_gathered_question_cannot_be_changed(lying):
    for policy in ("open", "default", "strict"):
        rules = lying.of("gathered as a sum", policy).rules
        assert any("verb='sum' does not fit question 'triangular_factor'" in rule for rule in rules)


def test_the_most_steps_are_refused_at_once():
    liar = liar_of(three_sites()["north"], Policy())
    liar.begin(**ATTACKS["endless steps"].plans[0])
    with pytest.raises(Refused, match="must be from 1 to 1000"):
        lying_sums.endless_steps_at_once(liar)


def test_without_a_plan_min_sites_believes_what_it_is_told():
    rows = three_sites()["north"]
    liar = liar_of(rows, Policy(allow=("any",), gather=True, min_count=1, min_sites=500))
    liar.begin()
    assert score(lying_sums.claimed_sites(liar), rows).facts == MOMENTS
    liar.begin()
    with pytest.raises(Refused, match="fewer than the policy's min_sites=500"):
        lying_sums.honest_run(liar)


def test_signs_that_the_coordinator_chose_would_give_all_rows_away():
    rows = three_sites()["north"]
    site = Site(rows, name="north", policy=AUTO)
    plan = ATTACKS["sign flips"].plans[0]
    recovered = []
    for site.is_in_process in (True, False):
        liar = Liar({"north": site.answer_bytes}, ["east"])
        liar.begin(**plan)
        recovered.append(score(lying_sums.sign_flips(liar), rows).records)
        site = Site(rows, name="north", policy=AUTO)
    assert recovered == [N, 0]


def test_an_attack_recovers_records_of_integers_and_flags_alike():
    rng = np.random.default_rng(1)
    rows = np.column_stack(
        [rng.normal(size=N), rng.integers(0, 2, (N, 3)), rng.integers(18, 90, (N, 4))]
    ).astype(float)
    found = attack_site({"only": rows}, attacks=["robust rows", "single values"])
    assert found.of("robust rows", "open").records == N
    assert found.of("single values", "open").values == N * 8
    assert not found.better_than_guess("default")


def test_a_record_that_is_off_by_little_more_than_the_tolerance_is_not_recovered():
    rows = three_sites()["north"]
    for error, records in ((1e-7, N), (1e-5, 0)):
        assert score(Found(rows * (1 + error)), rows).records == records


def test_a_claim_of_any_size_is_only_wrong():
    assert score(Found(np.full((3, 2), 1e300)), np.ones((3, 2))).records == 0


def test_more_claims_than_rows_do_not_score():
    rows = np.arange(12.0).reshape(6, 2)
    every = np.arange(1000.0)
    assert score(Found(values={0: every}), rows).values == 3  # of 0 ... 5, the even ones
    assert score(Found(np.repeat(rows[:1], 6, axis=0)), rows) == Score(1, 2)


def test_guessing_finds_whole_numbers_but_no_measurements():
    rng = np.random.default_rng(2)
    ages = rng.integers(40, 60, (200, 3)).astype(float)
    assert guess_from_model(ages, ages).values > 300
    measured = rng.normal(size=(200, 3))
    assert guess_from_model(measured, measured).values == 0


def test_a_value_that_is_missing_is_not_recovered():
    rows = np.array([[1.0, np.nan], [np.nan, np.nan], [2.0, 3.0]])
    assert score(Found(np.array([[1.0, 0.0], [7.0, 7.0]])), rows) == Score(1, 1)
    assert score(Found(values={1: np.array([3.0, 7.0, 7.0])}), rows) == Score(0, 1)


def test_a_guess_uses_the_columns_that_the_liar_knows():
    rng = np.random.default_rng(7)
    rows = np.column_stack([rng.normal(size=20), np.arange(20) < 5]).astype(float)
    assert guess_from_model(rows, rows).records == 0
    assert guess_from_model(rows, rows, {0: rows[:, 0]}).records == 15


def test_a_false_fact_does_not_count():
    rows = three_sites()["north"]
    facts = {"mean": rows.mean(axis=0) + 1e-3, "row count": N}
    assert score(Found(facts=facts), rows).facts == ("row count",)


@pytest.mark.parametrize("as_rows", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_a_mean_that_rounds_rows_away_is_refused_in_questions_about_directions(as_rows):
    rows = three_sites()["north"]
    policy = Policy(allow=("tsqr", "merge"), gather=True)
    merging = {"sends_spare": np.int64(1), "n_components": np.int64(1), "n_spare": np.int64(10)}
    merging["rule"] = np.empty(0, np.uint8)
    for solver, question, more in (
        ("tsqr", "triangular_factor", {}),
        ("merge", "summarize_about", merging),
    ):
        liar = liar_of(as_rows(rows), policy)
        liar.begin("FederatedPCA", solver=solver, n_components=1)
        lying_sums._begin(liar)
        mean = rows.mean(axis=0)
        mean[2] = 1e12
        with pytest.raises(Refused, match="field 'mean' is more than 1048576 times as large"):
            liar.ask(question, mean=mean, scale=np.ones(D), **more)


@pytest.mark.parametrize("memory_limit", [MAX_CACHE_BYTES, 0])  # by A'A, and from rows
@pytest.mark.parametrize("d", [302, 1100])
def test_products_of_wide_rows_under_a_policy_round_no_rows_away(d, memory_limit):
    attack = ATTACKS["constant columns"]
    rows = attack.plant(np.random.default_rng(6).normal(size=(N, d - 2)))
    policy = replace(JOINING, min_rows_per_direction=0)
    site = Site(rows, name="north", policy=policy, memory_limit=memory_limit)
    liar = Liar({"north": site.answer_bytes}, ("north", "east", "south"))
    liar.begin(**attack.plans[0])
    found = score(attack.run(liar), rows)
    assert liar.n_questions > 25
    assert (found.records, found.values) == (0, 0)


def test_an_unlikely_scale_is_refused():
    liar = liar_of(three_sites()["north"], Policy())
    liar.begin("FederatedPCA", solver="lanczos", n_components=1, scale=True)
    lying_sums._begin(liar)
    liar.ask("squares", mean=np.zeros(D))
    asked = {"mean": np.zeros(D), "scale": np.full(D, 1e162), "n_products": np.int64(1)}
    with pytest.raises(Refused, match=r"field 'scale' .* must be from 1e-150 to 1e\+100"):
        liar.ask("standardize", **asked)


def test_sites_that_differ_and_columns_without_values_fit_under_a_policy():
    rng = np.random.default_rng(3)
    near = rng.normal(size=(50, 6))
    near -= near.mean(axis=0)  # a mean of rounding errors
    near[:, 5] = 0.0
    far = rng.normal(size=(50, 6)) * 10 + 1000
    fits = []
    for policy in (None, Policy()):
        sites = [Site(rows, name=n, policy=policy) for n, rows in (("a", near), ("b", far))]
        fits.append(FederatedPCA(2, solver="lanczos", random_state=0).fit(sites).components_)
    assert np.array_equal(*fits)


def test_a_fit_with_a_mean_beyond_all_reason_is_refused_under_a_policy():
    rng = np.random.default_rng(4)
    rows = {"a": rng.normal(size=(50, 3)), "b": rng.normal(size=(50, 3)) + 1e9}
    policy = Policy(allow=("tsqr",), gather=True)
    sites = [Site(each, name=name, policy=policy) for name, each in rows.items()]
    with pytest.raises(PolicyRefused, match=r"'a'.*would round its values away"):
        FederatedPCA(2, solver="tsqr").fit(sites)


def test_the_lab_refuses_what_it_cannot_attack():
    with pytest.raises(InputError, match="101 features exceed the limit of 100"):
        attack_site({"a": np.ones((5, 101))})
    with pytest.raises(InputError, match="no attack 'sorcery'; the attacks are honest run"):
        attack_site(three_sites(), attacks=["sorcery"])
    with pytest.raises(InputError, match="1 rows without gaps"):
        attack_site({"a": np.array([[1.0, np.nan], [1.0, 2.0]])})
    with pytest.raises(InputError, match="columns; use the same columns"):
        attack_site([np.ones((5, 2)), np.ones((5, 3))])
    with pytest.raises(InputError, match="sites must be a dict or list"):
        attack_site(np.ones((5, 2)))
    with pytest.raises(InputError, match="and the policies open, default, strict"):
        attack_site(three_sites(), attacks=["honest run"]).of("honest run", "mild")


@pytest.fixture(scope="module")
def attacked():
    """What was attacked once, and what came of it, for commands that attack the same."""
    return {}


@pytest.fixture
def run_audit(attacked, monkeypatch, tmp_path):
    def attack_once(sites, **options):
        if not attacked:
            attacked[0] = attack_site(sites, **options)
        return attacked[0]

    monkeypatch.setattr("fedpca.cli.audit.attack_site", attack_once)
    return partial(audit_of_rows, tmp_path)


def audit_of_rows(tmp_path, *words):
    rng = np.random.default_rng(5)
    np.save(tmp_path / "rows.npy", rng.normal(size=(30, 5)))
    policy = tmp_path / "policy.toml"
    policy.write_text("min_sites = 4\nend = true\n")
    return CliRunner().invoke(
        app, ["audit", str(tmp_path / "rows.npy"), "--lying", "--policy", str(policy), *words]
    )


@pytest.mark.slow
def test_the_command_prints_what_was_recovered_and_what_refused(run_audit):
    done = run_audit("-q")
    assert done.exit_code == 0, done.output
    assert "30 of 30 records" in done.output
    assert "90 of 90 records" in done.output
    assert "fewer than the policy's min_sites=4" in done.output
    assert told(done)["records guessed from the published model"] == "0"
    assert "with published attacks" in done.output
    assert "Source: Huth et al. 2023." in done.output


@pytest.mark.slow
def test_the_command_prints_csv_and_json(run_audit):
    done = run_audit("--json")
    contents = json.loads(done.stdout)
    assert list(contents["policies"]) == ["open", "default", "yours"]
    by_policy = {(o["attack"], o["policy"]): o for o in contents["outcomes"]}
    assert by_policy["robust rows", "open"]["records"] == 30
    assert "min_sites=4" in by_policy["out of turn", "yours"]["rules"][0]
    lines = list(csv.DictReader(io.StringIO(run_audit("--csv").stdout)))
    assert len(lines) == 3 * len(ATTACKS)
    assert {line["policy"] for line in lines} == {"open", "default", "yours"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--lying", "--csv", "--json"), "mutually exclusive"),
        (("--csv",), "require --lying"),
    ],
)
def test_the_command_refuses_options_that_do_not_go_together(words, text, tmp_path):
    np.save(tmp_path / "rows.npy", np.eye(4))
    done = CliRunner().invoke(app, ["audit", str(tmp_path / "rows.npy"), *words])
    assert done.exit_code == 2
    assert text in done.output


def test_a_strict_policy_admits_an_honest_fit():
    sites = [Site(rows, name=n, policy=STRICT) for n, rows in three_sites().items()]
    assert FederatedPCA(2).fit(sites).components_.shape == (2, D)
