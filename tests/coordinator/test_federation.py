"""Quorum, time limits, lost sites, refused answers and policies."""

from __future__ import annotations

import re
import threading

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.engines import local
from fedpca.engines.local import LocalEngine
from fedpca.errors import (
    InputError,
    MessageError,
    PolicyRefused,
    QuorumLost,
    SiteFailed,
    SiteTimeout,
)
from fedpca.linalg import blas_threads
from fedpca.linalg.dense import sine_of_angle
from fedpca.protocol.message import compose, decode, encode
from fedpca.protocol.question import find_question, question
from fedpca.solvers import SOLVERS
from fedpca.testing import ScriptedEngine
from processes import HANG_S
from support import every_other, gapped_rows

RNG = np.random.default_rng(0)
ROWS = np.array_split(gapped_rows(RNG, 200, 8, 3), 4)
SITES = dict(zip(("north", "east", "south", "west"), ROWS, strict=True))


@question(asks={"x": "float64 k"}, answers={"y": "float64 k", "n": "int64"})
def double(site, x):
    return {"y": 2 * x, "n": np.int64(site.rows.n_rows)}


@question(verb="gather", asks={"x": "float64 k"}, answers={"y": "float64 k", "n": "int64"})
def double_each(site, x):
    return {"y": 2 * x, "n": np.int64(site.rows.n_rows)}


@question(answers={"is_limited": "int64"})
def is_on_one_thread(site):
    return {"is_limited": np.int64(blas_threads._threads._limiter is not None)}


@question(answers={"count": "int64"}, remembers=True)
def count_calls(site):
    site.memory["count"] = site.memory.get("count", np.int64(0)) + 1
    return {"count": np.int64(site.memory["count"])}


@question(answers={"y": "float64"})
def fail_with_a_row(site):
    raise RuntimeError(f"the row is {next(site.rows.blocks())[0]}")


@question(answers={"count": "int64"}, remembers=True)
def forget_and_fail(site):
    site.memory.clear()
    raise RuntimeError


@question(answers={"y": "float64"})
def write_without_saying_so(site):
    site.memory["y"] = np.zeros(3)
    return {"y": np.float64(0)}


@question(answers={"y": "float64 k"})
def answer_nan(site):
    return {"y": np.array([1.0, np.nan])}


@question(answers={"y": "float64 2"})
def answer_wrongly(site):
    return {"y": np.zeros(3)}


@question(answers={"y": "float64 m"})
def answer_lengths_to_sum(site):
    return answer_own_length.function(site)


@question(verb="gather", answers={"y": "float64 m"})
def answer_own_length(site):
    return {"y": np.ones(site.rows.n_rows)}


def meddling(sites, changes, first_round=1, question=None):
    """An engine that spoils the answers of some sites from some round on, or to one question."""

    def script(reply):
        due = reply.round >= first_round and question in (None, reply.question)
        return changes.get(reply.site, lambda data: data)(reply.answer) if due else reply.answer

    return ScriptedEngine(sites, script)


def altered(data):
    return data[:-1] + bytes([data[-1] ^ 1])


def remade(change):
    def spoil(data):
        message = decode(data)
        header, arrays = dict(message.header), dict(message.arrays)
        change(header, arrays)
        return encode(compose(header, arrays))

    return spoil


