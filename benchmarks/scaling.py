"""Measure how the time of a fit grows with rows, features, sites, and components, and what bounds it.

    python benchmarks/scaling.py                         all four series
    python benchmarks/scaling.py rows sites              some of them: rows, features, sites, components
    python benchmarks/scaling.py --plots FOLDER          draw each series, as scaling-rows.png and so on
    python benchmarks/scaling.py --processor             count processor seconds, for a busy machine
    python benchmarks/scaling.py --quick                 small sizes, to see that it runs

Each fit runs in a process of its own, which draws the rows and, after a small fit, fits them once. The
exponent is the slope of a line fitted to log seconds against log size, over the larger half of the
sizes. Each line also says what bounds the fit: the arithmetic at the rate of this machine's matrix
products, reading the rows at the rate at which the machine copies, or the messages at the cost of an
empty message. The bound is whichever would take longest by itself. All rates are measured in the same
run.

While other programs run, the clock is unreliable. With `--processor`, times are processor seconds,
which do not include waiting. Set OPENBLAS_NUM_THREADS=1 as well, because threads that wait may spin.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from exact import peak_resident
from fedpca import FederatedPCA, Federation, question
from fedpca.linalg.blas_threads import threads_for_entries

Clock = Callable[[], float]


class Size(NamedTuple):
    """The size of a fit."""

    rows: int
    features: int
    sites: int
    components: int
    dtype: str = "float64"


def series(quick: bool) -> dict[str, list[Size]]:
    """Return the sizes in each series: one number grows, and the others stay the same."""
    if quick:
        return {
            "rows": [Size(n, 20, 4, 3) for n in (1_000, 4_000, 16_000)],
            "features": [Size(200, d, 4, 3, "float32") for d in (50, 200, 1_000)],
            "sites": [Size(4_000, 20, s, 3) for s in (1, 10, 100)],
            "components": [Size(2_000, 300, 4, k) for k in (2, 8, 32)],
        }
    return {
        "rows": [Size(n, 100, 10, 10) for n in (10**4, 10**5, 10**6, 10**7)],
        "features": [Size(1_000, d, 4, 10, "float32") for d in (10**2, 10**3, 10**4, 10**5, 10**6)],
        "sites": [Size(200_000, 100, s, 10) for s in (1, 10, 100, 1_000, 10_000)],
        "components": [Size(20_000, 2_000, 4, k) for k in (2, 5, 20, 50, 200)],
    }


@question(answers={"n": "int64"})
def nothing(site):
    """Send a number that takes no time to compute."""
    return {"n": np.int64(1)}


def rows_of(size: Size) -> np.ndarray:
    """Draw rows a block at a time, with one strong direction for each component."""
    n, d, _, k, dtype = size
    rng = np.random.default_rng(0)
    sizes = 2 * np.sqrt(1 + d / n) * np.geomspace(4, 2, k)
    strong = (np.linalg.qr(rng.standard_normal((d, k)))[0] * sizes).T.astype(np.float32)
    X = np.empty((n, d), dtype)
    step = max(1, 4_000_000 // d)
    for start in range(0, n, step):
        part = X[start : start + step]
        part[:] = rng.standard_normal(part.shape, np.float32)
        part += rng.standard_normal((len(part), k), np.float32) @ strong
    return X


def child(size: Size, clock: Clock) -> None:
    """Fit once, and print the seconds, rounds, solver, and memory beyond the rows as JSON."""
    X = rows_of(size)
    parts = [
        X[i * size.rows // size.sites : (i + 1) * size.rows // size.sites]
        for i in range(size.sites)
    ]
    FederatedPCA(2).fit([np.eye(4), np.eye(4)])
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = peak_resident()
    began = clock()
    model = FederatedPCA(size.components, random_state=0).fit(parts)
    seconds = clock() - began
    run = model.run_
    widths = 2 * size.components  # a block times the rows, and back
    products = size.features if run.solver == "covariance" else widths * run.solver_rounds
    print(
        json.dumps(
            {
                "seconds": seconds,
                "rounds": run.rounds,
                "solver": run.solver,
                "stop": run.stop_reason,
                "flops": 2.0 * size.rows * size.features * products,
                "bytes": float(X.nbytes) * max(2, run.rounds - 1),
                "memory": peak_resident() - before,
            }
        )
    )


def machine_rates(clock: Clock) -> dict[str, float]:
    """Return this machine's rates: flops and bytes copied per second, and seconds per message."""
    A = np.random.default_rng(0).standard_normal((1500, 1500))
    target = np.empty(32_000_000)
    source = np.ones_like(target)
    fed = Federation.local([np.eye(2)] * 200)
    product = _median_seconds(lambda: A @ A, clock)
    copy = _median_seconds(lambda: np.copyto(target, source), clock)
    with threads_for_entries(0):  # as in a run
        message = _median_seconds(lambda: fed.sum(nothing), clock) / 200
    return {
        "flops": 2 * 1500**3 / product,
        "bytes": 2 * target.nbytes / copy,
        "message": message,
    }


