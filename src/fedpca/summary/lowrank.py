"""Append rows to a matrix, keeping only its leading directions.

A matrix with d columns is stored as ``diag(s) C``, where C, ``(r, d)``, has orthonormal rows. Appending
the rows Y, ``(b, d)``, gives

    M = [diag(s) C; Y],    M'M = C' diag(s^2) C + Y'Y,

and the leading right singular vectors and singular values of M replace C and s. This is one step of
SPCA (Algorithm 3 in the source). If Y holds the rows ``diag(s_2) C_2`` of a second such matrix, the
same step merges two subspaces (Algorithm 2).

The fast method decomposes the small Gram matrix

    M M' = [diag(s^2)      diag(s) C Y']
           [Y C' diag(s)   Y Y'        ]

with ``r + b`` rows. It needs at most four products along the long side, but squaring halves the number
of accurate digits. If a singular value to be kept is below a millionth of the largest, the safe method
is used instead: it projects C out of Y twice and decomposes the remainder.

Source: Grammenos et al., "Federated PCA with adaptive rank estimation".
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from fedpca.arrays import Array
from fedpca.linalg.blas_threads import threads_for
from fedpca.linalg.dense import complete_basis, orth_against
from fedpca.rows.centering import Centered
from fedpca.rows.in_memory import is_sparse

MAX_CONDITION_NUMBER = 1e6  # the Gram matrix is accurate up to this ratio of singular values
MIN_ROWS_AT_ONCE = 128  # the fewest rows worth a decomposition
MIN_SAFE_ROWS = 32  # the fewest sparse rows that the safe method takes at once
EPS = float(np.finfo(np.float64).eps)


def rows_at_once(room: int) -> int:
    """Return how many rows to take per decomposition if ``room`` directions are kept."""
    return max(MIN_ROWS_AT_ONCE, 2 * room)


class LowRank(NamedTuple):
    """The leading directions of a matrix ``M`` with d columns.

    ``M'M = C' diag(s^2) C + T + E``, where T and E are positive semidefinite with norms of at most
    ``tail`` and ``missing``. T was cut off by the latest truncation; it is orthogonal to C and has no
    eigenvalue above the smallest one kept. E was cut off by earlier truncations.
    """

    directions: Array  # C, (r, d), orthonormal rows
    values: Array  # s, (r,), decreasing
    tail: float = 0.0
    missing: float = 0.0

    @classmethod
    def none(cls, d: int) -> Self:
        """Return a matrix with no rows."""
        return cls(np.empty((0, d)), np.empty(0))

    @property
    def dropped(self) -> float:
        """Return a bound on how far an eigenvalue of M'M may exceed the stored eigenvalue."""
        return self.tail + self.missing

    def append_block(self, Y: Centered, row: Array, room: int) -> LowRank:
        """Return the matrix with the rows of Y and ``row`` appended, in batches of efficient size."""
        step = rows_at_once(room)
        if is_sparse(Y.rows):
            step *= 2  # sparse rows cost little compared with rewriting the directions each time
        elif self.directions.shape[1] <= step:
            step = max(1, Y.n_rows)  # `append` first reduces them to a triangle
        matrix = self
        for start in range(0, Y.n_rows, step):
            batch = Y.part(start, start + step)
            matrix, row = matrix.append(batch, row, room), row[:0]
        return matrix

    def append(self, Y: Centered, more: Array, room: int) -> LowRank:
        """Return the matrix with the rows of Y and the dense rows ``more``, ``(m, d)``, appended.

        At most ``room`` directions are kept.
        """
        C, s, d = self.directions, self.values, self.directions.shape[1]
        if not Y.n_rows + len(more):
            return self.truncate(room)
        if not is_sparse(Y.rows) and Y.n_rows + len(more) > 2 * d:
            # the d x d triangle from a QR factorization has the same Gram matrix as all these rows
            Y, more = Centered(np.linalg.qr(_stacked(Y, more), mode="r")), more[:0]
        with threads_for(C, Y.rows):
            appended = append_by_gram(C, s, Y, more, room)
            if appended is not None:
                return appended._replace(missing=self.dropped)
            return self._append_safely(Y, more, room)

    def _append_safely(self, Y: Centered, more: Array, room: int) -> LowRank:
        """Append rows by the safe method, making about ``room`` sparse rows dense at a time."""
        matrix = self
        step = max(room, MIN_SAFE_ROWS) if is_sparse(Y.rows) else max(1, Y.n_rows)
        for start in range(0, max(1, Y.n_rows), step):
            batch = Y.part(start, start + step)
            rows, more = _stacked(batch, more), more[:0]
            appended = append_safely(matrix.directions, matrix.values, rows, room)
            matrix = appended._replace(missing=matrix.dropped)
        return matrix

    def truncate(self, room: int) -> LowRank:
        """Return the matrix with at most ``room`` directions."""
        largest_cut = self.values[room : room + 1]
        # consecutive cuts are orthogonal to each other, so take the larger norm, not the sum
        tail = max(self.tail, float(largest_cut[0]) ** 2) if largest_cut.size else self.tail
        return LowRank(self.directions[:room], self.values[:room], tail, self.missing)

    def discount(self, factor: float) -> LowRank:
        """Return the matrix times ``factor``."""
        tail, missing = factor**2 * self.tail, factor**2 * self.missing
        return LowRank(self.directions, factor * self.values, tail, missing)

    def leading(self, k: int) -> tuple[Array, Array]:
        """Return the k leading directions in columns, ``(d, k)``, and the eigenvalues along them.

        If fewer than k are stored, orthogonal directions with eigenvalue zero are added.
        """
        eigenvalues = np.zeros(k)
        stored = self.values[:k] ** 2
        eigenvalues[: len(stored)] = stored
        return complete_basis(self.directions[:k].T, k), eigenvalues

    def rows(self) -> Array:
        """Return ``diag(s) C``, ``(r, d)``, the rows that represent the matrix."""
        return np.asarray(self.values[:, None] * self.directions)


def append_by_gram(C: Array, s: Array, Y: Centered, more: Array, room: int) -> LowRank | None:
    """Append rows by the fast method, or return None if the values to keep differ too much in size."""
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
    # below this, the squares have lost the digits of the smallest value to keep
    if not kept or values[kept - 1] <= values[0] / MAX_CONDITION_NUMBER**2:
        return None
    sigma = np.sqrt(values[:kept])
    W = W[:, :kept].T / sigma[:, None]
    directions = Y.add_combined(np.ascontiguousarray(W[:, r : r + b]), (W[:, :r] * s) @ C)
    if m:
        directions += W[:, r + b :] @ more
    # the next value bounds what is cut off; if all d directions are kept, nothing is
    tail = max(0.0, float(values[kept])) if kept < min(len(values), C.shape[1]) else 0.0
    return LowRank(_orthonormal(directions), sigma, tail)


def append_safely(C: Array, s: Array, Y: Array, room: int) -> LowRank:
    """Append rows by the safe method, which keeps all directions above rounding error."""
    r = len(s)
    # directions below this would be rounding errors of the largest ones, with any angle to them
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


def _stacked(Y: Centered, more: Array) -> Array:
    return np.vstack([Y.dense(), more]) if len(more) else Y.dense()


def _orthonormal(C: Array) -> Array:
    """Orthonormalize almost orthonormal rows, so that rounding does not grow from block to block."""
    if not C.size:
        return C
    return np.asarray(np.linalg.inv(np.linalg.cholesky(C @ C.T)) @ C)
