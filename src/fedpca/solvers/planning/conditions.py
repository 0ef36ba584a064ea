"""Tell what a rehearsed fit would cost and reveal under given conditions.

The conditions are the sites, what protects them, and how fast machines and networks are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpca.privacy.gaussian import Privacy
from fedpca.protocol.message import MAX_BYTES
from fedpca.protocol.plan import NO_KEY, PRIVATE, SECURE, RunPlan
from fedpca.protocol.question import Question
from fedpca.site.gate import refusal_of
from fedpca.site.policy import Policy
from fedpca.solvers.catalogue import to_plain
from fedpca.solvers.planning.choice import Choice
from fedpca.solvers.planning.machines import (
    Demand,
    Speed,
    seconds_of,
    server_memory,
    site_memory,
)
from fedpca.solvers.planning.messages import Crossed, count
from fedpca.solvers.planning.solver_plan import SolverPlan

HIDDEN = "it needs each site's answers, which secure sums hide"


@dataclass(frozen=True)
class Conditions:
    """What protects the sites, and how fast machines and networks are."""

    program: str
    d: int
    secure: bool
    privacy: Privacy | None
    policy: Policy | None
    speed: Speed

    def plan_for(self, choice: Choice, solver: Any) -> SolverPlan:
        """Return what a fit with a solver would cost and reveal."""
        problem = choice.problem_of(solver)
        is_hidden = self.secure and choice.needs_each(solver)
        rehearsal = choice.rehearse(solver, self.secure and not is_hidden)
        parties = choice.parties
        crossed, is_exact = count(rehearsal, parties, answers=self._is_answered)
        if is_hidden:  # the fit goes on without those that it can do without
            problem = problem or HIDDEN
        each_down = sum(each.down for each in crossed)
        up = np.sum([each.up for each in crossed], axis=0)
        down, up_total = len(parties) * each_down, int(up.sum())
        largest = max(parties, key=lambda party: party.rows)
        basis = getattr(solver, "max_krylov_bytes", 0)
        demand = Demand(
            crossed, largest.rows, self.d, choice.k, len(parties), largest.n_local, basis
        )
        has_rule = any(each.lengths.get("rule") for each in crossed)
        n_rounds = rehearsal.rounds
        return SolverPlan(
            solver=solver.name,
            guarantee="private" if self.privacy else solver.guarantee,
            rounds=n_rounds,
            fewest_rounds=rehearsal.fewest,
            most_rounds=rehearsal.most,
            solver_rounds=rehearsal.solver_rounds,
            stop_reason=rehearsal.stop_reason,
            bytes_down=down,
            bytes_up=up_total,
            site_bytes=int(up.max()) + each_down,
            is_counted=is_exact and not has_rule and not self.secure,
            seconds=seconds_of(demand, self.speed, n_rounds, down + up_total),
            site_memory=site_memory(demand),
            server_memory=server_memory(demand),
            angle_bound=self._angle_bound(choice, solver, demand.n_directions),
            discloses=self._disclosed(crossed),
            refusal=self._refusal(choice, solver),
            problem=problem or _too_large(crossed),
        )

    def _is_answered(self, question: Question) -> bool:
        """Return whether a site with the policy answers a question.

        The program goes on without answers that the site refuses.
        """
        if self.policy is None or question.verb == "sum" or not question.reads_rows:
            return True
        return self.policy.gather

    def _disclosed(self, crossed: Sequence[Crossed]) -> dict[str, str]:
        kept = "masked" if self.secure else "summed"
        return {
            each.question.name: "seen" if each.question.verb == "gather" else kept
            for each in crossed
            if self._is_answered(each.question)
        }

    def _refusal(self, choice: Choice, solver: Any) -> str:
        """Return why a site with the policy would not take part, or an empty string."""
        if self.policy is None:
            return ""
        settings: dict[str, Any] = {SECURE: True} if self.secure else {}
        if self.privacy is not None:
            settings[PRIVATE] = self.privacy.to_plain()
        parameters = {**choice.parameters, "solver": to_plain(solver)}
        sites = {party.name: NO_KEY for party in choice.parties}
        run = RunPlan("plan", self.program, parameters, sites, privacy=settings)
        return refusal_of(self.policy, run) or ""

    def _angle_bound(self, choice: Choice, solver: Any, r: int) -> float:
        """Return the bound that a solver would state if each site had the same variances.

        ``r`` is the number of directions in the largest summary of any site.
        """
        k, variances = choice.k, choice.variances
        if self.privacy is not None or solver.guarantee != "bounded" or r >= self.d:
            return 0.0
        left_out = variances[r] if r else variances[k]
        gap = variances[k - 1] - variances[k] - left_out
        return float(min(1.0, left_out / gap)) if gap > 0 else float(left_out > 0)


def _too_large(crossed: Sequence[Crossed]) -> str:
    """Return which message would be too large to send, or an empty string."""
    for each in crossed:
        largest = max(each.down, *each.up) // each.times
        if largest > MAX_BYTES:
            return (
                f"a message of {each.question.name!r} would take {largest:,} bytes, more than the "
                f"limit of {MAX_BYTES:,}"
            )
    return ""
