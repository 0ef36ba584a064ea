"""The contract for `FederatedPCA` solvers: what each solver takes and returns.

    C = A'A,   C V = V diag(theta),   A = (X - 1 m') / s over the rows X of all sites

A solver is a value: a frozen dataclass with its options as fields and a method ``solve(federation,
problem)``. It declares what it guarantees, which answers it sees site by site, and what it costs.
The estimator, the planner, the leak lab, the command line, and the common tests read these
declarations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import Outcome, StopReason
from fedpca.errors import InputError
from fedpca.linalg.dense import orth
from fedpca.linalg.rank_rules import RankRule, Rule, rank_rule
from fedpca.protocol.invariants import ROUNDING
from fedpca.protocol.parameters import check_whole as check_whole
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import Question, question
from fedpca.protocol.script import Order, Script, then
from fedpca.solvers.common_features import CommonFeatures
from fedpca.solvers.standardize import ColumnMeans, Moments, ask_moments, moments_script

if TYPE_CHECKING:
    from fedpca.site.site import Site

ANGLE_PER_TOL = 1000.0  # sine of the angle that "converged" allows, as a multiple of tol
# components are certain if the sine of their angle to the exact ones is at most this
CERTAIN = 1e-6
LOOK_TOL = 1e-3  # residual, as a share of the trace, at which eigenvalues can be counted
START_DISTANCE = 1e-2  # size of the random part that is added to a warm start

# each program's solvers by name; the catalogue fills this in, since families must not import each other
FAMILIES: dict[str, Mapping[str, Any]] = {}

EXPLAINED = {"explained": "float64, squares", "total": "float64, squares"}  # a site's


@dataclass(frozen=True)
class Problem:
    """A problem for a solver to solve.

    Parameters
    ----------
    common : CommonFeatures
        The features that all sites have.
    n_components : int, float, str or None
        The number of components, or a rule for choosing it, as in `FederatedPCA`.
    center : bool
        Whether to center rows on the mean over all sites.
    scale : bool or "binomial"
        Whether to divide columns by their standard deviations over all sites, or ("binomial") by the
        standard deviations that allele counts with the same means would have.
    tol : float
        The bound on ``||A'A V - V theta||_F``, as a fraction of the trace of A'A. A thousand times this
        number bounds the sine of the angle to the exact components.
    max_rounds : int
        The maximum number of rounds that the solver may take.
    start : ndarray of shape (d, k), optional
        A subspace to start from.
    moments : Moments, optional
        The mean and the scale, if the sites have already been asked for them.
    flips : Rule, optional
        The rule that chooses the number of components if ``n_components`` is "auto".
    missing : {"error", "mean", "drop"}
        What to do with missing values, as in `FederatedPCA`.
    means : ColumnMeans, optional
        The means, if the sites have been asked for them but not yet for the scale.
    """

    common: CommonFeatures
    n_components: Any
    center: bool = True
    scale: bool | str = False
    tol: float = 1e-10
    max_rounds: int = 500
    start: Array | None = None
    moments: Moments | None = None
    flips: Rule | None = None
    missing: str = "error"
    means: ColumnMeans | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether all rows have the same weight and none may have gaps."""
        return self.missing == "error" and not self.common.has_weights

    @property
    def angle_tol(self) -> float:
        """Return the tolerance for the sine of the angle to the exact components."""
        return ANGLE_PER_TOL * self.tol

    def with_moments(self, fed: Federation) -> Problem:
        """Return the problem with its moments, asking the sites for them if necessary."""
        if self.moments is not None:
            return self
        moments = ask_moments(
            fed,
            self.common,
            center=self.center,
            scale=self.scale,
            missing=self.missing,
            means=self.means,
        )
        return replace(self, moments=moments)


@dataclass(frozen=True)
class Solution:
    """The leading eigenvectors of A'A, where A holds the standardized rows of all sites."""

    moments: Moments
    vectors: Array  # (d, k), orthonormal
    eigenvalues: Array  # (k,), in descending order
    energy: float  # the trace of A'A
    stop_reason: StopReason  # as in `fedpca.coordinator.record.Outcome`
    left_out: float = 0.0  # bound on how much any eigenvalue falls short, as a fraction of energy
    angle_bound: float = 0.0  # bound on the sine of the angle to the exact components
    n_certain: int | None = None  # leading components that are certain; None means all
    advice: str = ""  # names a better solver, or what would be more accurate
    share_question: Question | None = None  # asks for each site's share; `explained_energy` if None
    residual: Array | None = None  # (3,), traces as in `fedpca.linalg.residual`; None if not known

    def outcome(self, solver: str) -> Outcome:
        """Return the outcome to store in the run's record."""
        n_certain = len(self.eigenvalues) if self.n_certain is None else self.n_certain
        return Outcome(
            solver, self.stop_reason, self.left_out, self.angle_bound, self.advice, n_certain
        )

    def certified(self, bounds: Array, angle_tol: float) -> Solution:
        """Return the solution with bounds on its angle to the exact components, as a certificate.

        ``bounds`` limits the sine of the angle of the first 1, 2, ..., k directions.

        If the solver finished but some directions are not certain, the stop reason becomes "uncertain".
        """
        # all d directions together span the whole space
        bound = 0.0 if len(bounds) == len(self.vectors) else float(bounds[-1])
        within = bounds <= max(CERTAIN, angle_tol)
        n_certain = len(bounds) if not bound else int(np.flatnonzero(within).max(initial=-1)) + 1
        reason = self.stop_reason
        if n_certain < len(bounds) and reason in ("exact", "converged"):
            reason = "uncertain"
        return replace(self, angle_bound=bound, n_certain=n_certain, stop_reason=reason)


