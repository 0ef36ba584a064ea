"""FAPS: sites agree on a subspace by sending products behind site-specific masks.

Each site has C_i = A_i'A_i, its own copy X_i of the subspace, and a penalty beta_i. In each round:

    X_i <- a better solution of the local problem, which holds X_i near Z    stays at the site
    Y_i = Q_i Z,   Q_i the site's mask                                       leaves the site
    Z <- orth(sum_i Y_i)                                                     needs only the sum

At a site, the copy X has the multiplier ``Lambda = X W' + W X'``, ``W = -(I - X X') C_i X``. The local
problem is to find the leading eigenvectors of ``H = C_i + Lambda + beta_i Z Z'``. The site sends
``Q_i Z``, ``Q_i = beta_i X X' - Lambda``. None of these d x d matrices is formed.

Near convergence, if all sites are similar, each round multiplies the error of Z and the distance
between the copies, respectively, by about

    c^J + (1 - c^J) beta / (beta + g),   c = lambda_(k+1) / (lambda_k + beta),   and   l / (l + beta)

for J local steps, where beta is the sum of the penalties, g = lambda_k - lambda_(k+1), and
l = lambda_1 - lambda_d. So a penalty can be too large or too small. The best penalty is about
sqrt(g lambda_1). Subspace iteration multiplies its error by 1 - g / lambda_k in each round, and it is
slower than FAPS if beta < lambda_(k+1).

The method is fragile. If a site's leading subspace is not the common one, the site's copy drifts away
from Z unless beta_i matches the pull of the site's subspace. So penalties grow until the copy stays
near Z. If sites differ, the sum of the penalties exceeds lambda_k, and subspace iteration is faster.
Subspace iteration is also faster if the eigenvalues drop quickly after the k-th, since it then needs
very few rounds. `Solution.advice` reports such cases if the solver can detect them. Block Lanczos beats
both methods, and it does not depend on how rows are split over sites.

The mask does not provide secrecy: ``(I - Z Z') Y_i`` approaches ``(I - Z Z') C_i Z``, and the last
round asks for ``Z'C_i Z``. See `fedpca.audit.leakage`.

Source: Wang, Liu and Zhang, "Seeking consensus on subspaces in federated principal component
analysis" (2023), Algorithm 1. Numbers in parentheses refer to its equations. This solver differs from
the published algorithm:

- X_i starts one local power step away from Z. The published start, X_i = Z, is a fixed point of the
  first local problem, which would then only amplify rounding. The first message would also contain
  an exact block of C_i.
- In (25), the penalty grows by half, not by a tenth, and never beyond ``2 ||A_i||^2``. If sites differ,
  growth by a tenth takes hundreds of rounds. Without the bound, slow convergence would make the penalty
  grow forever.
- The stopping rule is a bound on the KKT violation ``||(I - Z Z') C Z||_F``. It costs one number per
  site, ``||(I - Z Z')(Q_i - C_i) Z||_F``, and one more product at each site. The change in the
  objective, rule (27), does not show how far away the solution is. The last round computes the
  eigenvalues.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import StopReason
from fedpca.linalg.dense import ROUNDING, orth, outside, sine_of_angle, top_eigen
from fedpca.linalg.rank_rules import Spectrum
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import question
from fedpca.protocol.script import Script, repeat, then
from fedpca.solvers.contract import (
    LOOK_TOL,
    Problem,
    Solution,
    after_moments,
    check_choice,
    check_positive,
    check_whole,
    columns_asked,
    moments_and_rank,
    scaled,
    starting_block,
)
from fedpca.solvers.costs import (
    LANCZOS_ROUNDS,
)
from fedpca.solvers.exact.faps_at_site import (
    BY_CONDITION,
    MAX_PENALTY,
    Copy,
    Product,
    grown,
    largest_eigenvalue,
    masked_product,
    solve_locally,
)
from fedpca.solvers.sign_flips import draw_signs, flips_order
from fedpca.solvers.standardize import standardize, standardize_sites

if TYPE_CHECKING:
    from fedpca.site.site import Site

MAX_STEPS = 1000  # most local steps at a site in a round
MAX_DECLARED_PENALTY = 1000.0  # the largest penalty that may be asked for
LOCAL_STEPS = 5  # steps of subspace iteration at each site in each round
PENALTY = 0.15  # initial beta_i, as a share of ||A_i||_2^2
PENALTY_CHECK_ROUNDS = 5  # rounds between penalty checks, (25)
STOP_RULES = ("kkt", "objective")
RECENT_STEPS = 4  # the ratios of these steps show how fast an iteration comes to rest
AT_REST = 1e-13  # smaller steps are only rounding errors
FEW_ROUNDS = 10  # a run this short needs no advice
TIMES_LANCZOS = 5  # approximate number of FAPS rounds per Lanczos round


@dataclass(frozen=True)
class Faps:
    """Agree on a subspace by sending masked products.

    Parameters
    ----------
    local_steps : int, "decrease" or "change"
        The number of subspace iteration steps that a site takes in each round, or the condition that
        ends them: "decrease" is a sufficient decrease in the local objective, (13) and (14), and
        "change" is a small change, (26).
    penalty : float
        How strongly a site's copy of the subspace is initially held to the common subspace, as a share
        of the site's largest eigenvalue. The best penalty is about the square root of the eigenvalue
        gap after the last component, expressed as the same kind of share. The penalty grows
        automatically if sites differ.
    stop : "kkt" or "objective"
        Whether ``tol`` bounds the residual or the relative change in ``||A Z||^2`` per round, (27). The
        change says little about the components; see `run_.angle_bound`.
    start_apart : bool
        Whether copies start one power step away from Z. The published method starts at Z, which reveals
        more.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> from fedpca.solvers import Faps
    >>> rows = np.random.default_rng(0).normal(size=(90, 6)) * [4, 3, 1, 1, 1, 1]
    >>> sites = [rows[:50], rows[50:]]
    >>> pca = FederatedPCA(2, solver=Faps(penalty=0.2), random_state=0).fit(sites)
    >>> pca.run_.solver, pca.run_.stop_reason
    ('faps', 'converged')
    """

    name: ClassVar[str] = "faps"
    guarantee: ClassVar[str] = "exact"
    seen: ClassVar[tuple[str, ...]] = ()

    local_steps: Any = LOCAL_STEPS
    penalty: float = PENALTY
    stop: str = "kkt"
    start_apart: bool = True

    def __post_init__(self) -> None:
        if self.local_steps not in BY_CONDITION:
            check_whole("local_steps", self.local_steps, 1, MAX_STEPS)
        check_positive("penalty", self.penalty, MAX_DECLARED_PENALTY)
        check_choice("stop", self.stop, STOP_RULES)
        check_choice("start_apart", self.start_apart, (True, False))

    def script(self, plan: RunPlan) -> Script:
        values = {
            "penalty": self.penalty,
            "steps": BY_CONDITION.get(self.local_steps, self.local_steps),
            "start_apart": self.start_apart,
            "stop": STOP_RULES.index(self.stop),
        }
        agree = then(consensus_step, repeat(consensus_step), energy_within)
        is_one_look = isinstance(plan.parameters.get("n_components"), int | None)
        return after_moments(
            plan,
            standardize,
            agree if is_one_look else then(agree, flips_order(plan, agree)),
            most={consensus_step.name: plan.max_rounds},
            looks=(energy_within.name, draw_signs.name),
            values=values,
            bounds={f"{asked.name}.Z": columns_asked(plan) for asked in agree.questions()},
        )

    def solve(self, fed: Federation, problem: Problem) -> Solution:
        """Return the leading eigenvectors, with a residual of at most ``tol`` times the trace."""
        moments, rank = moments_and_rank(fed, problem)
        n, d, p = moments.n, moments.d, rank.first_look
        local_steps = BY_CONDITION.get(self.local_steps, self.local_steps)
        # number of columns by which a site multiplies its rows
        products_per_round = p * (max(local_steps, LOCAL_STEPS) + 1)
        rounds = min(problem.max_rounds, TIMES_LANCZOS * LANCZOS_ROUNDS)
        energy = standardize_sites(fed, moments, products_per_round * rounds)
        ask = partial(
            fed.sum,
            consensus_step,
            penalty=np.float64(self.penalty),
            steps=np.int64(local_steps),
            start_apart=np.int64(self.start_apart),
            stop=np.int64(STOP_RULES.index(self.stop)),
        )
        Z = starting_block(fed, d, p, problem.start)
        rounds_left = problem.max_rounds
        is_fixed = not isinstance(problem.n_components, str | float)
        while True:
            tols = (
                (problem.tol, problem.angle_tol) if is_fixed else (max(problem.tol, LOOK_TOL), 1.0)
            )
            Z, residuals, steps = self._agree(fed, ask, Z, energy, *tols, rounds_left)
            rounds_left -= len(residuals)
            last = fed.sum(energy_within, Z=Z)
            theta, C = top_eigen((last["within"] + last["within"].T) / 2, p)
            V, theta = Z @ C, np.maximum(theta, 0.0)
            k = p if is_fixed else rank(Spectrum(theta, energy, n, d, vectors=V))
            if is_fixed or not rounds_left:
                break
            if k is None:
                p = min(2 * p, n, d)  # the rule needs to see more of the spectrum
                Z = starting_block(fed, d, p, V)
            else:
                p, is_fixed = k, True  # only the rule needed the other columns
                Z = V[:, :k]
        off = float(np.linalg.norm(moments.residuals_of_mean(V, energy)))
        angle = _angle_left(steps, theta, float(last["penalty"]), off)
        is_close = angle <= problem.angle_tol or self.stop == "objective"
        has_converged = residuals[-1] <= problem.tol and is_close and is_fixed
        reason: StopReason = "uncertain" if rounds_left else "max_rounds"
        if has_converged:
            reason = "converged"
        is_certain = has_converged and problem.common.rounding <= ROUNDING
        if has_converged and not is_certain:  # inaccurate products shift the limit of Z
            reason = "uncertain"
        k = k or p
        started = self.penalty * float(last["norm"])
        end = End(residuals, self.stop, theta, energy, started, float(last["penalty"]))
        solution = Solution(moments, V[:, :k], theta[:k], energy, reason, advice=end.advice(reason))
        certified = solution.certified(np.full(k, angle if is_certain else 1.0), problem.angle_tol)
        return replace(certified, stop_reason=reason)

    def _agree(
        self,
        fed: Federation,
        ask: Callable[..., Arrays],
        Z: Array,
        energy: float,
        tol: float,
        angle_tol: float,
        max_rounds: int,
    ) -> tuple[Array, list[float], list[float]]:
        """Run Algorithm 1 until it may stop or the rounds run out.

        Return Z, the residuals, and the lengths of the steps. Plain products would bound the
        remaining angle, but they would undo the mask. So the angle is estimated from how fast Z comes
        to rest.
        """
        residuals: list[float] = []
        steps: list[float] = []
        objective = 0.0
        while True:
            answer = ask(Z=Z)
            Y, value = answer["Y"], float(answer["stop_value"])
            if self.stop == "kkt":
                residuals.append(scaled(float(np.linalg.norm(outside(Z, Y))) + value, energy))
            else:
                residuals.append(scaled(abs(value - objective), value))
                objective = value
            fed.report(residuals[-1], partial(np.asarray, Z))
            moved = orth(Y)
            steps.append(sine_of_angle(Z, moved))
            angle = distance_left(steps)
            is_close = angle <= angle_tol or self.stop == "objective"
            if (residuals[-1] <= tol and is_close) or len(residuals) == max_rounds:
                return Z, residuals, steps
            Z = moved


def distance_left(steps: list[float], least: float = 0.0) -> float:
    """Estimate how far an iteration is from its limit, given the lengths of its steps.

    If each step is at most a share rho of the one before, the last step and all later ones
    add up to at most ``1 / (1 - rho)`` times the length of the last step. The estimate is twice that.
    ``least`` is the smallest possible rho; steps that are only rounding errors do not show rho, but
    earlier steps do.
    """
    last = steps[-RECENT_STEPS:]
    moving = [step for step in last if step > AT_REST]
    if last[-1] > AT_REST and len(last) < RECENT_STEPS:
        return 1.0
    rho = max([least, *(after / before for before, after in pairwise(moving))])
    if last[-1] <= AT_REST:  # the steps before it came to rest show how slowly it still moves
        moved = [step for step in steps if step > AT_REST][-RECENT_STEPS:]
        ratios = (after / before for before, after in pairwise(moved))
        rho = max([rho, *(ratio for ratio in ratios if ratio < 1)])
    return min(1.0, 2 * max(last[-1], AT_REST) / (1 - rho)) if rho < 1 else 1.0


def _angle_left(steps: list[float], theta: Array, penalty: float, residual: float) -> float:
    """Estimate the angle to the exact components from the steps, eigenvalues, and sum of penalties.

    Along a component whose eigenvalue is much smaller than the penalties, every step is tiny, even
    far from the limit: by the rates at the top of this file, each step is at least
    ``beta / (beta + lambda_k)`` times as long as the one before. ``residual`` accounts for what the
    steps do not show.
    """
    largest, smallest = float(theta[0]), float(theta[-1])
    if largest <= 0:
        return 0.0  # all directions are equally good
    least = penalty / (penalty + smallest) if penalty > 0 else 0.0
    return min(1.0, distance_left(steps, least) + scaled(residual, smallest))


@dataclass(frozen=True)
class FapsState:
    """A site's copy and penalty, which the site remembers between rounds."""

    X: Array  # (d, k), orthonormal: the site's copy of the subspace
    W: Array  # (d, k), (16)
    within: Array  # (k, k), X'CX
    beta: float  # the penalty
    norm: float  # ||A_i||_2^2
    round: int
    distance: float | None = None  # distance from the copy to Z at the last penalty check


