"""Compare what "On distributed averaging for stochastic k-PCA" reports with what this project finds.

    python papers/averaging/run.py --data DIR                every section
    python papers/averaging/run.py figure1 gap               some of them
    python papers/averaging/run.py --data DIR --figures DIR  draw Figures 1 and 2 too
    python papers/averaging/run.py --quick --check           small, and exit 1 if a target is missed

Sections: ``figure1`` (eigenvectors one by one, generated data), ``gap`` (the unknown k), ``figure2``
(Table 1 and subspaces of real data) and ``server`` (what the coordinator computes; needs 4 GB).
``figure2`` reads mnist.npz and nips_words.npz from ``--data`` or the folder that FEDPCA_DATA names.
The paper (Bhaskara and Wijewardena, 2019) takes means of 200 runs, this script of 40: see ``--seeds``.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import eigsh
from sklearn.datasets import load_digits

from fedpca import FederatedPCA, Summary
from fedpca.linalg.dense import sine_of_angle, top_eigen
from fedpca.linalg.rank_rules import Spectrum, largest_gap
from fedpca.solvers import Average
from fedpca.solvers.one_round.average import average_projections
from fedpca.summary.summary import merge_in_tree

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the folder of all papers

from shared.drawing import draw_panels, show
from shared.sections import has, judge, run_sections

N_SITES = 50
N_ROWS = [20, 50, 100, 200, 500, 1000]  # of a site
D, K = 50, 6  # of the generated data: features, and where the gap is
R, T = 5, 15  # of Figure 2: components, and columns that a site sends
NO_NUMBER = "curve only"
PUBLISHED = {  # Table 1
    "MNIST-small": "20000 x 196, 5, 15",
    "NIPS by word": "11463 x 150, 5, 15",
    "FMA-music": "21314 x 518, 10, 70",
}
ABOUT_DATA = """\
NIPS is not the paper's set. The paper's N shows that words are its points, as they are in 'by word':
150 papers, evenly chosen, are the features. 'By paper' is not in the paper: there, papers are the
points, and the 150 most frequent words are the features.
FMA-music cannot be compared: the data are not available.
"""


def average(sites: list, k: Any, t: int | None, weights: str = "eigenvalues") -> FederatedPCA:
    """Fit the estimator under test; sites send t columns each."""
    solver = Average(site_components=t, weights=weights)
    return FederatedPCA(k, solver=solver, center=False).fit(sites)


def pooled(sites: list, k: int) -> np.ndarray:
    """Return the k leading eigenvectors of the rows of all sites, ``(d, k)``."""
    rows = np.vstack(sites)
    return top_eigen(rows.T @ rows, k)[1]


def generate(n: int, seed: int) -> tuple[np.ndarray, list]:
    """Draw the population's eigenvectors, ``(d, d)``, and n rows for each site."""
    rng = np.random.default_rng([seed, n])
    U = np.linalg.qr(rng.standard_normal((D, D)))[0]
    variances = 0.9 ** np.arange(D)
    variances[K:] = (variances[K - 1] - 0.3) * 0.9 ** np.arange(D - K)  # the gap
    return U, list(rng.standard_normal((N_SITES, n, D)) * np.sqrt(variances) @ U.T)


def errors_one_by_one(n: int, seed: int) -> dict[str, np.ndarray]:
    """Return 1 - (u_i' v_i)^2 of the first three eigenvectors, by method."""
    U, sites = generate(n, seed)
    found = {
        "weighted k=7": average(sites, 3, 7).components_.T,
        "weighted k=3": average(sites, 3, 3).components_.T,
        "unweighted k=7": average(sites, 7, 7, "unweighted").components_.T,
        "unweighted k=3": average(sites, 3, 3, "unweighted").components_.T,
        "pooled": pooled(sites, 3),
    }
    return {name: 1 - np.sum(V[:, :3] * U[:, :3], axis=0) ** 2 for name, V in found.items()}


