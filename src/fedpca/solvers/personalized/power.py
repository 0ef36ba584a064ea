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

A stationary U need not be the best one, so several starts climb side by side, in the same rounds. A
climb is dropped when it has met an earlier one, or when it is still below an optimum some rounds after
that optimum was found.

Source: Shi and Kontar, "Personalized PCA: decoupling shared and unique features" (2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.linalg.anderson import Anderson
from fedpca.linalg.dense import outside, polar, procrustes, sine_of_angle
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import question
from fedpca.protocol.script import Script, repeat
from fedpca.solvers.personalized.at_site import PersonalSite, gram_times, local_directions
from fedpca.solvers.personalized.contract import Shared, Start, share_of

if TYPE_CHECKING:
    from fedpca.site.site import Site

# residual of V_i in a round; it lowers the objective by about its square over the gap
LOCAL_TOL = 1e-7
MET = 0.02  # climbs whose directions are this close, as a sine, end at the same optimum
PATIENCE = 100  # rounds in which other climbs must pass an optimum once it is found
SAME = 1e-9  # objectives that differ by at most this share are the same
AS_GOOD = 1e-3  # optima whose objectives differ by at most this share are equally good
APART = 0.1  # optima are different if the sine of their angle is at least this


@dataclass(frozen=True)
class Power:
    """Move U to the polar factor of the gradient; the objective never decreases.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import PersonalizedPCA
    >>> from fedpca.solvers import Power
    >>> rng = np.random.default_rng(0)
    >>> shared, *own = np.eye(5)[:3] * 4
    >>> sites = [rng.normal(size=(40, 2)) @ [shared, local] for local in own]
    >>> pca = PersonalizedPCA(1, 1, solver=Power(), random_state=0).fit(sites)
    >>> abs(pca.components_).round(3)
    array([[1., 0., 0., 0., 0.]])
    """

    name: ClassVar[str] = "power"
    guarantee: ClassVar[str] = "stationary"
    takes_many_starts: ClassVar[bool] = True

    def script(self, plan: RunPlan) -> Script:
        return Script(repeat(power_step, most=plan.max_rounds))

    def solve(self, fed: Federation, start: Start) -> Shared:
        """Climb until the gain that a step guarantees is at most ``tol`` times the shared variance."""
        climbs = [Climb(U, start.tol) for U in start.points]
        going, last_round = climbs, start.max_rounds
        for t in range(start.max_rounds):
            answer = fed.sum(power_step, U=np.stack([climb.U for climb in going]))
            sums = (answer[name] / start.weight for name in ("G", "along", "local"))
            for climb, G, along, local in zip(going, *sums, strict=True):
                climb.take(G, along, float(local))
            best = best_of(climbs)
            fed.report(best.promised, partial(np.asarray, best.top.U))
            if best.has_ended and best in going:
                last_round = t + PATIENCE
            going = worth_going_on(going, climbs, is_late=t >= last_round)
            if not going:
                break
        best = best_of(climbs)  # the last round may have shown that a climb met another
        return replace(best.top, ambiguity=_ambiguity(best, climbs))


class Climb:
    """A climb from one start: the point to ask about, and the best point so far.

    Each step is extrapolated from earlier steps. If the objective decreases, the step is undone and
    replaced with a plain step, which cannot decrease the objective.
    """

    def __init__(self, U: Array, tol: float) -> None:
        self.U = U
        self.promised = 1.0  # the least that the next step adds, as a share of the shared variance
        self.has_ended = False
        self.has_met_another = False  # if so, it is dropped, however high it is
        self.top = Shared(U, np.zeros((U.shape[1],) * 2), -np.inf, "max_rounds")
        self._tol = tol
        self._plain, self._is_plain = U, True
        self._anderson = Anderson()

    def height(self) -> float:
        """Return the objective at the best point."""
        return self.top.objective

    def take(self, G: Array, along: Array, local: float) -> None:
        """Judge the point by what the sites sent, and choose the next point."""
        value = float(np.trace(along)) + local
        if value < self.height():
            if self._is_plain:  # only rounding or an inexact V_i can lower the objective here
                self.has_ended, self.top = True, replace(self.top, stop_reason="stalled")
            # the steps so far led downhill
            self._anderson.clear()
            self.U, self._is_plain = self._plain, True
            return
        F = polar(G)
        gain = 2 * float(np.vdot(F - self.U, G))
        self.promised = share_of(gain, float(np.trace(along)))
        self.has_ended = self.promised <= self._tol
        self.top = Shared(self.U, along, value, "converged" if self.has_ended else "max_rounds")
        # of all bases of this span, the one closest to U, because steps that rotate U cannot be
        # extrapolated
        self._plain = F @ procrustes(F, self.U)
        further = self._anderson.next(self.U, self._plain)
        self._is_plain = further is self._plain
        self.U = self._plain if self._is_plain else polar(further)


def best_of(climbs: Sequence[Climb]) -> Climb:
    """Return the first climb that is as high as the highest.

    Climbs from random starts come last, so they rarely matter.
    """
    own_ways = [climb for climb in climbs if not climb.has_met_another]
    highest = max(climb.height() for climb in own_ways)
    return next(climb for climb in own_ways if climb.height() >= (1 - SAME) * highest)


def worth_going_on(
    going: Sequence[Climb], climbs: Sequence[Climb], *, is_late: bool
) -> list[Climb]:
    """Return the climbs that are worth continuing.

    A climb is dropped if it has ended or has met an earlier one. Late in a fit, a climb is also
    dropped if it is still below an optimum.
    """
    ended = [climb for climb in climbs if climb.has_ended]
    optimum = max((climb.height() for climb in ended), default=-np.inf)
    left: list[Climb] = []
    for climb in going:
        if climb.has_ended or (is_late and climb.height() <= optimum):
            continue
        others = [*left, *ended]
        climb.has_met_another = any(sine_of_angle(climb.top.U, c.top.U) < MET for c in others)
        if not climb.has_met_another:
            left.append(climb)
    return left


def _ambiguity(best: Climb, climbs: Sequence[Climb]) -> float:
    """Return the largest sine of the angle to an equally good optimum, or 0 if there is none."""
    rivals = [
        climb
        for climb in climbs
        if climb.has_ended and climb.height() >= (1 - AS_GOOD) * best.height() > 0
    ]
    sines = [sine_of_angle(best.top.U, rival.top.U) for rival in rivals]
    return max((sine for sine in sines if sine >= APART), default=0.0)


@question(
    doing="improving the shared components",
    asks={"U": "float64 m d k, orthonormal"},
    answers={
        "G": "float64 m d k, explained",
        "along": "float64 m k k, semidefinite, explained",
        "local": "float64 m, squares, explained",
    },
    work="climb",
)
def power_step(site: Site, U: Array) -> dict[str, Any]:
    """Send, for each U, G_i, U'S_i U, and the variance along V_i, times the site's weight."""
    factor = site.recall(PersonalSite).factor
    # one pass over the rows for all climbs
    products = factor * gram_times(site, np.hstack(list(U)))
    G, along, local = np.empty_like(U), [], []
    for i, (own, Y) in enumerate(zip(U, np.hsplit(products, len(U)), strict=True)):
        values, V = local_directions(site, own, LOCAL_TOL)
        G[i] = outside(V, Y)
        along.append(own.T @ Y)
        local.append(factor * values.sum())
    return {"G": G, "along": np.array(along), "local": np.array(local)}
