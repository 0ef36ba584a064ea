"""Find the course of a `RobustPCA` fit before any site is asked.

How many rounds a fit takes depends on the noise and the outliers. So the program runs in this
process on made-up rows: normal rows with the given variances, an offset in each column, and, in a
twentieth of the entries, outliers many times as large as an entry. If there are many rows, columns,
or sites, only some are made up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.linalg.dense import orth
from fedpca.solvers.common_features import column_names
from fedpca.solvers.costs import Asked, Sizes
from fedpca.solvers.planning.course import (
    Course,
    Rehearsal,
    recorded,
    times_asked,
    usual,
    with_lengths,
)
from fedpca.solvers.planning.made_up import evenly_thinned
from fedpca.solvers.planning.traffic import Party
from fedpca.solvers.robust.at_site import count_present, count_values, sparse_share
from fedpca.solvers.robust.contract import RobustSolver
from fedpca.solvers.robust.dcf import gradient_round
from fedpca.solvers.robust.growth import residual_product
from fedpca.solvers.robust.hard import hard_round
from fedpca.solvers.robust.program import low_rank_and_sparse
from fedpca.solvers.robust.soft import soft_round

MAX_SIDE = 120  # features of made-up rows, or PER_COMPONENT for each component if that is more
PER_COMPONENT = 4
MAX_SITES = 3
MAX_ENTRIES = 1 << 16  # entries of all made-up rows
OUTLIER_SHARE = 0.05  # share of the entries that are outliers
OUTLIER_SIZE = 10.0  # largest size of an outlier, in root mean squares of the entries
OFFSET = 3.0  # typical offset of a column, in root mean squares of the entries
STEPS = (hard_round, soft_round, gradient_round, residual_product)


@dataclass(frozen=True)
class RobustFit:
    """A `RobustPCA` fit whose course is to be found; ``parameters`` are the estimator's."""

    parties: Sequence[Party]
    sizes: Sizes
    variances: Array  # (d,), along all components
    parameters: Mapping[str, Any]  # plain values
    secure: bool

    def course(self, solver: RobustSolver) -> Course:
        """Return the course that the fit takes with a solver."""
        given, problem = dict(self.parameters), ""
        if solver.needs_rank and given["n_components"] is None:
            problem = "it requires the number of components, not a bound on it"
            given |= {"n_components": given["max_components"], "max_components": None}
        asked, reason = usual(partial(self.rehearse, solver, given))
        if self.secure:  # secure sums do not show a site's share of outliers
            asked = [each for each in asked if each.question is not sparse_share]
        return Course(
            program="RobustPCA",
            solver=solver.name,
            guarantee=solver.guarantee,
            asked=partial(self._asked, asked),
            parameters=self.parameters,
            solver_rounds=times_asked(asked, *STEPS),
            stop_reason=reason,
            problem=problem,
        )

    def rehearse(self, solver: RobustSolver, parameters: Mapping[str, Any], seed: int) -> Rehearsal:
        """Return what made-up sites are asked, and how the fit ended."""
        rows = self._made_up(seed)
        fed = Federation.local(rows)
        program = partial(low_rank_and_sparse, solver=solver, **parameters)
        result = fed.run(program, identity={"program": "rehearsal"}, seed=seed)
        d = next(iter(rows.values())).shape[1]
        asked = [
            # later rounds count only some features; assume the same share if there are many
            each._replace(lengths={"m": -(-each.lengths["m"] * self.sizes.d // d)})
            if each.question is count_values
            else each
            for each in recorded(fed.record.ledger)
        ]
        return Rehearsal(asked, result.outcome.stop_reason)

    def _asked(self, rehearsed: Sequence[Asked], party: Party) -> list[Asked]:
        """Return all questions that the fit asks a site, given what made-up sites were asked."""
        lengths = {
            column_names.name: {"bytes": self.sizes.name_bytes},
            count_present.name: {"bytes": self.sizes.order_bytes},
        }
        return with_lengths(rehearsed, lengths)

    def _made_up(self, seed: int) -> dict[str, Array]:
        """Return rows of a few sites with outliers."""
        rng, bound = np.random.default_rng(seed), self.sizes.k
        kept = evenly_thinned(self.variances, bound, max(MAX_SIDE, PER_COMPONENT * bound))
        p, largest = len(kept), sorted(self.parties, key=lambda party: -party.rows)[:MAX_SITES]
        Q, offset = orth(rng.standard_normal((p, p))), rng.standard_normal(p)
        size = np.sqrt(kept.sum() / p)
        made_up = {}
        for i, party in enumerate(largest):
            n = max(2, min(party.rows, MAX_ENTRIES // (p * len(largest))))
            rows = (rng.standard_normal((n, p)) * np.sqrt(kept)) @ Q.T + OFFSET * size * offset
            is_outlier = rng.random((n, p)) < OUTLIER_SHARE
            sizes = rng.uniform(-OUTLIER_SIZE, OUTLIER_SIZE, is_outlier.sum())
            rows[is_outlier] += size * sizes
            made_up[f"rehearsal {i}"] = rows
        return made_up
