"""Run `fedpca plot`: draw what a model found."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpca.cli.console import exit_codes, refuse_overwriting, say
from fedpca.cli.options import Force, Quiet
from fedpca.errors import InputError
from fedpca.estimators import load
from fedpca.report import diagnostic_displays, displays
from fedpca.report.drawing import check_plot_file, save_figure
from fedpca.summary.file import is_summary
from fedpca.summary.summary import Summary


class Kind(StrEnum):
    """What to draw."""

    scree = "scree"
    loadings = "loadings"
    biplot = "biplot"
    sites = "sites"
    convergence = "convergence"
    control = "control"


def plot(
    file: Annotated[Path, typer.Argument(help="Model or summary file.")],
    kind: Annotated[
        Kind,
        typer.Argument(
            help="scree: the variance of each component. loadings: the features of one. biplot: rows "
            "of your own and features on two. sites: how much of each site's variance is explained. "
            "convergence: the rounds of the fit. control: T2 and Q of rows of your own, and their "
            "limits."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the plot to this file (.svg, .png, .pdf).")
    ],
    component: Annotated[
        list[int],
        typer.Option(
            help="Number of the component, from 1; a biplot takes two: --component 1 --component 3."
        ),
    ] = [],  # noqa: B006
    rows: Annotated[
        str | None,
        typer.Option(help="File with rows of your own, for a biplot or a control chart."),
    ] = None,
    features: Annotated[int | None, typer.Option(min=1, help="How many features to draw.")] = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Draw what a model or summary found, and write the plot to a file.

    Only biplots and control charts show single rows, and they take them from a file of yours. This
    requires the extra ``plot``.
    """
    with exit_codes():
        check_plot_file(output)
        refuse_overwriting(output, force)
        fitted = Summary.load(file) if is_summary(file) else load(file)
        chosen = [number - 1 for number in component]
        more: dict[str, Any] = {} if features is None else {"n_features": features}
        _refuse_unused(kind, chosen, rows, more)
        if kind is Kind.scree:
            drawn: Any = displays.ScreeDisplay.from_estimator(fitted)
        elif kind is Kind.loadings:
            drawn = displays.LoadingsDisplay.from_estimator(fitted, *chosen, **more)
        elif kind is Kind.convergence:
            drawn = displays.ConvergenceDisplay.from_estimator(fitted)
        elif kind is Kind.sites:
            drawn = displays.SiteSharesDisplay.from_estimator(fitted)
        elif kind is Kind.control:
            drawn = diagnostic_displays.ControlChartDisplay.from_estimator(fitted, rows)
        else:
            if chosen:
                more["components"] = tuple(chosen)
            drawn = displays.BiplotDisplay.from_estimator(fitted, rows, **more)
        save_figure(drawn.figure_, output)
        if not quiet:
            say(f"wrote {output}")


def _refuse_unused(kind: Kind, chosen: list[int], rows: str | None, more: dict[str, Any]) -> None:
    """Refuse options that a kind of plot does not use, and the lack of those that it needs."""
    most = {Kind.loadings: 1, Kind.biplot: 2}.get(kind, 0)
    if len(chosen) not in ({0, 2} if kind is Kind.biplot else {0, most}):
        raise InputError(
            f"--component was given {len(chosen)} times; {kind.value} takes {most} of them"
        )
    if more and not most:
        raise InputError(f"--features has no effect on {kind.value}; omit it")
    if (rows is None) == (kind in (Kind.biplot, Kind.control)):
        raise InputError(
            f"{kind.value} shows rows of your own; name their file with --rows"
            if rows is None
            else f"--rows has no effect on {kind.value}; omit it"
        )
