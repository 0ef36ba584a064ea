"""Run `fedpca plan`: estimate what a fit would cost and reveal, before any site is asked."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedpca.arrays import Array
from fedpca.cli.console import exit_codes, out, say
from fedpca.cli.methods import privacy_of
from fedpca.cli.options import Delta, Epsilon, RowBound, Scale, Silent, read_policy, sites_of
from fedpca.errors import InputError
from fedpca.estimators import FederatedPCA
from fedpca.models.linear import Model, load_model
from fedpca.report.plans import print_plan
from fedpca.solvers import planning
from fedpca.solvers.workload import BANDWIDTH, LATENCY_S

PLAIN = FederatedPCA()  # for the defaults that help shows
SPEED_PANEL = "Speeds, which determine the seconds"


def plan(
    rows: Annotated[int, typer.Option(min=2, help="Number of rows at all sites, roughly.")],
    features: Annotated[int, typer.Option(min=1, help="Number of features.")],
    n_components: Annotated[
        int, typer.Option("-k", "--components", min=1, help="Number of components.")
    ],
    sites: Annotated[
        str, typer.Option(help="Number of sites that take part, or their names: north,south.")
    ] = "3",
    solver: Annotated[
        list[str], typer.Option(help="Solver to plan for; may be repeated; by default, all.")
    ] = [],  # noqa: B006
    scale: Scale = False,
    missing: Annotated[
        str, typer.Option(help="What to do with missing values: error, mean, or drop.")
    ] = PLAIN.missing,
    tol: Annotated[float, typer.Option(help="Residual at which the solver stops.")] = PLAIN.tol,
    max_rounds: Annotated[
        int, typer.Option(min=1, help="Rounds after which the solver stops.")
    ] = PLAIN.max_rounds,
    secure: Annotated[
        bool, typer.Option("--secure", help="Use secure sums: the coordinator reads only totals.")
    ] = False,
    epsilon: Epsilon = None,
    delta: Delta = None,
    row_bound: RowBound = None,
    silent: Silent = None,
    policy: Annotated[
        Path | None, typer.Option(help="A site's policy; show what the site would refuse.")
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            help="Model of public rows with similar variances. By default, variances fall as 1, 1/2, "
            "1/3, and so on."
        ),
    ] = None,
    latency: Annotated[
        float, typer.Option(help="Seconds per round.", rich_help_panel=SPEED_PANEL)
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
            help="Operations per second of each machine; by default, measured on this one.",
            rich_help_panel=SPEED_PANEL,
        ),
    ] = None,
    read_rate: Annotated[
        float | None,
        typer.Option(
            help="Bytes of rows that a site reads per second; by default, measured in memory.",
            rich_help_panel=SPEED_PANEL,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Estimate what a fit would cost and reveal with each solver, and recommend a solver.

    Nothing is sent, and no rows are read, so planning spends no privacy budget. With --epsilon, the
    command also estimates how much of the variance of exact components the noise would leave. With
    --policy, it shows which solvers a site with this policy would refuse.
    """
    with exit_codes():
        given = {
            "--epsilon": epsilon,
            "--delta": delta,
            "--row-bound": row_bound,
            "--silent": silent,
        }
        settings = privacy_of({name: each for name, each in given.items() if each is not None})
        if n_components > min(rows, features):
            raise InputError(
                f"-k {n_components} exceeds the {min(rows, features)} components that {rows:,} rows "
                f"with {features:,} features can have; use at most {min(rows, features)}"
            )
        planned = planning.plan(
            rows,
            features,
            n_components,
            sites=sites_of(sites) or 0,
            solvers=solver or None,
            scale=scale,
            missing=missing,
            tol=tol,
            max_rounds=max_rounds,
            secure=secure or None,
            privacy=settings,
            policy=None if policy is None else read_policy(policy),
            variances=None if like is None else _variances(like, features),
            latency=latency,
            bandwidth=bandwidth,
            flops=flops,
            read_rate=read_rate,
        )
        if json:
            say(json_format.dumps(planned.to_plain(), indent=2))
            return
        print_plan(out, planned, has_policy=policy is not None)
        if settings is not None:
            say(
                f"With epsilon {settings.epsilon:g}, delta {settings.delta:g}, and rows within "
                f"{settings.row_bound:g} of the mean, the components are expected to keep "
                f"{planned.share:.1%} of the variance that exact ones keep."
            )


def _variances(like: Path, d: int) -> Array:
    """Return the variances along all components; those that a model lacks share the rest equally."""
    model: Model = load_model(like)[0]
    k, found = model.components.shape
    if found != d:
        raise InputError(f"{like} has {found} features, not {d}; use a model with {d} features")
    rest = max(float(model.total_variance - model.explained_variance.sum()), 0.0)
    return np.append(model.explained_variance, np.full(d - k, rest / max(d - k, 1)))