def figure1(options: argparse.Namespace) -> list[str]:
    """Measure the errors of eigenvectors one by one: Figure 1."""
    print("Unweighted averaging is not in the paper's figure. It loses the order of vectors: here")
    print("they are sorted by variance, which favors it.")
    sizes = [50, 1000] if options.quick else N_ROWS
    means: dict[int, dict[str, np.ndarray]] = {}
    for n in sizes:
        runs = [errors_one_by_one(n, seed) for seed in range(options.seeds)]
        means[n] = {name: np.mean([run[name] for run in runs], axis=0) for name in runs[0]}
    last = means[sizes[-1]]
    rows = []
    for n, found in means.items():
        excess = found["weighted k=7"] / found["pooled"] - 1
        for i in range(3):
            cells = [f"{error[i]:.5f}" for error in found.values()]
            rows.append([str(n), str(i + 1), NO_NUMBER, *cells, f"{100 * excess[i]:+.1f} %"])
    title = f"Figure 1: {D} features, {N_SITES} sites, mean of {options.seeds} seeds of 1-(u'v)^2"
    show(title, ["n", "vector", "paper", *last, "k=7 to pooled"], rows)
    if options.figures:
        panels = {
            f"eigenvector {i + 1}": {name: [means[n][name][i] for n in sizes] for name in last}
            for i in range(3)
        }
        draw(options.figures / "averaging-figure1.png", sizes, panels, "mean of 1 - (u'v)²")
    worse = {name: last[name] / last["weighted k=7"] for name in last}
    of_three = ", ".join(f"{ratio:.1f}" for ratio in worse["unweighted k=3"])
    print(f"unweighted k=3 against weighted k=7 at n=1000: {of_three} times worse, not checked")
    off, least = np.abs(1 / worse["pooled"] - 1).max(), worse["unweighted k=7"].min()
    return [
        *judge("weighted k=7 within 2 % of pooled at n=1000", off <= 0.02, f"{100 * off:.1f} %"),
        *judge("unweighted k=7 at least 3 times worse", least >= 3, f"{least:.1f} times"),
    ]


def unweighted_spectrum(summaries: list[Summary], t: int) -> np.ndarray:
    """Return all eigenvalues of the sum of projections on the sites' t leading directions."""
    stacked = np.vstack([summary.directions[:t] for summary in summaries])
    return np.linalg.svd(stacked, compute_uv=False) ** 2


def difference_of_ways(sites: list, summaries: list[Summary], t: int) -> float:
    """Return how far the parts used for the unweighted spectrum are from the estimator."""
    by_parts = average_projections(summaries, t)
    model = average(sites, t, t, "unweighted")
    values = unweighted_spectrum(summaries, t)[:t]
    return max(
        sine_of_angle(by_parts.directions.T, model.components_.T),
        float(np.abs(by_parts.eigenvalues - values).max() / values[0]),
    )


def ranks_found(n: int, seed: int) -> tuple[dict[str, int], float]:
    """Return the k after which each spectrum has its largest gap, and how far both ways differ."""
    _, sites = generate(n, seed)
    found = {
        f"weighted {name}": average(sites, "gap", t).n_components_
        for name, t in (("default", None), ("t=15", 15), ("t=7", 7))
    }
    summaries = [Summary.of(rows, 15, center=False) for rows in sites]
    for t in (15, 7):
        values = unweighted_spectrum(summaries, t)
        spectrum = Spectrum(values, float(values.sum()), N_SITES * n, D)
        found[f"unweighted t={t}"] = largest_gap(spectrum) or 0
    return found, difference_of_ways(sites, summaries, 7) if seed < 3 else 0.0


