"""Run `fedpca plot`: draw what a model found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpca.cli.console import exit_codes, refuse_overwriting, say
from fedpca.cli.methods import Noise
from fedpca.cli.option_groups import LeftOut, option_of, with_groups
from fedpca.cli.options import BY_MODEL, Database, Force, Quiet, source_of
from fedpca.errors import InputError
from fedpca.estimators import RobustPCA, load
from fedpca.estimators.fitting import matching_rows
from fedpca.report import biplot, diagnostic_displays, displays, parts, privacy_displays
from fedpca.report.contents import Fitted, feature_names
from fedpca.report.drawing import check_plot_file, save_figure
from fedpca.rows.reading import AS_STORED, Reading
from fedpca.summary.file import is_summary
from fedpca.summary.summary import Summary

MAX_ROWS = 100_000  # largest number of rows in a file whose rows are drawn


class Kind(StrEnum):
    """The kinds of plots."""

    scree = "scree"
    loadings = "loadings"
    biplot = "biplot"
    sites = "sites"
    parts = "parts"
    convergence = "convergence"
    utility = "utility"
    control = "control"


OF_ROWS = ("--rows", "--groups")
# for each kind: the function that draws it, how many components to choose, and the options it uses
KINDS: dict[Kind, tuple[Callable[..., Any], int, tuple[str, ...]]] = {
    Kind.scree: (displays.ScreeDisplay.from_estimator, 0, ()),
    Kind.loadings: (displays.LoadingsDisplay.from_estimator, 1, ("--features",)),
    Kind.biplot: (
        biplot.BiplotDisplay.from_estimator,
        2,
        ("--rows", "--groups", "--summary", "--features"),
    ),
    Kind.sites: (displays.SiteSharesDisplay.from_estimator, 0, ()),
    Kind.parts: (parts.PartsDisplay.from_estimator, 0, ("--rows", "--features")),
    Kind.convergence: (displays.ConvergenceDisplay.from_estimator, 0, ()),
    Kind.utility: (privacy_displays.UtilityDisplay.from_estimator, 0, ("--delta", "--row-bound")),
    Kind.control: (
        diagnostic_displays.ControlChartDisplay.from_estimator,
        0,
        ("--rows", "--groups"),
    ),
}


@with_groups
def plot(
    file: Annotated[Path, typer.Argument(help="Model or summary file.")],
    kind: Annotated[
        Kind,
        typer.Argument(
            help="scree: the variance of each component. loadings: the features of one component. "
            "biplot: features on two components, together with rows of your own or with sites. sites: "
            "how much of each site's variance is explained. parts: rows of your own, their low-rank "
            "part, and their outliers. convergence: "
            "the rounds of the fit. utility: the variance that a private fit would keep. control: T2 "
            "and Q of rows of your own, with the limits of T2 and Q."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the plot to this file (.svg, .png, .pdf).")
    ],
    component: Annotated[
        list[int],
        typer.Option(
            help="Number of the component, counted from 1; a biplot takes two, as in --component 1 "
            "--component 3."
        ),
    ] = [],  # noqa: B006
    rows: Annotated[
        str | None,
        typer.Option(help="File with rows of your own, for the plots biplot, parts, and control."),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="With --rows, for a biplot or a control chart: column with the group of each row, "
            "such as its clinic, which the plot shows in colors.",
        ),
    ] = None,
    database: Database = None,
    reading: Annotated[Reading, LeftOut(BY_MODEL)] = AS_STORED,
    summary: Annotated[
        list[Path],
        typer.Option(
            help="Summary file of a site, which a biplot shows as an ellipse; may be repeated."
        ),
    ] = [],  # noqa: B006
    features: Annotated[int | None, typer.Option(min=1, help="Number of features to draw.")] = None,
    delta: Annotated[float | None, option_of(Noise, "delta")] = None,
    row_bound: Annotated[float | None, option_of(Noise, "row_bound")] = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Draw what a model or summary found, and write the plot to a file.

    Only biplots, parts, and control charts show single rows, which come from a file that you name. The
    command requires the extra ``plot``.
    """
    with exit_codes():
        check_plot_file(output)
        refuse_overwriting(output, force)
        given: dict[str, Any] = {
            "--rows": rows or reading.query,
            "--groups": groups,
            "--summary": summary or None,
            "--features": features,
            "--delta": delta,
            "--row-bound": row_bound,
        }
        chosen = [number - 1 for number in component]
        _refuse_unused(kind, chosen, {name for name, value in given.items() if value is not None})
        fitted = Summary.load(file) if is_summary(file) else load(file)
        names = {"--features": "n_features", "--delta": "delta", "--row-bound": "row_bound"}
        more = {names[o]: v for o, v in given.items() if o in names and v is not None}
        if kind is Kind.biplot and chosen:
            more["components"] = tuple(chosen)
        elif chosen:
            more["component"] = chosen[0]
        if given["--rows"] is not None:
            more |= _read(source_of(rows, database, reading), reading, fitted, groups)
        elif reading.given or groups is not None:
            names_given = [*reading.given, *([] if groups is None else ["groups"])]
            raise InputError(f"{', '.join(names_given)}: options for rows; name them with --rows")
        if summary:
            more["sites"] = {path.stem: Summary.load(path) for path in summary}
        save_figure(KINDS[kind][0](fitted, **more).figure_, output)
        if not quiet:
            say(f"wrote {output}")


