"""Run `fedpca info`: show the contents of a model or summary file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedpca.cli.console import exit_codes, out
from fedpca.cli.options import Csv, Json
from fedpca.coordinator.ledger import Total
from fedpca.coordinator.record import RunRecord
from fedpca.errors import InputError
from fedpca.estimators import load
from fedpca.report.contents import as_csv, as_json, ledger_as_csv
from fedpca.report.tables import (
    print_crossed,
    print_model,
    print_summary,
    refuse_unknown_site,
)
from fedpca.summary.file import is_summary
from fedpca.summary.summary import Summary


def info(
    file: Annotated[Path, typer.Argument(help="Model or summary file.")],
    ledger: Annotated[bool, typer.Option("--ledger", help="Also list the data exchanged.")] = False,
    site: Annotated[
        str | None, typer.Option(help="List the data exchanged with this site.")
    ] = None,
    csv: Csv = False,
    json: Json = False,
) -> None:
    """Show the contents of a model or summary file.

    With --ledger, --csv prints the data exchanged instead of the components.
    """
    with exit_codes():
        fitted = Summary.load(file) if is_summary(file) else load(file)
        run: RunRecord = getattr(fitted, "run_", RunRecord())
        wants_ledger = ledger or site is not None
        if wants_ledger and not run.history:
            raise InputError(f"{file} has no ledger; omit --ledger and --site")
        if wants_ledger:
            refuse_unknown_site(run, site)
        if csv or json:
            totals = run.ledger.totals(site) if wants_ledger else None
            print_plain(fitted, csv=csv, json=json, ledger=totals)
            return
        print_fitted(fitted)
        if wants_ledger:
            print_crossed(out, run, site)


def print_fitted(fitted: Any) -> None:
    """Print the contents of a model or summary."""
    if isinstance(fitted, Summary):
        print_summary(out, fitted)
    else:
        print_model(out, fitted)


def print_plain(fitted: Any, *, csv: bool, json: bool, ledger: list[Total] | None = None) -> None:
    """Print the contents of a model or summary as CSV or JSON, for other programs."""
    if csv and json:
        raise InputError("--csv and --json are mutually exclusive; use only one")
    if json:
        text = as_json(fitted, ledger=ledger)
    else:
        text = as_csv(fitted) if ledger is None else ledger_as_csv(ledger)
    typer.echo(text)