@question(
    doing="improving the components",
    asks={
        "Z": "float64 d k, orthonormal",
        "penalty": "float64, fixed, positive",
        "steps": f"int64, fixed, {min(BY_CONDITION.values())}..{MAX_STEPS}",
        "start_apart": "int64, fixed, flag",
        "stop": f"int64, fixed, 0..{len(STOP_RULES) - 1}",
    },
    answers={"Y": "float64 d k", "stop_value": "float64, squares"},
    remembers=True,
    times_energy=lambda asked: largest_mask(float(asked["penalty"])) * asked["Z"].shape[1],
    passes=7,
)
def consensus_step(
    site: Site, Z: Array, penalty: Array, steps: Array, start_apart: Array, stop: Array
) -> dict[str, Any]:
    """Improve the site's copy; send the masked product and the number for the stopping rule."""
    times_C = site.standardized.gram_times
    state = site.recall(FapsState) if site.remembers(FapsState) else None
    if state is None or state.X.shape != Z.shape:
        state = _first_state(times_C, orth(times_C(Z)) if start_apart else Z, float(penalty))
    copy, beta, distance = Copy(state.X, state.W, state.within), state.beta, state.distance
    if state.round % PENALTY_CHECK_ROUNDS == 0:
        before, distance = distance, copy.distance(Z)
        if before is not None and state.round:
            beta = grown(beta, before, distance, state.norm)
    copy = solve_locally(times_C, copy, Z, beta, state.norm, int(steps))
    site.remember(FapsState(*copy, beta, state.norm, state.round + 1, distance))
    Y, CZ = masked_product(copy, Z, beta), times_C(Z)
    along = max(0.0, float(np.vdot(Z, CZ)))  # rounding may make it negative
    by_rule = {"kkt": float(np.linalg.norm(outside(Z, Y - CZ))), "objective": along}
    return {"Y": Y, "stop_value": np.float64(by_rule[STOP_RULES[int(stop)]])}


