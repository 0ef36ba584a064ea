"""Run `fedpca info`: show what is in a model or summary file."""

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
    file: Annotated[Path, typer.Argument(help="A model or a summary.")],
    ledger: Annotated[bool, typer.Option("--ledger", help="Also list what crossed.")] = False,
    site: Annotated[
        str | None, typer.Option(help="List what crossed to and from this site.")
    ] = None,
) -> None:
    """Show what is in a model or summary file."""
    with exit_codes():
        fitted = print_file(file)
        if ledger or site:
            if not getattr(fitted, "run_", RunRecord()).history:
                raise InputError(f"{file} has no ledger; leave --ledger and --site out")
            print_crossed(out, fitted.run_, site)


def print_file(path: Path) -> Any:
    """Print what is in a model or summary file, and return it."""
    if is_summary(path):
        summary = Summary.load(path)
        print_summary(out, summary)
        return summary
    model = load(path)
    print_model(out, model)
    return model
