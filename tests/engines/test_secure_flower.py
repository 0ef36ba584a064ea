"""Secure sums over real processes: the same bits, and no outage or lie goes unnoticed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from sklearn.decomposition import PCA

from fedpca import FederatedPCA, Federation, load
from fedpca.errors import PolicyRefused
from fedpca.linalg.dense import sine_of_angle
from processes import HANG_S, Processes, save_rows, until

pytestmark = pytest.mark.process
SITES = ("north", "south", "west")
LANCZOS = partial(FederatedPCA, 3, solver="lanczos", random_state=0)
FIT = """
import sys
from fedpca import FederatedPCA, Federation

address, journal, last = sys.argv[1:]

def on_round(entry):
    print("round", entry["round"], flush=True)
    if entry["round"] == int(last):
        sys.stdin.read()  # until this process is killed

options = {"credentials": "tls", "journal": journal, "on_round": on_round, "secure": True}
with Federation.flower(address, **options) as fed:
    FederatedPCA(3, solver="lanczos", random_state=0).fit(fed)
"""


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A server, and sites that take part only in runs with secure sums among sites they know."""
    folder = tmp_path_factory.mktemp("secure")
    save_rows(folder, SITES, seed=5)
    (folder / "fit.py").write_text(FIT)
    processes = Processes(folder, SITES)
    prints = [processes.fingerprint(site) for site in SITES]
    rules = ['require = ["secure"]', "min_sites = 2", f"peers = {json.dumps(prints)}", "end = true"]
    (folder / "strict.toml").write_text("\n".join(rules) + "\n")
    processes.sites = {site: join(processes, site) for site in SITES}
    processes.federation().close()  # which waits until all are online
    yield processes
    processes.stop_all()


def join(there, site):
    coordinator = ("--coordinator", "tls/coordinator.pub")
    joined = there.join(site, f"{site}.npy", "--policy", "strict.toml", *coordinator)
    until(lambda: "policy: " in there.log(joined), f"the start of {site}")  # then it ends well, too
    return joined


def near_of(there, sites=SITES):
    rows = {site: there.folder / f"{site}.npy" for site in sites}
    return LANCZOS().fit(Federation.local(rows, secure=True))


@pytest.fixture(scope="module")
def near(there):
    """The same fit within this process."""
    return near_of(there)


def same_bits(far, near):
    return (
        far.components_.tobytes() == near.components_.tobytes()
        and far.explained_variance_.tobytes() == near.explained_variance_.tobytes()
    )


def test_a_secure_fit_over_processes_equals_pooled_pca_to_the_bit_of_one_process(there, near):
    where = ("--federation", there.address, "--credentials", "tls", "--wait", str(HANG_S))
    own = ("-k", "3", "--solver", "lanczos", "--seed", "0", "-o", "secure.fedpca")
    there.run("fit", *where, *own, "--secure")
    far = load(there.folder / "secure.fedpca")
    assert same_bits(far, near)
    assert list(far.run_.ledger) == list(near.run_.ledger)
    assert {entry.how for entry in far.run_.ledger} == {"sent", "masked", "seen"}
    pooled = PCA(3).fit(np.vstack([np.load(there.folder / f"{site}.npy") for site in SITES]))
    assert sine_of_angle(pooled.components_.T, far.components_.T) < 1e-8
    np.testing.assert_allclose(far.explained_variance_, pooled.explained_variance_, rtol=1e-8)


def test_sites_that_require_secure_sums_refuse_a_plain_fit(there):
    with (
        there.federation() as fed,
        pytest.raises(PolicyRefused, match=r"site '\w+', .*requires secure sums"),
    ):
        LANCZOS().fit(fed)


@pytest.mark.parametrize("number", [2, 5])
def test_a_site_that_restarts_in_mid_run_masks_as_before(there, near, number):
    def restart(entry):
        if entry["round"] == number:
            there.stop(there.sites["south"], signal.SIGKILL)
            there.sites["south"] = join(there, "south")

    with there.federation(secure=True, on_round=restart) as fed:
        far = LANCZOS().fit(fed)
    assert same_bits(far, near)
    assert far.run_.lost == []


@pytest.mark.parametrize("last", [1, 2, 5])
def test_a_coordinator_that_was_killed_resumes_under_the_same_masks(there, near, last, tmp_path):
    words = [sys.executable, "fit.py", there.address, str(tmp_path / "j"), str(last)]
    options = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    options |= {"cwd": there.folder, "env": there.environment, "text": True}
    with subprocess.Popen(words, **options) as process:
        while process.stdout.readline().strip() != f"round {last}":
            assert process.poll() is None, process.stderr.read()
        process.kill()
    with there.federation(wait=HANG_S, journal=tmp_path / "j", secure=True) as fed:
        far = LANCZOS().fit(fed)
    assert same_bits(far, near)
    assert list(far.run_.ledger) == list(near.run_.ledger)


def test_a_run_goes_on_under_new_masks_without_a_site_that_was_killed(there, monkeypatch):
    def kill(entry):
        if entry["round"] == 3 and there.sites["west"].poll() is None:
            there.stop(there.sites["west"], signal.SIGKILL)
            fed.timeout = 5.0
        elif entry["round"] > 3:
            fed.timeout = HANG_S

    try:
        with there.federation(secure=True, quorum=2, on_round=kill) as fed:
            far = LANCZOS().fit(fed)
    finally:
        there.sites["west"] = join(there, "west")
    assert far.run_.sites == ("north", "south")
    assert [each["site"] for each in far.run_.lost] == ["west"]
    rest = near_of(there, ("north", "south"))
    assert sine_of_angle(rest.components_.T, far.components_.T) < 1e-8
    assert "discarded" in {entry.how for entry in far.run_.ledger}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("half", "no answer within"),
        ("altered", "signature"),
        ("shape", "'west', round 3"),
        ("field:offer=7", "not the offer of a key"),
    ],
)
def test_a_run_goes_on_without_a_site_whose_answers_are_lost_or_wrong(there, kind, reason):
    there.stop(there.sites["west"])
    rogue = there.rogue("west", "west.npy", kind)

    def impatient(entry):
        fed.timeout = 5.0 if entry["round"] == 2 and kind == "half" else HANG_S

    try:
        with there.federation(secure=True, quorum=2, on_round=impatient) as fed:
            far = LANCZOS().fit(fed)
    finally:
        there.stop(rogue)
        there.sites["west"] = join(there, "west")
    assert [each["site"] for each in far.run_.lost] == ["west"]
    assert reason in far.run_.lost[0]["reason"]
    assert sine_of_angle(near_of(there, SITES[:2]).components_.T, far.components_.T) < 1e-8


def test_an_offer_that_was_signed_by_another_key_is_refused_by_name(there):
    there.stop(there.sites["west"])
    rogue = there.rogue("west", "west.npy", "offer")
    try:
        until(lambda: rogue.poll() is None, "a site that lies")
        with (
            there.federation(secure=True) as fed,
            pytest.raises(PolicyRefused, match="the key offered for site 'west' is not signed"),
        ):
            LANCZOS().fit(fed)
    finally:
        there.stop(rogue)
        there.sites["west"] = join(there, "west")
