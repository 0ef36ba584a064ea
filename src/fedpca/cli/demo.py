"""Run `fedpca demo`: fit example rows of four clinics without pooling them."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from fedpca.arrays import Array
from fedpca.cli.console import out, until_stopped
from fedpca.cli.options import Quiet
from fedpca.cli.progress import progress
from fedpca.cli.terminal import print_facts
from fedpca.coordinator.federation import Federation
from fedpca.estimators import FederatedPCA
from fedpca.facts import CHANGE, COUNT, SHARE, Column, Fact, Records, Section, ValueKind
from fedpca.linalg.dense import sine_of_angle

EXACT = ValueKind("{:.6%}".format)
CLINICS = ("north", "east", "south", "west")


def demo(
    federation: Annotated[
        bool,
        typer.Option("--federation", help="Run a server and three sites, each in its own process."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Fit the rows of four clinics without pooling them, and compare the result with pooled PCA."""
    with until_stopped():
        if federation:
            from fedpca.cli.demo_federation import run_federation_demo

            run_federation_demo(out)
        else:
            run_demo(out, quiet)


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


def run_demo(console: Console, quiet: bool) -> None:
    """Fit the clinics' rows, compare the result with pooled PCA, and print the data exchanged."""
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler

    tables, pooled = clinics()
    fed, model = Federation.local(tables), FederatedPCA(5, scale=True)
    with progress(quiet, tol=model.tol, max_rounds=model.max_rounds) as shown:
        fed.watch(*shown)
        model.fit(fed)
    reference = PCA(5, svd_solver="full").fit(StandardScaler().fit_transform(pooled))

    shares = [
        (clinic, table.num_rows, model.site_variance_ratio_[clinic])
        for clinic, table in tables.items()
    ]
    patients = (Column("clinic"), Column("patients", COUNT), Column("variance explained", SHARE))
    ratios = zip(model.explained_variance_ratio_, reference.explained_variance_ratio_, strict=True)
    both = (Column("component"), Column("federated", EXACT), Column("pooled", EXACT))
    gap = np.abs(model.explained_variance_ / reference.explained_variance_ - 1).max()
    angle = sine_of_angle(reference.components_.T, model.components_.T)
    closeness = (
        Fact("angle", angle, CHANGE, "sine of the largest angle between the two subspaces"),
        Fact("gap", gap, CHANGE, "largest relative difference in variance"),
    )
    run = model.run_
    facts = (
        Records("clinics", patients, shares, "Four clinics, with columns in different orders"),
        Records("both", both, [(i, *r) for i, r in enumerate(ratios, 1)], "Federated and pooled"),
        Section("closeness", closeness),
        *run.exchanged(),
        *run.facts("FederatedPCA")[:1],
    )
    print_facts(console, facts)
