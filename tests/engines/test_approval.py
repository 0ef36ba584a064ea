"""Sites obey the coordinator whose key they pinned, and ask a person, over real processes."""

from __future__ import annotations

import datetime
import json
import re
import shutil
import signal
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from command_line import told
from fedpca import FederatedPCA, Federation, load
from fedpca.engines import credentials
from fedpca.errors import ApprovalPending, PolicyRefused
from fedpca.protocol.message import compose, decode, encode
from fedpca.protocol.plan import DECLARE, RunPlan
from fedpca.site.requests import MAX_OF_SIGNER
from fedpca.site.store import REQUESTS
from processes import HANG_S, Processes, page_state, save_rows, until

pytestmark = pytest.mark.process
SITES = ("north", "south", "west")
ASKED = ("north", "south")
LANCZOS = partial(FederatedPCA, 3, solver="lanczos", random_state=0)
FIT = ("-k", "3", "--solver", "lanczos", "--seed", "0", "--sites", "north,south")
PINNED = ("--coordinator", "tls/coordinator.pub")


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A server, a site that asks a person and knows one peer, and this peer, which asks nobody."""
    folder = tmp_path_factory.mktemp("approval")
    save_rows(folder, SITES, seed=11)
    processes = Processes(folder, SITES, is_measured=True, served=("--page-at", "0"))
    processes.keys = {site: processes.fingerprint(site) for site in SITES}
    rules = ["approval = true", "min_sites = 2", f'peers = {{south = "{processes.keys["south"]}"}}']
    write_policy(folder / "asking.toml", *rules)
    processes.north = join_north(processes)
    processes.join("south", "south.npy", *PINNED)
    processes.federation(sites=ASKED).close()  # which waits until both are online
    yield processes
    processes.stop_all()


@pytest.fixture(scope="module")
def near(there):
    """The same fit within this process."""
    return LANCZOS().fit(Federation.local({s: there.folder / f"{s}.npy" for s in ASKED}))


def write_policy(path, *rules):
    path.write_text("\n".join([*rules, "end = true"]) + "\n")


def join_north(there):
    return there.join("north", "north.npy", "--policy", "asking.toml", *PINNED)


def start_fit(there, name, *more):
    """Start a fit in a process of its own, and come back once it waits for approval."""
    where = ("--federation", there.address, "--credentials", "tls", "--wait", str(HANG_S))
    long = ("--approval-wait", str(HANG_S), "-o", f"{name}.fedpca", "--force")
    fit = there.start("fit", *where, *long, *FIT, *more)
    until(lambda: "waits for approval at north" in there.log(fit) or fit.poll() is not None)
    assert fit.poll() is None, there.log(fit)
    return fit, re.search(r"run (\w+) waits", there.log(fit))[1]


def page_of(there, process):
    """The address of the page that a process serves, as it says itself."""
    return re.search(r"follow this at (\S+)", there.log(process))[1]


def requests_at(there, site="north"):
    return {
        each["run"]: each
        for each in json.loads(there.run("requests", "--json", "--name", site).stdout)
    }


def age(there, run, days, site="north"):
    """Move the times of a request into the past."""
    store = there.folder / "home" / "sites" / site
    for path in REQUESTS.path(store, site).iterdir():
        given = decode(path.read_bytes()).header
        for name in ("since", "until", "decided"):
            if given["run"] == run and given[name]:
                moved = datetime.datetime.fromisoformat(given[name])
                given[name] = (moved - datetime.timedelta(days=days)).isoformat()
        path.write_bytes(encode(compose(given, {})))


def plan_of(there, run="handmade", **more):
    keys = {site: there.keys[site] for site in ASKED}
    known = {"program": "FederatedPCA", "parameters": {"solver": "covariance"}, "sites": keys}
    return RunPlan(run=run, **{**known, **more})


def declare(fed, plan, site="north", *, signed=None):
    """Declare a plan as a coordinator that lies could, and return the site's error, if any."""
    header = {"run": f"{plan.run}.0", "round": 0, "question": DECLARE, "verb": "gather"}
    arrays = {"plan": np.frombuffer(plan.to_bytes(), np.uint8)}
    signature = fed.engine.sign((signed or plan).statement)
    arrays["signature"] = np.frombuffer(signature, np.uint8)
    message = compose({**header, "n_sites": len(plan.sites), "memory": 0}, arrays)
    ((_, reply),) = fed.engine.ask([site], message, HANG_S)
    answer = decode(reply).header
    return answer.get("error"), answer.get("text")


