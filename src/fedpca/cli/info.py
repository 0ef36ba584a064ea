"""Run `fedpca info`: show the contents of a model or summary file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedpca.cli.console import exit_codes, out
from fedpca.coordinator.record import RunRecord
from fedpca.errors import InputError
from fedpca.estimators import load
from fedpca.report.tables import print_crossed, print_model, print_summary
from fedpca.summary.file import is_summary
from fedpca.summary.summary import Summary


def info(
    file: Annotated[Path, typer.Argument(help="Model or summary file.")],
    ledger: Annotated[bool, typer.Option("--ledger", help="Also list the data exchanged.")] = False,
    site: Annotated[
        str | None, typer.Option(help="List the data exchanged with this site.")
    ] = None,
) -> None:
    """Show the contents of a model or summary file."""
    with exit_codes():
        fitted = print_file(file)
        if ledger or site:
            if not getattr(fitted, "run_", RunRecord()).history:
                raise InputError(f"{file} has no ledger; omit --ledger and --site")
            print_crossed(out, fitted.run_, site)


def print_file(path: Path) -> Any:
    """Print the contents of a model or summary file, and return the model or summary."""
    if is_summary(path):
        summary = Summary.load(path)
        print_summary(out, summary)
        return summary
    model = load(path)
    print_model(out, model)
    return model
