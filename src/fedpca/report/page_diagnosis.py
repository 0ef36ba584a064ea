"""Write the part of a page that says how many components there are, and which rows and sites stand out.

Without a diagnosis, this is what follows from the model: contributions, and the limits of T2 and Q. A
diagnosis adds the rank rules and the map of sites. The page must not tell how many rows a site has, so
it shows no share of the rows or of the total variance that belongs to one site.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedpca.estimators import FederatedPCA, StreamingPCA
from fedpca.estimators.diagnosis import LIMITS, Diagnosis, contributions, limits_section
from fedpca.facts import Records, find
from fedpca.linalg.rank_rules import RankComparison
from fedpca.report.diagnostic_displays import SiteMapDisplay, StabilityDisplay
from fedpca.report.markup import paragraphs, records_as_table, shown, table

MAX_CONTRIBUTIONS = 10  # components whose features are listed
MAX_COMPARED_SITES = 40  # sites that are listed
N_PRINTED = 5  # rows of a table on paper, as in page.html
COLUMNS = (
    *("site", "by_mean", "explained", "angles_degrees", "means_apart", "spreads_apart"),
    "angle_without_degrees",
)


def diagnosis_part(fitted: FederatedPCA | StreamingPCA, found: Diagnosis | None) -> Iterator[str]:
    """Yield what follows from a model and, if there is a diagnosis, what it found."""
    features, _ = contributions(fitted, None if found is None else found.cos2())
    yield f"<p>{shown(features.title)}:</p>"
    yield records_as_table(features, "diagnosis features", MAX_CONTRIBUTIONS)
    if isinstance(fitted, FederatedPCA):
        yield f"<p>{LIMITS}.</p>"
        yield from paragraphs(limits_section(fitted if found is None else found), 0)
        yield "<p>Only the site that has a row can compare it.</p>"
    if found is not None:
        yield from _ranks(found.ranks)
        yield from _facts_of_sites(found)


def site_plots(found: Diagnosis) -> list[tuple[str, Any]]:
    """Return titled plots of the sites; their marks have one size, which tells no row count."""
    if found.sites is None or len(found.sites.sites) > MAX_COMPARED_SITES:
        return []
    drawn = SiteMapDisplay.from_diagnosis(found, sized=False)
    return [
        ("How far each site is from the others", drawn),
        ("How far the components move without a site", StabilityDisplay.from_diagnosis(found)),
    ]


def _facts_of_sites(found: Diagnosis) -> Iterator[str]:
    """Yield how the sites compare, without the columns that would tell a site's share of the rows."""
    facts = found.facts()
    sites, cautions = find(facts, "sites", Records), find(facts, "warnings", Records)
    if sites is None or cautions is None:
        yield f"<p>There is no map of sites: {shown(found.why_no_sites)}</p>"
        return
    yield f"<p>How the sites compare. {shown(sites.note)}.</p>"
    yield records_as_table(sites.only(*COLUMNS), "diagnosis", MAX_COMPARED_SITES)
    for row in cautions.rows[:MAX_COMPARED_SITES]:
        yield f'<p class="warning odd">{shown(row[0])}.</p>'
    if len(sites.rows) > N_PRINTED:
        yield '<p class="paper">Printed: the sites that the components depend on most.</p>'


def _ranks(ranks: RankComparison) -> Iterator[str]:
    median = "" if ranks.consensus is None else f" Their median is {ranks.consensus}."
    yield f"<p>How many components each rule finds.{median}</p>"
    yield table(list(ranks.ranks), [list(map(str, ranks.ranks.values()))], kind="diagnosis")
    for name, reason in ranks.unknown.items():
        yield f'<p class="soft">Unknown: {shown(name)}, because: {shown(reason)}.</p>'
