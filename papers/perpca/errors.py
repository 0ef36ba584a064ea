"""Measure how close personalized PCA comes to the truth, by rows, features, and sites.

    subspace error = ||P_U - P_U0||^2 + mean_i ||P_Vi - P_Vi0||^2

Source: sections 7.1.2 to 7.1.5 of Shi and Kontar, "Personalized PCA: decoupling shared and unique
features" (2024).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

import numpy as np

from perpca.baselines import BASELINES, Found, distributed, reconstruction_errors
from perpca.problems import (
    Array,
    Truth,
    draw,
    fit,
    local_error,
    say,
    shared_error,
    uneven,
    uneven_rows,
)
from shared.drawing import draw_panels, show
from shared.sections import judge

PERPCA, DISTPCA = "PerPCA", "distPCA"
N_ROWS = (100, 300, 1000, 3000, 10000)
FEATURES = (15, 20, 30, 45, 60)
SITES = (10, 30, 100, 300, 1000)
QUICK = {"rows": (300, 1000, 3000), "features": (15, 45), "sites": (10, 30, 100)}
EXACTLY = 1e-14  # for large n, the default tol would accept the start, distPCA's U
TABLE_2 = {
    "indivPCA": ("1.87", "1.80"),
    "CPCA": ("2.07", "2.10"),
    DISTPCA: ("1.91", "1.88"),
    PERPCA: ("1.68", "1.52"),
    "ground truth": ("1.50", "1.50"),
}
Errors = dict[str, Array]  # shared, local and their sum, (n_points, 3), by method


def personalized(sites: Mapping[str, Array], r1: int, r2: int, **options: object) -> Found:
    """Fit the estimator under test, and return its components as the other methods do."""
    model = fit(sites, r1, r2, **options)
    U = model.components_
    return Found({k: np.vstack([U, own]) for k, own in model.local_components_.items()}, U)


def subspace_errors(truth: Truth, found: Found) -> list[float]:
    """Return the errors of the shared and the local components, and of both together."""
    shared = found.shared
    assert shared is not None
    local = {name: components[len(shared) :] for name, components in found.components.items()}
    errors = [shared_error(truth, shared), local_error(truth, local)]
    return [*errors, sum(errors)]


def sweep(points: Sequence[int], make: Callable[[int, int], Truth], seeds: int) -> Errors:
    """Return errors of both methods at each point, geometric means over seeds."""
    methods = {PERPCA: partial(personalized, tol=EXACTLY), DISTPCA: distributed}
    logs = {name: np.zeros((len(points), 3)) for name in methods}
    for i, point in enumerate(points):
        for seed in range(seeds):
            truth = make(point, seed)
            for name, method in methods.items():
                errors = subspace_errors(truth, method(truth.sites, *truth.ranks))
                logs[name][i] += np.log(errors) / seeds
    return {name: np.exp(means) for name, means in logs.items()}


def slope(x: Sequence[int], y: Array) -> float:
    """Return the slope of log y against log x."""
    return float(np.polyfit(np.log10(x), np.log10(y), 1)[0])


def show_sweep(
    title: str, what: str, points: Sequence[int], found: Errors, more: Sequence[float] | None = None
) -> None:
    """Print a line for each point: both methods' errors together, then those of U and V alone."""
    parts = {"both": 2, "U": 0, "V": 1}
    head = [what, "paper", *(f"{name}, {part}" for part in parts for name in found)]
    lines = [
        [str(x), "curve only", *(found[name][i, at] for at in parts.values() for name in found)]
        for i, x in enumerate(points)
    ]
    if more is not None:
        head.append("V, by noise alone")
        lines = [[*line, value] for line, value in zip(lines, more, strict=True)]
    show(title, head, lines)


def by_noise_alone(n: int, d: int) -> float:
    """Return the error of V_i that noise causes where U is known, to first order, mean over sites.

    A direction with the variance a = 100.5 and each of the d - 12 directions with b = 0.5 mix by the
    share ``a b / (a - b)^2`` over the number of rows.
    """
    mixing = 100.5 * 0.5 / 100**2
    return float(2 * 10 * (d - 12) * mixing * np.mean(1 / np.array(uneven_rows(n, 100))))


