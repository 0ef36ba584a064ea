"""Estimate the time and the memory that a site and the coordinator need for the questions of a fit.

A question declares what a site does to answer (`fedpca.protocol.question.WORK`). A site multiplies
blocks with its rows, or with A'A if that is cheaper, and reads its rows for the other questions. All
sites work in parallel, so only the site with the most rows counts. Time follows from a simple model::

    seconds = rounds * latency + bytes of all sites / bandwidth        the network
            + the slowest site's operations / flops, or its reading    the sites, in parallel
            + the coordinator's operations / flops                     the coordinator

For memory, each kind of work has a formula for the arrays that are alive at the same time, and the
largest result counts. `python benchmarks/plans.py memory` compares the estimates with the resident
memory of real fits. They do not include the program, or rows that a site has in memory anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from fedpca.errors import InputError
from fedpca.rows.in_memory import BLOCK_BYTES
from fedpca.rows.leading import MAX_DENSE_SIDE
from fedpca.rows.standardized import FEW_FEATURES, MAX_CACHE_BYTES
from fedpca.solvers.contract import check_positive
from fedpca.solvers.costs import LANCZOS_ROUNDS
from fedpca.solvers.planning.messages import Crossed

LATENCY_S = 0.05  # seconds of a round: a question to another city and its answer
BANDWIDTH = 12.5e6  # bytes per second, which is 100 Mbit/s
DENSE_SLOWDOWN = 4  # how much slower an eigendecomposition is than products with as many operations
FLOAT = 8  # bytes
PASS_COST = 4.0  # cost of a pass over rows in memory, as in `fedpca.rows.in_memory`
LEAST = 100_000  # bytes of the ledger, headers, and other Python objects
ROBUST_ENTRIES = 1 << 17  # entries of a block, as in `fedpca.solvers.robust.blocks`
ROBUST_ROWS = 64  # least number of rows in a block
# how many arrays of the named size are alive at the same time
SITE_GRAMS = 2.5  # d x d
SITE_FACTORS = 4  # blocks of rows, while their triangular factor is found
SITE_CELLS = 11  # small blocks, while outliers are separated
SITE_SCORES = 3  # n x r
SERVER_GRAMS = 2.5  # d x d
SERVER_BLOCKS = 18  # d x k, between products
SERVER_BASES = 4  # d x columns, of a basis in which directions are compared
SERVER_CLIMBS = 15  # d x m k, of points and products
SERVER_SUMS = 50  # d x r, of robust rounds
SERVER_COUNTS = 6  # histograms


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


class Product(NamedTuple):
    """A block that a site multiplies with its rows: how many columns it has, and how often."""

    width: int
    times: int


@dataclass(frozen=True)
class Demand:
    """The questions of a fit, and the size of the rows that they are about.

    ``n`` and ``n_local`` are those of the site with the most rows. ``basis_bytes`` is how much memory
    the coordinator may use to keep all blocks; it is 0 if the solver keeps only the last ones.
    """

    crossed: Sequence[Crossed]
    n: int
    d: int
    k: int
    n_sites: int
    n_local: int = 0
    basis_bytes: int = 0

    @property
    def products(self) -> list[Product]:
        """Return the blocks that the site multiplies."""
        found = []
        for each in self.crossed:
            if _is_product(each):
                found.append(Product(each.lengths["k"], each.times * each.question.passes))
            elif each.question.work == "climb":
                found.append(Product(each.lengths.get("m", 1) * each.lengths["k"], each.times))
        return found

    def has(self, work: str) -> bool:
        """Return whether any question asks for this kind of work."""
        return any(each.question.work == work for each in self.crossed)

    def most(self, work: str, length: str) -> int:
        """Return the largest length in questions that ask for this kind of work, or 0."""
        own = (each.lengths for each in self.crossed if each.question.work == work)
        return max((lengths[length] for lengths in own), default=0)

    @property
    def keeps_gram(self) -> bool:
        """Return whether the site keeps A'A, as `fedpca.rows.standardized` decides."""
        n, d = self.n, self.d
        if FLOAT * d**2 > MAX_CACHE_BYTES or not self.products:
            return False
        if d <= FEW_FEATURES:
            return True
        columns = max(self.widest * LANCZOS_ROUNDS, self.columns)
        one_pass = n * d * PASS_COST
        cached = n * d**2 + 2 * d**2 * columns + one_pass
        return cached < 4 * n * d * columns + one_pass * columns / self.widest

    @property
    def n_directions(self) -> int:
        """Return how many directions a site sends in a summary, or 0."""
        return self.most("summary", "r")

    @property
    def n_scores(self) -> int:
        """Return how many scores of each row a site keeps, or 0."""
        return self.most("separate", "r")

    @property
    def widest(self) -> int:
        """Return the largest number of columns that the site multiplies together, or 0."""
        return max((product.width for product in self.products), default=0)

    @property
    def columns(self) -> int:
        """Return how many columns the site multiplies in all."""
        return sum(product.width * product.times for product in self.products)


def _is_product(each: Crossed) -> bool:
    """Return whether a site multiplies a block that it is asked about, and sends a block."""
    block = ("d", "k")
    fields = (each.question.asks.values(), each.question.answers.values())
    is_block = all(block in [declared.dimensions for declared in part] for part in fields)
    return is_block and not each.question.work and each.question.reads_rows


