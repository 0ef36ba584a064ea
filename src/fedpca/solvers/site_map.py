"""Compare the sites: where each one lies, how its rows spread, and how it moves the components.

Each site i sends a summary of its rows about its own mean: n_i, ``a_i = m_i - m``, and the leading
directions of its scatter S_i, all in the frame of the model. So the coordinator learns the same as
from the solver "merge", and a site that allows that solver by name admits this program.

    variance between sites   n_i |a_i|^2 / tr C,       within   tr S_i / tr C
    means apart              |a_i - a_rest|^2 / (tr W (1/n_i + 1/n_rest))
    spreads apart            |W_i - W|_F^2 / ((tr^2 W + tr W^2) (1/n_i + 1/n_rest))

W_i is the site's covariance. W and a_rest are the covariance and the mean of all other sites
together. The last two ratios are computed in scaled coordinates: each direction is divided by the
square root of ``v + u``, where v is its variance at the other sites, and u is the mean of these
variances over all directions. Thus, a direction with little variance counts too. If a site differs
from the others only by chance and rows are normally distributed, these two ratios are about 1; with
fewer rows than features, they are larger at all sites. How much they vary by chance follows from
``h = tr^2 W / tr W^2``, the number of directions that matter. A site's mean is farthest off in the
direction of ``a_i - a_rest``, and its spread in the direction along which W_i and W differ most.

Without site i, C loses S_i and what the site's mean adds (`fedpca.solvers.influence`). The leading
eigenvectors of what is left show how much the components depend on the site. Finding them takes no
further round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.linalg import subspace_angles

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import Outcome
from fedpca.coordinator.warm_start import WarmStart
from fedpca.errors import PolicyRefused
from fedpca.linalg.dense import orth, procrustes
from fedpca.models.linear import Model
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import question
from fedpca.protocol.script import Script, script, then
from fedpca.rows.in_memory import about_n_rows
from fedpca.rows.standardized import Frame
from fedpca.solvers.common_features import AGREEING
from fedpca.solvers.contract import after_moments, check_whole
from fedpca.solvers.diagnosis import moments_about
from fedpca.solvers.influence import SitePart, without_each
from fedpca.solvers.one_round.merge import SUMMARY, Merge, gather_summaries, impossible_summary
from fedpca.solvers.standardize import own_mean_of, standardize, standardize_sites
from fedpca.summary.from_rows import summarize_parts
from fedpca.summary.summary import Summary, merge_in_tree

if TYPE_CHECKING:
    from fedpca.site.site import Site

MAX_DIRECTIONS = 1000  # most directions that a site sends
MAX_COORDINATES = 600  # most coordinates in which covariances are compared
ODD_DEVIATIONS = 6.0  # an odd site's ratio is more standard deviations than this above 1
ODD_TIMES = 3.0  # an odd site's ratio is more than this many times the other sites' median


@dataclass(frozen=True)
class SiteOnMap:
    """How one site compares with the others.

    Parameters
    ----------
    rows : float
        The site's share of all rows, by weight.
    within, between : float
        The shares of the total variance that lie within the site and between its mean and the center.
    angles : ndarray of shape (min(k, r),)
        The angles between the site's own leading directions and the components, in degrees, in
        ascending order.
    explained : float
        The variance within the site that the components explain, as a share of what the same number of
        the site's own leading directions would explain.
    means_apart, spreads_apart : float
        How far the site's mean and its covariance are from those of all other sites. By chance
        alone, the distance is about 1.
    is_odd_in_mean, is_odd_in_spread : bool
        Whether the site's mean, or its covariance, stands out among the sites.
    mean_direction, spread_direction : ndarray of shape (d,)
        The unit vectors along which the site's mean and its covariance differ most from those of
        the other sites, in the model's scale.
    spread_change : float
        The site's variance along ``spread_direction``, minus the other sites' variance along it.
    angle_without : float
        The sine of the largest angle by which the components move if the site is left out.
    components_without : ndarray of shape (k, d)
        The components without the site, turned as close to the model's as possible.
    """

    rows: float
    within: float
    between: float
    angles: Array
    explained: float
    means_apart: float
    spreads_apart: float
    is_odd_in_mean: bool
    is_odd_in_spread: bool
    mean_direction: Array
    spread_direction: Array
    spread_change: float
    angle_without: float
    components_without: Array


@dataclass(frozen=True)
class SiteMap:
    """How the sites of a fit compare with each other.

    Parameters
    ----------
    sites : dict of str to SiteOnMap
        The result for each site that has rows, by the site's name.
    left_out : float
        The share of the variance that the sites' summaries left out; if it is zero, nothing here is
        approximate.
    outcome : Outcome
        How the run ended.
    """

    sites: Mapping[str, SiteOnMap]
    left_out: float
    outcome: Outcome

    @property
    def odd_sites(self) -> list[str]:
        """Return the sites that stand out, starting with the one farthest from the others."""
        odd = {
            name: max(each.means_apart, each.spreads_apart)
            for name, each in self.sites.items()
            if each.is_odd_in_mean or each.is_odd_in_spread
        }
        return sorted(odd, key=lambda name: -odd[name])


def map_sites(
    fed: Federation,
    start: WarmStart | None,
    *,
    model: Model,
    features: tuple[str, ...] | None,
    n_components: int,
    center: bool,
    scale: bool | str,
    missing: str,
) -> SiteMap:
    """Ask each site for its summary, and compare the sites."""
    _, moments = moments_about(fed, model, features, scale=scale, missing=missing)
    standardize_sites(fed, moments, n_components)
    wanted = min(n_components, moments.d)
    asked = gather_summaries(fed, describe_site, wanted, n_directions=np.int64(wanted))
    named = {name: each for name, each in zip(fed.record.sites, asked, strict=True) if each.n > 0}
    return compare_sites(named, model.components.T, is_centered=center)


@script("SiteMap")
def site_map_script(plan: RunPlan) -> Script:
    """Return what `map_sites` asks, in order."""
    wanted = plan.parameters.get("n_components")
    check_whole("n_components", wanted, 1, MAX_DIRECTIONS)
    if plan.is_private:
        raise PolicyRefused("a site map has no differentially private form")
    moments = after_moments(
        plan,
        standardize,
        describe_site,
        family=Merge.name,
        bounds={f"{describe_site.name}.n_directions": f"1..{wanted}"},
        sees=(describe_site.name,),
    )
    return replace(moments, order=then(AGREEING, moments.order))


@question(
    verb="gather",
    doing="describing the site's rows",
    asks={"n_directions": f"int64, 1..{MAX_DIRECTIONS}"},
    answers=SUMMARY,
    at_most={"r": "d"},
    check=impossible_summary,
)
def describe_site(site: Site, n_directions: Array) -> dict[str, Any]:
    """Summarize a site's rows about their own mean, and send this mean minus the common one.

    Both means are in the frame that the site has been given.
    """
    frame = site.recall(Frame)
    n, mean = own_mean_of(site)
    own = site.rows_in(replace(frame, mean=mean, sums=None, n_products=1))
    summary = summarize_parts(
        own.parts(),
        len(mean),
        int(n_directions),
        n_spare=0,
        n_rows=about_n_rows(site.rows),
        center=False,
    )
    away = (mean - frame.mean) / frame.scale if n else np.zeros(len(mean))
    return {**summary.to_arrays(), "mean": away}


def compare_sites(sites: Mapping[str, Summary], V: Array, *, is_centered: bool = True) -> SiteMap:
    """Return the map of sites from each site's summary about its own mean; V is ``(d, k)``."""
    parts = [SitePart(each.known.rows(), each.n, each.mean) for each in sites.values()]
    Q = _coordinates(list(sites.values()), V)
    rows = [each.rows @ Q for each in parts]
    seen = [SitePart(own, each.n, each.away @ Q) for own, each in zip(rows, parts, strict=True)]
    away = np.array([each.away for each in parts])
    n = np.array([each.n for each in parts])
    scatters = np.array([each.T @ each for each in rows])
    energies = np.array([each.energy for each in sites.values()])
    between = n * (away**2).sum(axis=1)
    total = float(energies.sum() + between.sum()) or 1.0
    left = list(without_each(seen, Q.T @ V, is_centered=is_centered))
    apart = [_apart(i, n, away, scatters, Q) for i in range(len(n))]
    h = [each.n_directions for each in apart]
    is_odd_in_mean = _stand_out([each.means for each in apart], h)
    is_odd_in_spread = _stand_out([each.spreads for each in apart], h)
    found = {}
    for i, (name, summary) in enumerate(sites.items()):
        own = apart[i]
        r = min(V.shape[1], int((summary.singular_values > 0).sum()))
        best = float(np.sum(summary.eigenvalues[: V.shape[1]]))
        angle, turned = left[i]
        found[name] = SiteOnMap(
            rows=float(n[i] / n.sum()),
            within=float(energies[i] / total),
            between=float(between[i] / total),
            angles=np.degrees(subspace_angles(V, summary.directions[:r].T))[::-1],
            explained=float(np.sum((parts[i].rows @ V) ** 2)) / best if best > 0 else 1.0,
            means_apart=own.means,
            spreads_apart=own.spreads,
            is_odd_in_mean=is_odd_in_mean[i],
            is_odd_in_spread=is_odd_in_spread[i],
            mean_direction=own.toward,
            spread_direction=Q @ own.along,
            spread_change=own.change,
            angle_without=angle,
            components_without=(Q @ turned @ procrustes(Q @ turned, V)).T,
        )
    kept = float(sum(np.vdot(each.rows, each.rows) for each in parts))
    left_out = max(0.0, float(energies.sum()) - kept) / total
    return SiteMap(found, left_out, Outcome("", "approximate" if left_out > 1e-9 else "exact"))