def largest_mask(penalty: float) -> float:
    """Return a bound on ``||Q_i|| + ||C_i||`` as a multiple of the site's sum of squares.

    The penalty is at most ``max(penalty, MAX_PENALTY) ||A_i||^2``, and the norm of the multiplier
    is at most twice ``||A_i||^2``.
    """
    return max(penalty, MAX_PENALTY) + 3


def _first_state(times_C: Product, X: Array, penalty: float) -> FapsState:
    """Return a site's state before its first round."""
    copy = Copy.at(X, times_C(X))
    norm = largest_eigenvalue(times_C, copy)
    return FapsState(*copy, penalty * norm, norm, 0)


@question(
    doing="checking the components",
    asks={"Z": "float64 d k, orthonormal"},
    answers={
        "within": "float64 k k, semidefinite, explained",
        "penalty": "float64, squares",
        "norm": "float64, squares",
    },
    times_energy=lambda asked: largest_mask(MAX_DECLARED_PENALTY) * asked["Z"].shape[1],
)
def energy_within(site: Site, Z: Array) -> dict[str, Any]:
    """Send ``Z'C_i Z``, the site's penalty, and ||A_i||_2^2.

    The solution's eigenvalues are those of the summed ``Z'C_i Z``.
    """
    state = site.recall(FapsState)
    within = Z.T @ site.standardized.gram_times(Z)
    return {"within": within, "penalty": np.float64(state.beta), "norm": np.float64(state.norm)}