def site_memory(demand: Demand) -> int:
    """Return the bytes that a site needs at most, in addition to rows that it has in memory."""
    n, d = demand.n, demand.d
    block, gram, column = min(BLOCK_BYTES, FLOAT * n * d), FLOAT * d**2, FLOAT * d
    message = max(max(each.down, *each.up) // each.times for each in demand.crossed)
    needs = [0.0]
    if demand.has("scatter"):
        needs.append(SITE_GRAMS * gram)
    if demand.has("factor"):
        needs.append(SITE_FACTORS * block + gram / 2)
    if demand.n_directions:
        inner = 2 * gram if d <= n else FLOAT * n**2 + 4 * column * demand.n_directions
        needs.append(block + inner)
    if demand.has("climb"):
        needs.append(_to_climb(demand, block))
    elif demand.products:
        by_rows = block + 4 * column * demand.widest
        needs.append(max(block, SITE_GRAMS * gram) if demand.keeps_gram else by_rows)
    if demand.n_scores:
        cells = column * min(n, max(ROBUST_ROWS, ROBUST_ENTRIES // d))
        needs.append(SITE_CELLS * cells + SITE_SCORES * FLOAT * n * demand.n_scores)
        needs.append(SITE_CELLS * cells / 2 + 3 * message)
    return int(LEAST + max(needs) + message)


def _to_climb(demand: Demand, block: float) -> float:
    """Return the bytes that a site needs to find its own directions in each round."""
    n, d = demand.n, demand.d
    if d <= MAX_DENSE_SIDE:
        return 4 * FLOAT * d**2
    if demand.keeps_gram:
        return SITE_GRAMS * FLOAT * d**2
    # a site with few rows decomposes AA'; others look for directions in a basis
    basis = FLOAT * n**2 if n <= MAX_DENSE_SIDE else FLOAT * d * LANCZOS_ROUNDS * demand.k
    return block + basis + 4 * FLOAT * d * demand.widest


def server_memory(demand: Demand) -> int:
    """Return the bytes that the coordinator needs at most."""
    d, m = demand.d, demand.n_sites
    gram, column = FLOAT * d**2, FLOAT * d
    answer = max(max(each.up) // each.times for each in demand.crossed)
    needs = [0.0]
    answers = (declared for e in demand.crossed for declared in e.question.answers.values())
    if any("triangle" in declared.dimensions for declared in answers):
        needs.append(2 * answer + SERVER_GRAMS * gram)
    if demand.has("factor"):
        needs.append((3 * m + 1) * gram)
    if demand.n_directions:
        needs.append(2 * (m * answer + 3 * column * min(d, m * demand.n_directions)))
    if demand.has("climb"):
        compared = max((e.lengths["k"] for e in demand.crossed if _is_product(e)), default=0)
        basis = SERVER_BASES * LANCZOS_ROUNDS * compared
        needs.append(column * (basis + SERVER_CLIMBS * demand.widest))
    elif demand.products:
        most = max(demand.basis_bytes, 4 * column * demand.widest)
        basis = min(column * min(demand.columns, d), most) if demand.basis_bytes else 0
        needs.append(basis + SERVER_BLOCKS * column * demand.widest)
    if demand.n_scores:
        needs.append(max(SERVER_SUMS * column * demand.n_scores, SERVER_COUNTS * answer))
    return int(LEAST + max(needs))


def seconds_of(demand: Demand, speed: Speed, rounds: int, n_bytes: int) -> float:
    """Return the seconds that a fit takes according to the model, if it moves this many bytes."""
    network = rounds * speed.latency + n_bytes / speed.bandwidth
    return network + _site_seconds(demand, speed) + _server_operations(demand) / speed.flops


def _site_seconds(demand: Demand, speed: Speed) -> float:
    n, d = demand.n, demand.d
    reading = FLOAT * n * d / speed.read_rate
    seconds = reading * sum(
        each.times * each.question.passes
        for each in demand.crossed
        if each.question.reads_rows and not _is_product(each)
    )
    if demand.has("scatter"):
        seconds += n * d**2 / speed.flops
    if demand.has("factor"):
        seconds += 2 * n * d**2 / speed.flops
    if demand.n_directions:
        seconds += 6 * n * d * demand.n_directions / speed.flops
    if demand.has("climb"):
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
    n, d, r = demand.n, demand.d, max(1, demand.n_local)
    climbs = sum(each.times * each.lengths["m"] for each in demand.crossed if "m" in each.lengths)
    if d <= MAX_DENSE_SIDE:
        return climbs * (DENSE_SLOWDOWN * 4 / 3 * d**3)
    if n <= MAX_DENSE_SIDE:
        return climbs * (2 * n**2 * d + DENSE_SLOWDOWN * 4 / 3 * n**3)
    return climbs * LANCZOS_ROUNDS * r * (2 * d**2 if demand.keeps_gram else 4 * n * d)


def _server_operations(demand: Demand) -> float:
    d, k, m = demand.d, demand.k, demand.n_sites
    if demand.has("scatter"):
        return DENSE_SLOWDOWN * (4 / 3 * d**3 + 2 * d**2 * k)
    if demand.has("factor"):
        return DENSE_SLOWDOWN * (m + 4) * 2 * d**3
    if demand.n_directions:
        return DENSE_SLOWDOWN * 2 * d * (m * demand.n_directions) ** 2
    if demand.basis_bytes:
        rounds = max(1, sum(times for _, times in demand.products))
        return 4 * d * demand.columns**2 + DENSE_SLOWDOWN * demand.columns**3 * rounds / 3
    products = sum(DENSE_SLOWDOWN * 4 * d * width**2 * times for width, times in demand.products)
    rounds = sum(each.times for each in demand.crossed if each.question.work == "separate")
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
