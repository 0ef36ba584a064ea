"""A site asks a person about a run, remembers the answer, and holds the run to what was approved."""

from __future__ import annotations

import datetime
import stat
from dataclasses import replace

import numpy as np
import pytest

from disks import full_disk
from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.coordinator import approval
from fedpca.errors import (
    ApprovalPending,
    InputError,
    JournalError,
    MessageError,
    PolicyRefused,
    SiteFailed,
)
from fedpca.protocol.message import compose, decode, encode
from fedpca.protocol.plan import DECLARE, RunPlan
from fedpca.site import requests as module
from fedpca.site.gate import Gate
from fedpca.site.guard import Keys
from fedpca.site.requests import Requests
from fedpca.site.store import REQUESTS

NORTH, SOUTH, WEST, LIAR = (digit * 64 for digit in "abcd")
ROSTER = {"north": NORTH, "south": SOUTH, "west": WEST}
PLAN = RunPlan("run1", "FederatedPCA", {"solver": "covariance"}, ROSTER, "a study")


@pytest.fixture
def told():
    return []


@pytest.fixture
def requests(tmp_path, told):
    return Requests(tmp_path / "requests", 7, told.append)


def ask(requests, plan=PLAN, signer="key"):
    with pytest.raises(ApprovalPending):
        requests.check(plan, signer)


def only_file(requests):
    (path,) = requests._folder.iterdir()
    return path


def age(requests, days):
    """Move the times in all files into the past."""
    for path in requests._folder.iterdir():
        given = decode(path.read_bytes()).header
        for name in ("since", "until", "decided"):
            if given[name]:
                moved = datetime.datetime.fromisoformat(given[name])
                given[name] = (moved - datetime.timedelta(days=days)).isoformat()
        path.write_bytes(encode(compose(given, {})))


def test_a_run_waits_until_a_person_approves_it(requests, told):
    ask(requests)
    ask(requests)
    assert len(told) == 1
    assert "FederatedPCA" in told[0]
    assert "a study" in told[0]
    requests.approve(requests.named("run1"))
    requests.check(PLAN, "key")
    requests.refuse_undecided("run1")


def test_a_denied_run_is_refused_with_the_reason_and_cannot_be_asked_again(requests):
    ask(requests)
    requests.deny(requests.named("run1"), "no ethics vote")
    with pytest.raises(PolicyRefused, match=r"denied run run1 on .*: no ethics vote") as refusal:
        requests.check(PLAN, "key")
    assert not isinstance(refusal.value, ApprovalPending)
    age(requests, 1000)
    with pytest.raises(PolicyRefused, match="no ethics vote"):
        requests.check(PLAN, "key")
    with pytest.raises(InputError, match="was denied on"):
        requests.approve(requests.named("run1"))


def test_an_approval_can_be_taken_back(requests):
    ask(requests)
    requests.deny(requests.approve(requests.named("run1")))
    with pytest.raises(PolicyRefused, match="denied run run1"):
        requests.refuse_undecided("run1")


def test_requests_and_approvals_expire(requests, told):
    ask(requests)
    age(requests, 8)
    assert [each.state for each in requests.all()] == ["expired"]
    with pytest.raises(InputError, match=r"expired on .*; the coordinator must ask again"):
        requests.approve(requests.named("run1"))
    ask(requests)  # asks anew
    assert len(told) == 2
    requests.approve(requests.named("run1"))
    age(requests, 6)
    requests.check(PLAN, "key")
    age(requests, 2)
    with pytest.raises(PolicyRefused, match="no valid approval at this site"):
        requests.refuse_undecided("run1")
    ask(requests)
    assert requests.named("run1").state == "pending"


@pytest.mark.parametrize(("quorum", "fewest"), [(None, 3), (3, 3), (2, 2), (1, 1)])
def test_an_approval_covers_no_fewer_sites_than_the_quorum_that_the_person_read(
    requests, told, quorum, fewest
):
    plan = replace(PLAN, quorum=quorum)
    ask(requests, plan)
    assert f"over 3 sites, of which {fewest} suffice" in told[0]
    requests.approve(requests.named("run1"))
    for sites in (ROSTER, {"north": NORTH, "west": WEST}, {"north": NORTH}):
        if len(sites) >= fewest:
            requests.check(replace(plan, sites=sites), "key")
        else:
            with pytest.raises(PolicyRefused, match="a different plan before") as refusal:
                requests.check(replace(plan, sites=sites), "key")
            assert not isinstance(refusal.value, ApprovalPending)


