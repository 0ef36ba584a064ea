"""Run `fedpca info`: show the contents of a model or summary file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.console import exit_codes
from fedpca.cli.options import Csv, Json
from fedpca.cli.terminal import show
from fedpca.errors import InputError
from fedpca.estimators import load
from fedpca.facts import Records, find
from fedpca.report.contents import components_as_csv, records_as_csv, run_of
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
    with exit_codes(json=json):
        refuse_both(csv, json)
        fitted = Summary.load(file) if is_summary(file) else load(file)
        exchanged = run_of(fitted).exchanged(site) if ledger or site is not None else ()
        if not csv:
            show((*fitted.facts(), *exchanged), json=json)
            return
        crossed = find(exchanged, "ledger", Records)
        typer.echo(components_as_csv(fitted) if crossed is None else records_as_csv(crossed))


def refuse_both(csv: bool, json: bool) -> None:
    """Refuse to print two formats at once."""
    if csv and json:
        raise InputError("--csv and --json are mutually exclusive; use only one")
