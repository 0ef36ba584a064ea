"""Compare fits of rows on a GPU with the bare products that they need, computed by torch on that GPU.

    python benchmarks/gpu.py                        2,000,000 x 1000 float32 rows on "cuda", k=20
    python benchmarks/gpu.py --device cpu --quick   small sizes, to see that it runs

A fit by `covariance` needs the mean, X'X, and the eigenvectors of X'X. A fit by `lanczos` needs the
mean, and X'(XZ) once per round. torch computes the bare products in the rows' own dtype, not in tf32.
The coordinator finds the eigenvectors. With `Covariance(device=...)`, as here, it does so on the GPU.
By default, it uses numpy, and the line `numpy eigh` shows how long that takes.
The last lines compare the components of some rows with those of a float64 fit by numpy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch

from fedpca import FederatedPCA, Site
from fedpca.linalg.dense import sine_of_angle, top_eigen
from fedpca.solvers import Covariance
from racing import race

BOUND = 1.5  # longest time of a fit, as a multiple of the time of the bare products
MAX_ANGLE = 1e-4
ROWS_AT_ONCE = 1 << 16
# products in float32 are not exact enough for tol=1e-10
TOL = {
    "float64": 1e-10,
    "float32": 1e-7,
}


def rows_on_device(n: int, d: int, k: int, device: str, dtype: torch.dtype) -> torch.Tensor:
    """Make rows on the device with k leading components, smaller other components, and a mean."""
    torch.manual_seed(0)
    deviations = torch.cat([torch.linspace(6, 3, k), torch.linspace(2, 0.3, d - k)])
    basis = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))[0].to(device, dtype)
    mixing = deviations.to(device, dtype)[:, None] * basis
    X = torch.empty(n, d, device=device, dtype=dtype)
    for start in range(0, n, ROWS_AT_ONCE):
        part = X[start : start + ROWS_AT_ONCE]
        torch.matmul(torch.randn(len(part), d, device=device, dtype=dtype), mixing, out=part)
        part += 5.0
    return X


def fitted(X: torch.Tensor, k: int, solver: str, precision: str) -> FederatedPCA:
    site = Site(X, name="card", precision=precision)
    method = Covariance(device=str(X.device)) if solver == "covariance" else solver
    return FederatedPCA(k, solver=method, tol=TOL[precision], random_state=0).fit([site])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--features", type=int, default=1000)
    parser.add_argument("--components", type=int, default=20)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compared", type=int, default=20_000, help="rows to compare with numpy")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    n, d, k, compared = given.rows, given.features, given.components, given.compared
    if given.quick:
        n, d, k, compared = 20_000, 60, 5, 2000
    X = rows_on_device(n, d, k, given.device, getattr(torch, given.dtype))
    Z = torch.linalg.qr(torch.randn(d, k, device=X.device, dtype=X.dtype))[0]
    C = X[: 2 * d].T @ X[: 2 * d]
    on_host = C.cpu().numpy().astype(np.float64)
    fits: dict[tuple[str, str], FederatedPCA] = {}

    def finished(run: Callable[[], object]) -> Callable[[], object]:
        """Return a function that runs something and waits until the device has finished it."""

        def run_and_wait() -> None:
            run()
            if X.is_cuda:
                torch.cuda.synchronize(X.device)

        return run_and_wait

    contestants = {
        "mean": finished(lambda: X.mean(dim=0)),
        "X'X": finished(lambda: X.T @ X),
        "eigh": finished(lambda: torch.linalg.eigh(C)),
        "X'(XZ)": finished(lambda: X.T @ (X @ Z)),
        "numpy eigh": lambda: top_eigen(on_host, k + 1),
    }
    bare = list(contestants)
    kinds = [(s, p) for p in ("float64", "float32") for s in ("covariance", "lanczos")]
    for solver, precision in kinds:

        def fit(solver: str = solver, precision: str = precision) -> None:
            fits[solver, precision] = fitted(X, k, solver, precision)

        contestants[f"{solver} {precision}"] = finished(fit)
    race(contestants, 1)  # after this, libraries are loaded and warm
    seconds = race(contestants, given.repeats)
    where = torch.cuda.get_device_name(X.device) if X.is_cuda else "the processor"
    print(f"{n} x {d} {given.dtype} rows on {where}, torch {torch.__version__}, k={k}")
    print("\n  bare product         ms")
    for name in bare:
        print(f"  {name:16s}{1000 * seconds[name]:8.1f}")
    print("\n  fit by         A'A in         ms   rounds   bare ms   ratio   bound")
    for solver, precision in kinds:
        history = fits[solver, precision].run_.history
        rounds = sum(entry["question"] == "covariance_product" for entry in history)
        needed = seconds["mean"] + (
            seconds["X'X"] + seconds["eigh"]
            if solver == "covariance"
            else rounds * seconds["X'(XZ)"]
        )
        took = seconds[f"{solver} {precision}"]
        print(
            f"  {solver:15s}{precision:10s}{1000 * took:8.1f}{rounds or 1:9d}{1000 * needed:10.1f}"
            f"{took / needed:8.2f}{BOUND:8.2f}"
        )
    few = X[:compared]
    reference = FederatedPCA(k, solver="covariance").fit(few.cpu().numpy().astype(np.float64))
    print(f"\n  angle to a float64 fit of {compared} rows by numpy (bound {MAX_ANGLE:.0e})")
    for solver, precision in kinds:
        ours = fitted(few, k, solver, precision)
        angle = sine_of_angle(reference.components_.T, ours.components_.T)
        says = f"{ours.run_.stop_reason}, bound {ours.run_.angle_bound:.1e}"
        print(f"  {solver:15s}{precision:10s}{angle:10.1e}   {says}")
        assert angle <= MAX_ANGLE, f"{solver}: {angle}"


if __name__ == "__main__":
    main()
