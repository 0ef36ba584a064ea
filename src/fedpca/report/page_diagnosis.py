"""Write the part of a page that says how many components there are, and which rows and sites stand out.

Without a diagnosis, this is what follows from the model: contributions, and the limits of T2 and Q. A
diagnosis adds the rank rules and the map of sites. The page must not tell how many rows a site has, so
it shows no share of the rows or of the total variance that belongs to one site.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedpca.estimators import FederatedPCA, StreamingPCA
from fedpca.estimators.diagnosis import Diagnosis
from fedpca.linalg.rank_rules import RankComparison
from fedpca.models.control_limits import ALPHA, ControlLimits
from fedpca.protocol.printable import printable
from fedpca.report.contents import feature_names
from fedpca.report.diagnosis import MAX_ANGLES, about_site, cos2_of, limits_of
from fedpca.report.diagnostic_displays import SiteMapDisplay, StabilityDisplay
from fedpca.report.markup import MAX_NAME, shown, table
from fedpca.solvers.site_map import SiteMap, SiteOnMap

MAX_COMPONENTS = 10  # components whose features are listed
MAX_SITES = 40  # sites that are listed
N_LEADING = 4  # features with the largest contributions to a component
N_PRINTED = 5  # rows of a table on paper, as in page.html
MAX_FEATURE = 24  # characters of a feature's name in a list of features


def diagnosis_part(fitted: FederatedPCA | StreamingPCA, found: Diagnosis | None) -> Iterator[str]:
    """Yield what follows from a model and, if there is a diagnosis, what it found."""
    yield from _contributions(fitted, found)
    if isinstance(fitted, FederatedPCA):
        yield _limits(limits_of(fitted if found is None else found, ALPHA))
    if found is not None:
        yield from _ranks(found.ranks)
        yield from _sites(found)


def site_plots(found: Diagnosis) -> list[tuple[str, Any]]:
    """Return titled plots of the sites; their marks have one size, which tells no row count."""
    if found.sites is None or len(found.sites.sites) > MAX_SITES:
        return []
    drawn = SiteMapDisplay.from_diagnosis(found, sized=False)
    return [
        ("How far each site is from the others", drawn),
        ("How far the components move without a site", StabilityDisplay.from_diagnosis(found)),
    ]


def _contributions(fitted: FederatedPCA | StreamingPCA, found: Diagnosis | None) -> Iterator[str]:
    contributions = fitted.contributions()
    cos2 = cos2_of(fitted) if found is None else found.cos2()
    lines = []
    for number, name in enumerate(contributions.components[:MAX_COMPONENTS], start=1):
        parts = []
        for feature, part in contributions.leading(name, N_LEADING).items():
            explained = "" if cos2 is None else f" ({cos2[feature][name]:.2f})"
            parts.append(f"{printable(feature, MAX_FEATURE)} {part:.0%}{explained}")
        lines.append((str(number), ", ".join(parts)))
    words = "The features that contribute most to each component"
    if cos2 is not None:
        words += "; in parentheses, the share of the feature's own variance that it explains (cos2)"
    yield f"<p>{words}:</p>"
    yield table(("component", "features"), lines, n_text=2, kind="diagnosis features")


def _limits(limits: ControlLimits | None) -> str:
    if limits is None:
        return "<p>The fit has too few rows for limits of T2 and Q.</p>"
    return (
        f"<p>Limits for new rows: T2 {limits.t2:.4g}, Q (SPE) {limits.q:.4g}, from the "
        f"{shown(limits.basis)}. If rows are normally distributed, {limits.alpha:.0%} of them are "
        "beyond each limit. Only the site that has a row can compare it.</p>"
    )


def _ranks(ranks: RankComparison) -> Iterator[str]:
    median = "" if ranks.consensus is None else f" Their median is {ranks.consensus}."
    yield f"<p>How many components each rule finds.{median}</p>"
    yield table(list(ranks.ranks), [list(map(str, ranks.ranks.values()))], kind="diagnosis")
    for name, reason in ranks.unknown.items():
        yield f'<p class="soft">Unknown: {shown(name)}, because: {shown(reason)}.</p>'


def _sites(found: Diagnosis) -> Iterator[str]:
    if found.sites is None:
        yield f"<p>There is no map of sites: {shown(found.why_no_sites)}</p>"
        return
    sites = dict(sorted(found.sites.sites.items(), key=lambda item: -item[1].angle_without))
    lines = [_line(name, site) for name, site in list(sites.items())[:MAX_SITES]]
    heads = ("site", "by its mean", "explained", "angles", "mean apart", "spread apart", "moves")
    yield (
        "<p>How the sites compare. By its mean: the share of the site's variance that its mean causes. "
        "Explained: the variance within the site that the components explain, as a share of what as "
        "many directions of its own would explain. Angles: between these directions and the "
        "components. Apart: 1 is chance. Moves: the angle by which the components move if the site is "
        "left out.</p>"
    )
    yield table(heads, lines, kind="diagnosis")
    yield from _odd(found, found.sites)
    if len(lines) > N_PRINTED:
        yield '<p class="paper">Printed: the sites that the components depend on most.</p>'


def _line(name: str, site: SiteOnMap) -> tuple[str, ...]:
    about = site.within + site.between
    moves = np.degrees(np.arcsin(min(1.0, site.angle_without)))
    return (
        printable(name, MAX_NAME),
        f"{site.between / about if about else 0.0:.1%}",
        f"{site.explained:.1%}",
        " ".join(f"{angle:.0f}°" for angle in site.angles[:MAX_ANGLES]),
        f"{site.means_apart:.2f}",
        f"{site.spreads_apart:.2f}",
        f"{moves:.2f}°",
    )


def _odd(found: Diagnosis, sites: SiteMap) -> Iterator[str]:
    names = feature_names(found.model)
    for site in sites.odd_sites[:MAX_SITES]:
        about = about_site(site, sites.sites[site], found, names)
        for kind, weights in about["odd"].items():
            listed = ", ".join(
                f"{shown(feature, MAX_NAME)} {weight:+.2f}" for feature, weight in weights.items()
            )
            words = f"{shown(site, MAX_NAME)} stands out in its {kind}, along {listed}."
            yield f'<p class="warning odd">{words}</p>'
