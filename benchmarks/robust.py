"""Compare robust PCA over sites with other methods on pooled rows: CPU time, as ratios, and memory.

    python benchmarks/robust.py            500 x 500 and 1000 x 1000 over 10 sites
    python benchmarks/robust.py --quick    100 x 100, to see that it runs: too small for a bound

The low-rank part has rank n / 20, and one entry in 20 is off by +-n. All methods must recover the
low-rank part with a relative error of at most 1e-6 (`relL`); errors in the far larger outliers do not
count. Inexact ALM looks at the truth after each step, and stops when its error is small enough; the
other methods get tolerances that lead to this error. The time with all rows at one site shows what more
sites add: messages, their checks, and small arrays.

A fit to a noisy table of 10^5 x 100 shows the processor time per entry and round.

Two packages run on the pooled rows, and are installed if they are missing, except with ``--quick``:
`pyrpca`, which is also inexact ALM, and `rpca`, which is accelerated alternating projections and gets
the rank, as `RobustPCA` does. `rpca` subtracts the mean, although outliers affect the mean. So `rpca`
gets one component more, and the mean is added back.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import subprocess
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

from fedpca import RobustPCA
from racing import race, show

TARGET = 1e-6


def draw(n_rows: int, d: int, r: int, share: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows; return them and their low-rank part."""
    rng = np.random.default_rng(0)
    L = rng.standard_normal((n_rows, r)) @ rng.standard_normal((r, d))
    signs = rng.choice([-1.0, 1.0], L.shape)
    return L + np.where(rng.random(L.shape) < share, signs * np.sqrt(L.size), 0.0), L


def off(found: np.ndarray, L: np.ndarray) -> float:
    return float(np.linalg.norm(found - L) / np.linalg.norm(L))


def inexact_alm(M: np.ndarray, L0: np.ndarray) -> np.ndarray:
    """Run the method of Lin, Chen and Ma (2010), with all singular values in each step."""
    weight, norm = 1 / np.sqrt(max(M.shape)), np.linalg.norm(M, 2)
    Y = M / max(norm, np.abs(M).max() / weight)
    mu, S, L = 1.25 / norm, np.zeros_like(M), np.zeros_like(M)
    while off(L, L0) > TARGET:
        U, s, Vt = np.linalg.svd(M - S + Y / mu, full_matrices=False)
        rank = int((s > 1 / mu).sum())
        L = (U[:, :rank] * (s[:rank] - 1 / mu)) @ Vt[:rank]
        T = M - L + Y / mu
        S = T - np.clip(T, -weight / mu, weight / mu)
        Y = Y + mu * (M - L - S)
        mu *= 1.5
    return L


def peer_is_there(name: str, quick: bool) -> bool:
    if importlib.util.find_spec(name) is None:
        if quick:
            print(f"\n{name} is not installed")
            return False
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", name], check=True)
    return True


def by_pyrpca(M: np.ndarray) -> np.ndarray:
    from pyrpca import rpca_pcp_ialm

    return rpca_pcp_ialm(M, 1 / np.sqrt(max(M.shape)), tol=3e-8, verbose=False)[0]


def by_rpca(M: np.ndarray, r: int) -> np.ndarray:
    import rpca

    with contextlib.redirect_stdout(io.StringIO()):  # it prints, whatever `verbose` says
        fitted = rpca.RobustPCA(r + 1, tol=2e-8, verbose=False).fit(M)
    return fitted.low_rank_ + fitted.mean_


def compare(n: int, quick: bool) -> None:
    r = n // 20
    M, L = draw(n, n, r)
    sites = np.array_split(M, 10)
    found: dict[str, np.ndarray] = {}
    fitted: list[RobustPCA] = []

    def ours(parts: list[np.ndarray] = sites) -> None:
        fitted[:] = [RobustPCA(r, center="none", tol=3e-6, random_state=0).fit(parts)]

    def theirs(name: str, run: Callable[[], np.ndarray]) -> Callable[[], None]:
        return lambda: found.update({name: run()})

    contestants: dict[str, Callable[[], None]] = {
        "fedpca, one site": lambda: ours([M]),
        "fedpca": ours,
        "inexact ALM in numpy": theirs("inexact ALM in numpy", lambda: inexact_alm(M, L)),
    }
    if peer_is_there("pyrpca", quick):
        contestants["pyrpca"] = theirs("pyrpca", lambda: by_pyrpca(M))
    if peer_is_there("rpca", quick):
        contestants["rpca"] = theirs("rpca", lambda: by_rpca(M, r))
    ours([M])  # so that work done once in a process does not count
    found["fedpca, one site"] = fitted[0].split(M).low_rank
    # all contestants run in this process, on one thread; other programs' work does not count
    seconds = race(contestants, 3, time.process_time)
    ours()
    found["fedpca"] = fitted[0].split(M).low_rank
    title = f"{n} x {n}, rank {r}, 5 % outliers, 10 sites, to relL {TARGET:g}"
    errors = {name: off(found[name], L) for name in contestants}
    short = [name for name, error in errors.items() if error > TARGET]
    show(title, seconds, {} if quick else {"inexact ALM in numpy": 0.20}, short)
    for name, error in errors.items():
        print(f"  {name:32s}relL {error:.0e}")
    print(f"  fedpca took {fitted[0].run_.rounds} rounds")


