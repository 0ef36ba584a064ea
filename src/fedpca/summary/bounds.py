"""Bound the error of leading directions after truncation, compared with the exact ones for all rows.

Let ``S = C' diag(l) C + T + E`` (`fedpca.summary.lowrank.LowRank`) with T orthogonal to C. Let t be the
norm of T, and let e be the norm of E plus rounding. No eigenvalue of S after the k-th exceeds
``l_(k+1) + e``, and the residual of the k leading directions is at most e. Therefore,

    sin(angle) <= e / (l_k - l_(k+1) - e),   where l_(r+1) = t if r directions are carried

Source: Davis and Kahan, "The rotation of eigenvectors by a perturbation III" (1970).
"""

from __future__ import annotations

import numpy as np

from fedpca.summary.lowrank import EPS, LowRank


def eigenvalue_rounding(kept: LowRank, n: float) -> float:
    """Return a bound on the rounding error of an eigenvalue of the scatter of n rows.

    Each of up to n blocks adds an error. Since errors have either sign, their sum grows with the square
    root of n.
    """
    largest = float(kept.values[0]) ** 2 if len(kept.values) else 0.0
    return float((kept.directions.shape[1] + np.sqrt(max(0.0, n))) * EPS * largest)


def lost_energy(kept: LowRank, energy: float) -> float:
    """Return the part of the energy, the trace of S, that is not along the directions."""
    return max(0.0, energy - float(np.sum(kept.values**2)))


def missing_norm(kept: LowRank, energy: float) -> float:
    """Return a bound on the norm of E, which, up to rounding, cannot exceed the trace of T + E."""
    slack = float(kept.directions.shape[1] * EPS * energy)
    return min(kept.missing, lost_energy(kept, energy) + slack)


def angle_bound(kept: LowRank, energy: float, k: int, n: float, more: float = 0.0) -> float:
    """Return a bound on the sine of the largest angle to the k leading directions of n rows.

    If the eigenvalue gap is too small, the bound is 1 and carries no information. ``more`` is added to
    the bound on rounding.
    """
    if k == kept.directions.shape[1] or not energy:
        return 0.0
    n_unknown = max(1, k + 1 - len(kept.values))
    # directions that are not stored have eigenvalues of at most the tail
    values = np.append(kept.values**2, np.full(n_unknown, kept.tail))
    e = missing_norm(kept, energy) + eigenvalue_rounding(kept, n) + more
    distance = float(values[k - 1] - values[k]) - e
    return min(1.0, e / distance) if distance > 0 else 1.0


def eigenvalue_bound(kept: LowRank, energy: float, k: int) -> float:
    """Bound how much each of the k leading eigenvalues is underestimated, as a share of the energy."""
    tail = kept.tail if k > len(kept.values) else 0.0
    left_out = min(kept.missing + tail, lost_energy(kept, energy))
    return left_out / energy if energy else 0.0


def variance_bound(kept: LowRank, energy: float, k: int) -> float:
    """Return a bound on how much more of the energy the k best directions would carry, as a share."""
    n_unknown = max(0, k - len(kept.values))
    left_out = k * missing_norm(kept, energy) + n_unknown * kept.tail
    return min(left_out, lost_energy(kept, energy)) / energy if energy else 0.0
