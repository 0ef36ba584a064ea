"""A run with secure sums says so: in its ledger, its record, its file, and the sites' own logs."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

from command_line import run as run_command
from fedpca import FederatedPCA, Federation, PersonalizedPCA, Policy, RobustPCA, Site, load
from fedpca.coordinator.record import RunRecord
from fedpca.engines.base import Engine
from fedpca.errors import InputError, PolicyRefused
from fedpca.privacy.offers import roster_hash
from fedpca.protocol.message import compose, decode, encode
from fedpca.protocol.plan import RunPlan
from fedpca.site.answer_log import AnswerLog, in_words
from fedpca.testing import ScriptedEngine


@pytest.fixture
def parts():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((90, 6)) * [5, 4, 1, 1, 1, 1]
    return {f"s{i}": part for i, part in enumerate(np.array_split(rows, 3))}


@pytest.fixture
def model(parts):
    with Federation.local(parts, secure=True) as fed:
        return FederatedPCA(2, solver="covariance").fit(fed)


def test_ledger_and_history_tell_which_answers_were_masked_and_in_which_ring(model):
    up = {entry.question: entry.how for entry in model.run_.ledger if entry.direction == "up"}
    assert up == {
        "column_names": "seen",
        "count_and_sum": "masked",
        "covariance_triangle": "masked",
    }
    rings = {entry["question"]: entry.get("rings") for entry in model.run_.history}
    assert rings["column_names"] is None
    assert rings["count_and_sum"]["n"] == [64, 0]
    assert rings["count_and_sum"]["total"][0] == 128
    assert rings["covariance_triangle"]["triangle"][0] == 64
    assert ("count_and_sum", "n", 64, 0) in model.run_.rings


def test_the_record_holds_the_hash_of_the_roster_that_was_left(parts):
    whole = FederatedPCA(2).fit(Federation.local(parts, secure=True)).run_
    assert whole.secure == {
        "roster": roster_hash(RunPlan("r", "p", sites=dict.fromkeys(parts, "")))
    }

    def lose_s1(reply):
        return None if reply.site == "s1" and reply.round >= 3 else reply.answer

    with Federation(ScriptedEngine(parts, lose_s1), quorum=2, secure=True) as fed:
        left = FederatedPCA(2).fit(fed).run_
    assert left.sites == ("s0", "s2")
    del parts["s1"]
    assert left.secure == FederatedPCA(2).fit(Federation.local(parts, secure=True)).run_.secure
    assert left.secure != whole.secure


def test_a_file_keeps_how_the_sums_were_made_and_files_without_it_load(model, parts, tmp_path):
    path = tmp_path / "secure.fedpca"
    model.save(path)
    loaded = load(path)
    assert loaded.run_.secure == model.run_.secure
    assert loaded.run_.rings == model.run_.rings
    assert loaded.site_variance_ratio_ == {}
    np.testing.assert_array_equal(loaded.transform(parts["s0"]), model.transform(parts["s0"]))
    plain = FederatedPCA(2).fit(parts).run_
    assert "secure" not in plain.to_header()
    assert all("rings" not in entry for entry in plain.history)
    assert RunRecord.from_header(plain.to_header()).secure == {}


@pytest.mark.parametrize(
    "secure", [{"roster": "\x1b[2J"}, {"roster": 3}, {"other": "0" * 64}, ["roster"], "yes"]
)
def test_a_file_with_a_damaged_roster_is_refused(model, secure):
    header = json.loads(json.dumps(model.run_.to_header()))
    with pytest.raises(ValueError, match=r"roster|secure sums"):
        RunRecord.from_header({**header, "secure": secure})


def test_info_prints_the_roster_and_the_rings(model, tmp_path):
    path = tmp_path / "secure.fedpca"
    model.save(path)
    shown = run_command("info", path, "--ledger").output
    assert "reveal only totals over 3 sites" in shown
    assert model.run_.secure["roster"] in shown
    assert "masked" in shown
    assert "Rings of masked answers" in shown
    told = json.loads(run_command("info", path, "--json", "--ledger").output)
    assert told["run"]["secure"] == model.run_.secure
    assert told["site_variance_ratio"] == {}


def test_nothing_is_told_of_single_sites_and_no_site_is_called_dominant(parts):
    parts["s0"] *= 1000  # in plain runs, a site with this much variance is warned about
    with pytest.warns(UserWarning, match="s0"):
        FederatedPCA(2).fit(parts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = FederatedPCA(2).fit(Federation.local(parts, secure=True))
    assert model.run_.influence == {}
    assert model.run_.dominant_site is None
    assert model.site_variance_ratio_ == {}


@pytest.mark.parametrize(
    "estimator",
    [PersonalizedPCA(1, 1, random_state=0), RobustPCA(2, random_state=0)],
    ids=["personalized", "robust"],
)
def test_other_estimators_do_without_what_sites_tell_alone(estimator, parts, tmp_path):
    for i, rows in enumerate(parts.values()):
        rows[:, 2 + i] *= 10  # what is local differs
    estimator.fit(Federation.local(parts, secure=True))
    hows = {entry.how for entry in estimator.run_.ledger if entry.question != "column_names"}
    assert hows == {"sent", "masked"}
    assert estimator.run_.influence == {}
    assert getattr(estimator, "site_variance_", {}) == getattr(estimator, "sparse_share_", {}) == {}
    path = tmp_path / "secure.fedpca"
    estimator.save(path)
    done = run_command("info", path)
    assert done.exit_code == 0, done.output
    assert estimator.run_.secure["roster"] in done.output


@pytest.mark.parametrize("solver", ["merge", "average", "tsqr"])
def test_what_cannot_be_masked_is_refused_before_a_site_is_asked(solver, parts):
    sites = {name: Site(rows, name=name) for name, rows in parts.items()}
    fed = Federation.local(sites, secure=True)
    with pytest.raises(InputError, match=r"no secure sum can hide.*omit secure"):
        FederatedPCA(2, solver=solver).fit(fed)
    assert all(not site.memory for site in sites.values())


def test_a_site_that_requires_secure_sums_refuses_plain_runs(parts):
    careful = Policy(require=("secure",))
    sites = {name: Site(rows, name=name, policy=careful) for name, rows in parts.items()}
    with pytest.raises(PolicyRefused, match="requires secure sums, but the plan has none"):
        FederatedPCA(2).fit(sites)
    FederatedPCA(2).fit(Federation.local(sites, secure=True))
    with pytest.raises(InputError, match="use at least two sites"):
        FederatedPCA(2).fit(Federation.local({"s0": sites["s0"]}, secure=True))


def test_a_policy_that_requires_secure_sums_needs_the_keys_of_peers_across_machines():
    with pytest.raises(InputError, match=r"require=\['secure'\] needs peers .*require = \[\]"):
        Policy(require=("secure",)).refuse_unknown_sites()
    with pytest.raises(InputError, match=r"min_sites=3 and require=.* need peers"):
        Policy(min_sites=3, require=("secure",)).refuse_unknown_sites()
    Policy(min_sites=3, require=("secure",), peers=("a" * 64,)).refuse_unknown_sites()


class _Logged(Engine):
    """An engine whose sites answer through their logs, as `fedpca join` does."""

    declares = True

    def __init__(self, logs):
        self.logs, self.names = logs, tuple(logs)

    def ask(self, names, request, timeout):
        for name in names:
            yield name, self.logs[name].answer(encode(request))


def test_a_sites_own_log_says_that_an_answer_was_masked(parts, tmp_path):
    told = []
    logs = {
        name: AnswerLog(Site(rows, name=name), tmp_path / f"{name}.ledger", told.append)
        for name, rows in parts.items()
    }
    FederatedPCA(2, solver="covariance").fit(Federation(_Logged(logs), secure=True))
    lines = [json.loads(line) for line in (tmp_path / "s0.ledger").read_text().splitlines()]
    masks = [(line["question"], line.get("mask")) for line in lines]
    assert ("count_and_sum", {"wide size": [2176, 1074], "zero sum": [64, 0]}) in masks
    assert masks[0][0] == "declare_run"
    assert next(mask for _, mask in masks if mask and "n" in mask)["n"] == [64, 0]
    assert any(text.endswith("masked, to be summed over 3 sites") for text in told)


def test_a_strange_mask_is_logged_as_a_short_text(parts, tmp_path):
    log = AnswerLog(Site(parts["s0"], name="s0"), tmp_path / "s0.ledger", lambda _: None)
    header = {"run": "r.0", "round": 1, "question": "count_and_sum", "verb": "sum", "n_sites": 3}
    for mask in ("\x1b[2J" * 1000, {"n": "\x1b[2J"}, {"n": [1, {}]}, [], 7):
        asked = compose({**header, "memory": 0, "mask": mask}, {})
        assert "error" in decode(log.answer(encode(asked))).header
    text = (tmp_path / "s0.ledger").read_text()
    assert "\\u001b" not in text
    assert max(map(len, text.splitlines())) < 2000
    for line in text.splitlines():
        assert "\x1b" not in in_words(json.loads(line))
