"""The coordinator's program for `PersonalizedPCA.fit`, from the first question to the last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import Outcome
from fedpca.errors import PolicyRefused
from fedpca.linalg.dense import complete_basis, fix_signs, orth, top_eigen
from fedpca.models.personalized import PersonalizedModel, SitePart, variance_shares
from fedpca.rows.standardized import usable_energy
from fedpca.solvers.personalized.at_site import (
    COVARIANCE,
    DIRECTIONS,
    NOTHING,
    begin_personalized,
    finish_personalized,
    site_shares,
    to_bytes,
    whole_local_part,
)
from fedpca.solvers.personalized.contract import PersonalizedSolver, Shared, Start
from fedpca.solvers.personalized.local_ranks import LocalRanks
from fedpca.solvers.personalized.projections import leading_of_bases, leading_of_columns
from fedpca.solvers.plan import LANCZOS_ROUNDS
from fedpca.solvers.standardize import CommonFeatures, ask_moments, at_least_two, common_features

STARTS = {"stack": DIRECTIONS, "average": COVARIANCE, "random": NOTHING}


@dataclass(frozen=True)
class PersonalizedResult:
    """The result of a personalized fit."""

    model: PersonalizedModel
    features: tuple[str, ...] | None
    n: int
    objective: float
    misalignment: float
    site_variance: dict[str, dict[str, float]]
    outcome: Outcome


def shared_and_local(
    fed: Federation,
    start_from: Array | None,
    *,
    solver: PersonalizedSolver,
    n_shared: int,
    n_local: int | Mapping[str, int],
    start: str,
    weights: str,
    center: str,
    scale: bool,
    gather: bool,
    tol: float,
    max_rounds: int,
    for_files: dict[str, Any],
) -> PersonalizedResult:
    """Find the directions that all sites share; each site keeps its local directions.

    ``for_files`` holds the estimator's parameters, which sites include in the files that they write.
    """
    common = common_features(fed)
    d = common.n_features
    ranks = LocalRanks.of(n_local)
    ranks.check_features(n_shared, d)
    lays_out = NOTHING if start_from is not None else STARTS[start]
    mean, factors = _frame(fed, common, center, scale)
    begun = fed.sum(
        begin_personalized,
        features=common.to_ask,
        mean=mean,
        scale=factors,
        own_mean=np.int64(center == "site"),
        by_rows=np.int64(weights == "rows"),
        ranks=ranks.to_bytes(),
        n_shared=np.int64(n_shared),
        n_products=np.int64((n_shared + ranks.most) * LANCZOS_ROUNDS),
        lays_out=np.int64(lays_out),
    )
    weight, energy = float(begun["weight"]), usable_energy(float(begun["energy"]))
    n = at_least_two(int(begun["n"]))
    U = start_from
    if U is None:
        U = _start(fed, start, d, n_shared, int(begun["columns"]), gather)
    is_guess = start == "stack" or start_from is not None
    seed = None if is_guess else int(fed.rng().integers(2**31))
    shared = solver.solve(fed, Start(U, weight, energy, tol, max_rounds, seed))
    U, variance = principal_axes(shared)
    header = {"features": common.names, "n_samples": n, "parameters": for_files}
    kept = fed.sum(finish_personalized, U=U, variance=variance, header=to_bytes(header))
    parts = _parts(fed) if gather else {}
    model = PersonalizedModel(
        components=np.ascontiguousarray(U.T),
        variance=variance,
        scale=factors,
        mean=None if center == "site" else mean,
        parts=parts,
    )
    return PersonalizedResult(
        model=model,
        features=common.names,
        n=n,
        objective=float(variance.sum()) + float(kept["local"]) / weight,
        misalignment=_misalignment(fed, d, int(begun["n_sites"]), ranks.most, parts),
        site_variance={k: p.shares for k, p in parts.items()} if gather else _shares(fed),
        outcome=Outcome(solver.name, shared.stop_reason),
    )


def _start(fed: Federation, start: str, d: int, n_shared: int, columns: int, gather: bool) -> Array:
    """Find an initial U, ``(d, n_shared)``."""
    if start == "random":
        return orth(fed.rng().standard_normal((d, n_shared)))
    _, U = leading_of_bases(fed, d, n_shared, columns, gather=gather)
    return complete_basis(U, n_shared)


def principal_axes(shared: Shared) -> tuple[Array, Array]:
    """Return the shared directions' principal axes and their variances, in descending order."""
    values, C = top_eigen((shared.along + shared.along.T) / 2, len(shared.along))
    return np.ascontiguousarray(fix_signs(shared.U @ C)), np.maximum(values, 0.0)


def misalignment_of(parts: dict[str, SitePart]) -> float:
    """Return ``1 - lambda_max`` of the mean projection onto the sites' local components."""
    occupied = [part for part in parts.values() if part.n]
    V = np.vstack([part.components for part in occupied])
    values, _ = leading_of_columns(V.T, 1)
    return max(0.0, 1 - float(values[0]) / len(occupied))


def _frame(
    fed: Federation, common: CommonFeatures, center: str, scale: bool
) -> tuple[Array, Array]:
    """Return the common mean, or zeros, and the scale."""
    d = common.n_features
    if center != "common" and not scale:
        return np.zeros(d), np.ones(d)
    moments = ask_moments(fed, common, center=center == "common", scale=scale)
    return moments.mean, moments.scale


def _parts(fed: Federation) -> dict[str, SitePart]:
    """Gather each site's local part, which the coordinator then sees."""
    return {
        name: SitePart.from_squares(
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
    """Compute the misalignment from the gathered parts or from sums over the sites."""
    if parts:
        return misalignment_of(parts)
    values, _ = leading_of_bases(fed, d, 1, n_sites * rank)
    return max(0.0, 1 - float(values[0]) / n_sites)


def _shares(fed: Federation) -> dict[str, dict[str, float]]:
    """Return the shares of each site's variance, or nothing if a policy refuses."""
    try:
        answers = fed.gather(site_shares)
    except PolicyRefused:
        return {}
    return {
        name: variance_shares(*(float(answer[key]) for key in ("shared", "local", "total")))
        for name, answer in answers.items()
    }
