"""Find the course of a `FederatedPCA` fit with each solver.

The solver lists its questions. Its number of rounds is the number that it takes on made-up rows
(`fedpca.solvers.planning.rehearsal`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.privacy.gaussian import Privacy
from fedpca.solvers.contract import Solver
from fedpca.solvers.costs import Asked, Counted, Iterative, Rounds, Sizes
from fedpca.solvers.pca import fit_asked
from fedpca.solvers.planning.course import Course
from fedpca.solvers.planning.demand import n_directions
from fedpca.solvers.planning.rehearsal import rehearse
from fedpca.solvers.planning.traffic import Party
from fedpca.solvers.private.program import private_asked


@dataclass(frozen=True)
class PcaFit:
    """A `FederatedPCA` fit whose course is to be found."""

    parties: Sequence[Party]
    sizes: Sizes
    variances: Array  # (d,), along all components
    tol: float
    max_rounds: int
    secure: bool
    privacy: Privacy | None

    def course(self, solver: Solver) -> Course:
        """Return the course that the fit takes with a solver."""
        sizes, (rounds, reason) = self.sizes, self._rounds(solver)
        is_counted, rule = isinstance(solver, Counted), getattr(solver, "site_components", None)
        asked = partial(self._asked, solver, rounds)
        return Course(
            program="FederatedPCA",
            solver=solver.name,
            guarantee="private" if self.privacy else solver.guarantee,
            asked=asked,
            parameters=self._parameters,
            solver_rounds=sum(rounds.values()),
            stop_reason=reason,
            needs_each=bool(solver.seen) and self.privacy is None,
            is_counted=is_counted and not isinstance(rule, str | float),
            # a solver that does not list its questions only estimates its bytes
            more_bytes=0 if is_counted else solver.bytes_per_site(sizes.n, sizes.d, sizes.k),
            angle_bound=self._angle_bound(
                solver, max(n_directions(asked(party)) for party in self._kinds)
            ),
        )

    @property
    def _kinds(self) -> list[Party]:
        """Return one site for each distinct number of rows."""
        return list({party.rows: party for party in self.parties}.values())

    def _rounds(self, solver: Solver) -> tuple[Rounds, str]:
        """Return how many times a solver multiplies blocks and, if it iterates, why it stopped."""
        if self.privacy is not None or not isinstance(solver, Iterative):
            return {}, ""
        found = rehearse(
            solver,
            self.variances,
            self.sizes.k,
            [party.rows for party in self.parties],
            tol=self.tol,
            max_rounds=self.max_rounds,
        )
        return found.rounds, found.stop_reason

    def _asked(self, solver: Solver, rounds: Rounds, party: Party) -> list[Asked]:
        """Return all questions that the fit asks a site."""
        sizes = replace(self.sizes, here=party.rows)
        if self.privacy is not None:
            return private_asked(solver.name, sizes, self.privacy)
        asked = fit_asked(solver, sizes, rounds)
        # with secure sums, no site's share is measured
        return asked[:-1] if self.secure else asked

    @property
    def _parameters(self) -> dict[str, Any]:
        return {
            "n_components": self.sizes.k,
            "center": self.sizes.center,
            "scale": self.sizes.scale,
            "tol": self.tol,
            "max_rounds": self.max_rounds,
            "missing": self.sizes.missing,
        }

    def _angle_bound(self, solver: Solver, r: int) -> float:
        """Return the bound that a solver would state if each site had the same variances.

        ``r`` is the number of directions in the largest summary of any site.
        """
        k = self.sizes.k
        if self.privacy is not None or solver.guarantee == "exact" or r >= self.sizes.d:
            return 0.0
        values = np.sort(self.variances)[::-1]
        left_out = values[r] if r else values[k]
        gap = values[k - 1] - values[k] - left_out
        return float(min(1.0, left_out / gap)) if gap > 0 else float(left_out > 0)