def same_bits(far, near):
    return far.components_.tobytes() == near.components_.tobytes()


def test_a_fit_begins_once_a_person_has_approved_it(there, near):
    more = ("--purpose", "a study of \x1b[2J hearts", "--page-at", "0")
    fit, run = start_fit(there, "approved", *more)
    state = page_state(page_of(there, fit))
    assert state["state"] == "Waiting for approval"
    assert run in state["what"]
    words = {name: word for name, word, *_ in state["sites"]["rows"]}
    assert words == {"north": "must approve", "south": "online"}
    served = page_of(there, there.server)
    until(lambda: page_state(served)["sites"]["counts"] == "2 of 3 online", "two sites on the page")
    assert state["title"] == "approved.fedpca"
    request = requests_at(there)[run]
    assert request["state"] == "pending"
    assert request["purpose"] == "a study of \x1b[2J hearts"
    assert (request["program"], request["solver"]) == ("FederatedPCA", "lanczos")
    assert request["sites"] == {site: there.keys[site] for site in ASKED}
    pinned = credentials.read_coordinator_public(there.credentials / "coordinator.pub")
    assert request["signer"] == credentials.fingerprint(pinned)
    shown = there.run("requests", "--name", "north").stdout
    assert "\x1b" not in shown
    assert "a study of \\x1b[2J hearts" in shown
    assert f"run {run} asks for approval: FederatedPCA" in there.log(there.north)
    approved = told(there.run("approve", run[:6], "--name", "north"))
    assert (approved["run"], approved["state"]) == (run, "approved")
    assert fit.wait(HANG_S) == 0, there.log(fit)
    lines = there.log(fit).splitlines()
    assert sum("waits for approval" in line for line in lines) == 1
    assert f"run {run} was approved at all sites" in lines
    assert same_bits(load(there.folder / "approved.fedpca"), near)
    assert requests_at(there)[run]["state"] == "approved"


def test_a_denied_fit_ends_with_the_reason(there):
    fit, run = start_fit(there, "denied")
    there.run("deny", run, "--reason", "no ethics vote", "--name", "north")
    assert fit.wait(HANG_S) == 1
    assert "no ethics vote" in there.log(fit)
    assert requests_at(there)[run]["state"] == "denied"
    again = there.run("approve", run, "--name", "north", check=False)
    assert again.returncode == 2
    assert "must begin a new run and ask again" in again.stderr
    with there.federation(sites=ASKED) as fed:
        assert "no ethics vote" in declare(fed, plan_of(there, run))[1]


def test_a_fit_with_a_quorum_goes_on_without_a_site_where_it_was_denied(there):
    fit, run = start_fit(there, "without", "--quorum", "1")
    there.run("deny", run, "--reason", "no ethics vote", "--name", "north")
    assert fit.wait(HANG_S) == 0, there.log(fit)
    model = load(there.folder / "without.fedpca")
    assert model.run_.sites == ("south",)
    (loss,) = model.run_.lost
    assert loss["site"] == "north"
    assert "no ethics vote" in loss["reason"]
    stopping = ("--quorum", "1", "--on-refusal", "stop")
    fit, run = start_fit(there, "stopped", *stopping)
    there.run("deny", run, "--reason", "no ethics vote", "--name", "north")
    assert fit.wait(HANG_S) == 1
    assert "no ethics vote" in there.log(fit)


def test_requests_and_approvals_expire_and_can_be_asked_again(there, near):
    journal = there.folder / "expiry.journal"

    def fit():
        with there.federation(sites=ASKED, journal=journal) as fed:
            return LANCZOS().fit(fed)

    def pending_run():
        with pytest.raises(ApprovalPending, match="not approved within 0 s at north") as error:
            fit()
        return re.search(r"fedpca approve (\w+)", str(error.value))[1]

    run = pending_run()
    age(there, run, 8)
    assert requests_at(there)[run]["state"] == "expired"
    late = there.run("approve", run, "--name", "north", check=False)
    assert late.returncode == 2
    assert "expired" in late.stderr
    assert pending_run() == run  # asks anew
    there.run("approve", run, "--name", "north")
    age(there, run, 8)
    assert pending_run() == run  # the approval is over, too
    there.run("approve", run, "--name", "north")
    assert same_bits(fit(), near)


