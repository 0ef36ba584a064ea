"""Run `fedpca summarize`: summarize one site's rows in a mergeable file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.console import exit_codes, out, refuse_overwriting
from fedpca.cli.options import (
    Columns,
    Components,
    Drop,
    Extract,
    Id,
    Json,
    Keep,
    Quiet,
    choice_of,
    components_of,
    genotypes_of,
)
from fedpca.cli.progress import counting
from fedpca.cli.terminal import show
from fedpca.errors import InputError
from fedpca.rows.choice import ColumnChoice
from fedpca.rows.in_memory import about_n_rows
from fedpca.rows.open import open_rows
from fedpca.summary.summary import N_SPARE, Summary

MAX_REVEALED_ROWS = 2  # the mean reveals a single row; the mean and one direction reveal two rows


def summarize(
    file: Annotated[Path, typer.Argument(help="File or folder of rows.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the summary to this file.")],
    n_components: Components = "auto",
    spare: Annotated[
        int, typer.Option(help="Number of directions to keep in addition to the components.")
    ] = N_SPARE,
    drop: Drop = [],  # noqa: B006
    columns: Columns = [],  # noqa: B006
    id: Id = [],  # noqa: B006
    keep: Keep = None,
    extract: Extract = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Overwrite an existing output file, and allow a summary of only 1 or 2 rows.",
        ),
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Summarize one site's rows in a file that can be merged with other sites' summaries.

    FILE is a file or folder of rows, which is read once.
    """
    with exit_codes(json=json):
        refuse_overwriting(output, force)
        wanted = components_of(n_components)
        choice = choice_of(drop, columns, id)
        source = genotypes_of(file, keep, extract)
        rows = open_rows(source, ColumnChoice.of(**choice))
        with counting(quiet, "rows", lambda: about_n_rows(rows)) as on_block:
            summary = Summary.of(source, wanted, n_spare=spare, on_block=on_block, **choice)
        if 0 < summary.n <= MAX_REVEALED_ROWS and not force:
            raise InputError(
                f"{file} has {summary.n:.0f} row(s), and anyone could compute them from the summary, "
                "which is meant to be shared; use at least 3 rows, or write the summary with --force"
            )
        summary.save(output)
        show(summary.facts(), json=json, quiet=quiet)
        if not quiet and not json:
            if summary.n_features < rows.n_features:
                out.print(
                    f"Left out {rows.n_features - summary.n_features:,} variants, whose alleles cannot "
                    "be matched with those of other cohorts"
                )
            out.print(f"Wrote {output}")
