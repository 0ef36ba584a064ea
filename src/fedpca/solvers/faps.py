"""FAPS: sites agree on a subspace by sending masked products, never a product with their own A_i'A_i.

With C_i = A_i'A_i, each site keeps a copy X_i of the subspace, a penalty beta_i and the multiplier
``Lambda_i = X_i W_i' + W_i X_i'``, ``W_i = -(I - X_i X_i') C_i X_i``, of the constraint that X_i and Z
span the same. A round is

    X_i <- a few steps  X <- orth(H_i X),   H_i = C_i + Lambda_i + beta_i Z Z'         at each site
    Y_i = Q_i Z,   Q_i = beta_i X_i X_i' - Lambda_i                                     leaves it
    Z <- orth(sum_i Y_i).                                                             only the sum

None of the d x d matrices is formed. Where sites are alike and J local steps are taken, an error
shrinks each round by about

    c^J + (1 - c^J) beta / (beta + g),   c = lambda_(k+1) / (lambda_k + beta),

with beta the sum of the penalties and g = lambda_k - lambda_(k+1); subspace iteration has 1 - g /
lambda_k. So a small penalty is fast, and FAPS beats subspace iteration where beta < lambda_(k+1).
It is fragile: where a site's own leading subspace is not the common one, its copy runs away from Z
unless beta_i is about as large as what pulls it, and penalties grow until it stays. With unlike
sites their sum exceeds lambda_k, and FAPS then takes more rounds than subspace iteration: the
solution's advice says so. More local steps make this worse. Block Lanczos has no such trouble.

What leaves a site is masked and not secret: ``(I - Z Z') Y_i`` nears ``(I - Z Z') C_i Z``. See
`fedpca.privacy.leakage`.

Source: Wang, Liu and Zhang, "Seeking consensus on subspaces in federated principal component
analysis" (2023), Algorithm 1; numbers in brackets are its equations. Where this departs from it:

- X_i starts one local power step away from Z. At X_i = Z, its start, the first local solve has a
  fixed point, so it would only amplify rounding.
- In (25) the penalty grows by half and not by a tenth, and never beyond ``2 ||A_i||^2``: on unlike
  sites a tenth takes hundreds of rounds, and without an end slow convergence makes it grow for ever.
- It stops by a bound on the KKT violation ``||(I - Z Z') C Z||_F`` that costs one number a site,
  ``||(I - Z Z')(Q_i - C_i) Z||_F``; the change of the objective, rule (27), does not tell how far it
  is. A last round asks for ``Z'C_i Z``, ``(k, k)``, whose sum has the eigenvalues.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedpca.federation import Federation
from fedpca.linalg import orth, outside, top_eigen
from fedpca.message import Array
from fedpca.moments import Moments, settle_frame
from fedpca.planner import EXPECTED_ROUNDS
from fedpca.question import question
from fedpca.rank import RankRule, Spectrum
from fedpca.solvers.solution import Solution, starting_block

LOCAL_STEPS = 7  # of subspace iteration at each site in each round
PENALTY = 0.15  # beta_i at the start, as a share of ||A_i||_2^2
GROWTH, CHECKED_EVERY, ENOUGH = 0.5, 5, 0.01  # theta, rounds and mu of (25)
LARGEST_PENALTY = 2.0  # share of ||A_i||_2^2 beyond which beta_i does not grow
SUFFICIENT, DECREASE = 0.1, 0.5  # c_1 of (13), with c_1' = 1, and delta_i of (14)
CHANGE = 1e-2  # epsilon_x of (26)
MOST_LOCAL_STEPS = 50
BY_CONDITION = {"decrease": 0, "change": -1}  # in the place of a number of local steps
STOP_RULES = ("kkt", "objective")
TIMES_LANCZOS = 5  # rounds of FAPS for each of Lanczos, about

Product = Callable[[Array], Array]  # C_i times a block


class Copy(NamedTuple):
    """A site's own copy of the subspace, with what its multiplier is made of."""

    X: Array  # (d, k), orthonormal
    W: Array  # (d, k), (16)
    T: Array  # (k, k), X'CX

    @classmethod
    def at(cls, X: Array, CX: Array) -> Copy:
        T = X.T @ CX
        return cls(X, X @ T - CX, T)

    def multiplier_times(self, V: Array) -> Array:
        """Lambda_i V, (15)."""
        return np.asarray(self.X @ (self.W.T @ V) + self.W @ (self.X.T @ V))

    def distance(self, Z: Array) -> float:
        """``||X X' - Z Z'||_F``, without the cancellation that this would have."""
        return float(np.sqrt(2) * np.linalg.norm(outside(Z, self.X)))