def test_a_site_that_restarts_keeps_requests_and_approvals(there, near):
    fit, run = start_fit(there, "restarted")
    there.stop(there.north, signal.SIGKILL)
    assert requests_at(there)[run]["state"] == "pending"
    there.run("approve", run, "--name", "north")
    there.north = join_north(there)
    assert fit.wait(HANG_S) == 0, there.log(fit)
    assert same_bits(load(there.folder / "restarted.fedpca"), near)


def test_a_coordinator_that_was_killed_while_it_waited_continues_the_same_run(there, near):
    fit, run = start_fit(there, "killed", "--journal", "killed.journal")
    there.stop(fit, signal.SIGKILL)
    again, same = start_fit(there, "killed", "--journal", "killed.journal")
    assert same == run
    there.run("approve", run, "--name", "north")
    assert again.wait(HANG_S) == 0, there.log(again)
    assert same_bits(load(there.folder / "killed.fedpca"), near)


def test_other_fits_use_the_other_sites_while_one_waits(there, near):
    fit, run = start_fit(there, "meanwhile")
    with there.federation(sites=["south"]) as fed:
        LANCZOS().fit(fed)
    there.run("approve", run, "--name", "north")
    assert fit.wait(HANG_S) == 0, there.log(fit)
    assert same_bits(load(there.folder / "meanwhile.fedpca"), near)


def other_credentials(there, name):
    """Return a folder with the secret and the authority, but without the coordinator's key."""
    folder = there.folder / name
    folder.mkdir()
    for file in ("ca.pem", "coordinator.secret"):
        shutil.copy(there.credentials / file, folder)
    return folder


def test_an_unsigned_plan_is_refused(there):
    folder = other_credentials(there, "unsigned")
    options = {"sites": ["south"], "wait": HANG_S, "timeout": HANG_S}
    with (
        Federation.flower(there.address, credentials=folder, **options) as fed,
        pytest.raises(PolicyRefused, match=r"site 'south', .*the plan is not signed"),
    ):
        LANCZOS().fit(fed)


def test_a_plan_signed_by_another_key_is_refused_by_its_fingerprint(there):
    folder = other_credentials(there, "forged")
    forged = credentials.fingerprint(credentials.make_coordinator_key(folder).public_key())
    pinned = credentials.fingerprint(
        credentials.read_coordinator_public(there.credentials / "coordinator.pub")
    )
    options = {"sites": ["south"], "wait": HANG_S, "timeout": HANG_S}
    expected = f"signed by the key with fingerprint {forged}, but the site has pinned .* {pinned}"
    with (
        Federation.flower(there.address, credentials=folder, **options) as fed,
        pytest.raises(PolicyRefused, match=expected),
    ):
        LANCZOS().fit(fed)


def test_a_forged_roster_is_refused(there):
    keys = {site: there.keys[site] for site in ASKED}
    with there.federation(sites=ASKED) as fed:
        kind, text = declare(fed, plan_of(there, sites={**keys, "north": "f" * 64}))
        assert kind == "PolicyRefused"
        assert f"'north' with the key {there.keys['north']}" in text
        kind, text = declare(fed, plan_of(there, sites={"south": keys["south"], "x": "f" * 64}))
        assert "does not list this site" in text
        kind, text = declare(fed, plan_of(there, sites={**keys, "phantom": "f" * 64}))
        assert "not in the policy's peers: phantom" in text
        kind, text = declare(fed, plan_of(there, sites={"north": keys["north"]}))
        assert "min_sites=2" in text
        kind, text = declare(fed, plan_of(there, "signed"), signed=plan_of(there, "other"))
        assert "signature is not valid" in text
    assert not {"handmade", "signed"} & set(requests_at(there))


