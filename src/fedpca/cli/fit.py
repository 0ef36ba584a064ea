"""Run `fedpca fit`: fit rows in files or at the sites in a federation."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpca.cli.console import err, exit_codes, refuse_overwriting, say
from fedpca.cli.fit_files import FitFiles
from fedpca.cli.info import refuse_both
from fedpca.cli.live import Page, PageAt, each_of, harmless, live_run, watch, what_runs
from fedpca.cli.methods import (
    Kind,
    around_of,
    components_typed,
    estimator_of,
    local_ranks_of,
)
from fedpca.cli.option_groups import with_groups
from fedpca.cli.options import (
    APPROVAL_WAIT,
    FILES,
    PERSONALIZED_PANEL,
    ROBUST_PANEL,
    Around,
    Credentials,
    Csv,
    Databases,
    Delta,
    Epsilon,
    Force,
    Gather,
    Host,
    Insecure,
    Json,
    Local,
    MaxComponents,
    Missing,
    Purpose,
    Quiet,
    RowBound,
    Scale,
    Secure,
    Shared,
    Silent,
    Sites,
    Wait,
    opened_sites,
    sites_of,
    sources_of,
    table_or_sites,
)
from fedpca.cli.progress import approvals, progress
from fedpca.cli.sites import refuse_reading
from fedpca.cli.terminal import show
from fedpca.coordinator.federation import ON_REFUSAL, Federation
from fedpca.errors import InputError
from fedpca.estimators import FederatedPCA, RobustPCA
from fedpca.report.boards import RunBoard
from fedpca.report.contents import components_as_csv
from fedpca.rows.reading import AS_STORED, Reading
from fedpca.site.site import Site
from fedpca.solvers.catalogue import PERSONALIZED, ROBUST, SOLVERS
from fedpca.solvers.standardize import BINOMIAL
from fedpca.storage import atomic

PLAIN, LOW_RANK = FederatedPCA(), RobustPCA()  # the help texts show their defaults
ELSEWHERE = {"query", "keep", "extract"}  # read here, and not by the workers of a cluster
GENOTYPES_PANEL = "Options for genotypes"


@with_groups
def fit(
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the model to this file.")],
    files: Annotated[list[str] | None, typer.Argument(help=FILES)] = None,
    databases: Databases = [],  # noqa: B006
    kind: Annotated[
        Kind,
        typer.Option(
            help="pca: components of the pooled rows. personalized: components that all sites share, "
            "and local ones for each site. robust: components despite outliers and missing values."
        ),
    ] = Kind.pca,
    n_components: Annotated[
        str | None,
        typer.Option(
            "-k",
            "--components",
            help="Number of components. With pca, also a share of the variance (0.95 or 95%), mp, gap, "
            "all, or auto, which is the default.",
        ),
    ] = None,
    shared: Shared = None,
    local: Local = None,
    local_models: Annotated[
        Path | None,
        typer.Option(
            help="Also write one model for each site, with its local components, to this folder.",
            rich_help_panel=PERSONALIZED_PANEL,
        ),
    ] = None,
    gather: Gather = False,
    max_components: MaxComponents = None,
    outliers: Annotated[
        Path | None,
        typer.Option(
            help="Also write a list of outliers to this file (.csv or .parquet); only with FILES.",
            rich_help_panel=ROBUST_PANEL,
        ),
    ] = None,
    solver: Annotated[
        str | None,
        typer.Option(
            help=f"Solver. pca: auto, {', '.join(SOLVERS)}, or one from an installed package. "
            f"personalized: {', '.join(PERSONALIZED)}. robust: {', '.join(ROBUST)}."
        ),
    ] = None,
    option: Annotated[
        list[str], typer.Option(help="Solver option as NAME=VALUE; may be repeated.")
    ] = [],  # noqa: B006
    parameter: Annotated[
        list[str],
        typer.Option(
            help="Other parameter of the estimator, such as center=none; may be repeated."
        ),
    ] = [],  # noqa: B006
    scale: Scale = False,
    binomial: Annotated[
        bool,
        typer.Option(
            "--binomial",
            help="Divide each variant by sqrt(2p(1-p)), as plink2 does; p is the allele's frequency "
            "over all sites.",
            rich_help_panel=GENOTYPES_PANEL,
        ),
    ] = False,
    maf: Annotated[
        float | None,
        typer.Option(
            help="Leave out variants whose rarer allele is less frequent than this over all sites.",
            rich_help_panel=GENOTYPES_PANEL,
        ),
    ] = None,
    plink: Annotated[
        Path | None,
        typer.Option(
            metavar="PREFIX",
            help="Also write PREFIX.eigenval, PREFIX.eigenvec.allele, and PREFIX.afreq, as plink2 "
            "does, and a list of the variants left out.",
            rich_help_panel=GENOTYPES_PANEL,
        ),
    ] = None,
    reading: Reading = AS_STORED,
    missing: Missing = None,
    tol: Annotated[
        float | None,
        typer.Option(
            help=f"Stop when the residual is this small; by default, {PLAIN.tol:g}, or "
            f"{LOW_RANK.tol:g} with robust."
        ),
    ] = None,
    max_rounds: Annotated[
        int | None,
        typer.Option(
            help=f"Stop the solver after this many rounds; by default, {PLAIN.max_rounds}, or "
            f"{LOW_RANK.max_rounds} with robust."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed for the random start.")] = None,
    journal: Annotated[
        Path | None,
        typer.Option(
            help="Record the run in this file, so that the same command can resume the run."
        ),
    ] = None,
    quorum: Annotated[
        int | None,
        typer.Option(help="Number of sites that must answer each round; by default, all."),
    ] = None,
    on_refusal: Annotated[
        str,
        typer.Option(
            metavar="|".join(ON_REFUSAL),
            help="What happens if a site refuses and a quorum remains: lose the site, or stop.",
        ),
    ] = ON_REFUSAL[0],
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds to wait for an answer; by default, 600 with --federation, and otherwise "
            "no limit."
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="Number of sites that work at the same time; only with FILES."),
    ] = None,
    federation: Host = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Address of a Dask scheduler, HOST:PORT; the workers of its cluster then read FILES."
        ),
    ] = None,
    sites: Sites = None,
    wait: Wait = 60.0,
    purpose: Purpose = "",
    secure: Secure = False,
    epsilon: Epsilon = None,
    delta: Delta = None,
    row_bound: RowBound = None,
    around: Around = None,
    silent: Silent = None,
    approval_wait: Annotated[float | None, typer.Option(help=APPROVAL_WAIT)] = None,
    credentials: Credentials = None,
    insecure: Insecure = False,
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
        if journal is not None and not journal.exists():
            atomic.check_writable(journal)
        refuse_both(csv, json)
        has_files = federation is None and cluster is None
        gathers = gather or (federation is None and kind is Kind.personalized)
        model = estimator_of(
            kind,
            {
                "-k": components_typed(kind, n_components),
                "--missing": missing,
                "--weight": reading.weight,
                "--maf": maf,
                "--binomial": BINOMIAL if binomial else None,
                "--shared": shared,
                "--local": local_ranks_of(local),
                "--gather": gathers or None,
                "--local-models": local_models,
                "--max-components": max_components,
                "--outliers": outliers,
                "--epsilon": epsilon,
                "--delta": delta,
                "--row-bound": row_bound,
                "--around": around_of(around),
                "--silent": silent,
            },
            solver=solver,
            solver_options=option,
            more=parameter,
            common={
                "scale": scale,
                "tol": tol,
                "max_rounds": max_rounds,
                "random_state": seed,
            },
        )
        if plink is not None and not binomial:
            raise InputError(
                "--plink requires --binomial, because plink2 scales genotypes that way"
            )
        more_files = FitFiles(local_models, outliers, plink)
        more_files.check(force, has_rows=has_files)
        has_rows = bool(files) or reading.query is not None
        if (federation is None) == (not has_rows):
            raise InputError("specify either the sites' files or --federation HOST, but not both")
        opened: Mapping[str, Site] = {}
        if has_files:
            opened = opened_sites(sources_of(files, databases, reading), reading)
        options: dict[str, Any] = {
            "quorum": quorum,
            "on_refusal": on_refusal,
            "journal": journal,
            "secure": secure
            or (epsilon is not None and (federation is not None or len(opened) > 1)),
        }
        if timeout is not None:
            options["timeout"] = timeout
        if cluster is not None and (jobs is not None or reading.given.keys() & ELSEWHERE):
            raise InputError(
                "--jobs, --query, --keep, and --extract do not apply with --cluster; omit them"
            )
        board = RunBoard(output.name, what_runs(model), model.tol, model.max_rounds)
        at_end.enter_context(live_run(board, page, page_at, quiet))
        if federation is None:
            if sites is not None or credentials is not None or insecure or gather:
                raise InputError(
                    "--sites, --credentials, --insecure, and --gather require --federation HOST"
                )
            if purpose or approval_wait is not None:
                raise InputError("--purpose and --approval-wait require --federation HOST")
            if cluster is None:
                fed = Federation.local(opened, n_jobs=jobs, **options)
            else:
                fed = Federation.dask(
                    cluster, table_or_sites(files or []), reading=reading, **options
                )
        elif cluster is not None:
            raise InputError("--federation and --cluster are mutually exclusive; use only one")
        else:
            if jobs is not None:
                raise InputError(
                    "--jobs does not apply with --federation, because the sites of a federation all "
                    "work at the same time; omit --jobs"
                )
            refuse_reading(reading)
            if not quiet and err.is_terminal:
                err.print(f"waiting for the sites at {federation}")
            fed = Federation.flower(
                federation,
                sites=sites_of(sites),
                wait=wait,
                credentials=credentials,
                insecure=insecure,
                purpose=purpose,
                approval_wait=approval_wait or 0.0,
                on_waiting=each_of(approvals(quiet), harmless(board.show_waiting)),
                on_online=harmless(board.show_online),
                **options,
            )
        with (
            fed,
            progress(quiet, tol=model.tol, max_rounds=model.max_rounds) as shown,
        ):
            watch(fed, shown, board)
            model.fit(fed)
        model.save(output)
        written = more_files.write(model, opened)
        if csv:
            typer.echo(components_as_csv(model))
            return
        show(model.facts(), json=json, quiet=quiet)
        for path in () if quiet or json else (output, *written):
            say(f"Wrote {path}")