def improved(times_C: Product, copy: Copy, Z: Array, beta: float, norm: float, steps: int) -> Copy:
    """A better solution of the local problem (11), by so many steps or up to a condition.

    ``norm`` is ||A_i||_2^2. Conditions are (13) with (14), or (26), in which subspaces are compared: a
    basis is free to turn.
    """
    X, CX = copy.X, copy.X @ copy.T - copy.W

    def times_H(X: Array, CX: Array) -> Array:
        return np.asarray(CX + copy.multiplier_times(X) + beta * Z @ (Z.T @ X))

    HX = times_H(X, CX)
    h, violation = _objective(X, HX), float(np.linalg.norm(outside(X, HX)))
    due = SUFFICIENT / max(norm + beta, np.finfo(float).tiny) * violation**2
    for _ in range(steps if steps > 0 else MOST_LOCAL_STEPS):
        before, X = X, orth(HX)
        CX = times_C(X)
        HX = times_H(X, CX)
        if steps == BY_CONDITION["decrease"]:
            is_nearer = float(np.linalg.norm(outside(X, HX))) <= DECREASE * violation
            is_enough = is_nearer and h - _objective(X, HX) >= due
        elif steps == BY_CONDITION["change"]:
            moved = float(np.linalg.norm(outside(before, X)))
            is_enough = moved <= CHANGE * np.sqrt(X.shape[1])
        else:
            is_enough = False
        if is_enough:
            break
    return Copy.at(X, CX)


def masked_product(copy: Copy, Z: Array, beta: float) -> Array:
    """``Y = Q_i Z``, (18) and (19): all that a site tells of its rows."""
    return np.asarray(beta * copy.X @ (copy.X.T @ Z) - copy.multiplier_times(Z))


def _objective(X: Array, HX: Array) -> float:
    return -float(np.vdot(X, HX)) / 2


@question(
    asks={
        "Z": "float64 d k",
        "penalty": "float64",
        "steps": "int64",
        "ahead": "int64",
        "stop": "int64",
    },
    answers={"Y": "float64 d k", "far": "float64"},
    remembers=True,
)
def consensus_step(
    site: Any, Z: Array, penalty: Array, steps: Array, ahead: Array, stop: Array
) -> dict[str, Any]:
    """The masked product, and the number by which the stop rule goes."""
    times_C = site.framed.gram_times
    if "X" not in site.memory or site.memory["X"].shape != Z.shape:
        _begin(site, times_C, orth(times_C(Z)) if ahead else Z, float(penalty))
    copy = Copy(*(site.memory[name] for name in Copy._fields))
    beta, norm = _penalty(site, copy.distance(Z)), float(site.memory["norm"])
    copy = improved(times_C, copy, Z, beta, norm, int(steps))
    site.memory |= copy._asdict() | {"round": site.memory["round"] + 1}
    Y, CZ = masked_product(copy, Z, beta), times_C(Z)
    by_rule = {"kkt": np.linalg.norm(outside(Z, Y - CZ)), "objective": np.vdot(Z, CZ)}
    return {"Y": Y, "far": np.float64(by_rule[STOP_RULES[int(stop)]])}


def _begin(site: Any, times_C: Product, X: Array, penalty: float) -> None:
    copy = Copy.at(X, times_C(X))
    norm = largest_eigenvalue(times_C, copy)
    site.memory |= copy._asdict()
    site.memory |= {"beta": np.float64(penalty * norm), "norm": np.float64(norm)}
    site.memory["round"] = np.int64(0)


def largest_eigenvalue(times_C: Product, copy: Copy) -> float:
    """||A_i||_2^2, nearly: power steps from a copy until one adds no more than a hundredth."""
    largest = 0.0
    for _ in range(MOST_LOCAL_STEPS):
        before, largest = largest, float(np.linalg.eigvalsh(copy.T)[-1])
        if largest <= (1 + CHANGE) * before:
            break
        X = orth(copy.X @ copy.T - copy.W)
        copy = Copy.at(X, times_C(X))
    return max(largest, 0.0)


