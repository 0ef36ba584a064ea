"""What all tests share."""

from __future__ import annotations

import gc
import os
from zlib import crc32

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

MANY_CASES = ("audit", "estimators", "privacy", "solvers")  # folders of tests

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
    benchmarks run is covered by other tests as well, so it is not measured. Neither are all cases of
    tests that send every solver, seed and shape through the same lines: every second one is.
    """
    items.sort(key=lambda item: item.get_closest_marker("process") is None)
    for item in items:
        folder = item.path.parent.name
        is_one_of_many = hasattr(item, "callspec") and folder in MANY_CASES
        if (
            item.get_closest_marker("slow")
            or folder == "project"
            or (is_one_of_many and crc32(item.nodeid.encode()) % 2)
        ):
            item.add_marker("no_cover")


@pytest.fixture(autouse=True)
def leave_child_processes_unmeasured(request, monkeypatch):
    if request.node.get_closest_marker("no_cover"):
        for name in [name for name in os.environ if name.startswith("COVERAGE")]:
            monkeypatch.delenv(name)
