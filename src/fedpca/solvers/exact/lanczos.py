"""Block Lanczos on sums over sites: the default exact solver.

Each round sends one block Q, ``(d, b)``, and receives ``Y = A'A Q`` summed over the sites. The
coordinator keeps every block and searches for the eigenvectors in the whole space that the blocks span:

    K = [Q_1 Q_2 ...],   T = K'(A'A K),   V = K C with C the leading eigenvectors of T

Among methods that multiply blocks by A'A and begin with the same block, none finds better eigenvalues
in the same number of rounds. How rows are split over sites makes no difference. Only sums are needed.
The residual costs neither a round nor a product (`fedpca.linalg.krylov`).

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
    """Search for the eigenvectors in the space that all blocks span.

    Parameters
    ----------
    block : int, optional
        The number of columns in a block. The default, which is also the minimum, is the number of
        components. Twice as many columns take fewer rounds but more bytes. Fewer columns would miss
        copies of a repeated eigenvalue.
    max_krylov_bytes : int
        The coordinator's memory for blocks. When it is full, the coordinator keeps only the current
        leading eigenvectors and continues from them.
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
        """Return the leading eigenvectors, with a residual of at most ``tol`` times the trace."""
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
                p = width = min(2 * p, n, d)  # the rule needs to see more of the spectrum
                space = KrylovSpace(starting_block(fed, d, width, space.vectors()), max_columns)
            elif space.is_full(width):
                space.restart()
        k = rank(Spectrum(theta, energy, n, d)) or len(theta)
        return Solution(moments, searched.vectors()[:, :k], theta[:k], energy, "max_rounds")
