"""Compare the time and the rounds of personalized PCA with those of the published algorithm.

    python benchmarks/personalized.py            100 sites of 1000 x 200, 5 shared and 5 local
    python benchmarks/personalized.py --quick    small, to see that it runs

Rows have a standard deviation of 1 along shared components, 10 (as in the paper) or 3 along local
components, and 0.5 elsewhere. Every method stops when the relative gap to the best objective found is
1e-8, or after 2000 rounds. The last part fits more and more sites within one process, and prints how
the memory of this process grows.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
import warnings
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

from fedpca import Federation, PersonalizedPCA
from fedpca.solvers.personalized.gradient import stiefel_step
from fedpca.solvers.personalized.power import power_step

GAP = 1e-8
MOST = 2000


def draw(n_sites: int, n: int, d: int, shared: int, local: int, deviation: float, seed: int = 0):
    """Draw the rows of sites with directions that all sites share, and each site's own directions."""
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((d, shared)))[0]
    sites = {}
    for i in range(n_sites):
        W = rng.standard_normal((d, local))
        V = np.linalg.qr(W - U @ (U.T @ W))[0]
        X = rng.standard_normal((n, shared)) @ U.T
        X += deviation * rng.standard_normal((n, local)) @ V.T
        sites[f"site {i}"] = X + 0.5 * rng.standard_normal((n, d))
    return sites


class Reached(Exception):
    """Signal that the objective has reached its target."""


class Watched(Federation):
    """A federation that stops a solver once its objective reaches a target."""

    def sum(self, question, **arrays):
        answer = super().sum(question, **arrays)
        if question in (power_step, stiefel_step):
            self.rounds = getattr(self, "rounds", 0) + 1
            values = np.trace(answer["along"], axis1=-2, axis2=-1) + answer["local"]
            if np.max(values) / len(self.record.sites) >= self.target:
                raise Reached
        return answer


def ours(sites, shared: int, local: int, target: float, **parameters) -> tuple[float, int]:
    """Return our seconds and rounds to the target; the seconds include work outside the rounds."""
    began = time.perf_counter()
    fed = Watched.local(sites)
    fed.target = target
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            PersonalizedPCA(shared, local, n_init=1, max_rounds=MOST, tol=0.0, **parameters).fit(
                fed
            )
        except Reached:
            return time.perf_counter() - began, fed.rounds
    return time.perf_counter() - began, MOST


def algorithm_2(sites, shared: int, local: int, target: float) -> tuple[float, int]:
    """Run choice 1 of the paper's Algorithm 2 in plain numpy; this forms all covariances."""
    began = time.perf_counter()
    centered = [X - X.mean(axis=0) for X in sites.values()]
    S = [A.T @ A / len(A) for A in centered]
    average, largest = 0.0, 0.0
    for covariance in S:
        values, vectors = np.linalg.eigh(covariance)
        W = vectors[:, -shared - local :]
        average = average + (W * values[-shared - local :]) @ W.T
        largest = max(largest, values[-1])
    U = np.linalg.eigh(average)[1][:, -shared:]
    rng = np.random.default_rng(0)
    V = [rng.standard_normal((len(U), local)) for _ in S]
    rounds = 0
    while rounds < MOST:
        rounds += 1
        total, value = np.zeros_like(U), 0.0
        for i, covariance in enumerate(S):
            own = polar(V[i] - U @ (U.T @ V[i]))
            X = np.hstack([U, own])
            Y = covariance @ X
            value += np.vdot(X, Y) / len(S)
            G = Y - X @ (X.T @ Y + Y.T @ X) / 2
            total += U + G[:, :shared] / largest
            V[i] = polar(own + G[:, shared:] / largest)
        if value >= target:
            break
        U = polar(total / len(S))
    return time.perf_counter() - began, rounds


def polar(Y: np.ndarray) -> np.ndarray:
    left, _, right = np.linalg.svd(Y, full_matrices=False)
    return left @ right


def compare(title: str, sites, shared: int, local: int, repeats: int) -> None:
    """Print each contestant's seconds and rounds, and our seconds divided by theirs."""
    best = PersonalizedPCA(shared, local, tol=1e-14).fit(sites).objective_
    target = best * (1 - GAP)
    contestants: dict[str, Callable[[], tuple[float, int]]] = {
        "fedpca": lambda: ours(sites, shared, local, target),
        "solver='stiefel', the same start": lambda: ours(
            sites, shared, local, target, solver="stiefel"
        ),
        "Algorithm 2 in numpy": lambda: algorithm_2(sites, shared, local, target),
    }
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            found[name].append(run())
    print(f"\n{title}")
    median = {name: float(np.median([s for s, _ in runs])) for name, runs in found.items()}
    for name, runs in found.items():
        rounds = f"{runs[0][1]} rounds" if runs[0][1] < MOST else f"not in {MOST} rounds"
        ratio = (
            "" if name == "fedpca" else f"   fedpca / this {median['fedpca'] / median[name]:.3f}"
        )
        bound = "   (bound 0.10)" if "numpy" in name and "deviation 10" in title else ""
        print(f"  {name:34s}{median[name]:8.3f} s  {rounds:>20s}{ratio}{bound}")


def memory_of(n_sites: int, d: int) -> tuple[float, float]:
    """Return the megabytes that a fit adds to the rows, after the fit and at its peak."""
    rng = np.random.default_rng(0)
    sites = {f"site {i}": rng.standard_normal((40, d)) for i in range(n_sites)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracemalloc.start()
        fitted = PersonalizedPCA(5, 5, max_rounds=3).fit(sites)
        left, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(fitted.local_components_) == n_sites
    return left / 2**20, peak / 2**20


def memory(counts: tuple[int, ...], d: int) -> None:
    """Print how memory grows with the number of sites, next to the memory of their components."""
    print(f"\nMemory of a fit in addition to the rows, sites of 40 x {d}, 5 shared and 5 local")
    for count in counts:
        left, peak = memory_of(count, d)
        own = count * 5 * d * 8 / 2**20
        print(
            f"  {count:5d} sites {left:8.1f} MB, at most {peak:6.1f} MB; their local components alone "
            f"{own:5.1f} MB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    n_sites, n, d = (8, 100, 30) if options.quick else (100, 1000, 200)
    for deviation in (10, 3):
        sites = draw(n_sites, n, d, 5, 5, deviation)
        title = f"{n_sites} sites of {n} x {d}, 5 shared and 5 local of deviation {deviation}"
        with threadpool_limits(1, user_api="blas"):  # since the products are small
            compare(title, sites, 5, 5, 1 if options.quick else options.repeats)
    memory((20, 40) if options.quick else (250, 500, 1000), 50 if options.quick else 400)


if __name__ == "__main__":
    main()
