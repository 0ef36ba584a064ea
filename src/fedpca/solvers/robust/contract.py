"""The contract of `RobustPCA`'s solvers: what each takes and what it returns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.federation import Federation
from fedpca.models.robust import TIMES_MEDIAN

NORMAL = 1.4826  # standard deviation of normal numbers over their median size
NEGLIGIBLE = 1e-7  # a residual of this share of the typical entry is never an outlier


@dataclass(frozen=True)
class RobustMoments:
    """What is known about all sites' rows before a solver starts."""

    n: int
    present: Array  # (d,), the number of values of each feature; 0 for features that do not vary
    size: float  # the typical size of an entry
    moves: bool  # whether the center moves to the mean of the rows without outliers

    @property
    def first_threshold(self) -> float:
        """Return the threshold of the first round."""
        return TIMES_MEDIAN * self.size


@dataclass(frozen=True)
class Limits:
    """When a solver stops."""

    tol: float
    max_rounds: int


@dataclass(frozen=True)
class Carry:
    """How the scores of the last round carry over to the next one."""

    turn: Array  # (q, r), from the q scores of the last round to r scores on the new U
    center: Array  # (d,), of the rows
    mean_scores: Array  # (q,), subtracted from the scores since the center moved

    @classmethod
    def first(cls, r: int, center: Array) -> Carry:
        """Return the carry-over before the first round, which changes nothing."""
        return cls(np.eye(r), center, np.zeros(r))

    @property
    def asked(self) -> Arrays:
        """Return it as the fields of a question."""
        return {"turn": self.turn, "center": self.center, "mean_scores": self.mean_scores}


@dataclass(frozen=True)
class RobustFit:
    """The components, and the threshold beyond which entries are outliers."""

    U: Array  # (d, r), orthonormal
    threshold: float
    noise: float  # the median over sites of the median size of a site's residuals
    stop_reason: str  # "converged", "max_rounds", or "inexact" where `while_exact` ended it
    center: Array  # (d,)
    mostly_outliers: Array  # (d,), whether most entries of a feature are beyond the threshold
    carry: Carry | None = None  # from the scores at the sites to U, where they can be used

    def cut(self, r: int) -> RobustFit:
        """Return the same fit with its first r components."""
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
    """The problem that a solver is given."""

    U: Array  # (d, w), orthonormal: the start
    moments: RobustMoments
    limits: Limits
    rank: int | None  # the number of components; None where only a bound is given
    bound: int  # the most components: the rank, where it is given


class Solved(NamedTuple):
    """The fit, the number of components to keep, and the names of the methods that ran."""

    fit: RobustFit
    rank: Rank
    methods: str


@runtime_checkable
class RobustSolver(Protocol):
    """The coordinator's program for one method, with its options as fields."""

    name: ClassVar[str]
    needs_rank: ClassVar[bool]  # whether a bound on the rank is not enough

    def solve(self, fed: Federation, problem: RobustProblem) -> Solved:
        """Find the components by asking the sites."""
        ...
