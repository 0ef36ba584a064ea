"""Block Lanczos over sums: the default exact solver.

Each round sends one block Q, ``(d, b)``, and gets ``Y = A'A Q`` summed over the sites. The coordinator
keeps every block, and looks for the eigenvectors in the whole space that the blocks span:

    K = [Q_1 Q_2 ...],   T = K'(A'A K),   V = K C with C the leading eigenvectors of T

No other method that multiplies blocks by A'A, from the same start, finds better eigenvalues in as many
rounds. The split of rows over sites makes no difference. Only sums are needed. The residual costs
neither a round nor a product (`fedpca.linalg.krylov`).

Source: Golub and Underwood, "The block Lanczos method for computing eigenvalues" (1977).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpca.coordinator.federation import Federation
from fedpca.linalg.krylov import MAX_KRYLOV_BYTES, KrylovSpace
from fedpca.linalg.rank_rules import Spectrum
from fedpca.solvers.contract import (
    Problem,
    Solution,
    check_whole,
    covariance_product,
    moments_and_rank,
    scaled,
    starting_block,
)
from fedpca.solvers.plan import block_bytes, expected_rounds
from fedpca.solvers.standardize import standardize_sites


@dataclass(frozen=True)
class Lanczos:
    """Search the space of all blocks so far for the eigenvectors.

    Parameters
    ----------
    block : int, optional
        Columns of a block: by default, and at least, the number of components. Twice as many take fewer
        rounds and more bytes. Fewer would miss copies of a repeated eigenvalue.
    max_krylov_bytes : int
        The coordinator's memory for blocks. When it is full, the coordinator keeps the leading
        eigenvectors so far and goes on from them.
    """

    name: ClassVar[str] = "lanczos"
    guarantee: ClassVar[str] = "exact"
    seen: ClassVar[tuple[str, ...]] = ()

    block: int | None = None
    max_krylov_bytes: int = MAX_KRYLOV_BYTES

    def __post_init__(self) -> None:
        if self.block is not None:
            check_whole("block", self.block, 1)
        check_whole("max_krylov_bytes", self.max_krylov_bytes, 1)

    def bytes_per_site(self, n: int, d: int, k: int) -> int:
        return block_bytes(d, k, expected_rounds(n, d, k))

    def solve(self, fed: Federation, problem: Problem) -> Solution:
        """Return the leading eigenvectors, to a residual of ``tol`` as a share of the trace."""
        moments, rank = moments_and_rank(fed, problem)
        n, d, p = moments.n, moments.d, rank.first_look
        width = min(max(self.block or p, p), d)
        energy = standardize_sites(fed, moments, width * expected_rounds(n, d, p))
        max_columns = self.max_krylov_bytes // (8 * d)
        space = KrylovSpace(starting_block(fed, d, width, problem.start), max_columns)
        for _ in range(problem.max_rounds):
            space.extend(fed.sum(covariance_product, Z=space.Q)["Y"])
            theta, residual = space.rayleigh_ritz(p)
            searched = space
            residual = scaled(residual, energy)
            fed.report(residual, space.vectors)
            if residual <= problem.tol or space.is_invariant:
                k = rank(Spectrum(theta, energy, n, d))
                if k is not None:
                    reason = "exact" if space.is_invariant else "converged"
                    return Solution(moments, space.vectors()[:, :k], theta[:k], energy, reason)
                p = width = min(2 * p, n, d)  # the rule must see more of the spectrum
                space = KrylovSpace(starting_block(fed, d, width, space.vectors()), max_columns)
            elif space.is_full(width):
                space.restart()
        k = rank(Spectrum(theta, energy, n, d)) or len(theta)
        return Solution(moments, searched.vectors()[:, :k], theta[:k], energy, "max_rounds")
