"""Write a page about a model: who was asked what, what was found, and what that cost and revealed.

The page is one file. It loads nothing from elsewhere. Unless the caller passes a diagnosis, it contains
nothing that the model file lacks. People other than the coordinator may read it, so it does not show
small numbers of rows: neither a count below ``min_count``, nor the length of an array if a site's rows
determine that length.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import metadata, resources
from numbers import Integral
from string import Template
from typing import Any

import numpy as np

from fedpca._version import __version__
from fedpca.coordinator.ledger import TrafficTotal
from fedpca.coordinator.record import RunRecord
from fedpca.errors import FedpcaError, InputError
from fedpca.estimators import FederatedPCA, PersonalizedPCA, RobustPCA, StreamingPCA
from fedpca.estimators.diagnosis import Diagnosis
from fedpca.facts import (
    SIZE,
    Component,
    Fact,
    Records,
    Section,
    Sections,
    find,
    records_of_components,
    size,
)
from fedpca.protocol.question import find_question
from fedpca.report.contents import Fitted, described_components, run_of
from fedpca.report.displays import (
    ConvergenceDisplay,
    LoadingsDisplay,
    ScreeDisplay,
    SiteSharesDisplay,
    site_share_records,
)
from fedpca.report.drawing import as_svg
from fedpca.report.markup import (
    MAX_SHOWN_CHARS,
    as_text,
    paragraphs,
    records_as_table,
    script_hash,
    shown,
    sortable,
    table,
)
from fedpca.report.page_diagnosis import diagnosis_part, site_plots
from fedpca.site.policy import JOINING
from fedpca.summary.summary import Summary

MAX_LOADINGS = 2000  # features in the table of loadings; `fedpca info --csv` prints all
MAX_LOADINGS_COLUMNS = 10  # columns in the table of loadings
MAX_PLOTS = 4  # components whose loadings are drawn
# if there are more, their shares are not drawn, and their names are not listed
MAX_NAMED_SITES = 40
PACKAGES = ("numpy", "scipy", "scikit-learn")

CARDS = ("n_rows", "n_features", "n_components", "explained")  # facts at the top of the page


def report_page(
    fitted: Fitted | Summary,
    name: str,
    min_count: int = JOINING.min_count,
    diagnosis: Diagnosis | None = None,
) -> str:
    """Return the page about a model or summary; ``name`` is the name of its file.

    The page does not show counts of rows below ``min_count``. With the `Diagnosis` of a `FederatedPCA`,
    it also shows what the diagnosis found.
    """
    if not isinstance(min_count, Integral) or isinstance(min_count, bool) or min_count < 1:
        raise InputError(f"min_count={min_count!r} must be a whole number, at least 1")
    kind = type(fitted).__name__
    page = resources.files("fedpca.report").joinpath("page.html").read_text("utf-8")
    return Template(page).substitute(
        title=shown(name),
        policy=f"default-src 'none'; script-src '{script_hash(page)}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        subtitle=f"{kind}, read with fedpca {__version__}",
        body="\n".join(_sections(fitted, name, min_count, diagnosis)),
    )


def _sections(
    fitted: Fitted | Summary, name: str, min_count: int, diagnosis: Diagnosis | None
) -> Iterator[str]:
    facts, record = fitted.facts(), run_of(fitted)
    about, run = _section(facts, ""), _section(facts, "run")
    yield _cards(about, run, min_count)
    cautions = find(facts, "warnings", Records)
    for row in () if cautions is None else cautions.rows:
        yield f'<p class="warning">{shown(row[0])}</p>'
    components = described_components(facts)
    if components:
        yield "<h2>Components</h2>"
        columns = ("site", "component", "variance", "share", "cumulative")
        yield records_as_table(records_of_components(components).only(*columns), "short")
    yield _plots(fitted, components, record, diagnosis)
    if components:
        yield "<h2>Loadings</h2>"
        yield from _loadings(components)
    if isinstance(fitted, FederatedPCA | StreamingPCA):
        yield "<h2>Diagnosis</h2>"
        yield from diagnosis_part(fitted, diagnosis)
    if any(fact.key == "threshold" for fact in about.facts):
        yield "<h2>Outliers</h2>"
        outliers = about["threshold"], about["n_left_out"]
        yield from paragraphs(Section("", outliers), min_count)
    yield "<h2>How certain this is</h2>"
    yield from _certificate(facts, run, min_count)
    if run.facts:
        yield "<h2>What was asked, and of whom</h2>"
        yield from _asked(record)
        yield "<h2>What crossed</h2>"
        yield from _crossed(record)
        yield "<h2>Privacy</h2>"
        yield from _privacy(facts, record, min_count)
    yield "<h2>How to reproduce</h2>"
    yield from _reproduce(fitted, name, record)


def _section(facts: Sections, key: str) -> Section:
    return find(facts, key, Section) or Section(key, ())


def _cards(about: Section, run: Section, min_count: int) -> str:
    """Return what matters most, one card for each fact."""
    cards = [about[key] for key in CARDS]
    if run.facts:
        n_bytes = run["bytes_up"].value + run["bytes_down"].value
        exchanged = Fact("exchanged", n_bytes, SIZE, "data exchanged")
        cards += [run["n_sites"], run["solver"], run["rounds"], exchanged]
    items = "".join(
        f"<div><dt>{shown(fact.words)}</dt><dd>{shown(as_text(fact, min_count))}</dd></div>"
        for fact in cards
    )
    return f'<dl class="facts">{items}</dl>'


def _plots(
    fitted: Fitted | Summary,
    components: Sequence[Component],
    run: RunRecord,
    diagnosis: Diagnosis | None,
) -> str:
    drawn: list[tuple[str, Any]] = []
    if any(component.site is None for component in components):
        scree = ScreeDisplay.from_estimator(fitted, diagnosis=diagnosis)
        drawn.append(("Variance explained", scree))
    for number, component in enumerate(components[:MAX_PLOTS]):
        title = f"Features with the largest loadings on component {component.title}"
        drawn.append((title, LoadingsDisplay.from_estimator(fitted, number, n_features=10)))
    if len(run.sites) <= MAX_NAMED_SITES:
        shares = site_share_records(fitted.facts())
        if shares is not None:
            drawn.append((shares.title, SiteSharesDisplay.from_estimator(fitted)))
    if run.history:
        drawn.append(("The rounds of the fit", ConvergenceDisplay.from_estimator(fitted)))
    if diagnosis is not None:
        drawn += site_plots(diagnosis)
    figures = (
        f"<figure>{as_svg(display.figure_, title)}<figcaption>{shown(title)}</figcaption></figure>"
        for title, display in drawn
    )
    return f'<div class="plots">{"".join(figures)}</div>'


def _loadings(components: Sequence[Component]) -> Iterator[str]:
    columns, names = list(components[:MAX_LOADINGS_COLUMNS]), components[0].loadings.names
    strength = np.max([np.abs(c.loadings.array) for c in columns], axis=0)
    order = np.argsort(-strength, kind="stable")[:MAX_LOADINGS]
    left_out = []
    if len(order) < len(names):
        left_out.append(f"the {len(order):,} of {len(names):,} features with the largest loadings")
    if len(columns) < len(components):
        left_out.append(f"{len(columns)} of {len(components):,} components")
    if left_out:
        words = " and ".join(left_out)
        yield f"<p>The table has {words}; <code>fedpca info --csv</code> prints all.</p>"
    yield (
        '<p class="screen"><label>Filter features: <input type="search" data-filters="loadings">'
        '</label> <span class="soft" role="status" data-counts="loadings"></span></p>'
    )
    heads = ("feature", *(c.title for c in columns))
    lines = ((names[j], *(float(c.loadings.array[j]) for c in columns)) for j in order)
    yield sortable("loadings", heads, lines)
    yield '<p class="paper">Printed: the features with the largest loadings.</p>'


def _certificate(facts: Sections, run: Section, min_count: int) -> Iterator[str]:
    """State how far the components may be from the exact ones."""
    if run.facts:
        keys = ("stop_reason", "angle_bound", "left_out", "n_certain")
        known = [fact for fact in _section(facts, "").facts if fact.key == "misalignment"]
        yield from paragraphs(Section("", (*(run[key] for key in keys), *known)), min_count)
        return
    certainty = _section(facts, "certainty")
    if not certainty.facts:
        yield "<p>This file has a site's own part of a model, without the record of the run.</p>"
    yield from paragraphs(certainty, min_count)


def _asked(run: RunRecord) -> Iterator[str]:
    """List the questions with the numbers of sites that answered."""
    lost = f"; {len(run.lost):,} were lost on the way" if run.lost else ""
    yield f"<p>{len(run.sites):,} sites are behind the result{lost}.</p>"
    uses = {t.question: t.how for t in run.ledger.totals(None) if t.direction == "up"}
    n_rounds = Counter(entry["question"] for entry in run.history)
    n_sites = {entry["question"]: entry["sites"] for entry in run.history}
    lines = [
        (_doing(question), question, uses.get(question, ""), count, int(n_sites[question]))
        for question, count in n_rounds.items()
    ]
    heads = ("sites were", "question", "answers", "rounds", "sites")
    yield table(heads, lines, n_text=3, kind="questions")


def _doing(question: str) -> str:
    """Return a question in words, or its name if it comes from a package that is not installed."""
    try:
        return find_question(question).doing
    except FedpcaError:
        return question


def _crossed(run: RunRecord) -> Iterator[str]:
    yield (
        f"<p>{size(run.bytes_up)} went from the sites to the coordinator and {size(run.bytes_down)} "
        f"back, in {run.rounds} rounds.</p>"
    )
    together: dict[tuple[Any, ...], tuple[int, int]] = {}
    for total in run.ledger.totals(None):
        key = (total.question, total.direction, total.field, _shape(total), total.how)
        messages, crossed = together.get(key, (0, 0))
        together[key] = (messages + total.messages, crossed + total.bytes)
    lines = [(*key, *numbers) for key, numbers in together.items()]
    yield records_as_table(replace(run.ledger.facts(), rows=lines), "long")
    yield '<p class="paper">Printed: the first lines.</p>'


def _shape(total: TrafficTotal) -> tuple[Any, ...]:
    """Return a shape, with a letter for each length that a site's rows may determine."""
    named: tuple[str, ...] = ()
    bounded: set[str] = set()
    if total.direction == "up":
        try:
            question = find_question(total.question)
        except FedpcaError:
            return ("?",) * len(total.shape)
        declared = question.answers.get(total.field)
        bounded = set(question.at_most)
        named = () if declared is None else declared.dimensions
    dimensions = named if len(named) == len(total.shape) else ("",) * len(total.shape)
    return tuple(
        name if name in bounded else length
        for name, length in zip(dimensions, total.shape, strict=True)
    )


