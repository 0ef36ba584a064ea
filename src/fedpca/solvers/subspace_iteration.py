"""Federated simultaneous subspace iteration: the baseline of every paper.

    Z <- orth(sum_i A_i'(A_i Z))

The message of block Lanczos without its memory, so it takes many times as many rounds. Source: SSI in
Wang, Liu and Zhang, "Seeking consensus on subspaces in federated principal component analysis";
Rutishauser, "Simultaneous iteration method for symmetric matrices" (1970).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from fedpca.federation import Federation
from fedpca.linalg import orth, top_eigen
from fedpca.message import Array
from fedpca.moments import Moments, settle_frame
from fedpca.planner import EXPECTED_ROUNDS
from fedpca.rank import RankRule, Spectrum
from fedpca.solvers.solution import Solution, covariance_product, scaled, starting_block

TIMES_LANCZOS = 15  # rounds of subspace iteration for each of Lanczos, about


def iterate_subspace(
    fed: Federation,
    known: Moments,
    rank: RankRule,
    *,
    start: Array | None,
    tol: float,
    max_rounds: int,
) -> Solution:
    """The leading eigenvectors of A'A, to a scaled residual ``||R||_F / trace(A'A)`` of ``tol``."""
    p = rank.first_look
    energy = settle_frame(fed, known, p * min(max_rounds, TIMES_LANCZOS * EXPECTED_ROUNDS))
    Z = starting_block(fed, known.d, p, start)
    return iterate(fed, known, rank, Z, energy, tol=tol, max_rounds=max_rounds)


def iterate(
    fed: Federation,
    known: Moments,
    rank: RankRule,
    Z: Array,
    energy: float,
    *,
    tol: float,
    max_rounds: int,
) -> Solution:
    """The iteration itself, from an orthonormal Z."""
    n, d, p = known.n, known.d, Z.shape[1]
    stopped = "max_rounds"
    for _ in range(max_rounds):
        Y = fed.sum(covariance_product, Z=Z)["Y"]
        T = Z.T @ Y
        theta, C = top_eigen((T + T.T) / 2, p)
        V = Z @ C
        residual = scaled(float(np.linalg.norm(Y @ C - V * theta)), energy)
        fed.report(residual, partial(np.asarray, V))
        k = rank(Spectrum(np.maximum(theta, 0.0), energy, n, d))
        if residual <= tol:
            if k is not None:
                stopped = "converged"
                break
            p = min(2 * p, n, d)
            Y = np.hstack([Y, fed.rng().standard_normal((d, p - Y.shape[1])) * theta[-1]])
        Z = orth(Y)
    k = k or p
    return Solution(V[:, :k], np.maximum(theta, 0.0)[:k], energy, stopped)
