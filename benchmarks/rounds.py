"""Count the rounds of block Lanczos and of subspace iteration on the spectra of the FAPS paper.

    python benchmarks/rounds.py                                  print the table
    python benchmarks/rounds.py --quick                          small sizes, to see that it runs
    python benchmarks/rounds.py --plot docs/images/rounds.png    draw the residuals too

The fits have 1000 features, 10 components, and 4 sites, and stop at a residual of 2e-6 of the trace.
The table shows medians over 5 seeds. Options such as ``--tol 1e-10 --solvers lanczos`` choose another
residual or other solvers.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import numpy as np

from fedpca import FederatedPCA

D, K = 1000, 10
SPECTRA = {
    "xi = 1.01": 1.01 ** -np.arange(D),
    "xi = 1 + 10^-2.5": (1 + 10**-2.5) ** -np.arange(D),
    "arithmetic, kappa = 100": np.linspace(1, 0.01, D),
}


def rows_with(singular_values: np.ndarray, seed: int) -> np.ndarray:
    """Return a square table whose Gram matrix has the squared values and random eigenvectors."""
    rng, d = np.random.default_rng(seed), len(singular_values)
    U, V = (np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(2))
    return (U * singular_values) @ V.T


def residuals(solver: str, singular_values: np.ndarray, seed: int, tol: float) -> list[float]:
    """Return the residual after each round until it is at most tol; a fit may go on after that."""
    model = FederatedPCA(
        K, solver=solver, center=False, tol=tol, max_rounds=3000, random_state=seed
    )
    model.fit(np.array_split(rows_with(singular_values, seed), 4))
    reported = [e["residual"] for e in model.run_.history if e["residual"] is not None]
    return reported[: next(i for i, value in enumerate(reported, 1) if value <= tol)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tol", type=float, default=2e-6)
    parser.add_argument("--solvers", nargs="+", default=["lanczos", "subspace-iteration"])
    options = parser.parse_args()
    if options.plot:
        import matplotlib  # noqa: F401 - from the extra "plot"; if missing, fail now, not at the end
    d, n_seeds = (100, 1) if options.quick else (D, options.seeds)
    curves: dict[tuple[str, str], list[float]] = {}
    print("spectrum".ljust(28) + "".join(f"{solver:>10s}" for solver in options.solvers))
    for name, singular_values in SPECTRA.items():
        counts = []
        for solver in options.solvers:
            runs = [
                residuals(solver, singular_values[:d], seed, options.tol) for seed in range(n_seeds)
            ]
            curves[name, solver] = runs[0]
            counts.append(statistics.median(len(run) for run in runs))
        print(name.ljust(28) + "".join(f"{count:10.0f}" for count in counts))
    if options.plot:
        draw(curves, options.tol, options.plot)


def draw(curves: dict[tuple[str, str], list[float]], tol: float, path: Path) -> None:
    """Draw the residual against the round, one panel for each spectrum."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(SPECTRA), figsize=(11, 3.2), sharey=True)
    for panel, name in zip(panels, SPECTRA, strict=True):
        for solver, color in (("subspace-iteration", "#b0b0b0"), ("lanczos", "#1f6fb4")):
            curve = curves.get((name, solver), [])
            panel.loglog(range(1, len(curve) + 1), curve, color=color, linewidth=2, label=solver)
        panel.axhline(tol, color="#888888", linewidth=0.8, linestyle=":")
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("round")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("residual / trace")
    panels[0].legend(frameon=False, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
