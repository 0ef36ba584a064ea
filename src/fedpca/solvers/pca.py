"""The coordinator's program for `FederatedPCA.fit`, from the first question to the last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.warm_start import WarmStart
from fedpca.errors import InputError, PolicyRefused
from fedpca.linalg.dense import ROUNDING
from fedpca.linalg.rank_rules import check_n_components
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import Question, question
from fedpca.protocol.script import END, FEDERATED, Order, Script, either, maybe, script, then
from fedpca.rows.centering import MAX_CANCELLATION
from fedpca.rows.gaps import MISSING
from fedpca.rows.standardized import Frame, refuse_tiny
from fedpca.solvers.catalogue import SOLVERS, cheapest_exact, chosen_by_auto, plan_solver
from fedpca.solvers.common_features import (
    AGREEING,
    common_features,
    use_variants,
)
from fedpca.solvers.contract import (
    EXPLAINED,
    PcaResult,
    Problem,
    Solver,
    check_choice,
    check_positive,
    columns_asked,
    explains_too_much,
    moments_and_rank,
)
from fedpca.solvers.influence import report_caused
from fedpca.solvers.private.program import private_script
from fedpca.solvers.sign_flips import SignFlips
from fedpca.solvers.standardize import (
    BINOMIAL,
    count_and_sum,
    own_mean_of,
    polymorphic,
)

if TYPE_CHECKING:
    from fedpca.site.site import Site

MAX_MAF = 0.5  # the largest possible frequency of the rarer of two alleles
INACCURATE = (
    "a site multiplies its rows in float32: create this site with precision='float64', or accept the "
    "angle by setting tol to a thousandth of its sine"
)


def principal_components(
    fed: Federation,
    start: WarmStart | None,
    *,
    solver: Solver | None,
    n_components: Any,
    center: bool,
    scale: bool | str,
    tol: float,
    max_rounds: int,
    missing: str = "error",
    maf: float | None = None,
) -> PcaResult:
    """Find the components of all sites' rows, choosing a solver if none is given."""
    common = common_features(fed, takes_weights=True)
    means = None
    if maf is not None and common.left_out is None:
        raise InputError(f"maf={maf} applies only to genotypes in .bed files; omit it")
    if common.left_out is not None and (maf is not None or scale == BINOMIAL):
        common, means = polymorphic(fed, common, maf=maf, missing=missing)
    problem = Problem(
        common,
        n_components,
        center,
        scale,
        tol,
        max_rounds,
        common.matched(start),
        missing=missing,
        means=means,
    )
    if means is not None:
        problem = problem.with_moments(fed)
    flips = SignFlips(fed) if n_components == "auto" else None
    problem = replace(problem, flips=flips)
    if solver is None:
        problem = problem.with_moments(fed)
        moments, rank = moments_and_rank(fed, problem)
        solver = cheapest_exact(moments.n, moments.d, rank.first_look)
    solution = solver.solve(fed, problem)
    refuse_tiny(solution.moments.mean, solution.energy)
    if common.rounding > ROUNDING and solution.stop_reason == "uncertain":
        solution = replace(solution, advice=INACCURATE)
    asked = solution.share_question or explained_energy
    explained = _explained(fed, asked, solution.vectors)
    if center:
        within = {name: float(answer["total"]) for name, answer in explained.items()}
        report_caused(fed, within, solution.energy)
    is_above = flips is None or not flips.found_none
    shares, outcome = _shares(explained), solution.outcome(solver.name)
    return PcaResult(solution, shares, outcome, is_above, common.left_out)


