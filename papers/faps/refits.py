"""Attack the first messages of FAPS if a fit is repeated from other starts; not in the paper."""

from __future__ import annotations

import argparse

import numpy as np

from fedpca import Federation
from fedpca.arrays import Array
from fedpca.audit import attacks
from fedpca.audit.transcript import Published, RecordingEngine, View
from fedpca.engines.local import LocalEngine
from fedpca.solvers import Faps, Problem
from fedpca.solvers.common_features import common_features
from shared.drawing import show
from shared.sections import judge

D, P, N_SITES, N_FITS = 100, 10, 10, 16


def refits(options: argparse.Namespace) -> list[str]:
    """Measure the error of A_1'A_1, with copies that start as published and as here."""
    starts = {"at Z, as published": False, "one local step away, ours": True}
    found = {
        name: float(np.median([error(seed, apart) for seed in range(options.seeds)]))
        for name, apart in starts.items()
    }
    title = (
        f"First messages of FAPS in {N_FITS} fits: {D} features, {N_SITES} sites with {D} rows, "
    )
    title += f"p={P}, median of {options.seeds} seeds"
    lines = [[name, "none", f"{off:.2g}"] for name, off in found.items()]
    show(title, ["copies start", "paper", "error of A_1'A_1"], lines)
    published, ours = found.values()
    return [
        *judge("the published start reveals all", published < 1e-6, f"{published:.0e}"),
        *judge("ours does not, by this attack", ours > 0.3, f"{ours:.2f}"),
    ]


def error(seed: int, start_apart: bool) -> float:
    """Return the relative error of the attack on one data set."""
    sites = list(np.random.default_rng([seed, D]).standard_normal((N_SITES, D, D)))
    views = [first_message(sites, start, start_apart) for start in range(N_FITS)]
    C = sites[0].T @ sites[0]
    return float(np.linalg.norm(attacks.refits(views) - C) / np.linalg.norm(C))


def first_message(sites: list[Array], seed: int, start_apart: bool) -> View:
    """Return what is heard from the first site in one round of FAPS, uncentered."""
    listener = RecordingEngine(LocalEngine(sites))

    def program(fed: Federation, start: Array | None) -> None:
        limits = {"center": False, "start": start, "tol": 0.0, "max_rounds": 1}
        Faps(start_apart=start_apart).solve(fed, Problem(common_features(fed), P, **limits))

    Federation(listener).run(program, identity={}, seed=seed)
    nothing = np.zeros((D, P))
    listener.transcript.model = Published(nothing, nothing[0], 0.0, nothing[:, 0])
    rows = {f"site-{i}": len(part) for i, part in enumerate(sites, start=1)}
    return listener.transcript.heard("site-1", "seen", rows)
