"""Run `fedpca fit`: fit rows in files or at the sites in a federation."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.console import exit_codes, refuse_overwriting, say
from fedpca.cli.fit_files import NO_OTHERS, FitFiles
from fedpca.cli.info import refuse_both
from fedpca.cli.live import Page, PageAt, harmless, live_run, watch, what_runs
from fedpca.cli.methods import NO_METHOD, NO_NOISE, Kind, Method, Noise
from fedpca.cli.option_groups import with_groups
from fedpca.cli.options import FILES, Csv, Databases, Force, Json, Quiet
from fedpca.cli.progress import progress
from fedpca.cli.sites import FILES_ONLY, WhichSites
from fedpca.cli.terminal import show
from fedpca.errors import InputError
from fedpca.report.boards import RunBoard
from fedpca.report.contents import components_as_csv
from fedpca.rows.reading import AS_STORED, Reading


@with_groups
def fit(
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the model to this file.")],
    files: Annotated[list[str] | None, typer.Argument(help=FILES)] = None,
    databases: Databases = [],  # noqa: B006
    method: Method = NO_METHOD,
    reading: Reading = AS_STORED,
    asked: WhichSites = FILES_ONLY,
    noise: Noise = NO_NOISE,
    others: FitFiles = NO_OTHERS,
    page: Page = False,
    page_at: PageAt = None,
    csv: Csv = False,
    json: Json = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Fit components to the rows at several sites.

    Each of FILES is a file or folder with one site's rows, or NAME=PATH. With --federation, omit FILES:
    the rows are at the sites that have joined a server. With --cluster, the workers of a Dask cluster
    read FILES as one table. If all FILES are NAME=PATH, each is a separate site.

    To fit genotypes in .bed files as plink2 --pca does: --binomial --missing mean --maf 0.01
    --plink PREFIX.
    To separate what all sites share from what is local: --kind personalized --shared 2 --local 1.
    To separate outliers and list them: --kind robust -k 3 --outliers outliers.csv.
    """
    here = exit_codes("; with --journal, the same command continues from here", json=json)
    with here, ExitStack() as at_end:
        refuse_overwriting(output, force)
        refuse_both(csv, json)
        if asked.federation is None and method.kind is Kind.personalized:
            if method.gather:
                raise InputError("--gather requires --federation HOST")
            method = replace(method, gather=True)
        if reading.weight is not None and method.kind is not Kind.pca:
            raise InputError(f"--weight does not apply to --kind {method.kind}; omit it")
        model = method.estimator(noise)
        others.check(method, force, has_rows=asked.are_here)
        asked.check(files, reading)
        opened = asked.opened(files, databases, reading)
        board = RunBoard(output.name, what_runs(model), model.tol, model.max_rounds)
        at_end.enter_context(live_run(board, page, page_at, quiet))
        fed = asked.join(
            opened,
            files,
            reading,
            quiet=quiet,
            is_private=noise.promise() is not None,
            on_waiting=harmless(board.show_waiting),
            on_online=harmless(board.show_online),
        )
        with fed, progress(quiet, tol=model.tol, max_rounds=model.max_rounds) as shown:
            watch(fed, shown, board)
            model.fit(fed)
        model.save(output)
        written = others.write(model, opened)
        if csv:
            typer.echo(components_as_csv(model))
            return
        show(model.facts(), json=json, quiet=quiet)
        for path in () if quiet or json else (output, *written):
            say(f"Wrote {path}")
