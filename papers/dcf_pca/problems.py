"""Generate the problems of the DCF-PCA paper, and run its method, ours, and two on pooled rows.

    M = L0 + S0,   L0 = A B' with normal A and B, S0 of +-sqrt(mn) at a share s of random places

The paper's sites hold columns. Here rows are observations, so sites hold rows, and the paper's U is the
matrix of components. The problems are the same: m = n, and nothing else distinguishes rows from
columns.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.linalg import eigh, qr, svdvals
from sklearn.exceptions import ConvergenceWarning

from fedpca import Federation, RobustPCA, Site
from fedpca.arrays import Array, Arrays
from fedpca.protocol.question import Question
from fedpca.solvers import Dcf
from fedpca.solvers.robust.at_site import Scores
from fedpca.solvers.robust.dcf import gradient_round
from fedpca.solvers.robust.hard import hard_round
from fedpca.solvers.robust.soft import soft_round

N_SITES = 10
DCF_ROUNDS = 50  # the paper stops before that
LONGEST = 45.0  # seconds that a method for pooled rows may take
Split = tuple[Array, Array]  # the low-rank and the sparse part
Point = tuple[float, float, float]  # seconds, error by (30), relative error of L


@dataclass(frozen=True)
class Problem:
    """Rows, and the two parts that they are the sum of."""

    A: Array  # (n, r)
    B: Array  # (n, r)
    S0: Array
    M: Array  # with noise, and NaN where values are missing
    L0: Array = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "L0", self.A @ self.B.T)

    @property
    def r(self) -> int:
        """Return the true rank."""
        return self.A.shape[1]

    def sites(self, n_sites: int = N_SITES) -> list[Array]:
        """Return the rows of each site."""
        return np.array_split(self.M, n_sites)

    def paper_error(self, L: Array, S: Array) -> float:
        """Return the paper's error (30), of both parts together and squared."""
        wrong = np.linalg.norm(L - self.L0) ** 2 + np.linalg.norm(S - self.S0) ** 2
        return float(wrong / (np.linalg.norm(self.L0) ** 2 + np.linalg.norm(self.S0) ** 2))

    def error(self, L: Array, rows: slice = slice(None)) -> float:
        """Return ||L - L0|| / ||L0||, of some rows or all."""
        return float(np.linalg.norm((L - self.L0)[rows]) / np.linalg.norm(self.L0[rows]))

    def values_error(self, values: Array) -> float:
        """Return the largest error of a singular value, in units of the smallest true one."""
        true = values_of(self.A, self.B)
        n = max(len(true), len(values))
        difference = np.pad(values, (0, n - len(values))) - np.pad(true, (0, n - len(true)))
        return float(np.abs(difference).max() / true[-1])


