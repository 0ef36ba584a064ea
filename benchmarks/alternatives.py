"""Compare FederatedPCA with other packages: seconds, memory, and the angle to the exact components.

    python benchmarks/alternatives.py                      all cases
    python benchmarks/alternatives.py tall wide            some of them: tall, wide, sparse
    python benchmarks/alternatives.py --python PATH        with the peers in another environment
    python benchmarks/alternatives.py --quick              small sizes, to see that it runs

Each fit runs in its own process, so that its memory can be measured. That process also draws the rows.
Memory is the peak during the fit minus what the process held before the fit, which includes the rows.
For Spark, all memory of Java is added. On a busy machine, processor seconds, which cover all threads
and Java, are more reliable; set OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1 so that all fits use one
thread. The angle is the largest one between the components found and those of an exact decomposition in
float64, given as its sine. The table says which peers are not installed, and why a peer cannot handle a
case.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from family import family, processor_s, resident

LIMIT_S = 600  # time limit for one fit
# rows, features, components, dtype, and the share of entries that are not zero
CASES = {
    "tall": (400_000, 200, 20, "float64", 1.0),
    "wide": (2_000, 20_000, 10, "float32", 1.0),
    "sparse": (4_000, 20_000, 10, "float64", 0.01),
}
QUICK = {
    "tall": (4_000, 50, 5, "float64", 1.0),
    "wide": (100, 1_000, 5, "float32", 1.0),
    "sparse": (400, 1_000, 5, "float64", 0.05),
}
N_SITES = 4


class CannotDo(Exception):
    """Signal that a peer cannot handle a case; the text gives the reason."""


def rows_of(case: str, quick: bool) -> tuple[Any, int]:
    """Draw the rows of a case a block at a time, with k strong directions above noise."""
    n, d, k, dtype, density = (QUICK if quick else CASES)[case]
    rng = np.random.default_rng(0)
    sizes = 4 * np.sqrt(max(1, d / 100)) * np.geomspace(2, 1, k)
    strong = np.linalg.qr(rng.standard_normal((d, k)))[0].T * sizes[:, None]
    if density < 1:
        import scipy.sparse as sp

        # give columns different sizes, because sparse noise has no strong directions
        return sp.random_array((n, d), density=density, format="csr", rng=rng) @ sp.diags_array(
            np.geomspace(30, 1, d)
        ), k
    X = np.empty((n, d), dtype)
    for start in range(0, n, 10_000):
        part = X[start : start + 10_000]
        part[:] = rng.standard_normal(part.shape, np.float32)
        part += rng.standard_normal((len(part), k)) @ strong + 0.5
    return X, k


def dense_only(X: Any) -> np.ndarray:
    if not isinstance(X, np.ndarray):
        raise CannotDo("does not accept sparse rows")
    return X


def parts_of(X: Any) -> list[Any]:
    n = X.shape[0]
    return [X[i * n // N_SITES : (i + 1) * n // N_SITES] for i in range(N_SITES)]


def fedpca(X: Any, k: int) -> np.ndarray:
    from fedpca import FederatedPCA

    return FederatedPCA(k, random_state=0).fit(parts_of(X)).components_


def fedpca_stream(X: Any, k: int) -> np.ndarray:
    from fedpca import StreamingPCA

    return StreamingPCA(k).fit(X).components_


def scikit_learn(solver: str) -> Callable[[Any, int], np.ndarray]:
    def fit(X: Any, k: int) -> np.ndarray:
        from sklearn.decomposition import PCA

        if not isinstance(X, np.ndarray) and solver in ("full", "randomized"):
            raise CannotDo("does not accept sparse rows")
        if X.shape[1] > 5000 and solver == "covariance_eigh":
            raise CannotDo(f"needs a matrix of {8e-9 * X.shape[1] ** 2:.1f} GB")
        return PCA(k, svd_solver=solver, random_state=0).fit(X).components_

    return fit


def incremental(X: Any, k: int) -> np.ndarray:
    from sklearn.decomposition import IncrementalPCA

    return IncrementalPCA(k).fit(X).components_


def dask_ml(solver: str) -> Callable[[Any, int], np.ndarray]:
    def fit(X: Any, k: int) -> np.ndarray:
        import dask.array as da
        from dask_ml.decomposition import PCA

        rows = da.from_array(dense_only(X), chunks=(max(1, X.shape[0] // 8), X.shape[1]))
        if rows.chunksize[0] < X.shape[1] and solver == "tsqr":
            raise CannotDo("needs blocks with more rows than features")
        return np.asarray(PCA(k, svd_solver=solver, random_state=0).fit(rows).components_)

    return fit


def spark(X: Any, k: int) -> np.ndarray:
    from pyspark.ml.feature import PCA
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import SparkSession

    if X.shape[1] > 5000:
        raise CannotDo(f"needs a matrix of {8e-9 * X.shape[1] ** 2:.1f} GB in one process")
    session = (
        SparkSession.builder.master("local[2]").config("spark.driver.memory", "8g").getOrCreate()
    )
    import pandas as pd

    frame = session.createDataFrame(pd.DataFrame({"x": list(dense_only(X))}))
    frame = frame.select(array_to_vector("x").alias("x"))
    return np.asarray(PCA(k=k, inputCol="x", outputCol="y").fit(frame).pc.toArray().T)


def gensim(X: Any, k: int) -> np.ndarray:
    import gensim.matutils
    from gensim.models import LsiModel

    if isinstance(X, np.ndarray):
        corpus = gensim.matutils.Dense2Corpus(X - X.mean(axis=0), documents_columns=False)
    else:
        raise CannotDo("does not center sparse rows")
    return np.asarray(LsiModel(corpus, num_topics=k, random_seed=0).projection.u.T)


def faiss(X: Any, k: int) -> np.ndarray:
    import faiss

    matrix = faiss.PCAMatrix(X.shape[1], k)
    matrix.train(np.ascontiguousarray(dense_only(X), np.float32))
    return faiss.vector_to_array(matrix.A).reshape(k, X.shape[1])


def fbpca(X: Any, k: int) -> np.ndarray:
    import fbpca

    return np.asarray(fbpca.pca(X, k=k)[2])


def torch(X: Any, k: int) -> np.ndarray:
    import torch

    rows = torch.from_numpy(dense_only(X))
    return torch.pca_lowrank(rows, q=k)[2].numpy().T


# for each contestant: its package, and a function that returns components, (k, d)
CONTESTANTS: dict[str, tuple[str, Callable[[Any, int], np.ndarray]]] = {
    "FederatedPCA, 4 sites": ("fedpca", fedpca),
    "StreamingPCA": ("fedpca", fedpca_stream),
    "scikit-learn covariance_eigh": ("scikit-learn", scikit_learn("covariance_eigh")),
    "scikit-learn full": ("scikit-learn", scikit_learn("full")),
    "scikit-learn arpack": ("scikit-learn", scikit_learn("arpack")),
    "scikit-learn randomized": ("scikit-learn", scikit_learn("randomized")),
    "scikit-learn IncrementalPCA": ("scikit-learn", incremental),
    "dask-ml tsqr": ("dask-ml", dask_ml("tsqr")),
    "dask-ml randomized": ("dask-ml", dask_ml("randomized")),
    "Spark": ("pyspark", spark),
    "gensim LsiModel": ("gensim", gensim),
    "faiss PCAMatrix": ("faiss-cpu", faiss),
    "fbpca": ("fbpca", fbpca),
    "torch.pca_lowrank": ("torch", torch),
}


def child(name: str, case: str, quick: bool, folder: str) -> None:
    """Fit one contestant; write its components, and print its seconds and memory as JSON."""
    package, fit = CONTESTANTS[name]
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        print(json.dumps({"absent": package}))
        return
    import scipy.linalg  # noqa: F401 - most contestants need it, so it does not count

    X, k = rows_of(case, quick)
    try:
        fit(X[: 20 * k, : 10 * k], k)  # so that imports and starting threads do not count either
    except CannotDo as reason:
        print(json.dumps({"cannot": str(reason), "version": version}))
        return
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    began, began_cpu = time.perf_counter(), processor_s()
    try:
        found = fit(X, k)
    except CannotDo as reason:
        print(json.dumps({"cannot": str(reason), "version": version}))
        return
    seconds, cpu = time.perf_counter() - began, processor_s() - began_cpu
    peak = resident("VmHWM") - before + sum(resident("VmHWM", pid) for pid in family()[1:])
    np.save(Path(folder) / "found.npy", np.asarray(found, np.float64))
    print(json.dumps({"seconds": seconds, "cpu": cpu, "bytes": peak, "version": version}))


def exact(case: str, quick: bool) -> np.ndarray:
    """Return the leading components, (k, d), from an eigendecomposition in float64."""
    X, k = rows_of(case, quick)
    n, d = X.shape
    mean = np.asarray(X.mean(axis=0), np.float64)
    if n < d:
        rows = (X.toarray() if not isinstance(X, np.ndarray) else X).astype(np.float64) - mean
        _, U = np.linalg.eigh(rows @ rows.T)
        return np.linalg.qr(rows.T @ U[:, -k:])[0].T
    if not isinstance(X, np.ndarray):
        raise ValueError("more features than rows are needed for sparse rows")
    scatter = sum(
        (X[i : i + 10_000] - mean).T @ (X[i : i + 10_000] - mean) for i in range(0, n, 10_000)
    )
    return np.linalg.eigh(scatter)[1][:, -k:].T


def sine(found: np.ndarray, truth: np.ndarray) -> float:
    """Return the sine of the largest angle between the spans of the rows of two matrices."""
    V = np.linalg.qr(found.T)[0]
    return float(np.linalg.norm(V - truth.T @ (truth @ V), 2))


def measure(name: str, case: str, options: argparse.Namespace, truth: np.ndarray) -> str:
    package = CONTESTANTS[name][0]
    python = sys.executable if package == "fedpca" else options.python
    with tempfile.TemporaryDirectory() as folder:
        command = [python, __file__, case, "--child", name, "--folder", folder]
        command += ["--quick"] if options.quick else []
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"took more than {LIMIT_S} s"
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["ended by the system"])[-1]
            return f"failed: {last[:90]}"
        told = json.loads(done.stdout.strip().splitlines()[-1])
        if "absent" in told:
            return f"{told['absent']} is not installed"
        if "cannot" in told:
            return f"cannot do this: {told['cannot']}"
        angle = sine(np.load(Path(folder) / "found.npy"), truth)
    return (
        f"{told['seconds']:9.2f} s {told['cpu']:9.2f} s {told['bytes'] / 1e6:9.0f} MB {angle:10.1e}"
        f"   {told['version']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="|".join(CASES))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--python", default=sys.executable, help="a Python that has the peers")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.cases[0], options.quick, options.folder)
        return
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, numpy {np.__version__}"
    )
    for case in options.cases or CASES:
        n, d, k, dtype, density = (QUICK if options.quick else CASES)[case]
        filled = "" if density == 1 else f", {density:.0%} nonzero"
        print(
            f"\n{case}: {n} x {d} {dtype}{filled}, k={k}: seconds, processor seconds, memory, sine of "
            "the angle, version"
        )
        truth = exact(case, options.quick)
        for name in CONTESTANTS:
            print(f"  {name:30s}{measure(name, case, options, truth)}", flush=True)


if __name__ == "__main__":
    main()
