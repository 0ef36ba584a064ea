"""Measure what many sites in one process cost, per message and in whole fits.

    python benchmarks/many_sites.py                        all cases
    python benchmarks/many_sites.py messages               one of them: messages, pooled, memory
    python benchmarks/many_sites.py --quick                small sizes, to see that it runs

`messages` prints microseconds of processor time for each question that a site answers. The question
`echo` returns what was sent, so all of its time is that of messages and their checks. In whole fits,
the time of the questions' own computations is subtracted and printed separately.

`pooled` divides the time of a fit by that of scikit-learn's PCA on the pooled rows. `memory` runs each
fit in its own process and prints how far resident memory rises above the rows.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from sklearn.decomposition import PCA

from exact import decaying_rows, peak_resident
from fedpca import FederatedPCA, Federation, question
from fedpca.linalg.blas_threads import threads_for_entries
from fedpca.protocol.question import Question
from racing import race, show

BOUND_US = 50.0  # longest time for a message
SOLVERS = ("covariance", "lanczos")


@question(asks={"Z": "float64 d k"}, answers={"Y": "float64 d k"})
def echo(site, Z):
    """Send back the block that came with the question."""
    return {"Y": Z}


def messages(quick: bool) -> None:
    sizes = (10, 100) if quick else (10, 100, 1000, 10000)
    d, n_rows = 8, 20
    columns = ["echo", *(f"{solver}{part}" for solver in SOLVERS for part in ("", ", questions"))]
    print(f"\nmicroseconds of processor time a message, {n_rows} x {d} rows a site")
    print(f"  {'sites':>8s}" + "".join(f"{name:>24s}" for name in columns))
    largest = 0.0
    for n_sites in sizes:
        rows = np.random.default_rng(0).normal(size=(n_sites, n_rows, d)) * np.linspace(3, 1, d)
        fed = Federation.local(list(rows))
        repeats = 3 if quick or n_sites == 10000 else 7
        found = [statistics.median(echo_seconds(fed, d) for _ in range(repeats))]
        for solver in SOLVERS:
            parts = [fit_seconds(fed, solver) for _ in range(repeats)]
            found += [statistics.median(part) for part in zip(*parts, strict=True)]
        print(f"  {n_sites:8d}" + "".join(f"{1e6 * each / n_sites:24.1f}" for each in found))
        if n_sites > 10:  # with fewer sites, fixed costs of a fit count more
            largest = max(largest, *(1e6 * found[i] / n_sites for i in (0, 1, 3)))
    print(f"  the most for messages: {largest:.1f}   (bound {BOUND_US:.0f})")


def echo_seconds(fed: Federation, d: int) -> float:
    """Return the processor time of one round of echoes."""
    fed.bind(d=d)
    Z = np.eye(d, 2)
    times = max(2, 2000 // len(fed.engine.names))
    with threads_for_entries(0):  # as in a run
        fed.sum(echo, Z=Z)
        began = time.process_time()
        for _ in range(times):
            fed.sum(echo, Z=Z)
    return (time.process_time() - began) / times


def fit_seconds(fed: Federation, solver: str) -> tuple[float, float]:
    """Return a round's processor time outside the questions' functions, and its time within them."""
    within = 0.0
    plain = Question.__call__

    def timed(self, site, **arrays):
        nonlocal within
        began = time.process_time()
        try:
            return plain(self, site, **arrays)
        finally:
            within += time.process_time() - began

    Question.__call__ = timed
    try:
        began = time.process_time()
        fitted = FederatedPCA(2, solver=solver, random_state=0).fit(fed)
        whole = time.process_time() - began
    finally:
        Question.__call__ = plain
    rounds = fitted.run_.rounds
    return (whole - within) / rounds, within / rounds


def pooled(quick: bool) -> None:
    d, k = (50, 5) if quick else (500, 20)
    for n_sites, n_rows, bound in ((200, 1000, 1.2), (1000, 200, 2.0)):
        n = n_sites * n_rows // (20 if quick else 1)
        X = decaying_rows(n, d)
        parts = np.array_split(X, n_sites)
        contestants: dict[str, Callable[[], object]] = {
            "fedpca": lambda: FederatedPCA(k).fit(parts),  # noqa: B023
            "PCA covariance_eigh": lambda: PCA(k, svd_solver="covariance_eigh").fit(X),  # noqa: B023
        }
        title = f"{n_sites} sites of {n // n_sites} x {d}, k={k}"
        for clock in (time.perf_counter, time.process_time):
            seconds = race(contestants, 3 if quick else 9, clock)
            kind = "processor time" if clock is time.process_time else "time"
            show(f"{title}, {kind}", seconds, {"PCA covariance_eigh": bound})


def memory(quick: bool) -> None:
    n_sites, d = (200, 50) if quick else (10000, 400)
    print(f"\n{n_sites} sites of 10 x {d}: resident above the rows")
    for n_jobs in (1, 4):
        command = [sys.executable, __file__, "--child", str(n_sites), str(d), str(n_jobs)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        print(f"  n_jobs={n_jobs}   {done.stdout.strip()}")
    triangle = 4 * d * (d + 1)
    print(f"  all answers at once would take {n_sites * triangle / 1e6:.0f} MB")


def child(n_sites: int, d: int, n_jobs: int) -> None:
    """Fit rows at many sites, and print how far the peak of resident memory rose."""
    rows = np.random.default_rng(0).normal(size=(n_sites, 10, d))
    FederatedPCA(2, solver="covariance").fit(list(rows[:2]))  # so that imports do not count
    before = peak_resident()
    fed = Federation.local(list(rows), n_jobs=n_jobs)
    FederatedPCA(2, solver="covariance").fit(fed)
    print(f"{(peak_resident() - before) / 1e6:6.0f} MB")


CASES = {"messages": messages, "pooled": pooled, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="|".join(CASES))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", nargs=3, type=int)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    for name in options.cases or CASES:
        CASES[name](options.quick)


if __name__ == "__main__":
    main()
