"""Tell what the course of a fit would cost and reveal under given conditions.

The conditions are the sites, what protects them, and how fast machines and networks are. Time follows
from a simple model::

    seconds = rounds * latency + bytes of all sites / bandwidth        the network
            + the slowest site's operations / flops, or its reading    the sites, in parallel
            + the coordinator's operations / flops                     the coordinator
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedpca.privacy.gaussian import Privacy
from fedpca.protocol.message import MAX_BYTES
from fedpca.protocol.plan import NO_KEY, PRIVATE, SECURE, RunPlan
from fedpca.protocol.question import Question
from fedpca.site.gate import refusal_of
from fedpca.site.policy import Policy
from fedpca.solvers.catalogue import to_plain
from fedpca.solvers.costs import Sizes
from fedpca.solvers.planning.course import Course
from fedpca.solvers.planning.demand import Demand
from fedpca.solvers.planning.memory import server_memory, site_memory
from fedpca.solvers.planning.solver_plan import SolverPlan
from fedpca.solvers.planning.traffic import Crossed, Party, traffic
from fedpca.solvers.planning.workload import Speed, seconds_of


@dataclass(frozen=True)
class Conditions:
    """Who takes part in a fit, what protects the sites, and how fast machines and networks are."""

    parties: Sequence[Party]
    sizes: Sizes  # ``here`` is not used
    secure: bool
    privacy: Privacy | None
    policy: Policy | None
    speed: Speed

    def plan_for(self, course: Course, solver: Any) -> SolverPlan:
        """Return what a fit with a solver would cost and reveal if it takes this course."""
        crossed = list(
            traffic(
                course.asked,
                self.parties,
                self.sizes.d,
                secure=self.secure,
                answers=self._is_answered,
            )
        )
        n, more = len(self.parties), course.more_bytes
        each_down = sum(each.down for each in crossed)
        up = np.sum([each.up for each in crossed], axis=0)
        down, up_total = n * (each_down + more // 2), int(up.sum()) + n * (more // 2)
        largest = max(self.parties, key=lambda party: party.rows)
        rounds = sum(each.times for each in crossed)
        demand = Demand(crossed, replace(self.sizes, here=largest.rows), n, largest.n_local)
        return SolverPlan(
            solver=course.solver,
            guarantee=course.guarantee,
            rounds=rounds,
            fewest_rounds=rounds - course.fewer,
            most_rounds=rounds + course.more,
            solver_rounds=course.solver_rounds,
            stop_reason=course.stop_reason,
            bytes_down=down,
            bytes_up=up_total,
            site_bytes=int(up.max()) + each_down + more,
            is_counted=course.is_counted and not self.secure,
            seconds=seconds_of(demand, self.speed, down + up_total),
            site_memory=site_memory(demand),
            server_memory=server_memory(demand),
            angle_bound=course.angle_bound,
            discloses=self._disclosed(crossed),
            refusal=self._refusal(course, solver),
            problem=course.problem or self._problem(course, crossed),
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

    def _refusal(self, course: Course, solver: Any) -> str:
        """Return why a site with the policy would not take part, or an empty string."""
        if self.policy is None:
            return ""
        settings: dict[str, Any] = {SECURE: True} if self.secure else {}
        if self.privacy is not None:
            settings[PRIVATE] = self.privacy.to_plain()
        parameters = {**course.parameters, "solver": to_plain(solver)}
        sites = {party.name: NO_KEY for party in self.parties}
        run = RunPlan("plan", course.program, parameters, sites, privacy=settings)
        return refusal_of(self.policy, run) or ""

    def _problem(self, course: Course, crossed: Sequence[Crossed]) -> str:
        """Return why the fit cannot run, or an empty string."""
        if self.secure and course.needs_each:
            return "it needs each site's answers, which secure sums hide"
        for each in crossed:
            largest = max(each.down, *each.up) // each.times
            if largest > MAX_BYTES:
                return (
                    f"a message of {each.question.name!r} would take {largest:,} bytes, more than the "
                    f"limit of {MAX_BYTES:,}"
                )
        return ""
