"""What all tests share."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fedpca",
    deadline=None,  # timings on shared machines say nothing
    max_examples=15,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=True,
)
settings.register_profile("long", settings.get_profile("fedpca"), max_examples=300)
settings.load_profile("fedpca")  # unless --hypothesis-profile names the other one


def pytest_collection_modifyitems(items):
    """Begin with tests that start processes: they take longest, and mostly wait.

    Coverage makes code that is mostly Python nearly twice as slow. What slow tests and the pages,
    papers and benchmarks run is covered by other tests as well, so it is not measured.
    """
    items.sort(key=lambda item: item.get_closest_marker("process") is None)
    for item in items:
        if item.get_closest_marker("slow") or item.path.parent.name == "project":
            item.add_marker("no_cover")


@pytest.fixture(autouse=True)
def leave_child_processes_unmeasured(request, monkeypatch):
    if request.node.get_closest_marker("no_cover"):
        for name in [name for name in os.environ if name.startswith("COVERAGE")]:
            monkeypatch.delenv(name)
