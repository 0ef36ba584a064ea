"""Robust PCA by averaged gradient steps: the published DCF-PCA, for comparison.

    min  sum 1/2 ||A_i - V_i U' - S_i||^2 + lambda ||S_i||_1 + rho/2 (||V_i||^2 + ||U||^2)

Here, lambda and rho stay fixed, sites take gradient steps on their own copies of U, and the results are
averaged. The error grows with lambda.

Source: DCF-PCA, "Distributed robust principal component analysis" by consensus factorization, Algorithm
1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import StopReason
from fedpca.linalg.dense import orth
from fedpca.linalg.scratch import Scratch
from fedpca.models.robust import without_large
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import question
from fedpca.protocol.script import Script, repeat_from_once
from fedpca.solvers.contract import check_positive, check_whole
from fedpca.solvers.robust.at_site import NO_ROWS, Round, Scores
from fedpca.solvers.robust.blocks import PresentRows, standardized_blocks
from fedpca.solvers.robust.contract import (
    Limits,
    RobustFit,
    RobustMoments,
    RobustProblem,
    Solved,
    rounds_of,
)
from fedpca.solvers.robust.schedule import follow_threshold
from fedpca.solvers.robust.soft import (
    PASSES,
    in_unit,
    leading_axes,
    rank_in,
    regression,
    relative_change,
    singular_values,
    soft_passes,
)

if TYPE_CHECKING:
    from fedpca.site.site import Site

RANK_GIVEN_RIDGE = 1e-3  # the ridge as a multiple of the typical entry, if the rank is given


@dataclass(frozen=True)
class Dcf:
    """Average the sites' gradient steps: the published DCF-PCA, for comparison.

    Parameters
    ----------
    local_steps : int
        The number of gradient steps that a site takes in each round.
    step : float, optional
        The first step length, which decays; by default, each site chooses its own.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import RobustPCA
    >>> from fedpca.solvers import Dcf
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 12))
    >>> rows[5, 3] += 100
    >>> sites = [rows[:30], rows[30:]]
    >>> pca = RobustPCA(2, solver=Dcf(local_steps=4), random_state=0, tol=1e-3).fit(sites)
    >>> worst = pca.outlier_scores(rows).cells.argmax()
    >>> [int(i) for i in np.unravel_index(worst, rows.shape)]
    [5, 3]
    """

    name: ClassVar[str] = "dcf"
    guarantee: ClassVar[str] = "no bound"
    needs_rank: ClassVar[bool] = False

    local_steps: int = 2
    step: float | None = None

    def __post_init__(self) -> None:
        check_whole("local_steps", self.local_steps, 1, 1000)
        if self.step is not None:
            check_positive("step", self.step)

    def script(self, plan: RunPlan) -> Script:
        values = {"passes": PASSES, "steps": self.local_steps, "center": 0}
        if self.step is None:
            values["step"] = 0
        return Script(repeat_from_once(gradient_round, rounds_of(plan)), values=values)

    def solve(self, fed: Federation, problem: RobustProblem) -> Solved:
        """Return the components and the rank that the singular values show."""
        moments, d = problem.moments, len(problem.U)
        threshold = moments.size / 2
        ridge = RANK_GIVEN_RIDGE * moments.size
        if problem.rank is None:
            ridge = threshold * np.sqrt(max(moments.n, d)) / 2
        fit, values = by_gradients(
            fed,
            problem.U,
            moments,
            problem.limits,
            threshold=threshold,
            ridge=ridge,
            step=self.step,
            local_steps=self.local_steps,
        )
        return Solved(fit, rank_in(problem, values), self.name)


def by_gradients(
    fed: Federation,
    U: Array,
    moments: RobustMoments,
    limits: Limits,
    *,
    threshold: float,
    ridge: float,
    step: float | None,
    local_steps: int,
) -> tuple[RobustFit, Array]:
    """Run the published method, which averages gradient steps; return the fit and singular values."""
    VV, U = np.eye(U.shape[1]), in_unit(U, moments)
    reason: StopReason = "max_rounds"
    for done in range(limits.max_rounds):
        # a given step decays with the square root of the rounds; with 0, each site chooses its own step
        eta = 0.0 if step is None else step / np.sqrt(1 + done)
        answer = fed.sum(
            gradient_round,
            U=U,
            threshold=np.float64(threshold),
            ridge=np.float64(ridge),
            step=np.float64(eta),
            steps=np.int64(local_steps),
            passes=np.int64(PASSES),
            n=np.int64(moments.n),
            is_first=np.int64(done == 0),
        )
        last, U, VV = U, answer["U"], answer["VV"]
        change = relative_change(last, U)
        fed.report(change, partial(orth, U))
        if change <= limits.tol:
            reason = "converged"
            break
    d = len(U)
    fit = RobustFit(leading_axes(U, VV), threshold, 0.0, reason, np.zeros(d), np.zeros(d, bool))
    return fit, singular_values(U, VV)


@question(
    doing="separating outliers",
    asks={
        "U": "float64 d r",
        "threshold": "float64, positive",
        "ridge": "float64, positive",
        "step": "float64, nonnegative",
        "steps": "int64, 1..1000",
        "passes": "int64",
        "n": "int64, positive",
        "is_first": "int64, flag",
    },
    answers={"U": "float64 d r", "VV": "float64 r r, semidefinite"},
    remembers=True,
    work="separate",
    passes=60,
)
def gradient_round(
    site: Site,
    U: Array,
    threshold: Array,
    ridge: Array,
    step: Array,
    steps: Array,
    passes: Array,
    n: Array,
    is_first: Array,
) -> dict[str, Any]:
    """Take local gradient steps on U, and send U weighted by the site's share of rows.

    A ``step`` of 0 means half the longest stable step length.
    """
    follow_threshold(site, threshold, decay=1.0, is_first=bool(is_first))
    V = None if is_first else site.recall(Scores).V
    weight, scratch = site.recall(PresentRows).n / int(n), Scratch()
    for _ in range(int(steps)):
        this, to_scores = Round(site, U), regression(U, float(ridge))
        for rows, A, present in standardized_blocks(site):
            own = without_large(A, threshold) @ to_scores if V is None else V[rows]
            fit = soft_passes(A, present, U, own, float(threshold), to_scores, int(passes), scratch)
            this.scores[rows] = fit.V
            this.add(fit.C, fit.V, fit.before)
        V = this.scores
        longest = float(np.linalg.eigvalsh(this.VV)[-1])  # the squared norm of V
        eta = float(step) or (0.5 / (longest + weight * float(ridge)) if longest > 0 else 0.0)
        U = U - eta * (U @ this.VV - this.AV + weight * ridge * U)
    site.remember(Scores(this.scores, NO_ROWS))
    return {"U": weight * U, "VV": this.VV}
