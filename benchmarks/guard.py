"""Measure how much longer a fit takes if the sites check every question against a plan.

    python benchmarks/guard.py             all problems, medians over 11 pairs of fits
    python benchmarks/guard.py --quick     small problems, to see that it runs

The two fits of each pair run in alternating order, and are measured in processor time, which other
programs affect less. The first figure is the time of a guarded fit divided by that of an unguarded one.
The second figure is steadier: the time within `Guard.check`, `Gate.consider`, and `Gate.admit`, as a
share of the time of the guarded fit. It may be at most 2 % for 10 sites of 20000 x 500.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from functools import wraps
from typing import Any

import numpy as np

from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.site.gate import Gate
from fedpca.site.guard import Guard

BAR = 0.02
PROBLEMS = {  # sites, rows, features, components, solver; whether the bar applies
    "10 sites of 20000 x 500, covariance": (10, 20000, 500, 20, "covariance", True),
    "10 sites of 20000 x 500, lanczos": (10, 20000, 500, 20, "lanczos", True),
    "200 sites of 100 x 50, lanczos": (200, 100, 50, 5, "lanczos", False),
}
QUICK = {
    "3 sites of 200 x 20, covariance": (3, 200, 20, 3, "covariance", False),
    "20 sites of 50 x 20, lanczos": (20, 50, 20, 3, "lanczos", False),
}


class Stopwatch:
    """Add up the time that calls to some methods take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, kind: type, name: str) -> None:
        """Replace a method with one that is timed."""
        method = getattr(kind, name)

        @wraps(method)
        def timed(*given: Any) -> Any:
            began = time.process_time()
            try:
                return method(*given)
            finally:
                self.seconds += time.process_time() - began

        setattr(kind, name, timed)


def fit(rows: list[Any], policy: Policy | None, k: int, solver: str) -> float:
    """Return the seconds of processor time that a fit takes at new sites, which remember nothing."""
    sites = [Site(each, name=f"site-{i}", policy=policy) for i, each in enumerate(rows)]
    estimator = FederatedPCA(k, solver=solver, random_state=0, max_rounds=30)
    began = time.process_time()
    estimator.fit(Federation.local(sites))
    return time.process_time() - began


def compare(
    watch: Stopwatch, pairs: int, n_sites: int, n: int, d: int, k: int, solver: str
) -> tuple[float, float]:
    """Return the median ratio of the times, and the median share of time that the guard takes."""
    rng = np.random.default_rng(0)
    rows = [
        rng.standard_normal((n, d)) * np.geomspace(5, 1, d) + rng.standard_normal(d)
        for _ in range(n_sites)
    ]
    guarded = Policy(gather=True)
    fit(rows, None, k, solver), fit(rows, guarded, k, solver)
    ratios, shares = [], []
    for pair in range(pairs):
        seconds = {}
        for policy in (None, guarded) if pair % 2 else (guarded, None):
            watch.seconds = 0.0
            seconds[policy] = fit(rows, policy, k, solver)
            if policy is guarded:
                shares.append(watch.seconds / seconds[policy])
        ratios.append(seconds[guarded] / seconds[None])
    return statistics.median(ratios), statistics.median(shares)


def main() -> None:
    """Print the ratio and the share for each problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small problems, three pairs")
    parser.add_argument("--pairs", type=int, default=11)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    watch = Stopwatch()
    watch.watch(Guard, "check")
    for name in ("consider", "admit"):
        watch.watch(Gate, name)
    pairs = 3 if given.quick else given.pairs
    for name, (*problem, has_bar) in (QUICK if given.quick else PROBLEMS).items():
        ratio, share = compare(watch, pairs, *problem)
        verdict = f"  {'within' if share < BAR else 'ABOVE'} the bar of 2 %" if has_bar else ""
        print(f"{name}: time ratio {ratio:.3f}, guard's share {100 * share:.2f} %{verdict}")


if __name__ == "__main__":
    main()
