"""Time fits of rows on a GPU beside the bare products that they need, through torch on the same card.

    python benchmarks/gpu.py                        2,000,000 x 1000 float32 rows on "cuda", k=20
    python benchmarks/gpu.py --device cpu --quick   small sizes, to see that it runs

A fit by `covariance` needs the mean, X'X, and the eigenvectors of X'X. A fit by `lanczos` needs the
mean and X'(XZ) once a round. The bare products are those of torch, in the rows' own dtype, not in tf32.
The last lines compare the components of some rows with those of a float64 fit by numpy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch

from fedpca import FederatedPCA
from fedpca.linalg.dense import sine_of_angle
from racing import race

BOUND = 1.5  # on the time of a fit, as a multiple of that of the bare products
MAX_ANGLE = 1e-4
ROWS_AT_ONCE = 1 << 16


def rows_on_device(n: int, d: int, k: int, device: str, dtype: torch.dtype) -> torch.Tensor:
    """Make rows on the device, with k leading components, a falling rest, and a mean."""
    torch.manual_seed(0)
    deviations = torch.cat([torch.linspace(6, 3, k), torch.linspace(1, 0.3, d - k)])
    basis = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))[0].to(device, dtype)
    mixing = deviations.to(device, dtype)[:, None] * basis
    X = torch.empty(n, d, device=device, dtype=dtype)
    for start in range(0, n, ROWS_AT_ONCE):
        part = X[start : start + ROWS_AT_ONCE]
        torch.matmul(torch.randn(len(part), d, device=device, dtype=dtype), mixing, out=part)
        part += 5.0
    return X


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--features", type=int, default=1000)
    parser.add_argument("--components", type=int, default=20)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compared", type=int, default=20_000, help="rows compared with numpy")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    n, d, k, compared = given.rows, given.features, given.components, given.compared
    if given.quick:
        n, d, k, compared = 20_000, 60, 5, 2000
    X = rows_on_device(n, d, k, given.device, getattr(torch, given.dtype))
    Z = torch.linalg.qr(torch.randn(d, k, device=X.device, dtype=X.dtype))[0]
    C = X[: 2 * d].T @ X[: 2 * d]
    fits: dict[str, FederatedPCA] = {}

    def done(run: Callable[[], object]) -> Callable[[], object]:
        """Return what runs something and waits until the device has finished it."""

        def wait() -> None:
            run()
            if X.is_cuda:
                torch.cuda.synchronize(X.device)

        return wait

    def fit(solver: str) -> None:
        fits[solver] = FederatedPCA(k, solver=solver, random_state=0).fit(X)

    contestants = {
        "mean": done(lambda: X.mean(dim=0)),
        "X'X": done(lambda: X.T @ X),
        "eigh": done(lambda: torch.linalg.eigh(C)),
        "X'(XZ)": done(lambda: X.T @ (X @ Z)),
        "covariance": done(lambda: fit("covariance")),
        "lanczos": done(lambda: fit("lanczos")),
    }
    race(contestants, 1)  # libraries are loaded and warm
    seconds = race(contestants, given.repeats)
    where = torch.cuda.get_device_name(X.device) if X.is_cuda else "the processor"
    print(f"{n} x {d} {given.dtype} rows on {where}, torch {torch.__version__}, k={k}")
    print("\n  bare product         ms")
    for name in ("mean", "X'X", "eigh", "X'(XZ)"):
        print(f"  {name:16s}{1000 * seconds[name]:8.1f}")
    history = fits["lanczos"].run_.history
    rounds = sum(entry["question"] == "covariance_product" for entry in history)
    bare = {
        "covariance": seconds["mean"] + seconds["X'X"] + seconds["eigh"],
        "lanczos": seconds["mean"] + rounds * seconds["X'(XZ)"],
    }
    print("\n  fit by               ms   bare ms   ratio   bound")
    for name, needed in bare.items():
        ratio = seconds[name] / needed
        print(
            f"  {name:16s}{1000 * seconds[name]:8.1f}{1000 * needed:10.1f}{ratio:8.2f}{BOUND:8.2f}"
        )
    print(f"  (lanczos takes {rounds} rounds of X'(XZ))")
    few = X[:compared]
    reference = FederatedPCA(k, solver="covariance").fit(few.cpu().numpy().astype(np.float64))
    print(f"\n  angle to a float64 fit of {compared} rows by numpy (bound {MAX_ANGLE:.0e})")
    for name in bare:
        ours = FederatedPCA(k, solver=name, random_state=0).fit(few)
        angle = sine_of_angle(reference.components_.T, ours.components_.T)
        print(f"  {name:16s}{angle:10.1e}   {ours.run_.stop_reason}")
        assert angle <= MAX_ANGLE, f"{name}: {angle}"


if __name__ == "__main__":
    main()
