"""The program of a robust fit, from the first question to the last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpca.errors import InputError, PolicyRefused
from fedpca.federation import Federation
from fedpca.framed import usable_energy
from fedpca.linalg import top_eigen
from fedpca.message import Array
from fedpca.moments import CommonFeatures, at_least_two, common_features
from fedpca.rows import some_of
from fedpca.solvers.medians import EDGES, FINE, feature_medians, median_of_bins
from fedpca.solvers.robust import (
    NORMAL,
    Carry,
    Known,
    Limits,
    Separated,
    by_hard_threshold,
    start_clipped,
)
from fedpca.solvers.robust_keep import keep_sparse, sparse_share
from fedpca.solvers.robust_rows import count_present, squares_present
from fedpca.solvers.robust_site import enter_robust
from fedpca.solvers.robust_soft import (
    RANK_ROUNDS,
    Rank,
    by_both_thresholds,
    by_gradients,
    by_least_squares,
    rank_of,
)

ROUNDING = 16 * np.finfo(float).eps  # of a value: no distance
KNOWN_RIDGE = 1e-3  # of the published method, where the rank is known; in sizes of entries


@dataclass(frozen=True)
class Robust:
    """What a robust fit finds."""

    U: Array  # (d, r)
    variance: Array  # (r,)
    mean: Array
    scale: Array
    features: tuple[str, ...] | None
    n: int
    threshold: float
    noise_variance: float
    shares: dict[str, float]
    lost: Array  # (d,), whether most of a feature is outliers
    rank_is_clear: bool


def low_rank_and_sparse(
    fed: Federation,
    start_from: Array | None,
    *,
    n_components: int | None,
    max_components: int | None,
    method: str,
    center: str,
    scale: bool,
    tol: float,
    max_rounds: int,
    local_steps: int,
    step: float | None,
) -> Robust:
    """The program of a fit: centre and scale, a start, the solver, and what each site keeps."""
    common = common_features(fed)
    frame = _frame(fed, common, center, scale)
    d = common.n_features
    _check_components(n_components, max_components, frame.n, d)
    known = _enter(fed, frame, moves=center != "none")
    # one more than the bound shows whether the last that may be is the last
    bound = int(n_components or max_components or 0)
    width = bound if n_components else min(bound + 1, d)
    U = start_from
    if U is None or U.shape[1] < width:  # after the rank was found, too few to find it once more
        U = start_clipped(fed, d, width, known.first_threshold)
    fed.record.solver = "threshold" if method == "auto" else method
    limits = Limits(tol, max_rounds)
    rank = Rank(bound) if n_components else None
    if method == "dcf":
        soft = known.size / 2
        ridge = KNOWN_RIDGE * known.size if n_components else soft * np.sqrt(max(known.n, d)) / 2
        found, values = by_gradients(
            fed, U, known, limits, threshold=soft, ridge=ridge, step=step, local_steps=local_steps
        )
        rank = rank or rank_of(values, bound)
    elif method == "least-squares":
        found, values = by_least_squares(fed, U, known, limits)
        rank = rank or rank_of(values, bound)
    elif rank is None:
        fed.record.solver = "least-squares, threshold"
        until_read = Limits(0.0, min(RANK_ROUNDS, max_rounds))
        searched, values = by_least_squares(fed, U, known, until_read)
        rank = rank_of(values, bound)
        start = searched.cut(rank.number)
        found = by_hard_threshold(fed, start.U, known, limits, carry=start.carry)
    elif method == "threshold":
        found = by_hard_threshold(fed, U, known, limits)
    else:
        found = by_both_thresholds(fed, U, known, limits)
    fed.record.stopped = found.stopped
    return _kept(fed, found, rank, frame, common)


def _kept(
    fed: Federation, found: Separated, rank: Rank, frame: Frame, common: CommonFeatures
) -> Robust:
    """What sites keep of the parts, and the variances of the low-rank one."""
    r = rank.number
    found = found.cut(r)
    carry = found.carry or Carry.first(r, found.centre)
    kept = fed.sum(
        keep_sparse,
        U=found.U,
        **carry.asked,
        threshold=np.float64(found.threshold),
        afresh=np.int64(found.carry is None),
    )
    variances, C = top_eigen(kept["VV"] / max(1, int(kept["rows"]) - 1), r)
    return Robust(
        U=found.U @ C,
        variance=np.maximum(variances, 0.0),
        mean=frame.centre + found.centre * frame.scale,
        scale=frame.scale,
        features=common.features,
        n=frame.n,
        threshold=found.threshold,
        noise_variance=(NORMAL * found.noise) ** 2,
        shares=_shares(fed),
        lost=found.lost,
        rank_is_clear=rank.is_clear,
    )


def _check_components(n_components: int | None, max_components: int | None, n: int, d: int) -> None:
    name = "max_components" if n_components is None else "n_components"
    wanted, limit = n_components or max_components or 0, min(n, d)
    if wanted > limit:
        what = f"{d} features" if d <= n else f"{n} rows of all sites"
        raise InputError(f"{name}={wanted} exceeds the {what}; use at most {limit}")


@dataclass(frozen=True)
class Frame:
    """Of all rows the number, and of each feature centre and scale."""

    n: int
    present: (
        Array  # (d,), how many values each feature has; none where all of them are at the centre
    )
    centre: Array
    scale: Array
    spread: float  # the root mean square of entries about the centre, in the scale


def _frame(fed: Federation, common: CommonFeatures, center: str, scale: bool) -> Frame:
    """The frame, by sums and by histograms."""
    counted = fed.sum(count_present, features=common.to_ask)
    n, present = at_least_two(int(counted["n"])), counted["present"]
    if not present.all():
        names = common.features or [f"column {j}" for j in range(len(present))]
        empty = [str(names[j]) for j in np.flatnonzero(present == 0)]
        raise InputError(f"no site has a value of {some_of(empty)}; leave out what is empty")
    d = len(present)
    mean = counted["total"] / present
    squares = fed.sum(squares_present, about=mean)["squares"]
    usable_energy(float(squares.sum()))
    spread = np.sqrt(squares / present)
    needs_medians = center == "median" or scale
    medians = feature_medians(fed, np.arange(d), np.zeros(d)) if needs_medians else mean
    centre = {"none": np.zeros(d), "mean": mean, "median": medians}[center]
    factors = np.ones(d)
    if scale:  # about the median, whatever the rows are about
        factors = _typical_distances(fed, medians)
    away = np.hypot(spread, mean - centre)
    present = np.where(away > ROUNDING * np.abs(mean), present, 0)
    typical = np.sqrt((away / factors) ** 2 @ present / max(1, present.sum()))
    return Frame(n, present, centre, factors, float(typical))


def _typical_distances(fed: Federation, medians: Array) -> Array:
    """Of each feature the median distance from its median, as a deviation; of a constant one 1.

    Where most values are alike, as in tables of counts, the median distance of the others.
    """
    rounding = ROUNDING * np.abs(medians)
    sizes = NORMAL * feature_medians(fed, np.arange(len(medians)), medians, of="sizes")
    alike = np.flatnonzero(sizes <= rounding)
    if len(alike):
        sizes[alike] = feature_medians(fed, alike, medians[alike], of="sizes above zero")
    return np.where(sizes > rounding, sizes, 1.0)


def _enter(fed: Federation, frame: Frame, *, moves: bool) -> Known:
    """Sites settle on the frame, and tell the typical size of their entries.

    A few wild entries make the root mean square too large a reference for it; then it is asked again.
    """
    reference = frame.spread or 1.0
    while True:
        sizes = fed.sum(
            enter_robust,
            mean=frame.centre,
            scale=frame.scale,
            varies=(frame.present > 0).astype(np.uint8),
            reference=np.float64(reference),
        )["sizes"]
        size = median_of_bins(sizes, reference)
        if size >= FINE * reference or not sizes.any():
            return Known(frame.n, frame.present, size or frame.spread or 1.0, moves)
        reference = size or float(EDGES[0]) * reference


def _shares(fed: Federation) -> dict[str, float]:
    """The share of each site's entries that are outliers, where its policy tells."""
    try:
        answers = fed.gather(sparse_share)
    except PolicyRefused:
        return {}
    return {
        name: float(found["outliers"] / found["present"]) if found["present"] else float("nan")
        for name, found in answers.items()
    }
