"""What goes on beside the server goes on after a failure."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedpca.engines.flower.server import Watcher


class State:
    """A server with one site online, and one run that has finished."""

    def __init__(self):
        self.swept, self.broken = [], set()

    def _answer(self, name, value):
        if name in self.broken:
            raise ValueError(f"{name} is broken")
        return value

    def get_node_info(self, owner_aids):
        return self._answer("nodes", [SimpleNamespace(name="north", status="online")])

    def get_run_info(self, statuses):
        return self._answer("runs", [SimpleNamespace(run_id=7)])

    def cleanup_run(self, run_id):
        self.swept.append(self._answer("cleanup", run_id))


@pytest.mark.parametrize("broken", ["nodes", "reservations", "tell", "runs", "cleanup"])
def test_a_task_that_fails_is_tried_again_and_stops_no_other(broken, caplog):
    state, told, shown = State(), [], []
    state.broken.add(broken)

    def tell(text):
        state._answer("tell", told.append(text))

    reservations = SimpleNamespace(current=lambda: state._answer("reservations", []))
    watcher = Watcher(state, tell, reservations, lambda *sites: shown.append(sites))
    for _ in range(3):
        watcher.look()
    assert len(caplog.records) == 1  # not one a second
    assert f"{broken} is broken" in caplog.text
    assert bool(told) == (broken != "nodes")
    assert bool(shown) == (broken != "reservations")
    assert bool(state.swept) == (broken not in ("runs", "cleanup"))
    state.broken.clear()
    watcher.look()
    assert told == ["north joined"]
    assert shown[-1] == ({"north"}, {})
    assert state.swept == [7]