def test_a_run_that_loses_more_sites_than_the_quorum_allows_needs_a_new_approval(requests):
    ask(requests, replace(PLAN, quorum=2))
    requests.approve(requests.named("run1"))
    alone = replace(PLAN, sites={"north": NORTH}, quorum=1)
    with pytest.raises(PolicyRefused, match="a different plan before"):
        requests.check(alone, "key")
    ask(requests, replace(alone, run="run2"))  # a new run, which a person reads again
    with pytest.raises(PolicyRefused, match="no valid approval"):
        requests.refuse_undecided("run2")


def test_a_plan_with_an_impossible_quorum_is_refused():
    for quorum in (0, 4, -1, 1.5, True, "2"):
        with pytest.raises(MessageError, match="quorum"):
            RunPlan.from_bytes(replace(PLAN, quorum=quorum).to_bytes())


def test_an_approval_covers_fewer_of_the_same_sites_and_nothing_else(requests):
    lasting = replace(PLAN, quorum=2)
    ask(requests, lasting)
    requests.approve(requests.named("run1"))
    requests.check(replace(lasting, sites={"north": NORTH, "west": WEST}), "key")
    for changed in (
        replace(PLAN, quorum=1),
        replace(lasting, sites={**ROSTER, "east": LIAR}),
        replace(lasting, sites={**ROSTER, "west": LIAR}),
        replace(lasting, sites={"north": NORTH, "east": WEST}),
        replace(lasting, purpose="another study"),
        replace(lasting, program="RobustPCA"),
        replace(lasting, parameters={"solver": "lanczos"}),
    ):
        with pytest.raises(PolicyRefused, match="a different plan before") as refusal:
            requests.check(changed, "key")
        assert not isinstance(refusal.value, ApprovalPending)
    with pytest.raises(PolicyRefused, match="a different plan before"):
        requests.check(lasting, "another key")


def test_a_pending_plan_cannot_be_swapped_before_a_person_approves_it(requests):
    ask(requests)
    with pytest.raises(PolicyRefused, match="a different plan before"):
        requests.check(replace(PLAN, program="RobustPCA"), "key")
    assert requests.named("run1").declared.program == "FederatedPCA"


@pytest.mark.parametrize("run", ["../../evil", "a/b", "\x1b[2J", "\ud800", "..", "x" * 100, "CON"])
def test_any_name_of_a_run_gives_a_file_within_the_folder_and_harmless_text(requests, told, run):
    ask(requests, replace(PLAN, run=run, purpose="\x1b]0;evil\x07\u202e", program="P\n"))
    path = only_file(requests)
    assert path.parent == requests._folder
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert all(line.isprintable() for line in told)
    assert requests.approve(requests.named(module.printable(run))).run == run


def test_a_run_is_named_by_a_unique_beginning(requests):
    for run in ("abc1", "abd1", "abd"):
        ask(requests, replace(PLAN, run=run))
    assert requests.named("abc").run == "abc1"
    assert requests.named("abd").run == "abd"
    with pytest.raises(InputError, match="3 runs have a name that begins with 'ab'"):
        requests.named("ab")
    with pytest.raises(InputError, match=r"no run has .* 'x'; the runs are: ab"):
        requests.named("x")
    with pytest.raises(InputError, match="no run has"):
        requests.named("")


def spaced(requests):
    """Move all times into the past by a second, since files keep whole seconds."""
    age(requests, 1 / 86400)


def runs_of(requests, state="pending"):
    return [each.run for each in requests.all() if each.state == state]