def test_sum_and_gather():
    fed = Federation.local(SITES)
    assert fed.sum(double, x=np.ones(2))["y"].tolist() == [8.0, 8.0]
    gathered = fed.gather(double_each, x=np.ones(2))
    assert list(gathered) == list(SITES)
    assert gathered["north"]["n"] == 50
    assert [entry.how for entry in fed.record.ledger if entry.field == "y"] == ["summed"] * 4 + [
        "seen"
    ] * 4


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (altered, "altered"),
        (lambda d: d[:-8], "truncated"),
        (lambda d: b"junk", "not a fedpca message"),
        (lambda d: None, "did not answer"),
        (lambda d: SiteFailed("connection lost"), "connection lost"),
        (remade(lambda h, a: a.update(y=np.ones(3))), r"'y'.*shape \(3,\).*k=2"),
        (remade(lambda h, a: a.update(y=np.ones((2, 1)))), r"'y'.*shape \(2, 1\)"),
        (remade(lambda h, a: a.update(y=np.ones(2, np.float32))), "'y'.*float32"),
        (remade(lambda h, a: a.update(y=np.array([1.0, np.inf]))), "'y'.*1 values.*not finite"),
        (remade(lambda h, a: a.pop("y")), r"fields \['n'\]"),
        (remade(lambda h, a: h.update(site="west")), "site is 'west'"),
        (remade(lambda h, a: h.update(round=7)), "round is 7"),
        (remade(lambda h, a: h.update(question="other")), "question is 'other'"),
        (remade(lambda h, a: h.update(run="old")), "run is 'old'"),
        (remade(lambda h, a: h.update(error="Strange", text="x")), "x"),
        (remade(lambda h, a: h.update(error=["Strange"], text="x")), "'error'.*must be printable"),
        (remade(lambda h, a: h.update(error="SiteFailed", text={"x": 1})), "'text'.*must be text"),
        (remade(lambda h, a: h.update(error="SiteFailed")), "gave no reason"),
        (remade(lambda h, a: h.update(site=7)), "site is 7"),
    ],
)
@pytest.mark.parametrize("asked", [double, double_each], ids=["sum", "gather"])
def test_a_wrong_answer_is_asked_again_then_reported_by_site_round_and_question(spoil, text, asked):
    engine = meddling(SITES, {"east": spoil})
    fed = Federation(engine)
    with pytest.raises(QuorumLost, match=text) as error:
        fed.run(lambda f, _: getattr(f, asked.verb)(asked, x=np.ones(2)), identity={})
    assert "'east'" in str(error.value)
    if "did not answer" not in text:
        assert "round 1" in str(error.value)
        assert asked.doing in str(error.value)
    assert engine.asked == [(asked.name, 1, tuple(SITES)), (asked.name, 1, ("east",))]
    (loss,) = fed.record.lost
    assert (loss["site"], loss["round"], loss["question"]) == ("east", 1, asked.name)
    assert re.search(text, loss["reason"])


def test_a_site_that_recovers_at_the_second_try_is_kept():
    tries = []

    def once(data):
        tries.append(1)
        return altered(data) if len(tries) == 1 else data

    fed = Federation(meddling(SITES, {"east": once}))
    assert fed.sum(double, x=np.ones(1))["y"] == 8.0
    sent = [e.site for e in fed.record.ledger if e.field == "x"]
    assert sent == [*SITES, "east"]
    assert fed.record.bytes_down == fed.record.ledger.bytes_down


def test_a_second_answer_adds_nothing():
    def twice(reply):
        return [*2 * [(reply.site, reply.answer)], ("stranger", reply.answer)]

    assert Federation(ScriptedEngine(SITES, twice)).sum(double, x=np.ones(1))["y"] == 8.0


@pytest.mark.parametrize(("solver", "first_round"), every_other(sorted(SOLVERS), [1, 2, 3, 4, 6]))
def test_the_result_is_exactly_that_of_the_sites_that_remain(solver, first_round):
    spoil = {"east": altered, "west": altered}
    fed = Federation(meddling(SITES, spoil, first_round), quorum=2)
    model = FederatedPCA(3, solver=solver, random_state=0, max_rounds=3000).fit(fed)
    left = {name: SITES[name] for name in ("north", "south")}
    reference = FederatedPCA(3, solver=solver, random_state=1, max_rounds=3000).fit(left)
    run = model.run_
    if len(run.lost) == 0:
        assert first_round > run.rounds
        return
    assert run.sites == ("north", "south")
    assert {loss["site"] for loss in run.lost} == {"east", "west"}
    assert run.lost[0]["round"] == first_round
    assert model.n_samples_ == 100
    assert set(model.site_variance_ratio_) == {"north", "south"}
    np.testing.assert_array_equal(model.mean_, reference.mean_)
    assert sine_of_angle(reference.components_.T, model.components_.T) < 1e-8
    np.testing.assert_allclose(model.explained_variance_, reference.explained_variance_, rtol=1e-11)
    assert run.bytes_up == run.ledger.bytes_up