def _coordinates(sites: Sequence[Summary], V: Array) -> Array:
    """Return an orthonormal basis in which covariances are compared, ``(d, p)``.

    If there are many features, the basis spans only the components, the means, and the leading
    directions of all rows.
    """
    d, k = V.shape
    if d <= MAX_COORDINATES + k + len(sites):
        return np.eye(d)
    whole = merge_in_tree([each.resize(each.n_components, MAX_COORDINATES) for each in sites])
    return orth(np.vstack([V.T, [each.mean for each in sites], whole.directions]).T)


class _Apart(NamedTuple):
    """How far a site is from the others."""

    means: float
    spreads: float
    toward: Array  # (d,), from the others' mean to the site's
    along: Array  # (p,), the direction in which the covariances differ most
    change: float  # how much the site's variance along that direction exceeds the others'
    n_directions: float  # number of directions that matter at the other sites


def _apart(i: int, n: Array, away: Array, scatters: Array, Q: Array) -> _Apart:
    """Return how far site i is from the others.

    ``away``, ``(s, d)``, holds the sites' means, relative to the common mean. ``scatters``,
    ``(s, p, p)``, holds the sites' scatters in the coordinates of Q, ``(d, p)``.
    """
    others = n.sum() - n[i]
    if others <= 0:
        return _Apart(1.0, 1.0, np.zeros(away.shape[1]), np.zeros(scatters.shape[1]), 0.0, 1.0)
    toward = away[i] - (n @ away - n[i] * away[i]) / others
    distance = float(np.linalg.norm(toward))
    rest = (scatters.sum(axis=0) - scatters[i]) / others
    variances, U = np.linalg.eigh(rest)
    mean = float(variances.sum()) / min(len(rest), others)
    if mean <= 0:
        return _Apart(1.0, 1.0, toward / (distance or 1.0), U[:, -1], 0.0, 1.0)
    roots = np.sqrt(np.maximum(variances, 0.0) + mean)
    rest = np.diag(variances / roots**2)
    difference = (U.T @ scatters[i] @ U) / np.outer(roots, roots) / n[i] - rest
    values, vectors = np.linalg.eigh(difference)
    largest = int(np.abs(values).argmax())
    along = roots * vectors[:, largest]
    along /= np.linalg.norm(along)
    trace, squared = float(np.trace(rest)), float(np.vdot(rest, rest))
    chance = 1 / n[i] + 1 / others
    return _Apart(
        means=float(np.sum((toward @ Q @ U / roots) ** 2)) / (trace * chance),
        spreads=float(np.vdot(difference, difference)) / ((trace**2 + squared) * chance),
        toward=toward / (distance or 1.0),
        along=U @ along,
        change=float(along @ (roots * (difference @ (roots * along)))),
        n_directions=trace**2 / squared,
    )


def _stand_out(apart: Sequence[float], directions: Sequence[float]) -> list[bool]:
    """Return which sites are farther off than chance explains, and much farther off than most sites."""
    odd = []
    for i, (ratio, h) in enumerate(zip(apart, directions, strict=True)):
        others = [each for j, each in enumerate(apart) if j != i]
        is_beyond_chance = ratio > 1 + ODD_DEVIATIONS * np.sqrt(2 / h)
        odd.append(bool(others and is_beyond_chance and ratio > ODD_TIMES * np.median(others)))
    return odd
