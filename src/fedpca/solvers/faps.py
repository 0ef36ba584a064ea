"""FAPS: sites agree on a subspace by sending products behind a mask that each makes for itself.

A round, with C_i = A_i'A_i, a copy X_i of the subspace and a penalty beta_i at each site:

    X_i <- a better solution of the local problem, which holds it to Z     at each site
    Y_i = Q_i Z,   Q_i the site's mask                                   leaves it
    Z <- orth(sum_i Y_i)                                                only the sum

`fedpca.solvers.faps_local` says what is done at a site. Near the end, where all sites are alike, what
Z lacks in common and what the copies differ by shrink in each round by about

    c^J + (1 - c^J) beta / (beta + g),   c = lambda_(k+1) / (lambda_k + beta),   and   l / (l + beta),

with J local steps, beta the sum of the penalties, g = lambda_k - lambda_(k+1) and l = lambda_1 -
lambda_d. So a penalty can be too large and too small; the best one is about sqrt(g lambda_1).
Subspace iteration has 1 - g / lambda_k, and is beaten where beta < lambda_(k+1).

It is fragile. Where a site's own leading subspace is not the common one, its copy runs away from Z
unless beta_i is about as large as what pulls it, and penalties grow until it stays. With unlike
sites their sum exceeds lambda_k, and subspace iteration is faster. It is, too, where eigenvalues fall
fast behind the k-th, since it then needs next to no rounds. `Solution.advice` says so where it can be
told. Block Lanczos beats both and does not care how rows are split.

The mask is no secret: ``(I - Z Z') Y_i`` nears ``(I - Z Z') C_i Z``, and the last round asks for
``Z'C_i Z``. See `fedpca.privacy.leakage`.

Source: Wang, Liu and Zhang, "Seeking consensus on subspaces in federated principal component
analysis" (2023), Algorithm 1; numbers in brackets are its equations. Where this departs from it:

- X_i starts one local power step away from Z. At X_i = Z, its start, the first local problem has a
  fixed point, so it would only amplify rounding; and the first message would hold an exact block of
  C_i.
- In (25) the penalty grows by half and not by a tenth, and never beyond ``2 ||A_i||^2``: on unlike
  sites a tenth takes hundreds of rounds, and without an end slow convergence makes it grow for ever.
- It stops by a bound on the KKT violation ``||(I - Z Z') C Z||_F`` that costs one number a site,
  ``||(I - Z Z')(Q_i - C_i) Z||_F``, and there one product more; the change of the objective, rule
  (27), does not tell how far it is. The last round is for the eigenvalues.
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
from fedpca.solvers.faps_local import (
    BY_CONDITION,
    Copy,
    Product,
    grown,
    largest_eigenvalue,
    masked_product,
    solve_locally,
)
from fedpca.solvers.solution import Solution, scaled, starting_block

LOCAL_STEPS = 5  # of subspace iteration at each site in each round
PENALTY = 0.15  # beta_i at the start, as a share of ||A_i||_2^2
CHECKED_EVERY = 5  # rounds between two looks at a penalty, (25)
STOP_RULES = ("kkt", "objective")
FEW_ROUNDS = 10
TIMES_LANCZOS = 5  # rounds of FAPS for each of Lanczos, about


@question(
    asks={
        "Z": "float64 d k",
        "penalty": "float64",
        "steps": "int64",
        "start_apart": "int64",
        "stop": "int64",
    },
    answers={"Y": "float64 d k", "stop_value": "float64"},
    remembers=True,
)
def consensus_step(
    site: Any, Z: Array, penalty: Array, steps: Array, start_apart: Array, stop: Array
) -> dict[str, Any]:
    """The masked product, and the number by which the stop rule goes."""
    times_C, memory = site.framed.gram_times, site.memory
    if "X" not in memory or memory["X"].shape != Z.shape:
        memory |= _beginning(times_C, orth(times_C(Z)) if start_apart else Z, float(penalty))
    copy = Copy(*(memory[name] for name in Copy._fields))
    beta, norm, number = (memory[name].item() for name in ("beta", "norm", "round"))
    if number % CHECKED_EVERY == 0:
        distance = copy.distance(Z)
        if number:
            beta = grown(beta, memory["distance"].item(), distance, norm)
        memory["distance"] = np.float64(distance)
    copy = solve_locally(times_C, copy, Z, beta, norm, int(steps))
    memory |= copy._asdict() | {"beta": np.float64(beta), "round": np.int64(number + 1)}
    Y, CZ = masked_product(copy, Z, beta), times_C(Z)
    by_rule = {"kkt": np.linalg.norm(outside(Z, Y - CZ)), "objective": np.vdot(Z, CZ)}
    return {"Y": Y, "stop_value": np.float64(by_rule[STOP_RULES[int(stop)]])}


def _beginning(times_C: Product, X: Array, penalty: float) -> dict[str, Array]:
    """What a site remembers before its first round."""
    copy = Copy.at(X, times_C(X))
    norm = largest_eigenvalue(times_C, copy)
    numbers = {"beta": penalty * norm, "norm": norm, "round": 0}
    return copy._asdict() | {name: np.array(number) for name, number in numbers.items()}


@question(
    asks={"Z": "float64 d k"},
    answers={"within": "float64 k k", "penalty": "float64", "norm": "float64"},
)
def energy_within(site: Any, Z: Array) -> dict[str, Any]:
    """``Z'C_i Z``, whose sum has the eigenvalues; the penalty that the site came to; ||A_i||_2^2."""
    within = Z.T @ site.framed.gram_times(Z)
    return {"within": within, "penalty": site.memory["beta"], "norm": site.memory["norm"]}


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
    start_apart: bool = True,
) -> Solution:
    """The leading eigenvectors of A'A, to a scaled residual ``||R||_F / trace(A'A)`` of ``tol``.

    With ``stop="objective"`` to a relative change of ``||A Z||^2`` between rounds of ``tol``, (27).
    ``local_steps`` is a number, or "decrease" for conditions (13) and (14), or "change" for (26).
    Without ``start_apart`` copies start at Z itself, as published, which reveals more.
    """
    n, d, p = known.n, known.d, rank.first_look
    steps = BY_CONDITION.get(local_steps, local_steps or LOCAL_STEPS)
    each_round = p * (max(steps, LOCAL_STEPS) + 1)  # columns that a site multiplies
    rounds = min(max_rounds, TIMES_LANCZOS * EXPECTED_ROUNDS)
    energy = settle_frame(fed, known, each_round * rounds)
    ask = partial(
        fed.sum,
        consensus_step,
        penalty=np.float64(penalty),
        steps=np.int64(steps),
        start_apart=np.int64(start_apart),
        stop=np.int64(STOP_RULES.index(stop)),
    )
    Z = starting_block(fed, d, p, start)
    left = max_rounds
    while True:
        Z, residuals = _agree(fed, ask, Z, energy, stop, tol, left)
        left -= len(residuals)
        last = fed.sum(energy_within, Z=Z)
        theta, C = top_eigen((last["within"] + last["within"].T) / 2, p)
        V, theta = Z @ C, np.maximum(theta, 0.0)
        k = rank(Spectrum(theta, energy, n, d))
        if k is not None or not left:
            break
        p = min(2 * p, n, d)  # the rule must see more of the spectrum
        Z = starting_block(fed, d, p, V)
    stopped = "converged" if residuals[-1] <= tol and k is not None else "max_rounds"
    k = k or p
    started = penalty * float(last["norm"])
    end = End(residuals, stop, theta, energy, started, float(last["penalty"]))
    return Solution(V[:, :k], theta[:k], energy, stopped, advice=end.advice(stopped))


