"""The command of the leak lab: `fedpca audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpca.errors import InputError
from fedpca.estimators import FederatedPCA
from fedpca.privacy import leakage
from fedpca.report.plots import draw_leakage, pyplot
from fedpca.report.tables import print_leakage, write_exposures
from fedpca.shell import (
    Components,
    Files,
    Force,
    MaxRounds,
    Quiet,
    Scale,
    attacking,
    components_of,
    exit_codes,
    named_sites,
    out,
    refuse_overwriting,
)
from fedpca.solvers import SOLVERS

DEFAULTS = FederatedPCA()


def audit(
    files: Files,
    n_components: Components = "auto",
    solver: Annotated[
        list[str], typer.Option(help=f"all, or of {', '.join(SOLVERS)}; may be repeated.")
    ] = ["all"],  # noqa: B006
    scale: Scale = False,
    refits: Annotated[
        int, typer.Option(help="Fits from other starts that an attacker has seen, too.")
    ] = 5,
    colluding: Annotated[
        list[str], typer.Option(help="A site that tells the coordinator its part of every sum.")
    ] = [],  # noqa: B006
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Attack faps by simulation too; slow.")
    ] = False,
    max_rounds: MaxRounds = DEFAULTS.max_rounds,
    seed: Annotated[int, typer.Option(help="Seed of the first start.")] = 0,
    by_site: Annotated[bool, typer.Option("--by-site", help="A line for every site.")] = False,
    table: Annotated[
        Path | None, typer.Option(help="Where every attack's result goes (.csv).")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Where a picture goes (.png).")] = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Attack what each solver would send of small data that is at hand, and say what is revealed.

    Nothing leaves this machine. Compare errors with those of the guesses without any message.
    """
    with exit_codes():
        for path, suffix in ((table, ".csv"), (plot, ".png")):
            if path is not None:
                refuse_overwriting(path, force)
                if path.suffix != suffix:
                    raise InputError(f"{path} must end in {suffix}, as in {path.stem}{suffix}")
        if plot is not None:
            pyplot()  # missed now and not after the work
        found = leakage.audit(
            named_sites(files),
            components_of(n_components),
            solvers=None if solver == ["all"] else solver,
            refits=refits,
            colluding=colluding,
            simulate=simulate,
            random_state=seed,
            on_solver=attacking(quiet),
            scale=scale,
            max_rounds=max_rounds,
        )
        print_leakage(out, found, by_site)
        if table is not None:
            write_exposures(table, found)
            out.print(f"Wrote {table}")
        if plot is not None:
            draw_leakage(found, plot)
            out.print(f"Wrote {plot}")
