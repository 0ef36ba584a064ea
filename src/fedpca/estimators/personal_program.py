"""The program of a personalised fit, from the first question to the last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpca.errors import InputError, PolicyRefused
from fedpca.federation import Federation
from fedpca.framed import usable_energy
from fedpca.linalg import complete_basis, fix_signs, orth, top_eigen
from fedpca.message import Array
from fedpca.moments import CommonFeatures, at_least_two, common_features, moments
from fedpca.personal_model import PersonalModel, SitePart, site_part, variance_shares
from fedpca.planner import EXPECTED_ROUNDS
from fedpca.solvers.bases import leading_of_bases, leading_of_columns
from fedpca.solvers.personal_site import (
    COVARIANCE,
    DIRECTIONS,
    NOTHING,
    enter_frame,
    keep_local,
    site_shares,
    to_bytes,
    whole_local_part,
)
from fedpca.solvers.personalized import METHODS, Shared

STARTS = {"stack": DIRECTIONS, "average": COVARIANCE, "random": NOTHING}


@dataclass(frozen=True)
class Personalized:
    """What a personalised fit finds."""

    model: PersonalModel
    features: tuple[str, ...] | None
    n: int
    objective: float
    misalignment: float
    site_variance: dict[str, dict[str, float]]


def shared_and_local(
    fed: Federation,
    start_from: Array | None,
    *,
    n_shared: int,
    n_local: int | dict[str, int],
    method: str,
    start: str,
    weights: str,
    center: str,
    scale: bool,
    gather: bool,
    step: float | None,
    retraction: str,
    parameters: dict[str, Any],
    **options: Any,
) -> Personalized:
    """The program of a fit: the frame, the start, the solver, and what each site keeps."""
    common = common_features(fed)
    check_ranks(n_shared, n_local, common.n_features)
    lays_out = NOTHING if start_from is not None else STARTS[start]
    mean, factors = _frame(fed, common, center, scale)
    ranks = [n_local] if isinstance(n_local, int) else list(n_local.values())
    entered = fed.sum(
        enter_frame,
        features=common.to_ask,
        mean=mean,
        scale=factors,
        own_mean=np.int64(center == "site"),
        by_rows=np.int64(weights == "rows"),
        ranks=to_bytes(n_local),
        n_shared=np.int64(n_shared),
        n_products=np.int64((n_shared + max(ranks)) * EXPECTED_ROUNDS),
        lays_out=np.int64(lays_out),
    )
    weight, energy = float(entered["weight"]), usable_energy(float(entered["energy"]))
    n = at_least_two(int(entered["n"]))
    U = start_from
    if U is None:
        U = _start(fed, start, common.n_features, n_shared, int(entered["columns"]), gather)
    if method != "power":
        is_random = start != "stack" and start_from is None
        seed = int(fed.rng().integers(2**31)) if is_random else None
        options |= {"energy": energy, "seed": seed, "step": step, "retraction": retraction}
    fed.record.solver = method
    found = METHODS[method](fed, U, weight, **options)
    fed.record.stopped = found.stopped
    U, variance = principal_axes(found)
    header = {"features": common.features, "n_samples": n, "parameters": parameters}
    kept = fed.sum(keep_local, U=U, variance=variance, header=to_bytes(header))
    local = float(kept["local"]) / weight
    parts = _parts(fed) if gather else {}
    model = PersonalModel(
        components=np.ascontiguousarray(U.T),
        variance=variance,
        scale=factors,
        mean=None if center == "site" else mean,
        parts=parts,
    )
    return Personalized(
        model=model,
        features=common.features,
        n=n,
        objective=float(variance.sum()) + local,
        misalignment=_misalignment(
            fed, common.n_features, int(entered["n_sites"]), max(ranks), parts
        ),
        site_variance={k: p.shares for k, p in parts.items()} if gather else _shares(fed),
    )


def _start(fed: Federation, start: str, d: int, n_shared: int, columns: int, gather: bool) -> Array:
    """A first U, ``(d, n_shared)``."""
    if start == "random":
        return orth(fed.rng().standard_normal((d, n_shared)))
    _, U = leading_of_bases(fed, d, n_shared, columns, gather=gather)
    return complete_basis(U, n_shared)


def check_ranks(n_shared: int, n_local: int | dict[str, int], d: int) -> None:
    """Refuse more components than features."""
    ranks = {"": n_local} if isinstance(n_local, int) else n_local
    for name, rank in ranks.items():
        if n_shared + rank > d:
            whose = f" of site {name!r}" if name else ""
            raise InputError(
                f"n_shared={n_shared} and n_local={rank}{whose} exceed n_features={d}; use at most {d} "
                "together"
            )


def principal_axes(found: Shared) -> tuple[Array, Array]:
    """The basis of the shared directions along which variances fall, and these variances."""
    values, C = top_eigen((found.along + found.along.T) / 2, len(found.along))
    return np.ascontiguousarray(fix_signs(found.U @ C)), np.maximum(values, 0.0)


def misalignment_of(parts: dict[str, SitePart]) -> float:
    """``1 - lambda_max`` of the mean projection on the sites' own components."""
    occupied = [part for part in parts.values() if part.n]
    V = np.vstack([part.components for part in occupied])
    values, _ = leading_of_columns(V.T, 1)
    return max(0.0, 1 - float(values[0]) / len(occupied))


def _frame(
    fed: Federation, common: CommonFeatures, center: str, scale: bool
) -> tuple[Array, Array]:
    """The common mean, or zeros, and the scale."""
    d = common.n_features
    if center != "common" and not scale:
        return np.zeros(d), np.ones(d)
    known = moments(fed, common, center=center == "common", scale=scale)
    return known.mean, known.scale


def _parts(fed: Federation) -> dict[str, SitePart]:
    """What each site has of its own, which the coordinator sees."""
    return {
        name: site_part(
            int(part["n"]),
            part["mean"],
            part["V"],
            part["along_local"],
            part["along"],
            float(part["total"]),
        )
        for name, part in fed.gather(whole_local_part).items()
    }


def _misalignment(
    fed: Federation, d: int, n_sites: int, rank: int, parts: dict[str, SitePart]
) -> float:
    if parts:
        return misalignment_of(parts)
    values, _ = leading_of_bases(fed, d, 1, n_sites * rank)
    return max(0.0, 1 - float(values[0]) / n_sites)


def _shares(fed: Federation) -> dict[str, dict[str, float]]:
    """Shares of each site's variance, where its policy tells."""
    try:
        answers = fed.gather(site_shares)
    except PolicyRefused:
        return {}
    return {
        name: variance_shares(*(float(a[key]) for key in ("shared", "local", "total")))
        for name, a in answers.items()
    }
