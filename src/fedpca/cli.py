"""The command line: `fedpca demo | fit | transform | summarize | merge | info | audit`, and
`serve | join | site-key` for a federation across machines.

Exit codes: 0 when it worked, 2 for bad usage or input, 1 for a run that failed, 130 when interrupted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedpca import audit_command, federation_commands
from fedpca._version import __version__
from fedpca.demo import run_demo
from fedpca.demo_federation import run_federation_demo
from fedpca.errors import InputError
from fedpca.estimators import FederatedPCA, StreamingPCA, load
from fedpca.federation import Federation
from fedpca.report.tables import (
    print_crossed,
    print_model,
    print_summary,
)
from fedpca.rows import some_of
from fedpca.run import Run
from fedpca.scores import write_scores
from fedpca.shell import (
    FILES,
    Components,
    FanIn,
    Force,
    Insecure,
    MaxRounds,
    Quiet,
    Scale,
    Tls,
    components_of,
    err,
    exit_codes,
    named_sites,
    out,
    progress,
    refuse_overwriting,
    rows_read,
    sites_of,
    until_stopped,
)
from fedpca.solvers import SOLVERS
from fedpca.summary import N_SPARE, Summary, merge_in_tree
from fedpca.summary_file import is_summary

app = typer.Typer(
    name="fedpca",
    help="Principal components of data that stays where it is.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
DEFAULTS = FederatedPCA()


app.command()(audit_command.audit)
app.command()(federation_commands.serve)
app.command()(federation_commands.join)
app.command()(federation_commands.site_key)


@app.command()
def fit(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the model goes.")],
    files: Annotated[list[str] | None, typer.Argument(help=FILES)] = None,
    n_components: Components = "auto",
    solver: Annotated[str, typer.Option(help=f"auto, {', '.join(SOLVERS)}.")] = "auto",
    scale: Scale = False,
    tol: Annotated[float, typer.Option(help="Residual at which the solver stops.")] = DEFAULTS.tol,
    max_rounds: MaxRounds = DEFAULTS.max_rounds,
    seed: Annotated[int | None, typer.Option(help="Seed of the solver's start.")] = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="File that makes the run resumable; give it again to resume."),
    ] = None,
    quorum: Annotated[
        int | None, typer.Option(help="Fewest sites that must answer; all by default.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(help="Seconds that a site has for its answer; 600 in a federation."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Sites that work at the same time.")] = None,
    fan_in: FanIn = None,
    federation: Annotated[
        str | None, typer.Option(help="HOST of `fedpca serve`, whose sites to ask; not for files.")
    ] = None,
    sites: Annotated[
        str | None, typer.Option(help="How many sites of the federation, or which: north,south.")
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds until its sites must be online.")] = 60.0,
    tls: Tls = None,
    insecure: Insecure = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Fit the components of the rows in several files, each a site of its own, or of a federation."""
    with exit_codes("; with --journal, the same command goes on from here"):
        refuse_overwriting(output, force)
        model = FederatedPCA(
            components_of(n_components),
            solver=solver,
            scale=scale,
            tol=tol,
            max_rounds=max_rounds,
            random_state=seed,
            fan_in=fan_in,
        )
        options: dict[str, Any] = {
            "quorum": quorum,
            "journal": journal,
            "on_round": progress(quiet),
        }
        if timeout is not None:
            options["timeout"] = timeout
        if (federation is None) == (not files):
            raise InputError("give the files of the sites, or --federation HOST, and not both")
        if federation is None:
            if sites is not None or tls is not None or insecure:
                raise InputError("--sites, --tls and --insecure are for --federation HOST")
            fed = Federation.local(named_sites(files or []), n_jobs=jobs, **options)
        else:
            if jobs is not None:
                raise InputError("--jobs is for files; the sites of a federation all work at once")
            if not quiet and err.is_terminal:
                err.print(f"waiting for the sites at {federation}")
            fed = Federation.flower(
                federation,
                sites=sites_of(sites),
                wait=wait,
                tls=tls,
                insecure=insecure,
                **options,
            )
        with fed:
            model.fit(fed)
        model.save(output)
        if not quiet:
            print_model(out, model)
            out.print(f"Wrote {output}")