class End(NamedTuple):
    """The end of a run, which shows whether a different solver would have been faster."""

    residuals: list[float]
    stop: str
    eigenvalues: Array
    energy: float
    started: float  # the sum of the penalties at the start
    penalty: float  # the sum of the penalties at the end

    def advice(self, stopped: str) -> str:
        """Name a faster solver for these sites if the run reveals one.

        By the rates at the top of this file, subspace iteration is faster if the penalties exceed
        lambda_(k+1). Only lambda_k is known, so it is used instead. A run of only a few rounds needs no
        advice.
        """
        rounds, smallest = len(self.residuals), float(self.eigenvalues[-1])
        plain = self.plain_rounds
        if plain is not None and plain < rounds:
            others = (
                f"solver 'subspace-iteration' would take at most about {plain}, and 'lanczos' fewer"
            )
        elif stopped == "max_rounds" or (self.penalty > smallest and rounds > FEW_ROUNDS):
            others = (
                "solver 'subspace-iteration' would probably take fewer, and 'lanczos' far fewer"
            )
        else:
            return ""
        cause = ""
        if self.penalty > 1.01 * max(self.started, smallest):
            times = self.penalty / max(smallest, np.finfo(float).tiny)
            cause = "the sites differ so much that their penalties grew to "
            cause += f"{times:.2g} times the smallest eigenvalue; "
        return f"faps took {rounds} rounds: {cause}{others}"

    @property
    def plain_rounds(self) -> int | None:
        """Return the most rounds that subspace iteration could need, or None if unknown.

        Each of its rounds multiplies the residual by ``lambda_(k+1) / lambda_k``. All that is known
        about lambda_(k+1) is that it is at most the remainder of the trace.
        """
        remainder = max(self.energy - float(self.eigenvalues.sum()), 0.0)
        decay = scaled(remainder, float(self.eigenvalues[-1]))
        first, last = self.residuals[0], self.residuals[-1]
        if self.stop != "kkt" or not 0 < decay < 1 or not 0 < last < first:
            return None
        return 1 + int(np.ceil(np.log(last / first) / np.log(decay)))
