"""Add components to a robust fit while its residuals have a direction that stands out from noise.

    R_i = A_i - V_i U' where that is within the threshold, else 0

If U lacks a component, the residuals contain it. So the largest eigenvalue of the residuals is
compared with that of the residuals with random signs (`fedpca.solvers.sign_flips`). A larger
eigenvalue shows that a component is missing, and its eigenvector is where that component starts.
Components are added one at a time: a threshold that cuts through the residuals of one component
makes more directions stand out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.linalg.dense import orth
from fedpca.linalg.parallel_analysis import FEW_DRAWS, quantile_floor
from fedpca.models.robust import without_large
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import question
from fedpca.protocol.script import Order, maybe, repeat, repeat_from_once, then
from fedpca.solvers.robust.at_site import CARRY, carried_scores
from fedpca.solvers.robust.blocks import standardized_blocks
from fedpca.solvers.robust.contract import (
    Carry,
    Limits,
    Rank,
    RobustFit,
    RobustMoments,
    rounds_of,
)
from fedpca.solvers.robust.hard import by_hard_threshold, hard_round
from fedpca.solvers.robust.schedule import check_last_threshold
from fedpca.solvers.sign_flips import (
    MARGIN,
    MAX_ROUNDS,
    draw_signs,
    fewer_directions,
    leading_of_flips,
    product_of_flips,
)

if TYPE_CHECKING:
    from fedpca.site.site import Site

FLIPS = 1 + FEW_DRAWS  # the residuals as they are, and with random signs
AS_IS = 0  # the flip that changes no sign


def grown(
    fed: Federation, fit: RobustFit, moments: RobustMoments, limits: Limits, bound: int
) -> tuple[RobustFit, Rank]:
    """Add components until residuals look like noise, or the bound or a limit is reached."""
    nothing = np.empty((len(fit.U), 0))  # there is nothing more to remove from the residuals
    fed.sum(draw_signs, seed=np.int64(fed.rng().integers(2**63)), removed=nothing)
    while True:
        r = fit.U.shape[1]
        missing = missing_direction(fed, fit, moments, limits)
        if missing is None or r == bound or fit.stop_reason != "converged":
            return fit, Rank(r, is_clear=missing is None)
        # only one at a time: the threshold cuts through a missed component, and the pieces stand out
        # too
        U = orth(np.column_stack([fit.U, missing]))
        carry = fit.carry or Carry.first(r, fit.center)
        # scores on the new component are zero at first
        turn = np.ascontiguousarray(carry.turn @ (fit.U.T @ U))
        fit = by_hard_threshold(fed, U, moments, limits, carry=replace(carry, turn=turn))


def growth_order(plan: RunPlan) -> Order:
    """Return the order in which `grown` asks."""
    compare = repeat_from_once(residual_product, MAX_ROUNDS)
    fit = repeat_from_once(hard_round, rounds_of(plan))
    bound = int(plan.parameters["max_components"])
    return then(draw_signs, repeat(compare, fit, most=bound - 1), maybe(compare))


def missing_direction(
    fed: Federation, fit: RobustFit, moments: RobustMoments, limits: Limits
) -> Array | None:
    """Return the residuals' leading direction, ``(d,)``, if it stands out from noise, else None."""
    d, r = fit.U.shape
    if fit.noise <= limits.tol * moments.size or r == d or fit.carry is None:
        return None
    threshold = np.float64(fit.threshold)
    ask = partial(fed.sum, residual_product, U=fit.U, **fit.carry.asked, threshold=threshold)
    (largest, vectors), *flipped = leading_of_flips(ask, fed.rng(), FLIPS, d, 1)
    floor = quantile_floor(np.array([values for values, _ in flipped]))
    n = moments.n
    stands_out = largest[0] > MARGIN * fewer_directions(n, d, r) * floor[0]
    return vectors[:, 0] if stands_out else None


@question(
    doing="finding the number of components",
    asks={
        "U": "float64 d r, orthonormal",
        **CARRY,
        "threshold": "float64, positive",
        "Z": "float64 d k",
        "flips": f"int64 k, 0..{FEW_DRAWS}",
    },
    answers={"Y": "float64 d k"},
)
def residual_product(
    site: Site,
    U: Array,
    turn: Array,
    center: Array,
    mean_scores: Array,
    threshold: Array,
    Z: Array,
    flips: Array,
) -> dict[str, Any]:
    """Send R'(R Z), where ``flips`` selects the signs by which the residuals R are multiplied."""
    check_last_threshold(site, threshold)
    scores = carried_scores(site, turn, mean_scores)
    residuals = (
        without_large(A - (scores[rows] @ U.T) * present, threshold)
        for rows, A, present in standardized_blocks(site, center)
    )
    return product_of_flips(site, Z, flips, residuals, as_is=AS_IS)
