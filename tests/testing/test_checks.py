"""The checks accept what keeps its promises, and name the first one that is broken."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import MethodType
from typing import ClassVar

import numpy as np
import pytest

from fedpca import FederatedPCA, Federation, question
from fedpca.engines.base import Summand, Total
from fedpca.engines.local import LocalEngine
from fedpca.errors import SitesBusy, SiteTimeout
from fedpca.solvers import SOLVERS, Covariance, SubspaceIteration
from fedpca.solvers.standardize import count_and_sum
from fedpca.testing import ScriptedEngine, check_engine, check_solver, spoil

RNG = np.random.default_rng(0)
ROWS = {"a": RNG.normal(size=(30, 5)), "b": RNG.normal(size=(20, 5)), "c": RNG.normal(size=(9, 5))}


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=lambda solver: solver.name)
def test_every_solver_of_the_catalogue_keeps_its_promises(solver):
    check_solver(solver)


@dataclass(frozen=True)
class Broken:
    """The covariance solver, with one promise broken by each subclass."""

    name: ClassVar[str] = "broken"
    guarantee: ClassVar[str] = "exact"
    seen: ClassVar[tuple[str, ...]] = ()

    def script(self, plan):
        return Covariance().script(plan)

    def solve(self, fed, problem):
        return Covariance().solve(fed, problem)


@dataclass(frozen=True)
class WrongSubspace(Broken):
    def solve(self, fed, problem):
        solution = super().solve(fed, problem)
        return replace(solution, vectors=np.eye(*solution.vectors.shape))


@question(verb="gather", answers={"n": "int64"})
def rows_of_a_site(site):
    return {"n": np.int64(site.rows.n_rows)}


@dataclass(frozen=True)
class Gathering(Broken):
    def solve(self, fed, problem):
        fed.gather(rows_of_a_site)
        return super().solve(fed, problem)


@dataclass(frozen=True)
class Random(Broken):
    def solve(self, fed, problem):
        solution = super().solve(fed, problem)
        noise = 1e-12 * np.random.default_rng().standard_normal(solution.vectors.shape)
        return replace(solution, vectors=solution.vectors + noise)


@dataclass(frozen=True)
class Boastful(Broken):
    def solve(self, fed, problem):
        return replace(SubspaceIteration().solve(fed, problem), stop_reason="converged")


@pytest.mark.parametrize(
    ("solver", "text"),
    [
        (WrongSubspace(), "alike sites: the sine of the angle to the pooled components"),
        (Gathering(), "sees individual answers to .'rows_of_a_site'."),
        (Random(), "the same seed gives a different result"),
        (Boastful(), "max_rounds=1, the solver reports 'converged'"),
        ("covariance", "does not implement all of"),
    ],
)
def test_a_broken_promise_of_a_solver_is_named(solver, text):
    with pytest.raises(AssertionError, match=text):
        check_solver(solver)


def test_a_solver_whose_options_can_change_is_refused():
    @dataclass
    class Thawed(Broken.__base__):
        name: ClassVar[str] = "thawed"
        guarantee: ClassVar[str] = "exact"
        seen: ClassVar[tuple[str, ...]] = ()
        script = Broken.script
        solve = Broken.solve

    globals()["Thawed"] = Thawed  # so that it can be pickled
    Thawed.__qualname__ = "Thawed"
    with pytest.raises(AssertionError, match="frozen dataclass"):
        check_solver(Thawed())


@pytest.mark.parametrize(
    "engine",
    [LocalEngine(ROWS), LocalEngine(ROWS, n_jobs=3), ScriptedEngine(ROWS)],
    ids=["in turn", "on threads", "scripted"],
)
def test_engines_of_one_process_keep_their_promises(engine):
    check_engine(engine, ROWS)


def twice(reply):
    return [(reply.site, reply.answer)] * 2


def stranger(reply):
    return [(f"not {reply.site}", reply.answer)]


def counted(reply, n=[]):  # noqa: B006
    n.append(1)
    return SiteTimeout("late") if len(n) == 4 else reply.answer


def once_held(self, run):
    """Reserve the sites for the first run, and never release them."""
    if vars(self).setdefault("held_by", run) != run:
        raise SitesBusy("reserved")
    return nullcontext()


def no_total(self, names, request, timeout):
    return Total({}, {}, {})


def doubled(self, names, request, timeout):
    replies = dict(self.ask(names, request, timeout))
    arrays = {
        field: sum(2 * reply.arrays[field] for reply in replies.values())
        for field in count_and_sum.answers
    }
    return Total(arrays, {n: Summand(r.header, 0, {}) for n, r in replies.items()}, {"total": 0})


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (spoil(lambda answer: None, sites="b"), "every site must answer once"),
        (twice, "answered twice"),
        (stranger, "got answers from"),
        (spoil(lambda answer: SiteTimeout("late")), "did not answer: late"),
        (counted, "repeating a round gave a different answer"),
        (lambda reply: [(reply.site, "text")], "with a str"),
        (spoil(lambda answer: None, question="no_such_question"), "must be returned as its answer"),
    ],
)
def test_a_broken_promise_of_an_engine_is_named(script, text):
    with pytest.raises(AssertionError, match=text):
        check_engine(ScriptedEngine(ROWS, script))


@pytest.mark.parametrize(
    ("member", "value", "text"),
    [
        (
            "fingerprints",
            lambda self: {"stranger": "0"},
            r"fingerprints\(\) includes unknown sites",
        ),
        ("sites", {"stranger": None}, "sites includes unknown sites"),
        ("keys", {"stranger": "0"}, "keys includes unknown sites"),
        ("proofs", {"stranger": {}}, "proofs includes unknown sites"),
        ("proofs", {"a": {}}, "proofs has none of"),
        ("proofs", {"a": {}, "b": {}, "c": {}}, "proofs: the proof of site 'a' is malformed"),
        ("absent", {"a": "not online"}, "named and absent"),
        ("lacks", {"speed": "slow"}, "lacks has"),
        ("lacks", {"secure": ""}, "must give a reason"),
        ("declares", "no", "must be a bool"),
        ("sign", lambda self, data: "text", "must return bytes or None"),
        ("hold", once_held, "must leave the sites"),
        ("ask_total", no_total, "for a total"),
        ("ask_total", doubled, "other than the sum of the answers"),
    ],
)
def test_a_broken_member_of_an_engine_is_named(member, value, text):
    engine = ScriptedEngine(ROWS, as_bytes=False, hides_rows=True)
    setattr(engine, member, MethodType(value, engine) if callable(value) else value)
    with pytest.raises(AssertionError, match=text):
        check_engine(engine)


def test_anything_that_is_not_derived_from_the_contract_is_refused():
    with pytest.raises(AssertionError, match="must be derived from"):
        check_engine(ROWS)


def test_an_engine_over_other_rows_is_noticed():
    others = {name: rows + np.eye(*rows.shape) for name, rows in ROWS.items()}
    with pytest.raises(AssertionError, match="components from solver 'covariance' differ"):
        check_engine(LocalEngine(ROWS), others)


def test_a_script_sees_every_reply_and_the_engine_counts_what_crossed():
    seen = []

    def script(reply):
        seen.append((reply.round, reply.question, reply.site))
        return reply.answer

    engine = ScriptedEngine(ROWS, script)
    run = FederatedPCA(2).fit(Federation(engine)).run_
    assert len(seen) == 3 * run.rounds
    assert [asked.question for asked in engine.asked] == [e["question"] for e in run.history]
    assert (engine.bytes_down, engine.bytes_up) == (run.bytes_down, run.bytes_up)
