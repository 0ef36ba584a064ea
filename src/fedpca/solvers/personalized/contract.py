"""The contract for `PersonalizedPCA` solvers: what each solver takes and returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation


@dataclass(frozen=True)
class Start:
    """A solver's starting point and its limits."""

    U: Array  # (d, k), orthonormal
    weight: float  # the sum of the sites' weights w_i
    energy: float  # the sum of w_i times the trace of S_i
    tol: float
    max_rounds: int
    seed: int | None  # for random V_i; None if they are computed from the start


@dataclass(frozen=True)
class Shared:
    """The shared directions and the reason why the solver stopped."""

    U: Array  # (d, k), orthonormal
    along: Array  # (k, k): U'(sum w_i S_i)U divided by the sum of w_i
    objective: float  # divided by the sum of w_i
    stop_reason: str  # "converged", "max_rounds", or "stalled" if no step raises the objective


@runtime_checkable
class PersonalizedSolver(Protocol):
    """The coordinator's program for one method, with its options as fields."""

    name: ClassVar[str]

    def solve(self, fed: Federation, start: Start) -> Shared:
        """Find the shared directions by asking the sites."""
        ...


def share_of(gain: float, shared: float) -> float:
    """Return a gain as a share of the shared variance, or zero if there is no variance."""
    return max(0.0, gain) / shared if shared > 0 else 0.0
