"""Summarize rows in one pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from numbers import Integral
from typing import Any

import numpy as np

from fedpca.errors import InputError
from fedpca.linalg.rank_rules import check_n_components, rank_rule
from fedpca.rows.centering import Centered, Mean, about_own_mean, naming_bad_values
from fedpca.rows.gaps import MEAN, MISSING, column_totals, counting_blocks
from fedpca.rows.genotypes.genotype_rows import matchable
from fedpca.rows.in_memory import about_n_rows
from fedpca.rows.open import open_rows
from fedpca.rows.reading import AS_STORED, Reading
from fedpca.summary.lowrank import rows_at_once
from fedpca.summary.scatter import Scatter, scatter_pays
from fedpca.summary.summary import N_SPARE, Summary

MAX_CHOSEN_COMPONENTS = 100  # the most components that a rule may choose in one pass


def summarize(
    source: Any,
    n_components: Any = None,
    *,
    n_spare: int = N_SPARE,
    center: bool = True,
    on_block: Callable[[int], None] | None = None,
    missing: str = "error",
    reading: Reading = AS_STORED,
) -> Summary:
    """Return the summary of rows, as described in `Summary.of`."""
    check_n_components(n_components)
    if missing not in MISSING:
        raise InputError(f"missing={missing!r} must be one of {', '.join(MISSING)}")
    if reading.weight is not None:
        raise InputError("a summary counts every row once, so it takes no weight; omit the weight")
    rows = matchable(open_rows(source, reading))
    treatment = MISSING.index(missing)
    fill = None
    if treatment == MEAN:
        totals = column_totals(rows, MEAN)
        # a column without any value is zero, as in a fit
        fill = totals.sums / np.where(totals.present > 0, totals.present, 1.0)

    def centered_blocks() -> Iterator[tuple[Mean, Centered]]:
        n_read = 0
        for block, _ in counting_blocks(rows, treatment, fill):
            yield about_own_mean(block, center=center)
            n_read += block.shape[0]
            if on_block is not None:
                on_block(n_read)

    with naming_bad_values(rows):
        return summarize_parts(
            centered_blocks(),
            rows.n_features,
            n_components,
            n_spare=n_spare,
            center=center,
            n_rows=about_n_rows(rows),
            features=rows.features,
        )


def summarize_parts(
    parts: Iterable[tuple[Mean, Centered]],
    n_features: int,
    n_components: Any = None,
    *,
    n_spare: int = N_SPARE,
    n_rows: float = math.inf,
    **others: Any,
) -> Summary:
    """Return the summary of blocks, each given about a mean; use the full scatter if it is cheaper.

    If ``n_components`` is a rule, it is applied after all rows have been read. ``n_rows`` is the
    number of rows, if known. ``others`` are options for `Summary.empty`.
    """
    is_rule = not isinstance(n_components, Integral | None)
    most = min(n_features, MAX_CHOSEN_COMPONENTS) if is_rule else n_components
    summary = Summary.empty(n_features, most, n_spare=n_spare, **others)
    if scatter_pays(n_features, summary.room, rows_at_once(summary.room), n_rows):
        scatter = Scatter(n_features)
        for mean, rows in parts:
            scatter.add(mean, rows)
        summary = summary.of_scatter(scatter)
    else:
        for mean, rows in parts:
            summary = summary.append(mean, rows)
    return _cut_by_rule(summary, n_components, n_spare) if is_rule else summary


def _cut_by_rule(summary: Summary, n_components: Any, n_spare: int) -> Summary:
    """Return the summary with only the number of directions that a rule chooses, plus spares."""
    rule = rank_rule(n_components, max(2, int(summary.n)), summary.n_features)
    wanted = min(rule.settle(summary.spectrum), summary.n_components)
    return summary.resize(wanted, min(summary.room, wanted + n_spare))
