"""Federated simultaneous subspace iteration: the baseline in every paper.

    Z <- orth(sum_i A_i'(A_i Z))

This method sends the same messages as block Lanczos but does not keep earlier blocks. So it takes many
times as many rounds.

Source: SSI in Wang, Liu and Zhang, "Seeking consensus on subspaces in federated principal component
analysis"; Rutishauser, "Simultaneous iteration method for symmetric matrices" (1970).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.linalg.dense import orth, top_eigen
from fedpca.linalg.rank_rules import RankRule, Spectrum
from fedpca.solvers.contract import (
    Problem,
    Solution,
    covariance_product,
    moments_and_rank,
    scaled,
    starting_block,
)
from fedpca.solvers.plan import LANCZOS_ROUNDS, block_bytes, expected_rounds
from fedpca.solvers.standardize import Moments, standardize_sites

TIMES_LANCZOS = 15  # approximate number of rounds per Lanczos round


@dataclass(frozen=True)
class SubspaceIteration:
    """Repeatedly multiply a block by A'A and make it orthonormal."""

    name: ClassVar[str] = "power"
    guarantee: ClassVar[str] = "exact"
    seen: ClassVar[tuple[str, ...]] = ()

    def bytes_per_site(self, n: int, d: int, k: int) -> int:
        return block_bytes(d, k, TIMES_LANCZOS * expected_rounds(n, d, k))

    def solve(self, fed: Federation, problem: Problem) -> Solution:
        """Return the leading eigenvectors, with a residual of at most ``tol`` times the trace."""
        moments, rank = moments_and_rank(fed, problem)
        p = rank.first_look
        n_products = p * min(problem.max_rounds, TIMES_LANCZOS * LANCZOS_ROUNDS)
        energy = standardize_sites(fed, moments, n_products)
        Z = starting_block(fed, moments.d, p, problem.start)
        return iterate(
            fed, moments, rank, Z, energy, tol=problem.tol, max_rounds=problem.max_rounds
        )


def iterate(
    fed: Federation,
    moments: Moments,
    rank: RankRule,
    Z: Array,
    energy: float,
    *,
    tol: float,
    max_rounds: int,
) -> Solution:
    """Iterate from an orthonormal Z until the residual is at most ``tol``."""
    n, d, p = moments.n, moments.d, Z.shape[1]
    reason = "max_rounds"
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
                reason = "converged"
                break
            p = min(2 * p, n, d)  # the rule needs to see more of the spectrum
            Y = np.hstack([Y, fed.rng().standard_normal((d, p - Y.shape[1])) * theta[-1]])
        Z = orth(Y)
    k = k or p
    return Solution(moments, V[:, :k], np.maximum(theta, 0.0)[:k], energy, reason)
