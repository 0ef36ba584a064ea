"""Time estimators while other processes are busy, with the usual number of BLAS threads and with one.

    python benchmarks/busy.py                  eight busy processes
    python benchmarks/busy.py --busy 4
    python benchmarks/busy.py --quick          each fit once, to see that it runs

Idle BLAS threads spin, and a product on several threads waits for threads that do not get a core. Even
so, fits should take at most 3 times as long as on one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings

import numpy as np

from fedpca import FederatedPCA, PersonalizedPCA, RobustPCA, StreamingPCA

BOUND = 3.0


def fits() -> dict[str, object]:
    """Return fits of each estimator to a table of ordinary size, and fits to a long table."""
    rng = np.random.default_rng(0)
    low = rng.standard_normal((500, 10)) @ rng.standard_normal((10, 500))
    outliers = (rng.random(low.shape) < 0.05) * rng.uniform(-50, 50, low.shape)
    noisy = np.array_split(low + rng.standard_normal(low.shape), 5)
    long = rng.standard_normal((20000, 200))
    longer = np.array_split(
        rng.standard_normal((100_000, 5)) @ rng.standard_normal((5, 100))
        + rng.standard_normal((100_000, 100)),
        4,
    )
    return {
        "FederatedPCA, covariance": lambda: FederatedPCA(10, solver="covariance").fit(noisy),
        "FederatedPCA, lanczos": lambda: FederatedPCA(10, solver="lanczos").fit(noisy),
        "PersonalizedPCA": lambda: PersonalizedPCA(3, 2).fit(noisy),
        "RobustPCA": lambda: RobustPCA(10).fit(np.array_split(low + outliers, 5)),
        "StreamingPCA": lambda: StreamingPCA(10, batch_size=100).fit(long),
        "10^5 rows, covariance": lambda: FederatedPCA(5, solver="covariance").fit(longer),
        "10^5 rows, tsqr": lambda: FederatedPCA(5, solver="tsqr").fit(longer),
        "10^5 rows, auto": lambda: FederatedPCA("auto").fit(longer),
        "10^5 rows, RobustPCA": lambda: RobustPCA(5).fit(longer),
    }


def timed(repeats: int) -> dict[str, float]:
    """Return the median seconds of each fit in this process."""
    warnings.simplefilter("ignore")
    seconds = {}
    for name, fit in fits().items():
        fit()
        times = []
        for _ in range(repeats):
            began = time.perf_counter()
            fit()
            times.append(time.perf_counter() - began)
        seconds[name] = float(np.median(times))
    return seconds


def elsewhere(repeats: int, threads: str | None) -> dict[str, float]:
    """Run `timed` in a new process, since BLAS sets its number of threads at the start."""
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    if threads is not None:
        environment["OPENBLAS_NUM_THREADS"] = threads
    command = [sys.executable, __file__, "--measure", str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--busy", type=int, default=8, help="number of busy processes")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(timed(options.measure)))
        return
    repeats = 1 if options.quick else 5
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)
    ]
    try:
        as_it_is, one = elsewhere(repeats, None), elsewhere(repeats, "1")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    print(f"Next to {options.busy} busy processes, on {os.cpu_count()} cores:")
    for name, seconds in as_it_is.items():
        ratio = seconds / one[name]
        print(f"  {name:25} {seconds:7.3f} s, {ratio:5.2f} of one thread (bound {BOUND:.0f})")


if __name__ == "__main__":
    main()
