"""Time exact federated PCA against scikit-learn's PCA on the pooled rows, as ratios in one run.

    python benchmarks/exact.py                 all cases
    python benchmarks/exact.py tall sites      some of them
    python benchmarks/exact.py --quick         small sizes, to see that it runs

In each case, the contestants take turns, and medians are compared, because timings on a shared machine
are noisy. `memory` writes 4 GB of rows to a temporary folder, and fits them in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from sklearn.decomposition import PCA

from fedpca import FederatedPCA, Federation
from fedpca.linalg.dense import sine_of_angle
from racing import race, show


def decaying_rows(n: int, d: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n, d))
    rows *= np.linspace(3, 0.5, d)
    rows += rng.standard_normal(d)
    return rows


def tall(quick: bool, n_sites: int = 10, rows: int = 20000) -> None:
    d, k = (100, 5) if quick else (500, 20)
    n = n_sites * rows // (20 if quick else 1)
    X = decaying_rows(n, d)
    sites = np.array_split(X, n_sites)
    contestants: dict[str, Callable[[], object]] = {
        "fedpca": lambda: FederatedPCA(k).fit(sites),
        "PCA covariance_eigh": lambda: PCA(k, svd_solver="covariance_eigh").fit(X),
    }
    if n_sites == 10:
        contestants["PCA randomized"] = lambda: PCA(k, svd_solver="randomized").fit(X)
        contestants["PCA full"] = lambda: PCA(k, svd_solver="full").fit(X)
    seconds = race(contestants, 3 if quick or n_sites == 10 else 15)
    if n_sites == 10:
        fast = dict(list(contestants.items())[:2])
        seconds |= race(fast, 3 if quick else 9)
        bounds = {"PCA covariance_eigh": 1.15, "PCA full": 1.0, "PCA randomized": 1.0}
    else:
        bounds = {"PCA covariance_eigh": 1.3}
    show(f"{n_sites} sites of {n // n_sites} x {d}, k={k}", seconds, bounds)


def sites(quick: bool) -> None:
    tall(quick, n_sites=200, rows=1000)


def sparse(quick: bool) -> None:
    n, d, k = (400, 2000, 5) if quick else (10000, 20000, 10)
    X = sp.random_array((n, d), density=0.01, format="csr", rng=np.random.default_rng(0))
    parts = [X[i * n // 4 : (i + 1) * n // 4] for i in range(4)]
    fitted = {}

    def ours() -> None:
        fitted["fedpca"] = FederatedPCA(k, random_state=0).fit(Federation.local(parts, n_jobs=2))

    def arpack() -> None:
        fitted["arpack"] = PCA(k, svd_solver="arpack", random_state=0).fit(X)

    seconds = race({"fedpca": ours, "PCA arpack": arpack}, 3)
    title = f"4 sites of {n // 4} x {d}, 1 % nonzero, sparse, k={k}"
    show(title, seconds, {"PCA arpack": 1.0})
    angle = sine_of_angle(fitted["fedpca"].components_.T, fitted["arpack"].components_.T)
    run = fitted["fedpca"].run_
    print(f"  {run.solver_rounds} rounds of {run.solver}, sine of the largest angle {angle:.1e}")


def memory(quick: bool) -> None:
    n_bytes = (16 if quick else 4096) << 20
    d, n_files = 250, 4
    rows = n_bytes // (8 * d * n_files)
    print(f"\n{n_bytes / 2**30:.2f} GiB in {n_files} files, k=10: resident above the interpreter")
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("npy", "parquet"):
            paths = [Path(folder) / f"site-{i}.{kind}" for i in range(n_files)]
            for i, path in enumerate(paths):
                _write(path, rows, d, seed=i)
            for solver in ("covariance",) if quick else ("covariance", "lanczos"):
                command = [sys.executable, __file__, "--child", solver, *map(str, paths)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                print(f"  {kind:8s}{solver:12s}{done.stdout.strip()}   (bound 600 MB)")
            for path in paths:
                path.unlink()


def _write(path: Path, rows: int, d: int, seed: int) -> None:
    """Write random rows a piece at a time."""
    rng = np.random.default_rng(seed)
    step = 20000
    pieces = ((start, min(step, rows - start)) for start in range(0, rows, step))
    if path.suffix == ".npy":
        out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(rows, d))
        for start, count in pieces:
            out[start : start + count] = rng.standard_normal((count, d)) * np.linspace(2, 1, d)
        out.flush()
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(f"f{j}", pa.float64()) for j in range(d)])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for _, count in pieces:
            values = rng.standard_normal((count, d)) * np.linspace(2, 1, d)
            writer.write_batch(pa.record_batch(list(values.T), schema=schema))


def child(solver: str, paths: list[str]) -> None:
    """Fit files and print how far the peak of resident memory rose."""
    import pyarrow.parquet  # noqa: F401 - imported first, so that its memory does not count

    before = peak_resident()
    began = time.perf_counter()
    FederatedPCA(10, solver=solver, tol=2e-6, random_state=0).fit(paths)
    seconds = time.perf_counter() - began
    print(f"{(peak_resident() - before) / 1e6:6.0f} MB, {seconds:6.1f} s")


def peak_resident() -> int:
    """Return the peak of this process's memory in bytes; getrusage would count its parent's too."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(x for x in status.splitlines() if x.startswith("VmHWM")).split()[1])


CASES = {"tall": tall, "sites": sites, "sparse": sparse, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="|".join(CASES))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", metavar="SOLVER")
    options = parser.parse_args()
    if options.child:
        child(options.child, options.cases)
        return
    for name in options.cases or CASES:
        CASES[name](options.quick)


if __name__ == "__main__":
    main()
