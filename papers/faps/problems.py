"""Generate the problems of the FAPS paper, and stop solvers on them by the true KKT violation.

    A = V diag(s) U',    V and U orthonormal bases of matrices of uniform numbers, U = I here.

U only rotates the space in which the directions lie. Every solver starts at random and treats all
directions alike, so a rotation changes nothing. Without it, A'A = diag(s^2) is known exactly.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from scipy.linalg import cholesky
from scipy.linalg.blas import dtrsm
from sklearn.exceptions import ConvergenceWarning

from fedpca import FederatedPCA, Federation
from fedpca.arrays import Array, Arrays
from fedpca.linalg.dense import top_eigen
from fedpca.protocol.question import Question
from fedpca.rows.standardized import StandardizedRows
from fedpca.solvers import Faps, Lanczos, LocalPower, Solver, SubspaceIteration
from fedpca.solvers.contract import covariance_product
from shared.drawing import spread

KKT = 1.97e-6  # scaled; the paper's runs end just below this
MOST = 1500  # rounds after which a run is given up
CURVE = "curve only"
SSI, FAPS, LANCZOS = "SSI", "FAPS", "Lanczos, ours"
LOCAL, SLOWLY = "LocalPower, as in the paper", "LocalPower, our default"
METHODS: dict[str, Solver] = {
    SSI: SubspaceIteration(),
    LOCAL: LocalPower(halve_every=1),
    SLOWLY: LocalPower(),
    FAPS: Faps(),
    LANCZOS: Lanczos(),
}
N_JOBS = os.cpu_count() or 1


@dataclass(frozen=True)
class Problem:
    """The rows of all sites, and what is known about them together."""

    sites: Sequence[Array]
    times: Callable[[Array], Array]  # A'A Z
    values: Array  # singular values of A, in descending order
    energy: float  # the sum of squares of A

    def violation(self, Z: Array) -> float:
        """Return the scaled KKT violation ``||(I - ZZ')A'A Z||_F / ||A||_F^2``."""
        Y = self.times(Z)
        return float(np.linalg.norm(Y - Z @ (Z.T @ Y))) / self.energy

    def error(self, Z: Array) -> float:
        """Return the relative error of the singular values that Z, ``(d, p)``, gives."""
        p = Z.shape[1]
        found = np.sqrt(np.maximum(top_eigen(Z.T @ self.times(Z), p)[0], 0.0))
        return float(np.linalg.norm(found - self.values[:p]) / np.linalg.norm(self.values[:p]))


def geometric(n: int, xi: float) -> Array:
    """Return singular values by equation 24."""
    return np.asarray(xi ** -np.arange(n, dtype=float))


def arithmetic(n: int, kappa: float) -> Array:
    """Return the singular values of section 5.6, with the condition number kappa."""
    return np.linspace(1.0, 1 / kappa, n)


def generate(s: Array, n_rows: Sequence[int], seed: int) -> Problem:
    """Generate rows by equation 23 with singular values s, ``n_rows`` of them at each site."""
    rng = np.random.default_rng([seed, len(s), len(n_rows)])
    sites = [rng.uniform(-1, 1, (n, len(s))) for n in n_rows]
    with ThreadPoolExecutor(N_JOBS) as pool:
        gram = np.zeros((len(s), len(s)))
        for part in pool.map(lambda rows: rows.T @ rows, sites):
            gram += part
        R = cholesky(gram, overwrite_a=True)  # all rows together are V R

        def turn_to_A(rows: Array) -> None:
            dtrsm(1.0, R, rows.T, trans_a=1, overwrite_b=True)
            rows *= s

        list(pool.map(turn_to_A, sites))
    squares = s[:, None] ** 2
    return Problem(sites, lambda Z: squares * Z, s, float(squares.sum()))


def of_rows(sites: Sequence[Array], p: int) -> Problem:
    """Return the problem of finding p components of given rows."""
    gram = sum(rows.T @ rows for rows in sites)
    values = np.sqrt(top_eigen(gram, p)[0])
    return Problem(sites, partial(np.matmul, gram), values, float(np.trace(gram)))


class Reached(Exception):
    """The bound on the KKT violation is met."""


class Observed(Federation):
    """A federation that looks at the subspace after every round, and may then stop the solver.

    It also computes A'A Z itself, since this script knows A'A without asking the sites.
    """

    def look_at(self, problem: Problem, bound: float, *, stops: bool) -> None:
        """Begin to record violations, and keep the first subspace that meets the bound."""
        self._problem, self._bound, self._stops = problem, bound, stops
        self.violations: list[float] = []
        self.reached = np.inf

    def sum(self, question: Question, **arrays: Any) -> Arrays:
        """Sum as any federation does, except for A'A times a block, which is known here."""
        if question is covariance_product:
            return {"Y": self._problem.times(arrays["Z"])}
        return super().sum(question, **arrays)

    def report(self, residual: float, subspace: Callable[[], Array]) -> None:
        super().report(residual, subspace)
        Z = subspace()
        self.violations.append(self._problem.violation(Z))
        if np.isinf(self.reached):
            self.Z = Z
            if self.violations[-1] <= self._bound:
                self.reached = len(self.violations)
        if self._stops and np.isfinite(self.reached):
            raise Reached


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    rounds: float  # to the bound; infinite where it was not met
    violation: float  # there, or at the end
    error: float  # relative error of the singular values at the same point
    violations: list[float]  # after each round
    by_own_rule: float  # rounds after which the solver itself stopped, infinite where it did not


def observe(
    problem: Problem,
    p: int,
    seed: int,
    method: Solver,
    *,
    bound: float = KKT,
    most: int = MOST,
    tol: float | None = None,
) -> Outcome:
    """Count a solver's rounds until the true scaled KKT violation is at most the bound.

    With ``tol``, the solver is not stopped there: it goes on until its own rule is met.
    """
    fed = Observed.local(list(problem.sites), n_jobs=N_JOBS)
    fed.look_at(problem, bound, stops=tol is None)
    common = {"center": False, "tol": tol or 0.0, "max_rounds": most, "random_state": seed}
    own = np.inf
    with warnings.catch_warnings(), suppress(Reached):
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = FederatedPCA(p, solver=method, **common).fit(fed)
        if model.run_.stop_reason != "max_rounds":
            own = len(fed.violations)
    violation, error = problem.violation(fed.Z), problem.error(fed.Z)
    return Outcome(fed.reached, violation, error, fed.violations, own)


def rounds_at_sites(problem: Problem, p: int, seed: int, method: Solver) -> float:
    """Count rounds by the solver's own rule in a plain federation, where sites answer everything."""
    common = {"center": False, "tol": KKT, "max_rounds": MOST, "random_state": seed}
    fed = Federation.local(list(problem.sites))
    model = FederatedPCA(p, solver=method, **common).fit(fed)
    return float(model.run_.solver_rounds)


@contextmanager
def counted_products() -> Iterator[list[None]]:
    """Yield a list that grows by one with every product that a site forms."""
    calls: list[None] = []
    times = StandardizedRows.gram_times

    def counted(rows: StandardizedRows, Z: Array) -> Array:
        calls.append(None)
        return times(rows, Z)

    with mock.patch.object(StandardizedRows, "gram_times", counted):
        yield calls


def compare(
    make: Callable[[int], Problem],
    p: int,
    seeds: int,
    methods: Mapping[str, Solver] = METHODS,
    **limits: Any,
) -> dict[str, list[Outcome]]:
    """Run every method with each seed, which sets the data and the start."""
    found: dict[str, list[Outcome]] = {name: [] for name in methods}
    for seed in range(seeds):
        problem = make(seed)
        for name, method in methods.items():
            found[name].append(observe(problem, p, seed, method, **limits))
    return found


def rounds_of(runs: list[Outcome], most: int = MOST) -> str:
    """Write the median and the range of the rounds."""
    return spread([run.rounds for run in runs], most)


def error_of(runs: list[Outcome]) -> float:
    """Return the median of the relative errors of the singular values."""
    return float(np.median([run.error for run in runs]))


def violation_of(runs: list[Outcome]) -> float:
    """Return the median of the scaled KKT violations at the end."""
    return float(np.median([run.violation for run in runs]))
