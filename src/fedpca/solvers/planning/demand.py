"""Say what the questions of a fit demand of the machines, for estimates of time and memory.

A site multiplies blocks with its rows, or with A'A if that is cheaper, and reads its rows for the other
questions. All sites work in parallel, so only the site with the most rows counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedpca.rows.standardized import FEW_FEATURES, MAX_CACHE_BYTES
from fedpca.solvers.costs import LANCZOS_ROUNDS, Asked, Sizes
from fedpca.solvers.planning.traffic import Crossed

FLOAT = 8  # bytes
PASS_COST = 4.0  # cost of a pass over rows in memory, as in `fedpca.rows.in_memory`
# approximate number of products per site and round
LOCAL_PRODUCTS = {
    "local_power_steps": 5,
    "consensus_step": 7,
}
SCATTERS = ("covariance_triangle", "noisy_scatter")
FACTOR = "triangular_factor"
SUMMARIES = ("summarize_rows", "summarize_about")
CLIMBS = ("power_step", "stiefel_step", "polar_step")
SEPARATES = ("hard_round", "soft_round", "gradient_round")


class Product(NamedTuple):
    """A block that a site multiplies with its rows: how many columns it has, and how often."""

    width: int
    times: int


@dataclass(frozen=True)
class Demand:
    """The questions of a fit, and the size of the rows that they are about."""

    crossed: Sequence[Crossed]
    sizes: Sizes  # as seen from the site with the most rows
    n_sites: int
    n_local: int = 0  # directions that the site keeps for itself

    @property
    def products(self) -> list[Product]:
        """Return the blocks that the site multiplies."""
        found = []
        for each in self.crossed:
            if "Z" in each.question.asks and each.question.reads_rows and "k" in each.lengths:
                times = each.times * LOCAL_PRODUCTS.get(each.question.name, 1)
                found.append(Product(each.lengths["k"], times))
            elif each.question.name in CLIMBS:
                width = each.lengths.get("m", 1) * each.lengths["k"]
                found.append(Product(width, each.times))
        return found

    def has(self, *names: str) -> bool:
        """Return whether any of these questions is asked."""
        return any(each.question.name in names for each in self.crossed)

    @property
    def is_lanczos(self) -> bool:
        """Return whether the coordinator keeps a basis of all blocks."""
        asked = [each.question.name for each in self.crossed if "Z" in each.question.asks]
        return asked == ["covariance_product"]

    @property
    def keeps_gram(self) -> bool:
        """Return whether the site keeps A'A, as `fedpca.rows.standardized` decides."""
        n, d = self.sizes.here, self.sizes.d
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
        return n_directions(self.crossed)

    @property
    def widest(self) -> int:
        """Return the largest number of columns that the site multiplies together, or 0."""
        return max((product.width for product in self.products), default=0)

    @property
    def columns(self) -> int:
        """Return how many columns the site multiplies in all."""
        return sum(product.width * product.times for product in self.products)

    @property
    def n_scores(self) -> int:
        """Return how many scores of each row a site keeps, or 0."""
        return max(
            (e.lengths["r"] for e in self.crossed if e.question.name in SEPARATES), default=0
        )


def n_directions(asked: Sequence[Asked | Crossed]) -> int:
    """Return how many directions a site sends in a summary, or 0."""
    return max((each.lengths["r"] for each in asked if each.question.name in SUMMARIES), default=0)
