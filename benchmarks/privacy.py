"""Measure how much variance differentially private fits keep, and compare them with other packages.

    python benchmarks/privacy.py --data DIR    all problems; DIR has mnist.npz
    python benchmarks/privacy.py --data DIR --mean    other shares of the budget for the mean
    python benchmarks/privacy.py               all problems except those with MNIST
    python benchmarks/privacy.py --quick       small problems, to see that it runs: no bars, no peers

A share is the variance of the rows along private components, divided by that along the same number of
exact components. An angle is the largest angle between the two subspaces. All figures are medians over
several fits, with delta 1e-6, secure sums, and a row bound that is printed. The function
`expected_share` computes the expected share before the fit, and needs only the variances.

Peers run in an environment of their own, which is made in a temporary folder, with an older
scikit-learn that both peers accept. They get centered rows, so that they spend nothing on a mean. Their
bound is the length of the longest row, computed from the rows themselves; fedpca is not told this
length. The peers' promise is stronger: their delta is 0.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from fedpca import FederatedPCA, Federation, Privacy
from fedpca.linalg.dense import sine_of_angle
from fedpca.privacy import gaussian
from fedpca.solvers.private import at_site
from fedpca.solvers.private.utility import expected_share

DELTA, N_FITS, N_SITES = 1e-6, 5, 20
MNIST = ((1.0, 8.0, 0.995), (0.3, 8.0, 0.98), (0.1, 5.0, 0.90))  # epsilon, row bound, bar
MAX_ANGLE = 2.5  # in degrees
PEER_LIMIT_S = 60
PACKAGES = ("opendp[scikit-learn]==0.16.0", "diffprivlib==0.6.6", "scikit-learn<1.6")
PEER = """
import sys, warnings
import numpy as np
warnings.simplefilter("ignore")
name, k = sys.argv[1], int(sys.argv[2])
X = np.load(sys.argv[3])
bound = float(np.linalg.norm(X, axis=1).max())
if name == "diffprivlib":
    from diffprivlib.models import PCA
    model = PCA(k, epsilon=1.0, data_norm=bound, centered=True)
else:
    import opendp.prelude as dp
    dp.enable_features("contrib", "floating-point", "honest-but-curious")
    sizes = {"n_samples": len(X), "n_features": X.shape[1], "n_components": k}
    model = dp.sklearn.decomposition.PCA(epsilon=1.0, row_norm=bound, **sizes)
np.save(sys.argv[4], model.fit(X).components_)
"""


class Problem:
    """Rows and their exact components."""

    def __init__(self, X: np.ndarray, k: int) -> None:
        self.X, self.k = X, k
        centered = X - X.mean(axis=0)
        self.scatter = centered.T @ centered
        values, vectors = np.linalg.eigh(self.scatter)
        self.exact, self.most = vectors[:, -k:], float(values[-k:].sum())
        self.variances = np.maximum(values, 0.0) / len(X)

    def share(self, components: np.ndarray) -> float:
        return float(np.trace(components @ self.scatter @ components.T)) / self.most

    def degrees(self, components: np.ndarray) -> float:
        return float(np.degrees(np.arcsin(min(1.0, sine_of_angle(components.T, self.exact)))))

    def expected(self, epsilon: float, row_bound: float, *, secure: bool = True) -> float:
        privacy = Privacy(epsilon=epsilon, delta=DELTA, row_bound=row_bound)
        sizes = len(self.X), self.k, N_SITES
        return expected_share(privacy, self.variances, *sizes, secure=secure)

    def fits(
        self, epsilon: float, row_bound: float, n_fits: int, *, secure: bool = True
    ) -> tuple[float, float]:
        """Return the median share and the median angle of private fits."""
        shares, angles = [], []
        for _ in range(n_fits):
            privacy = Privacy(epsilon=epsilon, delta=DELTA, row_bound=row_bound)
            parts = np.array_split(self.X, N_SITES)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fed = Federation.local(parts, secure=secure)
                components = FederatedPCA(self.k, privacy=privacy).fit(fed).components_
            shares.append(self.share(components))
            angles.append(self.degrees(components))
        return statistics.median(shares), statistics.median(angles)


def drawn(n: int, d: int, k: int, gap: float = 1.0, seed: int = 0) -> tuple[Problem, float]:
    """Return rows with k leading directions, and their row bound: 1.5 times the usual length."""
    rng = np.random.default_rng(seed)
    deviations = np.concatenate([np.linspace(4, 3, k) * gap, np.full(d - k, 0.5)])
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    X = rng.standard_normal((n, d)) * deviations @ basis.T
    return Problem(X, k), 1.5 * float(np.linalg.norm(deviations))


def verdict(is_met: bool, bar: float) -> str:
    return f"{'meets' if is_met else 'MISSES'} the bar of {bar:g}"


def read_mnist(folder: Path) -> Problem:
    path = folder / "mnist.npz"
    if not path.exists():
        sys.exit(f"{path} is missing; it should hold X, 60000 x 28 x 28, uint8")
    return Problem(np.load(path)["X"].reshape(60000, -1) / 255.0, 10)


def shares_of_the_mean(problem: Problem) -> None:
    """Print what share of the variance is kept if a different share of the budget goes to the mean."""
    usual = gaussian.MEAN_SHARE
    for epsilon, bound in ((1.0, 8.0), (0.1, 5.0)):
        for share in (0.2, 0.1, 0.05, 0.025, 0.0125):
            gaussian.MEAN_SHARE = at_site.MEAN_SHARE = share
            kept = problem.fits(epsilon, bound, 3)[0]
            print(f"  epsilon {epsilon:g}, {share:g} for the mean: share {kept:.4f}", flush=True)
    gaussian.MEAN_SHARE = at_site.MEAN_SHARE = usual


def mnist(problem: Problem) -> None:
    """Print the share of MNIST's variance, with secure sums and without."""
    n, d = problem.X.shape
    print(f"MNIST, {n} x {d}, k=10, {N_SITES} sites, medians of {N_FITS} fits")
    for epsilon, bound, bar in MNIST:
        share = problem.fits(epsilon, bound, N_FITS)[0]
        print(
            f"  epsilon {epsilon:g}, row bound {bound:g}: share {share:.4f}, "
            f"{verdict(share >= bar, bar)}; expected {problem.expected(epsilon, bound):.4f}",
            flush=True,
        )
    share = problem.fits(0.1, 5.0, 1, secure=False)[0]
    print(
        f"  epsilon 0.1, row bound 5, without secure sums: share {share:.4f} (one fit)", flush=True
    )


