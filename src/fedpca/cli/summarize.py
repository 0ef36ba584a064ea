"""Run `fedpca summarize`: summarize one site's rows in a mergeable file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.console import exit_codes, out, refuse_overwriting
from fedpca.cli.methods import Method
from fedpca.cli.option_groups import LeftOut, option_of, with_groups
from fedpca.cli.options import (
    NOTHING_MULTIPLIED,
    Database,
    Json,
    Quiet,
    components_of,
    source_of,
)
from fedpca.cli.progress import counting
from fedpca.cli.terminal import show
from fedpca.errors import InputError
from fedpca.rows.gaps import MISSING
from fedpca.rows.in_memory import about_n_rows
from fedpca.rows.open import open_rows, resolved
from fedpca.rows.reading import AS_STORED, Reading
from fedpca.summary.summary import N_SPARE, Summary

MAX_REVEALED_ROWS = 2  # the mean reveals a single row; the mean and one direction reveal two rows


@with_groups
def summarize(
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the summary to this file.")],
    file: Annotated[Path | None, typer.Argument(help="File or folder of rows.")] = None,
    database: Database = None,
    n_components: Annotated[str, option_of(Method, "n_components")] = "auto",
    spare: Annotated[
        int, typer.Option(help="Number of directions to keep in addition to the components.")
    ] = N_SPARE,
    reading: Annotated[
        Reading, LeftOut({"weight": "a summary counts every row once", **NOTHING_MULTIPLIED})
    ] = AS_STORED,
    missing: Annotated[str, option_of(Method, "missing")] = MISSING[0],
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

    FILE is a file or folder of rows, which is read once, or twice with --missing mean.
    """
    with exit_codes(json=json):
        refuse_overwriting(output, force)
        wanted = components_of(n_components)
        source, rest = resolved(source_of(file, database, reading), reading)
        rows = open_rows(source, rest)
        with counting(quiet, "rows", lambda: about_n_rows(rows)) as on_block:
            summary = Summary.of(
                source, wanted, n_spare=spare, on_block=on_block, missing=missing, reading=rest
            )
        if 0 < summary.n <= MAX_REVEALED_ROWS and not force:
            raise InputError(
                f"{file or 'the result'} has {summary.n:.0f} row(s), and anyone could compute them "
                "from the summary, which is meant to be shared; use at least 3 rows, or write the "
                "summary with --force"
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
