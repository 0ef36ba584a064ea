"""With --json, every command prints its result and its errors as values that programs can read."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from command_line import ROWS, run
from fedpca import FederatedPCA, PersonalizedPCA, RobustPCA, StreamingPCA, Summary
from fedpca.cli.app import COMMANDS
from fedpca.facts import Records, Section, as_plain
from fedpca.protocol.plan import RunPlan
from fedpca.site.answer_log import AnswerLog
from fedpca.site.requests import Requests
from fedpca.site.site import Site
from fedpca.site.store import REQUESTS

# commands that print no result: they write files, run until they are stopped, or show an example
WITHOUT_RESULTS = {"transform", "plot", "report", "demo", "serve", "join"}
RUN = "an-approved-run"
RESULTS = {
    "check": (("check", "{site}"), "stops_a_fit"),
    "plan": (("plan", "--rows", 90, "--features", 5, "-k", 2, "--solver", "merge"), "solvers"),
    "fit": (("fit", "{site}", "-k", 2, "-o", "{folder}/new.fedpca"), "run"),
    "summarize": (("summarize", "{site}", "-k", 2, "-o", "{folder}/s.summary"), "reveals"),
    "merge": (("merge", "{folder}/old.summary", "-o", "{folder}/n.summary"), "certainty"),
    "info": (("info", "{model}"), "components"),
    "verify": (("verify", "{model}", "{site}"), "certified"),
    "diagnose": (("diagnose", "{model}", "{site}", "--no-site-map"), "ranks"),
    "audit": (("audit", "{site}", "-k", 2, "--solver", "covariance", "--refits", 0), "exposures"),
    "requests": (("requests",), None),
    "approve": (("approve", RUN), "state"),
    "deny": (("deny", RUN), "state"),
    "site-key": (("site-key", "north", "--folder", "{folder}"), "fingerprint"),
    "ledger": (("ledger", "verify"), "whole"),
    "policy": (("policy", "--explain", "{folder}/policy.toml"), "rules"),
    "policy --check": (("policy", "--check", "{folder}/policy.toml", "-k", 2), "admitted"),
    "budget": (("budget", "--name", "north"), "epsilon"),
}


@pytest.fixture
def places(sites, tmp_path, monkeypatch):
    """A model, a summary, a policy, and the files of a site that has been asked to approve a run."""
    home = tmp_path / "home"
    monkeypatch.setenv("FEDPCA_HOME", str(home))
    store = home / "sites" / "north"
    store.mkdir(parents=True)
    plan = RunPlan(RUN, "FederatedPCA", {}, {"north": ""})
    with pytest.raises(Exception, match="waits for a person"):
        Requests(REQUESTS.path(store, "north")).check(plan, "")
    log = AnswerLog(Site(np.ones((3, 2)), name="north"), store / "ledger.jsonl", print)
    log.answer(b"garbage")
    FederatedPCA(2).fit({"north": sites[0]}).save(tmp_path / "m.fedpca")
    run("summarize", sites[0], "-k", 2, "-q", "-o", tmp_path / "old.summary")
    run("policy", "-o", tmp_path / "policy.toml")
    return {"site": sites[0], "folder": tmp_path, "model": tmp_path / "m.fedpca"}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_one_json_value_on_standard_output(name, places):
    words, key = RESULTS[name]
    done = run(*(str(word).format(**places) for word in words), "--json")
    assert done.exit_code == 0, done.output
    plain = json.loads(done.stdout)
    assert key is None or key in plain


def test_every_command_with_a_result_is_tested():
    assert {name.split()[0] for name in RESULTS} | WITHOUT_RESULTS == set(COMMANDS)


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (("info", "missing.fedpca"), 2, "FileError"),
        (("check", "missing.csv"), 2, "InputError"),
        (("fit", "missing.csv", "-o", "{folder}/new"), 2, "InputError"),
        (("plan", "--rows", 9, "--features", 5, "-k", 6), 2, "InputError"),
        (("budget", "--name", "north", "--delta", 1), 2, "InputError"),
        (("ledger", "verify"), 1, "LedgerError"),
    ],
)
def test_an_error_is_one_line_of_json_on_standard_error(words, code, kind, places):
    (ledger,) = places["folder"].glob("home/sites/north/ledger.jsonl")
    ledger.write_text(ledger.read_text().replace('"entry": 1', '"entry": 2'))
    done = run(*(str(word).format(**places) for word in words), "--json")
    assert done.exit_code == code
    (line,) = done.stderr.splitlines()
    error = json.loads(line)["error"]
    assert error["kind"] == kind
    assert error["message"]
    plain = run(*(str(word).format(**places) for word in words))
    assert plain.exit_code == code
    assert " ".join(error["message"].split()) in " ".join(plain.stderr.split())


def test_a_check_that_fails_prints_its_findings_and_the_error(tmp_path):
    rows = ROWS.copy()
    rows[3, 1] = np.nan
    np.save(tmp_path / "x.npy", rows)
    done = run("check", tmp_path / "x.npy", "--json", "--list")
    assert done.exit_code == 2
    plain = json.loads(done.stdout)
    assert plain["stops_a_fit"] == 1
    assert plain["sites"][0]["nan"] == 1
    assert [each["nan"] for each in plain["columns"]["x"]] == [0, 1, 0, 0, 0]
    assert json.loads(done.stderr)["error"]["kind"] == "InputError"


def test_an_interrupt_is_json_as_well(sites, tmp_path, monkeypatch):
    def interrupt(self, rows):
        raise KeyboardInterrupt

    monkeypatch.setattr(FederatedPCA, "fit", interrupt)
    done = run("fit", *sites, "-o", tmp_path / "m", "--json", "-q")
    assert done.exit_code == 130
    assert json.loads(done.stderr)["error"]["kind"] == "KeyboardInterrupt"


@pytest.mark.filterwarnings("ignore:misalignment_")
@pytest.mark.parametrize(
    "fitted",
    [FederatedPCA(2), RobustPCA(2), PersonalizedPCA(1, 1), StreamingPCA(2), Summary],
    ids=lambda fitted: getattr(fitted, "__name__", type(fitted).__name__),
)
def test_no_fact_takes_the_place_of_another(fitted):
    rows = ROWS if isinstance(fitted, StreamingPCA) else [ROWS[:40], ROWS[40:]]
    facts = (Summary.of(ROWS, 2) if fitted is Summary else fitted.fit(rows)).facts()
    places = Counter(
        f"{section.key}.{fact.key}"
        for section in facts
        if isinstance(section, Section)
        for fact in section.facts
    )
    places.update(f".{section.key}" for section in facts if isinstance(section, Records))
    assert max(places.values()) == 1
    assert {"n_rows", "n_features", "n_components", "components"} <= set(as_plain(facts))


def test_a_plan_of_a_private_fit_says_what_it_keeps():
    given = ("--epsilon", 1, "--delta", "1e-6", "--row-bound", 6)
    words = ("plan", "--rows", 3000, "--features", 5, "-k", 2, *given)
    plain = json.loads(run(*words, "--json").stdout)
    assert 0 < plain["share"] <= 1
