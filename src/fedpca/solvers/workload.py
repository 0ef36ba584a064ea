"""Estimate the time and the memory that the messages of a fit cost the machines.

A site multiplies blocks with its rows, or with A'A if that is cheaper, and reads its rows for the other
questions. All sites work at once, so the one with the most rows counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from fedpca.errors import InputError
from fedpca.linalg.krylov import MAX_KRYLOV_BYTES
from fedpca.rows.in_memory import BLOCK_BYTES
from fedpca.rows.standardized import MAX_CACHE_BYTES
from fedpca.solvers.contract import check_positive
from fedpca.solvers.costs import Sizes
from fedpca.solvers.one_round.merge import summarize_about, summarize_rows
from fedpca.solvers.traffic import Crossed

LATENCY_S = 0.05  # of a round: a question to another city and its answer
BANDWIDTH = 12.5e6  # bytes per second, which is 100 Mbit/s
SUMMARIES = (summarize_rows.name, summarize_about.name)
LOCAL_PRODUCTS = {"local_power_steps": 5, "consensus_step": 7}  # roughly, per site and round
DENSE_SLOWDOWN = 4  # of an eigendecomposition, compared with products of as many operations


@dataclass(frozen=True)
class Speed:
    """The speeds from which a plan computes times.

    ``latency`` is in seconds per round. ``bandwidth`` is in bytes per second, for the coordinator's
    connection, which all sites share. ``flops`` are operations per second at a site and the
    coordinator, and ``read_rate`` is how many bytes of rows a site reads per second.
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


@dataclass(frozen=True)
class Work:
    """What the machines do in a fit: operations, reading, and memory. All are estimates."""

    crossed: Sequence[Crossed]
    sizes: Sizes  # at the site with the most rows
    n_sites: int

    @property
    def n_directions(self) -> int:
        """Return how many directions a site sends in a summary, or 0."""
        found = [each.lengths["r"] for each in self.crossed if each.question.name in SUMMARIES]
        return max(found, default=0)

    @property
    def _products(self) -> list[tuple[int, int]]:
        """Return the widths of the blocks that the site multiplies, and how many times each."""
        return [
            (each.lengths["k"], each.times * LOCAL_PRODUCTS.get(each.question.name, 1))
            for each in self.crossed
            if "Z" in each.question.asks
        ]

    @property
    def _keeps_gram(self) -> bool:
        """Return whether the site keeps A'A, since that is cheaper than products with the rows."""
        n, d = self.sizes.here, self.sizes.d
        columns = sum(width * times for width, times in self._products)
        return 8 * d**2 <= MAX_CACHE_BYTES and n * d + 2 * d * columns < 4 * n * columns

    def _has(self, *names: str) -> bool:
        return any(each.question.name in names for each in self.crossed)

    def seconds(self, speed: Speed, n_bytes: int) -> float:
        """Return the time of the fit according to the model."""
        rounds = sum(each.times for each in self.crossed)
        network = rounds * speed.latency + n_bytes / speed.bandwidth
        return network + self._site_seconds(speed) + self._server_operations() / speed.flops

    def _site_seconds(self, speed: Speed) -> float:
        n, d = self.sizes.here, self.sizes.d
        reading = 8 * n * d / speed.read_rate
        passes = sum(
            each.question.reads_rows and "Z" not in each.question.asks for each in self.crossed
        )
        seconds = passes * reading
        if self._has("covariance_triangle", "noisy_scatter"):
            seconds += n * d**2 / speed.flops
        if self._has("triangular_factor"):
            seconds += 2 * n * d**2 / speed.flops
        if self.n_directions:
            seconds += 6 * n * d * self.n_directions / speed.flops
        if not self._products:
            return seconds
        if self._keeps_gram:
            seconds += max(n * d**2 / speed.flops, reading)
            n, reading = d, 8 * d**2 / speed.read_rate
            return seconds + sum(
                times * max(2 * n * d * width / speed.flops, reading)
                for width, times in self._products
            )
        return seconds + sum(
            times * max(4 * n * d * width / speed.flops, reading) for width, times in self._products
        )

    def _server_operations(self) -> float:
        d, k, m = self.sizes.d, self.sizes.k, self.n_sites
        if self._has("covariance_triangle", "noisy_scatter"):
            return DENSE_SLOWDOWN * (4 / 3 * d**3 + 2 * d**2 * k)
        if self._has("triangular_factor"):
            return DENSE_SLOWDOWN * (m + 4) * 2 * d**3
        if self.n_directions:
            return DENSE_SLOWDOWN * 2 * d * (m * self.n_directions) ** 2
        columns = sum(width * times for width, times in self._products)
        if self._is_lanczos:
            rounds = max(1, sum(times for _, times in self._products))
            return 4 * d * columns**2 + DENSE_SLOWDOWN * columns**3 * rounds / 3
        return sum(DENSE_SLOWDOWN * 4 * d * width**2 * times for width, times in self._products)

    @property
    def _is_lanczos(self) -> bool:
        asked = [each.question.name for each in self.crossed if "Z" in each.question.asks]
        return asked == ["covariance_product"]

    def site_memory(self) -> int:
        """Return the bytes that a site needs at most, in addition to rows that it has in memory."""
        n, d = self.sizes.here, self.sizes.d
        block = min(BLOCK_BYTES, 8 * n * d)
        message = max(max(each.down, *each.up) // each.times for each in self.crossed)
        gram = self._has("covariance_triangle", "triangular_factor", "noisy_scatter")
        if gram or (self._products and self._keeps_gram):
            return block + 3 * 8 * d**2 + message
        widest = max([self.n_directions, *(width for width, _ in self._products)])
        return block + 4 * 8 * d * widest + message

    def server_memory(self) -> int:
        """Return the bytes that the coordinator needs at most."""
        d, m = self.sizes.d, self.n_sites
        answer = max(max(each.up) // each.times for each in self.crossed)
        if self._has("covariance_triangle", "noisy_scatter"):
            return 2 * answer + 3 * 8 * d**2
        if self._has("triangular_factor") or self.n_directions:
            return m * answer + 3 * 8 * d * min(
                d, max(m * self.n_directions, d * (not self.n_directions))
            )
        widest = max([1, *(width for width, _ in self._products)])
        block = 8 * d * widest
        basis = 0
        if self._is_lanczos:
            columns = sum(width * times for width, times in self._products)
            basis = min(8 * d * min(columns, d), max(MAX_KRYLOV_BYTES, 4 * block))
        return basis + 6 * block


def speed_of(
    latency: float, bandwidth: float, flops: float | None, read_rate: float | None
) -> Speed:
    """Return the speeds, measuring those of this machine that are not given."""
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
