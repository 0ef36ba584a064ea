"""A policy comes from a file; what cannot be meant is refused, and nothing makes it weaker."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

import fedpca.solvers.pca  # noqa: F401 - whose script the site follows
from fedpca import Policy, Privacy, Site
from fedpca.errors import FileError, InputError, PolicyRefused
from fedpca.protocol.message import compose
from fedpca.protocol.plan import DECLARE, RunPlan
from fedpca.protocol.script import find_script
from fedpca.site.policy import JOINING, TRUSTING, rules

STRICT = Policy(
    allow=("federated", "robust"),
    min_rows=20,
    min_count=7,
    min_sites=3,
    min_change=9,
    max_runs_per_day=2,
    max_rounds_per_day=300,
)
BUDGET = Policy(require=("secure", "private"), max_epsilon=2.5, delta=1e-7)


def written(folder, text):
    path = folder / "policy.toml"
    path.write_text(text)
    return path


def test_a_policy_comes_from_a_file_and_the_rest_is_as_for_a_site_that_joins(tmp_path):
    path = written(tmp_path, "min_rows = 20\ngather = true\nend = true\n")
    assert Policy.load(path) == replace(JOINING, min_rows=20, gather=True)
    assert Policy.load(written(tmp_path, "end=true # nothing else")) == JOINING
    unlimited = written(tmp_path, 'max_runs_per_day = "unlimited"\nend = true')
    assert Policy.load(unlimited).max_runs_per_day is None
    unlimited = written(tmp_path, 'max_share = "unlimited"\nend = true')
    assert Policy.load(unlimited).max_share is None


def test_a_site_that_joins_is_closed_by_default():
    assert JOINING.allow == ("federated",)
    assert not JOINING.gather
    assert not JOINING.is_open
    assert JOINING.min_count == JOINING.least_change == 5
    assert JOINING.max_runs_per_day
    assert JOINING.max_rounds_per_day
    assert TRUSTING.is_open
    assert TRUSTING.min_count == TRUSTING.least_change == 1


@pytest.mark.parametrize("policy", [JOINING, STRICT, TRUSTING, BUDGET, Policy(), Policy(allow=())])
def test_a_policy_that_was_written_is_read_as_it_was(tmp_path, policy):
    assert Policy.load(written(tmp_path, policy.to_text())) == policy


@pytest.mark.parametrize(
    "text",
    [
        STRICT.to_text(),
        replace(STRICT, allow=("federated", "end = true")).to_text(),
        "min_rows = 20\nend = true\n# end = true\n",
    ],
)
def test_a_file_that_was_cut_off_is_refused(tmp_path, text):
    whole = Policy.load(written(tmp_path, text))
    complete = text.index("\nend = true") + len("\nend = true")
    for size in range(len(text)):
        path = written(tmp_path, text[:size])
        if size >= complete:  # only the last comment is missing
            assert Policy.load(path) == whole
        else:
            with pytest.raises(FileError, match=str(path)):
                Policy.load(path)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("", FileError, "does not end with the line 'end = true', so part of it may be missing"),
        ("min_rows = 20", FileError, "does not end with the line"),
        ("end = false", FileError, "does not end with the line"),
        ("end = 1", FileError, "does not end with the line"),
        ("end = true\nmin_rows = 20", FileError, "does not end with the line"),
        ("[other]\nend = true", FileError, "does not end with the line"),
        (
            "min_row = 3\nend = true",
            InputError,
            "unknown rule 'min_row'; did you mean 'min_rows'[?] the rules are allow, gather, min_rows",
        ),
        ("min_rows = true\nend = true", InputError, "min_rows=True must be a whole number"),
        ("min_rows = '20'\nend = true", InputError, "min_rows='20' must be a whole number"),
        ("min_rows = 2.0\nend = true", InputError, "min_rows=2.0 must be a whole number"),
        ("gather = 1\nend = true", InputError, "gather=1 must be true or false"),
        (
            "min_rows = -1\nend = true",
            InputError,
            "min_rows=-1 must be a whole number of at least 0",
        ),
        (
            "min_count = 0\nend = true",
            InputError,
            "min_count=0 must be a whole number of at least 1",
        ),
        (
            "min_sites = 0\nend = true",
            InputError,
            "min_sites=0 must be a whole number of at least 1",
        ),
        ("min_change = 0\nend = true", InputError, "min_change=0 must be a whole number"),
        (
            "min_count = 'unlimited'\nend = true",
            InputError,
            "min_count='unlimited' must be a whole",
        ),
        ("max_runs_per_day = -1\nend = true", InputError, "max_runs_per_day=-1 must be a whole"),
        ("allow = 'any'\nend = true", InputError, "allow='any' must be a list of names"),
        ("allow = [1]\nend = true", InputError, "must be a list of names"),
        (
            "max_epsilon = 0\nend = true",
            InputError,
            "max_epsilon=0 must be a number from 0.0001 to",
        ),
        ("max_epsilon = inf\nend = true", InputError, "max_epsilon=inf must be a number from"),
        ("max_epsilon = nan\nend = true", InputError, "max_epsilon=nan must be a number from"),
        ("max_epsilon = true\nend = true", InputError, "max_epsilon=True must be a number from"),
        ("max_epsilon = '1'\nend = true", InputError, "max_epsilon='1' must be a number from"),
        ("delta = 0.5\nend = true", InputError, "delta=0.5 must be a number from 1e-15 to 0.1"),
        ("delta = 'unlimited'\nend = true", InputError, "delta='unlimited' must be a number"),
        ("require = 'private'\nend = true", InputError, "require='private' must be a list"),
        ("require = [['x']]\nend = true", InputError, "with 'secure' or 'private'"),
        (
            "allow = ['any']\nmax_epsilon = 1\nend = true",
            InputError,
            "allow has 'any'.*max_epsilon, and require='private' would have no effect",
        ),
        ("allow = ['any']\nrequire = ['private']\nend = true", InputError, "allow has 'any'"),
        ("gather\nend = true", FileError, "is not TOML"),
        ("min_rows = 1\nmin_rows = 2\nend = true", FileError, "is not TOML"),
        ("a=" + "[" * 100_000, FileError, "is not TOML"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(tmp_path, text, kind, said):
    with pytest.raises(kind, match=said):
        Policy.load(written(tmp_path, text))
    with pytest.raises(FileError, match="cannot be read"):
        Policy.load(tmp_path / "missing.toml")


def explained(policy):
    (rules_of_policy,) = policy.facts()
    return [f"{given}: {prevents}" for given, prevents, *_ in rules_of_policy.rows]


def test_every_rule_is_written_explained_documented_and_said_to_prevent_something():
    names = [field.name for field in fields(Policy)]
    assert [rule.name for rule in rules()] == names
    for policy in (JOINING, STRICT, TRUSTING, BUDGET):
        text, words = policy.to_text(), explained(policy)
        for rule, said in zip(rules(), words, strict=True):
            assert f"{rule.name} = " in text
            assert f"    {rule.name} : " in Policy.__doc__
            assert said.startswith(f"{rule.name} = ")
            assert said.endswith(rule.prevents)
            assert len(rule.prevents) > 20


def test_a_rule_restricts_nothing_at_its_off_value_and_something_at_others():
    for rule in rules():
        if rule.off is not None and rule.name != "max_epsilon":
            off = replace(JOINING, **{rule.name: rule.off})
            assert not rule.is_on(off)
            assert f"{rule.name} = " not in off.in_words()
            assert any(f"{rule.name} = " in each and " (off): " in each for each in explained(off))


def test_a_policy_is_said_in_a_phrase_with_the_rules_that_restrict_something():
    said = STRICT.in_words()
    for words in (
        'allow = ["federated", "robust"]',
        "gather = false",
        "min_rows = 20",
        "min_count = 7",
        "min_change = 9",
        "min_sites = 3",
        "max_runs_per_day = 2",
        "max_rounds_per_day = 300",
    ):
        assert words in said
    assert "peers" not in said
    assert "gather" not in replace(STRICT, gather=True).in_words()


def test_a_privacy_budget_is_said_in_a_phrase_and_needs_no_peers_by_itself():
    assert 'require = ["secure", "private"]' in BUDGET.in_words()
    assert "max_epsilon = 2.5, delta = 1e-07" in BUDGET.in_words()
    Policy(require=("private",), max_epsilon=1.0).refuse_unknown_sites()
    with pytest.raises(InputError, match="needs peers"):
        BUDGET.refuse_unknown_sites()


def test_all_private_runs_together_keep_a_promise_that_follows_if_none_is_given():
    assert Policy(run_epsilon=0.5).total_epsilon == 5.0
    assert not Policy(run_epsilon=0.5).must_be_private
    assert Policy(run_epsilon=0.5, max_epsilon=2.0).total_epsilon == 2.0
    assert np.isinf(TRUSTING.max_mu2)


def test_a_run_begins_only_as_often_as_the_policy_says():
    rows = np.random.default_rng(0).normal(size=(20, 3))
    site = Site(rows, name="north", policy=Policy(max_attempts=2))
    plan = RunPlan("run", "FederatedPCA", {"solver": "lanczos", "n_components": 1}, {"north": ""})
    arrays = {"plan": np.frombuffer(plan.to_bytes(), np.uint8)}
    header = {"round": 0, "question": DECLARE, "verb": "gather", "n_sites": 1, "memory": 0}
    texts = [
        site.answer(compose({**header, "run": f"run.{attempt}"}, arrays)).header.get("text")
        for attempt in ("0", "1", "2", "x", "01", "\N{ARABIC-INDIC DIGIT ONE}", "9" * 50)
    ]
    assert texts[:2] == [None, None]
    assert all("max_attempts=2; begin a new run" in text for text in texts[2:])


def test_sites_share_noise_only_with_sites_that_they_know():
    """A coordinator could invent sites that add none, and each real site would add less."""
    settings = Privacy(epsilon=1.0, delta=1e-6, row_bound=4.0).to_plain()
    own, other = "a" * 64, "b" * 64

    def plan(**privacy):
        keys = {"north": own, "south": other}
        return RunPlan("run", "FederatedPCA", {"n_components": 1}, keys, privacy=privacy)

    shared, alone = plan(differential=settings, secure=True), plan(differential=settings)
    with pytest.raises(PolicyRefused, match="lists no peers"):
        Policy().admit(shared, find_script(shared), own)
    Policy(peers=(other,)).admit(shared, find_script(shared), own)
    Policy().admit(alone, find_script(alone), own)
    settings["n_silent"] = 0  # then what one of the two sites reveals is half of the noise
    with pytest.raises(PolicyRefused, match="n_silent=0"):
        Policy(peers=(other,)).admit(shared, find_script(shared), own)
    Policy().admit(alone, find_script(alone), own)
