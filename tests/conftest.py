"""What all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fedpca",
    deadline=None,  # timings on shared machines say nothing
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=True,
)
settings.load_profile("fedpca")


def pytest_collection_modifyitems(items):
    """Begin with tests that start processes: they take longest, and mostly wait."""
    items.sort(key=lambda item: item.get_closest_marker("process") is None)
