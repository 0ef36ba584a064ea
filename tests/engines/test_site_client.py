"""A site's process that stood still does not speak for the site until it has been let in again."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse

from fedpca.engines.flower import site_client as node


class Server:
    """What a node calls, written down; the process stands still after its first look for a question."""

    def __init__(self, monkeypatch, seconds):
        self.calls, self.told, self._now = [], [], 1000.0
        self.address, self._seconds = "server:9092", seconds
        monkeypatch.setattr(node, "_now", lambda: self._now)
        monkeypatch.setattr(node, "beating", self._beating)
        monkeypatch.setattr(node.time, "sleep", lambda seconds: None)

    def client(self, kind, *interceptors):
        return nullcontext(SimpleNamespace(**{name: self._call(name) for name in ANSWERS}))

    def _call(self, name):
        def call(request):
            if self.calls.count("ActivateNode") == 1 and name == "ActivateNode":
                raise KeyboardInterrupt  # seen enough
            self.calls.append(name)
            if name == "PullMessages":
                if self.calls.count(name) == 3:
                    raise KeyboardInterrupt
                self._now += self._seconds
                self._beat()
            return ANSWERS[name]

        return call

    def _beating(self, beat, every):
        self._beat = beat
        return SimpleNamespace(set=lambda: None)


ANSWERS = {
    "ActivateNode": ActivateNodeResponse(node_id=1),
    "SendNodeHeartbeat": None,
    "PullMessages": PullMessagesResponse(),
    "DeactivateNode": None,
}


def join(server):
    with pytest.raises(KeyboardInterrupt):
        node.join(server, ec.generate_private_key(ec.SECP384R1()), None, server.told.append)


def test_a_process_that_stood_still_asks_to_be_let_in_again(monkeypatch):
    server = Server(monkeypatch, seconds=30.0)
    join(server)
    # no sign of life, no further look, and no farewell: another process may be that node by now
    assert server.calls == ["ActivateNode", "PullMessages"]
    assert server.told[1].startswith("this process was paused or disconnected for 30 s")


def test_a_process_that_is_heard_of_goes_on(monkeypatch):
    server = Server(monkeypatch, seconds=15.0)
    join(server)
    beat = ["PullMessages", "SendNodeHeartbeat"]
    assert server.calls == ["ActivateNode", *beat, *beat, "PullMessages", "DeactivateNode"]


def test_a_process_that_waits_for_questions_needs_no_heartbeats(monkeypatch):
    server = Server(monkeypatch, seconds=node.QUESTION_HOLD_S)
    join(server)
    assert server.calls == ["ActivateNode", *3 * ["PullMessages"], "DeactivateNode"]


def test_the_seconds_of_a_suspend_count(monkeypatch):
    assert node._now() == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=5)
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")  # as on a system that has no such clock
    assert node._now() == pytest.approx(time.time(), abs=5)
