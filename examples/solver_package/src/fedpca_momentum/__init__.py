"""Add a fedpca solver that uses subspace iteration with momentum.

    X <- A'A X - beta X_before,   beta = (f lambda_k / 2)^2

The option ``following`` is f. If f lambda_k is close to the first eigenvalue after the wanted ones,
momentum takes about the square root of the number of rounds that plain iteration takes. Source: Xu, He,
De Sa, Mitliagkas and Re, "Accelerated stochastic power iteration" (2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from fedpca import Federation, Site, question
from fedpca.arrays import Array, Arrays
from fedpca.linalg.dense import top_eigen
from fedpca.linalg.rank_rules import Spectrum
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import Script
from fedpca.solvers.contract import (
    Problem,
    Solution,
    after_moments,
    check_positive,
    columns_asked,
    moments_and_rank,
    scaled,
    starting_block,
)
from fedpca.solvers.sign_flips import draw_signs, flips_order
from fedpca.solvers.standardize import standardize, standardize_sites


@dataclass(frozen=True)
class Momentum:
    """Use subspace iteration with momentum.

    Parameters
    ----------
    following : float
        A guess at the first eigenvalue after the wanted ones, as a share of the last wanted
        eigenvalue.
    """

    name: ClassVar[str] = "momentum"
    guarantee: ClassVar[str] = "exact"
    seen: ClassVar[tuple[str, ...]] = ()  # every answer is summed

    following: float = 0.5

    def __post_init__(self) -> None:
        check_positive("following", self.following, 1)

    def script(self, plan: RunPlan) -> Script:
        return after_moments(
            plan,
            standardize,
            momentum_product,
            flips_order(plan, momentum_product),
            most={momentum_product.name: plan.max_rounds},
            looks=(draw_signs.name,),
            bounds={"X": columns_asked(plan)},
        )

    def solve(self, fed: Federation, problem: Problem) -> Solution:
        """Return the leading eigenvectors, with a residual of at most ``tol`` times the trace."""
        moments, rank = moments_and_rank(fed, problem)
        n, d, p = moments.n, moments.d, rank.first_look
        energy = standardize_sites(fed, moments, p * min(problem.max_rounds, 100))
        X, before, reason = starting_block(fed, d, p, problem.start), np.zeros((d, p)), "max_rounds"
        for _ in range(problem.max_rounds):
            Y = fed.sum(momentum_product, X=X)["Y"]
            T = X.T @ Y
            theta, C = top_eigen((T + T.T) / 2, p)
            V = X @ C
            residual = scaled(float(np.linalg.norm(Y @ C - V * theta)), energy)
            fed.report(residual, partial(np.asarray, V))
            spectrum = Spectrum(np.maximum(theta, 0.0), energy, n, d, vectors=V)
            if residual <= problem.tol:
                if rank(spectrum) is not None:
                    reason = "converged"
                    break
                p = min(2 * p, n, d)  # the rule must see more of the spectrum
                X, before = starting_block(fed, d, p, V), np.zeros((d, p))
                continue
            beta = (self.following * max(theta[-1], 0.0) / 2) ** 2
            Q, R = np.linalg.qr(Y - beta * before)
            # Q is the new product times R^-1, so the last basis must also be multiplied by R^-1.
            before = np.linalg.lstsq(R.T, X.T, rcond=1e-12)[0].T
            X = Q
        k = rank(spectrum) or len(theta)
        return Solution(moments, V[:, :k], spectrum.values[:k], energy, reason)


@question(asks={"X": "float64 d k, orthonormal"}, answers={"Y": "float64 d k"})
def momentum_product(site: Site, X: Array) -> Arrays:
    """Return A_i'(A_i X), where A_i holds a site's standardized rows."""
    return {"Y": site.standardized.gram_times(X)}
