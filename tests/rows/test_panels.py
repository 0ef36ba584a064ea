"""Very wide rows are multiplied by panels, in little memory and with the same bits on any machine."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from fedpca.linalg import blas_threads
from fedpca.rows import in_memory, panels
from fedpca.rows.open import open_rows
from fedpca.rows.standardized import Frame, StandardizedRows

N, D, K = 200, 100_000, 10
PEAK = """
import re, sys
import numpy as np
from fedpca import FederatedPCA
from fedpca.solvers import Lanczos

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])

n, d, k = map(int, sys.argv[1:])
X = np.random.default_rng(0).integers(0, 3, (n, d), dtype=np.int8)
FederatedPCA(2, solver="lanczos", max_rounds=1).fit(X[:, :9000])  # imports and starts threads
before = peak()
run = FederatedPCA(k, random_state=0).fit(np.array_split(X, 4)).run_
print(run.solver, run.solver_rounds, peak() - before)
"""


@pytest.mark.process
@pytest.mark.slow
def test_a_fit_takes_the_memory_of_a_few_blocks_and_no_copy_of_the_rows():
    command = [sys.executable, "-W", "ignore", "-c", PEAK, str(N), str(D), str(K)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    solver, rounds, peak = done.stdout.split()
    assert solver == "lanczos"
    assert int(rounds) > 8  # the space of the blocks was full
    block = 8 * D * K
    # 2 GB for a million features; the rows would take 20 of these blocks in float64
    assert int(peak) < 25 * block


def test_the_number_of_threads_changes_no_bit(monkeypatch):
    monkeypatch.setattr(in_memory, "WIDE_FEATURES", 100)
    monkeypatch.setattr(panels, "TILE_COLUMNS", 7)
    rng = np.random.default_rng(0)
    X, Z = rng.standard_normal((300, 100)).astype(np.float32) + 1, rng.standard_normal((100, 3))
    frame = Frame(X.mean(axis=0, dtype=float), np.ones(100), sums=X.sum(axis=0, dtype=float))
    products = []
    for threads in (1, 3):
        monkeypatch.setattr(blas_threads, "n_threads", lambda threads=threads: threads)
        view = StandardizedRows(open_rows(X), frame, max_cache_bytes=0)
        products.append((view.gram_times(Z).tobytes(), view.squares().tobytes()))
    assert products[0] == products[1]


@pytest.mark.parametrize("offset", [0.1, 1e8])
def test_a_mean_is_subtracted_from_products_only_where_few_bits_cancel(offset, monkeypatch):
    monkeypatch.setattr(in_memory, "WIDE_FEATURES", 6)
    monkeypatch.setattr(panels, "TILE_COLUMNS", 2)
    rng = np.random.default_rng(1)
    X, Z = rng.standard_normal((50, 6)), rng.standard_normal((6, 2))
    X[:, 2:4] += offset
    X[:, 5] = 0.3
    mean = X.mean(axis=0)
    view = StandardizedRows(
        open_rows(X), Frame(mean, np.ones(6), sums=X.sum(axis=0)), max_cache_bytes=0
    )
    A = X - mean
    np.testing.assert_allclose(view.gram_times(Z), A.T @ (A @ Z), rtol=1e-11, atol=1e-11)
    is_far = [panel.is_far for group in view._panels._groups for panel in group]
    assert is_far == [False, offset > 1, True]


def test_means_that_point_along_a_direction_add_no_rounding_error(monkeypatch):
    monkeypatch.setattr(in_memory, "WIDE_FEATURES", 100)
    monkeypatch.setattr(panels, "TILE_COLUMNS", 7)
    d = 3000
    X = np.random.default_rng(0).standard_normal((40, d)) + 12.0
    mean, Z = X.mean(axis=0), np.full((d, 1), 1 / np.sqrt(d))
    scores = panels.Panels(mean, np.ones(d, bool)).scores(X, Z)
    exact = [math.fsum(row) / np.sqrt(d) for row in X - mean]
    # a score is near one, but the mean's is over 600, of which no bit may remain
    np.testing.assert_allclose(scores[:, 0], exact, rtol=0, atol=5e-14)
