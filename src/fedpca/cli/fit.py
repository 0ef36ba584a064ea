"""Run `fedpca fit`: fit rows in files or at the sites in a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedpca.cli.console import err, exit_codes, out, progress, refuse_overwriting
from fedpca.cli.options import (
    FILES,
    Columns,
    Components,
    Credentials,
    Drop,
    Force,
    Id,
    Insecure,
    MaxRounds,
    Quiet,
    Scale,
    choice_of,
    components_of,
    opened_sites,
    sites_of,
    solver_of,
)
from fedpca.coordinator.federation import Federation
from fedpca.errors import InputError
from fedpca.estimators import FederatedPCA
from fedpca.report.tables import print_model
from fedpca.solvers.catalogue import SOLVERS
from fedpca.storage import atomic

DEFAULTS = FederatedPCA()


def fit(
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the model to this file.")],
    files: Annotated[list[str] | None, typer.Argument(help=FILES)] = None,
    n_components: Components = "auto",
    solver: Annotated[
        str,
        typer.Option(help=f"Solver: auto, {', '.join(SOLVERS)}, or one from a different package."),
    ] = "auto",
    option: Annotated[
        list[str], typer.Option(help="Solver option as NAME=VALUE; may be repeated.")
    ] = [],  # noqa: B006
    scale: Scale = False,
    drop: Drop = [],  # noqa: B006
    columns: Columns = [],  # noqa: B006
    id: Id = [],  # noqa: B006
    missing: Annotated[
        str, typer.Option(help="What to do with missing values: error, mean, or drop.")
    ] = DEFAULTS.missing,
    weight: Annotated[
        str | None, typer.Option(help="Column with the weight of each row; only with FILES.")
    ] = None,
    tol: Annotated[
        float, typer.Option(help="Stop when the residual is this small.")
    ] = DEFAULTS.tol,
    max_rounds: MaxRounds = DEFAULTS.max_rounds,
    seed: Annotated[int | None, typer.Option(help="Seed for the random start.")] = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="Record the run in this file, so that the same command can resume it."),
    ] = None,
    quorum: Annotated[
        int | None,
        typer.Option(help="Number of sites that must answer each round; by default, all."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds to wait for an answer; by default, 600 with --federation, else no limit."
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="Number of sites that work at the same time; only with FILES."),
    ] = None,
    federation: Annotated[
        str | None,
        typer.Option(help="Use the sites at this server instead of FILES: HOST or HOST:PORT."),
    ] = None,
    sites: Annotated[
        str | None,
        typer.Option(help="Number of sites to use at that server, or their names: north,south."),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            help="Seconds to wait for sites that are offline or in use by a different fit."
        ),
    ] = 60.0,
    credentials: Credentials = None,
    insecure: Insecure = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Fit components to the rows at several sites.

    Each of FILES is a file or folder with one site's rows, or NAME=PATH. With --federation, omit FILES:
    the rows are at the sites that have joined a server.
    """
    with exit_codes("; with --journal, the same command continues from here"):
        refuse_overwriting(output, force)
        if journal is not None and not journal.exists():
            atomic.check_writable(journal)
        model = FederatedPCA(
            components_of(n_components),
            solver=solver_of(solver, option),
            scale=scale,
            missing=missing,
            tol=tol,
            max_rounds=max_rounds,
            random_state=seed,
        )
        options: dict[str, Any] = {
            "quorum": quorum,
            "journal": journal,
            "on_round": progress(quiet),
        }
        if timeout is not None:
            options["timeout"] = timeout
        choice = choice_of(drop, columns, id)
        if (federation is None) == (not files):
            raise InputError("specify either the sites' files or --federation HOST, but not both")
        if federation is None:
            if sites is not None or credentials is not None or insecure:
                raise InputError("--sites, --credentials, and --insecure require --federation HOST")
            opened = opened_sites(files or [], {**choice, "weight": weight})
            fed = Federation.local(opened, n_jobs=jobs, **options)
        else:
            if jobs is not None:
                raise InputError(
                    "--jobs only applies to files; the sites in a federation all work at the same time"
                )
            if any(choice.values()) or weight is not None:
                raise InputError(
                    "--drop, --columns, --id, and --weight only apply to files; each site in a "
                    "federation passes them to fedpca join"
                )
            if not quiet and err.is_terminal:
                err.print(f"waiting for the sites at {federation}")
            fed = Federation.flower(
                federation,
                sites=sites_of(sites),
                wait=wait,
                credentials=credentials,
                insecure=insecure,
                **options,
            )
        with fed:
            model.fit(fed)
        model.save(output)
        if not quiet:
            print_model(out, model)
            out.print(f"Wrote {output}")
