"""Estimate how much time the questions of a fit take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from fedpca.errors import InputError
from fedpca.rows.leading import MAX_DENSE_SIDE
from fedpca.solvers.contract import check_positive
from fedpca.solvers.costs import LANCZOS_ROUNDS
from fedpca.solvers.planning.demand import CLIMBS, FACTOR, FLOAT, SCATTERS, SEPARATES, Demand

LATENCY_S = 0.05  # seconds of a round: a question to another city and its answer
BANDWIDTH = 12.5e6  # bytes per second, which is 100 Mbit/s
DENSE_SLOWDOWN = 4  # how much slower an eigendecomposition is than products with as many operations
# questions that make many arrays the size of the rows: how many readings of the rows each costs
PASSES = {
    "count_values": 75,
    "hard_round": 50,
    "soft_round": 30,
    "gradient_round": 60,
    "clipped_product": 20,
    "finish_robust": 300,
}


@dataclass(frozen=True)
class Speed:
    """The speeds from which a plan computes times.

    ``latency`` is in seconds per round. ``bandwidth`` is in bytes per second, for the coordinator's
    connection, which all sites share. ``flops`` are operations per second, at a site and at
    the coordinator, and ``read_rate`` is how many bytes of rows a site reads per second.
    """

    latency: float = LATENCY_S
    bandwidth: float = BANDWIDTH
    flops: float = 1e10
    read_rate: float = 1e9

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "latency":
                check_positive(name, value)
        if not isinstance(self.latency, Real) or not 0 <= self.latency < float("inf"):
            raise InputError(f"latency={self.latency!r} must be a number of seconds, at least 0")


def seconds_of(demand: Demand, speed: Speed, n_bytes: int) -> float:
    """Return the seconds that a fit takes according to the model, if it moves this many bytes."""
    rounds = sum(each.times for each in demand.crossed)
    network = rounds * speed.latency + n_bytes / speed.bandwidth
    return network + _site_seconds(demand, speed) + _server_operations(demand) / speed.flops


def _site_seconds(demand: Demand, speed: Speed) -> float:
    n, d = demand.sizes.here, demand.sizes.d
    reading = FLOAT * n * d / speed.read_rate
    seconds = reading * sum(
        each.times * PASSES.get(each.question.name, 1)
        for each in demand.crossed
        if each.question.reads_rows and "Z" not in each.question.asks
    )
    if demand.has(*SCATTERS):
        seconds += n * d**2 / speed.flops
    if demand.has(FACTOR):
        seconds += 2 * n * d**2 / speed.flops
    if demand.n_directions:
        seconds += 6 * n * d * demand.n_directions / speed.flops
    if demand.has(*CLIMBS):
        seconds += _climbing(demand) / speed.flops
    if not demand.products:
        return seconds
    if demand.keeps_gram:
        seconds += max(n * d**2 / speed.flops, reading)
        n, reading = d, FLOAT * d**2 / speed.read_rate
        return seconds + sum(
            times * max(2 * n * d * width / speed.flops, reading)
            for width, times in demand.products
        )
    return seconds + sum(
        times * max(4 * n * d * width / speed.flops, reading) for width, times in demand.products
    )


def _climbing(demand: Demand) -> float:
    """Return the number of operations that a site needs to find its own directions at each point."""
    n, d, r = demand.sizes.here, demand.sizes.d, max(1, demand.n_local)
    climbs = sum(
        each.times * each.lengths.get("m", 1)
        for each in demand.crossed
        if each.question.name == "power_step"
    )
    if d <= MAX_DENSE_SIDE:
        return climbs * (DENSE_SLOWDOWN * 4 / 3 * d**3)
    if n <= MAX_DENSE_SIDE:
        return climbs * (2 * n**2 * d + DENSE_SLOWDOWN * 4 / 3 * n**3)
    return climbs * LANCZOS_ROUNDS * r * (2 * d**2 if demand.keeps_gram else 4 * n * d)


def _server_operations(demand: Demand) -> float:
    d, k, m = demand.sizes.d, demand.sizes.k, demand.n_sites
    if demand.has(*SCATTERS):
        return DENSE_SLOWDOWN * (4 / 3 * d**3 + 2 * d**2 * k)
    if demand.has(FACTOR):
        return DENSE_SLOWDOWN * (m + 4) * 2 * d**3
    if demand.n_directions:
        return DENSE_SLOWDOWN * 2 * d * (m * demand.n_directions) ** 2
    if demand.is_lanczos:
        rounds = max(1, sum(times for _, times in demand.products))
        return 4 * d * demand.columns**2 + DENSE_SLOWDOWN * demand.columns**3 * rounds / 3
    products = sum(DENSE_SLOWDOWN * 4 * d * width**2 * times for width, times in demand.products)
    rounds = sum(each.times for each in demand.crossed if each.question.name in SEPARATES)
    return products + DENSE_SLOWDOWN * 4 * d * demand.n_scores**2 * rounds


def speed_of(
    latency: float, bandwidth: float, flops: float | None, read_rate: float | None
) -> Speed:
    """Return the speeds; on this machine, measure those that are not given."""
    speed = Speed(latency, bandwidth, 1.0 if flops is None else flops, read_rate or 1.0)
    if read_rate is not None and read_rate <= 0:
        check_positive("read_rate", read_rate)
    if flops is None:
        speed = replace(speed, flops=_measured_flops())
    return speed if read_rate is not None else replace(speed, read_rate=_measured_read_rate())


def _measured_flops() -> float:
    """Return the operations per second of products with blocks, as solvers compute them."""
    A, Z = np.ones((1024, 512)), np.ones((512, 16))
    return 2.0 * A.size * Z.shape[1] / _fastest(lambda: A @ Z)


def _measured_read_rate() -> float:
    """Return how many bytes of rows in memory are read per second."""
    A = np.ones(1 << 20)
    return A.nbytes / _fastest(lambda: A.sum())


def _fastest(work: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return max(min(seconds), 1e-9)