def _median_seconds(run: Callable[[], object], clock: Clock, repeats: int = 5) -> float:
    seconds = []
    for _ in range(repeats + 1):
        began = clock()
        run()
        seconds.append(clock() - began)
    return statistics.median(seconds[1:])


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the slope of log seconds against log size, over the larger half of the sizes."""
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(seconds[half:]), 1)[0])


def measure(
    name: str, sizes: list[Size], rates: dict[str, float], folder: str | None, more: list[str]
) -> None:
    fixed = ", ".join(
        f"{getattr(sizes[0], other):,} {other}" for other in Size._fields[:4] if other != name
    )
    print(f"\n{name}, with {fixed}, {sizes[0].dtype}")
    print(f"  {name:>12s}{'seconds':>10s}{'rounds':>8s}  {'solver':12s}{'MB':>7s}   limited by")
    grown, taken, alone = [], [], []
    for size in sizes:
        command = [sys.executable, __file__, "--child", json.dumps(size), *more]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["ended by the system"])[-1]
            print(f"  {getattr(size, name):12,d}  failed: {last[:80]}")
            continue
        told = json.loads(done.stdout)
        least = {
            "flops": told["flops"] / rates["flops"],
            "bandwidth": told["bytes"] / rates["bytes"],
            "messages": size.sites * told["rounds"] * rates["message"],
        }
        bound = max(least, key=least.__getitem__)
        grown.append(getattr(size, name))
        taken.append(told["seconds"])
        alone.append(least[bound])
        print(
            f"  {grown[-1]:12,d}{taken[-1]:10.3f}{told['rounds']:8d}  {told['solver']:12s}"
            f"{told['memory'] / 1e6:7.0f}   {bound}, at {least[bound] / taken[-1]:.0%} of its rate",
            flush=True,
        )
    slope = exponent(grown, taken)
    print(f"  seconds grow as {name}^{slope:.2f}")
    if folder is not None:
        label = "processor seconds" if more else "seconds"
        plot(name, grown, taken, alone, slope, label, Path(folder))


def plot(
    name: str,
    sizes: list[int],
    seconds: list[float],
    alone: list[float],
    slope: float,
    label: str,
    folder: Path,
) -> None:
    """Draw the seconds against the size on logarithmic axes, with the fitted line.

    ``alone`` holds the seconds that the bound of each fit would take by itself.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(4.5, 3.2), layout="constrained")
    half = len(sizes) // 2
    line = np.array(sizes[half:], float)
    level = np.exp(np.mean(np.log(seconds[half:])) - slope * np.mean(np.log(line)))
    axes.loglog(sizes, seconds, "o", color="#1f4e79")
    axes.loglog(line, level * line**slope, "-", color="#1f4e79", label=f"exponent {slope:.2f}")
    axes.loglog(sizes, alone, ":", color="#b05a2b", label="what bounds it, alone")
    axes.set_xlabel(name)
    axes.set_ylabel(f"{label} of a fit")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    folder.mkdir(parents=True, exist_ok=True)
    # leave out the version of matplotlib, so that the same figure has the same bytes
    figure.savefig(folder / f"scaling-{name}.png", dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("series", nargs="*", metavar="rows|features|sites|components")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--plots", metavar="FOLDER")
    parser.add_argument("--processor", action="store_true", help="count processor seconds")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    clock = time.process_time if options.processor else time.perf_counter
    if options.child:
        child(Size(*json.loads(options.child)), clock)
        return
    rates = machine_rates(clock)
    more = ["--processor"] if options.processor else []
    print("times are processor seconds" if options.processor else "times are seconds")
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, numpy {np.__version__}: {rates['flops'] / 1e9:.0f} GFlop/s, "
        f"copies {rates['bytes'] / 1e9:.1f} GB/s, a message {1e6 * rates['message']:.0f} microseconds"
    )
    known = series(options.quick)
    for name in options.series or known:
        measure(name, known[name], rates, options.plots, more)


if __name__ == "__main__":
    main()
