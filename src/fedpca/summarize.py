"""From rows to a summary, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from numbers import Integral
from typing import Any

from fedpca.blocks import Centred, Mean, about_own_mean, naming_bad_values
from fedpca.lowrank import rows_at_once
from fedpca.rank import check_n_components, rank_rule
from fedpca.rows import open_rows
from fedpca.scatter import Scatter, scatter_pays
from fedpca.summary import N_SPARE, Summary

MOST_COMPONENTS = 100  # that a rule may find in one pass over rows


def summarize(
    source: Any,
    n_components: Any = None,
    *,
    n_spare: int = N_SPARE,
    center: bool = True,
    on_block: Callable[[int], None] | None = None,
) -> Summary:
    """What `Summary.of` gives."""
    check_n_components(n_components)
    rows = open_rows(source)

    def parts() -> Iterator[tuple[Mean, Centred]]:
        n_read = 0
        for block in rows.blocks():
            yield about_own_mean(block, center=center)
            n_read += block.shape[0]
            if on_block is not None:
                on_block(n_read)

    with naming_bad_values(rows):
        return summarize_parts(
            parts(),
            rows.n_features,
            n_components,
            n_spare=n_spare,
            center=center,
            features=rows.features,
        )


def summarize_parts(
    parts: Iterable[tuple[Mean, Centred]],
    n_features: int,
    n_components: Any = None,
    *,
    n_spare: int = N_SPARE,
    **others: Any,
) -> Summary:
    """The summary of blocks of rows, each about a mean, through the whole scatter where it pays.

    A rule looks at what is known when all rows were read. ``others`` are those of `Summary.empty`.
    """
    is_rule = not isinstance(n_components, Integral | None)
    most = min(n_features, MOST_COMPONENTS) if is_rule else n_components
    summary = Summary.empty(n_features, most, n_spare=n_spare, **others)
    if scatter_pays(n_features, summary.room, rows_at_once(summary.room)):
        scatter = Scatter(n_features)
        for mean, rows in parts:
            scatter.add(mean, rows)
        summary = summary.of_scatter(scatter)
    else:
        for mean, rows in parts:
            summary = summary.append(mean, rows)
    return _cut_by_rule(summary, n_components, n_spare) if is_rule else summary


def _cut_by_rule(summary: Summary, n_components: Any, n_spare: int) -> Summary:
    """The summary with as many directions as a rule finds, and some to spare."""
    rule = rank_rule(n_components, max(2, int(summary.n)), summary.n_features)
    wanted = min(rule.settle(summary.spectrum), summary.n_components)
    return summary.resize(wanted, min(summary.room, wanted + n_spare))