@pytest.mark.parametrize("flooder", ["liar", ""])
def test_a_signer_that_floods_a_site_crowds_out_only_its_own_requests(requests, flooder):
    ask(requests, replace(PLAN, run="honest"))
    spaced(requests)
    ask(requests, replace(PLAN, run="approved"), flooder)
    requests.approve(requests.named("approved"))
    for i in range(module.MAX_OF_SIGNER + 5):
        spaced(requests)
        ask(requests, replace(PLAN, run=f"flood{i:02d}"), flooder)
    expected = [f"flood{i:02d}" for i in range(5, module.MAX_OF_SIGNER + 5)]
    assert runs_of(requests) == ["honest", *expected]  # the oldest made room
    assert runs_of(requests, "approved") == ["approved"]
    ask(requests, replace(PLAN, run="honest"))  # is known, and waits as before
    spaced(requests)
    ask(requests, replace(PLAN, run="honest2"))
    assert "honest2" in runs_of(requests)


def test_a_flood_with_many_keys_is_bounded_and_spares_signers_that_were_approved(requests):
    ask(requests, replace(PLAN, run="earlier"))
    requests.approve(requests.named("earlier"))
    ask(requests, replace(PLAN, run="honest"))
    for i in range(module.MAX_OF_STRANGERS + 5):
        ask(requests, replace(PLAN, run=f"flood{i:02d}"), f"key{i}")
    assert len(runs_of(requests)) == module.MAX_OF_STRANGERS + 1
    assert "honest" in runs_of(requests)
    assert runs_of(requests, "approved") == ["earlier"]
    for week in range(3):
        age(requests, 6)  # approvals last a week
        for i in range(module.MAX_OF_STRANGERS):
            ask(requests, replace(PLAN, run=f"week{week}-{i}"), f"key{i}")
    n_files = len(list(requests._folder.iterdir()))
    assert n_files <= 2 + module.MAX_OF_STRANGERS + module.MAX_EXPIRED


def changed(**values):
    return lambda data: encode(compose({**decode(data).header, **values}, {}))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-20],
        lambda data: data.replace(b"pending", b"pendinG"),
        lambda data: b"[]",
        changed(decision="approval"),
        changed(run="run2"),
        changed(until="2026-01-01T00:00:00"),
        changed(until="2026-01-01T00:00:00+00:00"),
        changed(days="7"),
        changed(more=1),
    ],
)
def test_a_damaged_request_is_named_and_approves_nothing(requests, damage):
    ask(requests)
    path = only_file(requests)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match="the site's request for approval, is damaged"):
        requests.check(PLAN, "key")


def test_a_long_reason_is_refused(requests):
    ask(requests)
    with pytest.raises(InputError, match="501 characters; use at most 500"):
        requests.deny(requests.named("run1"), "x" * 501)


# --- what a site across machines checks


def signer_of(signature, data):
    """Stand in for the engine's signatures, which tests/engines checks: KEY|data."""
    key, _, signed = signature.partition(b"|")
    return key.decode() if signed == data else ""


def signed_by(key, plan):
    return key.encode() + b"|" + plan.statement


@pytest.fixture
def gate():
    return Gate(Policy(), "north", keys=Keys(NORTH, signer_of, coordinator=LIAR))


def test_a_pinned_coordinator_alone_can_declare_a_run(gate):
    assert gate.signer_of(PLAN, signed_by(LIAR, PLAN)) == LIAR
    with pytest.raises(PolicyRefused, match="not signed"):
        gate.signer_of(PLAN, b"")
    with pytest.raises(
        PolicyRefused, match=f"signed by the key with fingerprint {WEST}, but .* key {LIAR}"
    ):
        gate.signer_of(PLAN, signed_by(WEST, PLAN))
    with pytest.raises(PolicyRefused, match="signature is not valid"):
        gate.signer_of(replace(PLAN, run="run2"), signed_by(LIAR, PLAN))


def test_a_plan_must_list_the_site_with_its_own_key(gate):
    gate.check_plan("run1.0", PLAN)
    for roster in ({**ROSTER, "north": LIAR}, {"south": SOUTH}, {"other": NORTH}):
        with pytest.raises(
            PolicyRefused, match="does not list this site as 'north' with the key a"
        ):
            gate.check_plan("run1.0", replace(PLAN, sites=roster))


