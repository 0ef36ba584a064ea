"""Count how often n_components="auto" finds a planted rank, and compare real tables with permutations.

    python benchmarks/ranks.py                          all cases, which takes some minutes
    python benchmarks/ranks.py --quick                  small sizes, to see that it runs
    python benchmarks/ranks.py --data DIR               more tables, from files in this folder

Planted tables have noise that is equal everywhere, unequal by row, or unequal by column. Their
components are 1.7 to 3 times as large as the largest direction of the noise. Tables with noise alone
show how often a component is found where there is none. Columns of real tables are scaled. Tables for
RobustPCA also have outliers and missing entries, and its fits get only a bound on the rank.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

from fedpca import FederatedPCA, RobustPCA

SIZES = [(20, 1000), (50, 30), (200, 50), (100, 5000), (1000, 100), (2000, 600), (20000, 10)]
QUICK = SIZES[:3]
NOISES = ("equal", "by row", "by column")


def planted(
    rng: np.random.Generator, n: int, d: int, k: int, noise: str, *, strongest: float = 1.0
) -> np.ndarray:
    """Draw noise and k directions that stand out from it; ``strongest`` enlarges the first one."""
    rows = np.exp(0.7 * rng.standard_normal((n, 1))) if noise == "by row" else np.ones((n, 1))
    columns = np.exp(0.7 * rng.standard_normal(d)) if noise == "by column" else np.ones(d)
    X = rng.standard_normal((n, d)) * rows * columns
    if not k:
        return X
    gram = X @ X.T if n < d else X.T @ X
    largest = np.sqrt(np.linalg.eigvalsh(gram)[-1])
    U, V = (np.linalg.qr(rng.standard_normal((size, k)))[0] for size in (n, d))
    sizes = np.linspace(3, 1.7, k) * np.r_[strongest, np.ones(k - 1)]
    return X + (U * sizes * largest) @ V.T


def found(X: np.ndarray, *, scale: bool = False) -> int:
    """Return the number of components that a fit over four sites keeps."""
    model = FederatedPCA("auto", scale=scale, random_state=0)
    return int(model.fit(np.array_split(X, 4)).n_components_)


def finds_none(X: np.ndarray) -> bool:
    """Return whether a fit says that no component is above the noise."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found(X)
    return any("no component above the noise" in str(warning.message) for warning in said)


def robust_problem(seed: int) -> tuple[np.ndarray, int, int] | None:
    """Return drawn rows with outliers, their rank, and a bound, or None if noise hides the rank."""
    rng = np.random.default_rng(seed)
    n, d, r = (int(rng.choice(sizes)) for sizes in ((100, 200, 400), (20, 40, 80), (1, 2, 3, 5, 8)))
    bound = int(rng.choice([r + 1, 2 * r + 1, r + 4, 10, 15]))
    noise, fall = rng.choice([0, 0.01, 0.1, 0.3]), rng.choice([1, 0.7, 0.4, 0.2])
    outliers, missing = rng.choice([0, 0.05, 0.1, 0.2]), rng.choice([0, 0, 0.1])
    columns = np.exp(0.5 * rng.standard_normal(d)) if rng.random() < 0.5 else np.ones(d)
    basis = np.linalg.qr(rng.standard_normal((d, r)))[0]
    L = np.sqrt(d) * (rng.standard_normal((n, r)) * fall ** np.arange(r)) @ basis.T
    N = noise * rng.standard_normal((n, d)) * columns
    if np.linalg.svd(L, compute_uv=False)[r - 1] < 1.5 * np.linalg.norm(N, 2) or bound < r:
        return None
    X = L + N + (rng.random((n, d)) < outliers) * rng.uniform(-10, 10, (n, d))
    X[rng.random((n, d)) < missing] = np.nan
    return X, r, bound


def count_beside_a_strong_one(sizes: list[tuple[int, int]], seeds: int) -> None:
    """Print how often components are found if another component is 5 or 20 times as large."""
    n_draws = n_close = 0
    for n, d in sizes:
        for seed in range(seeds):
            for strongest in (5.0, 20.0):
                k = 5 if min(n, d) > 40 else 3
                X = planted(np.random.default_rng(seed), n, d, k, "equal", strongest=strongest)
                n_close += abs(found(X) - k) <= (2 if k == 5 else 0)
                n_draws += 1
    print(f"next to a component 5 or 20 times as large: {n_close} of {n_draws} found")


def count_robust_ranks(n_seeds: int) -> None:
    """Print how often RobustPCA finds a wrong rank, with and without a warning."""
    n_problems = n_wrong = n_silent = 0
    for problem in filter(None, map(robust_problem, range(n_seeds))):
        X, r, bound = problem
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            fitted = RobustPCA(max_components=bound, random_state=0).fit(np.array_split(X, 4))
        is_wrong = fitted.n_components_ != r
        n_problems += 1
        n_wrong += is_wrong
        n_silent += is_wrong and not any("no rank" in str(warning.message) for warning in said)
    print(f"RobustPCA: {n_wrong} of {n_problems} ranks wrong, {n_silent} without a warning")


def by_permutation(X: np.ndarray, draws: int = 20) -> int:
    """Return the number of components that parallel analysis of the pooled rows keeps."""
    rng = np.random.default_rng(0)
    A = (X - X.mean(axis=0)) / X.std(axis=0)

    def eigenvalues(A: np.ndarray) -> np.ndarray:
        return np.linalg.eigvalsh(A @ A.T if len(A) < A.shape[1] else A.T @ A)[::-1]

    floor = np.quantile([eigenvalues(rng.permuted(A, axis=0)) for _ in range(draws)], 0.95, axis=0)
    above = eigenvalues(A) > floor
    return int(above.argmin()) if not above.all() else len(above)


def real_tables(data: Path | None) -> dict[str, np.ndarray]:
    """Return the tables of scikit-learn, and the tables in a folder if one is given."""
    tables = {
        "breast cancer": load_breast_cancer().data,
        "wine": load_wine().data,
        "digits": load_digits().data,
    }
    if data is not None:
        tables["bladder arrays"] = np.load(data / "bladderbatch.npz")["X"].astype(float)
        tables["light sensors"] = np.load(data / "motes_light.npz")["X"].astype(float)
    return {name: X[:, X.std(axis=0) > 0] for name, X in tables.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, few draws")
    parser.add_argument("--data", type=Path, help="folder with further tables")
    options = parser.parse_args()
    sizes, seeds = (QUICK, 1) if options.quick else (SIZES, 5)
    n_right = n_close = n_draws = n_silent = 0
    for n, d in sizes:
        for noise in NOISES:
            off: list[int] = []
            for seed in range(seeds):
                rng = np.random.default_rng(seed)
                k = int(rng.choice([2, 5, 10] if min(n, d) > 40 else [1, 2]))
                off.append(found(planted(rng, n, d, k, noise)) - k)
                n_silent += finds_none(planted(rng, n, d, 0, noise))
            n_draws += len(off)
            n_right += sum(error == 0 for error in off)
            n_close += sum(abs(error) <= 2 for error in off)
            print(f"{n:6} rows, {d:5} features, noise {noise:10}: off by {off}", flush=True)
    count_beside_a_strong_one(sizes, seeds)
    count_robust_ranks(10 if options.quick else 200)
    print(f"planted: {n_right} of {n_draws} right, {n_close} within 2")
    print(f"noise alone: {n_draws - n_silent} of {n_draws} with a component")
    for name, X in real_tables(options.data).items():
        print(f"{name}: {found(X, scale=True)} components, by permutation {by_permutation(X)}")


if __name__ == "__main__":
    main()
