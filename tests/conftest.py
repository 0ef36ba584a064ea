"""What all tests share."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from zlib import crc32

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]

# Folders whose tests send every solver, seed, and shape through the same lines: one case of so many is
# measured by coverage. Of the cases of other tests, it is every second one.
ONE_MEASURED_OF = {"audit": 4, "estimators": 4, "privacy": 4, "solvers": 4}

# Tests flush thousands of small files, and a disk takes milliseconds for each. Memory takes none.
IN_MEMORY, ENOUGH_BYTES = Path("/dev/shm"), 4 << 30
HAS_ROOM = os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > ENOUGH_BYTES
if HAS_ROOM and "TMPDIR" not in os.environ:
    os.environ["TMPDIR"] = tempfile.tempdir = str(IN_MEMORY)

# A shell lets what it starts in the background ignore interrupts; so would the sites that tests stop.
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    and threading.current_thread() is threading.main_thread()
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "fedpca",
    deadline=None,  # timings on shared machines say nothing
    max_examples=15,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=True,
)
settings.register_profile("long", settings.get_profile("fedpca"), max_examples=300)
settings.load_profile("fedpca")  # unless --hypothesis-profile names the other one


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Import and list all tests without looking for garbage among what stays until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()  # or libraries report what is still there at the end as leaks


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Leave out the docstrings of tests, which have no examples."""
    return [found for found in (yield) if not isinstance(found, DoctestModule)]


def pytest_collection_modifyitems(items):
    """Begin with tests that start processes: they take longest, and mostly wait.

    Coverage makes code that is mostly Python twice as slow. What slow tests and the pages, papers and
    benchmarks run is covered by other tests as well, so it is not measured. Neither are most cases of a
    test with many. So the share of lines that a run reports is at most the true one.
    """
    items.sort(key=lambda item: item.get_closest_marker("process") is None)
    for item in items:
        folder = item.path.relative_to(ROOT).parts[1]  # tests/solvers, or src/fedpca
        of = ONE_MEASURED_OF.get(folder, 2) if hasattr(item, "callspec") else 1
        is_left_out = item.get_closest_marker("slow") or folder == "project"
        if is_left_out or crc32(item.nodeid.encode()) % of:
            item.add_marker("no_cover")


class ClosedFigures:
    """Close the figures of each test and of each example in a docstring."""

    def pytest_runtest_teardown(self):
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")


def pytest_configure(config):
    config.pluginmanager.register(ClosedFigures())  # hooks of this file do not see docstrings


@pytest.fixture(autouse=True)
def leave_child_processes_unmeasured(request, monkeypatch):
    if request.node.get_closest_marker("no_cover"):
        for name in [name for name in os.environ if name.startswith("COVERAGE")]:
            monkeypatch.delenv(name)
