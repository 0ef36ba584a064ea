"""Block Lanczos: find the leading eigenvectors of a symmetric matrix M using only products with it.

    K = [Q_1 Q_2 ...],   T = K'(M K),   V = K C,   where C holds the leading eigenvectors of T

Each block Q is the new part of the product of M with the previous block. The new part of M Q is
``M Q - K(K' M Q) = Q_next B``, so the residual requires no additional product:

    M V - V theta = Q_next B C_last,   where C_last holds the rows of C for the last block

If parts of a product are left out because they are nearly in K, their norm is added to the residual.

Source: Golub and Underwood, "The block Lanczos method for computing eigenvalues" (1977). The
thick restart follows Wu and Simon, "Thick-restart Lanczos method for large symmetric eigenvalue
problems" (2000).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.linalg.blas_threads import threads_for
from fedpca.linalg.dense import ROUNDING, angle_bounds, orth_against, top_eigen

# restart at this size of K; a K that exceeds the cache slows every round
MAX_KRYLOV_BYTES = 32 << 20
MIN_BLOCKS = 4  # the basis may always be this many times as wide as components and block together
RESTART_ROWS = 1 << 16  # how many rows of the basis to combine at a time
# share of the largest eigenvalue; a smaller direction is rounding error
NEGLIGIBLE_DIRECTION = 1e-13


def leading_eigen(
    times: Callable[[Array], Array], start: Array, k: int, *, tol: float, most: int
) -> tuple[Array, Array]:
    """Return the k largest eigenvalues of a matrix and their eigenvectors, ``(d, k)``.

    ``times`` multiplies the matrix by a block. The search stops once the residual is at most ``tol``
    times the largest eigenvalue, or after ``most`` products. The orthonormal ``start``, ``(d, b)``,
    sets the block width b, which must be at least k.
    """
    d, width = start.shape
    space = KrylovSpace(start, MAX_KRYLOV_BYTES // (8 * d))
    for _ in range(most):
        space.extend(times(space.Q))
        ritz = space.rayleigh_ritz(k)
        if ritz.residual <= tol * ritz.values[0] or space.is_invariant:
            break
        if space.is_full(width):
            space.restart()
    return ritz.wanted, space.vectors()


class Ritz(NamedTuple):
    """Approximate eigenvalues, in descending order: those wanted, and the next one if there is one."""

    values: Array  # (p + 1,) or (p,)
    residuals: Array  # ||M v - v theta|| for each
    n_wanted: int
    is_invariant: bool  # whether M maps the space into itself
    trace: float  # of M within the space

    @property
    def wanted(self) -> Array:
        """Return the eigenvalues that were asked for, without the next one."""
        return self.values[: self.n_wanted]

    @property
    def residual(self) -> float:
        """Return ``||M V - V theta||_F`` for the wanted eigenvectors."""
        return float(np.linalg.norm(self.residuals[: self.n_wanted]))

    def with_residuals(self, more: Array) -> Ritz:
        """Return the same values, with larger residuals for the wanted ones."""
        n_others = len(self.residuals) - len(more)
        return self._replace(residuals=self.residuals + np.pad(more, (0, n_others)))

    def angle_bounds(self, k: int, rounding: float = ROUNDING, trace: float = 0.0) -> Array:
        """Bound the sine of the angle of the first j directions, j = 1 ... k; see `angle_bounds`.

        ``trace`` is the trace of M. If the space is invariant, copies of a repeated eigenvalue may be
        hidden outside the space. They are at most ``trace`` minus the trace of M within the space.
        """
        others = max(0.0, trace - self.trace) if self.is_invariant else None
        return angle_bounds(self.values, self.residuals, k, others=others, rounding=rounding)


class KrylovSpace:
    """An orthonormal basis K of all added blocks, and ``T = K' M K``."""

    def __init__(self, Q: Array, max_columns: int) -> None:
        # unused columns cost nothing: the system allocates memory on the first write
        self._max_columns = max_columns
        most = max(max_columns, 2 * MIN_BLOCKS * Q.shape[1])
        # by columns, so that the used part is contiguous for BLAS however many columns follow
        self._columns = np.empty((Q.shape[0], min(most, Q.shape[0])), order="F")
        self.K = self._columns[:, :0]
        self.T = np.empty((0, 0))
        self.Q = Q  # the block to multiply next
        self._reach = 0  # M Q has no component along columns of K before this one
        self._left_out = 0.0  # norm of the parts of products that are in no block

    @property
    def is_invariant(self) -> bool:
        """Return whether M maps the space into itself, so that the eigenvectors found are exact."""
        return bool(self.Q.shape[1] == 0)

    def is_full(self, width: int) -> bool:
        """Return whether to restart before adding a block of this width."""
        return bool(
            self.K.shape[1] + width
            > max(self._max_columns, MIN_BLOCKS * (self._C.shape[1] + width))
        )

    def extend(self, Y: Array) -> None:
        """Add the block Q, given ``Y = M Q``; the part of Y outside the space becomes the next Q."""
        old, self._last = self.K.shape[1], self.Q.shape[1]
        self._set_basis(old, self.Q)
        with threads_for(Y):
            # up to the root of the width, no more than the largest eigenvalue, and known without
            # another product
            largest = max(float(np.linalg.norm(Y)), float(self.T.diagonal().max(initial=0.0)))
            self.Q, self._B, H = orth_against(
                self.K, Y, NEGLIGIBLE_DIRECTION * largest, reach=self._reach
            )
            # dropped columns are small but not zero, so the residuals of all vectors must allow for
            # them
            if self.Q.shape[1] < Y.shape[1]:
                rest = Y - self.K @ H - self.Q @ self._B
                self._left_out = float(np.hypot(self._left_out, np.linalg.norm(rest)))
        self._reach = old  # the next product lies in this block, the next, and the one after
        T = np.empty((old + self._last, old + self._last))
        T[:old, :old] = self.T
        T[:, old:] = H
        # M is symmetric, so the new rows of T follow from its new columns
        T[old:, :old] = H[:old].T
        self.T = T

    def rayleigh_ritz(self, p: int) -> Ritz:
        """Return the p leading eigenvalues of M within the space and one more, if there is one."""
        with threads_for(self.T):
            theta, C = top_eigen((self.T + self.T.T) / 2, min(p + 1, len(self.T)))
            # B C_last has the norm of the residual, since Q_next is orthonormal
            residuals = np.hypot(np.linalg.norm(self._B @ C[-self._last :], axis=0), self._left_out)
        self._C = C[:, :p]
        return Ritz(
            # sums of squares have no negative eigenvalues, only rounding does
            np.maximum(theta, 0.0),
            residuals,
            min(p, len(theta)),
            self.is_invariant,
            float(np.trace(self.T)),
        )

    def vectors(self) -> Array:
        """Return the eigenvectors, ``(d, p)``, for the eigenvalues that `rayleigh_ritz` last found."""
        return np.asarray(self.K @ self._C)

    def restart(self) -> None:
        """Shrink the space to its leading eigenvectors; the next block extends them just as well."""
        p = self._C.shape[1]
        # keeping two fifths costs a few percent more rounds, and each round then reads a basis in the
        # cache
        theta, C = top_eigen((self.T + self.T.T) / 2, max(2 * p, 2 * len(self.T) // 5))
        with threads_for(C):
            for start in range(0, len(self.K), RESTART_ROWS):
                # memory has no room for a second basis
                rows = self._columns[start : start + RESTART_ROWS]
                rows[:, : len(theta)] = rows[:, : len(self.T)] @ C
        self.K = self._columns[:, : len(theta)]
        self.T = np.diag(theta)
        self._C = np.eye(len(theta), p)
        self._reach = 0

    def _set_basis(self, old: int, new: Array) -> None:
        """Store new columns after the first ``old`` ones, in a larger array if they do not fit."""
        used = old + new.shape[1]
        if used > self._columns.shape[1]:
            larger = np.empty((len(new), 2 * used), order="F")
            larger[:, :old] = self._columns[:, :old]
            self._columns = larger
        self._columns[:, old:used] = new
        self.K = self._columns[:, :used]
