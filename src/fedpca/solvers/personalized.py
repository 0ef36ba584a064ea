"""Personalised PCA: directions U that all sites share, and V_i of each one's own beside them.

    maximise  sum_i w_i tr(U'S_i U + V_i'S_i V_i),   [U V_i] orthonormal for every site i

The rounds send sums of d x k and k x k matrices and of numbers, which are about U; no V_i is sent.

``power`` needs no step length. At a site ``V_i`` are the leading directions outside U, and

    G = sum_i w_i (I - P_i) S_i U,   P_i = V_i V_i';   U <- polar(G).

With V_i held, ``h(U) = tr(U'(I - P_i) S_i (I - P_i) U) + tr(V_i'S_i V_i)`` equals the objective where U
is orthogonal to V_i, and elsewhere is at most what U and its own best directions give: W = (I - P_i) U
has singular values of at most 1 and is orthogonal to V_i, so ``WW' + P_i`` is at most the projection on
the span of U and V_i, which has no more than as many directions outside U as V_i. As h is convex in U,
it lies above its tangent, with slope 2 G at the present U, and the polar factor maximises that. So with
exact V_i the objective cannot fall, and grows by at least ``2 (||G||_* - tr U'G)``, which is zero only
where U is stationary.

``stiefel`` and ``polar`` are the two choices of the published Algorithm 2, gradient ascent with
retractions, the step 1 / max_i ||S_i||, or a little less, if none is given. Where the objective falls,
the step is taken back and halved, or brought down to that one. Near the end of ``polar`` no step is
short enough: it does not end at a stationary U.

Source: Shi and Kontar, "Personalized PCA: decoupling shared and unique features" (2024).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fedpca.federation import Federation
from fedpca.leading import leading_directions
from fedpca.linalg import outside, polar, procrustes, qr_factor
from fedpca.message import Array
from fedpca.question import Question, question
from fedpca.solvers.extrapolation import Extrapolation
from fedpca.solvers.personal_site import gram_times, local_directions

RETRACTIONS: dict[str, Callable[[Array], Array]] = {"polar": polar, "qr": qr_factor}
LOCAL_TOL = 1e-7  # residual of V_i between rounds; the objective lacks its square over the gap
MOST_HALVED = 10  # times in a row, after which the direction is none in which the objective grows
NORM = 32  # a sum of such powers is that of the largest, to N^(1/32) for N sites


@dataclass(frozen=True)
class Shared:
    """The shared directions, and where the solver stopped."""

    U: Array  # (d, k), orthonormal
    along: Array  # (k, k): U'(sum w_i S_i)U over the sum of w_i
    objective: float  # over the sum of w_i
    stopped: str  # "converged", "max_rounds", or "stalled" where no step leads further


@question(
    asks={"U": "float64 d k"},
    answers={"G": "float64 d k", "along": "float64 k k", "local": "float64"},
)
def power_step(site: Any, U: Array) -> dict[str, Any]:
    """G_i, U'S_i U, and what V_i carries, times the site's weight."""
    values, V = local_directions(site, U, LOCAL_TOL)
    Y = site.memory["factor"] * gram_times(site, U)
    return {"G": outside(V, Y), "along": U.T @ Y, "local": site.memory["factor"] * values.sum()}


def step_free(fed: Federation, U: Array, weight: float, *, tol: float, max_rounds: int) -> Shared:
    """The iteration of ``power``, until a step promises to add at most ``tol`` of the shared variance.

    Steps are extrapolated from those before. One after which the objective is lower is taken back for
    the plain one, after which it cannot be.
    """
    found, extrapolation = None, Extrapolation()
    promised, plain, is_plain = 1.0, U, True
    for _ in range(max_rounds):
        answer = fed.sum(power_step, U=U)
        along, G = answer["along"] / weight, answer["G"] / weight
        value = float(np.trace(along) + answer["local"] / weight)
        if found and value < found.objective:
            fed.report(promised, partial(np.asarray, found.U))
            if is_plain:  # which only rounding, or what V_i lacks, makes worse
                return replace(found, stopped="stalled")
            extrapolation.clear()
            U, is_plain = plain, True
            continue
        F = polar(G)
        gain = 2 * float(np.vdot(F, G) - np.vdot(U, G))
        promised = share_of(gain, float(np.trace(along)))
        fed.report(promised, partial(np.asarray, U))
        found = Shared(U, along, value, "converged" if promised <= tol else "max_rounds")
        if promised <= tol:
            break
        plain = F @ procrustes(F, U)
        further = extrapolation.next(U, plain)
        is_plain = further is plain
        U = plain if is_plain else polar(further)
    assert found is not None  # the first step is never taken back
    return found


def share_of(gain: float, shared: float) -> float:
    """A gain as a share of the variance along U, however much is local; of none there is none."""
    return max(0.0, gain) / shared if shared > 0 else 0.0


@question(
    asks={"U": "float64 d k", "reference": "float64", "seed": "int64"},
    answers={"largest": "float64"},
    remembers=True,
)
def prepare_steps(site: Any, U: Array, reference: Array, seed: Array) -> dict[str, Any]:
    """A V_i to begin with, random where there is a seed, and a high power of ||S_i||."""
    energy, n = float(site.memory["energy"]), max(1, site.rows.n_rows)
    if seed < 0:
        V = local_directions(site, U)[1]
    else:
        rng = np.random.default_rng([int(seed), zlib.crc32(site.name.encode())])
        V = rng.standard_normal((len(U), int(site.memory["n_local"])))
    site.memory |= {"V_next": V, "V_here": V, "V_back": V}
    values, _ = leading_directions(site.framed, 1, energy)
    return {"largest": (values.sum() / n / reference) ** NORM}


STEP_ASKS = {"U": "float64 d k", "step": "float64", "back": "int64", "by_qr": "int64"}
STEP_ANSWERS = {"U": "float64 d k", "along": "float64 k k", "local": "float64"}


@question(asks=STEP_ASKS, answers=STEP_ANSWERS, remembers=True)
def stiefel_step(site: Any, U: Array, step: Array, back: Array, by_qr: Array) -> dict[str, Any]:
    """Algorithm 2, choice 1: a step along the gradient in the tangent space at [U V_i]."""
    retract = RETRACTIONS["qr" if by_qr else "polar"]

    def move(X: Array, SX: Array) -> tuple[Array, Array]:
        G = SX - X @ (X.T @ SX + SX.T @ X) / 2
        k = U.shape[1]
        return U + step * G[:, :k], retract(X[:, k:] + step * G[:, k:])

    return _moved(site, U, back, retract, move)


@question(asks=STEP_ASKS, answers=STEP_ANSWERS, remembers=True)
def polar_step(site: Any, U: Array, step: Array, back: Array, by_qr: Array) -> dict[str, Any]:
    """Algorithm 2, choice 2, and Algorithm 1: the polar factor of [U V_i] + step S_i [U V_i]."""
    retract = RETRACTIONS["qr" if by_qr else "polar"]

    def move(X: Array, SX: Array) -> tuple[Array, Array]:
        moved = polar(X + step * SX)
        return moved[:, : U.shape[1]], moved[:, U.shape[1] :]

    return _moved(site, U, back, retract, move)


def _moved(
    site: Any,
    U: Array,
    back: Array,
    retract: Callable[[Array], Array],
    move: Callable[[Array, Array], tuple[Array, Array]],
) -> dict[str, Any]:
    """Make V_i orthogonal to U, take the step, and tell of the place where it was taken.

    The site keeps V_i there, after the step, and where the last accepted step was taken: ``back`` says
    that the one after it was not accepted.
    """
    site.remembered("V_back", "V_here", "V_next")
    memory, k = site.memory, U.shape[1]
    V = retract(outside(U, memory["V_back"] if back else memory["V_next"]))
    X = np.hstack([U, V])
    SX = gram_times(site, X) / max(1, site.rows.n_rows)
    moved, V_next = move(X, SX)
    memory |= {
        "V_back": memory["V_back"] if back else memory["V_here"],
        "V_here": V,
        "V_next": V_next,
    }
    w = float(memory["weight"])
    return {
        "U": w * moved,
        "along": w * (U.T @ SX[:, :k]),
        "local": w * np.vdot(V, SX[:, k:]),
    }


def gradient_ascent(
    fed: Federation,
    U: Array,
    weight: float,
    *,
    asked: Question,
    energy: float,
    tol: float,
    max_rounds: int,
    step: float | None,
    retraction: str,
    seed: int | None,
) -> Shared:
    """The iteration of Algorithm 2, until a step adds at most ``tol`` of the shared variance."""
    reference = np.float64(energy / weight or 1.0)
    ready = fed.sum(
        prepare_steps, U=U, reference=reference, seed=np.int64(-1 if seed is None else seed)
    )
    largest = float(ready["largest"]) ** (1 / NORM) * reference
    due = 1 / largest if largest > 0 else 1.0
    step = step or due
    by_qr, retract = np.int64(retraction == "qr"), RETRACTIONS[retraction]
    found, back, n_halved = None, False, 0
    for _ in range(max_rounds):
        answer = fed.sum(asked, U=U, step=np.float64(step), back=np.int64(back), by_qr=by_qr)
        along = answer["along"] / weight
        value = float(np.trace(along) + answer["local"] / weight)
        gain = value - (found.objective if found else 0.0)
        if found and gain < 0:
            fed.report(share_of(-gain, float(np.trace(found.along))), partial(np.asarray, found.U))
            U, step, back = found.U, min(step / 2, due), True
            n_halved += 1
            if n_halved > MOST_HALVED:
                found = replace(found, stopped="stalled")
                break
            continue
        change = share_of(gain, float(np.trace(along)))
        fed.report(change, partial(np.asarray, U))
        is_over = change * max(1.0, due / step) <= tol and not back  # short steps add little
        found = Shared(U, along, value, "converged" if is_over else "max_rounds")
        if is_over:
            break
        n_halved, back = n_halved if back else 0, False
        U = retract(answer["U"] / weight)
    assert found is not None  # the first round is never taken back
    return found


METHODS: dict[str, Callable[..., Shared]] = {
    "power": step_free,
    "stiefel": partial(gradient_ascent, asked=stiefel_step),
    "polar": partial(gradient_ascent, asked=polar_step),
}
