"""Tables for a terminal."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table

from fedpca.errors import InputError
from fedpca.estimators import FederatedPCA
from fedpca.run import Run


def print_crossed(console: Console, run: Run, site: str | None = None) -> None:
    """A table of what crossed, a line for each question and field, of all sites or of one."""
    if site not in (None, *run.sites, *(loss["site"] for loss in run.lost)):
        raise InputError(f"no site {site!r} in this run; there are {', '.join(run.sites)}")
    title = "What crossed" if site is None else f"What crossed to and from {site}"
    table = Table(title=title, title_justify="left")
    for name in ("question", "direction", "field", "shape", "how"):
        table.add_column(name)
    for name in ("messages", "bytes"):
        table.add_column(name, justify="right")
    for row in run.ledger.totals(site):
        shape = " x ".join(str(n) for n in row.shape)
        table.add_row(
            row.question,
            row.direction,
            row.field,
            shape,
            row.how,
            f"{row.messages:,}",
            f"{row.bytes:,}",
        )
    console.print(table)
    console.print(
        f"{run.rounds} rounds, {run.bytes_up:,} bytes from the sites, {run.bytes_down:,} to them"
    )


def print_model(out: Console, model: FederatedPCA) -> None:
    """What a model is, and how it came about."""
    run = model.run_
    out.print(
        f"{model.n_components_} components of {model.n_features_in_:,} features from "
        f"{model.n_samples_:,} rows at {len(run.sites)} sites"
    )
    out.print(
        f"solver {run.solver} ({run.stopped}): {run.rounds} rounds, {run.bytes_up:,} bytes up, "
        f"{run.bytes_down:,} down"
    )
    for loss in run.lost:
        out.print(f"lost in round {loss['round']}: {loss['reason']}")
    table = Table()
    for name in ("component", "variance", "share", "together"):
        table.add_column(name, justify="right")
    together = np.cumsum(model.explained_variance_ratio_)
    for i, variance in enumerate(model.explained_variance_[:20]):
        share = model.explained_variance_ratio_[i]
        table.add_row(str(i + 1), f"{variance:.6g}", f"{share:.2%}", f"{together[i]:.2%}")
    out.print(table)
    if model.n_components_ > 20:
        out.print(f"... and {model.n_components_ - 20} more")
    if model.site_variance_ratio_:
        shares = ", ".join(f"{k} {v:.1%}" for k, v in model.site_variance_ratio_.items())
        out.print(f"of each site's own variance: {shares}")
