"""The command line: `fedpca demo | fit | transform | summarize | merge | info`.

Exit codes: 0 when it worked, 2 for bad usage or input, 1 for a run that failed, 130 when interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from sklearn.utils._param_validation import InvalidParameterError

from fedpca import atomic
from fedpca._version import __version__
from fedpca.demo import run_demo
from fedpca.errors import FedpcaError, FileError, InputError, JournalError
from fedpca.estimators import FederatedPCA, StreamingPCA, load
from fedpca.federation import Federation
from fedpca.model import load_model
from fedpca.report.tables import print_crossed, print_model, print_summary
from fedpca.rows import column_order, open_rows, refuse_non_finite, some_of
from fedpca.summary import N_SPARE, Summary, merge_in_tree
from fedpca.summary_file import is_summary

app = typer.Typer(
    name="fedpca",
    help="Principal components of data that stays where it is.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# no markup: the names of columns and sites may hold brackets
out = Console(highlight=False, markup=False)
err = Console(stderr=True, highlight=False, markup=False)

DEFAULTS = FederatedPCA()

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output file.")]
Components = Annotated[
    str,
    typer.Option(
        "-k", "--components", help="A number, a share (0.95 or 95%), auto, mp, gap or all."
    ),
]
FanIn = Annotated[
    int | None, typer.Option(help="Summaries merged at a time, in a tree; all at once by default.")
]


@app.command()
def fit(
    files: Annotated[
        list[str], typer.Argument(help="A file or folder for each site, or NAME=PATH.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the model goes.")],
    n_components: Components = "auto",
    solver: Annotated[
        str, typer.Option(help="auto, covariance, lanczos, power, merge or average.")
    ] = "auto",
    scale: Annotated[bool, typer.Option("--scale", help="Divide by standard deviations.")] = False,
    tol: Annotated[float, typer.Option(help="Residual at which the solver stops.")] = DEFAULTS.tol,
    max_rounds: Annotated[
        int, typer.Option(help="Most rounds of the solver.")
    ] = DEFAULTS.max_rounds,
    seed: Annotated[int | None, typer.Option(help="Seed of the solver's start.")] = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="File that makes the run resumable; give it again to resume."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Sites that work at the same time.")] = None,
    fan_in: FanIn = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Fit the components of the rows in several files, each a site of its own."""
    with _exit_codes("; with --journal, the same command goes on from here"):
        _refuse_overwriting(output, force)
        model = FederatedPCA(
            _components(n_components),
            solver=solver,
            scale=scale,
            tol=tol,
            max_rounds=max_rounds,
            random_state=seed,
            fan_in=fan_in,
        )
        fed = Federation.local(
            _named_sites(files), n_jobs=jobs, journal=journal, on_round=_progress(quiet)
        )
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
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write the scores of rows on a model's components, a block at a time."""
    with _exit_codes():
        _refuse_overwriting(output, force)
        n_rows = _write_scores(model, file, output)
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
    with _exit_codes():
        _refuse_overwriting(output, force)
        wanted = _components(n_components)
        summary = Summary.of(file, wanted, n_spare=spare, on_block=_rows_read(quiet))
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
    with _exit_codes():
        _refuse_overwriting(output, force)
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
    with _exit_codes():
        fitted = _print_file(file)
        if ledger or site:
            if not isinstance(fitted, FederatedPCA):
                raise InputError(f"{file} has no ledger: nothing crossed but the file itself")
            print_crossed(out, fitted.run_, site)


@app.command()
def demo(quiet: Quiet = False) -> None:
    """Fit four unlike clinics without pooling them, and compare with the pooled answer."""
    with _exit_codes():
        run_demo(out, _progress(quiet))


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


def _write_scores(model_path: Path, source: Path, output: Path) -> int:
    """Write scores as Parquet, matching the columns by name where both have names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if output.suffix != ".parquet":
        raise InputError(f"{output} must end in .parquet")
    model, header = load_model(model_path)
    rows = open_rows(source)
    k, d = model.components.shape
    order = None
    if header["features"] is not None and rows.features is not None:
        order = column_order(header["features"], rows.features, str(source))
    elif rows.n_features != d:
        raise InputError(f"{source} has {rows.n_features} columns and the model {d} features")
    schema = pa.schema([(f"pc{i + 1}", pa.float64()) for i in range(k)])
    written = 0
    with atomic.writing(output) as path, pq.ParquetWriter(path, schema) as writer:
        for block in rows.blocks():
            ordered = block if order is None else block[:, order]
            scores = model.transform(ordered, whiten=bool(header["parameters"].get("whiten")))
            if not np.isfinite(scores).all():
                refuse_non_finite(rows)
            writer.write_batch(pa.record_batch(list(np.ascontiguousarray(scores.T)), schema=schema))
            written += len(scores)
    return written


def _components(text: str) -> Any:
    """What the user means by -k: an int, a share or the name of a rule."""
    if text.endswith("%"):
        text = f"{text[:-1]}e-2"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None if text == "all" else text


def _named_sites(files: list[str]) -> dict[str, str]:
    """A name for each site: what stands before "=", else the file's own."""
    sites: dict[str, str] = {}
    for text in files:
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            name, path = Path(text).stem, text
        if name in sites:
            raise InputError(f"two sites are called {name!r}; name them, as in north={path}")
        sites[name] = path
    return sites


def _refuse_overwriting(output: Path, force: bool) -> None:
    if output.is_dir():
        raise FileError(f"{output} is a folder; give the name of a file")
    if output.exists() and not force:
        raise FileError(f"{output} exists; choose another name, or overwrite it with --force")
    if not output.parent.is_dir():
        raise FileError(f"{output}: the folder {output.parent} does not exist")


def _progress(quiet: bool) -> Callable[[dict[str, Any]], None] | None:
    """A line for each round, on a terminal and unless told to be quiet."""
    if quiet or not err.is_terminal:
        return None

    def show(entry: dict[str, Any]) -> None:
        residual = entry["residual"]
        far = "" if residual is None else f"  residual {residual:.1e}"
        err.print(
            f"round {entry['round']:3d}  {entry['question']:20s} {entry['bytes_up']:>12,} bytes up "
            f"{entry['seconds']:7.2f} s{far}"
        )

    return show


def _rows_read(quiet: bool) -> Callable[[int], None] | None:
    """One line that counts the rows, on a terminal and unless told to be quiet."""
    if quiet or not err.is_terminal:
        return None
    return lambda n: err.print(f"{n:,} rows read", end="\r")


@contextmanager
def _exit_codes(hint: str = "") -> Iterator[None]:
    """Errors as one line on standard error: 2 for bad input, 1 for a run that failed."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"interrupted{hint}")
        sys.exit(130)
    except (InputError, InvalidParameterError, FileError, JournalError) as error:
        err.print(f"error: {error}", style="red", soft_wrap=True)
        sys.exit(2)
    except (FedpcaError, OSError) as error:
        err.print(f"failed: {error}", style="red", soft_wrap=True)
        sys.exit(1)
