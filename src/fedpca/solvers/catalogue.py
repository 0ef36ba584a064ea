"""The catalogue of solvers: the single table that all other code reads.

A new solver is one file and one row here. Estimators accept a solver as a value or by its name in this
table. `FederatedPCA` with "auto" chooses one of the exact solvers. The leak lab attacks the solvers,
the command line lists them, and the common tests check that each solver keeps its promises.

An installed package can add a solver to `FederatedPCA` through the entry point ``fedpca.solvers``,
which names the solver's class. Importing the class's module registers the questions that the solver
asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import numpy as np

from fedpca.errors import InputError, PolicyRefused
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import FEDERATED
from fedpca.site.policy import ANY
from fedpca.solvers.contract import FAMILIES, Problem, Solution, Solver, covariance_product
from fedpca.solvers.costs import expected_rounds, payload
from fedpca.solvers.exact.covariance import Covariance, covariance_triangle
from fedpca.solvers.exact.faps import Faps
from fedpca.solvers.exact.lanczos import Lanczos
from fedpca.solvers.exact.local_power import LocalPower
from fedpca.solvers.exact.subspace_iteration import SubspaceIteration
from fedpca.solvers.exact.tsqr import Tsqr
from fedpca.solvers.one_round.average import Average
from fedpca.solvers.one_round.merge import Merge
from fedpca.solvers.personalized.contract import PersonalizedSolver
from fedpca.solvers.personalized.gradient import Polar, Stiefel
from fedpca.solvers.personalized.power import Power
from fedpca.solvers.robust.contract import RobustSolver
from fedpca.solvers.robust.dcf import Dcf
from fedpca.solvers.robust.hard import Threshold
from fedpca.solvers.robust.soft import Auto, LeastSquares
from fedpca.solvers.standardize import standardize

__all__ = [
    "SOLVERS",
    "Average",
    "Covariance",
    "Dcf",
    "Faps",
    "Lanczos",
    "LeastSquares",
    "LocalPower",
    "Merge",
    "Polar",
    "Power",
    "Problem",
    "Solution",
    "Solver",
    "Stiefel",
    "SubspaceIteration",
    "Threshold",
    "Tsqr",
]

AUTO = "auto"
ENTRY_POINTS = "fedpca.solvers"
SOLVER_NAMES = ("name", "guarantee", "seen", "script", "solve")

SOLVERS: dict[str, Solver] = {
    solver.name: solver
    for solver in (
        Covariance(),
        Lanczos(),
        SubspaceIteration(),
        LocalPower(),
        Faps(),
        Tsqr(),
        Merge(),
        Average(),
    )
}
PERSONALIZED: dict[str, PersonalizedSolver] = {s.name: s for s in (Power(), Stiefel(), Polar())}
ROBUST: dict[str, RobustSolver] = {
    solver.name: solver for solver in (Auto(), Threshold(), LeastSquares(), Dcf())
}
FAMILIES |= {"FederatedPCA": SOLVERS, "PersonalizedPCA": PERSONALIZED, "RobustPCA": ROBUST}


def not_squaring() -> list[str]:
    """Return the solvers that find components even if rounding in sums of squares would hide them."""
    return [name for name, solver in SOLVERS.items() if not getattr(solver, "squares_rows", True)]


def find_solver(given: Any, program: str = "FederatedPCA") -> Any:
    """Return a program's solver for a name or a solver value.

    Return None for "auto" if the program itself then chooses a solver.
    """
    solvers = FAMILIES[program]
    if solvers is SOLVERS:
        if isinstance(given, str):
            return None if given == AUTO else SOLVERS.get(given) or _added_solver(given)
        if isinstance(given, Solver) and not isinstance(given, type):
            return given
        raise InputError(f"solver={given!r} must be a solver name or a solver such as Faps()")
    if isinstance(given, str) and given in solvers:
        return solvers[given]
    kinds = tuple(type(solver) for solver in solvers.values())
    if isinstance(given, kinds):
        return given
    values = ", ".join(f"{kind.__name__}()" for kind in kinds)
    raise InputError(f"solver={given!r} must be one of {', '.join(solvers)}, or one of {values}")


def cheapest_exact(n: int, d: int, k: int) -> Solver:
    """Return the solver expected to move fewer bytes, out of those that "auto" chooses from.

    One sends a triangle. The other sends blocks, whose number is a guess, since the variances are not
    known. A tie goes to the blocks, which are smaller messages.
    """
    width = min(k, d)
    rounds = expected_rounds(n, d, width)
    blocks = payload(standardize, d=d) + rounds * payload(covariance_product, d=d, k=width)
    by_triangle, by_blocks = chosen_by_auto()
    return by_triangle if payload(covariance_triangle, d=d) < blocks else by_blocks


def chosen_by_auto() -> tuple[Solver, Solver]:
    """Return the solvers that "auto" chooses from: the one with a triangle, and the one with blocks.

    The other exact solvers that need only sums move more bytes.
    """
    return SOLVERS[Covariance.name], SOLVERS[Lanczos.name]


def policy_words() -> list[str]:
    """Return the words that a site's policy may list in ``allow``."""
    opened = [s.name for s in SOLVERS.values() if s.guarantee != "exact" or s.seen]
    added = [point.name for point in entry_points(group=ENTRY_POINTS)]
    return [FEDERATED, AUTO, "personalized", "robust", *opened, *added, ANY]


