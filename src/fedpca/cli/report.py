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
        if output.suffix not in (".html", ".htm"):
            raise InputError(f"{output} must end in .html, as in {output.stem}.html")
        refuse_overwriting(output, force)
        fitted = Summary.load(file) if is_summary(file) else load(file)
        page = report_page(fitted, file.name, min_count)
        with atomic.writing(output) as temporary:
            temporary.write_text(page, "utf-8")
        if not quiet:
            say(f"wrote {output}; open it in a browser")