def noisy(n: int, d: int = 100, r: int = 5) -> None:
    """Print the processor time of a fit to noisy rows: in total, and per entry and round."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, r)) @ rng.standard_normal((r, d))
    X += 0.1 * rng.standard_normal((n, d))
    X += 20 * (rng.random((n, d)) < 0.05) * rng.standard_normal((n, d))
    sites = np.array_split(X, 4)
    began = time.process_time()
    rounds = RobustPCA(r, random_state=0).fit(sites).run_.rounds
    seconds = time.process_time() - began
    each = 1e9 * seconds / X.size / rounds
    print(f"\n{n} x {d}, rank {r}, noise, 5 % outliers, 4 sites: {seconds:.1f} s of processor time")
    print(f"  {rounds} rounds, {each:.1f} ns for each entry and round")


def memory(n_sites: int, n: int, d: int, r: int = 10) -> None:
    """Print the memory that a fit adds to the rows, next to the sizes of rows and results."""
    M, _ = draw(n_sites * n, d, r)
    sites = np.array_split(M, n_sites)
    tracemalloc.start()
    RobustPCA(r, center="none", tol=1e-6, random_state=0).fit(sites)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    whole, peak, one = M.nbytes / 2**20, peak / 2**20, n * d * 8 / 2**20
    kept = n_sites * n * (0.05 * d * 16 + r * 8) / 2**20
    print(
        f"  {n_sites:3d} sites, {whole:4.1f} MB in all: at most {peak:4.1f} MB more; rows of one site "
        f"{one:.1f} MB, sparse parts and scores of all {kept:.1f} MB by their sizes"
    )


UNLIKE = {  # the relative sizes of the components, and the size of the noise
    "1, 1/2, 1/4, 1/8": ([1, 0.5, 0.25, 0.125], 0.02),
    "1, 1/10": ([1, 0.1], 0.02),
    "8 from 1 to 3/100": (np.geomspace(1, 0.03, 8), 0.005),
    "1, 1/100": ([1, 0.01], 0.001),
}


def unlike(n_seeds: int) -> None:
    """Print how often components of different sizes are found, or missed without a warning.

    Components count as found if their angle to the true ones is at most 0.2.
    """
    print(
        f"\nComponents of unlike size found, of {n_seeds} draws of 400 x 60, 5 % outliers, 3 sites"
    )
    for name, (sizes, noise) in UNLIKE.items():
        line = f"  {name:20s}"
        for method in ("auto", "threshold"):
            found = untold = 0
            for seed in range(n_seeds):
                rng = np.random.default_rng(seed)
                U = np.linalg.qr(rng.standard_normal((60, len(sizes))))[0]
                X = (rng.standard_normal((400, len(sizes))) * sizes) @ U.T * np.sqrt(60)
                X += noise * rng.standard_normal(X.shape)
                X += 10 * (rng.random(X.shape) < 0.05) * rng.standard_normal(X.shape)
                with warnings.catch_warnings(record=True) as told:
                    warnings.simplefilter("always")
                    pca = RobustPCA(len(sizes), solver=method, random_state=seed)
                    pca.fit(np.array_split(X, 3))
                cosine = np.linalg.svd(pca.components_ @ U, compute_uv=False).min()
                is_found = cosine > np.cos(0.2)
                found, untold = found + is_found, untold + (not is_found and not told)
            line += f"   {method} {found:2d}, wrong without a warning {untold:2d}"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    with threadpool_limits(1, user_api="blas"):  # the same for all contestants
        for n in (100,) if options.quick else (500, 1000):
            compare(n, options.quick)
        noisy(1000 if options.quick else 100_000)
        n, d = (50, 80) if options.quick else (200, 300)
        print(f"\nMemory of a fit in addition to the rows, sites of {n} x {d}, rank 10")
        for n_sites in (10, 40):
            memory(n_sites, n, d)
        unlike(1 if options.quick else 40)


if __name__ == "__main__":
    main()