def test_a_fit_that_lost_sites_starts_again_warm():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((2000, 60)) * np.geomspace(2, 1, 60)
    X[:, :3] *= 1.1  # so that a gap follows
    sites = dict(zip("abcd", np.split(X, [600, 1200, 1995]), strict=True))
    cold = FederatedPCA(
        3, solver="subspace-iteration", random_state=0, tol=1e-6, max_rounds=5000
    ).fit({name: sites[name] for name in "abc"})
    late = cold.run_.rounds - 3
    fed = Federation(meddling(sites, {"d": altered}, first_round=late), quorum=3)
    warm = FederatedPCA(
        3, solver="subspace-iteration", random_state=0, tol=1e-6, max_rounds=5000
    ).fit(fed)
    assert warm.run_.sites == ("a", "b", "c")
    again = [entry for entry in warm.run_.history[late:] if entry["residual"] is not None]
    assert len(again) < 0.5 * cold.run_.solver_rounds


def test_a_warm_start_follows_the_columns_if_the_site_that_ordered_them_is_lost():
    """Otherwise, the second attempt would begin as far away as from a random subspace."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((1800, 60)) * np.geomspace(2, 1, 60)
    X[:, :3] *= 1.1
    order = {"a": np.arange(60), "b": rng.permutation(60)}
    order["c"] = order["b"]
    parts = dict(zip("abc", np.split(X, [5, 900]), strict=True))
    sites = {
        n: pd.DataFrame(x[:, order[n]]).set_axis(order[n].astype(str), axis=1)
        for n, x in parts.items()
    }
    model = FederatedPCA(3, solver="subspace-iteration", random_state=0, tol=1e-6, max_rounds=5000)
    left = {name: sites[name] for name in "bc"}
    cold = clone(model).fit(left).run_
    last = clone(model).fit(sites).run_.rounds
    engine = meddling(sites, {"a": altered}, first_round=last)
    warm = clone(model).fit(Federation(engine, quorum=2)).run_
    assert warm.sites == ("b", "c")
    again = [entry for entry in warm.history[last:] if entry["residual"] is not None]
    assert len(again) < 0.5 * cold.solver_rounds


@pytest.mark.parametrize("solver", ["lanczos", "subspace-iteration"])
def test_a_warm_start_does_not_stay_in_eigenvectors_that_lead_no_more(solver):
    def along_axes(*variances):
        deviations = np.diag(np.sqrt(variances))
        return np.vstack([deviations, -deviations])

    sites = {"a": along_axes(1, 2, 9, 8, 0.5, 0.1), "b": along_axes(100, 90, 1, 1, 0.5, 0.1)}
    engine = meddling(sites, {"b": altered}, question="explained_energy")
    model = FederatedPCA(2, solver=solver, random_state=0).fit(Federation(engine, quorum=1))
    assert model.run_.sites == ("a",)
    np.testing.assert_allclose(model.explained_variance_, np.array([18, 16]) / 11, rtol=1e-10)


def test_too_few_sites_stop_the_fit_with_their_names():
    fed = Federation(meddling(SITES, {"east": altered, "west": altered}), quorum=3)
    with pytest.raises(QuorumLost, match=r"2 of 4 sites.*quorum is 3.*'east'.*'west'"):
        FederatedPCA(2).fit(fed)


def test_a_failure_at_a_site_never_quotes_a_row(caplog):
    fed = Federation.local(SITES)
    with pytest.raises(QuorumLost, match="RuntimeError; see the site's log") as error:
        fed.run(lambda f, _: f.sum(fail_with_a_row), identity={})
    assert str(ROWS[0][0, 0])[:6] not in str(error.value)
    assert "could not answer" in caplog.text


def test_a_question_that_says_it_does_not_remember_cannot_write():
    with pytest.raises(QuorumLost, match="TypeError"):
        Federation.local(SITES).run(lambda f, _: f.sum(write_without_saying_so), identity={})


def test_an_answer_that_breaks_its_own_declaration_never_leaves_the_site():
    fed = Federation.local(SITES)
    with pytest.raises(QuorumLost, match=r"'y'.*1 values that are not finite"):
        fed.run(lambda f, _: f.sum(answer_nan), identity={})
    with pytest.raises(QuorumLost, match=r"shape \(3,\) instead of \(2\)"):
        fed.run(lambda f, _: f.sum(answer_wrongly), identity={})


def test_answers_of_different_lengths_can_be_gathered_and_not_summed():
    fed = Federation.local([np.ones((2, 1)), np.ones((3, 1))])
    assert [len(a["y"]) for a in fed.gather(answer_own_length).values()] == [2, 3]
    with pytest.raises(QuorumLost, match=r"'site-2'.*shape \(3,\).*m=2"):
        fed.run(lambda f, _: f.sum(answer_lengths_to_sum), identity={})


def test_a_wrong_question_is_refused_before_anything_is_sent():
    engine = meddling(SITES, {})
    fed = Federation(engine)
    for arrays in ({}, {"x": np.ones((2, 2))}, {"x": np.array([np.nan])}, {"x": np.arange(2)}):
        with pytest.raises(MessageError, match="'double'"):
            fed.sum(double, **arrays)
    assert engine.asked == []


def test_a_site_checks_what_reaches_it():
    site = Site(ROWS[0], name="north")
    for data in (b"junk", encode(compose({"run": "r", "round": 1}, {}))[:-1]):
        assert decode(site.answer_bytes(data)).header["error"] == "MessageError"
    header = {"run": "r", "round": 1, "verb": "sum", "n_sites": 1, "memory": 0}
    unknown = decode(site.answer_bytes(encode(compose({**header, "question": "rm"}, {}))))
    assert "question 'rm' is not installed" in unknown.header["text"]
    wrong = compose({**header, "question": "squares"}, {"mean": np.zeros(3)})
    text = site.answer(wrong).header["text"]
    assert "(3,) instead of (d) with d=8" in text
    early = compose({**header, "question": "covariance_product"}, {"Z": np.zeros((8, 1))})
    assert "needs the Frame" in site.answer(early).header["text"]
    lacking = compose({"round": 1}, {})
    assert site.answer(lacking).header["error"] == "MessageError"


def test_a_round_asked_again_gets_the_same_answer_and_changes_memory_once():
    site = Site(ROWS[0], name="north")
    header = {
        "run": "r",
        "round": 1,
        "verb": "sum",
        "n_sites": 1,
        "memory": 0,
        "question": "count_calls",
    }
    request = encode(compose(header, {}))
    assert site.answer_bytes(request) == site.answer_bytes(request)
    assert int(site.memory["count"]) == 1
    second = decode(site.answer_bytes(encode(compose({**header, "round": 2}, {}))))
    assert int(second.arrays["count"]) == 2
    other_run = decode(site.answer_bytes(encode(compose({**header, "run": "s"}, {}))))
    assert int(other_run.arrays["count"]) == 1


@pytest.mark.parametrize("keep", [True, False])
def test_a_round_asked_again_counts_once_whether_its_answer_was_kept_or_not(keep):
    site = Site(ROWS[0], name="north")

    def ask(number):
        header = {"run": "r", "round": number, "verb": "sum", "n_sites": 1, "memory": 0}
        request = compose({**header, "question": "count_calls"}, {})
        return int(site.answer(request, keep=keep).arrays["count"])

    assert [ask(number) for number in (1, 1, 2, 2, 2, 3)] == [1, 1, 2, 2, 2, 3]


def test_a_question_that_fails_leaves_memory_as_it_was():
    site = Site(ROWS[0], name="north")
    header = {"run": "r", "verb": "sum", "n_sites": 1, "memory": 0}
    site.answer(compose({**header, "round": 1, "question": "count_calls"}, {}))
    failed = site.answer(compose({**header, "round": 2, "question": "forget_and_fail"}, {}))
    assert failed.header["error"] == "SiteFailed"
    again = site.answer(compose({**header, "round": 2, "question": "count_calls"}, {}))
    assert int(again.arrays["count"]) == 2


class SlowRows:
    """Rows that are read only once a gate is open."""

    features = None
    n_features = 8
    n_rows = 50
    pass_cost = 1.0

    def __init__(self, array, gate):
        self._array, self._gate = array, gate

    def blocks(self):
        self._gate.wait(HANG_S)
        yield self._array


@pytest.fixture
def gate():
    """A gate that is open at the end, so that no thread stays behind."""
    event = threading.Event()
    yield event
    event.set()


def slow_site(gate):
    site = Site(ROWS[1], name="slow")
    site.rows = SlowRows(ROWS[1], gate)
    return site


def timers(monkeypatch, is_late):
    """Let time limits pass when a condition says so, and not by the clock of a busy machine."""

    class Timer:
        def __init__(self, seconds, function, arguments):
            self._fire = threading.Thread(target=function, args=arguments, daemon=True)
            self._is_late = is_late(arguments[0])

        def start(self):
            if self._is_late:
                self._fire.start()

        def cancel(self):
            pass

    monkeypatch.setattr(local.threading, "Timer", Timer)


@pytest.mark.parametrize("n_jobs", [1, 4])
def test_a_site_that_is_too_slow_is_given_up_and_nobody_waits_for_it(n_jobs, gate, monkeypatch):
    sites = [Site(ROWS[0], name="north"), slow_site(gate), Site(ROWS[2], name="south")]
    # the names of columns are told without a look at the rows
    late_from = iter([False])
    timers(monkeypatch, lambda name: name == "slow" and next(late_from, True))
    fed = Federation.local(sites, timeout=0.4, quorum=2, n_jobs=n_jobs)
    model = FederatedPCA(2, random_state=0).fit(fed)
    assert not gate.is_set()
    assert model.run_.sites == ("north", "south")
    (loss,) = model.run_.lost
    assert (loss["site"], loss["round"], loss["question"]) == ("slow", 2, "count_and_sum")
    assert "no answer within 0.4 s" in loss["reason"]


def test_the_time_limit_is_one_of_the_clock(gate):
    with pytest.raises(QuorumLost, match=r"'slow'.*no answer within 0.4 s"):
        FederatedPCA(2).fit(Federation.local([slow_site(gate)], timeout=0.4))


def test_a_slow_answer_that_is_ready_at_the_second_try_counts(gate, monkeypatch):
    asked = []

    def late_once(name):
        asked.append(name)
        if asked.count("slow") > 2:
            gate.set()
        return name == "slow" and asked.count("slow") == 2

    timers(monkeypatch, late_once)
    fed = Federation.local([slow_site(gate), Site(ROWS[2], name="south")], timeout=0.8)
    model = FederatedPCA(2).fit(fed)
    assert model.run_.sites == ("slow", "south")
    assert [
        e.site for e in model.run_.ledger if e.question == "count_and_sum" and e.direction == "down"
    ].count("slow") > 2


def test_hung_threads_do_not_hold_the_process_up(gate):
    before = set(threading.enumerate())
    fed = Federation.local([slow_site(gate)], timeout=0.1)
    with pytest.raises(QuorumLost):
        FederatedPCA(1).fit(fed)
    left = set(threading.enumerate()) - before
    assert left
    assert all(thread.daemon for thread in left)


BAD = np.vstack([np.full((1, 8), np.nan), ROWS[1]])
REMAIN = ("north", "south", "west")
REFUSALS = [  # how east refuses, the round, and what the reason says
    (BAD, 2, "while counting rows.*contains NaN"),
    (Site(ROWS[1], name="east", policy=Policy(min_rows=51)), 2, "min_rows=51"),
    (Site(ROWS[1], name="east", policy=Policy(allow=("merge",))), 1, "the policy does not allow"),
]


@pytest.mark.parametrize(("east", "round_", "reason"), REFUSALS, ids=["rows", "rule", "plan"])
def test_a_site_that_refuses_is_lost_if_a_quorum_remains(east, round_, reason):
    engine = meddling({**SITES, "east": east}, {})
    engine.__class__ = type("Declaring", (ScriptedEngine,), {"declares": True})
    model = FederatedPCA(2, random_state=0).fit(Federation(engine, quorum=3))
    run = model.run_
    assert run.sites == REMAIN
    (loss,) = run.lost
    assert (loss["site"], loss["round"]) == ("east", round_)
    assert re.search(reason, loss["reason"])
    remaining = FederatedPCA(2, random_state=0).fit({name: SITES[name] for name in REMAIN})
    np.testing.assert_array_equal(model.components_, remaining.components_)
    asked_again = [asked for asked in engine.asked if asked.sites == ("east",)]
    assert asked_again == []


@pytest.mark.parametrize(
    "options", [{}, {"quorum": 4}, {"quorum": 1, "on_refusal": "stop"}], ids=str
)
@pytest.mark.parametrize(("east", "round_", "reason"), REFUSALS, ids=["rows", "rule", "plan"])
def test_a_refusal_stops_a_fit_without_a_quorum_or_if_asked_to(east, round_, reason, options):
    engine = meddling({**SITES, "east": east}, {})
    engine.__class__ = type("Declaring", (ScriptedEngine,), {"declares": True})
    with pytest.raises((InputError, PolicyRefused), match=f"site 'east'.*{reason}"):
        FederatedPCA(2).fit(Federation(engine, **options))


def test_a_fit_that_all_sites_refuse_says_why():
    bad = {**SITES, "east": BAD, "west": BAD}
    with pytest.raises(InputError, match=r"site 'east'.*contains NaN.*; site 'west'.*contains NaN"):
        FederatedPCA(2).fit(bad)
    with pytest.raises(InputError, match=r"site 'east'.*contains NaN.*; site 'west'.*contains NaN"):
        FederatedPCA(2).fit(Federation.local(bad, quorum=3))


def test_sites_that_refuse_and_sites_that_fail_are_lost_together():
    engine = meddling({**SITES, "east": BAD}, {"west": altered}, question="count_and_sum")
    fed = Federation(engine, quorum=2)
    assert FederatedPCA(2).fit(fed).run_.sites == ("north", "south")
    assert {loss["site"] for loss in fed.record.lost} == {"east", "west"}
    engine = meddling({**SITES, "east": BAD}, {"west": altered}, question="count_and_sum")
    with pytest.raises(QuorumLost, match=r"2 of 4 sites.*contains NaN.*altered"):
        FederatedPCA(2).fit(Federation(engine, quorum=3))


def test_a_lost_site_that_refused_stays_lost_in_a_resumed_run(tmp_path):
    journal = tmp_path / "run.journal"

    def crash(reply):
        if reply.question == "explained_energy":
            raise Crash
        return reply.answer

    sites = {**SITES, "east": BAD}
    engine = ScriptedEngine(sites, crash, journal=journal)
    with pytest.raises(Crash):
        FederatedPCA(2, random_state=0).fit(Federation(engine, quorum=3, journal=journal))
    fed = Federation.local(sites, quorum=3, journal=journal)
    assert FederatedPCA(2, random_state=0).fit(fed).run_.sites == REMAIN


class Crash(Exception):
    """The end of the coordinator's process."""


