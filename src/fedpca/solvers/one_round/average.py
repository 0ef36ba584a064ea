"""Average the sites' leading eigenspaces, weighted by eigenvalues, in one round after the mean.

    A~_t = (1/n) sum_i n_i U_i L_i U_i',    U_i L_i U_i' the t leading eigenpairs of site i's covariance

The columns ``U_i sqrt(L_i)`` work for every k <= t and for individual eigenvectors and eigenvalues.
They also make it possible to find the k after which the spectrum has its gap. Nobody needs to know that
k in advance: if the t columns reach beyond the gap, they are nearly as good as the pooled rows. For m
sites, the coordinator forms nothing larger than the m t columns and their Gram matrix.

``weights="unweighted"`` averages the projections onto the k leading eigenvectors, which loses the order
of the eigenvectors.

Source: Bhaskara and Wijewardena, "On distributed averaging for stochastic k-PCA" (2019), Algorithm 1
and section 4. In the paper, all sites have the same row count; here, each site is weighted by its row
count. The unweighted method is from Fan, Wang, Wang and Zhu, "Distributed estimation of principal
eigenspaces" (2019).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedpca.coordinator.federation import Federation
from fedpca.linalg.rank_rules import Spectrum
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import Script
from fedpca.solvers.contract import (
    Problem,
    Solution,
    after_moments,
    check_choice,
    moments_and_rank,
)
from fedpca.solvers.influence import report_summaries
from fedpca.solvers.one_round.merge import (
    asked_directions,
    check_site_components,
    decided_rank,
    directions_to_ask,
    gather_summaries,
    look_further,
    looks,
    solution_of,
    summarize_about,
    summarizing,
)
from fedpca.summary.summary import Summary, merge_in_tree

COLUMNS_PER_COMPONENT = 3  # directions that a site sends per component


@dataclass(frozen=True)
class Average:
    """Average the sites' leading eigenspaces.

    Parameters
    ----------
    site_components : int, float in (0, 1), {"auto", "mp", "gap"} or None
        The number of directions that each site sends, or a rule that the site uses to choose it. The
        default is three per component.
    weights : "eigenvalues" or "unweighted"
        Whether directions are weighted by their eigenvalues or equally.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> from fedpca.solvers import Average
    >>> rows = np.random.default_rng(0).normal(size=(90, 6)) * [4, 3, 1, 1, 1, 1]
    >>> sites = [rows[:50], rows[50:]]
    >>> pca = FederatedPCA(2, solver=Average(site_components=6), random_state=0).fit(sites)
    >>> pca.run_.solver, pca.run_.stop_reason
    ('average', 'exact')
    """

    name: ClassVar[str] = "average"
    guarantee: ClassVar[str] = "bounded"
    seen: ClassVar[tuple[str, ...]] = ("summarize_about",)

    site_components: Any = None
    weights: str = "eigenvalues"

    def __post_init__(self) -> None:
        check_site_components(self.site_components)
        check_choice("weights", self.weights, ("eigenvalues", "unweighted"))

    def script(self, plan: RunPlan) -> Script:
        values, bounds = asked_directions(plan, self.site_components, COLUMNS_PER_COMPONENT)
        if self.site_components is None and "n_components" in bounds:
            bounds["n_spare"] = bounds["n_components"]
        values["sends_spare"] = False
        part = summarizing(plan, summarize_about)
        looks = (summarize_about.name,)
        return after_moments(plan, part, looks=looks, values=values, bounds=bounds)

    def solve(self, fed: Federation, problem: Problem) -> Solution:
        """Return the leading eigenvectors of the average, without iterating."""
        moments, rank = moments_and_rank(fed, problem)

        def averaged(t: int) -> tuple[list[Summary], Summary]:
            # while reading its rows, a site tracks t spare directions, which it does not send
            fields = directions_to_ask(self.site_components, t, moments.d, n_spare=t)
            fields |= {"mean": moments.mean, "scale": moments.scale, "sends_spare": np.int64(False)}
            sites = gather_summaries(fed, summarize_about, t, **fields)
            return sites, merge_in_tree(sites)

        (sites, average), k = look_further(
            averaged,
            lambda answers, is_last: decided_rank(
                rank, replace(_trusted(*answers), n=moments.n), is_last
            ),
            looks(COLUMNS_PER_COMPONENT * rank.first_look, moments.d, self.site_components),
        )
        weighted = solution_of(fed, moments, average, k)
        if self.weights == "eigenvalues":
            report_summaries(fed, sites, average, weighted.vectors)
            return weighted
        return _unweighted(fed, sites, average, weighted)


def _trusted(sites: list[Summary], average: Summary) -> Spectrum:
    """Return the averaged spectrum, cut to the smallest number of directions that any site sent."""
    sent = [len(site.singular_values) for site in sites if site.known.dropped > 0]
    if not sent:
        return average.spectrum
    return replace(average.spectrum, values=average.eigenvalues[: min(sent)])


def average_projections(sites: list[Summary], k: int) -> Summary:
    """Sum the projections onto each site's k leading directions."""
    cut = [site.truncate(k) for site in sites]
    equal = [site.known._replace(values=np.ones(len(site.directions))) for site in cut]
    return merge_in_tree([replace(s, known=same) for s, same in zip(cut, equal, strict=True)])


def _unweighted(
    fed: Federation, sites: list[Summary], average: Summary, weighted: Solution
) -> Solution:
    """Return the leading vectors of the averaged projections, ordered by the variance along them."""
    k = len(weighted.eigenvalues)
    V, _ = average_projections(sites, k).known.leading(k)
    variances = ((average.known.rows() @ V) ** 2).sum(axis=0)
    order = np.argsort(-variances, kind="stable")
    V = V[:, order]
    fed.report(1.0, lambda: V)
    # projections do not show how much variance they capture, so there is no bound
    return replace(
        weighted,
        vectors=V,
        eigenvalues=variances[order],
        stop_reason="approximate",
        left_out=1.0,
        angle_bound=1.0,
    )