def gap(options: argparse.Namespace) -> list[str]:
    """Count how often the gap is found where it is: section 4."""
    print("By default, a site sends 30 columns to a search; the paper gives no such count.")
    rows, worst, apart = [], 1.0, 0.0
    for n in [50, 1000] if options.quick else N_ROWS:
        runs, differences = zip(*(ranks_found(n, s) for s in range(options.seeds)), strict=True)
        shares = {name: np.mean([run[name] == K for run in runs]) for name in runs[0]}
        rows.append([str(n), "no number", *(f"{100 * share:.0f} %" for share in shares.values())])
        apart = max(apart, *differences)
        if n >= 50:
            worst = min(worst, *(s for name, s in shares.items() if name.startswith("weighted")))
    title = f"Section 4: share of {options.seeds} seeds in which the largest gap is after k=6"
    show(title, ["n", "paper", *shares], rows)
    print("The unweighted spectrum is computed from parts, since no estimator shows it.")
    missed = judge("parts equal the estimator to 1e-7, first 3 seeds", apart < 1e-7, f"{apart:.0e}")
    target = "weighted finds k=6 in 95 % or more for n >= 50"
    return missed + judge(target, worst >= 0.95, f"{100 * worst:.0f} %")


def mnist_small(folder: Path) -> np.ndarray:
    """Read the first 20000 images, and average each 2 x 2 pixels to one: ``(20000, 196)``."""
    with np.load(folder / "mnist.npz") as file:
        images = file["X"][:20000] / 255
    return images.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(len(images), 196)


def nips_papers(folder: Path, points: str) -> np.ndarray:
    """Read counts of each word in 150 papers, or of the 150 most frequent words in each paper."""
    counts = scipy.sparse.load_npz(folder / "nips_words.npz").tocsr()
    if points == "words":
        evenly = np.linspace(0, counts.shape[0], 150, endpoint=False).astype(int)
        return counts[evenly].toarray().T.astype(float)
    most = np.argsort(-np.asarray(counts.sum(axis=0)).ravel(), kind="stable")[:150]
    return counts[:, np.sort(most)].toarray().astype(float)


def tables(options: argparse.Namespace) -> dict[str, np.ndarray]:
    """Read the data that are there, and print what is missing."""
    if options.quick:
        print("Quick: scikit-learn's digits stand in for MNIST-small and for the NIPS papers.")
        return {"digits": load_digits().data}
    found = {}
    if has(options.data, "mnist.npz", "an array X of 28 x 28 images, (60000, 28, 28)"):
        found["MNIST-small"] = mnist_small(options.data)
    if has(options.data, "nips_words.npz", "counts, papers x words, as scipy.sparse.save_npz does"):
        found["NIPS by word"] = nips_papers(options.data, "words")
        found["NIPS by paper"] = nips_papers(options.data, "papers")
    return found


def subspace_errors(X: np.ndarray, U: np.ndarray, n: int, seed: int) -> list[float]:
    """Return ||U U' - V V'||_F of unweighted, weighted r, weighted t and pooled, n rows a site."""
    rng = np.random.default_rng([seed, n])
    sites = [X[rng.integers(len(X), size=n)] for _ in range(N_SITES)]
    found = [
        average(sites, R, R, "unweighted").components_.T,
        average(sites, R, R).components_.T,
        average(sites, R, T).components_.T,
        pooled(sites, R),
    ]
    return [float(np.linalg.norm(U @ U.T - V @ V.T)) for V in found]


def figure2(options: argparse.Namespace) -> list[str]:
    """Measure the errors of subspaces of real data: Table 1 and Figure 2."""
    data = tables(options)
    ours = {name: f"{len(X)} x {X.shape[1]}, {R}, {T}" for name, X in data.items()}
    sets = PUBLISHED | ours
    lines = [[name, PUBLISHED.get(name, "-"), ours.get(name, "-")] for name in sets]
    show("Table 1: N x d, r, t", ["data", "paper", "ours"], lines)
    print(ABOUT_DATA)
    sizes = [20, 100] if options.quick else [20, 50, 100, 200, 500]
    names = ["unweighted", "weighted r", "weighted t", "pooled"]
    rows, panels, notes = [], {}, []
    for name, X in data.items():
        U = top_eigen(X.T @ X, R)[1]
        seeds, paper = range(options.seeds), NO_NUMBER if name in PUBLISHED else "not in it"
        runs = np.array([[subspace_errors(X, U, n, s) for s in seeds] for n in sizes])
        means, shares = runs.mean(axis=1), 100 * in_order(runs).mean(axis=1)
        for n, mean, share in zip(sizes, means, shares, strict=True):
            cells = [f"{value:.4f}" for value in mean]
            verdict = "yes" if in_order(mean) else "no"
            rows.append([name, str(n), paper, *cells, verdict, f"{share:.0f} %"])
        panels[name] = dict(zip(names, means.T, strict=True))
        notes.append(
            f"{name}: means in order in {in_order(means).sum()} of {len(sizes)} cells, single runs "
            f"in {shares.mean():.0f} % ({shares.min():.0f} to {shares.max():.0f} %)"
        )
    if data:
        title = (
            f"Figure 2: {N_SITES} sites, n rows each drawn with replacement, r={R}, t={T}, mean of "
        )
        title += f"{options.seeds} runs of ||UU'-VV'||_F. In order: t < r < unweighted."
        show(title, ["data", "n", "paper", *names, "mean in order", "runs in order"], rows)
        print("\n".join(notes))
    if data and options.figures:
        draw(options.figures / "averaging-figure2.png", sizes, panels, "mean of ||UU' - VV'||")
    return []


