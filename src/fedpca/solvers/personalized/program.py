"""The coordinator's program for `PersonalizedPCA.fit`, from the first question to the last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import Outcome
from fedpca.coordinator.warm_start import WarmStart
from fedpca.errors import InputError, PolicyRefused
from fedpca.linalg.dense import ROUNDING, fix_signs, orth, top_eigen
from fedpca.models.personalized import PersonalizedModel, SitePart, variance_shares
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import Script, maybe, script, then
from fedpca.rows.standardized import usable_energy
from fedpca.solvers.common_features import AGREEING, CommonFeatures, common_features
from fedpca.solvers.contract import declared_solver
from fedpca.solvers.costs import LANCZOS_ROUNDS
from fedpca.solvers.personalized.at_site import (
    begin_personalized,
    finish_personalized,
    site_shares,
    to_bytes,
    whole_local_part,
)
from fedpca.solvers.personalized.contract import PersonalizedSolver, Shared, Start
from fedpca.solvers.personalized.local_ranks import LocalRanks
from fedpca.solvers.personalized.power import power_step
from fedpca.solvers.personalized.projections import (
    bases_order,
    leading_of_bases,
    leading_of_columns,
    whole_basis,
)
from fedpca.solvers.personalized.starts import find_starts, leading_of_rows, starts_order
from fedpca.solvers.standardize import ask_moments, at_least_two, moments_script

# A direction is tied with the shared ones if the sites' local parts contain all but this share of it.
TIE = 0.01


@dataclass(frozen=True)
class PersonalizedResult:
    """The result of a personalized fit."""

    model: PersonalizedModel
    features: tuple[str, ...] | None
    n: int
    total_variance: float  # variance of all features, averaged over sites
    objective: float
    misalignment: float
    ambiguity: float
    site_variance: dict[str, dict[str, float]]
    left_out: Mapping[str, str] | None  # for genotypes: the variants left out, and why
    outcome: Outcome


def shared_and_local(
    fed: Federation,
    start_from: WarmStart | None,
    *,
    solver: PersonalizedSolver,
    n_shared: int,
    n_local: int | Mapping[str, int],
    start: str,
    n_init: int,
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
    if common.rounding > ROUNDING:
        raise InputError(
            "a site multiplies its rows in float32, so rounding may look like local components; "
            "create this site with precision='float64'"
        )
    d = common.n_features
    ranks = LocalRanks.of(n_local)
    ranks.check_features(n_shared, d)
    n_init = n_init if solver.takes_many_starts else 1
    asks_leading = bool(start_from is None and start != "random" and n_shared and ranks.most)
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
        n_products=np.int64(expected_products(n_shared, ranks, n_init)),
        prepares_start=np.int64(asks_leading),
    )
    weight, energy = float(begun["weight"]), usable_energy(float(begun["energy"]))
    n = at_least_two(int(begun["n"]))
    if n_shared:
        if start_from is not None:
            points = start_from.among(common.names)[None]
        elif not ranks.most:
            points = leading_of_rows(fed, d, n_shared)
        else:
            shape = (n_init, d, n_shared)
            points = find_starts(fed, start, shape, int(begun["columns"]), gather=gather)
        is_guess = start == "stack" or start_from is not None
        seed = None if is_guess else int(fed.rng().integers(2**31))
        shared = solver.solve(fed, Start(points, weight, energy, tol, max_rounds, seed))
    else:
        shared = Shared(np.empty((d, 0)), np.empty((0, 0)), 0.0, "exact")
    total = energy / weight
    header = {
        "features": common.names,
        "n_samples": n,
        "parameters": for_files,
    }
    to_end = Ending(fed, ranks, int(begun["n_sites"]), weight, total, to_bytes(header), gather)
    end = to_end.at(shared)
    # shared or in every local part: without a rule, the number of rounds would decide which of both
    if end.tied.size:
        shared = _with_tied(fed, shared, end.tied, weight)
        end = to_end.at(shared)
    model = PersonalizedModel(
        components=np.ascontiguousarray(end.U.T),
        variance=end.variance,
        scale=factors,
        mean=None if center == "site" else mean,
        parts=end.parts,
    )
    return PersonalizedResult(
        model=model,
        features=common.names,
        n=n,
        total_variance=total,
        objective=float(end.variance.sum()) + end.local,
        misalignment=end.misalignment,
        ambiguity=shared.ambiguity,
        site_variance={k: p.shares for k, p in end.parts.items()} if gather else _shares(fed),
        left_out=common.left_out,
        outcome=Outcome(solver.name, shared.stop_reason),
    )


@script("PersonalizedPCA")
def personalized_script(plan: RunPlan) -> Script:
    """Return what `shared_and_local` asks with the plan's solver."""
    given = plan.parameters
    solver = declared_solver(plan, "PersonalizedPCA")
    ranks, n_shared = LocalRanks.of(given["n_local"]), int(given["n_shared"])
    n_init = int(given["n_init"]) if solver.takes_many_starts else 1
    has_local, gather = bool(ranks.most), bool(given["gather"])
    needs_moments = given["center"] == "common" or given["scale"]
    moments = moments_script(plan) if needs_moments else Script(then())
    part = solver.script(plan)
    search = []
    if n_shared:
        starts = starts_order(given["start"], n_init, has_local=has_local, gather=gather)
        search = [starts, part.order]
    local = [whole_local_part] if gather else [bases_order()] if has_local else []
    ending = then(finish_personalized, *local)
    shares = [] if gather else [maybe(site_shares)]
    values = {
        **moments.values,
        **part.values,
        "own_mean": given["center"] == "site",
        "by_rows": given["weights"] == "rows",
        "ranks": ranks.to_bytes(),
        "n_shared": n_shared,
        "n_products": expected_products(n_shared, ranks, n_init),
    }
    if not given["scale"]:
        values["scale"] = 1
    if not needs_moments:
        values["mean"] = 0
    return Script(
        then(
            AGREEING,
            moments.order,
            begin_personalized,
            *search,
            ending,
            maybe(power_step, ending),
            *shares,
        ),
        values=values,
        lengths={"m": n_init, "k": n_shared + ranks.most},
        family="personalized",
        sees=(whole_basis.name, whole_local_part.name) if gather else (),
    )


