"""The contract for `RobustPCA` solvers: what each solver takes and returns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import StopReason
from fedpca.errors import InputError
from fedpca.models.robust import TIMES_MEDIAN
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import Script

NORMAL = 1.4826  # standard deviation of a normal variable over its median absolute value
MAX_ROUNDS = 200  # most rounds of a fit at sites with a policy; each round reveals more about rows
NEGLIGIBLE = 1e-7  # a residual up to this share of the typical entry is never an outlier


@dataclass(frozen=True)
class RobustMoments:
    """Statistics of all sites' rows, found before a solver starts."""

    n: int
    present: Array  # (d,), each feature's number of values; 0 for features that do not vary
    size: float  # the typical size of an entry
    moves: bool  # whether the center moves to the mean of the rows without outliers

    @property
    def first_threshold(self) -> float:
        """Return the threshold of the first round."""
        return TIMES_MEDIAN * self.size


@dataclass(frozen=True)
class Limits:
    """The limits at which a solver stops."""

    tol: float
    max_rounds: int


def rounds_of(plan: RunPlan, most: int = MAX_ROUNDS) -> int:
    """Return the largest number of rounds that a fit may take; refuse a plan that asks for too many."""
    if plan.max_rounds > MAX_ROUNDS:
        raise InputError(
            f"max_rounds={plan.max_rounds} exceeds {MAX_ROUNDS}, the most that sites with a policy "
            f"allow for robust methods; use at most {MAX_ROUNDS}"
        )
    return min(plan.max_rounds, most)


@dataclass(frozen=True)
class Carry:
    """How the last round's scores carry over to the next round."""

    turn: Array  # (q, r), maps the last round's q scores to r scores on the new U
    center: Array  # (d,), the center of the rows
    mean_scores: Array  # (q,), subtracted from the scores because the center moved

    @classmethod
    def first(cls, r: int, center: Array) -> Carry:
        """Return the carry-over before the first round, which changes nothing."""
        return cls(np.eye(r), center, np.zeros(r))

    @property
    def asked(self) -> Arrays:
        """Return the carry-over as question fields."""
        return {"turn": self.turn, "center": self.center, "mean_scores": self.mean_scores}


@dataclass(frozen=True)
class RobustFit:
    """The components, and the threshold beyond which entries are outliers."""

    U: Array  # (d, r), orthonormal
    threshold: float
    noise: float  # the median over sites of the median size of a site's residuals
    stop_reason: (
        StopReason  # "converged", "max_rounds", or "inexact" if `while_exact` ended the fit
    )
    center: Array  # (d,)
    mostly_outliers: Array  # (d,), whether most entries of a feature are beyond the threshold
    carry: Carry | None = None  # carries scores over to U; None if no score can be reused

    def cut(self, r: int) -> RobustFit:
        """Return the same fit with only its first r components."""
        carry = self.carry
        if carry is not None:
            carry = replace(carry, turn=np.ascontiguousarray(carry.turn[:, :r]))
        return replace(self, U=np.ascontiguousarray(self.U[:, :r]), carry=carry)


@dataclass(frozen=True)
class Rank:
    """The number of components, and whether the singular values show it clearly."""

    number: int
    is_clear: bool = True


@dataclass(frozen=True)
class RobustProblem:
    """A problem for a solver to solve."""

    U: Array  # (d, w), orthonormal: the start
    moments: RobustMoments
    limits: Limits
    rank: int | None  # the number of components; None if only a bound is given
    bound: int  # the maximum number of components; equals the rank if that is given


class Solved(NamedTuple):
    """The fit, the number of components to keep, and the names of the methods that ran."""

    fit: RobustFit
    rank: Rank
    methods: str


@runtime_checkable
class RobustSolver(Protocol):
    """The coordinator's program for one method, with its options as fields."""

    name: ClassVar[str]
    guarantee: ClassVar[str]  # as in `fedpca.solvers.planning.solver_plan`
    needs_rank: ClassVar[bool]  # whether the solver needs the rank itself, not just a bound

    def script(self, plan: RunPlan) -> Script:
        """Return what `solve` asks, in which order, and how often, so that sites can check it."""
        ...

    def solve(self, fed: Federation, problem: RobustProblem) -> Solved:
        """Find the components by asking the sites."""
        ...
