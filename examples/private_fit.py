"""Fit with differential privacy, and see how well an attacker still guesses who is in the rows.

    python examples/private_fit.py
    python examples/private_fit.py --trials 2000    more guesses, for steadier figures

Twelve measurements of 1500 patients at three clinics; the last patient is an unusual one. The first
table shows what fits keep of the variance, and what was expected before. The second one shows how often
an attacker is right about this patient, who alone has a flag, or who was added between two fits.
"""

from __future__ import annotations

import argparse
import math
import warnings

import numpy as np

from fedpca import FederatedPCA, Privacy
from fedpca.audit.differencing import guess_person
from fedpca.solvers.private.utility import expected_share

N_ROWS, N_FEATURES, K, BOUND = 1500, 12, 2, 8.0
EPSILONS = (math.inf, 10.0, 1.0, 0.1)


def patients() -> np.ndarray:
    rng = np.random.default_rng(0)
    deviations = np.concatenate([[3.0, 2.0], np.full(N_FEATURES - 2, 0.5)])
    rows = rng.standard_normal((N_ROWS, N_FEATURES)) * deviations
    rows[-1] = BOUND * rng.choice([-1, 1], N_FEATURES) / np.sqrt(N_FEATURES)
    return rows


def named(epsilon: float) -> str:
    return "no privacy" if math.isinf(epsilon) else f"epsilon {epsilon:g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200, help="guesses for each attack")
    n_trials = parser.parse_args().trials
    rows = patients()
    clinics = np.array_split(rows, 3)
    scatter = np.cov(rows, rowvar=False)
    variances = np.linalg.eigvalsh(scatter)[::-1]
    print("| fit | share of the variance | expected |")
    print("|---|---|---|")
    for epsilon in EPSILONS:
        privacy = Privacy(epsilon=epsilon, delta=1e-6, row_bound=BOUND)
        shares = []
        for _ in range(30):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about components that noise hides
                V = FederatedPCA(K, privacy=privacy).fit(clinics).components_
            shares.append(np.trace(V @ scatter @ V.T) / variances[:K].sum())
        expected = expected_share(privacy, variances, N_ROWS, K, len(clinics))
        print(f"| {named(epsilon)} | {np.mean(shares):.2f} | {expected:.2f} |")
    print("\n| attack | fit | guesses right | at most |")
    print("|---|---|---|---|")
    for found in guess_person(rows, BOUND, epsilons=EPSILONS, n_trials=n_trials):
        print(
            f"| {found.attack} | {named(found.epsilon)} | {100 * found.right:.0f} % "
            f"| {100 * found.most:.0f} % |"
        )


if __name__ == "__main__":
    main()
