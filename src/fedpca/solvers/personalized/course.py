"""Find the course of a `PersonalizedPCA` fit before any site is asked.

How many rounds a fit takes depends on how the sites differ. So the program runs in this process on
made-up rows. Their sites have the shared directions in common and nothing else::

    A_i = R_i diag(sqrt(variance)) [E  Q_i]',   E shared, Q_i random outside E, R_i like normal rows

The first variances are along the shared directions, the next along a site's own directions, and the
others are noise. Sites whose noise has directions in common take more rounds. If there are many
features or sites, only some are made up. The questions that compare the sites' directions do not depend
on the rows, and are counted for all features and sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.linalg.dense import orth
from fedpca.solvers.common_features import column_names
from fedpca.solvers.costs import Asked, Sizes, expected_rounds, triangle_is_cheaper
from fedpca.solvers.personalized.at_site import (
    begin_personalized,
    finish_personalized,
    site_shares,
    to_bytes,
    whole_local_part,
)
from fedpca.solvers.personalized.contract import PersonalizedSolver
from fedpca.solvers.personalized.gradient import polar_step, prepare_steps, stiefel_step
from fedpca.solvers.personalized.local_ranks import LocalRanks
from fedpca.solvers.personalized.power import power_step
from fedpca.solvers.personalized.program import shared_and_local
from fedpca.solvers.personalized.projections import basis_product, basis_triangle, whole_basis
from fedpca.solvers.personalized.starts import informed_starts
from fedpca.solvers.planning.course import (
    Course,
    Rehearsal,
    merged,
    recorded,
    times_asked,
    usual,
    with_lengths,
)
from fedpca.solvers.planning.made_up import evenly_thinned, like_rows
from fedpca.solvers.planning.traffic import Party
from fedpca.solvers.standardize import moments_asked

MAX_SIDE = 96  # features of made-up rows, or PER_DIRECTION for each direction if that is more
PER_DIRECTION = 4
MAX_SITES = 5
COMPARES = (basis_triangle, basis_product, whole_basis)
STEPS = (power_step, stiefel_step, polar_step)
AFTER_START = (*STEPS, prepare_steps, finish_personalized)
REHEARSED = ("n_shared", "start", "n_init", "weights", "gather", "tol", "max_rounds")


@dataclass(frozen=True)
class PersonalizedFit:
    """A `PersonalizedPCA` fit whose course is to be found; ``parameters`` are the estimator's."""

    parties: Sequence[Party]
    sizes: Sizes
    variances: Array  # (d,), along shared directions, along a site's own ones, and of the noise
    parameters: Mapping[str, Any]  # plain values; ``gather`` is True or False
    for_files: Mapping[str, Any]
    names: Sequence[str] | None
    secure: bool

    def course(self, solver: PersonalizedSolver) -> Course:
        """Return the course that the fit takes with a solver."""
        asked, reason = usual(partial(self.rehearse, solver))
        gather = bool(self.parameters["gather"])
        if self.secure:  # secure sums do not show the explained share of a site
            asked = [each for each in asked if each.question is not site_shares]
        return Course(
            program="PersonalizedPCA",
            solver=solver.name,
            guarantee=solver.guarantee,
            asked=partial(self._asked, solver, asked),
            parameters=self.parameters,
            solver_rounds=times_asked(asked, *STEPS),
            stop_reason=reason,
            needs_each=gather,
        )

    def rehearse(self, solver: PersonalizedSolver, seed: int) -> Rehearsal:
        """Return what made-up sites are asked, and how the fit ended."""
        given = {name: self.parameters[name] for name in REHEARSED}
        fed = Federation.local(self._made_up(seed))
        program = partial(
            shared_and_local,
            solver=solver,
            n_local=self.ranks.most,
            center="none",
            scale=False,
            for_files={},
            **given,
        )
        result = fed.run(program, identity={"program": "rehearsal"}, seed=seed)
        return Rehearsal(recorded(fed.record.ledger), result.outcome.stop_reason)

    @property
    def ranks(self) -> LocalRanks:
        """Return the numbers of local directions."""
        return LocalRanks.of(self.parameters["n_local"])

    def _asked(
        self, solver: PersonalizedSolver, rehearsed: Sequence[Asked], party: Party
    ) -> list[Asked]:
        """Return all questions that the fit asks a site, given what made-up sites were asked."""
        sizes, given = self.sizes, self.parameters
        k, own = int(given["n_shared"]), self.ranks.at(party.name)
        most = max(0, min(party.rows - (given["center"] == "site"), sizes.d))
        header = {
            "features": None if self.names is None else list(self.names),
            "n_samples": sizes.n,
            "parameters": dict(self.for_files),
        }
        lengths = {
            column_names.name: {"bytes": sizes.name_bytes},
            begin_personalized.name: {
                "bytes": sizes.order_bytes,
                "letters": len(self.ranks.to_bytes()),
            },
            finish_personalized.name: {"bytes": len(to_bytes(header))},
            whole_basis.name: {"r": min(k + own, most)},
            whole_local_part.name: {"r": min(own, max(0, most - k))},
        }
        asked = self._compared(solver, with_lengths(rehearsed, lengths))
        if given["center"] == "common" or given["scale"]:
            asked[1:1] = moments_asked(replace(sizes, here=party.rows))
        return with_lengths(asked, lengths)

    def _compared(self, solver: PersonalizedSolver, asked: Sequence[Asked]) -> list[Asked]:
        """Return the questions, with those that compare directions counted at the fit's full size."""
        is_start, result = True, []
        for compares, each in groupby(asked, key=lambda a: a.question in COMPARES):
            part = list(each)
            if compares:
                part = [self._compared_at(solver, part, is_start=is_start)]
            else:
                is_start &= not any(a.question in AFTER_START for a in part)
            result += part
        return list(merged(result))

    def _compared_at(
        self, solver: PersonalizedSolver, rehearsed: Sequence[Asked], *, is_start: bool
    ) -> Asked:
        """Return what `leading_of_bases` asks: for each start, or once at the end of the fit."""
        d, ranks, n_times = self.sizes.d, self.ranks, 1
        k, gather = max(ranks.least, min(1, ranks.most)), False
        columns = sum(party.rows > 0 for party in self.parties) * ranks.most
        if is_start:
            k, gather = int(self.parameters["n_shared"]), bool(self.parameters["gather"])
            columns = sum(k + ranks.at(party.name) for party in self.parties)
            n_init = int(self.parameters["n_init"]) if solver.takes_many_starts else 1
            n_times = len(informed_starts(str(self.parameters["start"]))[:n_init])
        if triangle_is_cheaper(columns, d, k):
            return Asked(basis_triangle, {}, n_times)
        if gather:
            return Asked(whole_basis, {}, n_times)
        rounds = times_asked(rehearsed, basis_product) or n_times * expected_rounds(columns, d, k)
        return Asked(basis_product, {"k": k}, rounds)

    def _made_up(self, seed: int) -> dict[str, Array]:
        """Return rows of a few sites that share directions."""
        rng = np.random.default_rng(seed)
        k, ranks = int(self.parameters["n_shared"]), self.ranks
        n_leading = k + ranks.most
        side = max(MAX_SIDE, PER_DIRECTION * n_leading)
        kept = evenly_thinned(self.variances, n_leading, side)
        p, largest = len(kept), sorted(self.parties, key=lambda party: -party.rows)[:MAX_SITES]
        made_up = {}
        for i, party in enumerate(largest):
            Q = orth(rng.standard_normal((p - k, p - k)))
            R = like_rows(rng, max(2, party.rows), p)
            spread = R * np.sqrt(kept * len(R) / max(2, party.rows))
            made_up[f"rehearsal {i}"] = np.hstack([spread[:, :k], spread[:, k:] @ Q.T])
        return made_up
