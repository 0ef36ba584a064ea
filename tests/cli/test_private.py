"""Private fits in the shell, and what a site says about its privacy budget."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from command_line import run, told
from fedpca import FederatedPCA, Federation, Policy, Privacy, Site, load
from fedpca.errors import FileError
from fedpca.privacy.gaussian import epsilon_of, mu_of
from fedpca.protocol.plan import PRIVATE, RunPlan
from fedpca.site.privacy_budget import Spent
from fedpca.site.requests import Requests
from fedpca.site.store import PRIVACY, REQUESTS
from fedpca.storage.tensor_file import read_arrays, write_arrays
from support import fitted_quietly, gapped_rows

ROWS = gapped_rows(np.random.default_rng(2), 9000, 4, 2)
PRIVATE_FIT = ("--epsilon", "1", "--delta", "1e-6", "--row-bound", "12")
pytestmark = pytest.mark.filterwarnings("ignore:only .* stand out from the noise")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDPCA_HOME", str(tmp_path / "home"))
    for name, part in zip(("north", "south", "west"), np.array_split(ROWS, 3), strict=True):
        np.save(f"{name}.npy", part)
    return tmp_path


FILES = ("north.npy", "south.npy", "west.npy")


def words(done):
    return " ".join(done.output.split())


def test_a_private_fit_of_files_is_secure_and_says_what_it_promised_and_spent(folder):
    done = run("fit", *FILES, "-k", 2, *PRIVATE_FIT, "--silent", 0, "-o", "m.fedpca")
    assert done.exit_code == 0, done.output
    model = load(folder / "m.fedpca")
    assert model.privacy == Privacy(1.0, 1e-6, 12.0, n_silent=0)
    assert model.run_.secure
    assert model.run_.privacy["epsilon"] == pytest.approx(1.0)
    for said in (told(done), told(run("info", "m.fedpca"))):
        assert said["epsilon promised for each row"] == said["epsilon spent"] == "1"
        assert (said["delta"], said["distance up to which rows count"]) == ("1e-06", "12")
    shown = json.loads(run("info", "m.fedpca", "--json").stdout)
    assert shown["run"]["privacy"] == model.run_.privacy


def test_a_private_fit_of_one_file_needs_no_secure_sums(folder):
    around = ("--around", "0.5,0,0,1")
    done = run("fit", "north.npy", "-k", 2, *PRIVATE_FIT, *around, "-o", "m.fedpca")
    assert done.exit_code == 0, done.output
    model = load(folder / "m.fedpca")
    assert model.privacy.around == (0.5, 0.0, 0.0, 1.0)
    assert not model.run_.secure


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            ("--epsilon", "1"),
            "--epsilon also needs --delta and --row-bound, as in --epsilon 1",
        ),
        (("--epsilon", "1", "--delta", "1e-6"), "--epsilon also needs --row-bound"),
        (("--row-bound", "8"), "--row-bound also needs --epsilon and --delta"),
        (("--silent", "2"), "--silent also needs --epsilon and --delta and --row-bound"),
        (
            (*PRIVATE_FIT, "--around", "x"),
            "--around x must be a number, or a number for each feature",
        ),
        ((*PRIVATE_FIT, "--around", "1,2"), "around has 2 numbers for 4 features"),
        (("--epsilon", "0", *PRIVATE_FIT[2:]), "epsilon=0.0 must be a number from"),
        ((*PRIVATE_FIT, "--scale"), "scale=True has no differentially private mechanism"),
        (
            ("--kind", "robust", *PRIVATE_FIT),
            "--epsilon does not apply to --kind robust, whose own options are",
        ),
        (
            ("--kind", "personalized", "--shared", "1", "--local", "1", "--delta", "1e-6"),
            "--delta does not apply to --kind personalized",
        ),
    ],
)
def test_options_of_privacy_that_cannot_be_meant_are_refused(folder, typed, said):
    k = () if "personalized" in typed else ("-k", "2")
    done = run("fit", *FILES, *k, *typed, "-o", "m.fedpca")
    assert done.exit_code == 2
    assert said in words(done)


def test_a_run_that_started_over_says_that_it_spent_more_than_it_promised(folder):
    model = fitted_quietly(
        FederatedPCA(2, privacy=Privacy(1.0, 1e-6, 12.0)), Federation.local([ROWS])
    )
    model.run_.privacy |= {"mu": 0.4, "epsilon": epsilon_of(0.4, 1e-6)}
    model.save("m.fedpca")
    spent = told(run("info", "m.fedpca"))["epsilon spent"]
    assert spent.startswith(f"{epsilon_of(0.4, 1e-6):.4g} (the run started over")


def test_a_fit_without_noise_promises_nothing_in_words_and_in_json(folder):
    done = run("fit", *FILES, "-k", 2, "--epsilon", "inf", *PRIVATE_FIT[2:], "-o", "m.fedpca")
    assert done.exit_code == 0, done.output
    assert "no differential privacy: epsilon was infinite" in words(run("info", "m.fedpca"))
    assert load(folder / "m.fedpca").run_.privacy["epsilon"] == math.inf
    shown = run("info", "m.fedpca", "--json").stdout
    assert "Infinity" not in shown
    assert json.loads(shown)["run"]["privacy"]["epsilon"] is None


@pytest.mark.parametrize(
    "privacy",
    [
        [],
        "x",
        {"epsilon": 1.0},
        {"mu": "0.2"},
        {"mu": -1.0},
        {"promised": None},
        {"promised": 0.0},
        {"delta": 1.0},
        {"row_bound": "8"},
        {"around": "x"},
        {"more": 1},
    ],
    ids=str,
)
def test_a_model_file_with_a_malformed_promise_is_refused(folder, privacy):
    model = fitted_quietly(
        FederatedPCA(2, privacy=Privacy(1.0, 1e-6, 12.0)), Federation.local([ROWS])
    )
    model.save("m.fedpca")
    assert load("m.fedpca").run_.privacy == model.run_.privacy
    arrays, header = read_arrays("m.fedpca", "model")
    whole = isinstance(privacy, dict) and len(privacy) == 1 and "epsilon" not in privacy
    header["run"]["privacy"] = {**model.run_.privacy, **privacy} if whole else privacy
    for name in ("format", "version"):
        header.pop(name)
    write_arrays("m.fedpca", arrays, header)
    with pytest.raises(FileError, match=r"m\.fedpca has an invalid header"):
        load("m.fedpca")


# ---- fedpca budget ----


@pytest.fixture
def spent(folder):
    """What site north spent in two runs."""
    site = Site(ROWS, name="north", policy=Policy(), store=folder / "home" / "sites" / "north")
    for epsilon in (1.0, 0.5):
        with Federation.local([site], purpose="heart \x1b[2J study") as fed:
            fitted_quietly(FederatedPCA(2, privacy=Privacy(epsilon, 1e-6, 12.0)), fed)
    return site.file(PRIVACY)


TOTAL = math.hypot(mu_of(1.0, 1e-6), mu_of(0.5, 1e-6))


def test_a_budget_shows_runs_totals_and_what_is_left(folder, spent):
    (folder / "policy.toml").write_text("max_epsilon = 2\nend = true\n")
    left = epsilon_of(math.sqrt(mu_of(2.0, 1e-6) ** 2 - TOTAL**2), 1e-6)
    for where in ((), ("--name", "north"), ("--folder", spent.parent)):
        done = run("budget", *where, "--policy", "policy.toml")
        assert done.exit_code == 0, done.output
        assert "heart \\x1b[2J study" in done.output
        said = told(done)
        assert (said["answers"], said["runs"], said["delta"]) == ("4", "2", "1e-06")
        assert said["epsilon spent"] == f"{epsilon_of(TOTAL, 1e-6):.4g}"
        assert (said["epsilon left"], said["epsilon of the policy"]) == (f"{left:.4g}", "2")
    read = Spent.read(spent)
    shown = json.loads(run("budget", "--json", "--delta", "1e-5").stdout)
    assert (shown["delta"], shown["head"]) == (1e-5, read.heads[-1])
    assert shown["epsilon"] == pytest.approx(epsilon_of(TOTAL, 1e-5))
    assert [each["run"] for each in shown["runs"]] == [r.run for r in read.releases[::2]]
    assert [each["releases"] for each in shown["runs"]] == [2, 2]
    assert shown["runs"][1]["epsilon"] == pytest.approx(epsilon_of(mu_of(0.5, 1e-6), 1e-5))
    assert shown["total_epsilon"] == 10.0
    assert shown["left"] == pytest.approx(
        epsilon_of(math.sqrt(mu_of(10.0, 1e-6) ** 2 - TOTAL**2), 1e-5)
    )
    assert told(run("budget"))["epsilon of the policy"] == "10"
    (folder / "policy.toml").write_text("run_epsilon = 0.2\nend = true\n")
    assert told(run("budget", "--policy", "policy.toml"))["epsilon of the policy"] == "2"
    (folder / "policy.toml").write_text('allow = ["any"]\nend = true\n')
    assert "epsilon left" not in told(run("budget", "--policy", "policy.toml"))
    (folder / "policy.toml").write_text("max_epsilon = 1\ndelta = 1e-7\nend = true\n")
    shown = json.loads(run("budget", "--json", "--policy", "policy.toml").stdout)
    assert (shown["delta"], shown["total_epsilon"], shown["left"]) == (1e-7, 1.0, 0.0)


def test_an_infinite_epsilon_is_shown_as_such(folder):
    site = Site(ROWS, name="north", store=folder / "home" / "sites" / "north")
    fitted_quietly(FederatedPCA(2, privacy=Privacy(math.inf, 1e-6, 12.0)), Federation.local([site]))
    assert told(run("budget"))["epsilon spent"] == "infinite"
    assert json.loads(run("budget", "--json").stdout)["epsilon"] is None


def test_an_altered_budget_exits_with_1_and_a_torn_one_says_so(folder, spent):
    good = spent.read_text()
    spent.write_text(good.replace('"round": 2', '"round": 5', 1))
    done = run("budget")
    assert done.exit_code == 1
    assert "line 1 was changed; the 0 answers before this point are verified" in words(done)
    spent.write_text(good[:-200])
    done = run("budget")
    assert done.exit_code == 0
    assert "line 4 is torn" in done.output
    assert (told(done)["answers"], told(done)["runs"]) == ("3", "2")


def test_a_site_with_a_damaged_budget_does_not_join(folder, spent):
    spent.write_text(spent.read_text().replace('"round": 2', '"round": 5', 1))
    (folder / "policy.toml").write_text("max_epsilon = 2\nend = true\n")
    run("site-key", "north")
    own = ("--data", "north.npy", "--key", "north.key", "--policy", "policy.toml")
    done = run("join", "localhost:1", *own, "--insecure")
    assert done.exit_code == 2
    assert f"error: {spent.name}, the site's privacy budget, is damaged: line 1" in words(done)


def test_which_budget_is_meant_must_be_clear(folder, spent):
    said = told(run("budget", "--name", "west"))
    assert (said["answers"], said["runs"], said["epsilon spent"]) == ("0", "0", "0")
    done = run("budget", "--delta", "0.5")
    assert done.exit_code == 2
    assert "--delta must be from 1e-15 to 0.1, got 0.5" in words(done)
    other = spent.parents[1] / "south"
    other.mkdir()
    (other / "south-1.privacy").touch()
    done = run("budget")
    assert done.exit_code == 2
    assert "2 sites have spent budget in" in words(done)
    assert run("budget", "--folder", folder).exit_code == 2
    (other / "south-1.privacy").unlink()
    (other / "south-1.privacy").mkdir()
    done = run("budget", "--folder", other)
    assert done.exit_code == 2
    assert "cannot be read" in words(done)


# ---- policies and requests ----


def test_a_policy_with_a_budget_is_checked_against_plans(folder):
    (folder / "policy.toml").write_text("run_epsilon = 5\nmax_epsilon = 2\nend = true\n")
    check = ("policy", "--check", "policy.toml", "-k", "2")
    done = run(*check)
    assert done.exit_code == 1
    assert told(done)["refusal"].startswith("the policy has max_epsilon=2, so the site takes part")
    done = run(*check, *PRIVATE_FIT)
    assert done.exit_code == 0
    said = told(done)
    assert (said["sites"], said["secure sums"]) == ("3", "yes")
    assert said["epsilon"] == (
        "1 (the check does not know what the site has spent; fedpca budget says what is left)"
    )
    assert told(run(*check, *PRIVATE_FIT, "--sites", "1"))["secure sums"] == "no"
    done = run(*check, "--epsilon", "3", *PRIVATE_FIT[2:])
    assert done.exit_code == 1
    assert told(done)["refusal"].startswith("the run asks for epsilon 3 of the site's privacy")
    explained = words(run("policy", "--explain", "policy.toml"))
    assert "max_epsilon = 2: Keeps all private runs together" in explained
    (folder / "policy.toml").write_text('require = ["private"]\nend = true\n')
    assert run(*check).exit_code == 1
    assert run(*check, *PRIVATE_FIT).exit_code == 0
    done = run(*check, "--epsilon", "1.1", *PRIVATE_FIT[2:])
    assert done.exit_code == 1
    assert told(done)["refusal"].startswith("the policy has run_epsilon=1, but the plan asks for")
    assert 'require = ["private"]: ' in words(run("policy", "--explain", "policy.toml"))


def test_requests_show_what_a_run_promises_about_each_row(folder):
    settings = Privacy(1.0, 1e-6, 12.0).to_plain()
    store = folder / "home" / "sites" / "north"
    for name, privacy in (("a", {PRIVATE: settings}), ("b", {})):
        plan = RunPlan(name, "FederatedPCA", {}, {"north": ""}, privacy=privacy)
        with pytest.raises(Exception, match="waits for a person"):
            Requests(REQUESTS.path(store, "north")).check(plan, "")
    shown = words(run("requests"))
    assert (
        "privacy epsilon 1.0, delta 1e-06, row_bound 12.0, around 0.0, n_products 5, n_silent 1"
        in shown
    )
    assert "privacy none: answers have no noise in them" in shown
    found = json.loads(run("requests", "--json").stdout)
    assert {each["run"]: each["privacy"] for each in found} == {"a": settings, "b": None}