def test_a_plan_with_sites_that_are_no_peers_is_refused_by_name():
    policy = Policy(peers=[SOUTH, WEST], min_sites=3)
    gate = Gate(policy, "north", keys=Keys(NORTH, signer_of))
    gate.check_plan("run1.0", PLAN)
    for invented in (LIAR, ""):
        with pytest.raises(PolicyRefused, match="not in the policy's peers: east"):
            gate.check_plan("run1.0", replace(PLAN, sites={**ROSTER, "east": invented}))
    with pytest.raises(PolicyRefused, match="min_sites=3"):
        gate.check_plan("run1.0", replace(PLAN, sites={"north": NORTH, "west": WEST}))


def test_peers_are_a_list_or_a_table_of_fingerprints():
    assert Policy(peers={"south": SOUTH}).peers == (SOUTH,)
    for peers in ("south", ["south"], [SOUTH.upper()], {"south": 1}, 3):
        with pytest.raises(InputError, match="64 characters"):
            Policy(peers=peers)
    with pytest.raises(InputError, match="twice"):
        Policy(peers=[SOUTH, SOUTH])


def test_a_number_of_sites_needs_peers_across_machines():
    Policy(min_sites=2, peers=[SOUTH]).refuse_unknown_sites()
    Policy().refuse_unknown_sites()
    with pytest.raises(InputError, match="a coordinator could invent sites"):
        Policy(min_sites=2).refuse_unknown_sites()


def test_rules_that_an_open_policy_would_void_are_refused():
    for rules in ({"approval": True}, {"peers": [SOUTH]}):
        with pytest.raises(InputError, match="would have no effect"):
            Policy(allow=["any"], **rules)
    for rules in ({"approval": "yes"}, {"approval_days": 0}, {"approval_days": 10**9}):
        with pytest.raises(InputError, match="approval"):
            Policy(**rules)


# --- within one process, with a folder


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(30, 4)) for name in ("north", "south")}


@pytest.fixture
def sites(rows, tmp_path):
    asking = Policy(approval=True, gather=True)
    return {
        "north": Site(rows["north"], name="north", policy=asking, store=tmp_path / "north"),
        "south": Site(rows["south"], name="south", policy=Policy(gather=True)),
    }


def at_north(tmp_path):
    return Requests(REQUESTS.path(tmp_path / "north", "north"))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(approval, "FIRST_DECLARE_PAUSE_S", 0.0)


def test_a_fit_names_the_sites_that_have_not_approved(sites):
    federation = Federation.local(sites)
    with pytest.raises(ApprovalPending, match="at north; someone there must run `fedpca approve"):
        FederatedPCA(2).fit(federation)


def test_a_fit_waits_for_approval_and_tells_each_change_once(sites, rows, tmp_path):
    told = []

    def on_waiting(run, names):
        told.append(names)
        if names:
            at_north(tmp_path).approve(at_north(tmp_path).named(run))

    options = {"approval_wait": 3600.0, "on_waiting": on_waiting, "purpose": "a study"}
    waited = FederatedPCA(2, random_state=0).fit(Federation.local(sites, **options))
    near = FederatedPCA(2, random_state=0).fit(Federation.local(rows))
    assert told == [("north",), ()]
    assert waited.components_.tobytes() == near.components_.tobytes()
    assert [each.declared.purpose for each in at_north(tmp_path).all()] == ["a study"]


def test_sites_that_wait_take_part_in_other_runs_meanwhile(sites, rows, tmp_path):
    """South was ready first, and then took part in a different run."""

    def on_waiting(run, names):
        if names:
            FederatedPCA(2).fit({"south": sites["south"]})
            at_north(tmp_path).approve(at_north(tmp_path).named(run))

    options = {"approval_wait": 3600.0, "on_waiting": on_waiting}
    waited = FederatedPCA(2, random_state=0).fit(Federation.local(sites, **options))
    near = FederatedPCA(2, random_state=0).fit(Federation.local(rows))
    assert waited.components_.tobytes() == near.components_.tobytes()