@cache
def against_rows(quick: bool, seeds: int) -> tuple[Sequence[int], Errors]:
    """Return Figure 4's points and errors, from two seeds at least: one says little about a slope."""
    points, n_sites = (QUICK["rows"], 30) if quick else (N_ROWS, 100)

    def make(n: int, seed: int) -> Truth:
        return uneven(seed, n, n_sites=n_sites, condensed=True)

    return points, sweep(points, make, max(2, seeds))


@cache
def against_features(quick: bool, seeds: int) -> tuple[Sequence[int], Errors]:
    """Return Figure 5's points and errors."""
    points, n = (QUICK["features"], 3000) if quick else (FEATURES, 10000)

    def make(d: int, seed: int) -> Truth:
        return uneven(seed, n, d, condensed=True)

    return points, sweep(points, make, seeds)


def figure4(options: argparse.Namespace) -> list[str]:
    """Measure the subspace error against the rows of a site."""
    points, found = against_rows(options.quick, options.seeds)
    n_sites = 30 if options.quick else 100
    title = f"Figure 4: subspace error against n, d=15, {n_sites} sites, 2+10"
    show_sweep(f"{title}, {max(2, options.seeds)} seeds", "n", points, found)
    slopes = {name: slope(points, errors[:, 2]) for name, errors in found.items()}
    say(
        f"slope in logarithms: PerPCA -1 in the paper, {slopes[PERPCA]:.2f} here; distPCA "
        f"about 0 in the paper, {slopes[DISTPCA]:.2f} here. With r1 + r2 columns of every site "
        "it is consistent: these hold the shared directions, however small their variance. It "
        "is our default start."
    )
    draw_figures_4_and_5(options)
    least = float((found[DISTPCA][:, 2] / found[PERPCA][:, 2]).min())
    ours = slopes[PERPCA]
    return [
        *judge("PerPCA's slope is about -1", abs(ours + 1) <= 0.2, f"{ours:.2f}"),
        *judge("PerPCA's error never exceeds distPCA's", least >= 1, f"ratio {least:.3f} at least"),
    ]


def figure5(options: argparse.Namespace) -> list[str]:
    """Measure the subspace error against the number of features."""
    points, found = against_features(options.quick, options.seeds)
    n = 3000 if options.quick else 10000
    bound = [by_noise_alone(n, d) for d in points]
    title = f"Figure 5: subspace error against d, n={n}, 100 sites, 2+10, {options.seeds} seeds"
    show_sweep(title, "d", points, found, bound)
    slopes = {name: slope(points, errors[:, 2]) for name, errors in found.items()}
    say(
        f"slope in logarithms: PerPCA about 2 in the paper, {slopes[PERPCA]:.2f} here; "
        f"distPCA's is {slopes[DISTPCA]:.2f}. A slope of 2 is not found: it is that of an "
        "upper bound. The error that noise causes is proportional to d - 12. With d=15, sites "
        "are much alike, with 10 local directions out of 13, so errors of U weigh more."
    )
    draw_figures_4_and_5(options)
    excess = float(found[PERPCA][-1, 1] / bound[-1])
    target = f"V's error at d={points[-1]} is at most 1.25 times that by noise alone"
    return judge(target, excess <= 1.25, f"{excess:.2f} times")


def draw_figures_4_and_5(options: argparse.Namespace) -> None:
    """Draw both figures in one file."""
    if not options.figures:
        return
    sweeps = {"rows of a site": against_rows, "features": against_features}
    panels = {}
    for title, against in sweeps.items():
        points, found = against(options.quick, options.seeds)
        panels[title] = {name: (points, errors[:, 2]) for name, errors in found.items()}
    path = options.figures / "perpca-figure4-5.png"
    draw_panels(path, panels, xlabel="n or d", ylabel="subspace error", ours=[PERPCA], log="xy")


