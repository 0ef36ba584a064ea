"""The coordinator's program for `RobustPCA.fit`, from the first question to the last.

    A_i = V_i U' + S_i + noise,   U of d x r common to all sites

The program finds the center and scale, has a solver find U, and then has each site keep its V_i and
S_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import Outcome
from fedpca.coordinator.warm_start import WarmStart
from fedpca.errors import InputError, PolicyRefused
from fedpca.linalg.dense import fix_signs, top_eigen
from fedpca.models.robust import RobustModel
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import Script, maybe, repeat, repeat_from_once, script, then
from fedpca.rows.columns import some_of
from fedpca.rows.standardized import refuse_tiny, usable_energy
from fedpca.solvers.common_features import AGREEING, CommonFeatures, common_features
from fedpca.solvers.contract import declared_solver
from fedpca.solvers.robust.at_site import (
    begin_robust,
    count_present,
    count_values,
    finish_robust,
    sparse_share,
    squares_present,
)
from fedpca.solvers.robust.contract import (
    NORMAL,
    Carry,
    Limits,
    RobustMoments,
    RobustProblem,
    RobustSolver,
    Solved,
)
from fedpca.solvers.robust.growth import FLIPS
from fedpca.solvers.robust.hard import START_ROUNDS, clipped_product, start_clipped
from fedpca.solvers.robust.medians import (
    EDGES,
    FINE,
    KINDS,
    SHIFTS,
    feature_medians,
    median_of_bins,
)
from fedpca.solvers.robust.rows_apart import (
    FarRows,
    count_scores,
    find_far_rows,
    leave_out,
    leave_out_rows,
)
from fedpca.solvers.standardize import at_least_two

ROUNDS = ("hard_round", "soft_round", "gradient_round")
MAX_REFERENCES = 64  # most references to try for the typical size of an entry
MAX_ATTEMPTS = 4  # fits at most; each leaves out rows that lay apart in the previous one
ROUNDING = 16 * np.finfo(float).eps  # a distance of at most this share of a value counts as zero


@dataclass(frozen=True)
class RobustResult:
    """The result of a robust fit."""

    model: RobustModel
    features: tuple[str, ...] | None
    n: int
    n_left_out: int  # rows that lie apart
    far: FarRows
    shares: dict[str, float]  # the share of outliers among each site's entries
    mostly_outliers: Array  # (d,), whether most entries of a feature are outliers
    rank_is_clear: bool
    left_out: Mapping[str, str] | None  # for genotypes: the variants left out, and why
    outcome: Outcome


def low_rank_and_sparse(
    fed: Federation,
    start_from: WarmStart | None,
    *,
    solver: RobustSolver,
    n_components: int | None,
    max_components: int | None,
    center: str,
    scale: bool,
    rows: str,
    tol: float,
    max_rounds: int,
) -> RobustResult:
    """Find the low-rank part that all sites' rows share; each site keeps its own sparse part."""
    common = common_features(fed)
    frame = _frame(fed, common, center, scale)
    d = common.n_features
    _check_components(n_components, max_components, frame.n, d)
    # one extra component shows whether singular values drop right after the bound
    bound = int(n_components or max_components or 0)
    width = bound if n_components else min(bound + 1, d)
    limits = Limits(tol, max_rounds)
    U, n_left_out = common.matched(start_from), 0
    for attempt in range(1, MAX_ATTEMPTS + 1):
        moments = _begin(fed, frame, moves=center != "none")
        if U is None or U.shape[1] < width:  # a start cut to its rank is too narrow to search again
            U = start_clipped(fed, d, width, moments.first_threshold)
        solved = solver.solve(fed, RobustProblem(U, moments, limits, n_components, bound))
        model, far = _finish(fed, solved, frame)
        n_apart = far.n[far.is_apart].sum()
        if rows == "all" or attempt == MAX_ATTEMPTS or not 0 < n_apart < frame.n - bound:
            break
        n_now, present = leave_out(fed, far)
        if not n_now:  # no site has enough rows that lie apart
            break
        n_left_out += n_now
        frame = replace(frame, n=frame.n - n_now, present=np.where(frame.present, present, 0))
        U = None
    return RobustResult(
        model=model,
        features=common.names,
        n=frame.n,
        n_left_out=n_left_out,
        far=far,
        shares=_shares(fed),
        mostly_outliers=solved.fit.mostly_outliers,
        rank_is_clear=solved.rank.is_clear,
        left_out=common.left_out,
        outcome=Outcome(solved.methods, solved.fit.stop_reason),
    )


@script("RobustPCA")
def robust_script(plan: RunPlan) -> Script:
    """Return what `low_rank_and_sparse` asks with the plan's solver."""
    given = plan.parameters
    part = declared_solver(plan, "RobustPCA").script(plan)
    n_kinds = len(KINDS) if given["scale"] else int(given["center"] == "median")
    attempt = then(
        repeat_from_once(begin_robust, MAX_REFERENCES),
        repeat(clipped_product, most=START_ROUNDS),
        part.order,
        finish_robust,
        count_scores,
    )
    more = [repeat(leave_out_rows, attempt, most=MAX_ATTEMPTS - 1), maybe(leave_out_rows)]
    values = dict(part.values)
    if given["center"] == "none":
        values |= {"mean": 0, "center": 0}
    if not given["scale"]:
        values["scale"] = 1
    bound = int(given["n_components"] or given["max_components"])
    return Script(
        then(
            AGREEING,
            count_present,
            squares_present,
            repeat(count_values, most=n_kinds * len(SHIFTS)),
            attempt,
            *(more if given["rows"] != "all" else []),
            maybe(sparse_share),
        ),
        most=dict.fromkeys(ROUNDS, MAX_ATTEMPTS * plan.max_rounds),
        values=values,
        lengths={"r": bound + 1, "q": bound + 1, "k": FLIPS},
        family="robust",
    )


