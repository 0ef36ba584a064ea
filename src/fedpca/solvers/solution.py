"""What every solver takes and gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedpca.federation import Federation
from fedpca.linalg import orth
from fedpca.message import Array
from fedpca.moments import Moments
from fedpca.question import question
from fedpca.rank import RankRule

ASIDE = 1e-2  # how far a warm start keeps away from the subspace that it was given


@dataclass(frozen=True)
class Solution:
    """The leading eigenvectors of A'A, A being all sites' rows about the mean and in the scale."""

    vectors: Array  # (d, k), orthonormal
    eigenvalues: Array  # (k,), falling
    energy: float  # the trace of A'A
    stopped: str  # "exact", "converged" or "max_rounds"


class Solver(Protocol):
    """The coordinator's program for one method."""

    def __call__(
        self,
        fed: Federation,
        known: Moments,
        rank: RankRule,
        *,
        start: Array | None,
        tol: float,
        max_rounds: int,
    ) -> Solution: ...


@question(asks={"Z": "float64 d k"}, answers={"Y": "float64 d k"})
def covariance_product(site: Any, Z: Array) -> dict[str, Array]:
    """A_i'(A_i Z) of a site's rows about the mean."""
    return {"Y": site.framed.gram_times(Z)}


def starting_block(fed: Federation, d: int, width: int, start: Array | None) -> Array:
    """An orthonormal ``(d, width)`` block: about what is known of the answer, then random directions.

    Not exactly what is known: the eigenvectors of other rows may be eigenvectors of these too, but
    not the leading ones, and a start that lies in them would never leave them.
    """
    block = fed.rng().standard_normal((d, width)) / np.sqrt(d)
    if start is not None:
        known = start[:, :width]
        block[:, : known.shape[1]] *= ASIDE
        block[:, : known.shape[1]] += known
    return orth(block)
