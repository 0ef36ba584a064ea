"""Run `fedpca verify`: check whether a model still fits the sites' rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.console import exit_codes
from fedpca.cli.option_groups import LeftOut, with_groups
from fedpca.cli.options import FILES, Databases, Json, Quiet
from fedpca.cli.sites import FILES_ONLY, WhichSites
from fedpca.cli.terminal import show
from fedpca.estimators import load
from fedpca.estimators import verify as verify_model
from fedpca.rows.reading import AS_STORED, Reading
from fedpca.solvers.verification import TOL

ONE_ROUND = {"journal": "a single round leaves nothing to resume"}


@with_groups
def verify(
    model: Annotated[Path, typer.Argument(help="Model file.")],
    files: Annotated[list[str] | None, typer.Argument(help=FILES)] = None,
    databases: Databases = [],  # noqa: B006
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
    reading: Reading = AS_STORED,
    asked: Annotated[WhichSites, LeftOut(ONE_ROUND)] = FILES_ONLY,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check in one round whether a model's components are those of the sites' current rows.

    The exit code is 0 if the model is certified, and 1 if the rows have drifted away from it. Only the
    model's features are read from tables. Pass the same --weight as to `fedpca fit`.
    """
    with exit_codes(json=json):
        fitted = load(model)
        with asked.join_for(fitted, files, databases, reading, quiet=quiet) as fed:
            verdict = verify_model(fitted, fed, tol=tol, by_site=by_site)
        show(verdict.facts(), json=json, quiet=quiet)
    if not verdict.is_certified:
        sys.exit(1)