def test_a_plan_that_changes_after_its_approval_is_refused(there):
    plan = plan_of(there, "changing")
    with there.federation(sites=ASKED) as fed:
        assert declare(fed, plan)[0] == "ApprovalPending"
        there.run("approve", "changing", "--name", "north")
        assert declare(fed, plan) == (None, None)
        for changed in (
            replace(plan, purpose="a different one"),
            replace(plan, parameters={"solver": "lanczos"}),
        ):
            kind, text = declare(fed, changed)
            assert (kind, "a different plan before" in text) == ("PolicyRefused", True)
        assert declare(fed, plan) == (None, None)


def test_an_approval_holds_for_no_fewer_sites_than_the_person_read(there):
    write_policy(there.folder / "alone.toml", "approval = true")
    west = there.join("west", "west.npy", "--policy", "alone.toml", *PINNED)
    with there.federation(sites=["west"]) as fed:
        both = {"north": there.keys["north"], "west": there.keys["west"]}
        plan = plan_of(there, "shrinking", sites=both)
        assert declare(fed, plan, "west")[0] == "ApprovalPending"
        shown = there.run("requests", "--name", "west").stdout
        assert "2 (the run may go on with so many sites)" in shown
        assert requests_at(there, "west")["shrinking"]["quorum"] == 2
        there.run("approve", "shrinking", "--name", "west")
        assert declare(fed, plan, "west") == (None, None)
        alone = {"west": there.keys["west"]}
        for fewer in (replace(plan, sites=alone), replace(plan, sites=alone, quorum=1)):
            kind, text = declare(fed, fewer, "west")
            assert (kind, "a different plan before" in text) == ("PolicyRefused", True)
    there.stop(west)


def test_a_flood_of_requests_crowds_out_nobody_else_and_an_unpinned_site_says_so(there):
    write_policy(there.folder / "flooded.toml", "approval = true")
    west = there.join("west", "west.npy", "--policy", "flooded.toml")
    folder = other_credentials(there, "flooding")
    credentials.make_coordinator_key(folder)
    options = {"sites": ["west"], "wait": HANG_S, "timeout": HANG_S}
    plan = plan_of(there, sites={"west": there.keys["west"]})
    with there.federation(sites=["west"]) as fed:
        assert declare(fed, replace(plan, run="honest"), "west")[0] == "ApprovalPending"
    with Federation.flower(there.address, credentials=folder, **options) as fed:
        for i in range(MAX_OF_SIGNER + 3):
            kind, _ = declare(fed, replace(plan, run=f"flood{i}"), "west")
            assert kind == "ApprovalPending"
    found = requests_at(there, "west")
    assert "honest" in found
    assert sum(name.startswith("flood") for name in found) == MAX_OF_SIGNER
    with there.federation(sites=["west"]) as fed:
        there.run("approve", "honest", "--name", "west")
        assert declare(fed, replace(plan, run="honest"), "west") == (None, None)
    assert there.log(west).count("anyone with the server's secret can declare runs here") == 1
    there.stop(west)


def test_a_stranger_cannot_ask_a_site_that_has_pinned_a_coordinator(there):
    before = requests_at(there)
    folder = other_credentials(there, "stranger")
    credentials.make_coordinator_key(folder)
    options = {"sites": ["north"], "wait": HANG_S, "timeout": HANG_S}
    with Federation.flower(there.address, credentials=folder, **options) as fed:
        kind, text = declare(fed, plan_of(there, "strange"))
    assert (kind, "has pinned the coordinator's key" in text) == ("PolicyRefused", True)
    assert requests_at(there) == before


@pytest.mark.parametrize(
    ("rule", "options", "said"),
    [
        ("min_sites = 2", (), "a coordinator could invent sites"),
        ('allow = ["any"]', PINNED, "--coordinator has no effect"),
        ("approval = 1", (), "approval=1 must be true or false"),
        ('peers = ["abc"]', (), "must be a list of fingerprints"),
        ("approval = true", ("--coordinator", "west.pub"), "not a coordinator's public key"),
    ],
)
def test_a_site_does_not_start_with_rules_that_would_not_hold(there, rule, options, said):
    write_policy(there.folder / "wrong.toml", rule)
    own = ("--data", "west.npy", "--key", "west.key", "--ca", "tls/ca.pem")
    done = there.run_apart(
        "join", there.address, *own, "--policy", "wrong.toml", *options, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr
