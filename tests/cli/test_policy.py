"""`fedpca policy` writes a policy, says what it means, and tries it on a plan."""

from __future__ import annotations

import json

import numpy as np
import pytest

from command_line import run, told
from fedpca import Policy
from fedpca.site.policy import JOINING
from fedpca.solvers import SOLVERS

MERGE = ["--solver", "merge", "-k", "3"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, text):
    (folder / "policy.toml").write_text(f"{text}\nend = true\n")
    return "policy.toml"


def test_a_written_policy_is_that_of_a_site_that_joins_without_one(folder):
    done = run("policy")
    assert done.exit_code == 0
    assert "Wrote policy.toml" in done.output
    assert Policy.load(folder / "policy.toml") == JOINING
    again = run("policy")
    assert again.exit_code == 2
    assert "policy.toml already exists" in again.output
    assert run("policy", "--force", "-o", "policy.toml").exit_code == 0


def test_a_policy_is_explained_in_words(folder):
    done = run("policy", "--explain", write(folder, 'allow = ["any"]\nmin_count = 7'))
    assert done.exit_code == 0
    assert "can reconstruct single rows" in done.output
    assert "min_count = 7: " in done.output


@pytest.mark.parametrize("name", SOLVERS)
def test_the_default_policy_admits_the_exact_solvers_over_sums_and_no_others(folder, name):
    is_usual = SOLVERS[name].guarantee == "exact" and not SOLVERS[name].seen
    run("policy")
    done = run("policy", "--check", "policy.toml", "--solver", name, "-k", "3")
    assert done.exit_code == (0 if is_usual else 1), done.output
    assert told(done)["admitted"] == ("yes" if is_usual else "no")
    opened = write(
        folder, f'allow = ["federated"{"" if is_usual else f", {name!r}"}]\ngather = true'
    )
    done = run("policy", "--check", opened, "--solver", name, "-k", "3")
    assert done.exit_code == 0, done.output


def test_a_check_names_the_rule_that_refuses(folder):
    for text, options, rule in (
        ("", MERGE, "the policy does not allow 'merge', only federated"),
        ('allow = ["merge"]', MERGE, "the policy has gather=false"),
        ("", [], "does not allow 'auto', which this run needs for preparing to find the number of"),
        (
            "min_sites = 4",
            ["-k", "3"],
            "the sum covers 3 sites, fewer than the policy's min_sites=4",
        ),
        ("", ["--solver", "nonsense"], None),
    ):
        done = run("policy", "--check", write(folder, text), *options)
        assert done.exit_code == (2 if rule is None else 1), done.output
        assert (told(done).get("admitted") == "no") == (rule is not None)
        assert (rule or "unknown solver 'nonsense'") in " ".join(done.output.split())
    done = run("policy", "--check", write(folder, "min_sites = 4"), "-k", "3", "--sites", "a,b,c,d")
    shown = told(done)
    assert (shown["program"], shown["solver"], shown["sites"]) == ("FederatedPCA", "auto", "4")
    assert shown["admitted"] == "yes"
    assert run("policy", "--check", write(folder, 'allow = ["any"]'), *MERGE).exit_code == 0


def test_a_plan_is_saved_for_sites_to_check(folder):
    done = run("policy", "--save-plan", "plan.json", "--sites", "north,south", *MERGE)
    assert done.exit_code == 0, done.output
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["program"] == "FederatedPCA"
    assert plan["parameters"]["n_components"] == 3
    assert list(plan["sites"]) == ["north", "south"]
    policy = write(folder, "")
    assert run("policy", "--check", policy, "--plan", "plan.json").exit_code == 1
    (folder / "plan.json").write_text("{}")
    for path in ("plan.json", "missing.json"):
        done = run("policy", "--check", policy, "--plan", path)
        assert done.exit_code == 2
        assert f"error: {path}" in done.output


def test_a_saved_plan_is_the_one_that_a_fit_declares(folder):
    from fedpca import FederatedPCA, Federation, Site
    from fedpca.protocol.plan import DECLARE, RunPlan
    from fedpca.testing import ScriptedEngine

    seen = []

    def listen(reply):
        if reply.question == DECLARE:
            seen.append(RunPlan.from_bytes(reply.request.arrays["plan"].tobytes()))
        return reply.answer

    rows = np.random.default_rng(0).normal(size=(30, 4))
    engine = ScriptedEngine({"north": Site(rows, name="north", policy=Policy())}, listen)
    FederatedPCA(3, solver="lanczos").fit(Federation(engine))
    run("policy", "--save-plan", "plan.json", "--sites", "north", "--solver", "lanczos", "-k", "3")
    saved = RunPlan.from_bytes((folder / "plan.json").read_bytes())
    assert (saved.program, saved.parameters, saved.sites) == (
        seen[0].program,
        seen[0].parameters,
        seen[0].sites,
    )


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("federate", "allow has 'federate', which is unknown here; did you mean 'federated'?"),
        ("Robust", "did you mean 'robust'?"),
        (
            "xyz",
            "the known words are federated, auto, personalized, robust, tsqr, merge, average, any",
        ),
        ("lanczos", "allow has 'lanczos'; use 'federated', which includes that solver"),
    ],
)
def test_a_word_that_allows_nothing_is_refused_wherever_a_policy_is_read(folder, word, said):
    path = write(folder, f'allow = ["federated", "{word}"]')
    np.save(folder / "rows.npy", np.eye(9))
    run("site-key", "north")
    for words in (
        ("policy", "--explain", path),
        ("policy", "--check", path),
        ("join", "localhost:1", "--data", "rows.npy", "--key", "north.key", "--policy", path),
    ):
        done = run(*words, *(("--insecure", "--folder", "n") if words[0] == "join" else ()))
        assert done.exit_code == 2
        assert f"error: {path}: " in done.output
        assert said in " ".join(done.output.split())


def test_a_check_of_files_names_rare_columns_and_the_way_out(folder):
    rows = np.random.default_rng(0).normal(size=(30, 3))
    rows[:, 1] = np.arange(30) < 4
    np.savetxt("north.csv", rows, delimiter=",", header="age,hiv,weight", comments="")
    done = run("check", "north.csv")
    assert done.exit_code == 0
    assert (
        "note: north: fewer than 5 rows differ from the most frequent value in columns hiv, and a site "
        "whose policy has min_count=5 refuses every run; agree with all sites to leave these columns "
        "out with --drop"
    ) in done.output
    assert "most frequent" not in run("check", "north.csv", "--drop", "hiv").output
    assert "most frequent" not in run("check", "north.csv", "--min-count", "4").output


@pytest.mark.parametrize(
    "options",
    [
        ["--kind", "robust", "-k", "3"],
        ["--kind", "personalized", "--shared", "1", "--local", "north=2,south=1"],
    ],
)
def test_the_default_policy_opens_no_other_method(folder, options):
    run("policy")
    done = run("policy", "--check", "policy.toml", "--sites", "north,south", *options)
    assert done.exit_code == 1
    assert told(done)["admitted"] == "no"


def test_a_policy_that_requires_secure_sums_admits_plans_that_have_them(folder):
    secure = write(folder, 'require = ["secure"]')
    plain = run("policy", "--check", secure, "-k", "3")
    assert plain.exit_code == 1
    assert "requires secure sums, but the plan has none" in plain.output
    done = run("policy", "--check", secure, "-k", "3", "--secure")
    assert done.exit_code == 0, done.output
    assert (told(done)["sites"], told(done)["secure sums"]) == ("3", "yes")
    alone = run("policy", "--check", secure, "-k", "3", "--secure", "--sites", "1")
    assert alone.exit_code == 2
    assert "use at least two sites" in alone.output
    explained = run("policy", "--explain", secure)
    assert 'require = ["secure"]: ' in explained.output


def test_a_plan_that_no_secure_sum_can_hide_is_not_even_declared(folder):
    done = run("policy", "--check", write(folder, ""), *MERGE, "--secure")
    assert done.exit_code == 2
    assert "which no secure sum can hide" in done.output
