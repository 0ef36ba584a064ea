"""Run `fedpca plan`: tell what a fit would cost and keep, before any site is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedpca.arrays import Array
from fedpca.cli.console import exit_codes, out, say
from fedpca.cli.methods import privacy_of
from fedpca.cli.options import Delta, Epsilon, RowBound, Silent
from fedpca.errors import InputError
from fedpca.models.linear import Model, load_model
from fedpca.privacy.gaussian import Privacy
from fedpca.report.tables import new_table, print_table
from fedpca.solvers.catalogue import SOLVERS, cheapest_exact
from fedpca.solvers.private.utility import expected_share

TYPICAL_LENGTH = 0.8  # of a row about the mean, as a share of the bound, if nothing is known


def plan(
    rows: Annotated[int, typer.Option(min=2, help="About how many rows all sites have.")],
    features: Annotated[int, typer.Option(min=1, help="How many features they have.")],
    n_components: Annotated[int, typer.Option("-k", "--components", min=1, help="Components.")],
    sites: Annotated[int, typer.Option(min=1, help="How many sites take part.")] = 3,
    epsilon: Epsilon = None,
    delta: Delta = None,
    row_bound: RowBound = None,
    silent: Silent = None,
    like: Annotated[
        Path | None,
        typer.Option(
            help="Model of public rows with similar variances. By default, variances fall as 1, 1/2, "
            "1/3, and so on."
        ),
    ] = None,
) -> None:
    """Tell what a fit would cost and, with --epsilon, how much variance it would keep.

    Nothing is sent, and no rows are read, so planning takes nothing from a privacy budget. The bytes
    are those to and from each site. With --epsilon, the command tells which share of the variance of
    exact components is expected to remain, given what such noise does to rows with such variances.
    """
    with exit_codes():
        if n_components > min(rows, features):
            raise InputError(
                f"-k {n_components} exceeds the {min(rows, features)} components that {rows:,} rows "
                f"of {features:,} features have"
            )
        given = {
            "--epsilon": epsilon,
            "--delta": delta,
            "--row-bound": row_bound,
            "--silent": silent,
        }
        settings = privacy_of({name: each for name, each in given.items() if each is not None})
        if settings is None and like is not None:
            raise InputError("--like describes rows for --epsilon; use both")
        _print_costs(rows, features, n_components, sites)
        if settings is not None:
            variances = _variances(settings, like, features)
            share = expected_share(settings, variances, rows, n_components, sites)
            say(
                f"With epsilon {settings.epsilon:g}, delta {settings.delta:g}, and rows within "
                f"{settings.row_bound:g} of the mean, the components are expected to keep {share:.1%} "
                "of the variance that exact ones keep."
            )


def _print_costs(n: int, d: int, k: int, n_sites: int) -> None:
    """Print the bytes of each solver, and name the one that "auto" takes."""
    table = new_table(None, ("solver", "components", "seen by site"), ("bytes/site", "bytes"))
    chosen = cheapest_exact(n, d, k)
    for name, solver in SOLVERS.items():
        size = solver.bytes_per_site(max(n // n_sites, 1), d, k)
        seen = ", ".join(solver.seen) or "nothing"
        title = f"{name} (auto)" if name == chosen.name else name
        table.add_row(title, solver.guarantee, seen, f"{size:,}", f"{n_sites * size:,}")
    print_table(out, table)


def _variances(settings: Privacy, like: Path | None, d: int) -> Array:
    """Return variances along all components: those of a model, or a guess that suits the bound."""
    if like is None:
        falling = 1.0 / np.arange(1, d + 1)
        return np.asarray(falling * (TYPICAL_LENGTH * settings.row_bound) ** 2 / falling.sum())
    model: Model = load_model(like)[0]
    k, found = model.components.shape
    if found != d:
        raise InputError(f"{like} has {found} features, not {d}; use a model with as many")
    rest = max(float(model.total_variance - model.explained_variance.sum()), 0.0)
    return np.append(model.explained_variance, np.full(d - k, rest / max(d - k, 1)))
