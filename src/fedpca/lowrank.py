"""Rows put below a matrix that is known by its leading directions.

A matrix of ``d`` columns is carried as ``diag(s) C`` with orthonormal rows ``C``, ``(r, d)``. With rows
``Y``, ``(b, d)``, put below it,

    M = [diag(s) C; Y],    M'M = C' diag(s^2) C + Y'Y,

and what is carried on are the leading right singular vectors and the singular values of ``M``: one
step of SPCA (Grammenos et al., "Federated PCA with adaptive rank estimation", Algorithm 3), and, with
the rows ``diag(s_2) C_2`` of another such matrix as ``Y``, the merging of two subspaces (Algorithm
2).

The fast way takes them from the small Gram matrix

    M M' = [diag(s^2)      diag(s) C Y']
           [Y C' diag(s)   Y Y'        ]

of ``r + b`` rows and needs no more than four products with the long side. Squaring halves the digits,
so where the directions to be kept reach below a millionth of the largest, the safe way is taken:
project ``C`` out of ``Y`` twice and decompose what is left.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from fedpca.blocks import Centred
from fedpca.linalg import complete_basis, orth_against, threads_for
from fedpca.message import Array
from fedpca.rows import is_sparse

ILL_CONDITIONED = 1e6  # ratio of singular values from which on a Gram matrix is not enough
FEWEST_AT_ONCE = 128  # rows that are worth one decomposition
FEWEST_SAFELY = 32  # rows that the safe way takes at once
EPS = float(np.finfo(np.float64).eps)


def rows_at_once(room: int) -> int:
    """How many rows are worth one decomposition, where so many directions are kept."""
    return max(FEWEST_AT_ONCE, 2 * room)


class LowRank(NamedTuple):
    """A matrix ``M`` of d columns, by its leading directions.

    ``M'M = C' diag(s^2) C + T + E`` with T and E positive semidefinite, of norms at most ``tail`` and
    ``missing``: T is what the latest truncation cut off, orthogonal to C and with no eigenvalue above
    the last one kept, and E is what those before it did.
    """

    directions: Array  # C, (r, d), orthonormal rows
    values: Array  # s, (r,), falling
    tail: float = 0.0
    missing: float = 0.0

    @classmethod
    def none(cls, d: int) -> Self:
        """The matrix without rows."""
        return cls(np.empty((0, d)), np.empty(0))

    @property
    def dropped(self) -> float:
        """By how much an eigenvalue of M'M may exceed what is known of it."""
        return self.tail + self.missing

    def append_block(self, Y: Centred, row: Array, room: int) -> LowRank:
        """The matrix with any number of rows and one more below it, as many at once as pays."""
        step = rows_at_once(room)
        if is_sparse(Y.rows):
            step *= 2  # they cost little beside the directions, which are written anew each time
        elif self.directions.shape[1] <= step:
            step = max(1, Y.n_rows)  # which are reduced to a triangle first
        found = self
        for start in range(0, Y.n_rows, step):
            part = Centred(Y.rows[start : start + step], Y.shift)
            found, row = found.append(part, row, room), row[:0]
        return found

    def append(self, Y: Centred, more: Array, room: int) -> LowRank:
        """The matrix with the rows of Y and some dense ones, ``(m, d)``, below it.

        At most ``room`` directions are kept.
        """
        C, s, d = self.directions, self.values, self.directions.shape[1]
        if not Y.n_rows + len(more):
            return self.truncate(room)
        if not is_sparse(Y.rows) and Y.n_rows + len(more) > 2 * d:
            # a triangle holds all that so many rows say of so few columns
            Y, more = Centred(np.linalg.qr(_below(Y, more), mode="r")), more[:0]
        with threads_for(C, Y.rows):
            found = append_by_gram(C, s, Y, more, room)
            if found is not None:
                return found._replace(missing=self.dropped)
            return self._append_safely(Y, more, room)

    def _append_safely(self, Y: Centred, more: Array, room: int) -> LowRank:
        """The safe way; of sparse rows no more is made dense at a time than is carried."""
        found = self
        step = max(room, FEWEST_SAFELY) if is_sparse(Y.rows) else max(1, Y.n_rows)
        for start in range(0, max(1, Y.n_rows), step):
            part = Centred(Y.rows[start : start + step], Y.shift)
            rows, more = _below(part, more), more[:0]
            added = append_safely(found.directions, found.values, rows, room)
            found = added._replace(missing=found.dropped)
        return found

    def truncate(self, room: int) -> LowRank:
        """The matrix with at most ``room`` directions."""
        gone = self.values[room : room + 1]
        # what is cut off twice in a row is orthogonal, so the norms do not add up
        tail = max(self.tail, float(gone[0]) ** 2) if gone.size else self.tail
        return LowRank(self.directions[:room], self.values[:room], tail, self.missing)

    def discount(self, factor: float) -> LowRank:
        """The matrix times ``factor``."""
        tail, missing = factor**2 * self.tail, factor**2 * self.missing
        return LowRank(self.directions, factor * self.values, tail, missing)

    def leading(self, k: int) -> tuple[Array, Array]:
        """The k leading directions in columns, ``(d, k)``, and the eigenvalues along them.

        Behind those that are known come others, orthogonal to them, of eigenvalue zero.
        """
        eigenvalues = np.zeros(k)
        found = self.values[:k] ** 2
        eigenvalues[: len(found)] = found
        return complete_basis(self.directions[:k].T, k), eigenvalues

    def rows(self) -> Array:
        """Rows with the same products: ``diag(s) C``, ``(r, d)``."""
        return np.asarray(self.values[:, None] * self.directions)


