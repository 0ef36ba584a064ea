"""Compare PCA of single cells at four sites with scanpy on the pooled cells: time, memory, angle.

    python benchmarks/single_cells.py                   50000 cells x 2000 genes, 50 components
    python benchmarks/single_cells.py --python PATH     with an interpreter that has scanpy
    python benchmarks/single_cells.py --quick           1000 x 200, to see that it runs

The script draws counts of 30 types of cells with 20 gene programs, and log-normalizes them to 1e4. Each
fit runs in a process of its own on one thread, with the cells in memory, sparse or dense, or in files
that are read in blocks. Seconds are processor time. Memory is the peak during the fit minus what the
process held before the fit, so cells in memory do not count, but blocks of files do. The angle is the
largest one to the components that scanpy finds in the sparse table, given as its sine.

If neither interpreter has scanpy, the script makes an environment for it in a temporary folder. With
``--quick``, it does not, and measures the angle to scikit-learn's components instead.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

N_SITES, N_TYPES, N_PROGRAMS = 4, 30, 20
SIZES = {False: (50_000, 2_000, 50), True: (1_000, 200, 10)}


def draw(n: int, d: int) -> sp.csr_array:
    """Draw the counts of cells a few thousand at a time, and log-normalize them."""
    rng = np.random.default_rng(0)
    base = np.exp(rng.normal(-3.2, 1.3, d))
    marked = rng.random((N_TYPES, d)) < 0.2
    profiles = base * np.exp(rng.normal(size=(N_TYPES, d)) * marked)
    programs = rng.normal(size=(N_PROGRAMS, d)) * (rng.random((N_PROGRAMS, d)) < 0.1)
    shares = rng.dirichlet(np.full(N_TYPES, 0.5))
    parts = []
    for start in range(0, n, 5_000):
        m = min(5_000, n - start)
        types = rng.choice(N_TYPES, m, p=shares)
        activity = np.exp(0.4 * rng.normal(size=(m, N_PROGRAMS)) @ programs)
        rates = profiles[types] * activity * rng.lognormal(0, 0.4, (m, 1))
        parts.append(sp.csr_array(rng.poisson(rates).astype(np.float64)))
    counts = sp.vstack(parts, format="csr")
    sums = counts.sum(axis=1)
    counts.data = np.log1p(
        counts.data * np.repeat(1e4 / np.maximum(sums, 1), np.diff(counts.indptr))
    )
    return counts


def write_h5ad(path: Path, X: Any) -> None:
    """Write cells as AnnData does, without needing anndata."""
    import h5py

    def note(item: Any, kind: str, version: str, **more: Any) -> None:
        item.attrs.update({"encoding-type": kind, "encoding-version": version, **more})

    with h5py.File(path, "w") as file:
        note(file, "anndata", "0.1.0")
        for table, prefix, length in (("obs", "cell", X.shape[0]), ("var", "gene", X.shape[1])):
            group = file.create_group(table)
            empty = np.array([], dtype=h5py.string_dtype())
            note(group, "dataframe", "0.2.0", _index="_index", **{"column-order": empty})
            group["_index"] = [f"{prefix}{i}" for i in range(length)]
            note(group["_index"], "string-array", "0.2.0")
        if isinstance(X, np.ndarray):
            file.create_dataset("X", data=X, chunks=(min(1000, len(X)), X.shape[1]))
            note(file["X"], "array", "0.2.0")
            return
        group = file.create_group("X")
        note(group, "csr_matrix", "0.1.0", shape=X.shape)
        for name in ("data", "indices", "indptr"):
            group[name] = getattr(X, name)


def matrix_in(folder: Path, is_dense: bool) -> Any:
    if is_dense:
        return np.load(folder / "dense.npy")
    return sp.csr_array(sp.load_npz(folder / "sparse.npz"))


def by_scanpy(folder: Path, k: int, is_dense: bool) -> Callable[[], np.ndarray]:
    import anndata
    import scanpy

    X = matrix_in(folder, is_dense)
    adata = anndata.AnnData(X if is_dense else sp.csr_matrix(X))

    def fit() -> np.ndarray:
        scanpy.pp.pca(adata, n_comps=k)
        return adata.varm["PCs"].T

    return fit


def by_scikit_learn(folder: Path, k: int, is_dense: bool) -> Callable[[], np.ndarray]:
    from sklearn.decomposition import PCA

    X = matrix_in(folder, is_dense)
    return lambda: PCA(k, svd_solver="arpack", random_state=0).fit(X).components_


def by_fedpca(folder: Path, k: int, is_dense: bool) -> Callable[[], np.ndarray]:
    from fedpca import FederatedPCA

    X = matrix_in(folder, is_dense)
    n = X.shape[0]
    parts = [X[i * n // N_SITES : (i + 1) * n // N_SITES] for i in range(N_SITES)]
    del X
    return lambda: FederatedPCA(k, random_state=0).fit(parts).components_


def by_fedpca_from_files(folder: Path, k: int, is_dense: bool) -> Callable[[], np.ndarray]:
    from fedpca import FederatedPCA

    kind = "dense" if is_dense else "sparse"
    paths = [str(folder / f"{kind}-{i}.h5ad") for i in range(N_SITES)]
    return lambda: FederatedPCA(k, random_state=0).fit(paths).components_


CONTESTANTS = {
    "scanpy": by_scanpy,
    "scikit-learn": by_scikit_learn,
    "fedpca": by_fedpca,
    "fedpca, .h5ad files": by_fedpca_from_files,
}


def resident(field: str) -> float:
    """Return a field of what the system reports about this process's memory, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1e3 for line in lines if line.startswith(field))


