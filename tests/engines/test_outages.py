"""Outages that pass end no journaled run for good, and fits at the same time do not end each other."""

from __future__ import annotations

import getpass
import json
import os
import resource
import signal
import ssl
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import httpx
import pytest

import forked
from fedpca import FederatedPCA, Federation, load
from fedpca.engines.credentials import read_secret
from fedpca.engines.flower.connection import access_token
from fedpca.engines.flower.reservations import HOLD_PATH, TOKEN
from fedpca.errors import QuorumLost, SitesBusy
from processes import HANG_S, Processes, save_rows, until

pytestmark = pytest.mark.process
SITES = ("north", "south")
LANCZOS = partial(FederatedPCA, 3, solver="lanczos", random_state=0)  # of several rounds
FIT = """
import sys
from fedpca import FederatedPCA, Federation

address, journal = sys.argv[1:]

def on_round(entry):
    print("round", entry["round"], flush=True)
    if entry["round"] == 4:
        sys.stdin.read()  # until this process is killed

with Federation.flower(address, credentials="tls", journal=journal, on_round=on_round) as fed:
    FederatedPCA(3, solver="lanczos", random_state=0).fit(fed)
"""


AGREED = ("--policy", "agreed.toml")


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A server and two sites; the second keeps its memory and its ledger on a disk of its own."""
    folder = tmp_path_factory.mktemp("outages")
    save_rows(folder, SITES, seed=7)
    (folder / "fit.py").write_text(FIT)
    (folder / "disk").mkdir()
    is_mounted = _mount(folder / "disk")
    processes = Processes(folder, SITES)
    processes.disk = folder / "disk" if is_mounted else None
    (folder / "agreed.toml").write_text("gather = true\nend = true\n")
    processes.north = processes.join("north", "north.npy", *AGREED)
    processes.south = processes.join("south", "south.npy", "--folder", "disk", *AGREED)
    processes.federation().close()  # which waits until both are online
    yield processes
    processes.stop_all()
    if is_mounted:
        subprocess.run(["umount", str(folder / "disk")], check=True)


def _mount(folder):
    """Mount a small disk, where this process may."""
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.fixture(scope="module")
def near(there):
    """The same fit within this process."""
    return LANCZOS().fit(Federation.local({s: there.folder / f"{s}.npy" for s in SITES}))


def same_bits(far, near):
    return (
        far.components_.tobytes() == near.components_.tobytes()
        and far.explained_variance_.tobytes() == near.explained_variance_.tobytes()
        and list(far.run_.ledger) == list(near.run_.ledger)
    )


def rounds_of_last_run(there):
    """The rounds that north was asked in the last run, in order."""
    path = there.folder / "home" / "sites" / "north" / "ledger.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line["round"] for line in lines if line["run"] == lines[-1]["run"]]


@contextmanager
def stopped(there):
    """A process that stands still."""
    there.south.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        there.south.send_signal(signal.SIGCONT)


@contextmanager
def full_disk(there):
    """A disk without room for another byte."""
    if there.disk is None:
        pytest.skip("this process may not mount a disk")
    filling = there.disk / "filling"
    with filling.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        filling.unlink()


@contextmanager
def no_byte_more(there):
    """No file can grow, neither the memory and the ledger nor the log of the process."""
    limits = resource.prlimit(there.south.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(there.south.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(there.south.pid, resource.RLIMIT_FSIZE, limits)


UNWRITABLE = "the site cannot save its (ledger|memory)"


@pytest.mark.parametrize(
    ("outage", "text"),
    [
        (stopped, "no answer within 1 s"),
        # the last page of the ledger may or may not have room for another line
        (full_disk, UNWRITABLE),
        (no_byte_more, UNWRITABLE),
    ],
    ids=["stop", "disk full", "file limit"],
)
def test_a_run_that_an_outage_of_a_site_ended_goes_on_after_it(there, near, outage, text, tmp_path):
    journal, lasting = tmp_path / "j", ExitStack()

    def on_round(entry):
        if entry["round"] == 2 and not outages:
            outages.append(lasting.enter_context(outage(there)))
            if outage is stopped:
                fed.timeout = 1.0

    outages = []
    with lasting, there.federation(journal=journal, on_round=on_round) as fed:
        for _ in range(2):  # resumed too early, it ends again
            with pytest.raises(QuorumLost, match=rf"site 'south', round [03].*({text})"):
                LANCZOS().fit(fed)
    with there.federation(journal=journal) as fed:
        far = LANCZOS().fit(fed)
    assert same_bits(far, near)
    assert far.run_.lost == []
    assert there.south.poll() is None
    asked = rounds_of_last_run(there)
    assert asked.count(1) == asked.count(2) == 1


@contextmanager
def fitting(there, **options):
    """A fit that stands still after its second round until the block sets what it is given."""
    model, errors, go_on, stands = LANCZOS(), [], threading.Event(), threading.Event()

    def on_round(entry):
        if entry["round"] == 2:
            stands.set()
            go_on.wait(HANG_S)

    def fit():
        try:
            with there.federation(on_round=on_round, **options) as fed:
                model.fit(fed)
        except Exception as error:
            errors.append(error)
            stands.set()

    thread = threading.Thread(target=fit)
    thread.start()
    try:
        stands.wait(HANG_S)
        yield model, go_on
    finally:
        go_on.set()
        thread.join(HANG_S)
    assert not errors
    assert not thread.is_alive()


def words_of_fit(there, output, *more):
    return (
        *("fit", "--federation", there.address, "--credentials", "tls", "-k", "3"),
        *("--solver", "lanczos", "--seed", "0", "-o", output, *more),
    )


def test_a_second_fit_is_refused_with_who_holds_the_sites_and_the_first_goes_on(there, near):
    with fitting(there) as (first, _):
        second = there.run_apart(*words_of_fit(there, "no.fedpca", "--wait", "1"), check=False)
        with there.federation(wait=1, sites=["south"]) as third, pytest.raises(SitesBusy) as busy:
            FederatedPCA(2).fit(third)
    assert second.returncode == 1
    assert (
        "failed: after 1 s, a different run is still using north, south; it was started by "
        in second.stderr
    )
    assert f"(process {os.getpid()}, since " in second.stderr
    assert "a different run is still using south; it was started by " in str(busy.value)
    assert same_bits(first, near)


def test_a_second_fit_waits_until_the_first_ends(there, near):
    with fitting(there) as (first, go_on):
        words = words_of_fit(there, "second.fedpca", "--wait", str(HANG_S))
        second = there.start(*words)
        turned_away = f"(process {second.pid}, since "
        until(lambda: turned_away in there.log(there.server), "a fit that has to wait")
        go_on.set()
        assert second.wait(HANG_S) == 0
    assert same_bits(first, near)
    assert same_bits(load(there.folder / "second.fedpca"), near)


def test_fits_on_different_sites_run_at_the_same_time(there):
    with (
        fitting(there, sites=["north"]),
        there.federation(wait=1, sites=["south"]) as second,
    ):
        assert LANCZOS().fit(second).run_.sites == ("south",)


@contextmanager
def fitting_in_a_process(there, journal):
    """A process whose fit stands still after its fourth round until its input ends."""
    words = [sys.executable, "fit.py", there.address, str(journal)]
    options = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    options |= {"cwd": there.folder, "env": there.environment, "text": True}
    with forked.Popen(words, **options) as process:
        try:
            while process.stdout.readline().strip() != "round 4":
                assert process.poll() is None
            yield process
        finally:
            process.kill()


@pytest.fixture
def killed(there, tmp_path):
    """The journal of a fit that was killed after its fourth round."""
    journal = tmp_path / "killed.journal"
    with fitting_in_a_process(there, journal) as process:
        process.kill()
        process.wait(HANG_S)
    return journal


def test_a_fit_that_was_killed_is_resumed_at_once(there, near, killed):
    with there.federation(wait=0, journal=killed) as fed:
        far = LANCZOS().fit(fed)
    assert same_bits(far, near)


def test_sites_of_a_fit_that_was_killed_are_free_after_a_while(there, near, killed):
    with there.federation() as fed:
        far = LANCZOS().fit(fed)
    assert same_bits(far, near)


def test_a_fit_that_stood_still_for_too_long_does_not_end_the_one_after_it(there, near, tmp_path):
    with fitting_in_a_process(there, tmp_path / "j") as first:
        first.send_signal(signal.SIGSTOP)
        with fitting(there) as (second, _):  # which waits until the sites are free
            first.send_signal(signal.SIGCONT)
            _, errors = first.communicate(timeout=HANG_S)
    assert first.returncode == 1
    assert f"using north, south; it was started by {getpass.getuser()} on" in errors
    assert same_bits(second, near)


def test_only_holders_of_the_secret_reserve_sites(there):
    ca = ssl.create_default_context(cafile=there.credentials / "ca.pem")
    wanted = {"run": "r", "sites": ["north"], "holder": "a stranger"}
    token = access_token(read_secret(there.credentials))
    with httpx.Client(base_url=f"https://{there.address}", verify=ca) as client:
        asked = [
            client.post(HOLD_PATH, json=wanted),
            client.post(HOLD_PATH, json=wanted, headers={TOKEN: "guess"}),
            client.post(HOLD_PATH, json=[], headers={TOKEN: token}),
        ]
    assert [answer.status_code for answer in asked] == [401, 401, 400]
