"""Personalized PCA without a step length: find shared directions U and each site's local V_i.

    maximize  sum_i w_i tr(U'S_i U + V_i'S_i V_i),   [U V_i] orthonormal for every site i

    V_i <- the leading directions of S_i outside U
    G = sum_i w_i (I - P_i) S_i U,   P_i = V_i V_i';   U <- polar(G)

Each round sums d x k matrices, k x k matrices, and numbers over the sites. No V_i is sent.

With exact V_i, the objective cannot decrease. Hold V_i fixed, and let ``h(U) = tr(U'(I - P_i) S_i
(I - P_i) U) + tr(V_i'S_i V_i)``. If U is orthogonal to V_i, h equals the objective. Otherwise, h is at
most the objective of U with its own best directions: W = (I - P_i) U has singular values of at most 1
and is orthogonal to V_i. So ``WW' + P_i`` is at most the projection onto the span of U and V_i, and
that span has at most as many directions outside U as V_i has. Since h is convex in U, it lies above its
tangent. The tangent has slope 2 G at the current U, and the polar factor maximizes it. So the objective
increases by at least ``2 (||G||_* - tr U'G)``, which is zero only if U is stationary.

Source: Shi and Kontar, "Personalized PCA: decoupling shared and unique features" (2024).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.linalg.anderson import Anderson
from fedpca.linalg.dense import outside, polar, procrustes
from fedpca.protocol.question import question
from fedpca.solvers.personalized.at_site import PersonalSite, gram_times, local_directions
from fedpca.solvers.personalized.contract import Shared, Start, share_of

if TYPE_CHECKING:
    from fedpca.site.site import Site

LOCAL_TOL = 1e-7  # residual of V_i in a round; the objective loses its square over the gap


@dataclass(frozen=True)
class Power:
    """Move U to the polar factor of the gradient; the objective never decreases."""

    name: ClassVar[str] = "power"

    def solve(self, fed: Federation, start: Start) -> Shared:
        """Iterate until a step's guaranteed gain is at most ``tol`` times the shared variance.

        Each step is extrapolated from earlier steps. If the objective decreases, the step is undone and
        replaced with a plain step, which cannot decrease the objective.
        """
        U, weight, best, anderson = start.U, start.weight, None, Anderson()
        promised, plain, is_plain = 1.0, U, True
        for _ in range(start.max_rounds):
            answer = fed.sum(power_step, U=U)
            along, G = answer["along"] / weight, answer["G"] / weight
            value = float(np.trace(along) + answer["local"] / weight)
            if best and value < best.objective:
                fed.report(promised, partial(np.asarray, best.U))
                if is_plain:  # only rounding or an inexact V_i can lower the objective here
                    return replace(best, stop_reason="stalled")
                anderson.clear()
                U, is_plain = plain, True
                continue
            F = polar(G)
            gain = 2 * float(np.vdot(F, G) - np.vdot(U, G))
            promised = share_of(gain, float(np.trace(along)))
            fed.report(promised, partial(np.asarray, U))
            reason = "converged" if promised <= start.tol else "max_rounds"
            best = Shared(U, along, value, reason)
            if promised <= start.tol:
                break
            plain = F @ procrustes(F, U)
            further = anderson.next(U, plain)
            is_plain = further is plain
            U = plain if is_plain else polar(further)
        assert best is not None  # the first step is never undone
        return best


@question(
    asks={"U": "float64 d k"},
    answers={"G": "float64 d k", "along": "float64 k k", "local": "float64"},
)
def power_step(site: Site, U: Array) -> dict[str, Any]:
    """Send G_i, U'S_i U, and the variance along V_i, each multiplied by the site's weight."""
    factor = site.recall(PersonalSite).factor
    values, V = local_directions(site, U, LOCAL_TOL)
    Y = factor * gram_times(site, U)
    return {"G": outside(V, Y), "along": U.T @ Y, "local": factor * values.sum()}
