"""Measure what streams and merging cost, and what the order of rows changes."""

from __future__ import annotations

import time as clock
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from fedpca.linalg.dense import sine_of_angle
from fedpca.rows.centering import Centered
from fedpca.summary.lowrank import LowRank
from fedpca.summary.summary import merge_in_tree
from sapca.baselines import Array, best_error, last, mean_sine, orthonormal, squared_error
from sapca.baselines import frequent_directions as fd
from sapca.baselines import grouse as gr
from sapca.baselines import power_method as pm
from sapca.baselines import spirit as sp
from sapca.merges import merge_as_printed, merge_by_qr, merge_by_svd, merge_subspaces
from sapca.streams import (
    CURVE,
    FD,
    MOTES,
    SPARE,
    TREE,
    Options,
    R,
    Run,
    contenders,
    draw,
    motes_rows,
    sapca,
    stand_in,
    streamed,
    summary_of,
    synth,
)
from shared.drawing import show

KB = {  # Table 1: average and median on light, then on voltage
    "SAPCA": (104.00, 76.03, 204.58, 23.47),
    "FD": (170.48, 127.91, 114.46, 112.66),
    "PM": (685.48, 685.44, 649.12, 644.35),
    "GROUSE": (2896.84, 2896.62, 2772.86, 2772.62),
    "SPIRIT": (1009.03, 508.11, 348.84, 351.98),
}


def memory(options: Options) -> list[str]:
    """Measure what is allocated while a stream is followed: Table 1."""
    runs = {"SAPCA": sapca, "FD": fd, "PM": pm, "GROUSE": gr, "SPIRIT": sp}
    for i, name in enumerate(MOTES):
        rows = motes_rows(options, name)
        rows = (stand_in(name) if rows is None else rows)[: 1000 if options.quick else None]
        show(
            f"Memory on {name}, Kb",
            ["method", "published mean", "median", "our peak", "arrays carried"],
            [
                [method, *KB[method][2 * i : 2 * i + 2], *allocated(partial(run, k=R), rows)]
                for method, run in runs.items()
            ],
        )
    print(
        "  MATLAB's profiler adds up what each call allocates; our peak is the most that is held at"
    )
    print(
        "  one time, with the block, the work space and Python's own objects. Their GROUSE copies the"
    )
    print("  whole matrix, ours reads one row at a time. So only orders of size can be compared.")
    return []


def allocated(run: Run, rows: Array) -> tuple[float, float]:
    """Return the Kb at the peak of a stream, and those of the arrays that it holds at its end."""
    for part in (rows[:200], rows):  # the first run is for what is allocated only once
        tracemalloc.start()
        last(run(part))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    tracemalloc.start()
    for _ in run(rows):
        snapshot = tracemalloc.take_snapshot()
    tracemalloc.stop()
    arrays = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    held = sum(trace.size for trace in snapshot.filter_traces([arrays]).traces)
    return peak / 1024, held / 1024


