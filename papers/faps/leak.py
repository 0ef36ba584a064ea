"""Measure what the coordinator learns about one site's rows: Figure 1 of the FAPS paper.

The rows are standard normal numbers; the paper says only that they are random. The attacks are those
of `fedpca.audit.attacks`, on the messages of the first site.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from faps.problems import (
    CURVE,
    FAPS,
    METHODS,
    MOST,
    SSI,
    Array,
    Problem,
    generate,
    geometric,
    observe,
    of_rows,
)
from fedpca import FederatedPCA
from fedpca.audit.attacks import (
    MASKED,
    PRODUCTS,
    CovarianceAttack,
    constant_mask,
    least_squares,
    low_rank,
    pairs_of,
    up_to_round,
)
from fedpca.audit.transcript import View, record
from fedpca.linalg.dense import outside
from shared.drawing import draw_panels, show, spread
from shared.sections import judge

N_SITES = 10
ROWS, P = 200, 20  # of a site, and components, in Figure 1 (b)
SLACK = 5  # rounds to wait for an attack once there are enough columns
ENOUGH = 1e-5  # of both accuracies, as in Figure 1 (b)
ABOUT_ATTACKS = """\
Errors are relative and KKT violations scaled; the paper's are neither. An error above 1 is worse than
no guess. 'Cross block' is (I - ZZ')A_1'A_1 Z, taken to be the masked product outside Z."""
ABOUT_ROUNDS = """\
The paper has five times as many features, rows and components. Least squares needs as many columns as
there are features. SSI sends them, but in later rounds they hardly differ, and float64 cannot tell them
apart. 'Low rank' is not in the paper, and needs no more columns than a site has rows."""
LOOKS = (1, 5, 9, 10, 11, 12, 15, 20)


def figure1(options: argparse.Namespace) -> list[str]:
    """Work out the first site's A'A from its messages, and count the rounds needed: Figure 1."""
    d, p = (100, 10) if options.quick else (1000, 100)
    print(ABOUT_ATTACKS)
    runs = [leaks(d, p, seed) for seed in range(options.seeds)]
    found = {name: np.median([run[name] for run in runs], axis=0) for name in runs[0]}
    lines = [
        [str(k), CURVE, *(f"{values[i]:.1e}" for values in found.values())]
        for i, k in enumerate(LOOKS)
    ]
    title = f"Figure 1 (a): {d} features, {N_SITES} sites with {d} rows each, p={p}, median of"
    show(f"{title} {options.seeds} seeds", ["round", "paper", *found], lines)
    show_rounds_needed(options)
    if options.figures:
        panels: dict[str, dict] = {SSI: {}, FAPS: {}}
        for name, values in found.items():
            method, what = name.split(": ")
            panels[method][what] = (LOOKS, values)
        path = options.figures / "faps-figure1.png"
        draw_panels(path, panels, xlabel="rounds", ylabel="KKT violation, error", log="y")
    by_ssi, by_mask = found["SSI: least squares"][-1], found["FAPS: constant mask"][-1]
    return [
        *judge("SSI reveals A_1'A_1 to 1e-6 in 20 rounds", by_ssi < 1e-6, f"{by_ssi:.0e}"),
        *judge("FAPS, by the same attack, not to 0.1", by_mask > 0.1, f"{by_mask:.1f}"),
    ]


def leaks(d: int, p: int, seed: int) -> dict[str, list[float]]:
    """Return KKT violations and errors of attacks after the rounds of ``LOOKS``."""
    sites = list(np.random.default_rng([seed, d]).standard_normal((N_SITES, d, d)))
    problem, C = of_rows(sites, p), sites[0].T @ sites[0]
    plain = heard_of_first(SSI, sites, p, seed, LOOKS[-1])
    masked = heard_of_first(FAPS, sites, p, seed, LOOKS[-1])
    sent = {SSI: pairs_of(plain, PRODUCTS), FAPS: pairs_of(masked, MASKED)}
    crossing = [outside(Z, Y - C @ Z) for Z, Y in sent[FAPS]]
    blocks = [outside(Z, C @ Z) for Z, _ in sent[FAPS]]
    return {
        "SSI: KKT": [problem.violation(sent[SSI][k - 1][0]) for k in LOOKS],
        "SSI: least squares": [relative(least_squares([up_to_round(plain, k)]), C) for k in LOOKS],
        "FAPS: KKT": [problem.violation(sent[FAPS][k - 1][0]) for k in LOOKS],
        "FAPS: constant mask": [
            relative(constant_mask([up_to_round(masked, k)]), C) for k in LOOKS
        ],
        "FAPS: cross block": [
            float(np.linalg.norm(crossing[k - 1]) / np.linalg.norm(blocks[k - 1])) for k in LOOKS
        ],
    }


def show_rounds_needed(options: argparse.Namespace) -> None:
    """Print how many rounds of SSI reveal A_1'A_1, and how many solve the problem: Figure 1 (b)."""
    lines = []
    for d in (100, 200) if options.quick else (200, 400, 600, 800, 1000):
        for name in DATA:
            runs = [rounds_needed(name, d, seed) for seed in range(options.seeds)]
            most = (blocks_needed(d) + SLACK, blocks_needed(ROWS) + SLACK, MOST)
            cells = [spread([run[i] for run in runs], limit) for i, limit in enumerate(most)]
            lines.append([str(d), name, CURVE, *cells])
    title = f"Figure 1 (b): rounds of SSI to {ENOUGH:.0e}, p={P}, {N_SITES} sites with {ROWS} rows,"
    head = ["features", "data", "paper", "by least squares", "by low rank", "PCA solved"]
    show(f"{title} {options.seeds} seeds", head, lines)
    print(ABOUT_ROUNDS)


def rounds_needed(name: str, d: int, seed: int) -> tuple[float, float, float]:
    """Count rounds of SSI until two attacks find the first site's A'A, and until PCA is solved."""
    problem = DATA[name](d, seed)
    C = problem.sites[0].T @ problem.sites[0]
    heard = heard_of_first(SSI, problem.sites, P, seed, blocks_needed(max(d, ROWS)) + SLACK)

    def first_round(attack: CovarianceAttack, least: int) -> float:
        for k in range(least, least + SLACK + 1):
            if relative(attack([up_to_round(heard, k)]), C) <= ENOUGH:
                return k
        return np.inf

    return (
        first_round(least_squares, blocks_needed(d)),
        first_round(low_rank, blocks_needed(min(d, ROWS))),
        observe(problem, P, seed, METHODS[SSI], bound=ENOUGH).rounds,
    )


def blocks_needed(n_columns: int) -> int:
    """Count the rounds that SSI takes to send ``n_columns`` columns."""
    return -(-n_columns // P)


def normal(d: int, seed: int) -> Problem:
    """Generate standard normal numbers."""
    return of_rows(list(np.random.default_rng([seed, d]).standard_normal((N_SITES, ROWS, d))), P)


def falling(d: int, seed: int) -> Problem:
    """Generate rows by equation 23."""
    return generate(geometric(d, 1.01), [ROWS] * N_SITES, seed)


DATA = {"normal": normal, "xi=1.01": falling}


def heard_of_first(method: str, sites: Sequence[Array], p: int, seed: int, n_rounds: int) -> View:
    """Return all that the coordinator hears from the first site in ``n_rounds`` rounds."""
    options = {"center": False, "tol": 0.0, "max_rounds": n_rounds, "random_state": seed}
    model = FederatedPCA(p, solver=METHODS[method], **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        run = record(model, list(sites))
    names = [f"site-{i}" for i in range(1, 1 + len(sites))]
    n_rows = {name: len(rows) for name, rows in zip(names, sites, strict=True)}
    return run.heard(names[0], "seen", n_rows)


def relative(estimate: Array | None, C: Array) -> float:
    """Return the error in Frobenius norm; an attack that has nothing to work with guesses zero."""
    return 1.0 if estimate is None else float(np.linalg.norm(estimate - C) / np.linalg.norm(C))
