"""Private fits over real processes: each site counts each release once, whoever is killed meanwhile."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from sklearn.decomposition import PCA

import forked
from command_line import told
from fedpca import FederatedPCA, Privacy, load
from fedpca.errors import PolicyRefused
from fedpca.linalg.dense import sine_of_angle
from fedpca.site.privacy_budget import Spent
from processes import HANG_S, LATE_S, Processes, until
from support import gapped_rows

pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore:only .* stand out from the noise"),
]
SITES = ("north", "south", "west")
PRIVACY = Privacy(epsilon=2.0, delta=1e-6, row_bound=12.0)
PRIVATE = partial(FederatedPCA, 2, privacy=PRIVACY, random_state=0)
FIT = """
import sys
from fedpca import FederatedPCA, Federation, Privacy

address, journal = sys.argv[1:]

def on_round(entry):
    print("round", entry["round"], flush=True)
    if entry["round"] == 2:
        sys.stdin.read()  # until this process is killed

options = {"credentials": "tls", "journal": journal, "on_round": on_round, "secure": True}
privacy = Privacy(epsilon=2.0, delta=1e-6, row_bound=12.0)
with Federation.flower(address, **options) as fed:
    FederatedPCA(2, privacy=privacy, random_state=0).fit(fed)
"""


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A server, and sites that know each other and have a privacy budget."""
    folder = tmp_path_factory.mktemp("private")
    rng = np.random.default_rng(5)
    for part, site in zip(np.split(gapped_rows(rng, 12_000, 6, 2), 3), SITES, strict=True):
        np.save(folder / f"{site}.npy", part)
    (folder / "fit.py").write_text(FIT)
    processes = Processes(folder, SITES)
    peers = json.dumps([processes.fingerprint(site) for site in SITES])
    (folder / "budget.toml").write_text(
        f"run_epsilon = 11\nmax_epsilon = 10\npeers = {peers}\nend = true\n"
    )
    processes.sites = {site: join(processes, site) for site in SITES}
    processes.federation().close()  # which waits until all are online
    yield processes
    processes.stop_all()


def join(there, site):
    coordinator = ("--coordinator", "tls/coordinator.pub")
    joined = there.join(site, f"{site}.npy", "--policy", "budget.toml", *coordinator)
    until(lambda: "the privacy budget: " in there.log(joined), f"the start of {site}")
    return joined


def releases(there, sites=SITES):
    """The attempts and rounds of the last run in each site's file."""
    found = {}
    for site in sites:
        (path,) = (there.folder / "home" / "sites" / site).glob("*.privacy")
        spent = Spent.read(path)
        assert spent.problem == ""
        last = spent.releases[-1].run.partition(".")[0]
        of_run = [each for each in spent.releases if each.run.startswith(last)]
        found[site] = [(each.run.partition(".")[2], each.question) for each in of_run]
    return found


ONCE = [("0", "noisy_count_and_sum"), ("0", "noisy_scatter")]


