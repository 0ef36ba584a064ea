"""One round after the mean: the average of the sites' leading eigenspaces, weighted by eigenvalues.

    A~_t = (1/n) sum_i n_i U_i L_i U_i',    U_i L_i U_i' the t leading eigenpairs of site i's covariance

The same columns ``U_i sqrt(L_i)`` serve every k <= t, each eigenvector and eigenvalue by itself, and
the search for the k behind which the spectrum has its gap. Nobody needs to know that k beforehand: t
columns that reach beyond the gap are nearly as good as the pooled rows. ``weights="unweighted"``
averages the projections on the k leading eigenvectors, the method of Fan, Wang, Wang and Zhu,
"Distributed estimation of principal eigenspaces" (2019), which loses the order of eigenvectors. With
m sites nothing larger than the m t columns and their Gram matrix is formed.

Source: Bhaskara and Wijewardena, "On distributed averaging for stochastic k-PCA" (2019), Algorithm 1
and section 4. They take all sites to have as many rows; here each counts by its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedpca.federation import Federation
from fedpca.message import Array
from fedpca.moments import Moments
from fedpca.rank import RankRule, Spectrum
from fedpca.solvers.merging import (
    directions_to_ask,
    gather_summaries,
    look_further,
    looks,
    settled,
    solution_of,
    summarize_about,
)
from fedpca.solvers.solution import Solution
from fedpca.summary import Summary, merge_in_tree

COLUMNS_FOR_EACH = 3  # that sites send, for each component that is wanted


def average_subspaces(
    fed: Federation,
    known: Moments,
    rank: RankRule,
    *,
    start: Array | None,
    tol: float,
    max_rounds: int,
    weights: str = "eigenvalues",
    site_components: Any = None,
) -> Solution:
    """The leading eigenvectors of the average; ``start``, ``tol`` and ``max_rounds`` do not matter."""

    def averaged(t: int) -> tuple[list[Summary], Summary]:
        # as many spare directions while a site reads its rows, none of which it sends
        fields = directions_to_ask(site_components, t, known.d, n_spare=t)
        fields |= {"mean": known.mean, "scale": known.scale, "sends_spare": np.int64(False)}
        sites = gather_summaries(fed, summarize_about, t, **fields)
        return sites, merge_in_tree(sites)

    (sites, average), k = look_further(
        averaged,
        lambda found, is_last: settled(rank, _trusted(*found), is_last),
        looks(COLUMNS_FOR_EACH * rank.first_look, known.d, site_components),
    )
    weighted = solution_of(fed, average, k)
    return weighted if weights == "eigenvalues" else _unweighted(fed, sites, average, weighted)


def _trusted(sites: list[Summary], average: Summary) -> Spectrum:
    """The averaged spectrum as far as sites sent it; behind that it falls for want of columns."""
    sent = [len(site.singular_values) for site in sites if site.known.dropped > 0]
    if not sent:
        return average.spectrum
    return replace(average.spectrum, values=average.eigenvalues[: min(sent)])


def average_projections(sites: list[Summary], k: int) -> Summary:
    """The sum of the projections on each site's k leading directions."""
    cut = [site.truncate(k) for site in sites]
    equal = [site.known._replace(values=np.ones(len(site.directions))) for site in cut]
    return merge_in_tree([replace(s, known=known) for s, known in zip(cut, equal, strict=True)])


def _unweighted(
    fed: Federation, sites: list[Summary], average: Summary, weighted: Solution
) -> Solution:
    """The leading vectors of the averaged projections, ordered by the variance along them."""
    k = len(weighted.eigenvalues)
    V, _ = average_projections(sites, k).known.leading(k)
    variances = ((average.known.rows() @ V) ** 2).sum(axis=0)
    order = np.argsort(-variances, kind="stable")
    V = V[:, order]
    fed.report(1.0, lambda: V)
    # no bound: what is averaged does not know how much of the rows it stands for
    return replace(
        weighted,
        vectors=V,
        eigenvalues=variances[order],
        stopped="approximate",
        missing=1.0,
        angle_bound=1.0,
    )