def test_what_happens_after_a_refusal_is_one_of_two_words():
    with pytest.raises(InputError, match="on_refusal='wait' must be one of lose, stop"):
        Federation.local(SITES, on_refusal="wait")


@pytest.mark.parametrize("quorum", [None, 1])
def test_a_question_that_the_program_can_do_without_loses_no_site(quorum):
    sites = {**SITES, "east": Site(ROWS[1], name="east", policy=Policy(gather=False))}
    model = FederatedPCA(2).fit(Federation.local(sites, quorum=quorum))
    assert model.run_.sites == tuple(SITES)
    assert model.run_.lost == []
    assert model.site_variance_ratio_ == {}


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (Policy(min_rows=51), "fewer rows than its policy's min_rows=51"),
        (Policy(min_sites=5), "the sum covers 4 sites, fewer than the policy's min_sites=5"),
    ],
)
def test_a_policy_refuses_and_the_fit_says_so(policy, text):
    sites = {**SITES, "east": Site(ROWS[1], name="east", policy=policy)}
    with pytest.raises(PolicyRefused, match=f"site 'east'.*{text}"):
        FederatedPCA(2).fit(sites)


def test_a_site_may_keep_its_share_of_variance_to_itself():
    sites = {**SITES, "east": Site(ROWS[1], name="east", policy=Policy(gather=False))}
    model = FederatedPCA(2).fit(sites)
    assert model.site_variance_ratio_ == {}
    np.testing.assert_array_equal(model.components_, FederatedPCA(2).fit(SITES).components_)
    run = model.run_
    assert run.history[-1]["question"] == "explained_energy"
    crossed = {(e.site, e.how) for e in run.ledger if e.question == "explained_energy"}
    others = {(name, "discarded") for name in SITES if name != "east"}
    assert crossed == others | {(name, "sent") for name in SITES}
    fields = {e.field for e in run.ledger if e.how == "discarded"}
    assert fields == {"explained", "total", "(envelope)"}  # what left the sites, used or not
    assert (run.bytes_up, run.bytes_down) == (run.ledger.bytes_up, run.ledger.bytes_down)


