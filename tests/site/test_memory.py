"""What a site remembers has a type, comes back as it was, and has an end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from fedpca import Federation, Site, question
from fedpca.arrays import Array
from fedpca.errors import FileError, MessageError
from fedpca.protocol.message import compose
from fedpca.site import conversation
from fedpca.site.memory import recall, remember, remembers


@dataclass(frozen=True)
class State:
    X: Array
    beta: float
    rounds: int
    is_new: bool
    order: Array | None = None
    energy: float | None = None


def test_a_dataclass_comes_back_with_its_types():
    memory = {}
    remember(memory, State(np.eye(2), 0.5, 3, True, energy=2.5))
    assert all(isinstance(array, np.ndarray) for array in memory.values())
    state = recall(memory, State)
    assert (state.beta, state.rounds, state.is_new, state.order) == (0.5, 3, True, None)
    assert (type(state.beta), type(state.rounds), type(state.is_new)) == (float, int, bool)
    assert state.energy == 2.5
    assert np.array_equal(state.X, np.eye(2))


def test_a_field_that_is_none_forgets_what_was_there():
    memory = {}
    remember(memory, State(np.eye(2), 0.5, 3, False, order=np.arange(2)))
    remember(memory, State(np.eye(2), 0.5, 4, False))
    assert recall(memory, State).order is None


def test_what_was_not_remembered_is_an_error_that_names_it():
    assert not remembers({}, State)
    with pytest.raises(MessageError, match=r"State.*new journal"):
        recall({}, State)


@question(asks={"step": "float64"}, answers={"total": "float64"}, remembers=True)
def add_to_state(site, step):
    before = site.recall(State).beta if site.remembers(State) else 0.0
    site.remember(State(np.zeros(1), before + float(step), 1, False))
    return {"total": site.recall(State).beta}


@question(answers={"total": "float64"})
def write_without_saying_so_to_state(site):
    site.remember(State(np.zeros(1), 0.0, 1, False))
    return {"total": 0.0}


def test_questions_remember_dataclasses_and_only_those_that_say_so():
    fed = Federation.local([np.eye(3)])
    assert fed.sum(add_to_state, step=np.float64(2))["total"] == 2
    assert fed.sum(add_to_state, step=np.float64(3))["total"] == 5
    site = Site(np.eye(3), name="a")
    header = {"run": "r", "round": 1, "verb": "sum", "n_sites": 1, "memory": 0}
    asked = compose({**header, "question": "write_without_saying_so_to_state"}, {})
    assert site.answer(asked).header["error"] == "SiteFailed"


def test_a_site_knows_a_bounded_number_of_runs_that_are_over(monkeypatch):
    monkeypatch.setattr(conversation, "MAX_ENDED_RUNS", 3)
    site = Site(np.eye(3), name="a")

    def ask(run):
        header = {"round": 1, "verb": "gather", "n_sites": 1, "memory": 0}
        return site.answer(compose({**header, "run": run, "question": "column_names"}, {})).header

    for number in range(6):
        assert "error" not in ask(f"run-{number}")
    assert len(site.conversation._ended) == 3
    assert ask("run-4")["error"] == "MessageError"  # a late question of a run that is over


def test_a_site_that_cannot_save_its_memory_answers_again_once_it_can(tmp_path, caplog):
    site = Site(np.eye(2), name="a", store=tmp_path / "store")
    header = {"run": "r", "round": 1, "question": "add_to_state", "verb": "sum", "n_sites": 1}
    request = compose({**header, "memory": 0}, {"step": np.float64(2)})
    (tmp_path / "store").touch()  # a file in place of the folder
    refused = site.answer(request).header
    assert refused["error"] == "SiteFailed"
    assert refused["text"] == "the site cannot save its memory; free up disk space at the site"
    assert str(tmp_path) in caplog.text  # where it is told to the site alone
    assert not site.remembers(State)
    (tmp_path / "store").unlink()
    assert float(site.answer(request).arrays["total"]) == 2.0


@question(answers={"x": "float64"})
def read_a_missing_file(site):
    raise FileError("/srv/rows/model.fedpca cannot be read")


def test_an_error_that_may_name_a_path_stays_at_the_site(caplog):
    site = Site(np.eye(2), name="a")
    header = {
        "run": "r",
        "round": 1,
        "question": "read_a_missing_file",
        "verb": "sum",
        "n_sites": 1,
    }
    refused = site.answer(compose({**header, "memory": 0}, {})).header
    assert (refused["error"], refused["text"]) == (
        "SiteFailed",
        "FileError; see the site's log for details",
    )
    assert "/srv/rows" in caplog.text