def _privacy(facts: Sections, run: RunRecord, min_count: int) -> Iterator[str]:
    uses = {t.how for t in run.ledger.totals(None)}
    if "seen" in uses:
        seen = {t.question for t in run.ledger.totals(None) if t.how == "seen"}
        yield f"<p>The coordinator read each site's answer to: {shown(', '.join(sorted(seen)))}.</p>"
    if "summed" in uses:
        yield (
            "<p>Of all other answers, the program used only the total over sites. Without secure sums, "
            "the coordinator's machine received each one.</p>"
        )
    for key in ("run.secure", "run.privacy"):
        section = _section(facts, key)
        if section.facts:
            yield f"<p>{shown(section.title)}.</p>"
        yield from paragraphs(section, min_count)
    if not run.privacy:
        yield "<p>No noise was added, so the result is not differentially private.</p>"
    proofs = find(facts, "run.proofs", Records)
    if proofs is not None and proofs.rows:
        yield (
            "<p>Sites signed their answers; <code>fedpca ledger verify</code> compares them with a "
            "site's ledger.</p>"
        )
        yield records_as_table(proofs, "short")


def _reproduce(fitted: Fitted | Summary, name: str, run: RunRecord) -> Iterator[str]:
    versions = [f"{package} {metadata.version(package)}" for package in PACKAGES]
    if not isinstance(fitted, Summary):
        seed = f"  # seed of the run: {run.seed}" if run.history else ""
        yield f"<pre>{shown(' '.join(repr(fitted).split()))}{seed}</pre>"
    if run.history and len(run.sites) <= MAX_NAMED_SITES:
        yield f"<p>Sites: {', '.join(shown(site, MAX_SHOWN_CHARS) for site in run.sites)}</p>"
    yield f"<pre>{_commands(fitted, name)}</pre>"
    yield (
        f'<p class="soft">This page was written by fedpca {__version__} with {", ".join(versions)}, '
        f"Python {platform.python_version()}.</p>"
    )


def _commands(fitted: Fitted | Summary, name: str) -> str:
    """Return the commands that show the numbers on the page."""
    file = shown(name)
    lines = [f"fedpca info {file}"]
    if isinstance(fitted, FederatedPCA | PersonalizedPCA | RobustPCA):
        lines += [f"fedpca info {file} --ledger", f"fedpca transform {file} ROWS -o scores.parquet"]
    return "\n".join(lines)
