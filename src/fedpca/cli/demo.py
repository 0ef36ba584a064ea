"""Run `fedpca demo`: fit four clinics without pooling their rows, using scikit-learn data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from fedpca.arrays import Array
from fedpca.cli.console import out, progress, until_stopped
from fedpca.cli.options import Quiet
from fedpca.coordinator.federation import Federation
from fedpca.estimators import FederatedPCA
from fedpca.linalg.dense import sine_of_angle
from fedpca.report.tables import print_crossed

CLINICS = ("north", "east", "south", "west")


def demo(
    federation: Annotated[
        bool,
        typer.Option("--federation", help="Run a server and three sites, each in its own process."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Fit four clinics without pooling their rows, and compare the result with pooled PCA."""
    with until_stopped():
        if federation:
            from fedpca.cli.demo_federation import run_federation_demo

            run_federation_demo(out)
        else:
            run_demo(out, progress(quiet))


def clinics() -> tuple[dict[str, Any], Array]:
    """Return the breast cancer data as one table for each of four clinics, and the pooled rows.

    Each clinic gets patients with tumors of similar size, so that no clinic resembles the pooled data.
    Each clinic's columns are in a different order.
    """
    import pyarrow as pa
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    by_size = np.argsort(data.data[:, 0], kind="stable")
    bounds = [0, 60, 200, 420, len(by_size)]
    tables = {}
    for i, clinic in enumerate(CLINICS):
        rows = data.data[by_size[bounds[i] : bounds[i + 1]]]
        order = np.roll(np.arange(rows.shape[1]), i)
        tables[clinic] = pa.table({str(data.feature_names[j]): rows[:, j] for j in order})
    return tables, data.data


def run_demo(console: Console, on_round: Callable[[dict[str, Any]], None] | None) -> None:
    """Fit the clinics, compare the result with pooled PCA, and print the data exchanged."""
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler

    tables, pooled = clinics()
    fed = Federation.local(tables, on_round=on_round)
    model = FederatedPCA(5, scale=True).fit(fed)
    reference = PCA(5, svd_solver="full").fit(StandardScaler().fit_transform(pooled))

    sites = Table(title="Four clinics, with columns in different orders", title_justify="left")
    for name in ("clinic", "patients", "variance explained"):
        sites.add_column(name, justify="left" if name == "clinic" else "right")
    for clinic, table in tables.items():
        share = model.site_variance_ratio_[clinic]
        sites.add_row(clinic, str(table.num_rows), f"{share:.1%}")
    console.print(sites)

    both = Table(title="Federated and pooled", title_justify="left")
    for name in ("component", "federated", "pooled"):
        both.add_column(name, justify="right")
    ratios = zip(model.explained_variance_ratio_, reference.explained_variance_ratio_, strict=True)
    for i, (ours, theirs) in enumerate(ratios, start=1):
        both.add_row(str(i), f"{ours:.6%}", f"{theirs:.6%}")
    console.print(both)
    angle = sine_of_angle(reference.components_.T, model.components_.T)
    gap = np.abs(model.explained_variance_ / reference.explained_variance_ - 1).max()
    console.print(f"sine of the largest angle between the two subspaces: {angle:.1e}")
    console.print(f"largest relative difference in variance: {gap:.1e}\n")
    print_crossed(console, model.run_)
