"""Return what a model or summary contains as plain values, and write it as JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.ledger import Total
from fedpca.coordinator.record import RunRecord
from fedpca.estimators import FederatedPCA, PersonalizedPCA, RobustPCA, StreamingPCA
from fedpca.models.features import names_of_features
from fedpca.models.linear import Model
from fedpca.summary.summary import Summary

Fitted = FederatedPCA | PersonalizedPCA | RobustPCA | StreamingPCA


class Component(NamedTuple):
    """One component of a model, with its name and its loading on each feature."""

    site: str | None  # for a local component
    name: str  # its number, counted from 1; in a personalized model, the name of its score
    variance: float
    share: float  # of the total variance, or of the site's variance
    loadings: Array  # (d,)


def feature_names(fitted: Fitted | Summary) -> list[str]:
    """Return the names of the features; without names, a feature is named by its position."""
    if isinstance(fitted, Summary):
        names, d = fitted.features, fitted.n_features
    else:
        names, d = getattr(fitted, "feature_names_in_", None), fitted.n_features_in_
    return list(names_of_features(names, d))


def n_components_of(fitted: Any) -> int:
    """Return the number of components of a model, or the number that a summary was made for."""
    return int(getattr(fitted, "n_components_", None) or fitted.n_components)


def summary_model(summary: Summary) -> Model:
    """Return the leading components of a summary as a model."""
    k = min(summary.n_components, len(summary.singular_values))
    return Model.from_eigen(
        summary.directions[:k].T,
        summary.eigenvalues[:k],
        summary.energy,
        summary.n,
        summary.mean,
        np.ones(summary.n_features),
    )


def components_of(fitted: Fitted | Summary) -> list[Component]:
    """Return the components of a model or summary, in order."""
    if isinstance(fitted, PersonalizedPCA):
        return list(_personalized_components(fitted))
    if isinstance(fitted, Summary):
        model = summary_model(fitted)
        C, variances = model.components, model.explained_variance
        shares = variances / (float(model.total_variance) or 1.0)
    else:
        C, variances = fitted.components_, fitted.explained_variance_
        shares = fitted.explained_variance_ratio_
    named = zip(variances, shares, C, strict=True)
    return [Component(None, str(i), *values) for i, values in enumerate(named, start=1)]


def _personalized_components(pca: PersonalizedPCA) -> Iterator[Component]:
    shared = zip(
        pca.explained_variance_, pca.explained_variance_ratio_, pca.components_, strict=True
    )
    for i, values in enumerate(shared):
        yield Component(None, f"shared{i}", *values)
    for site, part in pca.model_.parts.items():
        for i, (variance, loadings) in enumerate(zip(part.variance, part.components, strict=True)):
            yield Component(site, f"local{i}", variance, variance / (part.total or 1.0), loadings)


def leading_features(component: Component, names: Sequence[str], n: int) -> str:
    """Return the names of the features with the largest loadings, and these loadings, as text."""
    order = np.argsort(-np.abs(component.loadings), kind="stable")[:n]
    return ", ".join(f"{names[j]} {component.loadings[j]:+.2f}" for j in order)


def as_json(fitted: Fitted | Summary, *, ledger: list[Total] | None = None) -> str:
    """Return what a model or summary file holds, as JSON: the components, the sites, and the run."""
    names = feature_names(fitted)
    contents: dict[str, Any] = {
        "kind": type(fitted).__name__,
        "features": names,
        "components": [
            {
                **({} if component.site is None else {"site": component.site}),
                "component": component.name,
                "variance": float(component.variance),
                "share": float(component.share),
                "loadings": dict(zip(names, map(float, component.loadings), strict=True)),
            }
            for component in components_of(fitted)
        ],
        **_about(fitted),
    }
    run: RunRecord | None = getattr(fitted, "run_", None)
    if run is not None and run.history:
        contents["run"] = {
            "solver": run.solver,
            "stop_reason": run.stop_reason,
            "rounds": run.rounds,
            "bytes_up": run.bytes_up,
            "bytes_down": run.bytes_down,
            "sites": list(run.sites),
            "lost": run.lost,
            "proofs": run.proofs,
            "secure": run.secure,
            "privacy": run.privacy,
        }
    if ledger is not None:
        contents["ledger"] = [entry._asdict() for entry in ledger]
    return json.dumps(_without_nan(contents), indent=2)


def as_csv(fitted: Fitted | Summary) -> str:
    """Return the components as CSV, with one line for each component and feature."""
    names = feature_names(fitted)
    lines = (
        (c.site, c.name, float(c.variance), float(c.share), name, float(loading))
        for c in components_of(fitted)
        for name, loading in zip(names, c.loadings, strict=True)
    )
    header = ("site", "component", "variance", "share", "feature", "loading")
    return _csv_text(header, lines)


def ledger_as_csv(totals: list[Total]) -> str:
    """Return the data exchanged as CSV."""
    lines = ((*entry[:3], " x ".join(str(n) for n in entry.shape), *entry[4:]) for entry in totals)
    return _csv_text(Total._fields, lines)


def _csv_text(header: Sequence[str], lines: Any) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    return text.getvalue().rstrip("\n")


def _about(fitted: Fitted | Summary) -> dict[str, Any]:
    """Return the number of rows and the values that only this kind of model has."""
    if isinstance(fitted, Summary):
        return {"n_rows": fitted.n}
    if isinstance(fitted, StreamingPCA):
        return {"n_rows": fitted.n_samples_seen_}
    about: dict[str, Any] = {"n_rows": fitted.n_samples_}
    if isinstance(fitted, FederatedPCA):
        about["site_variance_ratio"] = fitted.site_variance_ratio_
    elif isinstance(fitted, PersonalizedPCA):
        about |= {"misalignment": fitted.misalignment_, "site_variance": fitted.site_variance_}
    else:
        about |= {
            "threshold": fitted.threshold_,
            "n_left_out": fitted.n_left_out_,
            "sparse_share": fitted.sparse_share_,
        }
    return about


def _without_nan(value: Any) -> Any:
    """Replace numbers that JSON cannot express with null."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