def _finish(fed: Federation, solved: Solved, frame: Frame) -> tuple[RobustModel, FarRows]:
    """Have sites keep their parts, and return the model and the rows far from others."""
    r = solved.rank.number
    fit = solved.fit.cut(r)
    carry = fit.carry or Carry.first(r, fit.center)
    kept = fed.sum(
        finish_robust,
        U=fit.U,
        **carry.asked,
        threshold=np.float64(fit.threshold),
        afresh=np.int64(fit.carry is None),
    )
    variances, C = top_eigen(kept["VV"] / max(1, int(kept["rows"]) - 1), r)
    model = RobustModel.from_low_rank(
        np.ascontiguousarray(fix_signs(fit.U @ C).T),
        np.maximum(variances, 0.0),
        mean=frame.center + fit.center * frame.scale,
        scale=frame.scale,
        noise_variance=(NORMAL * fit.noise) ** 2,
        n=frame.n,
        threshold=fit.threshold,
    )
    return model, find_far_rows(fed, C, np.maximum(variances, 0.0))


def _check_components(n_components: int | None, max_components: int | None, n: int, d: int) -> None:
    """Refuse more components than rows or features."""
    name = "max_components" if n_components is None else "n_components"
    wanted, limit = n_components or max_components or 0, min(n, d)
    if wanted > limit:
        what = f"{d} features" if d <= n else f"{n} rows across all sites"
        raise InputError(f"{name}={wanted} exceeds the {what}; use at most {limit}")


@dataclass(frozen=True)
class Frame:
    """The number of rows, and each feature's center and scale."""

    n: int
    present: Array  # (d,), each feature's number of values; 0 if all are at the center
    center: Array  # (d,)
    scale: Array  # (d,)
    spread: float  # root mean square of all entries about the center, in the scale


def _frame(fed: Federation, common: CommonFeatures, center: str, scale: bool) -> Frame:
    """Ask for sums and histograms, and return each feature's center and scale."""
    counted = fed.sum(count_present, features=common.to_ask)
    n, present = at_least_two(int(counted["n"])), counted["present"]
    if not present.all():
        names = common.names or [f"column {j}" for j in range(len(present))]
        empty = [str(names[j]) for j in np.flatnonzero(present == 0)]
        raise InputError(f"no site has a value for {some_of(empty)}; remove these features")
    d = len(present)
    mean = counted["total"] / present
    refuse_tiny(mean)
    squares = fed.sum(squares_present, about=mean)["squares"]
    usable_energy(float(squares.sum()))
    spread = np.sqrt(squares / present)
    medians = mean
    if center == "median" or scale:
        medians = _medians(fed, np.arange(d), np.zeros(d))
    centers = {"none": np.zeros(d), "mean": mean, "median": medians}[center]
    factors = np.ones(d)
    if scale:  # distances are measured from the median, regardless of the center
        factors = _typical_distances(fed, medians)
    away = np.hypot(spread, mean - centers)
    present = np.where(away > ROUNDING * np.abs(mean), present, 0)
    root_mean_square = np.sqrt((away / factors) ** 2 @ present / max(1, present.sum()))
    return Frame(n, present, centers, factors, float(root_mean_square))


def _medians(fed: Federation, features: Array, about: Array, of: str = "values") -> Array:
    """Find features' medians over all sites from summed histograms."""
    return feature_medians(partial(fed.sum, count_values), features, about, of=of)


def _typical_distances(fed: Federation, medians: Array) -> Array:
    """Return each feature's robust standard deviation, from its median distance to the median.

    The result is 1 for a constant feature. If most values are equal, as in tables of counts, it is the
    median distance of the other values.
    """
    rounding = ROUNDING * np.abs(medians)
    sizes = NORMAL * _medians(fed, np.arange(len(medians)), medians, of="sizes")
    mostly_equal = np.flatnonzero(sizes <= rounding)
    if len(mostly_equal):
        sizes[mostly_equal] = _medians(
            fed, mostly_equal, medians[mostly_equal], of="sizes above zero"
        )
    return np.where(sizes > rounding, sizes, 1.0)


def _begin(fed: Federation, frame: Frame, *, moves: bool) -> RobustMoments:
    """Send the center and scale to every site, and find the typical size of an entry.

    The first reference is the root mean square. A few extreme entries can make it so large that the
    typical size falls below the fine bins. In that case, the question is asked again with a smaller
    reference.
    """
    reference = frame.spread or 1.0
    while True:
        sizes = fed.sum(
            begin_robust,
            mean=frame.center,
            scale=frame.scale,
            varies=(frame.present > 0).astype(np.uint8),
            reference=np.float64(reference),
        )["sizes"]
        size = median_of_bins(sizes, reference)
        if size >= FINE * reference or not sizes.any():
            return RobustMoments(frame.n, frame.present, size or frame.spread or 1.0, moves)
        reference = size or float(EDGES[0]) * reference


def _shares(fed: Federation) -> dict[str, float]:
    """Return the share of outliers among each site's entries, or nothing if a policy refuses."""
    try:
        with fed.optional():
            answers = fed.gather(sparse_share)
    except PolicyRefused:
        return {}
    return {
        name: float(answer["outliers"] / answer["present"]) if answer["present"] else float("nan")
        for name, answer in answers.items()
    }
