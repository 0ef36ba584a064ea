"""Measure fits to very wide rows, and to rows in files, which should be read only once.

    python benchmarks/wide.py                  all cases
    python benchmarks/wide.py float32 files    some of them
    python benchmarks/wide.py --quick          small sizes, to see that it runs

`float32` compares times with scikit-learn's PCA on the pooled array, in one run. `noise` compares the
rounds of fits that stop at a small angle and of fits that stop at the noise. `int8` fits genotypes of
2000 people at a million places in a process of its own, and prints how far the peak of that process's
memory rose above the rows. `files` compares a fit that reads Parquet files once with a
fit that reads them again for each question, and counts how often files are read.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from exact import _write, peak_resident
from fedpca import FederatedPCA
from fedpca.linalg.dense import sine_of_angle
from fedpca.rows import standardized
from fedpca.rows.formats.tables import TableRows
from fedpca.solvers import Lanczos
from racing import race, show

N_SITES = 4


def planted(n: int, d: int, k: int) -> np.ndarray:
    """Draw float32 rows with k components above the noise, and an offset in each column."""
    rng = np.random.default_rng(0)
    strengths = np.linspace(3, 1, k, dtype=np.float32) * np.sqrt(d / n, dtype=np.float32)
    directions = rng.standard_normal((k, d), dtype=np.float32)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    X = rng.standard_normal((n, d), dtype=np.float32)
    X += (2 * strengths * rng.standard_normal((n, k), dtype=np.float32)) @ directions
    X += rng.standard_normal(d, dtype=np.float32)
    return X


def genotypes(n: int, d: int, n_groups: int = 4, drift: float = 0.02) -> np.ndarray:
    """Draw 0, 1, or 2 copies of alleles whose frequencies differ between groups of people."""
    rng = np.random.default_rng(0)
    X = np.empty((n, d), np.int8)
    group = rng.integers(n_groups, size=n)
    step = 10_000
    for start in range(0, d, step):
        width = min(step, d - start)
        common = rng.uniform(0.05, 0.5, width)
        spread = np.sqrt(drift * common * (1 - common))
        frequencies = common + spread * rng.standard_normal((n_groups, width))
        frequencies = np.clip(frequencies, 0.01, 0.99).astype(np.float32)[group]
        copies = [rng.random((n, width), dtype=np.float32) < frequencies for _ in range(2)]
        X[:, start : start + width] = sum(copy.astype(np.int8) for copy in copies)
    return X


def float32(quick: bool) -> None:
    n, d, k = (200, 10_000, 5) if quick else (2000, 100_000, 10)
    X = planted(n, d, k)
    parts = np.array_split(X, N_SITES)
    fitted = {}

    def ours() -> None:
        fitted["fedpca"] = FederatedPCA(k, random_state=0).fit(parts)

    def arpack() -> None:
        fitted["arpack"] = PCA(k, svd_solver="arpack", random_state=0).fit(X)

    def randomized() -> None:
        fitted["randomized"] = PCA(k, svd_solver="randomized", random_state=0).fit(X)

    contestants = {"fedpca": ours, "PCA arpack": arpack, "PCA randomized": randomized}
    seconds = race(contestants, 3 if quick else 5)
    title = f"{N_SITES} sites of {n // N_SITES} x {d} float32, k={k}"
    show(title, seconds, {"PCA arpack": 1.2})
    title = "the same in seconds of processor time, of all threads"
    show(title, race(contestants, 3, clock=time.process_time), {})
    run = fitted["fedpca"].run_
    print(
        f"  {run.solver_rounds} rounds of {run.solver}; sines of the angles to arpack and randomized:"
    )
    for name in ("arpack", "randomized"):
        angle = sine_of_angle(fitted["fedpca"].components_.T, fitted[name].components_.T)
        print(f"  {name:12s}{angle:.1e}")


def noise(quick: bool) -> None:
    n, d, k = (300, 3000, 10) if quick else (1000, 20_000, 10)
    parts = np.array_split(genotypes(n, d).astype(np.float32), N_SITES)
    print(f"\n{N_SITES} sites of {n // N_SITES} x {d} genotypes of 4 groups, k={k}")
    for stop in ("angle", "noise"):
        run = FederatedPCA(k, solver=Lanczos(stop=stop), random_state=0).fit(parts).run_
        print(
            f"  stop={stop!r:9s} {run.solver_rounds:3d} rounds, {run.stop_reason}, "
            f"{run.n_certain} certain, angle_bound {run.angle_bound:.0e}"
        )


def int8(quick: bool) -> None:
    n, d = (200, 20_000) if quick else (2000, 1_000_000)
    print(f"\n{N_SITES} sites of {n // N_SITES} x {d} int8, k=10, in a process of its own")
    for stop in ("noise",) if quick else ("noise", "angle"):
        command = [sys.executable, __file__, "--child", str(n), str(d), stop]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        print(f"  {done.stdout.strip()}")


def child(n: int, d: int, stop: str) -> None:
    """Fit genotypes and print how far the peak of resident memory rose above the rows."""
    before = peak_resident()
    X = genotypes(n, d)
    parts = [X[i * n // N_SITES : (i + 1) * n // N_SITES] for i in range(N_SITES)]
    began = time.perf_counter()
    run = FederatedPCA(10, solver=Lanczos(stop=stop), random_state=0).fit(parts).run_
    seconds = time.perf_counter() - began
    print(
        f"stop={stop!r:9s} {(peak_resident() - before - X.nbytes) / 1e6:5.0f} MB in addition to the "
        f"rows (bound 2000 MB), "
        f"{run.solver_rounds} rounds, {seconds:.1f} s, {run.stop_reason}, {run.n_certain} certain"
    )


def files(quick: bool) -> None:
    rows, d, n_files = (2_000, 50, 2) if quick else (400_000, 100, 2)
    n_read = 0
    blocks = TableRows.blocks

    def counted(self: TableRows) -> Iterator[Any]:
        nonlocal n_read
        n_read += 1
        return blocks(self)

    TableRows.blocks = counted  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"site-{i}.parquet" for i in range(n_files)]
        for i, path in enumerate(paths):
            _write(path, rows, d, seed=i)
        for scale in (False, True):
            n_readings: dict[bool, int] = {}

            def fit(once: bool, scale: bool = scale, found: dict[bool, int] = n_readings) -> None:
                nonlocal n_read
                n_read = 0
                standardized.READ_ONCE_COST = 100.0 if once else math.inf
                FederatedPCA(10, scale=scale).fit([str(path) for path in paths])
                found[once] = n_read // n_files

            again = "read again for each question"
            contestants = {"fedpca": lambda: fit(True), again: lambda: fit(False)}
            seconds = race(contestants, 5)
            show(f"{n_files} Parquet files of {rows} x {d}, k=10, scale={scale}", seconds, {})
            print(f"  each file read {n_readings[True]} and {n_readings[False]} times")


CASES = {"float32": float32, "noise": noise, "int8": int8, "files": files}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="|".join(CASES))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", nargs=3, metavar=("ROWS", "FEATURES", "STOP"))
    options = parser.parse_args()
    if options.child:
        child(int(options.child[0]), int(options.child[1]), options.child[2])
        return
    for name in options.cases or CASES:
        CASES[name](options.quick)


if __name__ == "__main__":
    main()
