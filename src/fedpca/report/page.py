"""Write a page about a model: what was asked, of whom, what was found, and what it cost and revealed.

The page is one file. It loads nothing from elsewhere, and contains nothing that the model file lacks.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib import metadata, resources
from string import Template
from typing import Any

import numpy as np

from fedpca._version import __version__
from fedpca.coordinator.record import RunRecord
from fedpca.estimators import FederatedPCA, PersonalizedPCA, RobustPCA
from fedpca.report.contents import Component, Fitted, components_of, feature_names
from fedpca.report.displays import (
    ConvergenceDisplay,
    LoadingsDisplay,
    ScreeDisplay,
    SiteSharesDisplay,
)
from fedpca.report.drawing import as_svg
from fedpca.report.tables import angle_in_words, privacy_in_words
from fedpca.summary.summary import Summary

MAX_LOADINGS = 2000  # features in the table of loadings; info --csv has all
MAX_COMPONENTS = 10  # columns in the table of loadings
MAX_PLOTS = 4  # components whose loadings are drawn
MAX_SITES = 100
PACKAGES = ("numpy", "scipy", "scikit-learn")

STOPPED = {
    "exact": "The components are exactly those of the pooled rows, up to rounding.",
    "converged": "The solver converged to the components of the pooled rows.",
    "approximate": "The solver leaves something out in exchange for few rounds.",
    "uncertain": "Rounding hides some components; only the certain ones can be trusted.",
    "max_rounds": "The solver ran out of rounds before it reached its tolerance.",
    "stalled": "The solver stopped because it made no more progress.",
}


def report_page(fitted: Fitted | Summary, name: str) -> str:
    """Return the page about a model or summary, whose file has this name."""
    kind = type(fitted).__name__
    page = resources.files("fedpca.report").joinpath("page.html").read_text("utf-8")
    return Template(page).substitute(
        title=escape(name),
        subtitle=f"{kind}, read with fedpca {__version__}",
        body="\n".join(_sections(fitted, name)),
    )


def _sections(fitted: Fitted | Summary, name: str) -> Iterator[str]:
    run: RunRecord = getattr(fitted, "run_", RunRecord())
    yield _facts(fitted, run)
    yield from (f'<p class="warning">{escape(text)}</p>' for text in _warnings(fitted, run))
    components = components_of(fitted)
    yield "<h2>Components</h2>"
    yield _components_table(components)
    yield _plots(fitted, components, run)
    yield "<h2>Loadings</h2>"
    yield from _loadings(components, feature_names(fitted))
    if run.history:
        yield "<h2>How certain this is</h2>"
        yield from _certificate(run)
        yield "<h2>What crossed</h2>"
        yield from _crossed(run)
        yield "<h2>Privacy</h2>"
        yield from _privacy(run)
    yield "<h2>How to reproduce</h2>"
    yield from _reproduce(fitted, name, run)


def _facts(fitted: Fitted | Summary, run: RunRecord) -> str:
    n = fitted.n if isinstance(fitted, Summary) else _n_rows(fitted)
    d = fitted.n_features if isinstance(fitted, Summary) else fitted.n_features_in_
    components = components_of(fitted)
    explained = sum(float(c.share) for c in components if c.site is None)
    facts = {
        "rows": f"{n:,.10g}",
        "features": f"{d:,}",
        "components": str(sum(c.site is None for c in components)),
        "variance explained": f"{explained:.1%}",
    }
    if run.history:
        facts |= {
            "sites": f"{len(run.sites):,}",
            "solver": run.solver,
            "rounds": f"{run.rounds:,}",
            "data exchanged": _size(run.bytes_up + run.bytes_down),
        }
    items = "".join(f"<div><dt>{k}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items())
    return f'<dl class="facts">{items}</dl>'


def _n_rows(fitted: Fitted) -> float:
    seen = getattr(fitted, "n_samples_seen_", None)
    return float(fitted.n_samples_ if seen is None else seen)


def _warnings(fitted: Fitted | Summary, run: RunRecord) -> Iterator[str]:
    if run.stop_reason in ("uncertain", "max_rounds", "stalled"):
        yield STOPPED[run.stop_reason]
    if run.privacy and run.n_certain < len(components_of(fitted)):
        yield f"Only {run.n_certain} components stand out from the noise that protects rows."
    for loss in run.lost:
        yield f"Lost in round {loss['round']}: {loss['reason']}"
    if run.advice:
        yield run.advice
    ambiguity = getattr(fitted, "ambiguity_", None)
    if ambiguity:
        yield "Different shared components are equally good; see ambiguity_ of the model."


def _components_table(components: Sequence[Component]) -> str:
    lines: list[tuple[str, ...]] = []
    together: dict[str | None, float] = {}
    for component in components:
        site = component.site
        together[site] = together.get(site, 0.0) + float(component.share)
        label = component.name if site is None else f"{site} {component.name}"
        lines.append(
            (label, f"{component.variance:.6g}", f"{component.share:.2%}", f"{together[site]:.2%}")
        )
    return _table(("component", "variance", "share", "cumulative"), lines)


def _plots(fitted: Fitted | Summary, components: Sequence[Component], run: RunRecord) -> str:
    drawn: list[tuple[str, Any]] = [("Variance explained", ScreeDisplay.from_estimator(fitted))]
    for number in range(min(MAX_PLOTS, len(components))):
        title = f"Features with the largest loadings on component {components[number].name}"
        drawn.append((title, LoadingsDisplay.from_estimator(fitted, number, n_features=10)))
    if len(run.sites) <= MAX_SITES and _has_shares(fitted):
        title = "How much of each site's variance is explained"
        drawn.append((title, SiteSharesDisplay.from_estimator(fitted)))
    if run.history:
        drawn.append(("The rounds of the fit", ConvergenceDisplay.from_estimator(fitted)))
    figures = (
        f"<figure>{as_svg(display.figure_)}<figcaption>{escape(title)}</figcaption></figure>"
        for title, display in drawn
    )
    return f'<div class="plots">{"".join(figures)}</div>'


def _has_shares(fitted: Fitted | Summary) -> bool:
    shares = ("site_variance_", "site_variance_ratio_")
    return any(getattr(fitted, name, None) for name in shares)


def _loadings(components: Sequence[Component], names: Sequence[str]) -> Iterator[str]:
    shown = list(components[:MAX_COMPONENTS])
    strength = np.max([np.abs(c.loadings) for c in shown], axis=0)
    order = np.argsort(-strength, kind="stable")[:MAX_LOADINGS]
    if len(order) < len(names):
        yield (
            f"<p>The {len(order):,} of {len(names):,} features with the largest loadings; "
            "<code>fedpca info --csv</code> prints all.</p>"
        )
    yield (
        '<p class="screen"><label>Filter features: <input type="search" data-filters="loadings">'
        "</label></p>"
    )
    titles = [c.name if c.site is None else f"{c.site} {c.name}" for c in shown]
    lines = ((names[j], *(float(c.loadings[j]) for c in shown)) for j in order)
    yield _sortable("loadings", ("feature", *titles), lines)


def _certificate(run: RunRecord) -> Iterator[str]:
    yield f"<p>{escape(STOPPED.get(run.stop_reason, run.stop_reason))}</p>"
    angle = angle_in_words(run.angle_bound)
    yield f"<p>{escape(angle[0].upper() + angle[1:])}.</p>"
    if run.n_certain:
        yield f"<p>{run.n_certain} components are certain.</p>"


def _crossed(run: RunRecord) -> Iterator[str]:
    yield (
        f"<p>{_size(run.bytes_up)} went from the sites to the coordinator and {_size(run.bytes_down)} "
        f"back, in {run.rounds} rounds.</p>"
    )
    lines = (
        (
            t.question,
            t.direction,
            t.field,
            " x ".join(map(str, t.shape)),
            t.how,
            t.messages,
            t.bytes,
        )
        for t in run.ledger.totals(None)
    )
    heads = ("question", "direction", "field", "shape", "use", "messages", "bytes")
    yield _table(heads, lines, n_text=5)


def _privacy(run: RunRecord) -> Iterator[str]:
    uses = {t.how for t in run.ledger.totals(None)}
    if "seen" in uses:
        seen = {t.question for t in run.ledger.totals(None) if t.how == "seen"}
        yield f"<p>The coordinator read each site's answer to: {escape(', '.join(sorted(seen)))}.</p>"
    if "summed" in uses:
        yield (
            "<p>Of all other answers, the program used only the total over sites. Without secure sums, "
            "the coordinator's machine received each one.</p>"
        )
    if run.secure:
        yield (
            f"<p>Sums were secure: the coordinator could read only totals over {len(run.sites)} sites. "
            f"Hash of their roster: <code>{escape(run.secure['roster'])}</code></p>"
        )
    if run.privacy:
        text = privacy_in_words(run.privacy)
        yield f"<p>{escape(text[0].upper() + text[1:])}.</p>"
    else:
        yield "<p>No noise was added, so the result is not differentially private.</p>"
    if run.proofs:
        yield (
            "<p>Sites signed their answers; <code>fedpca ledger verify</code> compares them with a "
            "site's ledger.</p>"
        )
        lines = ((site, proof["key"], proof["head"]) for site, proof in run.proofs.items())
        yield _table(("site", "fingerprint of its key", "head of its ledger"), lines, n_text=3)


def _reproduce(fitted: Fitted | Summary, name: str, run: RunRecord) -> Iterator[str]:
    versions = [f"{package} {metadata.version(package)}" for package in PACKAGES]
    if not isinstance(fitted, Summary):
        seed = f"  # seed of the run: {run.seed}" if run.history else ""
        yield f"<pre>{escape(repr(fitted))}{seed}</pre>"
    if run.history and len(run.sites) <= MAX_SITES:
        yield f"<p>Sites: {escape(', '.join(run.sites))}</p>"
    yield f"<pre>{escape(_commands(fitted, name))}</pre>"
    yield (
        f'<p class="soft">This page was written by fedpca {__version__} with {", ".join(versions)}, '
        f"Python {platform.python_version()}.</p>"
    )


def _commands(fitted: Fitted | Summary, name: str) -> str:
    """Return the commands that show the same numbers."""
    lines = [f"fedpca info {name}"]
    if isinstance(fitted, FederatedPCA | PersonalizedPCA | RobustPCA):
        lines += [f"fedpca info {name} --ledger", f"fedpca transform {name} ROWS -o scores.parquet"]
    return "\n".join(lines)


def _table(heads: Sequence[str], lines: Iterable[Sequence[Any]], n_text: int = 1) -> str:
    top = "".join(f"<th{_text(i, n_text)}>{escape(head)}</th>" for i, head in enumerate(heads))
    rows = "".join(
        "<tr>"
        + "".join(f"<td{_text(i, n_text)}>{_cell(v)}</td>" for i, v in enumerate(line))
        + "</tr>"
        for line in lines
    )
    body = f"<thead><tr>{top}</tr></thead><tbody>{rows}</tbody>"
    return f'<div class="table"><table>{body}</table></div>'


def _sortable(name: str, heads: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """Return a table of names and numbers, which a click on a column's title sorts by size."""
    top = "".join(
        f"<th{_text(i, 1)}><button>{escape(head)}</button></th>" for i, head in enumerate(heads)
    )
    rows = "".join(
        f'<tr><td class="text">{escape(line[0])}</td>'
        + "".join(f'<td data-value="{v!r}">{v:+.3f}</td>' for v in line[1:])
        + "</tr>"
        for line in lines
    )
    body = f"<thead><tr>{top}</tr></thead><tbody>{rows}</tbody>"
    return f'<div class="table"><table class="sortable {name}" id="{name}">{body}</table></div>'


def _text(position: int, n_text: int) -> str:
    return ' class="text"' if position < n_text else ""


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else escape(str(value))


def _size(n_bytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} bytes"
