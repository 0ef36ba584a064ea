"""What every solver takes and gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpca.federation import Federation
from fedpca.linalg import orth
from fedpca.message import Array
from fedpca.question import question

ASIDE = 1e-2  # how far a warm start keeps away from the subspace that it was given


@dataclass(frozen=True)
class Solution:
    """The leading eigenvectors of A'A, A being all sites' rows about the mean and in the scale."""

    vectors: Array  # (d, k), orthonormal
    eigenvalues: Array  # (k,), falling
    energy: float  # the trace of A'A
    stopped: str  # "exact", "approximate", "converged" or "max_rounds"
    missing: float = 0.0  # most that sites left out of any eigenvalue, as a share of the energy
    angle_bound: float = 0.0  # sine of the largest angle that this can cause
    advice: str = ""  # what would have been better, where the solver can tell


# The coordinator's program for one method:
#     solve(fed, known, rank, *, start, tol, max_rounds, **options) -> Solution
# ``known`` are the moments that all sites agree on, ``rank`` says how many eigenvectors are wanted,
# ``start`` is a subspace (d, k) from which to begin, or None, and ``options`` are the method's own.
Solver = Callable[..., Solution]


@question(asks={"Z": "float64 d k"}, answers={"Y": "float64 d k"})
def covariance_product(site: Any, Z: Array) -> dict[str, Array]:
    """A_i'(A_i Z) of a site's rows about the mean."""
    return {"Y": site.framed.gram_times(Z)}


def scaled(residual: float, energy: float) -> float:
    """A residual as a share of the energy; of nothing, where there is none."""
    return residual / max(energy, float(np.finfo(np.float64).tiny))


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