def expected_products(n_shared: int, ranks: LocalRanks, n_init: int) -> int:
    """Estimate how many columns a site's rows are multiplied by in a fit."""
    return (n_shared + ranks.most) * LANCZOS_ROUNDS * n_init


@dataclass(frozen=True)
class End:
    """The shared directions, and the local directions that sites chose outside them."""

    U: Array  # (d, k)
    variance: Array  # (k,), along U
    local: float  # the variance along local directions, averaged over sites
    parts: dict[str, SitePart]  # the local parts that the coordinator gathered
    misalignment: float
    tied: Array  # (d, q), directions that almost all local parts contain


@dataclass(frozen=True)
class Ending:
    """How a fit ends: what the sites do once the shared directions are known."""

    fed: Federation
    ranks: LocalRanks
    n_sites: int  # the number of sites that have rows
    weight: float
    total: float  # the variance of all features, averaged over sites
    header: Array  # the header of the files that sites write
    gather: bool

    def at(self, shared: Shared) -> End:
        """Let each site choose its local directions, and compare them."""
        U, variance = principal_axes(shared)
        kept = self.fed.sum(
            finish_personalized,
            U=U,
            variance=variance,
            total=np.float64(self.total),
            header=self.header,
        )
        parts = _parts(self.fed) if self.gather else {}
        in_common, W = self._in_common(len(U), parts)
        # without shared directions, there is nothing to be tied with
        is_tied = (in_common >= 1 - TIE) & bool(U.size)
        return End(
            U=U,
            variance=variance,
            local=float(kept["local"]) / self.weight,
            parts=parts,
            # rounding may bring an eigenvalue of a mean of projections above 1
            misalignment=max(0.0, 1 - float(in_common.max(initial=0.0))),
            tied=W[:, is_tied[: W.shape[1]]],
        )

    def _in_common(self, d: int, parts: dict[str, SitePart]) -> tuple[Array, Array]:
        """Return the leading eigenvalues and eigenvectors of the mean projection onto local parts."""
        # no more directions can be in all local parts than the smallest part has; `misalignment` needs
        # one
        k = max(self.ranks.least, min(1, self.ranks.most))
        if not k:
            return np.zeros(0), np.empty((d, 0))
        if parts:
            V = np.vstack([part.components for part in parts.values()])
            values, W = leading_of_columns(V.T, k)
        else:
            values, W = leading_of_bases(self.fed, d, k, self.n_sites * self.ranks.most)
        return values / self.n_sites, W


def _with_tied(fed: Federation, shared: Shared, tied: Array, weight: float) -> Shared:
    """Return the directions of largest variance among the shared ones and those tied with them."""
    C = orth(np.hstack([shared.U, tied]))
    along = fed.sum(power_step, U=C[None])["along"][0] / weight
    # `top_eigen` reads one triangle, which rounding has made slightly different from the other
    _, E = top_eigen((along + along.T) / 2, shared.U.shape[1])
    return replace(shared, U=C @ E, along=E.T @ along @ E, ambiguity=0.0)


def principal_axes(shared: Shared) -> tuple[Array, Array]:
    """Return the shared directions' principal axes and their variances, in descending order."""
    values, C = top_eigen((shared.along + shared.along.T) / 2, len(shared.along))
    return np.ascontiguousarray(fix_signs(shared.U @ C)), np.maximum(values, 0.0)


def _frame(
    fed: Federation, common: CommonFeatures, center: str, scale: bool
) -> tuple[Array, Array]:
    """Return the common mean, or zeros, and the scale."""
    d = common.n_features
    # sums that a fit does not need are not asked for, and so the means stay at the sites
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


def _shares(fed: Federation) -> dict[str, dict[str, float]]:
    """Return the shares of each site's variance, or nothing if a policy refuses."""
    try:
        with fed.optional():
            answers = fed.gather(site_shares)
    except PolicyRefused:
        return {}
    return {
        name: variance_shares(*(float(answer[key]) for key in ("shared", "local", "total")))
        for name, answer in answers.items()
    }
