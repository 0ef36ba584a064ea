"""Personalized PCA by gradient ascent with retractions: the published methods.

    maximize  sum_i w_i tr(U'S_i U + V_i'S_i V_i),   [U V_i] orthonormal for every site i

``stiefel`` and ``polar`` are the two choices in Algorithm 2. The default step length is
1 / max_i ||S_i|| or slightly less. If the objective decreases, the step is undone, and its length is
halved or lowered to the default. Near the end of a ``polar`` run, no step is short enough, so the run
does not end at a stationary U.

Source: Shi and Kontar, "Personalized PCA: decoupling shared and unique features" (2024), Algorithm 2.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.linalg.dense import outside, polar, qr_factor
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import Question, question
from fedpca.protocol.script import Script, repeat, then
from fedpca.rows.leading import leading_directions
from fedpca.solvers.contract import check_choice, check_positive
from fedpca.solvers.personalized.at_site import (
    PersonalSite,
    energy_of,
    gram_times,
    local_directions,
)
from fedpca.solvers.personalized.contract import Shared, Start, share_of

if TYPE_CHECKING:
    from fedpca.site.site import Site

RETRACTIONS: dict[str, Callable[[Array], Array]] = {"polar": polar, "qr": qr_factor}
MAX_HALVINGS = 10  # most halvings in a row; if more are needed, no step in this direction helps
NORM_POWER = 32  # the 32nd root of N sites' summed powers is 1 to N^(1/32) times the largest norm


@dataclass(frozen=True)
class Stiefel:
    """Ascend along the gradient in the tangent space: Algorithm 2, choice 1.

    Parameters
    ----------
    step : float, optional
        The first step length; by default, about 1 over the largest eigenvalue of any site's covariance.
    retraction : "polar" or "qr"
        The factorization that makes a basis orthonormal.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import PersonalizedPCA
    >>> from fedpca.solvers import Stiefel
    >>> rng = np.random.default_rng(0)
    >>> shared, *own = np.eye(5)[:3] * 4
    >>> sites = [rng.normal(size=(40, 2)) @ [shared, local] for local in own]
    >>> pca = PersonalizedPCA(1, 1, solver=Stiefel(retraction="qr"), random_state=0).fit(sites)
    >>> abs(pca.components_).round(3)
    array([[1., 0., 0., 0., 0.]])
    """

    name: ClassVar[str] = "stiefel"
    guarantee: ClassVar[str] = "no bound"
    takes_many_starts: ClassVar[bool] = False

    step: float | None = None
    retraction: str = "polar"

    def __post_init__(self) -> None:
        _check_options(self.step, self.retraction)

    def script(self, plan: RunPlan) -> Script:
        return steps_script(plan, stiefel_step, self.retraction)

    def solve(self, fed: Federation, start: Start) -> Shared:
        """Iterate until a step adds at most ``tol`` times the shared variance."""
        return gradient_ascent(fed, start, stiefel_step, self.step, self.retraction)


@dataclass(frozen=True)
class Polar:
    """Ascend by polar factors: Algorithm 2, choice 2.

    Parameters
    ----------
    step, retraction
        As for `Stiefel`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import PersonalizedPCA
    >>> from fedpca.solvers import Polar
    >>> rng = np.random.default_rng(0)
    >>> shared, *own = np.eye(5)[:3] * 4
    >>> sites = [rng.normal(size=(40, 2)) @ [shared, local] for local in own]
    >>> pca = PersonalizedPCA(1, 1, solver=Polar(), random_state=0).fit(sites)
    >>> abs(pca.components_).round(3)
    array([[1., 0., 0., 0., 0.]])
    """

    name: ClassVar[str] = "polar"
    guarantee: ClassVar[str] = "no bound"
    takes_many_starts: ClassVar[bool] = False

    step: float | None = None
    retraction: str = "polar"

    def __post_init__(self) -> None:
        _check_options(self.step, self.retraction)

    def script(self, plan: RunPlan) -> Script:
        return steps_script(plan, polar_step, self.retraction)

    def solve(self, fed: Federation, start: Start) -> Shared:
        """Iterate until a step adds at most ``tol`` times the shared variance."""
        return gradient_ascent(fed, start, polar_step, self.step, self.retraction)


def steps_script(plan: RunPlan, asked: Question, retraction: str) -> Script:
    """Return the script of `gradient_ascent`."""
    values = {"by_qr": retraction == "qr"}
    return Script(then(prepare_steps, repeat(asked, most=plan.max_rounds)), values=values)


def _check_options(step: Any, retraction: Any) -> None:
    """Refuse an unknown retraction, or a step length that is not positive."""
    if step is not None:
        check_positive("step", step)
    check_choice("retraction", retraction, RETRACTIONS)


def gradient_ascent(
    fed: Federation, start: Start, asked: Question, first_step: float | None, retraction: str
) -> Shared:
    """Run Algorithm 2; each site takes its step when it answers the question ``asked``."""
    U, weight, tol = start.points[0], start.weight, start.tol
    reference = np.float64(start.energy / weight or 1.0)
    seed = np.int64(-1 if start.seed is None else start.seed)
    ready = fed.sum(prepare_steps, U=U, reference=reference, seed=seed)
    largest = float(ready["largest"]) ** (1 / NORM_POWER) * reference
    default_step = 1 / largest if largest > 0 else 1.0
    step = first_step or default_step
    by_qr, retract = np.int64(retraction == "qr"), RETRACTIONS[retraction]
    best, back, n_halved = None, False, 0
    for _ in range(start.max_rounds):
        answer = fed.sum(asked, U=U, step=np.float64(step), back=np.int64(back), by_qr=by_qr)
        along = answer["along"] / weight
        value = float(np.trace(along) + answer["local"] / weight)
        gain = value - (best.objective if best else 0.0)
        if best and gain < 0:
            fed.report(share_of(-gain, float(np.trace(best.along))), partial(np.asarray, best.U))
            U, step, back = best.U, min(step / 2, default_step), True
            n_halved += 1
            if n_halved > MAX_HALVINGS:
                best = replace(best, stop_reason="stalled")
                break
            continue
        change = share_of(gain, float(np.trace(along)))
        fed.report(change, partial(np.asarray, U))
        # a short step adds little anyway, so judge what a step of the default length would add
        is_over = change * max(1.0, default_step / step) <= tol and not back
        best = Shared(U, along, value, "converged" if is_over else "max_rounds")
        if is_over:
            break
        n_halved, back = n_halved if back else 0, False
        U = retract(answer["U"] / weight)
    assert best is not None  # the first round is never undone
    return best


@dataclass(frozen=True)
class LocalSteps:
    """The V_i that a site remembers between steps."""

    back: Array  # V_i before the last accepted step
    here: Array  # V_i before the last step
    next: Array  # V_i after the last step


@question(
    doing="choosing a step length",
    asks={
        "U": "float64 d k, orthonormal",
        "reference": "float64, positive",
        "seed": "int64, -1..2147483647",
    },
    answers={"largest": "float64, nonnegative, large"},
    remembers=True,
)
def prepare_steps(site: Site, U: Array, reference: Array, seed: Array) -> dict[str, Any]:
    """Choose the initial V_i, at random if there is a seed, and send a high power of ||S_i||."""
    n, n_local = max(1, site.rows.n_rows), site.recall(PersonalSite).n_local
    if seed < 0:
        V = local_directions(site, U)[1]
    else:
        rng = np.random.default_rng([int(seed), zlib.crc32(site.name.encode())])
        V = rng.standard_normal((len(U), n_local))
    site.remember(LocalSteps(V, V, V))
    values, _ = leading_directions(site.standardized, 1, energy_of(site))
    return {"largest": (values.sum() / n / reference) ** NORM_POWER}


STEP_ASKS = {
    "U": "float64 d k, orthonormal",
    "step": "float64, positive",
    "back": "int64, flag",
    "by_qr": "int64, flag",
}
STEP_ANSWERS = {
    "U": "float64 d k, large",  # a step may be too long, and is then undone
    "along": "float64 k k, semidefinite, explained",
    "local": "float64, squares, explained",
}


@question(
    doing="improving the shared components",
    asks=STEP_ASKS,
    answers=STEP_ANSWERS,
    remembers=True,
    work="climb",
)
def stiefel_step(site: Site, U: Array, step: Array, back: Array, by_qr: Array) -> dict[str, Any]:
    """Step along the gradient in the tangent space at [U V_i]: Algorithm 2, choice 1."""
    retract = RETRACTIONS["qr" if by_qr else "polar"]

    def move(X: Array, SX: Array) -> tuple[Array, Array]:
        G = SX - X @ (X.T @ SX + SX.T @ X) / 2
        k = U.shape[1]
        return U + step * G[:, :k], retract(X[:, k:] + step * G[:, k:])

    return _moved(site, U, back, retract, move)


@question(
    doing="improving the shared components",
    asks=STEP_ASKS,
    answers=STEP_ANSWERS,
    remembers=True,
    work="climb",
)
def polar_step(site: Site, U: Array, step: Array, back: Array, by_qr: Array) -> dict[str, Any]:
    """Take the polar factor of [U V_i] + step S_i [U V_i]: Algorithm 2, choice 2, and Algorithm 1."""
    retract = RETRACTIONS["qr" if by_qr else "polar"]

    def move(X: Array, SX: Array) -> tuple[Array, Array]:
        moved = polar(X + step * SX)
        return moved[:, : U.shape[1]], moved[:, U.shape[1] :]

    return _moved(site, U, back, retract, move)


def _moved(
    site: Site,
    U: Array,
    back: Array,
    retract: Callable[[Array], Array],
    move: Callable[[Array, Array], tuple[Array, Array]],
) -> dict[str, Any]:
    """Make V_i orthogonal to U and take a step; send the new point and the objective at the old one.

    ``back`` is true if the coordinator undid the last step.
    """
    steps, k = site.recall(LocalSteps), U.shape[1]
    V = retract(outside(U, steps.back if back else steps.next))
    X = np.hstack([U, V])
    SX = gram_times(site, X) / max(1, site.rows.n_rows)
    moved, V_next = move(X, SX)
    site.remember(LocalSteps(steps.back if back else steps.here, V, V_next))
    w = site.recall(PersonalSite).weight
    return {
        "U": w * moved,
        "along": w * (U.T @ SX[:, :k]),
        "local": w * np.vdot(V, SX[:, k:]),
    }