@pytest.mark.parametrize("verb", ["peek", "gather"])
def test_the_verb_belongs_to_the_question(verb):
    site = Site(ROWS[0], name="north")
    header = {
        "run": "r",
        "round": 1,
        "verb": verb,
        "n_sites": 1,
        "memory": 0,
        "question": "count_and_sum",
    }
    answer = site.answer(compose(header, {"features": np.empty(0, np.uint8)}))
    assert answer.header["error"] == "PolicyRefused"
    assert "declares verb='sum'" in answer.header["text"]


def test_answers_are_not_combined_in_a_way_that_the_question_does_not_declare():
    fed = Federation.local(SITES)
    with pytest.raises(
        InputError, match=r"'double' must be combined by 'sum', not 'gather'; use Federation.sum"
    ):
        fed.gather(double, x=np.ones(2))
    with pytest.raises(InputError, match=r"'double_each' must be combined by 'gather', not"):
        fed.sum(double_each, x=np.ones(2))
    assert not fed.record.history


def test_a_late_question_of_an_old_run_or_round_changes_nothing():
    site = Site(ROWS[0], name="north")

    def ask(run, number):
        header = {"run": run, "round": number, "verb": "sum", "n_sites": 1, "memory": 0}
        return site.answer(compose({**header, "question": "count_calls"}, {}))

    ask("old", 1)
    ask("new", 1)
    ask("new", 2)
    assert "this run is over" in ask("old", 2).header["text"]
    assert "round 1 was requested after round 2" in ask("new", 1).header["text"]
    assert int(ask("new", 3).arrays["count"]) == 3


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Federation.local({}), "at least one site"),
        (
            lambda: Federation.local(SITES, quorum=5),
            "quorum=5 must be a whole number from 1 to 4",
        ),
        (lambda: Federation.local(SITES, quorum=0), "quorum=0"),
        (lambda: Federation.local(SITES, quorum=1.5), "quorum=1.5"),
        (lambda: Federation.local(SITES, timeout=0), "timeout=0"),
        (lambda: Federation.local(SITES, timeout="5"), "timeout='5'"),
        (lambda: Federation.local(SITES, n_jobs=0), "n_jobs=0"),
        (lambda: Federation.local(SITES, n_jobs=1.5), "n_jobs=1.5"),
        (lambda: Federation.local(ROWS[0]), "dict or list with each site's rows, not ndarray"),
        (lambda: Federation.local([Site(ROWS[0], name="a")] * 2), "site names must be unique"),
        (lambda: Federation.local({"a": Site(ROWS[0], name="b")}), "'a'.*'b'"),
    ],
)
def test_a_federation_that_cannot_be_says_why(make, text):
    with pytest.raises(InputError, match=text):
        make()


