"""Run `fedpca summarize`: summarize one site's rows in a mergeable file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.console import exit_codes, out, refuse_overwriting, rows_read
from fedpca.cli.options import Components, Force, Quiet, components_of
from fedpca.report.tables import print_summary
from fedpca.summary.summary import N_SPARE, Summary


def summarize(
    file: Annotated[Path, typer.Argument(help="File or folder of rows.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the summary to this file.")],
    n_components: Components = "auto",
    spare: Annotated[
        int, typer.Option(help="Number of directions to keep beyond the components.")
    ] = N_SPARE,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Summarize one site's rows in a file that can be merged with other sites' summaries.

    FILE is a file or folder of rows, which is read once.
    """
    with exit_codes():
        refuse_overwriting(output, force)
        wanted = components_of(n_components)
        summary = Summary.of(file, wanted, n_spare=spare, on_block=rows_read(quiet))
        summary.save(output)
        if not quiet:
            print_summary(out, summary)
            out.print(f"Wrote {output}")