def to_plain(given: Any) -> Any:
    """Convert a solver to plain values for a file or a journal; return a name unchanged."""
    if isinstance(given, str):
        return given
    options = {k: v.item() if isinstance(v, np.generic) else v for k, v in asdict(given).items()}
    return {"name": given.name, **options}


def from_plain(plain: Any, names: Mapping[str, Any]) -> Any:
    """Restore a solver from the output of `to_plain`, looking it up by name."""
    if isinstance(plain, str):
        return plain
    options = dict(plain)
    name = options.pop("name")
    solver = names.get(name) or _added_solver(name)
    return type(solver)(**options)


def plan_solver(plan: RunPlan) -> Solver | None:
    """Return the `FederatedPCA` solver that a plan declares, or None if the program chooses one."""
    given = plan.parameters.get("solver")
    if given in (None, AUTO):
        return None
    try:
        solver: Solver = from_plain({"name": given} if isinstance(given, str) else given, SOLVERS)
        return solver
    except (InputError, LookupError, TypeError, AttributeError) as error:
        raise PolicyRefused(f"the plan's solver cannot be used here: {error}") from None


def load_added_solvers() -> dict[str, Solver | InputError]:
    """Load all solvers that installed packages add, along with their questions.

    If a solver cannot be loaded, the error is returned in its place, and the others still load.
    """
    loaded: dict[str, Solver | InputError] = {}
    for point in entry_points(group=ENTRY_POINTS):
        try:
            loaded[point.name] = _load(point)
        except InputError as error:
            loaded[point.name] = error
    return loaded


def _added_solver(name: str) -> Solver:
    """Return the solver that an installed package adds under this name."""
    points = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name not in points:
        raise InputError(
            f"unknown solver {name!r}; use one of {', '.join([AUTO, *SOLVERS, *points])}"
        )
    return _load(points[name])


@cache
def _load(point: EntryPoint) -> Solver:
    """Import a solver from another package and check that it is a `Solver`."""
    where = f"solver {point.name!r} from {point.value}"
    if point.name in (AUTO, *SOLVERS):
        raise InputError(f"{where} has the same name as a built-in solver; rename it")
    try:
        loaded = point.load()
        solver = loaded() if isinstance(loaded, type) else loaded
    except Exception as error:  # another package's code may raise anything
        raise InputError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(solver, Solver):
        lacks = [name for name in SOLVER_NAMES if not hasattr(solver, name)]
        raise InputError(
            f"{where} is not a solver, because it lacks {', '.join(lacks)}; see "
            "fedpca.solvers.contract.Solver"
        )
    return solver
