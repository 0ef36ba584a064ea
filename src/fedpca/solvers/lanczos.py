"""Block Lanczos over sums: the default exact solver.

Each round sends one block Q, ``(d, b)``, and gets ``Y = A'A Q`` summed over the sites. The coordinator
keeps every block and looks for the eigenvectors in the whole space that they span:

    K = [Q_1 Q_2 ...],   T = K'(A'A K),   V = K C with C the leading eigenvectors of T.

No other method that multiplies blocks from the same start with A'A finds better eigenvalues in as
many rounds, and how the rows are split over sites makes no difference. Only sums are needed. What Y
adds to K is ``Y - K(K'Y) = Q_next B``, so that the residual costs neither a round nor a product:

    A'A V - V theta = Q_next B C_last,   C_last the rows of C that belong to the last block.

Source: Golub and Underwood, "The block Lanczos method for computing eigenvalues" (1977); thick restart
after Wu and Simon, "Thick-restart Lanczos method for large symmetric eigenvalue problems" (2000).
"""

from __future__ import annotations

import numpy as np

from fedpca.federation import Federation
from fedpca.linalg import orth_against, threads_for, top_eigen
from fedpca.message import Array
from fedpca.moments import Moments, settle_frame
from fedpca.planner import expected_rounds
from fedpca.rank import RankRule, Spectrum
from fedpca.solvers.solution import Solution, covariance_product, scaled, starting_block

KRYLOV_BYTES = 32 << 20  # that K may take before a restart; a K beyond the cache slows every round
NEGLIGIBLE = 1e-13  # part of the largest eigenvalue below which a new direction is rounding


def block_lanczos(
    fed: Federation,
    known: Moments,
    rank: RankRule,
    *,
    start: Array | None,
    tol: float,
    max_rounds: int,
    block: int | None = None,
    krylov_bytes: int = KRYLOV_BYTES,
) -> Solution:
    """The leading eigenvectors of A'A, to a scaled residual ``||R||_F / trace(A'A)`` of ``tol``.

    Blocks are as wide as the number of components, or wider if ``block`` says so: twice as wide takes
    fewer rounds and more bytes. Narrower ones would miss copies of a repeated eigenvalue.
    """
    n, d, p = known.n, known.d, rank.first_look
    width = min(max(block or p, p), d)
    energy = settle_frame(fed, known, width * expected_rounds(n, d, p))
    room = krylov_bytes // (8 * d)
    space = KrylovSpace(starting_block(fed, d, width, start), room)
    for _ in range(max_rounds):
        space.extend(fed.sum(covariance_product, Z=space.Q)["Y"])
        theta, residual = space.rayleigh_ritz(p)
        searched = space
        residual = scaled(residual, energy)
        fed.report(residual, space.vectors)
        if residual <= tol or space.is_invariant:
            k = rank(Spectrum(theta, energy, n, d))
            if k is not None:
                stopped = "exact" if space.is_invariant else "converged"
                return Solution(space.vectors()[:, :k], theta[:k], energy, stopped)
            p = width = min(2 * p, n, d)  # the rule must see more of the spectrum
            space = KrylovSpace(starting_block(fed, d, width, space.vectors()), room)
        elif space.K.shape[1] + width > max(room, 4 * (p + width)):
            space.restart()
    k = rank(Spectrum(theta, energy, n, d)) or len(theta)
    return Solution(searched.vectors()[:, :k], theta[:k], energy, "max_rounds")


class KrylovSpace:
    """An orthonormal basis K of all blocks so far, and A'A within it."""

    def __init__(self, Q: Array, room: int) -> None:
        # memory that is not touched costs nothing
        self._columns = np.empty((Q.shape[0], min(room, Q.shape[0])), order="F")
        self.K = self._columns[:, :0]
        self.T = np.empty((0, 0))
        self.Q = Q  # the block whose product is due
        self._reach = 0  # column of K from which on that product can have a part in K

    @property
    def is_invariant(self) -> bool:
        """Whether A'A maps the space into itself, so that what it holds is exact."""
        return bool(self.Q.shape[1] == 0)

    def extend(self, Y: Array) -> None:
        """Take in the block Q with ``Y = A'A Q``; what Y adds to the space is the next Q."""
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
        """The p leading eigenvalues of A'A within the space, and ``||A'A V - V theta||_F``."""
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
