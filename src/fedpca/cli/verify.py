"""Run `fedpca verify`: check whether a model still fits the sites' rows."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.console import exit_codes, out, say
from fedpca.cli.options import (
    FILES,
    Columns,
    Credentials,
    Drop,
    Id,
    Insecure,
    Quiet,
)
from fedpca.cli.sites import AtServer, federation_of
from fedpca.estimators import load
from fedpca.estimators import verify as verify_model
from fedpca.report.plans import print_verdict
from fedpca.solvers.verification import TOL


def verify(
    model: Annotated[Path, typer.Argument(help="Model file.")],
    files: Annotated[list[str] | None, typer.Argument(help=FILES)] = None,
    tol: Annotated[
        float,
        typer.Option(help="Largest relative change to ignore; raise it to accept some drift."),
    ] = TOL,
    by_site: Annotated[
        bool,
        typer.Option(
            "--by-site",
            help="Also ask each site how much of its variance the components explain, to find the "
            "sites whose rows have changed.",
        ),
    ] = False,
    drop: Drop = [],  # noqa: B006
    columns: Columns = [],  # noqa: B006
    id: Id = [],  # noqa: B006
    weight: Annotated[
        str | None, typer.Option(help="Column with the weight of each row; only with FILES.")
    ] = None,
    federation: Annotated[
        str | None,
        typer.Option(help="Use the sites at this server instead of FILES: HOST or HOST:PORT."),
    ] = None,
    sites: Annotated[
        str | None,
        typer.Option(help="With --federation: number of sites, or their names, as in north,south."),
    ] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="Use secure sums: the coordinator reads only totals.")
    ] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for sites that are offline.")] = 60.0,
    purpose: Annotated[
        str, typer.Option(help="Reason for the run, in one line, to show to people at the sites.")
    ] = "",
    approval_wait: Annotated[
        float, typer.Option(help="Seconds to wait for sites where a person must approve the run.")
    ] = 0.0,
    credentials: Credentials = None,
    insecure: Insecure = False,
    json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Check in one round whether a model's components are those of the sites' current rows.

    The exit code is 0 if the model is certified, and 1 if the rows have drifted away from it. Only the
    model's features are read from tables. Pass the same --weight as to `fedpca fit`.
    """
    with exit_codes():
        fitted = load(model)
        server = AtServer(federation, sites, wait, credentials, insecure, purpose, approval_wait)
        fed = federation_of(
            files,
            server,
            drop=drop,
            columns=columns,
            id=id,
            weight=weight,
            features=getattr(fitted, "feature_names_in_", None),
            secure=secure,
            quiet=quiet,
        )
        with fed:
            verdict = verify_model(fitted, fed, tol=tol, by_site=by_site)
        if json:
            say(json_format.dumps(verdict.to_plain(), indent=2))
        elif not quiet:
            print_verdict(out, verdict)
    if not verdict.is_certified:
        sys.exit(1)
