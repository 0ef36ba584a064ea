"""Run `fedpca report`: write a page about a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.console import exit_codes, refuse_overwriting, say
from fedpca.cli.options import Force, Quiet
from fedpca.errors import InputError
from fedpca.estimators import load
from fedpca.report.page import report_page
from fedpca.site.policy import JOINING
from fedpca.storage import atomic
from fedpca.summary.file import is_summary
from fedpca.summary.summary import Summary


def report(
    file: Annotated[Path, typer.Argument(help="Model or summary file.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the page to this file (.html).")
    ],
    min_count: Annotated[
        int, typer.Option(min=1, help="Do not show row counts below this number.")
    ] = JOINING.min_count,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write a page about a model: its components, plots, cost, privacy, and how certain it is.

    The page is one file that loads nothing from elsewhere. Everything on it comes from the model file.
    The page contains no rows, and no counts of fewer than --min-count rows. The command requires the
    extra ``plot``.
    """
    with exit_codes():
        check_page_file(output)
        refuse_overwriting(output, force)
        fitted = Summary.load(file) if is_summary(file) else load(file)
        write_page(output, report_page(fitted, file.name, min_count))
        if not quiet:
            say(f"wrote {output}; open it in a browser")


def check_page_file(path: Path) -> None:
    """Refuse a file name that browsers would not open as a page."""
    if path.suffix not in (".html", ".htm"):
        raise InputError(f"{path} must end in .html, as in {path.stem}.html")


def write_page(path: Path, page: str) -> None:
    """Write a page to a file, completely or not at all."""
    with atomic.writing(path) as temporary:
        temporary.write_text(page, "utf-8")
