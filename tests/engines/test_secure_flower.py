"""Secure sums over real processes: the same bits, and no outage or lie goes unnoticed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from sklearn.decomposition import PCA

import forked
from command_line import told
from fedpca import FederatedPCA, Federation, load
from fedpca.engines.base import EngineWrapper
from fedpca.errors import MessageError, PolicyRefused, QuorumLost
from fedpca.linalg.dense import sine_of_angle
from fedpca.protocol.message import compose, decode
from fedpca.protocol.plan import DECLARE, RunPlan
from processes import HANG_S, LATE_S, Processes, save_rows, until

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
    for site in SITES:  # no other test is about two sites with west
        least = 3 if site == "west" else 2
        rules = ['require = ["secure"]', f"min_sites = {least}", f"peers = {json.dumps(prints)}"]
        rules.append("end = true")
        (folder / f"{site}.toml").write_text("\n".join(rules) + "\n")
    processes.sites = {site: join(processes, site) for site in SITES}
    processes.federation().close()  # which waits until all are online
    yield processes
    processes.stop_all()


def join(there, site):
    coordinator = ("--coordinator", "tls/coordinator.pub")
    joined = there.join(site, f"{site}.npy", "--policy", f"{site}.toml", *coordinator)
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


def test_a_model_is_certified_or_its_drift_named_at_sites_that_are_closed_by_default(there, near):
    where = ("--federation", there.address, "--credentials", "tls", "--wait", str(HANG_S))
    near.save(there.folder / "near.fedpca")
    done = there.run("verify", "near.fedpca", *where, "--secure", "--by-site")
    assert told(done)["verdict"].startswith("certified: the sine of the angle")
    assert (told(done)["sites"], told(done)["rounds"]) == ("3", "4")
    rows = {site: np.load(there.folder / f"{site}.npy") for site in SITES}
    rows["west"][:5, 2] += 1.0  # 5 % of the rows of a site were others when the model was fitted
    LANCZOS().fit(rows).save(there.folder / "before.fedpca")
    done = there.run("verify", "before.fedpca", *where, "--secure", check=False)
    assert done.returncode == 1
    assert "drifted: " in done.stdout
    assert "mean along 'column 2' changed by" in done.stdout


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
    with forked.Popen(words, **options) as process:
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
            fed.terms.timeout = LATE_S
        elif entry["round"] > 3:
            fed.terms.timeout = HANG_S

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
        ("offer", "the key offered for site 'west' is not signed by that site"),
        ("low", "the key offered for site 'west' has a low order"),
    ],
)
def test_a_run_goes_on_without_a_site_whose_answers_are_lost_or_wrong(there, kind, reason):
    there.stop(there.sites["west"])
    rogue = there.rogue("west", "west.npy", kind)

    def impatient(entry):
        fed.terms.timeout = LATE_S if entry["round"] == 2 and kind == "half" else HANG_S

    try:
        with there.federation(secure=True, quorum=2, on_round=impatient) as fed:
            far = LANCZOS().fit(fed)
    finally:
        there.stop(rogue)
        there.sites["west"] = join(there, "west")
    assert [each["site"] for each in far.run_.lost] == ["west"]
    assert reason in far.run_.lost[0]["reason"]
    assert sine_of_angle(near_of(there, SITES[:2]).components_.T, far.components_.T) < 1e-8


class Lying(EngineWrapper):
    """A real engine of a coordinator that lies: it changes what some sites are told, or say."""

    def __init__(self, engine, tell=None, hear=None):
        super().__init__(engine)
        self._tell = tell or (lambda site, request: request)
        self._hear = hear or (lambda site, request, reply: reply)

    def ask(self, names, request, timeout):
        told = {name: self._tell(name, request) for name in names}
        for message in {id(each): each for each in told.values()}.values():
            group = [name for name in names if told[name] is message]
            # all of them first, since a liar may ask again, and an engine asks one thing at a time
            for site, reply in list(self.engine.ask(group, message, timeout)):
                yield site, self._hear(site, message, reply)


def fit_lying(there, tell=None, hear=None, **options):
    with there.federation(secure=True, **options) as fed:
        fed.terms.engine = Lying(fed.engine, tell, hear)
        return LANCZOS().fit(fed)


def test_an_offer_that_is_replayed_from_an_earlier_run_is_refused(there, near):
    earlier = []

    def keep(site, request, reply):
        if request.header["question"] == DECLARE and site == "west":
            earlier.append(decode(reply).arrays["offer"])
        return reply

    assert same_bits(fit_lying(there, hear=keep), near)

    def replay(site, request, reply):
        if request.header["question"] != DECLARE or site != "west":
            return reply
        message = decode(reply)
        assert message.arrays["offer"].tobytes() != earlier[0].tobytes()
        return compose(message.header, {"offer": earlier[0]})

    with pytest.raises(QuorumLost, match="'west' is not signed by that site") as refused:
        fit_lying(there, hear=replay)
    for site in ("north", "south"):  # which do nothing wrong
        assert f"site '{site}'" not in str(refused.value)


def test_a_site_that_does_not_exist_is_refused_by_sites_that_know_their_peers(there):
    def invent(site, request):
        if request.header["question"] != DECLARE:
            return request
        plan = RunPlan.from_bytes(request.arrays["plan"].tobytes())
        plan = replace(plan, sites={**plan.sites, "ghost": "0" * 64})
        signature = signs[0](plan.statement)
        texts = {"plan": plan.to_bytes(), "signature": signature}
        arrays = {name: np.frombuffer(text, np.uint8) for name, text in texts.items()}
        return compose(request.header, arrays)

    with there.federation(secure=True) as fed:
        signs = [fed.engine.sign]
        fed.terms.engine = Lying(fed.engine, invent)
        with pytest.raises(PolicyRefused, match="not in the policy's peers: ghost") as refused:
            LANCZOS().fit(fed)
    assert all(f"site '{site}'" in str(refused.value) for site in SITES)


def test_a_roster_of_two_is_refused_by_a_site_that_wants_three(there):
    with (
        there.federation(secure=True, sites=["north", "west"]) as fed,
        pytest.raises(PolicyRefused, match=r"site 'west', round 0.*min_sites=3"),
    ):
        LANCZOS().fit(fed)


def changed(request):
    """The same round of the same run, with other numbers."""
    arrays = {k: v[:, ::-1].copy() if v.ndim == 2 else v for k, v in request.arrays.items()}
    return compose(request.header, arrays)


def test_a_round_that_is_asked_again_with_other_numbers_gets_the_same_bytes(there, near):
    pairs = []

    def ask_again(site, request, reply):
        if request.header["round"] == 5 and site == "north":
            ((_, again),) = engine.ask([site], changed(request), HANG_S)
            pairs.append([decode(each).arrays["Y"].tobytes() for each in (reply, again)])
        return reply

    with there.federation(secure=True) as fed:
        engine = fed.engine
        fed.terms.engine = Lying(engine, hear=ask_again)
        far = LANCZOS().fit(fed)
    ((first, second),) = pairs
    assert first == second
    assert same_bits(far, near)


def test_sites_that_are_asked_different_questions_in_a_round_send_no_total(there):
    def tell(site, request):
        return changed(request) if request.header["round"] == 5 and site == "north" else request

    with pytest.raises(MessageError, match="the masks of the sites do not cancel"):
        fit_lying(there, tell)
