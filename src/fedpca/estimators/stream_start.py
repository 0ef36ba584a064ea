"""How the stream of a `StreamingPCA` begins, by its parameters and the number of features."""

from __future__ import annotations

from typing import Any

from fedpca.errors import InputError
from fedpca.rank import AdaptiveRank, check_most
from fedpca.scatter import Scatter, scatter_pays
from fedpca.stream import Stream
from fedpca.summarize import MOST_COMPONENTS
from fedpca.summary import Summary


def begin_stream(estimator: Any, d: int, rows_at_once: int) -> Stream:
    """An empty stream for d features, of which so many rows come at once."""
    names = getattr(estimator, "feature_names_in_", None)
    wanted, rank = first_rank(estimator, d)
    carried = Summary.empty(
        d, wanted, n_spare=estimator.n_spare, center=estimator.center, features=names
    )
    keeps_whole = estimator.moments
    if estimator.moments == "auto":
        keeps_whole = rank is None and scatter_pays(d, carried.room, rows_at_once)
    elif keeps_whole and rank is not None:
        raise InputError(f"moments=True goes with a fixed rank, not with rank={estimator.rank!r}")
    scatter = Scatter(d) if keeps_whole else None
    return Stream(carried, scatter, rank, n_spare=int(estimator.n_spare))


def first_rank(estimator: Any, d: int) -> tuple[int, AdaptiveRank | None]:
    """How many components to begin with, and how that number follows the stream."""
    is_fixed = estimator.rank == "fixed"
    most = min(d, estimator.max_components or (d if is_fixed else MOST_COMPONENTS))
    check_most(estimator.n_components, estimator.max_components, most, d)
    if is_fixed:
        return int(estimator.n_components or most), None
    if not estimator.n_spare:
        raise InputError(
            f"rank={estimator.rank!r} looks at spare directions; n_spare=0 has none, use at least 1"
        )
    rank = AdaptiveRank.begin(
        estimator.rank,
        estimator.n_components,
        most,
        share=estimator.share,
        alpha=estimator.alpha,
        beta=estimator.beta,
        hold_off=estimator.hold_off,
    )
    return rank.rank, rank