def figure6(options: argparse.Namespace) -> list[str]:
    """Measure the subspace error against the number of sites."""
    points = QUICK["sites"] if options.quick else SITES
    n = 3000 if options.quick else 10000

    def make(n_sites: int, seed: int) -> Truth:
        return uneven(seed, n, n_sites=n_sites, condensed=True)

    found = sweep(points, make, options.seeds)
    title = f"Figure 6: subspace error against the number of sites, n={n}, d=15, 2+10"
    show_sweep(f"{title}, {options.seeds} seeds", "sites", points, found)
    both, U = (slope(points, found[PERPCA][:, at]) for at in (2, 0))
    say(
        f"slope in logarithms: {both:.2f} of both, {U:.2f} of U alone. In the paper both fall, "
        "U's faster."
    )
    if options.figures:
        panels = {
            "shared and local": {name: (points, e[:, 2]) for name, e in found.items()},
            "shared": {name: (points, e[:, 0]) for name, e in found.items()},
        }
        path = options.figures / "perpca-figure6.png"
        draw_panels(path, panels, xlabel="sites", ylabel="subspace error", ours=[PERPCA], log="xy")
    target = "errors fall with the number of sites, and that of U faster"
    return judge(target, U < both < 0, f"slopes {U:.2f} and {both:.2f}")


def table2(options: argparse.Namespace) -> list[str]:
    """Measure what sites gain from each other where they have few rows."""
    missed = table2_shared(options)
    n, errors = 100, {name: [] for name in TABLE_2}
    for seed in range(options.seeds):
        truth = uneven(seed, n)
        new = new_rows(truth, seed)
        found = {name: method(truth.sites, *truth.ranks) for name, method in BASELINES.items()}
        found[PERPCA] = personalized(truth.sites, *truth.ranks)
        found["ground truth"] = Found(
            {name: np.vstack([truth.U.T, own.T]) for name, own in truth.V.items()}
        )
        for name in TABLE_2:
            each = list(reconstruction_errors(new, found[name].components).values())
            half = len(each) // 2
            errors[name].append([np.mean(each[half:]), np.mean(each[:half])])
    title = f"Table 2: test reconstruction error, 100 sites, n={n}, {options.seeds} seeds"
    lines = []
    for name, (sparse, rich) in TABLE_2.items():
        (a, b), (sa, sb) = np.mean(errors[name], axis=0), np.std(errors[name], axis=0)
        lines.append([name, sparse, f"{a:.2f} +- {sa:.2f}", rich, f"{b:.2f} +- {sb:.2f}"])
    show(title, ["method", "few rows, paper", "ours", "many rows, paper", "ours"], lines)
    say(
        "The published numbers are not a target: they come out only if directions lie along "
        "the axes, the start takes eigenvectors in no order, and new rows have a different "
        "scale from those of the fit. Pooled components, for example, must miss most of the "
        "local variances of 100."
    )
    means = {name: np.mean(errors[name], axis=0) for name in (PERPCA, *BASELINES)}
    others = np.min([means[name] for name in BASELINES], axis=0)
    ratio = float((means[PERPCA] / others).max())
    target = "PerPCA leaves less than the other three, in both groups"
    return missed + judge(target, ratio < 1, f"{ratio:.2f} of the best other at most")


def table2_shared(options: argparse.Namespace) -> list[str]:
    """Measure the error of U itself, which tells the methods apart."""
    methods = {
        DISTPCA: distributed,
        "PerPCA, weights by site": personalized,
        "PerPCA, weights by rows": partial(personalized, weights="rows"),
    }
    found: dict[int, Array] = {}
    for n in (300,) if options.quick else (100, 300):
        errors = []
        for seed in range(options.seeds):
            truth = uneven(seed, n)
            fits = [method(truth.sites, *truth.ranks) for method in methods.values()]
            errors.append([subspace_errors(truth, one)[0] for one in fits])
        found[n] = np.mean(errors, axis=0)
    lines = [
        [name, "none", *(part for n in found for part in (found[n][i], found[n][0] / found[n][i]))]
        for i, name in enumerate(methods)
    ]
    head = ["method", "paper", *(part for n in found for part in (f"n={n}", "times below"))]
    title = "Instead of Table 2: ||P_U - P_U0||^2, 100 sites, half of them with n/5 rows, mean of"
    show(f"{title} {options.seeds} seeds", head, lines)
    site, rows = found[300][0] / found[300][1:]
    return [
        *judge("U's error 1.5 times below distPCA's, n=300", site >= 1.5, f"{site:.2f}"),
        *judge("2.5 times with weights by rows", rows >= 2.5, f"{rows:.2f}"),
    ]


def new_rows(truth: Truth, seed: int) -> dict[str, Array]:
    """Draw other rows of the same sites, 200 each."""
    rng = np.random.default_rng([seed, 1])
    return draw(truth.U, truth.V, [200] * len(truth.V), rng, ratio=10.0, noise=0.5).sites