def time(options: Options) -> list[str]:
    """Time m nodes against rows, with all nodes on this machine or one each: Figure 2."""
    scale, d = (64, 200) if options.quick else (16, 1000)
    nodes, alphas = ((1, 2, 4), (1,)) if options.quick else ((1, 2, 4, 8, 16, 32), (0.01, 1, 3))
    sizes = [thousands * 1000 // scale for thousands in (128, 256, 384, 512)]
    seconds = np.zeros((2, len(sizes), len(nodes)))
    for alpha in alphas:
        rows = synth(alpha, d, sizes[-1], 0)
        summary_of(rows[:1000])
        taken = [[seconds_on(rows[:n], m) for m in nodes] for n in sizes]
        seconds += np.array(taken).transpose(2, 0, 1) / len(alphas)
    panels = {}
    for what, table in zip(("here, on 2 threads", "a core for each node"), seconds, strict=True):
        show(
            f"Seconds, {what}: d={d}, rows 1/{scale} of the paper's, mean of {len(alphas)} alphas",
            ["rows", *(f"m={m}" for m in nodes), "published"],
            [[f"{n}", *map(float, line), CURVE] for n, line in zip(sizes, table, strict=True)],
        )
        panels[what] = {f"{n} rows": (nodes, line) for n, line in zip(sizes, table, strict=True)}
    draw(options, "time", panels, "nodes", "seconds", log="xy")
    return []


def seconds_on(rows: Array, nodes: int) -> tuple[float, float]:
    """Time all nodes on two threads and their merging; then the slowest node and a tree's height."""
    parts = np.array_split(rows, nodes)
    start = clock.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        merge_in_tree(list(pool.map(summary_of, parts)), 2)
    real = clock.perf_counter() - start
    level, slowest = [], 0.0
    for part in parts:
        start = clock.perf_counter()
        level.append(summary_of(part))
        slowest = max(slowest, clock.perf_counter() - start)
    while len(level) > 1:
        start = clock.perf_counter()
        level = [a.merge(b) for a, b in zip(level[::2], level[1::2], strict=True)]
        slowest += (clock.perf_counter() - start) / len(level)
    return real, slowest


def permutations(options: Options) -> list[str]:
    """Measure what the order of rows changes: Figure 8 and Lemma 2.2."""
    ranks, alphas = ((5, 20), (1,)) if options.quick else ((5, 20, 50, 75), (0.01, 0.5, 1, 2))
    n, times = (2000, 2) if options.quick else (10000, 20)
    titles = {
        "between orders": "distance between the subspaces of two orders (mean sine)",
        "from the SVD": "distance from the subspace of the offline SVD (mean sine)",
        "error": "range of the error, in percent of the offline SVD's",
    }
    methods = [m for m in contenders(R) if m not in (TREE, "GROUSE, step 2", "SPIRIT, k=r")]
    found = {
        (r, alpha): [order_effects(contenders(r, n)[m], rows, r, times) for m in methods]
        for alpha in alphas
        for rows in [synth(alpha, 100, n, 0)]
        for r in ranks
    }
    panels = {}
    for i, (short, title) in enumerate(titles.items()):
        lines = [
            [f"{r}", f"{a}", *(effects[i] for effects in found[r, a]), CURVE]
            for r in ranks
            for a in alphas
        ]
        title = f"{times} orders of {n} x 100: {title}"
        show(title, ["r", "alpha", *methods, "published"], lines)
        for r in ranks if short != "error" else ():
            panels[f"r = {r}, {short}"] = {
                m: (alphas, [found[r, a][j][i] for a in alphas])
                for j, m in enumerate(methods)
                if m != FD or 2 * r < 100  # otherwise, it is exact, which no panel could show
            }
    rng = np.random.default_rng(0)
    low = rng.standard_normal((n, 5)) @ rng.standard_normal((5, 100))
    own, svd, _ = order_effects(partial(streamed, k=5, n_spare=0), low, 5, times)
    print(f"  Rows of rank 5, SPCA with r=5: {own:.1e} between orders, {svd:.1e} from the SVD.")
    sine, spread = (max(effects[0][i] for effects in found.values()) for i in (0, 2))
    print(
        f"  Otherwise, order turns SPCA's subspace by up to {sine:.2f} and its error by {spread:.1f} %:"
    )
    print(
        "  Lemma 2.2 is nearly true of the error, and of the subspace where the rank is at most r."
    )
    print("  Frequent Directions with 2r >= d rows loses nothing, whatever the order.")
    draw(
        options, "permutations", panels, "alpha", "sine", ours=[SPARE], log="y", columns=len(ranks)
    )
    return []


def order_effects(run: Run, rows: Array, r: int, times: int) -> tuple[float, float, float]:
    """Return mean distances to the first order's subspace and to the SVD's, and the error's range."""
    rng = np.random.default_rng(1)
    offline = np.linalg.eigh(rows.T @ rows)[1][:, -r:].T
    found = [last(run(order)) for order in [rows, *(rng.permutation(rows) for _ in range(times))]]
    errors = [squared_error(rows, C) for C in found]
    own = float(np.mean([mean_sine(found[0], C) for C in found[1:]]))
    svd = float(np.mean([mean_sine(offline, C) for C in found]))
    return own, svd, 100 * (max(errors) - min(errors)) / best_error(rows, r)


def merging(options: Options) -> list[str]:
    """Compare Algorithms 2, 4, 5, and ours, with a forgetting factor of 0.9 and an enhancing of 1.3."""
    ways = {
        "2": merge_subspaces,
        "5": merge_by_qr,
        "4": merge_by_svd,
        "2, printed": merge_as_printed,
        "ours": merge_by_gram,
    }
    rng, lines = np.random.default_rng(0), []
    for d, r in ((400, 20), (2000, 20)) if options.quick else ((400, 20), (10000, 30)):
        U1 = orthonormal(rng.standard_normal((r, d))).T
        U2 = np.linalg.qr(0.3 * U1 + rng.standard_normal((d, r)) / np.sqrt(d))[0]
        s1, s2 = (np.sort(rng.uniform(1, 10, r))[::-1] for _ in range(2))
        merges = {name: partial(way, U1, s1, U2, s2, r, 0.9, 1.3) for name, way in ways.items()}
        true_U, true_s = merges["4"]()
        seconds = {name: min_seconds(merge) for name, merge in merges.items()}
        for name, merge in merges.items():
            U, s = merge()
            off = float(np.max(np.abs(s / true_s - 1)))
            ratio = seconds[name] / seconds["2"]
            lines.append([f"{d}", r, name, off, sine_of_angle(true_U, U), ratio, "none"])
    show(
        "Merging two subspaces of r, lambda_1=0.9, lambda_2=1.3: difference from Algorithm 4",
        ["d", "r", "algorithm", "values", "sine of angle", "time / that of 2", "published"],
        lines,
    )
    print("  '2, printed' lacks lambda_2 on its block Z, and is wrong wherever lambda_2 is not 1.")
    print("  'Ours' merges by the Gram matrix of all columns, as summaries do.")
    return []


def merge_by_gram(
    U1: Array, s1: Array, U2: Array, s2: Array, r: int, forget: float, enhance: float
) -> tuple[Array, Array]:
    """Merge as `fedpca.Summary` does; it keeps directions as rows, so columns are transposed."""
    one, other = LowRank(U1.T, forget * s1), LowRank(U2.T, enhance * s2)
    merged = one.append(Centered(other.rows()), np.empty((0, len(U1))), r)
    return merged.directions.T, merged.values


def min_seconds(call: Callable[[], object]) -> float:
    """Return the seconds of the shortest of seven calls."""
    taken = []
    for _ in range(7):
        start = clock.perf_counter()
        call()
        taken.append(clock.perf_counter() - start)
    return min(taken)
