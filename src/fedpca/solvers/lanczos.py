"""Block Lanczos over sums: the default exact solver.

Each round sends one block Q, ``(d, b)``, and gets ``Y = A'A Q`` summed over the sites. The coordinator
keeps every block and looks for the eigenvectors in the whole space that they span:

    K = [Q_1 Q_2 ...],   V = K C,   C the leading eigenvectors of K'(A'A K).

No other method that multiplies blocks from the same start with A'A finds better eigenvalues in as
many rounds, and how the rows are split over sites makes no difference. Only sums are needed. The
residual ``R = A'A V - V theta`` costs no further round, since ``A'A K`` is at hand.

Source: Golub and Underwood, "The block Lanczos method for computing eigenvalues" (1977); thick restart
after Wu and Simon, "Thick-restart Lanczos method for large symmetric eigenvalue problems" (2000).
"""

from __future__ import annotations

import numpy as np

from fedpca.federation import Federation
from fedpca.linalg import orth_against, top_eigen
from fedpca.message import Array
from fedpca.moments import Moments, settle_frame
from fedpca.planner import expected_rounds
from fedpca.rank import RankRule, Spectrum
from fedpca.solvers.solution import Solution, covariance_product, starting_block

KRYLOV_BYTES = 1 << 30  # that K and A'A K may take at the coordinator before a restart
NEGLIGIBLE = 1e-13  # part of the largest eigenvalue below which a new direction is rounding


def lanczos(
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

    Blocks are as wide as the number of components unless ``block`` says otherwise. Twice as wide
    takes fewer rounds, half as wide fewer bytes.
    """
    n, d, p = known.n, known.d, rank.first_look
    width = min(block or p, d)
    energy = settle_frame(fed, known, width * expected_rounds(n, d, p))
    most_columns = max(2 * (p + width), krylov_bytes // (16 * d))
    K = SK = np.empty((d, 0))
    Q = starting_block(fed, d, width, start)
    for _ in range(max_rounds):
        Y = fed.sum(covariance_product, Z=Q)["Y"]
        K, SK = np.hstack([K, Q]), np.hstack([SK, Y])
        theta, V, SV = _rayleigh_ritz(K, SK, p)
        residual = float(np.linalg.norm(SV - V * theta)) / max(energy, np.finfo(float).tiny)
        fed.report(residual, V)
        Q = orth_against(K, Y, NEGLIGIBLE * theta[0])
        exact = Q.shape[1] == 0 and K.shape[1] >= min(p, d)
        if exact or residual <= tol:
            k = rank(Spectrum(theta, energy, n, d))
            if k is not None:
                stopped = "exact" if exact else "converged"
                return Solution(V[:, :k], theta[:k], energy, stopped)
            p = min(2 * p, n, d)
        if not Q.shape[1]:
            Q = _fresh_directions(fed, K, width)
        if K.shape[1] + Q.shape[1] > most_columns:
            _, K, SK = _rayleigh_ritz(K, SK, p + width)
            Q = orth_against(K, Q, NEGLIGIBLE)
    k = rank(Spectrum(theta, energy, n, d)) or p
    return Solution(V[:, :k], theta[:k], energy, "max_rounds")


def _rayleigh_ritz(K: Array, SK: Array, p: int) -> tuple[Array, Array, Array]:
    """The p leading Ritz values, their vectors V in the span of K, and A'A V."""
    T = K.T @ SK
    theta, C = top_eigen((T + T.T) / 2, min(p, K.shape[1]))
    return np.maximum(theta, 0.0), K @ C, SK @ C


def _fresh_directions(fed: Federation, K: Array, width: int) -> Array:
    """Random directions outside K, for when its span is invariant but more vectors are wanted."""
    d, used = K.shape
    return orth_against(K, fed.rng().standard_normal((d, min(width, d - used))), 0.0)