def test_every_round_is_told_with_its_residual():
    told = []
    fed = Federation.local(SITES, on_round=told.append)
    model = FederatedPCA(2, solver="lanczos", random_state=0).fit(fed)
    assert told == model.run_.history
    residuals = [entry["residual"] for entry in told if entry["residual"] is not None]
    assert len(residuals) == model.run_.solver_rounds
    assert residuals[-1] <= 1e-10 < residuals[0]


def test_two_questions_cannot_have_one_name():
    def double(site):
        return {}

    double.__module__ = "elsewhere"
    with pytest.raises(ValueError, match="'double' already exists"):
        question(answers={})(double)
    with pytest.raises(ValueError, match="must start with one of"):
        question(answers={"x": "complex64 d"})(lambda site: {})
    assert find_question("double")(Site(ROWS[0], name="a"), x=1.0)["y"] == 2.0


def test_timeout_errors_are_site_errors(gate):
    engine = LocalEngine([slow_site(gate)])
    request = compose(
        {
            "run": "r",
            "round": 1,
            "verb": "sum",
            "n_sites": 1,
            "memory": 0,
            "question": "count_and_sum",
        },
        {"features": np.empty(0, np.uint8), "missing": np.int64(0)},
    )
    ((name, answer),) = engine.ask(["slow"], request, 0.1)
    assert name == "slow"
    assert isinstance(answer, SiteTimeout)


def test_questions_about_long_tables_run_on_one_thread_of_blas():
    assert Federation.local([np.ones((300_000, 10))]).sum(is_on_one_thread)["is_limited"]