def in_order(errors: np.ndarray) -> np.ndarray:
    """Return whether weighted t < weighted r < unweighted, ``(..., 4)`` errors in, ``(...)`` out."""
    return (errors[..., 2] < errors[..., 1]) & (errors[..., 1] < errors[..., 0])


def server(options: argparse.Namespace) -> list[str]:
    """Time the coordinator's work with the Gram matrix of all columns and with a d x d matrix."""
    d, t = (2000 if options.quick else 20000), 10
    rng = np.random.default_rng(0)
    common = np.linspace(2, 1, R)[:, None] * rng.standard_normal((R, d))
    sites = []
    for _ in range(N_SITES):
        rows = rng.standard_normal((2 * t, R)) @ common + rng.standard_normal((2 * t, d)) / 10
        sites.append(Summary.of(rows, t, n_spare=0, center=False))
    times = [time.perf_counter()]
    merged = merge_in_tree(sites)
    times.append(time.perf_counter())
    columns = np.vstack([site.singular_values[:, None] * site.directions for site in sites])
    # a copy, so that this is a plain product: OpenBLAS's threaded X'X can crash at this size
    whole = columns.T @ columns.copy()
    times.append(time.perf_counter())
    _, V = eigsh(whole, R, v0=rng.standard_normal(d))
    times.append(time.perf_counter())
    by_gram, forming, decomposing = np.diff(times)
    steps = {
        "Gram of columns, merge_in_tree": f"{by_gram:.3f} s",
        "d x d: forming it": f"{forming:.3f} s",
        f"d x d: its {R} leading eigenvectors by ARPACK": f"{decomposing:.3f} s",
        "ratio": f"{(forming + decomposing) / by_gram:.1f}",
    }
    title = f"Server: {d} features, {N_SITES} sites with {t} columns each, one run"
    lines = [[step, "no number", found] for step, found in steps.items()]
    show(title, ["step", "paper", "ours"], lines)
    angle = sine_of_angle(merged.directions[:R].T, V)
    print("ARPACK favors d x d: a whole eigendecomposition takes far longer.")
    return judge("both ways give the same directions", angle < 1e-6, f"sine {angle:.0e}")


def draw(path: Path, sizes: list[int], panels: dict[str, dict[str, list[float]]], y: str) -> None:
    """Draw errors against the rows of a site, a panel for each title, a curve for each method."""
    curves = {
        title: {name: (sizes, errors) for name, errors in found.items()}
        for title, found in panels.items()
    }
    names = list(dict.fromkeys(name for found in panels.values() for name in found))
    ours = [name for name in names if name.startswith("weighted")]
    style = {"ours": ours, "behind": ["pooled"], "log": "xy"}
    draw_panels(path, curves, xlabel="rows a site", ylabel=y, **style)


SECTIONS = {"figure1": figure1, "gap": gap, "figure2": figure2, "server": server}

if __name__ == "__main__":
    run_sections(__doc__, SECTIONS, seeds=40, quick_seeds=3, on_all_threads={"server"})
