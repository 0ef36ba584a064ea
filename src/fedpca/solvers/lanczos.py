"""Block Lanczos over sums: the default exact solver.

Each round sends one block Q, ``(d, b)``, and gets ``Y = A'A Q`` summed over the sites. The coordinator
keeps every block and looks for the eigenvectors in the whole space that they span:

    K = [Q_1 Q_2 ...],   T = K'(A'A K),   V = K C with C the leading eigenvectors of T.

No other method that multiplies blocks from the same start with A'A finds better eigenvalues in as
many rounds, and how the rows are split over sites makes no difference. Only sums are needed, and the
residual costs neither a round nor a product (`fedpca.krylov`).

Source: Golub and Underwood, "The block Lanczos method for computing eigenvalues" (1977).
"""

from __future__ import annotations

from fedpca.federation import Federation
from fedpca.krylov import KRYLOV_BYTES, KrylovSpace
from fedpca.message import Array
from fedpca.moments import Moments, settle_frame
from fedpca.planner import expected_rounds
from fedpca.rank import RankRule, Spectrum
from fedpca.solvers.solution import Solution, covariance_product, scaled, starting_block


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
        elif space.is_full(width):
            space.restart()
    k = rank(Spectrum(theta, energy, n, d)) or len(theta)
    return Solution(searched.vectors()[:, :k], theta[:k], energy, "max_rounds")