@script("FederatedPCA")
def pca_script(plan: RunPlan) -> Script:
    """Return what `principal_components` asks with the plan's solver, or any that it may choose."""
    _check_parameters(plan)
    if plan.is_private:
        return private_script(plan)
    declared = plan_solver(plan)
    solvers = (declared,) if declared else chosen_by_auto()
    if not all(hasattr(solver, "script") for solver in solvers):
        raise PolicyRefused(
            f"the solver {plan.solver!r} declares no script, so the site cannot tell what it will "
            "ask; use another solver"
        )
    # where the two solvers that "auto" chooses from share a question, they give it the same bounds
    parts = [solver.script(plan) for solver in solvers]
    is_usual = all(s.guarantee == "exact" and not s.seen and s.name in SOLVERS for s in solvers)
    return Script(
        then(_agreeing(plan), either(*(part.order for part in parts)), maybe(explained_energy)),
        most={k: v for part in parts for k, v in part.most.items()},
        looks=tuple(name for part in parts for name in part.looks),
        values={k: v for part in parts for k, v in part.values.items()},
        bounds={"V": columns_asked(plan)} | {k: v for p in parts for k, v in p.bounds.items()},
        fixed=tuple(name for part in parts for name in part.fixed),
        family=FEDERATED if is_usual else plan.solver,
        sees=tuple(name for s in solvers for name in s.seen if name != "explained_in_summary"),
    )


def _agreeing(plan: RunPlan) -> Order:
    """Return the questions before the moments, with which sites agree on columns and variants."""
    is_filtered = plan.parameters.get("maf") is not None or plan.parameters.get("scale") == BINOMIAL
    filtering = maybe(count_and_sum, use_variants) if is_filtered else END
    return then(AGREEING, filtering)


def _check_parameters(plan: RunPlan) -> None:
    """Refuse parameters that `principal_components` does not take."""
    known = {p.name for p in signature(principal_components).parameters.values()}
    for name, value in plan.parameters.items():
        if name not in known - {"fed", "start"}:
            raise PolicyRefused("the plan has a parameter that FederatedPCA does not have")
        if name in ("center", "scale"):
            check_choice(name, value, (True, False, BINOMIAL)[: 3 if name == "scale" else 2])
    check_n_components(plan.parameters.get("n_components"))
    check_choice("missing", plan.parameters.get("missing", "error"), MISSING)
    if plan.parameters.get("maf") is not None:
        check_positive("maf", plan.parameters["maf"], MAX_MAF)


@question(
    verb="gather",
    doing="measuring the variance explained at each site",
    asks={"V": "float64 d k, orthonormal"},
    answers=EXPLAINED,
    check=explains_too_much,
)
def explained_energy(site: Site, V: Array) -> dict[str, Any]:
    """Send a site's sums of squares about its own mean, along the components and in total.

    A sum about the common mean exceeds the sum about the site's own mean by n times the squared
    distance between the two means. The site subtracts this amount. If its mean is so far from the
    common mean that the subtraction would lose digits, the site reads its rows again instead.
    """
    frame = site.recall(Frame)
    assert frame.energy is not None
    n, own_mean = own_mean_of(site)
    total = frame.energy
    explained = site.standardized.energy_along(V, total)
    away = (own_mean - frame.mean) / frame.scale
    between = n * float(away @ away)
    if between <= MAX_CANCELLATION * (total - between):
        explained, total = explained - n * float(np.sum((away @ V) ** 2)), total - between
    else:
        own_frame = replace(frame, mean=own_mean, sums=None, n_products=1)
        own = site.rows_in(own_frame)
        total = float(own.squares().sum())
        explained = own.energy_along(V, total)
    explained = min(max(explained, 0.0), total)  # rounding may push it out of this range
    return {"explained": np.float64(explained), "total": np.float64(total)}


def _explained(fed: Federation, asked: Question, V: Array) -> dict[str, Arrays]:
    """Return how much of each site's sum of squares is explained, or nothing if a policy refuses."""
    try:
        with fed.optional():
            return fed.gather(asked, V=np.ascontiguousarray(V))
    except PolicyRefused:  # in that case, the shares stay at the sites
        return {}


def _shares(explained: Mapping[str, Arrays]) -> dict[str, float]:
    """Return the explained share of each site's variance."""
    return {
        name: float(answer["explained"] / answer["total"]) if answer["total"] > 0 else float("nan")
        for name, answer in explained.items()
    }
