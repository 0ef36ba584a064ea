"""The leading eigenvectors of a symmetric matrix that is known by its products alone.

    K = [Q_1 Q_2 ...],   T = K'(M K),   V = K C with C the leading eigenvectors of T,

each block Q being what the product with the last one adds to the space. What M Q adds to K is
``M Q - K(K' M Q) = Q_next B``, so that the residual costs no product:

    M V - V theta = Q_next B C_last,   C_last the rows of C that belong to the last block.

Source: Golub and Underwood, "The block Lanczos method for computing eigenvalues" (1977); thick restart
after Wu and Simon, "Thick-restart Lanczos method for large symmetric eigenvalue problems" (2000).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedpca.linalg import orth_against, threads_for, top_eigen
from fedpca.message import Array

KRYLOV_BYTES = 32 << 20  # that K may take before a restart; a K beyond the cache slows every round
NEGLIGIBLE = 1e-13  # part of the largest eigenvalue below which a new direction is rounding


def leading_eigen(
    times: Callable[[Array], Array], start: Array, k: int, *, tol: float, most: int
) -> tuple[Array, Array]:
    """The k largest eigenvalues of the matrix that ``times`` multiplies with, and their vectors.

    To a residual of ``tol`` times the largest of them, or after ``most`` products. Blocks are as wide
    as the orthonormal ``start``, ``(d, b)``, with b at least k.
    """
    d, width = start.shape
    space = KrylovSpace(start, KRYLOV_BYTES // (8 * d))
    for _ in range(most):
        space.extend(times(space.Q))
        theta, residual = space.rayleigh_ritz(k)
        if residual <= tol * theta[0] or space.is_invariant:
            break
        if space.is_full(width):
            space.restart()
    return theta, space.vectors()


class KrylovSpace:
    """An orthonormal basis K of all blocks so far, and the matrix M within it."""

    def __init__(self, Q: Array, room: int) -> None:
        # memory that is not touched costs nothing
        self._room = room
        self._columns = np.empty((Q.shape[0], min(room, Q.shape[0])), order="F")
        self.K = self._columns[:, :0]
        self.T = np.empty((0, 0))
        self.Q = Q  # the block whose product is due
        self._reach = 0  # column of K from which on that product can have a part in K

    @property
    def is_invariant(self) -> bool:
        """Whether M maps the space into itself, so that what it holds is exact."""
        return bool(self.Q.shape[1] == 0)

    def is_full(self, width: int) -> bool:
        """Whether a further block should wait for a restart."""
        return bool(self.K.shape[1] + width > max(self._room, 4 * (self._C.shape[1] + width)))

    def extend(self, Y: Array) -> None:
        """Take in the block Q with ``Y = M Q``; what Y adds to the space is the next Q."""
        old, self._last = self.K.shape[1], self.Q.shape[1]
        self._set_basis(old, self.Q)
        with threads_for(Y):
            largest = max(float(np.linalg.norm(Y)), float(self.T.diagonal().max(initial=0.0)))
            self.Q, self._B, H = orth_against(self.K, Y, NEGLIGIBLE * largest, reach=self._reach)
        self._reach = old  # the next product lies in this block, its own, and the one after
        T = np.empty((old + self._last, old + self._last))
        T[:old, :old] = self.T
        T[:, old:] = H
        T[old:, :old] = H[:old].T
        self.T = T

    def rayleigh_ritz(self, p: int) -> tuple[Array, float]:
        """The p leading eigenvalues of M within the space, and ``||M V - V theta||_F``."""
        with threads_for(self.T):
            theta, self._C = top_eigen((self.T + self.T.T) / 2, min(p, len(self.T)))
            residual = np.linalg.norm(self._B @ self._C[-self._last :])
        return np.maximum(theta, 0.0), float(residual)

    def vectors(self) -> Array:
        """The eigenvectors that belong to the values last found."""
        return np.asarray(self.K @ self._C)

    def restart(self) -> None:
        """Keep the better part of the space; the next block fits to it as to the whole."""
        p = self._C.shape[1]
        theta, C = top_eigen((self.T + self.T.T) / 2, max(2 * p, 2 * len(self.T) // 5))
        with threads_for(C):
            self._set_basis(0, self.K @ C)
        self.T = np.diag(theta)
        self._C = np.eye(len(theta), p)
        self._reach = 0

    def _set_basis(self, old: int, new: Array) -> None:
        """Put new columns behind the first ``old`` ones, in a larger room where they do not fit."""
        used = old + new.shape[1]
        if used > self._columns.shape[1]:
            room = np.empty((len(new), 2 * used), order="F")
            room[:, :old] = self._columns[:, :old]
            self._columns = room
        self._columns[:, old:used] = new
        self.K = self._columns[:, :used]