def _penalty(site: Any, distance: float) -> float:
    """Beta_i after (25): it grows where the copy has not come nearer to Z in five rounds."""
    memory = site.memory
    beta, number = float(memory["beta"]), int(memory["round"])
    if number % CHECKED_EVERY == 0:
        if number and float(memory["distance"]) <= (1 + ENOUGH) * distance:
            most = max(LARGEST_PENALTY * float(memory["norm"]), beta)
            beta = min((1 + GROWTH) * beta, most)
        memory |= {"beta": np.float64(beta), "distance": np.float64(distance)}
    return beta


@question(
    asks={"Z": "float64 d k"}, answers={"T": "float64 k k", "penalty": "float64"}, remembers=False
)
def energy_within(site: Any, Z: Array) -> dict[str, Any]:
    """``Z'C_i Z``, whose sum has the eigenvalues, and the penalty that the site came to."""
    return {"T": Z.T @ site.framed.gram_times(Z), "penalty": site.memory["beta"]}


def seek_consensus(
    fed: Federation,
    known: Moments,
    rank: RankRule,
    *,
    start: Array | None,
    tol: float,
    max_rounds: int,
    local_steps: Any = None,
    penalty: float = PENALTY,
    stop: str = "kkt",
    ahead: bool = True,
) -> Solution:
    """The leading eigenvectors of A'A, to a scaled residual ``||R||_F / trace(A'A)`` of ``tol``.

    With ``stop="objective"`` to a relative change of ``||A Z||^2`` between rounds of ``tol``, (27).
    ``local_steps`` is a number, or "decrease" for conditions (13) and (14), or "change" for (26).
    Without ``ahead`` copies start at Z itself, which is published and reveals more.
    """
    n, d, p = known.n, known.d, rank.first_look
    steps = BY_CONDITION.get(local_steps, local_steps or LOCAL_STEPS)
    width = p * (max(steps, LOCAL_STEPS) + 1)
    energy = settle_frame(fed, known, width * min(max_rounds, TIMES_LANCZOS * EXPECTED_ROUNDS))
    ask = partial(
        fed.sum,
        consensus_step,
        penalty=np.float64(penalty),
        steps=np.int64(steps),
        ahead=np.int64(ahead),
        stop=np.int64(STOP_RULES.index(stop)),
    )
    Z = starting_block(fed, d, p, start)
    left = max_rounds
    while True:
        Z, rounds, converged = _agree(fed, ask, Z, energy if stop == "kkt" else None, tol, left)
        left -= rounds
        last = fed.sum(energy_within, Z=Z)
        theta, C = top_eigen((last["T"] + last["T"].T) / 2, p)
        V, theta = Z @ C, np.maximum(theta, 0.0)
        k = rank(Spectrum(theta, energy, n, d))
        if k is not None or not left:
            break
        p = min(2 * p, n, d)  # the rule must see more of the spectrum
        Z = starting_block(fed, d, p, V)
    stopped = "converged" if converged and k is not None else "max_rounds"
    k = k or p
    advice = _advice(float(last["penalty"]), float(theta[-1]))
    return Solution(V[:, :k], theta[:k], energy, stopped, advice=advice)


def _agree(
    fed: Federation,
    ask: Callable[..., dict[str, Array]],
    Z: Array,
    energy: float | None,
    tol: float,
    max_rounds: int,
) -> tuple[Array, int, bool]:
    """Algorithm 1: the subspace, the rounds that it took, and whether it met the stop rule.

    The rule is that of the KKT violation as a share of ``energy``, or else that of the objective.
    """
    smallest = np.finfo(float).tiny
    objective = 0.0
    for number in range(1, max_rounds + 1):
        answer = ask(Z=Z)
        Y, far = answer["Y"], float(answer["far"])
        if energy is not None:
            residual = (float(np.linalg.norm(outside(Z, Y))) + far) / max(energy, smallest)
        else:
            residual, objective = abs(far - objective) / max(far, smallest), far
        fed.report(residual, partial(np.asarray, Z))
        if residual <= tol:
            return Z, number, True
        if number < max_rounds:
            Z = orth(Y)
    return Z, max_rounds, False


def _advice(penalty: float, smallest: float) -> str:
    """What to use instead, where penalties had to grow so far that masking costs rounds."""
    if penalty <= smallest:
        return ""
    return (
        f"the sites are so unlike that their penalties came to {penalty:.3g}, above the smallest "
        f"eigenvalue {smallest:.3g}: solver 'power' takes fewer rounds here, and 'lanczos' fewer still"
    )