def gapped(n: int, d: int, k: int, n_fits: int) -> None:
    """Print the angle for rows with a gap after the leading variances."""
    problem, bound = drawn(n, d, k)
    share, angle = problem.fits(1.0, bound, n_fits)
    print(
        f"{n} x {d}, k={k}, epsilon 1, row bound {bound:.1f}: angle {angle:.2f} degrees, "
        f"{verdict(angle <= MAX_ANGLE, MAX_ANGLE)}; share {share:.5f}",
        flush=True,
    )


def curves(n: int, d: int, k: int, n_fits: int) -> None:
    """Vary epsilon, n, d, and k one at a time, and print shares and angles."""
    print(
        f"\n{'epsilon':>8} {'n':>7} {'d':>5} {'k':>3} {'share':>8} {'expected':>8} {'degrees':>8}"
    )
    base = {"epsilon": 1.0, "n": n, "d": d, "k": k}
    steps = [
        *({**base, "epsilon": epsilon} for epsilon in (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)),
        *({**base, "n": n * factor // 4} for factor in (1, 2, 16)),
        *({**base, "d": d * factor // 4} for factor in (1, 2, 8)),
        *({**base, "k": each} for each in (1, 2, 2 * k)),
    ]
    for step in steps:
        problem, bound = drawn(step["n"], step["d"], step["k"])
        share, angle = problem.fits(step["epsilon"], bound, n_fits)
        print(
            f"{step['epsilon']:8g} {step['n']:7} {step['d']:5} {step['k']:3} {share:8.4f} "
            f"{problem.expected(step['epsilon'], bound):8.4f} {angle:8.2f}",
            flush=True,
        )


def peers(sizes: list[tuple[int, int]], n: int, limit_s: float) -> None:
    """Print the share that other packages reach at the same epsilon, if they finish in time."""
    print(f"\n{n} rows, epsilon 1, peers with delta 0 and at most {limit_s:g} s")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        python = _environment(folder)
        for d, k in sizes:
            problem, bound = drawn(n, d, k)
            shares = {"fedpca": f"{problem.fits(1.0, bound, N_FITS)[0]:.4f}"}
            np.save(folder / "rows.npy", problem.X - problem.X.mean(axis=0))
            for name in ("opendp", "diffprivlib"):
                shares[name] = _peers_share(python, folder, name, problem, limit_s)
            print(
                f"  d={d}, k={k}: " + ", ".join(f"{n} {share}" for n, share in shares.items()),
                flush=True,
            )


def _environment(folder: Path) -> str:
    """Make an environment with the peers in it, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = str(folder / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


def _peers_share(python: str, folder: Path, name: str, problem: Problem, limit_s: float) -> str:
    out = folder / "components.npy"
    out.unlink(missing_ok=True)
    command = [python, "-c", PEER, name, str(problem.k), str(folder / "rows.npy"), str(out)]
    try:
        done = subprocess.run(command, timeout=limit_s, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return f"no answer within {limit_s:g} s"
    if done.returncode:
        return f"failed ({done.stderr.strip().splitlines()[-1][:80]})"
    return f"{problem.share(np.linalg.qr(np.load(out).T)[0].T):.4f}"


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    parser.add_argument("--quick", action="store_true", help="small problems")
    parser.add_argument("--mean", action="store_true", help="vary the mean's share of the budget")
    options = parser.parse_args()
    if options.mean and options.data is None:
        parser.error("--mean needs --data DIR")
    with threadpool_limits(1, user_api="blas"):
        if options.quick:
            gapped(2000, 10, 2, 1)
            curves(1000, 8, 2, 1)
            return
        if options.mean:
            shares_of_the_mean(read_mnist(options.data))
            return
        if options.data is not None:
            mnist(read_mnist(options.data))
        gapped(50_000, 100, 5, N_FITS)
        curves(20_000, 50, 3, N_FITS)
        peers([(2, 1), (5, 2), (10, 2), (20, 2), (49, 5)], 20_000, PEER_LIMIT_S)


if __name__ == "__main__":
    main()
