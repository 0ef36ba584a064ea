"""Measure what rounding answers to their grid changes in a fit, and how long it takes.

    python benchmarks/grid.py             all tables and problems
    python benchmarks/grid.py angles      the largest angle between components with and without the grid
    python benchmarks/grid.py times       the time of a fit, divided by the time of one without the grid
    python benchmarks/grid.py --quick     small problems, to see that it runs

The angles may be at most 1e-12 where gaps between variances are ordinary, with equal numbers of rounds.
The two fits of each pair run in alternating order, in processor time, and their median ratio may be at
most 1.02. The share is steadier: the time within `to_grid`, as a share of the time of the fit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedpca import FederatedPCA, Federation, Site
from fedpca.linalg import grid
from fedpca.linalg.dense import sine_of_angle

BAR, MAX_ANGLE = 1.02, 1e-12
SOLVERS = ("covariance", "lanczos", "subspace-iteration", "local-power", "faps", "tsqr")
PROBLEMS = {  # sites, rows, features, components, solver
    "10 sites of 15000 x 500, covariance": (10, 15000, 500, 20, "covariance"),
    "150 sites of 1000 x 500, covariance": (150, 1000, 500, 20, "covariance"),
    "150 sites of 1000 x 500, lanczos": (150, 1000, 500, 20, "lanczos"),
    "3 sites of 2000 x 100, covariance": (3, 2000, 100, 10, "covariance"),
    "3 sites of 2000 x 100, lanczos": (3, 2000, 100, 10, "lanczos"),
    "wide, 4 sites of 500 x 20000, lanczos": (4, 500, 20000, 10, "lanczos"),
}
QUICK = {"3 sites of 200 x 20, covariance": (3, 200, 20, 3, "covariance")}
ROUND = grid.to_grid


@contextmanager
def rounding_by(function: Any) -> Iterator[None]:
    """Let every module round with another function."""
    users = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("fedpca.") and hasattr(module, "to_grid")
    ]
    before = users[0].to_grid
    for module in users:
        module.to_grid = function  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in users:
            module.to_grid = before  # type: ignore[attr-defined]


def as_it_is(values: np.ndarray, *_: Any) -> np.ndarray:
    """Return the values without rounding them."""
    return values


class Timed:
    """The rounding, and the processor time that it has taken."""

    seconds = 0.0

    def __call__(self, *given: Any) -> np.ndarray:
        began = time.thread_time()
        try:
            return ROUND(*given)
        finally:
            self.seconds += time.thread_time() - began


def tables(quick: bool) -> dict[str, tuple[list[Any], dict[str, Any]]]:
    """Return sites' rows and the parameters of their fits, by what is special about them."""
    rng = np.random.default_rng(0)
    n, d = (90, 12) if quick else (600, 60)
    deviations = np.r_[9, 7, 5, 3.5, 2.5, np.linspace(1.2, 1, d - 5)]
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    plain = rng.standard_normal((n, d)) * deviations @ turn
    gaps = plain.copy()
    gaps[rng.random(plain.shape) < 0.02] = np.nan
    wide_d = 700 if quick else 9000
    wide = rng.standard_normal((n, wide_d))
    wide += (rng.standard_normal((n, 5)) * [12, 9, 7, 5, 4]) @ (
        np.linalg.qr(rng.standard_normal((wide_d, 5)))[0].T * 10
    )
    weights = rng.uniform(0.5, 3, n)
    parts = np.array_split(np.arange(n), 3)

    def split(X: Any) -> list[Any]:
        return [X[part] for part in parts]

    return {
        "plain": (split(plain), {}),
        "offset 1e8": (split(plain + 1e8), {}),
        "scaled, offset 1e4, units 1e-6 to 1e6": (
            split((plain + 1e4) * np.geomspace(1e-6, 1e6, d)),
            {"scale": True},
        ),
        "float32": (split(plain.astype(np.float32)), {}),
        "sparse": (split(sp.csr_array(np.where(abs(plain) < 2, 0, plain))), {}),
        "missing": (split(gaps), {"missing": "mean"}),
        "weights": (
            [np.column_stack([plain[part], weights[part]]) for part in parts],
            {"weight": d},
        ),
        "wide": (split(wide), {}),
        "wide, panels of float32": (split(wide.astype(np.float32)), {}),
    }


def show_angles(quick: bool) -> None:
    """Print the largest angle of each solver and table, and whether the rounds are the same."""
    for title, (rows, given) in tables(quick).items():
        parameters = dict(given)
        weight = parameters.pop("weight", None)
        for solver in SOLVERS:
            if "wide" in title and solver in ("covariance", "faps", "tsqr"):
                continue  # their messages or rounds are for fewer features
            fits = []
            for function in (ROUND, as_it_is):
                sites = [_site(each, i, weight) for i, each in enumerate(rows)]
                with rounding_by(function):
                    model = FederatedPCA(5, solver=solver, random_state=0, **parameters)
                    fits.append(model.fit(sites))
            angle = sine_of_angle(fits[0].components_.T, fits[1].components_.T)
            rounds = [each.run_.rounds for each in fits]
            bound = fits[0].run_.angle_bound
            verdict = "ABOVE" if angle > MAX_ANGLE or rounds[0] != rounds[1] else "within"
            print(
                f"{title:40s}{solver:12s} angle {angle:.1e} (certified {bound:.0e}) "
                f"rounds {rounds[0]} / {rounds[1]} {verdict}"
            )


def _site(rows: Any, i: int, weight: Any) -> Site:
    if weight is None:
        return Site(rows, name=f"site-{i}")
    return Site(rows[:, :weight], name=f"site-{i}", weight=rows[:, weight])


def fit(rows: list[Any], k: int, solver: str, function: Any) -> float:
    """Return the seconds of processor time that a fit takes at new sites, which remember nothing."""
    sites = [Site(each, name=f"site-{i}") for i, each in enumerate(rows)]
    estimator = FederatedPCA(k, solver=solver, random_state=0, max_rounds=30)
    with rounding_by(function):
        began = time.process_time()
        estimator.fit(Federation.local(sites))
        return time.process_time() - began


def show_times(quick: bool, pairs: int) -> None:
    """Print the ratio and the share for each problem."""
    for title, (n_sites, n, d, k, solver) in (QUICK if quick else PROBLEMS).items():
        rng = np.random.default_rng(0)
        spread = np.geomspace(5, 1, d)
        rows = [rng.standard_normal((n, d)) * spread + 1.0 for _ in range(n_sites)]
        fit(rows, k, solver, ROUND), fit(rows, k, solver, as_it_is)
        ratios, shares = [], []
        for pair in range(pairs):
            seconds: dict[Any, float] = {}
            timed = Timed()
            for function in (timed, as_it_is) if pair % 2 else (as_it_is, timed):
                seconds[function] = fit(rows, k, solver, function)
            ratios.append(seconds[timed] / seconds[as_it_is])
            shares.append(timed.seconds / seconds[timed])
        ratio, share = statistics.median(ratios), statistics.median(shares)
        verdict = "within" if ratio <= BAR else "ABOVE"
        print(f"{title}: time ratio {ratio:.3f} {verdict}, share {100 * share:.2f} %", flush=True)


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("angles", "times"))
    parser.add_argument("--quick", action="store_true", help="small problems, three pairs")
    parser.add_argument("--pairs", type=int, default=7)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.what != "times":
        show_angles(given.quick)
    if given.what != "angles":
        show_times(given.quick, 3 if given.quick else given.pairs)


if __name__ == "__main__":
    main()