def test_a_run_stops_at_the_next_question_once_its_approval_is_taken_back(sites, tmp_path):
    def on_waiting(run, names):
        if names:
            at_north(tmp_path).approve(at_north(tmp_path).named(run))

    def on_round(entry):
        if entry["round"] == 2:
            (request,) = at_north(tmp_path).all()
            at_north(tmp_path).deny(request, "stop")

    options = {"approval_wait": 3600.0, "on_waiting": on_waiting, "on_round": on_round}
    with pytest.raises(PolicyRefused, match=r"round 3, .*: stop"):
        FederatedPCA(2, solver="lanczos").fit(Federation.local(sites, **options))


def test_a_journaled_run_keeps_its_approval_when_it_is_resumed(sites, rows, tmp_path):
    journal = tmp_path / "run.journal"
    model = FederatedPCA(2, random_state=0)
    with pytest.raises(ApprovalPending, match="the same fit with the same journal continues"):
        model.fit(Federation.local(sites, journal=journal))
    (request,) = at_north(tmp_path).all()
    at_north(tmp_path).approve(request)
    model.fit(Federation.local(sites, journal=journal))
    assert [each.run for each in at_north(tmp_path).all()] == [request.run]


def test_a_run_is_not_resumed_for_a_different_purpose(rows, tmp_path):
    journal = tmp_path / "run.journal"
    FederatedPCA(2).fit(Federation.local(rows, journal=journal, purpose="a study"))
    with pytest.raises(JournalError, match="purpose: 'a study' in the journal, 'another' now"):
        FederatedPCA(2).fit(Federation.local(rows, journal=journal, purpose="another"))


def test_a_plan_that_waits_or_is_refused_does_not_end_the_run_at_the_site(rows, tmp_path):
    site = Site(rows["north"], name="north", policy=Policy(approval=True), store=tmp_path / "north")
    plan = RunPlan("run1", "FederatedPCA", {"solver": "covariance"}, {"north": ""})

    def declare(plan, run=None):
        header = {"run": f"{run or plan.run}.0", "round": 0, "question": DECLARE}
        header |= {"verb": "gather", "n_sites": 1, "memory": 0}
        arrays = {"plan": np.frombuffer(plan.to_bytes(), np.uint8)}
        return site.answer(compose(header, arrays)).header.get("error")

    def names(run):
        header = {"run": run, "round": 1, "question": "column_names", "verb": "gather"}
        return site.answer(compose({**header, "n_sites": 1, "memory": 0}, {})).header.get("error")

    assert declare(plan) == "ApprovalPending"
    at_north(tmp_path).approve(at_north(tmp_path).named("run1"))
    assert declare(plan) is None
    assert declare(replace(plan, run="run2")) == "ApprovalPending"
    assert declare(replace(plan, run="run3", program="RobustPCA")) == "PolicyRefused"
    assert declare(replace(plan, run="run4"), run="run5") == "PolicyRefused"
    assert names("run2.0") == "PolicyRefused"
    assert names("run6.0") == "PolicyRefused"
    assert names("run1.0") is None
    assert {each.run for each in at_north(tmp_path).all()} == {"run1", "run2"}


def test_a_site_without_a_folder_cannot_ask_a_person(rows):
    site = Site(rows["north"], name="north", policy=Policy(approval=True))
    with pytest.raises(PolicyRefused, match="no folder for the requests"):
        FederatedPCA(2).fit([site])


def test_a_site_that_cannot_keep_a_request_says_so(rows, tmp_path):
    (tmp_path / "north").write_text("a file where the folder should be")
    site = Site(rows["north"], name="north", policy=Policy(approval=True), store=tmp_path / "north")
    plan = RunPlan("run1", "FederatedPCA", {"solver": "covariance"}, {"north": ""})
    with pytest.raises(InputError, match="request for approval, cannot be read"):
        site.conversation.gate.consider("run1.0", plan, b"")
    (tmp_path / "north").unlink()
    with full_disk(), pytest.raises(SiteFailed, match="cannot save its request for approval"):
        site.conversation.gate.consider("run1.0", plan, b"")


def test_a_purpose_or_a_wait_that_makes_no_sense_is_refused(rows):
    with pytest.raises(InputError, match="at most 500 characters"):
        Federation.local(rows, purpose="x" * 501)
    for wait in (-1, float("nan"), "long"):
        with pytest.raises(InputError, match="approval_wait"):
            Federation.local(rows, approval_wait=wait)
