"""Time streams against scikit-learn's IncrementalPCA and gensim's LsiModel, as ratios in one run.

    python benchmarks/streaming.py                  all cases
    python benchmarks/streaming.py tall memory      some of them
    python benchmarks/streaming.py --quick          small sizes, to see that it runs

In each case, the contestants take turns with equal batch sizes and numbers of components, and medians
are compared. The table also shows how much more variance the components leave unexplained than the best
components do. `counts` installs gensim if it is missing, except with ``--quick``. `memory` runs in a
process of its own, and feeds a stream a million rows that are made on the fly.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterable

import numpy as np
import scipy.sparse as sp
from sklearn.decomposition import IncrementalPCA

from fedpca import FederatedPCA, StreamingPCA
from racing import race, show


def batches_of(n_batches: int, rows: int, d: int) -> list[np.ndarray]:
    """Draw batches of rows about a mean, with a spectrum that falls slowly."""
    rng = np.random.default_rng(0)
    deviations, mean = np.geomspace(5, 0.1, d), rng.standard_normal(d)
    return [rng.standard_normal((rows, d)) * deviations + mean for _ in range(n_batches)]


def fed(model: object, batches: Iterable[object]) -> np.ndarray:
    """Feed all batches, and return the components."""
    for batch in batches:
        model.partial_fit(batch)
    return model.components_


def excess(batches: list, components: dict[str, np.ndarray], center: bool = True) -> None:
    """Print by what percentage each contestant leaves more variance than the best components."""
    k = len(next(iter(components.values())))
    best = FederatedPCA(k, center=center, solver="lanczos", random_state=0).fit(batches)

    def left(C: np.ndarray) -> float:
        total = carried = 0.0
        for batch in batches:
            scores = batch @ C.T - (best.mean_ @ C.T)
            if sp.issparse(batch):  # not centered
                total += float((batch.data**2).sum())
            else:
                total += float(np.linalg.norm(batch - best.mean_) ** 2)
            carried += float(np.linalg.norm(scores) ** 2)
        return total - carried

    least = left(best.components_)
    for name, C in components.items():
        print(
            f"  {name:32s}left of the variance: {100 * (left(C) / least - 1):.4f} % above the best"
        )


def against_incremental(n_batches: int, rows: int, d: int, k: int, faster: float) -> None:
    """Run one race at equal batch size and number of components."""
    batches = batches_of(n_batches, rows, d)
    found: dict[str, np.ndarray] = {}

    def run(name: str, model: Callable[[], object]) -> Callable[[], object]:
        return lambda: found.update({name: fed(model(), batches)})

    contestants = {
        "fedpca": run("fedpca", lambda: StreamingPCA(k)),
        "IncrementalPCA": run("IncrementalPCA", lambda: IncrementalPCA(k)),
    }
    race({"fedpca": contestants["fedpca"]}, 1)  # so that work done once in a process does not count
    title = f"{n_batches} batches of {rows} x {d}, k={k}: at least {faster:g} x as fast"
    show(title, race(contestants, 3), {"IncrementalPCA": 1 / faster})
    excess(batches, found)


def tall(quick: bool) -> None:
    against_incremental(*((10, 100, 100, 5) if quick else (200, 500, 500, 20)), 20)


def wide(quick: bool) -> None:
    against_incremental(*((5, 50, 1500, 5) if quick else (20, 100, 10_000, 20)), 5)


def word_counts(n: int, d: int, topics: int = 60, length: int = 120) -> sp.csr_array:
    """Draw sparse counts: documents of a topic model whose words follow Zipf's law."""
    rng = np.random.default_rng(0)
    rank_of_word = 1 / np.arange(1, d + 1)
    cumulative = np.cumsum(rank_of_word / rank_of_word.sum())
    shuffled = np.array([rng.permutation(d) for _ in range(topics)])
    mixture = np.cumsum(rng.dirichlet(np.full(topics, 0.05), n), axis=1)
    topic = (rng.random((n, length, 1)) > mixture[:, None, :]).sum(axis=2).ravel()
    drawn = np.searchsorted(cumulative, rng.random(n * length)).clip(0, d - 1)
    is_common = rng.random(n * length) < 0.5
    words = np.where(is_common, drawn, shuffled[topic.clip(0, topics - 1), drawn])
    document = np.repeat(np.arange(n), length)
    counts = sp.csr_array((np.ones(n * length), (document, words)), shape=(n, d))
    counts.sum_duplicates()
    return counts


def counts(quick: bool) -> None:
    if importlib.util.find_spec("gensim") is None:
        if quick:
            print("\nword counts: gensim is not installed")
            return
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "gensim"], check=True)
    from gensim.models import LsiModel

    n, d, k, rows = (600, 2000, 5, 200) if quick else (20_000, 20_000, 20, 1000)
    X = word_counts(n, d)
    batches = [X[i : i + rows] for i in range(0, n, rows)]
    columns = [sp.csc_matrix(batch.T) for batch in batches]
    found: dict[str, np.ndarray] = {}

    def ours() -> None:
        found["fedpca"] = fed(StreamingPCA(k, center=False), batches)

    def theirs() -> None:
        names = {i: str(i) for i in range(d)}
        model = LsiModel(num_topics=k, id2word=names, random_seed=0)
        for part in columns:
            model.add_documents(part)
        found["gensim LsiModel"] = np.linalg.qr(model.projection.u)[0].T

    title = f"word counts, {n // rows} batches of {rows} x {d}, {X.nnz / n:.0f} words each, k={k}"
    show(title, race({"fedpca": ours, "gensim LsiModel": theirs}, 3), {"gensim LsiModel": 1.0})
    excess(batches, found, center=False)


STREAM = """
import sys
import numpy as np
import sklearn.decomposition
from fedpca import StreamingPCA

def resident(name):
    with open("/proc/self/status") as file:
        return int(next(line.split()[1] for line in file if line.startswith(name))) / 1024

n_batches, d = int(sys.argv[1]), int(sys.argv[2])
rng, deviations = np.random.default_rng(0), np.geomspace(5, 0.1, d)
before, model = resident("VmRSS"), StreamingPCA(20)
for _ in range(n_batches):
    batch = rng.standard_normal((500, d))
    batch *= deviations
    model.partial_fit(batch)
print(model.n_samples_seen_, model.components_.shape[1], resident("VmHWM") - before)
"""


def memory(quick: bool) -> None:
    shape = ("4", "100") if quick else ("2000", "1000")
    command = [sys.executable, "-c", STREAM, *shape]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    n, d, megabytes = done.stdout.split()
    print(
        f"\na stream of {int(n):,} x {d}: {float(megabytes):.0f} MB above the interpreter (bound 100)"
    )


CASES = {"tall": tall, "wide": wide, "counts": counts, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all by default")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    for name in options.cases or CASES:
        CASES[name](options.quick)


if __name__ == "__main__":
    main()
