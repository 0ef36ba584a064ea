"""Within one process, too, a second fit on the same sites is refused and does not end the first."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp

from fedpca import FederatedPCA, Federation, Site, question
from fedpca.engines.local import MAX_BEGUN, LocalEngine
from fedpca.errors import QuorumLost, SitesBusy
from fedpca.linalg import blas_threads
from fedpca.protocol.message import compose
from fedpca.protocol.question import Question
from fedpca.solvers.common_features import column_names
from fedpca.testing import ScriptedEngine

ROWS = np.random.default_rng(4).normal(size=(60, 5)) * [1, 2, 3, 4, 5]
N_JOBS = 2
MODEL = {"n_components": 2, "solver": "lanczos", "random_state": 0}


def sites():
    halves = zip(("north", "south"), np.split(ROWS, 2), strict=True)
    return {name: Site(rows, name=name) for name, rows in halves}


def interrupted(federation, intrude):
    """A fit in the middle of which something else is tried."""
    refusals = []

    def on_round(entry):
        if entry["round"] == 3:
            with pytest.raises(SitesBusy) as refusal:
                intrude()
            refusals.append(str(refusal.value))

    federation.watch(on_round)
    model = FederatedPCA(**MODEL).fit(federation)
    assert len(refusals) == 1
    federation.watch()
    return model, refusals[0]


@pytest.mark.parametrize("what", ["a fit", "a question", "the same federation", "the same engine"])
def test_a_second_fit_on_the_same_sites_is_refused(what):
    shared = sites()
    first, second = Federation.local(shared), Federation.local([shared["south"]])
    intrusions = {
        "a fit": lambda: FederatedPCA(2).fit(second),
        "a question": lambda: second.gather(column_names),
        "the same federation": lambda: FederatedPCA(2).fit(first),
        "the same engine": lambda: FederatedPCA(2).fit(Federation(first.engine)),
    }
    model, text = interrupted(first, intrusions[what])
    whole = FederatedPCA(**MODEL).fit(Federation.local(sites()))
    assert model.components_.tobytes() == whole.components_.tobytes()
    assert list(model.run_.ledger) == list(whole.run_.ledger)
    assert "is using" in text
    assert FederatedPCA(2).fit(second).run_.sites == ("south",)  # now that the first has ended
    assert FederatedPCA(2).fit(first).run_.sites == ("north", "south")


def test_a_fit_that_fails_gives_its_sites_back():
    def on_round(entry):
        raise KeyboardInterrupt

    shared = sites()
    with pytest.raises(KeyboardInterrupt):
        FederatedPCA(2).fit(Federation.local(shared, on_round=on_round))
    assert FederatedPCA(2).fit(Federation.local(shared)).run_.sites == ("north", "south")


def test_questions_outside_of_a_run_keep_no_site():
    shared = sites()
    first, second = Federation.local(shared), Federation.local(shared)
    assert set(first.gather(column_names)) == set(second.gather(column_names)) == set(shared)
    assert FederatedPCA(2).fit(second).run_.sites == ("north", "south")


@question(answers={"n": "int64, count"})
def count_begun(site):
    """Count the sites that have begun; the first one waits for as many as may begin meanwhile."""
    with BEGUN.changed:
        BEGUN.n += 1
        BEGUN.changed.notify_all()
        if site.name == "site-1":
            BEGUN.changed.wait_for(lambda: BEGUN.n >= MAX_BEGUN * N_JOBS, timeout=60)
            while BEGUN.changed.wait(0.1):  # if more begin than may, they are seen
                pass
            BEGUN.while_first_worked = BEGUN.n
    return {"n": np.int64(1)}


class BEGUN:
    changed = threading.Condition()
    n = while_first_worked = 0


@pytest.mark.parametrize("timeout", [None, 600.0])
def test_few_answers_wait_for_a_slow_site(timeout):
    BEGUN.n = 0
    with Federation.local([ROWS] * 60, n_jobs=N_JOBS, timeout=timeout) as fed:
        assert fed.sum(count_begun)["n"] == 60
    assert BEGUN.while_first_worked == MAX_BEGUN * N_JOBS


@pytest.mark.parametrize(
    ("sites", "expected"),
    [
        ([np.ones((600, 100))] * 3, 3),
        ([sp.eye_array(600, 100).tocsr(), np.ones((600, 100))], 2),
        ([np.ones((600, 100)), pa.table({f"f{i}": np.ones(600) for i in range(100)})], 1),
        ([np.ones((2, 100))] * 3, 1),
    ],
    ids=["arrays", "sparse", "a table", "tiny"],
)
def test_sites_of_medium_size_in_memory_work_in_threads(sites, expected, monkeypatch):
    monkeypatch.setattr(blas_threads, "n_threads", lambda: 4)
    at_once, most = 0, 0
    together = threading.Barrier(expected)

    def slow_answer(self, request, name):
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        if expected > 1:
            together.wait(60)  # which ends only if so many sites work at a time
        with lock:
            at_once -= 1
        return plain(self, request, name)

    lock, plain = threading.Lock(), LocalEngine._answer
    monkeypatch.setattr(LocalEngine, "_answer", slow_answer)
    with Federation.local(sites) as fed:
        fed.gather(column_names)
    assert most == expected


@pytest.mark.parametrize("timeout", [None, 600.0])
def test_no_thread_is_left_if_nobody_takes_the_answers(timeout):
    n_threads = threading.active_count()
    engine = LocalEngine([ROWS] * 60, n_jobs=N_JOBS)
    header = {"run": "r.0", "round": 1, "verb": "gather", "n_sites": 60, "memory": 0}
    answers = engine.ask(engine.names, compose({**header, "question": "column_names"}, {}), timeout)
    next(answers)
    answers.close()
    engine.close()
    limit = time.monotonic() + 60
    while threading.active_count() > n_threads and time.monotonic() < limit:
        time.sleep(0.01)
    assert threading.active_count() == n_threads


def test_whoever_asks_works_too_instead_of_waiting(monkeypatch):
    def note_thread(self, request, name):
        threads.add(threading.current_thread())
        return plain(self, request, name)

    threads, plain = set(), LocalEngine._answer
    monkeypatch.setattr(LocalEngine, "_answer", note_thread)
    with Federation.local([ROWS] * 60, n_jobs=N_JOBS) as fed:
        assert len(fed.gather(column_names)) == 60
    assert threading.current_thread() in threads
    assert len(threads) <= N_JOBS


def test_what_stops_a_site_on_a_thread_stops_the_round(monkeypatch):
    def fail(self, request, name):
        if name == "site-7":
            raise KeyboardInterrupt
        return plain(self, request, name)

    plain = LocalEngine._answer
    monkeypatch.setattr(LocalEngine, "_answer", fail)
    with Federation.local([ROWS] * 60, n_jobs=N_JOBS) as fed, pytest.raises(KeyboardInterrupt):
        fed.gather(column_names)


@pytest.mark.parametrize("as_bytes", [False, True])
def test_an_answer_within_the_process_is_checked_once(as_bytes, monkeypatch):
    n_checks, plain = Counter(), Question.check_answer

    def count(self, *args, **options):
        n_checks[self.name] += 1
        return plain(self, *args, **options)

    monkeypatch.setattr(Question, "check_answer", count)
    engine = ScriptedEngine(sites(), lambda reply: reply.answer, as_bytes=as_bytes)
    model = FederatedPCA(**MODEL).fit(Federation(engine))
    asked = Counter(entry["question"] for entry in model.run_.history)
    assert n_checks == {name: 2 * n * (2 if as_bytes else 1) for name, n in asked.items()}


@pytest.mark.parametrize("bad", [np.int64(-1), np.array([5]), np.float64(5)])
def test_an_answer_that_changed_on_its_way_within_the_process_is_checked(bad):
    def change(reply):
        if reply.question != "count_and_sum" or reply.site != "south":
            return reply.answer
        return replace(reply.answer, arrays={**reply.answer.arrays, "n": np.asarray(bad)})

    fed = Federation(ScriptedEngine(sites(), change, as_bytes=False))
    with pytest.raises(QuorumLost, match=r"'south', round 2.* field 'n' in the answer"):
        FederatedPCA(2).fit(fed)


def test_sites_that_share_a_message_refuse_it_by_their_own_features():
    """What one site has checked holds for others only if they have as many features."""
    wide, narrow = Site(ROWS, name="wide"), Site(ROWS[:, :3], name="narrow")
    header = {"run": "r.0", "round": 1, "verb": "sum", "n_sites": 2, "memory": 0}
    mean = {"mean": np.zeros(5)}
    request = compose({**header, "question": "squares"}, mean)
    first, second = (site.answer(request).header["text"] for site in (wide, narrow))
    assert "ColumnSums" in first  # it got as far as the question itself
    assert "field 'mean' in question 'squares' has shape (5,) instead of (d) with d=3" in second
