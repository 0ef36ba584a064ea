"""The scatter matrix of a stream, kept whole: exact, and cheapest where there are few features.

    S <- S + Y'Y,    Y the rows of a block about their mean and the row that joins the means.

A low-rank update decomposes a small matrix for every block; this only multiplies, and decomposes when
somebody asks. It costs ``d^2`` numbers, whatever the length of the stream.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg.blas import dsyrk

from fedpca.blocks import Centred, Mean, NotFinite, about_own_mean
from fedpca.linalg import top_eigen
from fedpca.lowrank import EPS, LowRank
from fedpca.message import Array
from fedpca.rows import BLOCK_BYTES, Block, is_sparse

MEMORY = BLOCK_BYTES  # that the matrix may take: as much as one block of rows


def scatter_pays(d: int, room: int, rows_at_once: int) -> bool:
    """Whether the whole matrix fits, and costs less for each row than ``room`` directions do.

    Counted in multiplications of a product. Reading and writing the matrix once for each block takes
    as long as 16 rows do, and each of the cube of a decomposition as long as 100 multiplications
    (both on a machine with 2 cores, where `benchmarks/streaming.py` shows what comes of it).
    """
    b = max(1, rows_at_once)
    whole = d**2 * (1 + 16 / b)
    low_rank = d * (4 * room + b + 2 * room * (room + b) / b) + 100 * (room + b) ** 3 / b
    return 8 * d**2 <= MEMORY and whole < low_rank


class Scatter:
    """The scatter of all rows so far, and their mean."""

    def __init__(self, d: int) -> None:
        self.mean = Mean.none(d)
        self.lower = np.zeros((d, d), order="F")  # the upper triangle holds nothing of meaning

    def update(self, block: Block, *, center: bool, weight_before: float = 1.0) -> None:
        """Take in rows as they are, about zero unless ``center``, those before them discounted."""
        squares = weight_before * self.squares()
        part = about_own_mean(block, center=center, squares_before=squares)
        self.add(*part, weight_before=weight_before)

    def add(self, mean: Mean, rows: Centred, *, weight_before: float = 1.0) -> None:
        """Take in rows about their mean, or none of them where their squares overflow."""
        joined, row = self.mean._replace(n=weight_before * self.mean.n).join(mean)
        with np.errstate(over="ignore"):
            others = float(np.trace(self.lower)) + float(np.sum(row**2))
        if rows.overflows(others):
            raise NotFinite
        if weight_before != 1:
            self.lower *= weight_before
        if is_sparse(rows.rows):
            self.lower += rows.inner()
        else:
            self._add(rows.rows)
            if rows.shift is not None:
                self._add(np.sqrt(rows.n_rows) * rows.shift[None], sign=-1.0)
        self._add(row)
        self.mean = joined

    def absorb(self, other: Scatter) -> None:
        """Take in all rows of another scatter."""
        self.lower += other.lower
        self.mean, row = self.mean.join(other.mean)
        self._add(row)

    def squares(self) -> Array:
        """The sum of squares of each feature about its mean, ``(d,)``."""
        return self.lower.diagonal().copy()

    def leading(self, room: int) -> LowRank:
        """At most ``room`` leading directions of the rows."""
        d = len(self.lower)
        values, vectors = top_eigen(self.lower, min(d, room + 1))
        values = np.maximum(values, 0.0)
        kept = min(room, int((values > d * EPS * values[0]).sum()))
        tail = float(values[room]) if room < len(values) else 0.0
        directions = np.ascontiguousarray(vectors[:, :kept].T)
        return LowRank(directions, np.sqrt(values[:kept]), tail)

    def _add(self, rows: Array, sign: float = 1.0) -> None:
        if len(rows):
            rows = np.ascontiguousarray(rows)
            self.lower = dsyrk(sign, rows.T, beta=1.0, c=self.lower, lower=True, overwrite_c=True)
