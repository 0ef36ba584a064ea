"""The covariance in one round: every site sends the upper triangle of its A_i'A_i.

    A'A = sum_i A_i'A_i,   A_i = (X_i - 1 m') / s

Exact, one round after the mean, ``4 d (d + 1)`` bytes a site. It suits up to about a thousand features.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpca.errors import InputError
from fedpca.federation import Federation
from fedpca.linalg import pack_triangle, top_eigen, unpack_triangle
from fedpca.message import MAX_BYTES, Array
from fedpca.moments import Moments
from fedpca.question import question
from fedpca.rank import RankRule, Spectrum
from fedpca.solvers.solution import Solution

WORTH_KEEPING = 4  # rows for each feature


@question(
    asks={"mean": "float64 d", "scale": "float64 d"},
    answers={"triangle": "float64 triangle"},
    remembers=True,
)
def covariance_triangle(site: Any, mean: Array, scale: Array) -> dict[str, Array]:
    """The upper triangle of A_i'A_i; the site keeps the mean and the scale."""
    d = len(mean)
    # A'A is at hand; where it is much smaller than the rows, later questions shall be put to it
    n_products = d if site.rows.n_rows > WORTH_KEEPING * d else 0
    site.memory |= {"mean": mean, "scale": scale, "n_products": np.array(n_products)}
    gram = site.framed.gram()
    site.memory["energy"] = np.trace(gram)
    return {"triangle": pack_triangle(gram)}


def summed_covariance(
    fed: Federation,
    known: Moments,
    rank: RankRule,
    *,
    start: Array | None,
    tol: float,
    max_rounds: int,
) -> Solution:
    """Eigenvectors of the summed covariance; ``start``, ``tol`` and ``max_rounds`` do not matter."""
    if 4 * known.d * (known.d + 1) > MAX_BYTES:
        raise InputError(
            f"the covariance of {known.d} features does not fit into a message of {MAX_BYTES >> 30} "
            "GiB; use solver='lanczos'"
        )
    C = unpack_triangle(
        fed.sum(covariance_triangle, mean=known.mean, scale=known.scale)["triangle"]
    )
    energy = float(np.trace(C))
    for look in (rank.first_look, min(known.n, known.d)):
        values, V = top_eigen(C, look)
        values = np.maximum(values, 0.0)
        k = rank(Spectrum(values, energy, known.n, known.d))
        if k is not None:
            break
    fed.report(0.0, lambda: V)
    return Solution(V[:, :k], values[:k], energy, "exact")