def _read(
    path: str, reading: Reading, fitted: Fitted | Summary, groups: str | None
) -> dict[str, Any]:
    """Return a file's path, or the file's rows if there are not too many, and the rows' groups.

    The rows are needed for a robust model, and to read them in a way that the path does not tell.
    """
    is_told = isinstance(fitted, RobustPCA) or reading.given or groups is not None
    if isinstance(fitted, Summary) or not is_told:
        return {"X": path}
    import numpy as np
    import pyarrow as pa

    names = getattr(fitted, "feature_names_in_", None)
    listed = None if names is None else feature_names(fitted)
    if groups is not None:  # read like an id, which is no feature
        reading = replace(reading, id=(*reading.id, groups))
    source: Any = matching_rows(fitted, path, reading)
    blocks: list[Any] = []
    labels: list[Any] = []
    parts: Any = (
        source.blocks_with_ids() if groups else ((block, None) for block in source.blocks())
    )
    for block, ids in parts:
        blocks.append(np.asarray(block.todense() if hasattr(block, "todense") else block))
        labels += ids.column(groups).to_pylist() if groups else [None] * len(blocks[-1])
        if len(labels) > MAX_ROWS:
            raise InputError(
                f"there are more than {MAX_ROWS:,} rows to draw; use a file with fewer"
            )
    rows = np.vstack(blocks) if blocks else np.empty((0, fitted.n_features_in_))
    X = rows if listed is None else pa.table(dict(zip(listed, rows.T, strict=True)))
    return {"X": X, "groups": labels} if groups else {"X": X}


def _refuse_unused(kind: Kind, chosen: list[int], given: set[str]) -> None:
    """Refuse options that a kind of plot does not use, and require those that it needs."""
    _, n_components, used = KINDS[kind]
    if len(chosen) not in {0, n_components}:
        raise InputError(
            f"{kind.value} accepts --component {n_components} times, got it {len(chosen)} times"
        )
    for option in sorted(given - set(used)):
        raise InputError(f"{option} has no effect on {kind.value}; omit it")
    if kind is Kind.biplot and not given & {"--rows", "--summary"}:
        raise InputError(
            "a biplot shows rows of your own or sites; name a file of rows with --rows, or a site's "
            "summary with --summary"
        )
    if kind in (Kind.parts, Kind.control) and "--rows" not in given:
        raise InputError(
            f"{kind.value} shows your own rows; give the file that holds them with --rows"
        )