def append_by_gram(C: Array, s: Array, Y: Centred, more: Array, room: int) -> LowRank | None:
    """`LowRank.append` the fast way, or None where directions to be kept are too unlike in size."""
    r, b, m = len(s), Y.n_rows, len(more)
    G = np.empty((r + b + m, r + b + m))
    G[:r, :r] = np.diag(s**2)
    G[r : r + b, :r] = Y.times(C.T) * s
    G[r : r + b, r : r + b] = Y.outer()
    if m:
        G[r + b :, :r] = (more @ C.T) * s
        G[r + b :, r : r + b] = Y.times(more.T).T
        G[r + b :, r + b :] = more @ more.T
    values, W = np.linalg.eigh(G, UPLO="L")
    values, W = values[::-1], W[:, ::-1]
    kept = min(room, len(values), C.shape[1])
    if not kept or values[kept - 1] <= values[0] / ILL_CONDITIONED**2:
        return None
    sigma = np.sqrt(values[:kept])
    W = W[:, :kept].T / sigma[:, None]
    directions = Y.add_combined(np.ascontiguousarray(W[:, r : r + b]), (W[:, :r] * s) @ C)
    if m:
        directions += W[:, r + b :] @ more
    tail = max(0.0, float(values[kept])) if kept < min(len(values), C.shape[1]) else 0.0
    return LowRank(_orthonormal(directions), sigma, tail)


def append_safely(C: Array, s: Array, Y: Array, room: int) -> LowRank:
    """`LowRank.append` the way that keeps directions down to rounding, and drops those below it."""
    r = len(s)
    rounding = 10 * EPS * max(float(s.max(initial=0.0)), float(np.linalg.norm(Y)))
    Q, B, H = orth_against(C.T, Y.T, rounding)  # Y' = C'H + Q B
    X = np.zeros((r + len(B), r + len(Y)))
    X[:r, :r] = np.diag(s)
    X[:r, r:] = H
    X[r:, r:] = B
    W, sigma, _ = np.linalg.svd(X, full_matrices=False)
    kept = min(room, int((sigma > rounding).sum()))
    tail = float(sigma[room]) ** 2 if room < len(sigma) else 0.0
    directions = W[:r, :kept].T @ C + W[r:, :kept].T @ Q.T
    return LowRank(_orthonormal(directions), sigma[:kept], tail)


def _below(Y: Centred, more: Array) -> Array:
    return np.vstack([Y.dense(), more]) if len(more) else Y.dense()


def _orthonormal(C: Array) -> Array:
    """Rows that are orthonormal but for rounding, without it: else it grows from block to block."""
    if not C.size:
        return C
    return np.asarray(np.linalg.inv(np.linalg.cholesky(C @ C.T)) @ C)
