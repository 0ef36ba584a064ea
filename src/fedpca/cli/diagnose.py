"""Run `fedpca diagnose`: ask the sites for more about a model than its fit revealed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedpca.cli.console import exit_codes, refuse_overwriting, say
from fedpca.cli.option_groups import LeftOut, with_groups
from fedpca.cli.options import FILES, Databases, Force, Json, Quiet
from fedpca.cli.report import check_page_file, write_page
from fedpca.cli.sites import FILES_ONLY, WhichSites
from fedpca.cli.terminal import show
from fedpca.errors import InputError
from fedpca.estimators import FederatedPCA, load
from fedpca.estimators.diagnosis import Diagnosis
from fedpca.estimators.diagnosis import diagnose as diagnose_model
from fedpca.models.control_limits import ALPHA
from fedpca.report.page import report_page
from fedpca.rows.reading import AS_STORED, Reading

TWO_RUNS = {"journal": "a journal holds one run, and a diagnosis may take two"}
PLOTS = ("scree.svg", "sites.svg", "stability.svg")  # the last two need a map of sites


@with_groups
def diagnose(
    model: Annotated[Path, typer.Argument(help="Model written by `fedpca fit`.")],
    files: Annotated[list[str] | None, typer.Argument(help=FILES)] = None,
    databases: Databases = [],  # noqa: B006
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write the model to this file, with better limits for `fedpca transform --flags`.",
        ),
    ] = None,
    permutations: Annotated[
        int,
        typer.Option(
            help="Also compare the variances with those of this many tables with shuffled columns; "
            "only with FILES.",
            min=0,
        ),
    ] = 0,
    seed: Annotated[
        int, typer.Option(help="Seed for random starts, and for the shuffles of --permutations.")
    ] = 0,
    no_site_map: Annotated[
        bool, typer.Option("--no-site-map", help="Ask only for sums, and do not compare sites.")
    ] = False,
    alpha: Annotated[
        float, typer.Option(help="Share of ordinary rows expected above the limit of T2, and of Q.")
    ] = ALPHA,
    plots: Annotated[
        Path | None,
        typer.Option(
            help="Also write plots to this folder: scree.svg, and, if there is a map of sites, "
            "sites.svg and stability.svg."
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            help="Also write a page about the model and its diagnosis to this file (.html)."
        ),
    ] = None,
    reading: Reading = AS_STORED,
    asked: Annotated[WhichSites, LeftOut(TWO_RUNS)] = FILES_ONLY,
    json: Json = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Diagnose a model at its sites: find the number of components, limits for rows, and odd sites.

    Everything except the map of sites is computed from sums, as in a fit. The map needs a summary from
    each site, as the solver merge does. If the policy of any site forbids summaries, there is no map.
    """
    with exit_codes(json=json):
        if output is not None:
            refuse_overwriting(output, force)
        if plots is not None:
            plots.mkdir(parents=True, exist_ok=True)
            for name in PLOTS:
                refuse_overwriting(plots / name, force)
        if report is not None:
            check_page_file(report)
            refuse_overwriting(report, force)
        fitted = load(model)
        if not isinstance(fitted, FederatedPCA):
            raise InputError(
                f"{model} is a {type(fitted).__name__}, which cannot be diagnosed; use a model of "
                "fedpca fit --kind pca"
            )
        with asked.join_for(fitted, files, databases, reading, quiet=quiet) as rows:
            found = diagnose_model(
                fitted,
                rows,
                site_map=not no_site_map,
                n_permutations=permutations,
                random_state=seed,
            )
        show(found.facts(alpha), json=json, quiet=quiet)
        if output is not None:
            fitted.residual_traces_ = found.residual_traces
            fitted.save(output)
            _say_written(output, quiet or json)
        if report is not None:
            write_page(report, report_page(fitted, model.name, diagnosis=found))
            _say_written(report, quiet or json)
        if plots is not None:
            for path in _draw(found, plots):
                _say_written(path, quiet or json)


def _say_written(path: Path, quiet: bool) -> None:
    if not quiet:
        say(f"Wrote {path}")


def _draw(found: Diagnosis, folder: Path) -> list[Path]:
    """Write the plots that a diagnosis has results for, and return their paths."""
    from fedpca.report import diagnostic_displays as displays
    from fedpca.report.displays import ScreeDisplay
    from fedpca.report.drawing import save_figure

    drawn: list[Any] = [ScreeDisplay.from_estimator(found.model, diagnosis=found)]
    if found.sites is not None:
        drawn.append(displays.SiteMapDisplay.from_diagnosis(found))
        drawn.append(displays.StabilityDisplay.from_diagnosis(found))
    written = [folder / name for name, _ in zip(PLOTS, drawn, strict=False)]
    for path, each in zip(written, drawn, strict=True):
        save_figure(each.figure_, path)
    return written
