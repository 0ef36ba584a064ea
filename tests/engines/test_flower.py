"""A federation of real processes over TLS equals one process, and stands what goes wrong."""

from __future__ import annotations

import datetime
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager
from functools import partial

import httpx
import numpy as np
import pandas as pd
import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.common.constant import SubStatus
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

import forked
from fedpca import FederatedPCA, Federation, PersonalizedPCA, RobustPCA, load
from fedpca.engines.flower import engine
from fedpca.engines.flower import envelope as wire
from fedpca.engines.flower import server as link
from fedpca.errors import (
    InputError,
    JournalError,
    LinkError,
    LinkRefused,
    MessageError,
    PolicyRefused,
    QuorumLost,
)
from fedpca.linalg.dense import sine_of_angle
from fedpca.protocol.plan import DECLARE
from fedpca.solvers import SOLVERS
from fedpca.testing import check_engine
from processes import HANG_S, Processes, until
from support import gapped_rows

pytestmark = pytest.mark.process
HONEST = ("north", "south")
SITES = (*HONEST, "third", "strict", "other")
AGREED = """
allow = ["federated", "personalized", "robust", "tsqr", "merge", "average"]
gather = true
max_runs_per_day = "unlimited"
end = true
"""
LANCZOS = partial(FederatedPCA, 3, solver="lanczos", random_state=0)  # of several rounds


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A server that knows five sites, two of which are there and stay."""
    folder = tmp_path_factory.mktemp("federation")
    rng = np.random.default_rng(5)
    for i, site in enumerate(SITES):
        np.save(
            folder / f"{site}.npy", gapped_rows(rng, 60 + 20 * i, 8 if i < 4 else 7, 3, offset=i)
        )
    (folder / "policy.toml").write_text("gather = false\nend = true\n")
    for i, part in enumerate(np.array_split(np.load(folder / "south.npy"), 2)):
        np.save(folder / f"south-{i}.npy", part)
    processes = Processes(folder, SITES)
    (folder / "agreed.toml").write_text(AGREED)
    (folder / "open.toml").write_text('allow = ["any"]\ngather = true\nend = true\n')
    agreed = ("--policy", "agreed.toml")
    processes.join("north", "north.npy", *agreed)
    processes.join("south", "south-0.npy", "south-1.npy", *agreed)  # as a shell reads south-*.npy
    processes.federation(sites=HONEST).close()  # which waits until both are online
    yield processes
    processes.stop_all()


def expire(monkeypatch, is_over):
    """Let the time limit of a round pass at the moment at which a condition holds, and not before."""
    give_up = engine._Asked.give_up

    def at_that_moment(asked, now, is_late, limit):
        give_up(asked, now, is_over(asked), limit)

    monkeypatch.setattr(engine._Asked, "give_up", at_that_moment)


def near(there, model, *sites):
    """The model fitted to the same files within this process."""
    files = {site: there.folder / f"{site}.npy" for site in sites}
    files["south"] = [there.folder / "south-0.npy", there.folder / "south-1.npy"]
    return model.fit(Federation.local(files))


@contextmanager
def fitting(there):
    """A fit of three sites that goes on while the block runs; its model is fitted when it ends."""
    model, errors = LANCZOS(), []

    def fit():
        try:
            with there.federation(sites=[*HONEST, "third"]) as fed:
                model.fit(fed)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=fit)
    thread.start()
    yield model
    thread.join(HANG_S)
    assert not errors
    assert not thread.is_alive()


def ledger(there, site):
    path = there.folder / "home" / "sites" / site / "ledger.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(
    "make",
    [
        *[
            pytest.param(lambda s=s: FederatedPCA(2, solver=s, max_rounds=2, random_state=0), id=s)
            for s in SOLVERS
        ],
        pytest.param(
            lambda: PersonalizedPCA(2, 1, max_rounds=2, random_state=0), id="personalized"
        ),
        pytest.param(lambda: RobustPCA(2, max_rounds=2, random_state=0), id="robust"),
    ],
)
def test_a_federation_gives_the_bits_and_the_ledger_of_one_process(there, make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)
        with there.federation(sites=HONEST) as fed:
            far = make().fit(fed)
        within = near(there, make(), *HONEST)
    assert far.components_.tobytes() == within.components_.tobytes()
    assert far.explained_variance_.tobytes() == within.explained_variance_.tobytes()
    assert list(far.run_.ledger) == list(within.run_.ledger)
    assert far.run_.sites == within.run_.sites


def test_the_shell_fits_a_federation_and_a_site_tells_what_left(there):
    before = len(ledger(there, "south"))
    there.run(
        *("fit", "--federation", there.address, "--credentials", "tls", "--sites", "north,south"),
        *("-k", "3", "--seed", "0", "--timeout", str(HANG_S), "-o", "shell.fedpca"),
    )
    model = load(there.folder / "shell.fedpca")
    within = near(there, FederatedPCA(3, random_state=0), *HONEST)
    assert model.components_.tobytes() == within.components_.tobytes()
    declared, *told = ledger(there, "south")[before:]
    assert declared["question"] == DECLARE  # which is no round, so the coordinator does not list it
    entries = [e for e in model.run_.ledger if e.site == "south" and e.direction == "up"]
    assert sum(line["bytes_out"] for line in told) == sum(entry.bytes for entry in entries)
    assert [line["question"] for line in told] == [e["question"] for e in within.run_.history]
    assert told[-2]["verb"] == "sum"
    assert told[-2]["sites"] == 2


def test_a_site_follows_its_file_without_being_started_again(there):
    rows = np.load(there.folder / "third.npy")
    np.save(there.folder / "nightly.npy", rows[:30])
    site = there.join("third", "nightly.npy")
    sizes = []
    for _ in range(2):
        with there.federation(sites=[*HONEST, "third"]) as fed:
            sizes.append(FederatedPCA(3).fit(fed).n_samples_)
        np.save(there.folder / "tonight.npy", rows[:50])
        (there.folder / "tonight.npy").rename(there.folder / "nightly.npy")
    there.stop(site)
    assert sizes == [60 + 80 + 30, 60 + 80 + 50]
    assert (
        there.log(site).count("the files changed and were reopened: 50 rows with 8 features") == 1
    )


def test_a_site_whose_new_file_has_a_gap_stays_out_until_it_is_mended(there):
    rows = np.load(there.folder / "third.npy")
    bad = rows.copy()
    bad[3, 1] = np.nan
    np.save(there.folder / "nightly.npy", rows)
    site = there.join("third", "nightly.npy")
    taken = []
    for tonight in (bad, rows[:40], None):
        with there.federation(sites=[*HONEST, "third"], quorum=2) as fed:
            taken.append(FederatedPCA(3).fit(fed).run_)
        if tonight is not None:
            np.save(there.folder / "tonight.npy", tonight)
            (there.folder / "tonight.npy").rename(there.folder / "nightly.npy")
    there.stop(site)
    assert [run.sites for run in taken] == [(*HONEST, "third"), HONEST, (*HONEST, "third")]
    assert "stays out of this run" in taken[1].lost[0]["reason"]
    assert "contains NaN in columns 1" in taken[1].lost[0]["reason"]
    assert (
        "not answered: the site stays out of this run because its files changed: contains NaN"
        in (there.log(site))
    )


def test_sites_name_their_weights_and_the_coordinator_says_what_to_do_with_gaps(there):
    rng = np.random.default_rng(7)
    rows = gapped_rows(rng, 600, 4, 2, offset=3.0)
    rows[rng.random(rows.shape) < 0.1] = np.nan
    counts = rng.integers(0, 4, 600)
    parts = {"third": slice(250), "other": slice(250, 600)}
    for name, part in parts.items():
        table = pd.DataFrame(rows[part], columns=list("abcd")).assign(count=counts[part])
        table.to_csv(there.folder / f"weighted-{name}.csv", index=False)
    # with four columns, some patterns of gaps are those of few rows
    policy = 'allow = ["federated", "robust"]\nmin_count = 1\nend = true\n'
    (there.folder / "robust.toml").write_text(policy)
    options = ("--weight", "count", "--allow-missing", "--policy", "robust.toml")
    joined = [there.join(name, f"weighted-{name}.csv", *options) for name in parts]
    with there.federation(sites=list(parts)) as fed:
        far = FederatedPCA(2, missing="mean", random_state=0).fit(fed)
        with pytest.raises(InputError, match="have weights, which only FederatedPCA uses"):
            RobustPCA(2).fit(fed)
    for site in joined:
        there.stop(site)
    files = {name: there.folder / f"weighted-{name}.csv" for name in parts}
    within = FederatedPCA(2, missing="mean", random_state=0).fit(files, sample_weight="count")
    assert far.components_.tobytes() == within.components_.tobytes()
    complete = np.where(np.isnan(rows), far.mean_, rows)
    reference = PCA(2, svd_solver="full").fit(np.repeat(complete, counts, axis=0))
    np.testing.assert_allclose(far.explained_variance_, reference.explained_variance_)


def test_a_policy_is_kept_by_the_site(there):
    site = there.join("strict", "strict.npy", "--policy", "policy.toml")
    with there.federation(sites=[*HONEST, "strict"]) as fed:
        with pytest.raises(PolicyRefused) as refused:
            FederatedPCA(2, solver="merge").fit(fed)
        assert FederatedPCA(2, solver="covariance").fit(fed).site_variance_ratio_ == {}
    assert "site 'strict'" in str(refused.value)
    there.stop(site)
    log = there.log(site)
    assert "not answered: the policy does not allow 'merge', only federated" in log
    assert "not answered: the policy does not let the coordinator see this site's own answer" in log


@pytest.mark.parametrize("kind", ["garbage", "nan", "shape"])
def test_a_site_that_answers_wrongly_is_given_up_by_name(there, kind):
    site = there.rogue("third", "third.npy", kind)
    with there.federation(sites=[*HONEST, "third"]) as fed:
        with pytest.raises(
            QuorumLost, match="2 of 3 sites are left, but the quorum is 3; site 'third'"
        ):
            FederatedPCA(3).fit(fed)
        fed.terms.quorum = 2
        far = FederatedPCA(3).fit(fed)
    there.stop(site, signal.SIGINT)
    assert [lost["site"] for lost in far.run_.lost] == ["third"]
    assert "site 'third', round 3" in far.run_.lost[0]["reason"]
    within = near(there, FederatedPCA(3), *HONEST)
    assert sine_of_angle(within.components_.T, far.components_.T) < 1e-8


def test_an_answer_that_is_too_large_is_refused_before_all_of_it_is_fetched(there, monkeypatch):
    fetched, make = [], wire.make_pull_object_fn_protobuf

    def watched(*given):
        pull = make(*given)

        def pull_and_count(number):
            content = pull(number)
            fetched.append(len(content))
            return content

        return pull_and_count

    monkeypatch.setattr(wire, "make_pull_object_fn_protobuf", watched)
    site = there.rogue("third", "third.npy", f"huge:{60 << 20}")
    with there.federation(sites=[*HONEST, "third"], quorum=2) as fed:
        far = FederatedPCA(3).fit(fed)
    there.stop(site, signal.SIGINT)
    assert [lost["site"] for lost in far.run_.lost] == ["third"]
    assert (
        "site 'third', round 3, while computing the covariance: the message exceeds its limit of "
        in (far.run_.lost[0]["reason"])
    )
    assert "bytes and was refused unread" in far.run_.lost[0]["reason"]
    assert sum(fetched) < 12 << 20  # the site was asked twice, and one piece of each was fetched
    within = near(there, FederatedPCA(3), *HONEST)
    assert sine_of_angle(within.components_.T, far.components_.T) < 1e-8


@pytest.mark.parametrize(
    ("kind", "solver", "said"),
    [
        ("names", "lanczos", "the message cannot be read"),
        ("text:features={", "lanczos", "column names that are not a list of strings"),
        ("text:features=5", "lanczos", "column names that are not a list of strings"),
        (f"text:features={'[' * 50_000}", "lanczos", "column names that are not a list of strings"),
        ("field:n=-5", "lanczos", "'n' in the answer has negative counts"),
        ("field:total=1.7e308", "lanczos", "'total' in the answer must be at most"),
        ("field:singular_values=1e300", "merge", "'singular_values' .* must be at most"),
    ],
    ids=lambda given: given[:20],
)
def test_a_site_whose_answer_is_impossible_is_lost_by_name(there, kind, solver, said):
    site = there.rogue("third", "third.npy", kind)
    with there.federation(sites=["third", *HONEST], quorum=2) as fed:
        far = FederatedPCA(3, solver=solver).fit(fed)
    there.stop(site, signal.SIGINT)
    assert far.run_.sites == HONEST
    (lost,) = far.run_.lost
    assert re.search(f"^site 'third', round .*{said}", lost["reason"])
    within = near(there, FederatedPCA(3, solver=solver), *HONEST)
    assert sine_of_angle(within.components_.T, far.components_.T) < 1e-8


def test_a_site_whose_answers_are_possible_but_off_by_a_million_is_flagged(there):
    site = there.rogue("third", "third.npy", "times:1e6")
    with (
        there.federation(sites=[*HONEST, "third"]) as fed,
        pytest.warns(UserWarning, match="site 'third' has 41.7% of the rows but causes 100.0% of"),
    ):
        model = FederatedPCA(3, solver="covariance").fit(fed)
    there.stop(site, signal.SIGINT)
    assert model.run_.dominant_site == "third"


def test_the_engine_keeps_the_promises_of_every_engine(there):
    rows = {"north": there.folder / "north.npy"}
    rows["south"] = [there.folder / "south-0.npy", there.folder / "south-1.npy"]
    with there.federation(sites=HONEST) as fed:
        check_engine(fed.engine, rows)


def test_an_answer_that_comes_twice_counts_once(there):
    site = there.rogue("third", "third.npy", "twice")
    with there.federation(sites=[*HONEST, "third"]) as fed:
        far = FederatedPCA(3, random_state=0).fit(fed)
    there.stop(site, signal.SIGINT)
    within = near(there, FederatedPCA(3, random_state=0), *HONEST, "third")
    assert far.components_.tobytes() == within.components_.tobytes()


@pytest.mark.parametrize("kind", [f"slow:{HANG_S}", "half"], ids=["slow", "half"])
def test_a_site_that_does_not_answer_is_given_up_after_the_time_limit(there, kind, monkeypatch):
    site = there.rogue("third", "third.npy", kind)
    expire(
        monkeypatch, lambda asked: set(asked.pending) == {"third"} and "asked 3" in there.log(site)
    )
    with there.federation(sites=[*HONEST, "third"], quorum=2, timeout=2.0) as fed:
        far = FederatedPCA(3).fit(fed)
    there.stop(site, signal.SIGINT)
    assert far.run_.sites == HONEST
    assert "no answer within 2 s" in far.run_.lost[0]["reason"]


def test_a_site_with_other_features_stops_the_fit_and_is_named(there):
    site = there.join("other", "other.npy")
    with (
        there.federation(sites=[*HONEST, "other"]) as fed,
        pytest.raises(InputError, match="other"),
    ):
        FederatedPCA(2).fit(fed)
    there.stop(site)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_site_that_ends_within_a_round_and_starts_again_is_asked_again(there, how):
    site = there.rogue("third", "third.npy", f"slow:{HANG_S}")
    with fitting(there) as far:
        until(lambda: "asked 3" in there.log(site))
        there.stop(site, how)
        again = there.join("third", "third.npy", "--policy", "open.toml")  # as the rogue is
    there.stop(again)
    within = near(there, LANCZOS(), *HONEST, "third")
    assert far.components_.tobytes() == within.components_.tobytes()
    assert far.run_.lost == []
    assert list(far.run_.ledger) == list(within.run_.ledger)


def test_a_killed_fit_goes_on_where_it_was(there):
    site = there.rogue("third", "third.npy", "slow:0.7")
    words = [
        *(
            sys.executable,
            "-m",
            "fedpca",
            "fit",
            "--federation",
            there.address,
            "--credentials",
            "tls",
        ),
        *("--sites", "north,south,third", "-k", "3", "--solver", "lanczos", "--seed", "0"),
        *("--journal", "run.journal", "-o", "killed.fedpca"),
    ]
    fitting = forked.Popen(words, cwd=there.folder, env=there.environment)
    until(lambda: "asked 5" in there.log(site))
    fitting.send_signal(signal.SIGKILL)
    fitting.wait(HANG_S)
    assert not (there.folder / "killed.fedpca").exists()
    there.run(*words[3:])
    there.stop(site, signal.SIGINT)
    far = load(there.folder / "killed.fedpca")
    within = near(there, LANCZOS(), *HONEST, "third")
    assert far.components_.tobytes() == within.components_.tobytes()
    assert list(far.run_.ledger) == list(within.run_.ledger)
    asked = [line for line in there.log(site).splitlines() if line.startswith("asked")]
    assert [line for line in asked if line.startswith("asked 4")] == ["asked 4 covariance_product"]
    assert asked.count("asked 1 column_names") == 1
    assert asked.count(f"asked 0 {DECLARE}") == 2  # by both fits, with the same plan


def test_the_server_lets_go_of_what_a_killed_fit_was_sent():
    """And not of what another run was sent, the same content included."""
    stores = ObjectStoreFactory()
    state = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), stores).state()
    tasks, messages = {}, []
    for _ in range(2):
        run = state.create_run(None, None, None, {}, "", None, "", TaskType.SERVER_APP)
        tasks[run] = state.get_run_info(run_ids=[run])[0].primary_task_id
        assert state.claim_task(tasks[run])
        assert state.activate_task(tasks[run])
        message = wire.message_to(1, run, wire.wrap(b"answer"))
        state.object_store.preregister(run, get_object_tree(message))
        objects = get_all_nested_objects(message)
        for number, part in objects.items():
            state.object_store.put(number, part.deflate())
        messages.append(objects)
    killed, other = tasks
    watcher = link.Watcher(state, print, None, None)
    watcher._sweep()
    assert len(state.object_store) == len(
        messages[0] | messages[1]
    )  # parts that are equal are shared
    heartbeat = state.task_token_store[tasks[killed]]
    heartbeat.active_until -= datetime.timedelta(minutes=2)
    watcher._sweep()
    assert len(state.object_store) == len(messages[1])
    assert all(state.object_store.get(number) for number in messages[1])
    state.finish_task(tasks[other], SubStatus.COMPLETED, "")
    watcher._sweep()
    assert len(state.object_store) == 0


def test_a_fit_outlives_the_server(there):
    site = there.rogue("third", "third.npy", "slow:1")
    with fitting(there) as far:
        until(lambda: "asked 4" in there.log(site))
        there.stop(there.server, signal.SIGKILL)
        there.server = there.serve(SITES)
    there.stop(site, signal.SIGINT)
    within = near(there, LANCZOS(), *HONEST, "third")
    assert far.components_.tobytes() == within.components_.tobytes()


def test_a_site_that_goes_for_good_is_given_up_without_a_time_limit(there, monkeypatch):
    give_up, site = engine._Asked.give_up, there.rogue("third", "third.npy", f"slow:{HANG_S}")

    def once_third_is_gone(asked, now, is_late, limit):
        """Let a long absence of one site pass in a moment."""
        if set(asked.pending) == {"third"} and site.poll() is not None:
            now = asked.seen["third"] + 1.5 * HANG_S
        give_up(asked, now, is_late, limit)

    monkeypatch.setattr(engine._Asked, "give_up", once_third_is_gone)
    with there.federation(sites=[*HONEST, "third"], quorum=2, timeout=None) as fed:
        stopping = threading.Thread(
            target=lambda: (
                until(lambda: "asked 3" in there.log(site)),
                there.stop(site, signal.SIGINT),
            )
        )
        stopping.start()
        far = FederatedPCA(3).fit(fed)
        stopping.join()
    assert far.run_.sites == HONEST
    assert "site 'third', round 3" in far.run_.lost[0]["reason"]
    assert "no answer; it has been offline for" in far.run_.lost[0]["reason"]


def test_a_fit_ends_where_the_server_does_not_come_back(there, monkeypatch):
    monkeypatch.setattr(engine, "ABSENCE_LIMIT_S", 2.0)
    with there.federation(sites=HONEST) as fed:
        there.stop(there.server)
        with pytest.raises(LinkError, match="cannot connect to localhost"):
            FederatedPCA(3).fit(fed)
        monkeypatch.setattr(engine, "ABSENCE_LIMIT_S", HANG_S)
        there.server = there.serve(SITES)
        assert FederatedPCA(3).fit(fed).run_.sites == HONEST


def test_large_messages_travel_in_pieces_and_strange_ones_are_refused():
    for data in (b"small", bytes(6 << 20)):
        assert wire.unwrap(wire.message_to(1, 2, wire.wrap(data))) == data
    pieces = wire.wrap(bytes(12 << 20))["fedpca"]["message"].children
    assert len(pieces) == 2  # as all are zeros, two of the three are the same
    for content in (RecordDict(), RecordDict({"fedpca": ConfigRecord({"message": "text"})})):
        with pytest.raises(MessageError, match="not a fedpca message"):
            wire.unwrap(wire.message_to(1, 2, content))


class Shelf:
    """Objects of a message, as a server hands them out."""

    def __init__(self, *objects):
        self.contents = {get_object_id(content): content for content in objects}

    def PullObject(self, request):
        content = self.contents.get(request.object_id, b"")
        return PullObjectResponse(
            object_found=True, object_available=bool(content), object_content=content
        )

    def ConfirmMessageReceived(self, request):
        return ConfirmMessageReceivedResponse()


def incoming(shelf, tree):
    return wire.Incoming(shelf, Node(node_id=1), 2, tree)


def test_a_message_is_had_once_it_is_whole():
    message = wire.message_to(1, 2, wire.wrap(b"data"))
    parts = [part.deflate() for part in get_all_nested_objects(message).values()]
    shelf = Shelf(*parts[:-1])
    waiting = incoming(shelf, get_object_tree(message))
    assert waiting.fetch() is None
    shelf.contents |= Shelf(parts[-1]).contents
    assert wire.unwrap(waiting.fetch()) == b"data"


def test_objects_that_are_no_message_are_refused():
    content = wire.wrap(b"data")
    parts = [part.deflate() for part in get_all_nested_objects(content).values()]
    with pytest.raises(MessageError, match="not a fedpca message: RecordDict"):
        incoming(Shelf(*parts), get_object_tree(content)).fetch()
    for kind in (b"Message", b"CustomDataClass"):
        garbage = kind + b"  3\0\xff\xff\xff"
        with pytest.raises(MessageError, match="not a fedpca message"):
            incoming(Shelf(garbage), ObjectTree(object_id=get_object_id(garbage))).fetch()


def test_a_run_that_is_resumed_keeps_its_sites(there):
    site = there.join("third", "third.npy", "--policy", "agreed.toml")
    journal = there.folder / "finished.journal"
    options = {"quorum": 2, "journal": journal}
    with there.federation(sites=3, **options) as fed:
        first = FederatedPCA(3, random_state=0).fit(fed)
    there.stop(site)
    with there.federation(sites=3, wait=1, **options) as fed:  # the journal has all its answers
        second = FederatedPCA(3, random_state=0).fit(fed)
    assert second.run_.sites == first.run_.sites == (*HONEST, "third")
    assert second.components_.tobytes() == first.components_.tobytes()
    with pytest.raises(QuorumLost, match=r"2 of 3 sites are online.*not online: third"):
        there.federation(wait=1, journal=journal)
    with pytest.raises(JournalError, match="belongs to a run with sites north, south, third, but"):
        there.federation(sites=HONEST, journal=journal)


def test_fewer_sites_than_the_quorum_end_the_fit_before_it_begins(there):
    with pytest.raises(QuorumLost, match=r"2 of 3 sites are online after 1 s.*not online: other"):
        there.federation(sites=[*HONEST, "other"], wait=1)
    with there.federation(sites=[*HONEST, "other"], wait=1, quorum=2) as fed:
        run = FederatedPCA(2).fit(fed).run_
    assert run.sites == HONEST
    assert [(entry["site"], entry["round"], entry["reason"]) for entry in run.lost] == [
        ("other", 0, "site 'other': not online after 1 s")
    ]
    with pytest.raises(InputError, match="no key for elsewhere"):
        there.federation(sites=["elsewhere"])
    with pytest.raises(InputError, match="quorum=3 must be between 1 and 2, the number of sites"):
        there.federation(sites=HONEST, quorum=3)
    with pytest.raises(InputError, match=r"sites=1, but 2 are online at .*name the sites to ask"):
        there.federation(sites=1)
    with pytest.raises(InputError, match="sites=9 must be between 1 and 5"):
        there.federation(sites=9)
    with pytest.raises(InputError, match="sites='north' must be a number of sites or a list"):
        there.federation(sites="north")
    with pytest.raises(InputError, match="contains a duplicate"):
        there.federation(sites=["north", "north"])
    with pytest.raises(InputError, match="wait=nan must be a nonnegative number of seconds"):
        there.federation(wait=float("nan"))
    with pytest.raises(InputError, match="timeout=-1 must be a positive number of seconds"):
        there.federation(timeout=-1, sites=["other"])


def test_strangers_do_not_get_in(there):
    there.run("site-key", "stranger")
    own = ("--data", "north.npy", "--ca", "tls/ca.pem")
    done = there.run_apart("join", there.address, *own, "--key", "stranger.key", check=False)
    assert done.returncode == 1
    assert "did not admit this site: the server was not given the site's NAME.pub" in done.stderr


def test_plain_http_and_false_certificates_are_refused(there, tmp_path):
    own = ("--data", "north.npy", "--key", "north.key")
    plain = there.run_apart("join", there.address, *own, "--insecure", check=False)
    assert plain.returncode == 1
    assert "does not use plain HTTP; use --ca ca.pem instead of --insecure" in plain.stderr
    with pytest.raises(LinkRefused, match="does not use plain HTTP"):
        there.federation(sites=HONEST, insecure=True)
    from fedpca.engines.credentials import make_certificates

    make_certificates(tmp_path)
    other = there.run_apart(
        "join", there.address, *own, "--ca", str(tmp_path / "ca.pem"), check=False
    )
    assert other.returncode == 1
    assert "cannot be verified" in other.stderr


def test_only_the_holder_of_the_secret_may_ask(there, tmp_path):
    from fedpca.engines.credentials import make_secret

    make_secret(tmp_path)
    (tmp_path / "ca.pem").write_bytes((there.credentials / "ca.pem").read_bytes())
    with pytest.raises(LinkRefused, match="a different coordinator"):
        Federation.flower(there.address, credentials=tmp_path, sites=HONEST)


def test_every_door_asks_who_is_there(there):
    open_doors = []
    ca = ssl.create_default_context(cafile=there.credentials / "ca.pem")
    with httpx.Client(base_url=f"https://{there.address}", verify=ca) as client:
        for method, path in PROTOBUF_REQUEST_TYPES:
            headers = {"content-type": PROTOBUF_MEDIA_TYPE}
            answer = client.request(method, path, headers=headers)
            if answer.status_code not in (401, 404):
                open_doors.append(path)
        huge = client.post("/v1/fleet/push-object", content=bytes(17 << 20))
    assert open_doors == []
    assert huge.status_code == 413


def test_the_demo_runs_a_federation_and_stops_it():
    words = [sys.executable, "-m", "fedpca", "demo", "--federation"]
    behind_a_proxy = {**os.environ, "HTTPS_PROXY": "http://localhost:9"}  # which is dead
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_S, env=behind_a_proxy)
    assert done.returncode == 0, done.stderr
    assert "bit for bit" in done.stdout
    assert "round 1, column_names" in done.stderr
