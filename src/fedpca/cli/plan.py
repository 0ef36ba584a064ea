"""Run `fedpca plan`: estimate what a fit would cost and reveal, before any site is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedpca.arrays import Array
from fedpca.cli.console import exit_codes
from fedpca.cli.methods import NO_METHOD, NO_NOISE, Kind, Method, Noise, names_of_solvers
from fedpca.cli.option_groups import LeftOut, with_groups
from fedpca.cli.options import Json, read_policy, sites_of
from fedpca.cli.sites import FILES_ONLY, N_SITES, NO_SITE_ASKED, WhichSites
from fedpca.cli.terminal import show
from fedpca.errors import InputError
from fedpca.estimators import PersonalizedPCA
from fedpca.models.linear import Model, load_model
from fedpca.solvers.planning import plan as planning
from fedpca.solvers.planning.machines import BANDWIDTH, LATENCY_S

NOT_IN_PLANS = {
    "solver": "a plan compares several solvers",
    "solver_option": "a plan compares solvers with their usual options",
    "binomial": "a plan is about rows that are drawn, which are not genotypes",
    "maf": "a plan is about rows that are drawn, which are not genotypes",
    "seed": "a plan draws rows, always the same",
}
SPEED_PANEL = "Speeds, which determine the seconds"


@with_groups
def plan(
    rows: Annotated[int, typer.Option(min=2, help="Approximate number of rows at all sites.")],
    features: Annotated[int, typer.Option(min=1, help="Number of features.")],
    method: Annotated[Method, LeftOut(NOT_IN_PLANS)] = NO_METHOD,
    solver: Annotated[
        list[str],
        typer.Option(
            help="Solver to plan for; may be repeated; by default, all.",
            autocompletion=names_of_solvers,
        ),
    ] = [],  # noqa: B006
    noise: Noise = NO_NOISE,
    asked: Annotated[WhichSites, LeftOut(NO_SITE_ASKED)] = FILES_ONLY,
    weighted: Annotated[
        bool, typer.Option("--weighted", help="The rows have weights, as with --weight.")
    ] = False,
    in_order: Annotated[
        bool,
        typer.Option(
            "--in-order/--any-order", help="Whether the sites have their columns in one order."
        ),
    ] = True,
    policy: Annotated[
        Path | None,
        typer.Option(help="TOML file with a site's policy, to show what the site would refuse."),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            help="Model of public rows whose variances resemble those of the sites' rows. By default, "
            "variances are assumed to fall as 1, 1/2, 1/3, and so on."
        ),
    ] = None,
    latency: Annotated[
        float,
        typer.Option(
            help="Seconds that the network adds to each round.", rich_help_panel=SPEED_PANEL
        ),
    ] = LATENCY_S,
    bandwidth: Annotated[
        float,
        typer.Option(
            help="Bytes per second of the coordinator's connection, which all sites share.",
            rich_help_panel=SPEED_PANEL,
        ),
    ] = BANDWIDTH,
    flops: Annotated[
        float | None,
        typer.Option(
            help="Operations per second of each machine; by default, the number that this machine "
            "reaches.",
            rich_help_panel=SPEED_PANEL,
        ),
    ] = None,
    read_rate: Annotated[
        float | None,
        typer.Option(
            help="Bytes of rows that a site reads per second; by default, as fast as this machine "
            "reads rows in memory.",
            rich_help_panel=SPEED_PANEL,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Estimate what a fit would cost and reveal with each solver, and recommend a solver.

    Nothing is sent, and no rows are read, so planning spends no privacy budget. With --epsilon, the
    command also estimates the variance that the noisy components would keep, as a share of the variance
    that exact components keep. With --policy, it shows which solvers a site with this policy would
    refuse.
    """
    with exit_codes(json=json):
        model = method.estimator(noise)
        k = method.components if isinstance(method.components, int) else None
        if method.kind is Kind.pca and k is None:
            raise InputError("a plan requires -k with the number of components")
        bound = k or method.max_components or 0
        most = min(rows, features)
        if bound > most:
            option = "-k" if k else "--max-components"
            raise InputError(
                f"{option} {bound} exceeds the {most} components that {rows:,} rows of "
                f"{features:,} features can have; use at most {most}"
            )
        planned = planning.plan(
            rows,
            features,
            model,
            sites=sites_of(asked.sites or str(N_SITES)) or 0,
            solvers=solver or None,
            weighted=weighted,
            in_order=in_order,
            secure=asked.secure or None,
            policy=None if policy is None else read_policy(policy),
            variances=None if like is None else _variances(like, features, method.kind),
            latency=latency,
            bandwidth=bandwidth,
            flops=flops,
            read_rate=read_rate,
        )
        show(planned.facts(), json=json)


def _variances(like: Path, d: int, kind: Kind) -> Array:
    """Return all d variances; components that the model lacks share the remaining variance equally."""
    if kind is Kind.personalized:
        fitted = PersonalizedPCA.load(like)
        local = list(fitted.local_variance_.values())
        k = min((len(each) for each in local), default=0)
        own = np.mean([each[:k] for each in local], axis=0) if k else np.empty(0)
        found, total = fitted.n_features_in_, fitted.total_variance_
        leading = np.concatenate([fitted.explained_variance_, own])
    else:
        model: Model = load_model(like)[0]
        found, total = model.components.shape[1], model.total_variance
        leading = model.explained_variance
    if found != d:
        raise InputError(f"{like} has {found} features, not {d}; use a model with {d} features")
    rest, n_left = max(float(total - leading.sum()), 0.0), d - len(leading)
    return np.append(leading, np.full(n_left, rest / max(n_left, 1)))