def child(name: str, kind: str, folder: Path, k: int) -> None:
    """Fit in this process, and print the seconds and the memory."""
    fit = CONTESTANTS[name](folder, k, kind == "dense")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    began = time.process_time()
    components = fit()
    seconds = time.process_time() - began
    more = resident("VmHWM") - before
    np.save(folder / "found.npy", components)
    print(json.dumps({"seconds": seconds, "megabytes": more}))


def scanpy_python(python: str, quick: bool, folder: str) -> str | None:
    """Return an interpreter that has scanpy, or None."""
    for found in (python, sys.executable):
        if not subprocess.run([found, "-c", "import scanpy"], capture_output=True).returncode:
            return found
    if quick:
        print("scanpy is not installed; comparing with scikit-learn")
        return None
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    made = str(Path(folder) / "bin" / "python")
    subprocess.run([made, "-m", "pip", "install", "--quiet", "scanpy"], check=True)
    return made


def measure(python: str, name: str, kind: str, folder: Path, options: Any) -> dict[str, float]:
    """Run one fit in a process of its own, on one thread, and return what it took."""
    k = SIZES[options.quick][2]
    words = [python, __file__, "--child", name, kind, str(folder), str(k)]
    one = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **one})
    if done.returncode:
        raise SystemExit(f"{name}, {kind}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def sine(found: np.ndarray, other: np.ndarray) -> float:
    """Return the sine of the largest angle between the spans of orthonormal rows."""
    found, other = (np.linalg.qr(rows.T)[0].T for rows in (found, other))
    return float(np.linalg.norm(other - (other @ found.T) @ found, 2))


def compare(folder: Path, options: Any, peer: tuple[str, str]) -> None:
    n, d, k = SIZES[options.quick]
    X = draw(n, d)
    sp.save_npz(folder / "sparse.npz", X, compressed=False)
    np.save(folder / "dense.npy", X.toarray())
    for i in range(N_SITES):
        own = X[i * n // N_SITES : (i + 1) * n // N_SITES]
        write_h5ad(folder / f"sparse-{i}.h5ad", own)
        write_h5ad(folder / f"dense-{i}.h5ad", own.toarray())
    print(f"{n} cells x {d} genes, {X.nnz / n / d:.1%} nonzero, k={k}, {N_SITES} sites")
    peer_name, python = peer
    truth = None
    for kind in ("sparse", "dense"):
        print(f"\n{kind}: seconds, memory in addition to the cells, sine of the angle")
        theirs = 0.0
        for name in (peer_name, "fedpca", "fedpca, .h5ad files"):
            is_peer = name == peer_name
            found = measure(python if is_peer else sys.executable, name, kind, folder, options)
            components = np.load(folder / "found.npy")
            truth = components if truth is None else truth
            theirs = found["seconds"] if is_peer else theirs
            ratio = "" if is_peer else f"   fedpca / {peer_name} {found['seconds'] / theirs:5.2f}"
            print(
                f"  {name:22s}{found['seconds']:8.2f} s{found['megabytes']:8.0f} MB"
                f"   {sine(components, truth):.0e}{ratio}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--python", default=sys.executable, help="a Python that has scanpy")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, kind, folder, k = options.child
        child(name, kind, Path(folder), int(k))
        return
    with tempfile.TemporaryDirectory() as folder:
        python = scanpy_python(options.python, options.quick, f"{folder}/scanpy")
        peer = ("scikit-learn", sys.executable) if python is None else ("scanpy", python)
        compare(Path(folder), options, peer)


if __name__ == "__main__":
    main()
