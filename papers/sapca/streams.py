"""Make the rows of all sections, run streams and their rivals over them, and read the Motes files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from fedpca import StreamingPCA, Summary
from fedpca.summary.summary import merge_in_tree
from sapca.baselines import Array, State, orthonormal, squared_error
from sapca.baselines import frequent_directions as fd
from sapca.baselines import grouse as gr
from sapca.baselines import power_method as pm
from sapca.baselines import spirit as sp
from shared.drawing import draw_panels

ALPHAS = (1e-4, 0.001, 0.5, 1, 2, 3)
D, N, BLOCK, R = 400, 4000, 50, 10
PUBLISHED, SPARE, TREE, FD = "SPCA, published", "ours, 10 spare", "tree of 8", "FD, 2r rows"
CURVE = "curve only"
MOTES = {"light": (7712, 48), "volt": (7712, 46)}
Run = Callable[[Array], Iterator[State]]
Options = argparse.Namespace


def synth(alpha: float, d: int, n: int, seed: int) -> Array:
    """Draw Gaussian rows about zero, with variances ``i^-alpha`` along random directions."""
    rng = np.random.default_rng(seed)
    directions = orthonormal(rng.standard_normal((d, d)))
    return (rng.standard_normal((n, d)) * np.arange(1.0, d + 1) ** (-alpha / 2)) @ directions


def error_curve(rows: Array, states: list[State]) -> tuple[list[int], list[float]]:
    """Return the mean squared error over all rows so far, against their number."""
    return [t for t, _ in states], [squared_error(rows[:t], C) / t for t, C in states]


def count_curve(states: list[State]) -> tuple[list[int], list[int]]:
    """Return the number of directions against the number of rows."""
    return [t for t, _ in states], [len(C) for _, C in states]


def streamed(rows: Array, k: int = R, *, every: int = BLOCK, **options: object) -> Iterator[State]:
    """Run `StreamingPCA` about zero, by low-rank updates, block by block."""
    pca = StreamingPCA(k, center=False, exact=False, **options)
    for start in range(0, len(rows), BLOCK):
        seen = pca.partial_fit(rows[start : start + BLOCK]).n_samples_seen_
        if seen % every == 0 or seen == len(rows):
            yield seen, pca.components_


def sapca(rows: Array, k: int = R, **options: object) -> Iterator[State]:
    """Run the stream with the paper's rank rule."""
    return streamed(rows, k, **{"rank": "interval", "alpha": 0.01, "beta": 0.10, **options})


def summary_of(rows: Array, k: int = R, **options: object) -> Summary:
    """Return the summary of streamed rows, about zero."""
    pca = StreamingPCA(k, center=False, exact=False, batch_size=BLOCK, **options)
    return pca.fit(rows).summary_


def tree(rows: Array, k: int) -> Iterator[State]:
    """Let eight leaves stream their rows, and merge their summaries two by two."""
    summaries = [summary_of(part, k) for part in np.array_split(rows, 8)]
    yield len(rows), merge_in_tree(summaries, 2).directions[:k]


def contenders(k: int, every: int = BLOCK) -> dict[str, Run]:
    """Return methods with k directions, by name; some report after ``every`` rows."""
    some = {"k": k, "every": every}
    return {
        PUBLISHED: partial(streamed, n_spare=0, **some),
        SPARE: partial(streamed, **some),
        TREE: partial(tree, k=k),
        FD: partial(fd, **some),
        "PM, b=d": partial(pm, k=k),
        "GROUSE, step 2": partial(gr, **some),
        "GROUSE, decaying": partial(gr, step=0.5, decaying=True, **some),
        "SPIRIT, k=r": partial(sp, adaptive=False, **some),
    }


def draw(options: Options, name: str, panels: dict, xlabel: str, ylabel: str, **style) -> None:
    """Write a figure if figures are wanted."""
    if options.figures and panels:
        path = options.figures / f"{name}.png"
        draw_panels(path, panels, xlabel=xlabel, ylabel=ylabel, **style)


def motes_rows(options: Options, name: str) -> Array | None:
    """Read the readings; if they are missing, say so and return None."""
    path = (options.data or Path()) / f"motes_{name}.npz"
    if path.exists():
        return np.load(path)["X"].astype(np.float64)
    n, d = MOTES[name]
    print(f"\n{path} is missing: an array X, {n} x {d}, {name} readings, one row per time step.")
    print("Say where it is with --data DIR or FEDPCA_DATA.")
    return None


def stand_in(name: str) -> Array:
    """Generate numbers instead of readings: a day's swing, slow drifts, and noise."""
    print(
        f"Generated numbers stand in for {name}; they share only the shape with the paper's data."
    )
    rng, (n, d) = np.random.default_rng(len(name)), MOTES[name]
    day = 1 + 0.5 * np.sin(2 * np.pi * np.arange(n)[:, None] / 1440)
    drifts = np.cumsum(rng.standard_normal((n, 6)), axis=0) / 50
    noise = 0.3 * rng.standard_normal((n, d))
    return day * rng.uniform(1, 3, d) + drifts @ rng.standard_normal((6, d)) + noise
