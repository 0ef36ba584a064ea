"""Measure what a site's rules cost: checking questions against a plan, and looking at the rows.

    python benchmarks/guard.py                  all problems, medians over 11 pairs of fits
    python benchmarks/guard.py --against PATH   the same work by another checkout of fedpca at PATH
    python benchmarks/guard.py --only TEXT      only problems with this text in their names
    python benchmarks/guard.py --quick          small problems, to see that it runs

The two fits of each pair run in alternating order, and are measured in processor time, which other
programs affect less. The first figure is the time of a guarded fit divided by that of an unguarded one.
The second figure is steadier: the time within `Guard.check`, `Gate.consider`, and `Gate.admit`, as a
share of the time of the guarded fit. It may be at most 2 % for 10 sites of 20000 x 500. The third
figure is the time in which a site with the policy of `fedpca join` opens a file and looks at its rows.

With --against, two processes take turns, one with each checkout. Each figure is the time with this
checkout divided by the time with the other one: the median of the ratios of neighboring times, and the
ratio of the shortest times. Fits at open sites may take at most 1.02 times as long. In fits at sites
with the policy of `fedpca join`, each site looks at its rows once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

import fedpca
from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.site.gate import Gate
from fedpca.site.guard import Guard
from fedpca.site.policy import JOINING

BAR = 0.02
PROBLEMS = {  # sites, rows, features, components, solver; whether the bar applies
    "10 sites of 20000 x 500, covariance": (10, 20000, 500, 20, "covariance", True),
    "10 sites of 20000 x 500, lanczos": (10, 20000, 500, 20, "lanczos", True),
    "3 sites of 2000 x 100, lanczos": (3, 2000, 100, 10, "lanczos", False),
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


def drawn(n_sites: int, n: int, d: int) -> list[Any]:
    """Return the rows of the sites."""
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal((n, d)) * np.geomspace(5, 1, d) + rng.standard_normal(d)
        for _ in range(n_sites)
    ]


def opening(rows: Any) -> float:
    """Return the seconds of processor time in which a site opens a file and looks at its rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, rows)
        began = time.process_time()
        Site(path, name="site", policy=JOINING, store=Path(folder) / "store").look_at_rows()
        return time.process_time() - began


def compare(
    watch: Stopwatch, pairs: int, n_sites: int, n: int, d: int, k: int, solver: str
) -> tuple[float, float, float]:
    """Return the median ratio of the times, the guard's median share, and the time of opening."""
    rows = drawn(n_sites, n, d)
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
    opened = statistics.median(opening(rows[0]) for _ in range(pairs))
    return statistics.median(ratios), statistics.median(shares), opened


def works_of(n_sites: int, n: int, d: int, k: int, solver: str) -> dict[str, Callable[[], float]]:
    """Return the kinds of work that checkouts are compared by; each returns its seconds."""
    rows = drawn(n_sites, n, d)
    return {
        "a fit at open sites": lambda: fit(rows, None, k, solver),
        "a fit at sites of `join`": lambda: fit(rows, JOINING, k, solver),
        "opening a file at a site of `join`": lambda: opening(rows[0]),
    }


def measure(title: str) -> None:
    """Do one kind of work for each line of the input, and print its seconds."""
    works = works_of(*PROBLEMS.get(title, QUICK.get(title))[:-1])
    print(json.dumps([fedpca.__file__, *works]), flush=True)
    for line in sys.stdin:
        print(works[line.strip()](), flush=True)


class Checkout:
    """A process that measures another checkout of fedpca."""

    def __init__(self, source: Path, title: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--measure", title],
            env={**os.environ, "PYTHONPATH": str(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        package, *self.kinds = json.loads(self._read())
        assert Path(package).is_relative_to(source), package

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def seconds(self, kind: str) -> float:
        """Let the process do one kind of work, and return its processor time."""
        assert self._process.stdin is not None
        print(kind, file=self._process.stdin, flush=True)
        return float(self._read())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def show_against(path: Path, problems: dict[str, Any], pairs: int) -> None:
    """Print how much longer each kind of work takes than with another checkout."""
    for title in problems:
        both = [
            Checkout(each / "src", title) for each in (Path(__file__).parents[1], path.resolve())
        ]
        for kind in both[0].kinds:
            found = [(tree.seconds(kind), tree.seconds(kind))[1:] for tree in both]  # to warm up
            for pair in range(pairs):
                for i in (1, 0) if pair % 2 else (0, 1):
                    found[i] += (both[i].seconds(kind),)
            here, there = found
            ratio = statistics.median(a / b for a, b in zip(here, there, strict=True))
            print(
                f"{title}, {kind}: {statistics.median(here):.4f} s, time ratio {ratio:.3f}, of the "
                f"shortest times {min(here) / min(there):.3f}",
                flush=True,
            )
        for tree in both:
            tree.close()


def main() -> None:
    """Print the figures of each problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small problems, three pairs")
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--against", type=Path, metavar="PATH", help="another checkout of fedpca")
    parser.add_argument("--only", default="", metavar="TEXT", help="a part of the problem's name")
    parser.add_argument("--measure", metavar="PROBLEM", help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    problems, pairs = (QUICK, 3) if given.quick else (PROBLEMS, given.pairs)
    problems = {name: each for name, each in problems.items() if given.only in name}
    if given.measure is not None:
        measure(given.measure)
        return
    if given.against is not None:
        show_against(given.against, problems, pairs)
        return
    watch = Stopwatch()
    watch.watch(Guard, "check")
    for name in ("consider", "admit"):
        watch.watch(Gate, name)
    for name, (*problem, has_bar) in problems.items():
        ratio, share, opened = compare(watch, pairs, *problem)
        verdict = f"  {'within' if share < BAR else 'ABOVE'} the bar of 2 %" if has_bar else ""
        print(
            f"{name}: time ratio {ratio:.3f}, guard's share {100 * share:.2f} %{verdict}; a site of "
            f"`join` opens its file in {opened:.3f} s"
        )


if __name__ == "__main__":
    main()