@dataclass(frozen=True)
class PcaResult:
    """The result of a fit."""

    solution: Solution
    site_shares: dict[str, float]  # explained share of each site's variance; empty if refused
    outcome: Outcome
    is_above_noise: bool = True  # false if the rule "auto" found no component to keep
    left_out: Mapping[str, str] | None = None  # for genotypes: the variants left out, and why


@runtime_checkable
class Solver(Protocol):
    """The coordinator's program for one method, with its options as fields.

    ``guarantee`` is "exact" if the components equal those of the pooled rows. It is "bounded" if the
    solution states how far off they can be. ``seen`` names the questions whose answers the coordinator
    sees site by site; all other answers are summed. `fedpca.testing.check_solver` checks whether a
    solver keeps these promises.
    """

    name: ClassVar[str]
    guarantee: ClassVar[str]
    seen: ClassVar[tuple[str, ...]]

    def script(self, plan: RunPlan) -> Script:
        """Return what `solve` asks, in which order, and how often, so that sites can check it."""
        ...

    def solve(self, fed: Federation, problem: Problem) -> Solution:
        """Find the leading eigenvectors by asking the sites."""
        ...


def declared_solver(plan: RunPlan, program: str) -> Any:
    """Return the solver of a program that a plan declares by its name and options."""
    given = plan.parameters["solver"]
    options = {"name": given} if isinstance(given, str) else dict(given)
    return type(FAMILIES[program][options.pop("name")])(**options)


def after_moments(plan: RunPlan, *parts: Question | Order, **more: Any) -> Script:
    """Return the script of a solver that asks for moments first; ``more`` sets fields of the script."""
    moments, after = moments_script(plan), then(*parts)
    values = {**moments.values, **more.pop("values", {})}
    if not plan.parameters.get("center", True):
        values |= {f"{asked.name}.mean": 0.0 for asked in after.questions() if "mean" in asked.asks}
    return Script(then(moments.order, after), values=values, fixed=moments.fixed, **more)


def is_rank_rule(plan: RunPlan) -> bool:
    """Return whether a rule chooses the number of components; it may need several looks."""
    n_components = plan.parameters.get("n_components")
    return isinstance(n_components, str) or (n_components is not None and n_components < 1)


def columns_asked(plan: RunPlan, least: int = 1, more: int = 0) -> str:
    """Return the bound on a block's number of columns, as a word of `fedpca.protocol.parameters`.

    A block has at most one column for each component plus ``more`` others, or ``least`` columns if
    that is more. If a rule chooses the number of components, the only bound is that an orthonormal
    block has at most as many columns as there are features.
    """
    n_components = plan.parameters.get("n_components")
    if n_components is None or is_rank_rule(plan):
        return ""
    return f"columns 1..{max(least, int(n_components) + more)}"


def moments_and_rank(fed: Federation, problem: Problem) -> tuple[Moments, RankRule]:
    """Return the moments of all sites' rows, asking for them if necessary, and the rank rule.

    The rule "auto" asks the sites for products with random signs. Call the rule only after the
    sites have their frame.
    """
    moments = problem.with_moments(fed).moments
    assert moments is not None
    rank = rank_rule(problem.n_components, moments.n, moments.d)
    return moments, rank if problem.flips is None else replace(rank, rule=problem.flips)


@question(
    doing="improving the components",
    asks={"Z": "float64 d k, orthonormal"},
    answers={"Y": "float64 d k, explained"},
)
def covariance_product(site: Site, Z: Array) -> Arrays:
    """Return A_i'(A_i Z), where A_i holds a site's standardized rows."""
    return {"Y": site.standardized.gram_times(Z)}


def explains_too_much(answer: Arrays, _: Arrays) -> str | None:
    """Return what is wrong if an answer explains more than its total, else None."""
    is_possible = answer["explained"] <= (1 + ROUNDING) * answer["total"]
    return None if is_possible else "explains more than the site's sum of squares"


def scaled(residual: float, energy: float) -> float:
    """Return a residual as a fraction of the energy; treat zero over zero as zero."""
    return residual / max(energy, float(np.finfo(np.float64).tiny))


def starting_block(fed: Federation, d: int, width: int, start: Array | None) -> Array:
    """Return an orthonormal ``(d, width)`` block: directions near ``start``, then random ones.

    The block deliberately differs a little from ``start``. Eigenvectors computed from different rows
    may also be eigenvectors of these rows, but not the leading ones. An iteration that starts exactly
    at them would never leave them.
    """
    block = fed.rng().standard_normal((d, width)) / np.sqrt(d)
    if start is not None:
        given = start[:, :width]
        block[:, : given.shape[1]] *= START_DISTANCE
        block[:, : given.shape[1]] += given
    return orth(block)


def check_positive(name: str, value: Any, most: float | None = None) -> None:
    """Refuse an option that is not a positive number or exceeds ``most``."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 < value < np.inf or (most is not None and value > most):
        bound = "" if most is None else f" no greater than {most:g}"
        raise InputError(f"{name}={value!r} must be a positive number{bound}")


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Refuse an option that is not one of the choices."""
    if not any(value is choice or value == choice for choice in choices):
        raise InputError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}")
