"""Maintain the full scatter matrix of a stream, which is exact, and cheapest for few features.

    S <- S + Y'Y,   where Y holds the rows of a block about their mean and the row that joins the means

A low-rank update decomposes a small matrix for every block. The full matrix needs only products, plus a
decomposition on request. It stores ``d^2`` numbers, regardless of the length of the stream.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg.blas import dsyrk

from fedpca.arrays import Array
from fedpca.linalg.blas_threads import threads_for_gram
from fedpca.linalg.dense import top_eigen
from fedpca.rows.centering import Centered, Mean, NotFinite, about_own_mean
from fedpca.rows.in_memory import BLOCK_BYTES, Block, is_sparse
from fedpca.summary.lowrank import EPS, LowRank

DECOMPOSITION = 100  # multiplications for each of the m^3 steps of a decomposition
MAX_SCATTER_BYTES = BLOCK_BYTES  # the matrix may be as large as one block of rows


def scatter_pays(d: int, room: int, rows_at_once: int, n_rows: float = math.inf) -> bool:
    """Return whether the full matrix fits and costs less per row than ``room`` directions.

    ``n_rows`` is the number of all rows, if known; the matrix is decomposed once for all of them.

    Costs are measured in multiplications in a matrix product. Reading and writing the matrix once per
    block costs as much as 16 rows. A decomposition of size m costs 100 multiplications for each of its
    m^3 steps. Both figures were measured with `benchmarks/streaming.py` on a machine with 2 cores.
    """
    b = max(1, rows_at_once)
    whole = d**2 * (1 + 16 / b) + DECOMPOSITION * d**3 / max(1, n_rows)
    low_rank = d * (4 * room + b + 2 * room * (room + b) / b) + DECOMPOSITION * (room + b) ** 3 / b
    return scatter_fits(d) and whole < low_rank


def scatter_fits(d: int) -> bool:
    """Return whether the full matrix takes no more memory than a block of rows."""
    return 8 * d**2 <= MAX_SCATTER_BYTES


class Scatter:
    """The scatter matrix and the mean of all rows added."""

    def __init__(self, d: int) -> None:
        self.mean = Mean.none(d)
        self.lower = np.zeros((d, d), order="F")  # the upper triangle is never used

    def update(self, block: Block, *, center: bool, weight_before: float = 1.0) -> None:
        """Discount earlier rows and add a block about its mean, or about zero without ``center``."""
        mean, rows = about_own_mean(block, center=center, may_shift=True)
        self.add(mean, rows, weight_before=weight_before)

    def add(self, mean: Mean, rows: Centered, *, weight_before: float = 1.0) -> None:
        """Add rows about their mean, or refuse them all if their squares overflow."""
        joined, row = self.mean._replace(n=weight_before * self.mean.n).join(mean)
        with np.errstate(over="ignore"):
            others = float(np.trace(self.lower)) + float(np.sum(row**2))
        # before anything is added, so that a refused block leaves the scatter as it was
        if rows.overflows(others):
            raise NotFinite
        if weight_before != 1:
            self.lower *= weight_before
        if is_sparse(rows.rows):
            self.lower += rows.inner()
        else:
            self._add(rows.rows)
            if rows.shift is not None:
                # a shift is left only if the block is so near the origin that few bits cancel
                self._add(np.sqrt(rows.n_rows) * rows.shift[None], sign=-1.0)
        self._add(row)
        self.mean = joined

    def absorb(self, other: Scatter) -> None:
        """Add all rows from another scatter."""
        self.lower += other.lower
        self.mean, row = self.mean.join(other.mean)
        self._add(row)

    def squares(self) -> Array:
        """Return the sum of squares of each feature about its mean, ``(d,)``."""
        return self.lower.diagonal().copy()

    def leading(self, room: int) -> LowRank:
        """Return at most ``room`` leading directions of the rows."""
        d = len(self.lower)
        values, vectors = top_eigen(self.lower, min(d, room + 1))
        values = np.maximum(values, 0.0)
        # eigenvalues below this are rounding errors of the largest one
        kept = min(room, int((values > d * EPS * values[0]).sum()))
        tail = float(values[room]) if room < len(values) else 0.0
        directions = np.ascontiguousarray(vectors[:, :kept].T)
        return LowRank(directions, np.sqrt(values[:kept]), tail)

    def _add(self, rows: Array, sign: float = 1.0) -> None:
        if len(rows):
            rows = np.ascontiguousarray(rows)
            with threads_for_gram(*rows.shape):
                # computes one triangle only, and adds in place
                self.lower = dsyrk(
                    sign, rows.T, beta=1.0, c=self.lower, lower=True, overwrite_c=True
                )