def test_a_private_fit_is_counted_at_each_site_and_one_beyond_the_budget_refused(there):
    where = ("--federation", there.address, "--credentials", "tls", "--wait", str(HANG_S))
    own = ("--epsilon", "2", "--delta", "1e-6", "--row-bound", "12", "-o", "private.fedpca")
    done = there.run("fit", *where, "-k", "2", *own, "--purpose", "a study")
    assert told(done)["epsilon promised for each row"] == "2"
    far = load(there.folder / "private.fedpca")
    assert far.run_.secure
    assert far.run_.privacy["epsilon"] == pytest.approx(2.0)
    pooled = PCA(2).fit(np.vstack([np.load(there.folder / f"{site}.npy") for site in SITES]))
    assert sine_of_angle(pooled.components_.T, far.components_.T) < 0.2
    assert releases(there) == dict.fromkeys(SITES, ONCE)

    shown = json.loads(
        there.run("budget", "--json", "--name", "west", "--policy", "budget.toml").stdout
    )
    assert shown["runs"][-1]["purpose"] == "a study"
    assert shown["runs"][-1]["releases"] == 2
    too_much = Privacy(epsilon=1.1 * shown["left"], delta=1e-6, row_bound=12.0)
    with there.federation(secure=True) as fed, pytest.raises(PolicyRefused) as refused:
        FederatedPCA(2, privacy=too_much).fit(fed)
    assert fed.record.rounds == 0
    for site in SITES:
        assert (
            f"site '{site}', round 0, while declaring the run: the run asks for epsilon "
            f"{too_much.epsilon:.4g} of the site's privacy budget, of which epsilon "
        ) in str(refused.value)
    assert f"epsilon {shown['left']:.4g} is left" in str(refused.value)
    assert "max_epsilon=10" in str(refused.value)
    with (
        there.federation(secure=True) as fed,
        pytest.raises(PolicyRefused, match="but this FederatedPCA"),
    ):
        FederatedPCA(2).fit(fed)
    for epsilon in (math.inf, 1e6):
        little_noise = Privacy(epsilon, delta=1e-6, row_bound=12.0)
        with (
            there.federation(secure=True) as fed,
            pytest.raises(
                PolicyRefused, match=r"site 'north'.* the policy has run_epsilon=11, but"
            ),
        ):
            FederatedPCA(2, privacy=little_noise).fit(fed)


def test_a_site_that_is_killed_between_rounds_spends_once(there):
    def restart(entry):
        if entry["round"] == 2:
            there.stop(there.sites["south"], signal.SIGKILL)
            there.sites["south"] = join(there, "south")

    with there.federation(secure=True, on_round=restart) as fed:
        run = PRIVATE().fit(fed).run_
    assert run.lost == []
    assert run.privacy["epsilon"] == pytest.approx(2.0)
    assert releases(there) == dict.fromkeys(SITES, ONCE)
    assert there.log(there.sites["south"]).count("of 10 is spent, and epsilon") == 1


def test_a_coordinator_that_was_killed_resumes_without_spending_again(there, tmp_path):
    words = [sys.executable, "fit.py", there.address, str(tmp_path / "j")]
    options = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    options |= {"cwd": there.folder, "env": there.environment, "text": True}
    with forked.Popen(words, **options) as process:
        while process.stdout.readline().strip() != "round 2":
            assert process.poll() is None, process.stderr.read()
        process.kill()
    assert releases(there) == dict.fromkeys(SITES, ONCE[:1])
    with there.federation(journal=tmp_path / "j", secure=True) as fed:
        run = PRIVATE().fit(fed).run_
    assert run.privacy["epsilon"] == pytest.approx(2.0)
    assert releases(there) == dict.fromkeys(SITES, ONCE)


def test_a_run_that_starts_over_without_a_lost_site_spends_again_and_says_so(there):
    def kill(entry):
        if entry["round"] == 2:
            there.stop(there.sites["west"], signal.SIGKILL)
            fed.terms.timeout = LATE_S
        elif entry["round"] > 2:
            fed.terms.timeout = HANG_S

    try:
        with there.federation(secure=True, quorum=2, on_round=kill) as fed:
            model = PRIVATE().fit(fed)
    finally:
        there.sites["west"] = join(there, "west")
    run = model.run_
    assert [each["site"] for each in run.lost] == ["west"]
    twice = [*ONCE, *(("1", question) for _, question in ONCE)]
    assert releases(there, ("north", "south")) == dict.fromkeys(("north", "south"), twice)
    assert releases(there, ("west",)) == {"west": ONCE[:1]}
    assert run.privacy["promised"] == 2.0
    assert run.privacy["mu"] == pytest.approx(math.sqrt(2) * PRIVACY.mu)
    model.save(there.folder / "twice.fedpca")
    shown = there.run("info", "twice.fedpca").stdout
    (spent,) = (line for line in shown.splitlines() if line.startswith("epsilon spent"))
    assert f"{run.privacy['epsilon']:.4g} (the run started over" in spent
