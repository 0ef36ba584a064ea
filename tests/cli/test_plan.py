"""A plan tells what a fit would cost and keep, and asks nobody."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import fedpca
from command_line import told
from fedpca import FederatedPCA, Privacy
from fedpca.cli.app import app
from fedpca.facts import size
from fedpca.solvers import SOLVERS

BASIC = ["plan", "--rows", "3000", "--features", "20", "-k", "3", "--sites", "4"]
QUIET = ["--flops", "1e10", "--read-rate", "1e9"]
FEW = ["--solver", "covariance", "--solver", "merge"]
PROMISE = ["--epsilon", "1", "--delta", "1e-6", "--row-bound", "6"]


def planned(*words):
    return CliRunner().invoke(app, [*BASIC, *words], terminal_width=200)


def share_in(result):
    return json.loads(result.stdout)["share"]


def test_every_solver_is_listed_with_its_bytes():
    result = planned(*QUIET)
    text = result.output
    plan = fedpca.plan(3000, 20, 3, sites=4, flops=1e10, read_rate=1e9)
    lines = {line.split()[1]: line for line in text.splitlines() if " \u2502 " in line}
    assert list(lines) == list(SOLVERS)
    for name, line in lines.items():
        for number in (plan[name].rounds, plan[name].site_bytes, plan[name].bytes):
            assert f" {number:,} " in line
        assert f" {plan[name].seconds:,.2f} " in line
    assert text.count(" auto ") == 1
    shown = told(result)
    assert (shown["recommended"], shown["reason"]) == (plan.recommended, plan.reason)
    assert shown["assumed"] == "; ".join(plan.assumes)


def test_a_policy_is_asked(tmp_path):
    (tmp_path / "policy.toml").write_text('allow = ["subspace-iteration"]\nend = true\n')
    result = planned(*QUIET, *FEW, "--policy", str(tmp_path / "policy.toml"))
    assert result.exit_code == 2
    assert "allow has 'subspace-iteration'; use 'federated', which includes" in result.output
    (tmp_path / "policy.toml").write_text('allow = ["merge"]\nend = true\n')
    words = (*QUIET, *FEW, "--policy", str(tmp_path / "policy.toml"))
    plain = json.loads(planned(*words, "--json").stdout)
    refused = {each["solver"]: each["refusal"] for each in plain["solvers"]}
    assert "the policy does not allow 'federated', only merge" in refused["covariance"]
    assert "FederatedPCA with solver 'merge' shows the coordinator" in refused["merge"]
    assert plain["recommended"] is None
    text = planned(*words).output
    assert all(reason in text for reason in refused.values())
    assert "no solver is possible" in text


def test_secure_sums_are_about_as_large():
    text = planned(*QUIET, *FEW, "--secure").output
    assert text.count(" about ") >= 2
    plain = json.loads(planned(*QUIET, *FEW, "--secure", "--json").stdout)
    problems = {each["solver"]: each["problem"] for each in plain["solvers"]}
    assert problems["merge"] == "it needs each site's answers, which secure sums hide"
    assert problems["merge"] in text


def test_a_solver_that_would_run_out_of_rounds_is_marked():
    words = (*QUIET, "--solver", "subspace-iteration", "--max-rounds", "5")
    plain = json.loads(planned(*words, "--json").stdout)
    assert plain["solvers"][0]["stop_reason"] == "max_rounds"
    text = planned(*words).output
    assert " max_rounds " in text
    assert "no solver is possible: subspace-iteration: it would run out of rounds" in text


def test_other_programs_read_the_plan_as_json(tmp_path):
    FederatedPCA(3).fit(np.random.default_rng(0).standard_normal((60, 20))).save(tmp_path / "m")
    result = planned(*QUIET, "--json", "--solver", "lanczos", "--like", str(tmp_path / "m"))
    plain = json.loads(result.output)
    assert plain["recommended"] == "lanczos"
    same_rows = "all sites have about the same number of rows"
    assert plain["assumes"] == [same_rows, "columns have no names", "sites are alike"]
    assert plain["speed"]["flops"] == 1e10


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (26e6, "26.0 MB"), (2e13, "20.0 TB")],
)
def test_sizes_are_shown_in_units(n_bytes, text):
    assert size(n_bytes) == text


def test_the_expected_share_is_that_of_real_fits_to_rows_like_the_public_ones(tmp_path):
    rng = np.random.default_rng(0)
    deviations = np.array([3.0, 2.0, 1.5] + 17 * [0.5])
    public, private = (rng.standard_normal((3000, 20)) * deviations for _ in range(2))
    FederatedPCA(5).fit(public).save(tmp_path / "public.fedpca")
    result = planned(*PROMISE, "--json", "--like", str(tmp_path / "public.fedpca"))
    exact = FederatedPCA(3).fit(private).components_
    kept = []
    for _ in range(5):
        promise = Privacy(epsilon=1.0, delta=1e-6, row_bound=6.0)
        found = FederatedPCA(3, privacy=promise).fit(np.array_split(private, 4)).components_
        scatter = private.T @ private
        kept.append(np.trace(found @ scatter @ found.T) / np.trace(exact @ scatter @ exact.T))
    assert abs(share_in(result) - np.mean(kept)) < 0.03


def test_more_privacy_keeps_less():
    shares = [
        share_in(planned("--epsilon", epsilon, *PROMISE[2:], "--json")) for epsilon in ("0.05", "1")
    ]
    assert shares[0] < 0.9 < shares[1]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-k", "21"], "-k 21 exceeds the 20 components"),
        (["--epsilon", "1"], "--epsilon also needs --delta and --row-bound"),
        (["--sites", "0"], "sites=0 must be a whole number"),
        (["--solver", "auto"], "omit 'auto'"),
    ],
)
def test_what_cannot_be_planned_is_refused(words, text):
    result = planned(*words)
    assert result.exit_code == 2
    assert text in " ".join(result.output.split())


def test_a_model_with_other_features_is_refused(tmp_path):
    FederatedPCA(2).fit(np.random.default_rng(0).standard_normal((30, 5))).save(tmp_path / "m")
    result = planned(*PROMISE, "--like", str(tmp_path / "m"))
    assert "has 5 features, not 20" in " ".join(result.output.split())


def test_fits_of_other_kinds_are_planned_without_a_number_of_components():
    personalized = ("--kind", "personalized", "--shared", "2", "--local", "1", "--json")
    words = ("plan", "--rows", "900", "--features", "12", *QUIET)
    result = CliRunner().invoke(app, [*words, *personalized])
    assert json.loads(result.stdout)["recommended"] == "power"
    robust = ("--kind", "robust", "--max-components", "13")
    result = CliRunner().invoke(app, [*words, *robust])
    assert result.exit_code == 2
    assert "--max-components 13" in result.output
