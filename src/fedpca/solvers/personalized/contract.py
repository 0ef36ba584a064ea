"""The contract for `PersonalizedPCA` solvers: what each solver takes and returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import StopReason
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import Script


@dataclass(frozen=True)
class Start:
    """A solver's starting points and its limits."""

    points: Array  # (m, d, k), each orthonormal
    weight: float  # the sum of the sites' weights w_i
    energy: float  # the sum of w_i times the trace of S_i
    tol: float
    max_rounds: int
    seed: int | None  # seed of random V_i; None if the V_i are computed from the start


@dataclass(frozen=True)
class Shared:
    """The shared directions and the reason why the solver stopped."""

    U: Array  # (d, k), orthonormal
    along: Array  # (k, k): U'(sum w_i S_i)U divided by the sum of w_i
    objective: float  # the objective, divided by the sum of w_i
    stop_reason: (
        StopReason  # "converged", "max_rounds", or "stalled" if no step raises the objective
    )
    ambiguity: float = 0.0  # the largest sine of the angle from U to an equally good optimum


@runtime_checkable
class PersonalizedSolver(Protocol):
    """The coordinator's program for one method, with its options as fields."""

    name: ClassVar[str]
    guarantee: ClassVar[str]  # as in `fedpca.solvers.planning.solver_plan`
    takes_many_starts: ClassVar[bool]  # otherwise, it uses only the first point

    def script(self, plan: RunPlan) -> Script:
        """Return what `solve` asks, in which order, and how often, so that sites can check it."""
        ...

    def solve(self, fed: Federation, start: Start) -> Shared:
        """Find the shared directions by asking the sites."""
        ...


def share_of(gain: float, shared: float) -> float:
    """Return a gain as a share of the shared variance, or zero if there is no variance."""
    return max(0.0, gain) / shared if shared > 0 else 0.0
