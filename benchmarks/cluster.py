"""Time a fit on a Dask cluster, and compare it with a minimal sketch of PCA, dask-ml, and Spark.

    python benchmarks/cluster.py                     2e6 and 4e6 rows of 200 features, from Parquet
    python benchmarks/cluster.py --peers PYTHON      the same, with the peers installed for this Python
    python benchmarks/cluster.py --quick             a tenth of the rows
    python benchmarks/cluster.py --rows 1000000      this many rows, and twice as many

Two workers, each a process with one thread, read rows from files of 100,000 rows. The contestants take
turns, each in a process with its own cluster, and the medians are compared. A first fit to a few rows
imports what is needed, and only a second fit is timed. On a busy machine, the workers' processor
seconds are more reliable; the table has the smallest value over all turns. Memory is the sum of the
workers' peaks. Spark runs in local mode with two threads, and everything that Java uses is counted.

The sketch is the least that a PCA must do: each task reads a file and returns its row count, column
sums, and X'X, and the client adds them up. It centers by subtracting from X'X, so it loses digits if
the mean is far from zero.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from family import family, processor_s, resident

FEATURES, COMPONENTS, ROWS_PER_FILE, FEW = 200, 20, 100_000, 1000
BOUNDS = {"sketch": 1.3, "dask-ml": 0.1, "dask-ml randomized": 0.1, "Spark": 0.1}
SPARK_MEMORY = "4g"


def write(folder: Path, n: int) -> None:
    """Write float64 rows to files of equal size; variances decrease slowly across features."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [f"f{j}" for j in range(FEATURES)]
    deviations = np.linspace(3, 0.5, FEATURES)
    for i in range(n // ROWS_PER_FILE):
        rng = np.random.default_rng(i)
        rows = 1 + rng.standard_normal((ROWS_PER_FILE, FEATURES)) * deviations
        table = pa.table(dict(zip(names, rows.T, strict=True)))
        # no number occurs twice, so a dictionary would only enlarge the file
        path = folder / f"part-{i:02}.parquet"
        pq.write_table(table, path, compression="none", use_dictionary=False)
        if i == 0:
            (folder / "few").mkdir()
            for j in range(2):
                few = table.slice(j * FEW, FEW)
                pq.write_table(few, folder / "few" / f"part-{j}.parquet")


def fedpca(client: Any, pattern: str) -> np.ndarray:
    from fedpca import FederatedPCA, Federation

    with Federation.dask(client, pattern) as fed:
        return FederatedPCA(COMPONENTS).fit(fed).components_


def moments(path: Path) -> tuple[int, np.ndarray, np.ndarray]:
    import pyarrow.parquet as pq

    rows = pq.read_table(path).to_pandas().to_numpy()
    return len(rows), rows.sum(axis=0), rows.T @ rows


def sketch(client: Any, pattern: str) -> np.ndarray:
    folder = Path(pattern).parent
    futures = client.map(moments, sorted(folder.glob("*.parquet")), pure=False)
    n, total, squares = 0, 0.0, 0.0
    for own_n, own_total, own_squares in client.gather(futures):
        n, total, squares = n + own_n, total + own_total, squares + own_squares
    covariance = squares - np.outer(total, total) / n
    return np.linalg.eigh(covariance)[1][:, : -COMPONENTS - 1 : -1].T


def dask_ml(client: Any, pattern: str, solver: str = "tsqr") -> np.ndarray:
    import dask.dataframe as dd
    from dask_ml.decomposition import PCA

    rows = dd.read_parquet(pattern).to_dask_array(lengths=True)
    return np.asarray(PCA(COMPONENTS, svd_solver=solver, random_state=0).fit(rows).components_)


def dask_ml_randomized(client: Any, pattern: str) -> np.ndarray:
    return dask_ml(client, pattern, "randomized")


def spark(session: Any, pattern: str) -> np.ndarray:
    from pyspark.ml.feature import PCA, VectorAssembler

    frame = session.read.parquet(pattern)
    assembled = VectorAssembler(inputCols=frame.columns, outputCol="x").transform(frame)
    model = PCA(k=COMPONENTS, inputCol="x", outputCol="y").fit(assembled.select("x"))
    return np.asarray(model.pc.toArray().T)


Usage = Callable[[], tuple[float, int]]  # processor seconds so far, and the peak of memory

CONTESTANTS: dict[str, Callable[[Any, str], np.ndarray]] = {
    "fedpca": fedpca,
    "sketch": sketch,
    "dask-ml": dask_ml,
    "dask-ml randomized": dask_ml_randomized,
    "Spark": spark,
}


def used() -> tuple[float, int]:
    """Return the processor seconds of a worker so far, and the peak of its memory."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def contest(name: str, folder: Path) -> None:
    """Fit once as a warm-up and once to be timed, and print the outcome as JSON."""
    fit, all_rows = CONTESTANTS[name], str(folder / "*.parquet")
    with spark_session() if name == "Spark" else dask_cluster() as (engine, usage):
        fit(engine, str(folder / "few" / "*.parquet"))
        before, _ = usage()
        began = time.perf_counter()
        components = fit(engine, all_rows)
        seconds = time.perf_counter() - began
        after, memory = usage()
    outcome = {
        "seconds": seconds,
        "cpu": after - before,
        "bytes": memory,
        "components": components.tolist(),
    }
    print(json.dumps(outcome))


@contextlib.contextmanager
def dask_cluster() -> Iterator[tuple[Any, Usage]]:
    """Start two workers, each a process with one thread."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):

        def usage() -> tuple[float, int]:
            each = client.run(used).values()
            return sum(seconds for seconds, _ in each), sum(memory for _, memory in each)

        yield client, usage


@contextlib.contextmanager
def spark_session() -> Iterator[tuple[Any, Usage]]:
    """Start Spark with two threads."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.memory", SPARK_MEMORY).getOrCreate()

    def usage() -> tuple[float, int]:
        return processor_s(), sum(resident("VmHWM", pid) for pid in family()[1:])

    yield session, usage
    session.stop()


def run(name: str, folder: Path, python: str) -> dict[str, Any] | None:
    """Let a contestant fit in a process of its own; return None if it fails or is not installed."""
    command = [python, __file__, "--contest", name, "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"  {name}: {done.stderr.strip().splitlines()[-1]}", flush=True)
        return None
    outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return outcome


def sine(a: Any, b: Any) -> float:
    """Return the sine of the largest angle between two subspaces with orthonormal rows."""
    A, B = np.array(a), np.array(b)
    return float(np.linalg.norm(B - B @ A.T @ A, ord=2))


def compare(n: int, turns: int, pythons: dict[str, str]) -> float:
    """Fit n rows with each contestant, print the table, and return the memory of fedpca."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, n)
        outcomes: dict[str, list[dict[str, Any]]] = {}
        for turn in range(turns):
            for contestant, python in pythons.items():
                if turn and contestant not in ("fedpca", "sketch"):
                    continue  # these take long, and one turn is enough for a bound of ten
                outcome = run(contestant, folder, python)
                if outcome is not None:
                    outcomes.setdefault(contestant, []).append(outcome)
    print(f"{n:,} x {FEATURES} float64 from Parquet, k={COMPONENTS}, 2 workers of one thread")
    seconds = {k: statistics.median(o["seconds"] for o in v) for k, v in outcomes.items()}
    cpu = {k: min(o["cpu"] for o in v) for k, v in outcomes.items()}
    memory = {k: max(o["bytes"] for o in v) for k, v in outcomes.items()}
    for contestant in outcomes:
        angle = sine(outcomes["fedpca"][0]["components"], outcomes[contestant][0]["components"])
        line = (
            f"  {contestant:18} {seconds[contestant]:7.2f} s, processors {cpu[contestant]:6.2f} s, "
        )
        line += f"{memory[contestant] / 1e6:6.0f} MB"
        if contestant != "fedpca":
            ratio = seconds["fedpca"] / seconds[contestant]
            line += f"  fedpca / this {ratio:.2f} (bound {BOUNDS[contestant]:.2f})"
            line += f", processors {cpu['fedpca'] / cpu[contestant]:.2f}"
            line += f", memory {memory['fedpca'] / memory[contestant]:.2f}, sine {angle:.0e}"
        print(line, flush=True)
    return memory["fedpca"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--rows", type=int, help="a multiple of 100,000")
    parser.add_argument("--turns", type=int, default=3, help="fits of each contestant")
    parser.add_argument("--peers", help="a Python that has the peers")
    parser.add_argument("--contest", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.contest:
        contest(given.contest, given.folder)
        return
    pythons = dict.fromkeys(("fedpca", "sketch"), sys.executable)
    if given.peers:
        pythons |= dict.fromkeys(list(CONTESTANTS)[2:], given.peers)
    n = given.rows or (200_000 if given.quick else 2_000_000)
    once = compare(n, given.turns, pythons)
    twice = compare(2 * n, 1, dict(list(pythons.items())[:1]))
    print(f"memory for twice the rows / for the rows: {twice / once:.2f}")
    if not given.peers:
        print(
            "dask-ml and Spark were left out; use --peers PYTHON for an environment that has them"
        )


if __name__ == "__main__":
    main()