def generate(
    n: int,
    r: int,
    s: float,
    seed: int,
    *,
    amplitude: float | None = None,
    noise: float = 0.0,
    missing: float = 0.0,
    bad_share: float = 0.0,
) -> Problem:
    """Generate a problem of n x n; ``bad_share`` is the share of outliers at the first site."""
    rng = np.random.default_rng([seed, n, r, int(1000 * s)])
    A, B = rng.standard_normal((2, n, r))
    size = n if amplitude is None else amplitude
    S0 = outliers((n, n), s, size, rng)
    if bad_share:
        S0[: n // N_SITES] = outliers((n // N_SITES, n), bad_share, size, rng)
    M = A @ B.T + S0
    if noise:
        M += noise * rng.standard_normal((n, n))
    if missing:
        M[rng.random((n, n)) < missing] = np.nan
    return Problem(A, B, S0, M)


def outliers(shape: tuple[int, int], share: float, size: float, rng: np.random.Generator) -> Array:
    """Draw a matrix of zeros, except for a share of entries that are plus or minus ``size``."""
    S = np.zeros(shape)
    where = rng.permutation(S.size)[: round(share * S.size)]
    S.flat[where] = size * rng.choice([-1.0, 1.0], len(where))
    return S


def values_of(V: Array, U: Array) -> Array:
    """Return the singular values of V U', in descending order."""
    R_V, R_U = (qr(Z, mode="economic")[1] for Z in (V, U))
    return np.asarray(svdvals(R_V @ R_U.T))


class Watched(Federation):
    """A federation that keeps what its sites hold after each round, unseen by any real coordinator."""

    def watch(self, problem: Problem, sites: list[Site], *, each_round: bool) -> None:
        """Begin to watch; with ``each_round``, compute errors after every round, off the clock."""
        self._problem, self._sites, self._each_round = problem, sites, each_round
        self.points: list[Point] = []
        self.looking, self._began = 0.0, time.perf_counter()

    def sum(self, question: Question, **arrays: Any) -> Arrays:
        """Sum as any federation does, and look at the sites' scores."""
        answer = super().sum(question, **arrays)
        if question in (hard_round, soft_round, gradient_round):
            begin = time.perf_counter()
            self.U = answer["U"] if question is gradient_round else arrays["U"]
            self.V = np.vstack([site.recall(Scores).V for site in self._sites])
            if self._each_round:
                L, S = self.parts(float(arrays["threshold"]), is_hard=question is hard_round)
                errors = self._problem.paper_error(L, S), self._problem.error(L)
                self.points.append((begin - self._began - self.looking, *errors))
            self.looking += time.perf_counter() - begin
        return answer

    def parts(self, threshold: float, *, is_hard: bool) -> Split:
        """Return V U' and what thresholds leave of the residuals."""
        L = self.V @ self.U.T
        R = self._problem.M - L
        S = np.where(np.abs(R) > threshold, R, 0.0) if is_hard else shrunk(R, threshold)
        return L, S


@dataclass(frozen=True)
class Fitted:
    """A fit, and the matrices it ends with."""

    pca: RobustPCA
    L: Array
    S: Array
    values: Array  # singular values of L
    points: list[Point]
    seconds: float


def fit(
    problem: Problem, n_sites: int = N_SITES, *, each_round: bool = False, **options: Any
) -> Fitted:
    """Fit by our method, or by another ``method``, with the true rank unless ``options`` give a bound.

    L and S are what the estimator gives, except for the published method. There, L is V U' and S is the
    soft part, as the method leaves them: neither refitted nor cut to the rank that was found.
    """
    if "max_components" not in options:
        options["n_components"] = problem.r
    sites = [Site(X, name=f"site-{i + 1}") for i, X in enumerate(problem.sites(n_sites))]
    fed = Watched.local(sites)
    pca = RobustPCA(center="none", random_state=0, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", message=".*are outliers.*")
        fed.watch(problem, sites, each_round=each_round)
        begin = time.perf_counter()
        pca.fit(fed)
        seconds = time.perf_counter() - begin - fed.looking
    if isinstance(pca.solver, Dcf):
        L, S = fed.parts(pca.threshold_, is_hard=False)
        values = values_of(fed.V, fed.U)
    else:
        parts = [pca.split(rows) for rows in problem.sites(n_sites)]
        L, S = (np.vstack(matrices) for matrices in zip(*parts, strict=True))
        values = np.asarray(svdvals(np.vstack([pca.transform(X) for X in problem.sites(n_sites)])))
    return Fitted(pca, L, S, values, fed.points, seconds)


def fit_dcf(
    problem: Problem,
    n_sites: int = N_SITES,
    p: int | None = None,
    *,
    local_steps: int = 2,
    **options: Any,
) -> Fitted:
    """Fit by the published method, with the true rank or with p columns, which may be too many."""
    if p is not None:
        options["max_components"] = p - 1  # a fit takes one column more than the bound
    method = Dcf(local_steps=local_steps)
    return fit(problem, n_sites, solver=method, **{"max_rounds": DCF_ROUNDS, **options})


def shrunk(X: Array, threshold: float) -> Array:
    """Return X with entries moved toward zero by a threshold."""
    return X - np.clip(X, -threshold, threshold)


def shrunk_values(X: Array, threshold: float) -> Array:
    """Return X with singular values moved toward zero by a threshold, which drops those below it."""
    squares, W = eigh(X.T @ X, subset_by_value=(threshold**2, np.inf))
    return (X @ W * (1 - threshold / np.sqrt(squares))) @ W.T


def inexact_alm(M: Array, tol: float = 1e-7) -> Iterator[Split]:
    """Solve the convex problem by its augmented Lagrangian, one step of each part at a time."""
    weight, largest, size = 1 / np.sqrt(max(M.shape)), np.linalg.norm(M, 2), np.linalg.norm(M)
    Y = M / max(largest, np.abs(M).max() / weight)
    S, penalty = np.zeros_like(M), 1.25 / largest
    residual = np.inf
    while residual > tol * size:
        L = shrunk_values(M - S + Y / penalty, 1 / penalty)
        S = shrunk(M - L + Y / penalty, weight / penalty)
        R = M - L - S
        Y += penalty * R
        penalty = min(1.5 * penalty, 1.25e7 / largest)
        residual = np.linalg.norm(R)
        yield L, S


def accelerated_gradient(M: Array, tol: float = 1e-7) -> Iterator[Split]:
    """Solve the convex problem by proximal gradient steps with momentum and a falling penalty."""
    weight, size = 1 / np.sqrt(max(M.shape)), np.linalg.norm(M)
    penalty = 0.99 * np.linalg.norm(M, 2)
    least = 1e-9 * penalty
    L = S = L_ahead = S_ahead = np.zeros_like(M)
    t, moved = 1.0, np.inf
    while moved > tol * size or penalty > least:
        half = (L_ahead + S_ahead - M) / 2
        L_last, S_last = L, S
        L = shrunk_values(L_ahead - half, penalty / 2)
        S = shrunk(S_ahead - half, weight * penalty / 2)
        t_last, t = t, (1 + np.sqrt(1 + 4 * t * t)) / 2
        ahead = (t_last - 1) / t
        L_ahead, S_ahead = L + ahead * (L - L_last), S + ahead * (S - S_last)
        penalty = max(0.9 * penalty, least)
        moved = np.hypot(np.linalg.norm(L - L_last), np.linalg.norm(S - S_last))
        yield L, S


def timed(problem: Problem, iterates: Iterator[Split]) -> list[Point]:
    """Return errors after each iteration until a method ends, or takes too long."""
    points: list[Point] = []
    seconds, begin = 0.0, time.perf_counter()
    for L, S in iterates:
        seconds += time.perf_counter() - begin
        points.append((seconds, problem.paper_error(L, S), problem.error(L)))
        if seconds > LONGEST:
            break
        begin = time.perf_counter()
    return points


def oracle(problem: Problem, n_steps: int = 20) -> Array:
    """Find L by least squares on all entries that are not outliers, knowing which these are.

    Rows and columns take turns, starting from the truth.
    """
    known = (problem.S0 == 0).astype(float)
    M = known * problem.M
    V, U = problem.A, problem.B
    for _ in range(n_steps):
        V = by_rows(M, known, U)
        U = by_rows(M.T, known.T, V)
    return V @ U.T


def by_rows(M: Array, known: Array, U: Array) -> Array:
    """Solve for each row's coefficients on U that fit its known entries best."""
    r = U.shape[1]
    squares = (U[:, :, None] * U[:, None, :]).reshape(len(U), r * r)
    G = (known @ squares).reshape(len(M), r, r)
    return np.linalg.solve(G, (M @ U)[:, :, None])[:, :, 0]
