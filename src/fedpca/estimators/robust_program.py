"""The program of a robust fit, from the first question to the last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpca.errors import InputError, PolicyRefused
from fedpca.federation import Federation
from fedpca.framed import usable_energy
from fedpca.linalg import top_eigen
from fedpca.message import Array
from fedpca.moments import CommonFeatures, at_least_two, common_features
from fedpca.rows import some_of
from fedpca.solvers.medians import feature_medians, median_place, squares_present
from fedpca.solvers.robust import (
    RANK_ROUNDS,
    Place,
    Separated,
    by_gradients,
    by_hard_threshold,
    by_least_squares,
    rank_of,
    start_clipped,
)
from fedpca.solvers.robust_rows import count_present
from fedpca.solvers.robust_site import FIRST, enter_robust, keep_sparse, sparse_share

NORMAL = 1.4826  # a standard deviation, in median sizes of normal numbers
KNOWN_RIDGE = 1e-3  # of the published method, where the rank is known


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
    d = common.n_features
    most = n_components or max_components or 0
    if most > d:
        raise InputError(f"{most} components exceed n_features={d}; use at most {d}")
    n, present, mean, factors, reference = _frame(fed, common, center, scale)
    entered = fed.sum(enter_robust, mean=mean, scale=factors, reference=np.float64(reference))
    size = median_place(entered["places"], reference) or reference
    U = start_from
    if U is None or U.shape[1] < most:  # after the rank was found, too few to find it once more
        U = start_clipped(fed, d, most, FIRST * size)
    limits: dict[str, Any] = {"tol": tol, "max_rounds": max_rounds}
    fed.record.solver = method
    if method == "dcf":
        soft = size / 2
        ridge = KNOWN_RIDGE if n_components else soft * np.sqrt(max(n, d)) / 2
        found, values = by_gradients(
            fed, U, soft, n=n, ridge=ridge, step=step, local_steps=local_steps, **limits
        )
    elif method == "least-squares":
        found, values = by_least_squares(fed, U, FIRST * size, n=n, **limits)
    else:
        found, values = _hard(
            fed, U, size, n, n_components, {**limits, "present": present, "moves": center != "none"}
        )
    r = n_components or rank_of(values)
    fed.record.stopped = found.stopped
    U = np.ascontiguousarray(found.U[:, :r])
    place = found.place or Place.first(d, r)
    kept = fed.sum(
        keep_sparse,
        U=U,
        **place.asked,
        threshold=np.float64(found.threshold),
        afresh=np.int64(found.place is None),
    )
    variances, C = top_eigen(kept["VV"] / (n - 1), r)
    return Robust(
        U=U @ C,
        variance=np.maximum(variances, 0.0),
        mean=mean + place.centre * factors,
        scale=factors,
        features=common.features,
        n=n,
        threshold=found.threshold,
        noise_variance=(NORMAL * found.noise) ** 2,
        shares=_shares(fed),
    )


def _hard(
    fed: Federation, U: Array, size: float, n: int, rank: int | None, limits: dict[str, Any]
) -> tuple[Separated, Array]:
    """Hard thresholds, after the rank was found by soft ones where it is not known."""
    threshold, values = FIRST * size, np.zeros(0)
    if rank is None:
        soft, values = by_least_squares(fed, U, threshold, n=n, tol=0.0, max_rounds=RANK_ROUNDS)
        rank = rank_of(values)
        U = np.ascontiguousarray(soft.U[:, :rank])
    return by_hard_threshold(fed, U, threshold, size=size, **limits), values


def _frame(
    fed: Federation, common: CommonFeatures, center: str, scale: bool
) -> tuple[int, Array, Array, Array, float]:
    """The number of rows; of each feature the entries, centre and scale; the size of all entries."""
    counted = fed.sum(count_present, features=common.to_ask)
    n, present = at_least_two(int(counted["n"])), counted["present"]
    if not present.all():
        names = common.features or [f"column {j}" for j in range(len(present))]
        empty = [str(names[j]) for j in np.flatnonzero(present == 0)]
        raise InputError(f"no site has a value of {some_of(empty)}; leave out what is empty")
    d = len(present)
    mean = counted["total"] / present
    centre, factors = np.zeros(d), np.ones(d)
    squares = fed.sum(squares_present, about=mean)["squares"]
    usable_energy(float(squares.sum()))
    spread = np.sqrt(squares / present)
    if center == "mean":
        centre = mean
    elif center == "median":
        centre = mean + feature_medians(fed, mean, -spread, spread)
    if scale:  # about the median, whatever the rows are about
        about = centre if center == "median" else mean + feature_medians(fed, mean, -spread, spread)
        sizes = NORMAL * feature_medians(fed, about, np.zeros(d), 2 * spread, sizes=True)
        negligible = np.finfo(float).eps * (np.abs(about) + spread)
        factors = np.where(sizes > negligible, sizes, np.where(spread > negligible, spread, 1.0))
    away = (spread**2 + (mean - centre) ** 2) / factors**2
    reference = float(np.sqrt(away @ present / present.sum())) or 1.0
    return n, present, centre, factors, reference


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