@app.command()
def transform(
    model: Annotated[Path, typer.Argument(help="A model that `fit` or `merge` wrote.")],
    file: Annotated[Path, typer.Argument(help="Rows: a file or folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the scores go (.parquet).")],
    site: Annotated[
        str | None, typer.Option(help="Whose rows these are, for a personalized model.")
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write the scores of rows on a model's components, a block at a time."""
    with exit_codes():
        refuse_overwriting(output, force)
        n_rows = write_scores(model, file, output, site)
        if not quiet:
            out.print(f"Wrote {n_rows:,} rows to {output}")


@app.command()
def summarize(
    file: Annotated[Path, typer.Argument(help="Rows: a file or folder, read once.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the summary goes.")],
    n_components: Components = "auto",
    spare: Annotated[int, typer.Option(help="Directions to carry beyond these.")] = N_SPARE,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Summarize one site's rows in a file that can be merged with those of other sites."""
    with exit_codes():
        refuse_overwriting(output, force)
        wanted = components_of(n_components)
        summary = Summary.of(file, wanted, n_spare=spare, on_block=rows_read(quiet))
        summary.save(output)
        if not quiet:
            print_summary(out, summary)
            out.print(f"Wrote {output}")


@app.command()
def merge(
    files: Annotated[list[Path], typer.Argument(help="Summaries that `summarize` wrote.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Where the model goes; a summary if it ends in .summary."
        ),
    ],
    n_components: Annotated[
        int | None, typer.Option("-k", "--components", help="As many as summarized by default.")
    ] = None,
    fan_in: FanIn = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Merge the summaries of several sites into a model, or into another summary."""
    with exit_codes():
        refuse_overwriting(output, force)
        merged = merge_in_tree(_named_summaries(files), fan_in)
        if not merged.n:
            raise InputError("the summaries are of no rows; there is nothing to be merged")
        model = StreamingPCA.from_summary(merged, n_components)
        if output.suffix == ".summary":
            model.summary_.save(output)
        else:
            model.save(output)
        if not quiet:
            _print_file(output)
            out.print(f"Wrote {output}")


@app.command()
def info(
    file: Annotated[Path, typer.Argument(help="A model or a summary.")],
    ledger: Annotated[bool, typer.Option("--ledger", help="List what crossed, too.")] = False,
    site: Annotated[str | None, typer.Option(help="Of the ledger, this site's part.")] = None,
) -> None:
    """Say what is in a model or summary file."""
    with exit_codes():
        fitted = _print_file(file)
        if ledger or site:
            if not getattr(fitted, "run_", Run()).history:
                raise InputError(f"{file} has no ledger: nothing crossed but the file itself")
            print_crossed(out, fitted.run_, site)


@app.command()
def demo(
    federation: Annotated[
        bool, typer.Option("--federation", help="With a server and three sites as processes.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Fit four unlike clinics without pooling them, and compare with the pooled answer."""
    with until_stopped():
        if federation:
            run_federation_demo(out)
        else:
            run_demo(out, progress(quiet))


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Principal components of data that stays where it is."""
    if version:
        out.print(__version__)
        raise typer.Exit


def _print_file(path: Path) -> Any:
    """Print what is in a model or summary file, and give it."""
    if is_summary(path):
        summary = Summary.load(path)
        print_summary(out, summary)
        return summary
    model = load(path)
    print_model(out, model)
    return model


def _named_summaries(files: list[Path]) -> list[Summary]:
    """The summaries in files, each checked against the first, by the names of the files."""
    summaries = [Summary.load(path) for path in files]
    for path, summary in zip(files[1:], summaries[1:], strict=True):
        summaries[0].check_alike(summary, f"{path}, compared with {files[0]}")
    contents = [path.read_bytes() for path in files]
    twice = [
        str(path)
        for path, bytes_ in zip(files, contents, strict=True)
        if contents.count(bytes_) > 1
    ]
    if twice:
        raise InputError(f"the same summary, whose rows would count twice: {some_of(twice)}")
    return summaries