def _agree(
    fed: Federation,
    ask: Callable[..., dict[str, Array]],
    Z: Array,
    energy: float,
    stop: str,
    tol: float,
    max_rounds: int,
) -> tuple[Array, list[float]]:
    """Algorithm 1 until the stop rule is met or no round is left: Z, and how far after each round."""
    residuals: list[float] = []
    objective = 0.0
    while True:
        answer = ask(Z=Z)
        Y, value = answer["Y"], float(answer["stop_value"])
        if stop == "kkt":
            residuals.append(scaled(float(np.linalg.norm(outside(Z, Y))) + value, energy))
        else:
            residuals.append(scaled(abs(value - objective), value))
            objective = value
        fed.report(residuals[-1], partial(np.asarray, Z))
        if residuals[-1] <= tol or len(residuals) == max_rounds:
            return Z, residuals
        Z = orth(Y)


class End(NamedTuple):
    """How a run ended, by which to tell whether another solver would have done better."""

    residuals: list[float]
    stop: str
    eigenvalues: Array
    energy: float
    started: float  # the sum of penalties at the start
    penalty: float  # and at the end

    def advice(self, stopped: str) -> str:
        """What to use instead, where that can be told.

        By the rate law plain iteration is faster where penalties exceed lambda_(k+1); lambda_k is what
        is known. A handful of rounds is nothing to be sorry for.
        """
        rounds, smallest = len(self.residuals), float(self.eigenvalues[-1])
        plain = self.plain_rounds
        if plain is not None and plain < rounds:
            others = f"solver 'power' would take at most about {plain}, 'lanczos' fewer"
        elif stopped == "max_rounds" or (self.penalty > smallest and rounds > FEW_ROUNDS):
            others = "solver 'power' likely takes fewer, 'lanczos' far fewer"
        else:
            return ""
        cause = ""
        if self.penalty > 1.01 * max(self.started, smallest):
            times = self.penalty / max(smallest, np.finfo(float).tiny)
            cause = "the sites are so unlike that their penalties grew to "
            cause += f"{times:.2g} times the smallest eigenvalue; "
        return f"faps took {rounds} rounds: {cause}{others}"

    @property
    def plain_rounds(self) -> int | None:
        """Rounds in which subspace iteration would have come as far, at most; None if not known.

        A round lowers its residual by ``lambda_(k+1) / lambda_k``. All that is known of lambda_(k+1) is
        that it is no more than what is left of the trace.
        """
        following = max(self.energy - float(self.eigenvalues.sum()), 0.0)
        decay = scaled(following, float(self.eigenvalues[-1]))
        first, last = self.residuals[0], self.residuals[-1]
        if self.stop != "kkt" or not 0 < decay < 1 or not 0 < last < first:
            return None
        return 1 + int(np.ceil(np.log(last / first) / np.log(decay)))
