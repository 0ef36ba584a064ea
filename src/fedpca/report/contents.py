"""Return the components of a model or summary, and write records as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from fedpca.coordinator.record import RunRecord
from fedpca.estimators import FederatedPCA, PersonalizedPCA, RobustPCA, StreamingPCA
from fedpca.facts import Component, Records, Section, Sections, find
from fedpca.summary.summary import Summary

Fitted = FederatedPCA | PersonalizedPCA | RobustPCA | StreamingPCA


def described_components(facts: Sections) -> Sequence[Component]:
    """Return the components among the facts of a model or summary, in order."""
    records = find(facts, "components", Records)
    return () if records is None else [Component(*row) for row in records.rows]


def run_of(fitted: Fitted | Summary) -> RunRecord:
    """Return the record of the run that fitted a model; a stream and a summary have an empty one."""
    return RunRecord() if isinstance(fitted, Summary | StreamingPCA) else fitted.run_


def feature_names(fitted: Fitted | Summary) -> list[str]:
    """Return the names of the features; without names, a feature is named by its position."""
    about = find(fitted.facts(), "", Section)
    return [] if about is None else list(about["features"].value)


def components_as_csv(fitted: Fitted | Summary) -> str:
    """Return the components as CSV, with one line for each component and feature."""
    lines = (
        (c.site, c.component, c.variance, c.share, name, loading)
        for c in described_components(fitted.facts())
        for name, loading in c.loadings.items()
    )
    return as_csv(("site", "component", "variance", "share", "feature", "loading"), lines)


def records_as_csv(records: Records) -> str:
    """Return records as CSV; the items of a value with several are joined by semicolons."""
    lines = (
        ["; ".join(map(str, x)) if isinstance(x, tuple) else x for x in r] for r in records.rows
    )
    return as_csv([column.key for column in records.columns], lines)


def as_csv(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """Return lines as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    return text.getvalue().rstrip("\n")
