"""What tests of engines share."""

from __future__ import annotations

import signal

import pytest

from fedpca.engines.flower import engine
from processes import HANG_S, Processes

FAILED = pytest.StashKey[bool]()


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Nobody is given up because the machine is busy."""
    monkeypatch.setattr(engine, "ABSENCE_LIMIT_S", HANG_S)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Note that a test failed, for the fixture below."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(autouse=True)
def leave_no_site_behind(request):
    """Stop what a failed test has started, or each later test would wait for places that are taken."""
    there = request.getfixturevalue("there") if "there" in request.fixturenames else None
    n_before = len(there.running) if isinstance(there, Processes) else 0
    yield
    if request.node.stash.get(FAILED, False) and isinstance(there, Processes):
        for process in there.running[n_before:]:
            if process.poll() is None:
                there.stop(process, signal.SIGKILL)
