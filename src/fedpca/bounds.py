"""How far leading directions can be from those of all rows at once, by what was left out of them.

With ``S = C' diag(l) C + T + E`` (`fedpca.lowrank.LowRank`), T orthogonal to C, and ``e`` the norm of E
and of rounding, no eigenvalue of S behind the k-th exceeds ``l_(k+1) + e``, and what S does to the k
leading directions beyond multiplying them is at most e. So, with ``t`` the norm of T,

    sin(angle) <= e / (l_k - l_(k+1) - e),    l_(r+1) = t behind the r directions that are carried.

Source: Davis and Kahan, "The rotation of eigenvectors by a perturbation III" (1970).
"""

from __future__ import annotations

import numpy as np

from fedpca.lowrank import EPS, LowRank


def rounding(kept: LowRank) -> float:
    """What arithmetic alone may do to an eigenvalue: the scatter is squares of rows."""
    largest = float(kept.values[0]) ** 2 if len(kept.values) else 0.0
    return float(kept.directions.shape[1] * EPS * largest)


def lost_energy(kept: LowRank, energy: float) -> float:
    """The part of the energy, the trace of S, that is not along the directions."""
    return max(0.0, energy - float(np.sum(kept.values**2)))


def missing_norm(kept: LowRank, energy: float) -> float:
    """The norm of E, at most; it cannot exceed its trace, which is known up to rounding."""
    slack = float(kept.directions.shape[1] * EPS * energy)
    return min(kept.missing, lost_energy(kept, energy) + slack)


def angle_bound(kept: LowRank, energy: float, k: int) -> float:
    """The sine of the largest angle to the k leading directions of S, at most.

    It is 1, and says nothing, where the gap is too small.
    """
    if k == kept.directions.shape[1] or not energy:
        return 0.0
    unknown = max(1, k + 1 - len(kept.values))
    values = np.append(kept.values**2, np.full(unknown, kept.tail))
    e = missing_norm(kept, energy) + rounding(kept)
    distance = float(values[k - 1] - values[k]) - e
    return min(1.0, e / distance) if distance > 0 else 1.0


def eigenvalue_bound(kept: LowRank, energy: float, k: int) -> float:
    """By how much one of the k leading eigenvalues can be too small, as a share of the energy."""
    tail = kept.tail if k > len(kept.values) else 0.0
    left_out = min(kept.missing + tail, lost_energy(kept, energy))
    return left_out / energy if energy else 0.0


def variance_bound(kept: LowRank, energy: float, k: int) -> float:
    """How much more of the energy the k best directions could carry, at most, as a share."""
    unknown = max(0, k - len(kept.values))
    left_out = k * missing_norm(kept, energy) + unknown * kept.tail
    return min(left_out, lost_energy(kept, energy)) / energy if energy else 0.0
