"""A site that has lost its memory of a run answers no more of it, whatever the question."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.engines.local import LocalEngine
from fedpca.errors import InputError, QuorumLost
from fedpca.protocol.message import compose
from fedpca.protocol.question import _REGISTRY
from fedpca.site.store import MEMORY

RNG = np.random.default_rng(3)
NAMES = ("a", "b", "c", "d", "e")
ROWS = {name: RNG.normal(size=(60, 5)) * [1, 2, 3, 4, 5] for name in ("north", "west")}
QUESTIONS = [n for n, q in _REGISTRY.items() if q.function.__module__.startswith("fedpca.")]
GONE = r"site 'west', round {}, .*needs the memory from round {}, which the site .*new journal"


class Stopped(Exception):
    pass


def engine():
    """Two sites whose columns stand in other orders, and which keep their memory to themselves."""
    north = pa.table(dict(zip(NAMES, ROWS["north"].T, strict=True)))
    west = pa.table(dict(zip(NAMES[::-1], ROWS["west"].T[::-1], strict=True)))
    policy = Policy(gather=False)
    named = {"north": north, "west": west}
    sites = {name: Site(rows, name=name, policy=policy) for name, rows in named.items()}
    made = LocalEngine(sites)
    made.fingerprints = dict  # as across machines
    return made


def fit(engine, **options):
    return FederatedPCA(2, scale=True, random_state=0).fit(Federation(engine, **options))


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_site_that_comes_back_without_its_memory_within_a_fit_is_refused(rounds):
    here = engine()

    def on_round(entry):
        if entry["round"] == rounds:
            here._sites["west"] = engine()._sites["west"]

    with pytest.raises(QuorumLost, match=GONE.format(rounds + 1, rounds)):
        fit(here, on_round=on_round)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_run_is_not_resumed_where_a_site_has_lost_its_memory(rounds, tmp_path):
    def on_round(entry):
        if entry["round"] == rounds:
            raise Stopped

    first = engine()
    with pytest.raises(Stopped):
        fit(first, journal=tmp_path / "j", on_round=on_round)
    second = engine()
    second._sites["north"] = first._sites["north"]
    with pytest.raises(QuorumLost, match=GONE.format(0, rounds)):  # of the plan, declared again
        fit(second, journal=tmp_path / "j")


def test_columns_that_changed_since_they_were_told_are_noticed(tmp_path):
    def site(names):
        pq.write_table(
            pa.table(dict(zip(names, ROWS["west"].T, strict=True))), tmp_path / "w.parquet"
        )
        return Site(tmp_path / "w.parquet", name="west", store=tmp_path)

    here = LocalEngine([site(NAMES)])

    def on_round(entry):
        if entry["round"] == 1:
            here._sites["west"] = site(NAMES[::-1])

    with pytest.raises(InputError, match="the rows have changed since the run began"):
        fit(here, on_round=on_round)


@pytest.mark.parametrize("name", QUESTIONS)
def test_no_question_is_answered_without_the_memory_of_the_run(name):
    site = Site(ROWS["north"], name="north")
    header = {"run": "r", "round": 3, "question": name, "verb": "sum", "n_sites": 2, "memory": 2}
    reply = site.answer(compose(header, {}))
    assert "needs the memory from round 2, which the site does not have" in reply.header["text"]


def test_a_damaged_memory_stops_its_run_and_no_other(tmp_path):
    def site():
        return Site(ROWS["west"], name="west", store=tmp_path)

    fit(LocalEngine([site()]))
    file = site().file(MEMORY)
    file.write_bytes(file.read_bytes()[:50])
    plain = fit(LocalEngine([Site(ROWS["west"], name="west")]))
    again = fit(LocalEngine([site()]))
    assert np.array_equal(again.components_, plain.components_)
