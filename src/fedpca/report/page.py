"""Write a page about a model: who was asked what, what was found, and what that cost and revealed.

The page is one file. It loads nothing from elsewhere, and contains nothing that the model file lacks.
People other than the coordinator may read it, so it does not show small numbers of rows: neither a
count below ``min_count``, nor the length of an array if a site's rows determine that length.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import metadata, resources
from numbers import Integral
from string import Template
from typing import Any

import numpy as np

from fedpca._version import __version__
from fedpca.coordinator.ledger import Total
from fedpca.coordinator.record import RunRecord
from fedpca.errors import FedpcaError, InputError
from fedpca.estimators import FederatedPCA, PersonalizedPCA, RobustPCA
from fedpca.protocol.question import find_question
from fedpca.report.contents import (
    Component,
    Fitted,
    components_of,
    feature_names,
    n_components_of,
)
from fedpca.report.displays import (
    ConvergenceDisplay,
    LoadingsDisplay,
    ScreeDisplay,
    SiteSharesDisplay,
)
from fedpca.report.drawing import as_svg
from fedpca.report.markup import MAX_NAME, script_hash, shown, sortable, table
from fedpca.report.remaining import size
from fedpca.report.tables import angle_in_words, privacy_in_words
from fedpca.site.policy import JOINING
from fedpca.summary.summary import Summary

MAX_LOADINGS = 2000  # features in the table of loadings; `fedpca info --csv` prints all
MAX_COMPONENTS = 10  # columns in the table of loadings
MAX_PLOTS = 4  # components whose loadings are drawn
MAX_SITES = 40  # if there are more, their shares are not drawn, and their names are not listed
PACKAGES = ("numpy", "scipy", "scikit-learn")

STOPPED = {
    "exact": "The components are exactly those of the pooled rows, up to rounding.",
    "converged": "The solver converged to the components of the pooled rows.",
    "approximate": "The solver leaves something out in exchange for few rounds.",
    "uncertain": "Rounding hides some components; only the certain ones can be trusted.",
    "within-noise": "The variances of some components are within each other's sampling errors.",
    "max_rounds": "The solver ran out of rounds before it reached its tolerance.",
    "stalled": "The solver stopped because it made no more progress.",
}
ROBUST_STOPPED = {
    "exact": "The low-rank part is exact: apart from outliers, nothing is left of the rows.",
    "converged": "The solver converged; outliers and noise are outside the components.",
}
PERSONALIZED_STOPPED = {
    "converged": "The solver converged to a point where no small change is better.",
}


def report_page(fitted: Fitted | Summary, name: str, min_count: int = JOINING.min_count) -> str:
    """Return the page about a model or summary; ``name`` is the name of its file.

    The page does not show counts of rows below ``min_count``.
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
        body="\n".join(_sections(fitted, name, min_count)),
    )


def _sections(fitted: Fitted | Summary, name: str, min_count: int) -> Iterator[str]:
    run: RunRecord = getattr(fitted, "run_", RunRecord())
    yield _facts(fitted, run, min_count)
    yield from (f'<p class="warning">{shown(text)}</p>' for text in _warnings(fitted, run))
    components = components_of(fitted)
    if components:
        yield "<h2>Components</h2>"
        yield _components_table(components)
    yield _plots(fitted, components, run)
    if components:
        yield "<h2>Loadings</h2>"
        yield from _loadings(components, feature_names(fitted))
    if isinstance(fitted, RobustPCA):
        yield "<h2>Outliers</h2>"
        yield from _outliers(fitted, min_count)
    yield "<h2>How certain this is</h2>"
    yield from _certificate(fitted, run)
    if run.history:
        yield "<h2>What was asked, and of whom</h2>"
        yield from _asked(run)
        yield "<h2>What crossed</h2>"
        yield from _crossed(run)
        yield "<h2>Privacy</h2>"
        yield from _privacy(run)
    yield "<h2>How to reproduce</h2>"
    yield from _reproduce(fitted, name, run)


def _count(n: float, min_count: int) -> str:
    """Return a number of rows as text, but hide a number below ``min_count``."""
    return f"fewer than {min_count}" if 0 < n < min_count else f"{n:,.10g}"


def _facts(fitted: Fitted | Summary, run: RunRecord, min_count: int) -> str:
    n = fitted.n if isinstance(fitted, Summary) else _n_rows(fitted)
    d = fitted.n_features if isinstance(fitted, Summary) else fitted.n_features_in_
    components = components_of(fitted)
    explained = sum(float(c.share) for c in components if c.site is None)
    facts = {
        "rows": _count(n, min_count),
        "features": f"{d:,}",
        "components": str(sum(c.site is None for c in components)),
        "variance explained": f"{explained:.1%}",
    }
    if run.history:
        facts |= {
            "sites": f"{len(run.sites):,}",
            "solver": run.solver,
            "rounds": f"{run.rounds:,}",
            "data exchanged": size(run.bytes_up + run.bytes_down),
        }
    items = "".join(f"<div><dt>{k}</dt><dd>{shown(v)}</dd></div>" for k, v in facts.items())
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
    if getattr(fitted, "ambiguity_", None):
        yield "Different shared components are equally good; see ambiguity_ of the model."
    for site in getattr(fitted, "corrupted_sites_", ()):
        yield f"So many entries of {site} are outliers that the scores of its rows mean little."


def _components_table(components: Sequence[Component]) -> str:
    lines: list[tuple[str, ...]] = []
    together: dict[str | None, float] = {}
    for component in components:
        site = component.site
        together[site] = together.get(site, 0.0) + float(component.share)
        title = component.name if site is None else f"{site} {component.name}"
        lines.append(
            (title, f"{component.variance:.6g}", f"{component.share:.2%}", f"{together[site]:.2%}")
        )
    return table(("component", "variance", "share", "cumulative"), lines, kind="short")


def _plots(fitted: Fitted | Summary, components: Sequence[Component], run: RunRecord) -> str:
    drawn: list[tuple[str, Any]] = []
    if any(component.site is None for component in components):
        drawn.append(("Variance explained", ScreeDisplay.from_estimator(fitted)))
    for number, component in enumerate(components[:MAX_PLOTS]):
        of = component.name if component.site is None else f"{component.name} of {component.site}"
        title = f"Features with the largest loadings on component {of}"
        drawn.append((title, LoadingsDisplay.from_estimator(fitted, number, n_features=10)))
    if len(run.sites) <= MAX_SITES:
        title = _title_of_shares(fitted)
        if title:
            drawn.append((title, SiteSharesDisplay.from_estimator(fitted)))
    if run.history:
        drawn.append(("The rounds of the fit", ConvergenceDisplay.from_estimator(fitted)))
    figures = (
        f"<figure>{as_svg(display.figure_, title)}<figcaption>{shown(title)}</figcaption></figure>"
        for title, display in drawn
    )
    return f'<div class="plots">{"".join(figures)}</div>'


def _title_of_shares(fitted: Fitted | Summary) -> str:
    """Return a title for what is known about each site, or an empty string if nothing is known."""
    titles = {
        "site_variance_": "What is shared and what is local at each site",
        "site_variance_ratio_": "How much of each site's variance is explained",
        "sparse_share_": "Outliers at each site",
    }
    return next((title for name, title in titles.items() if getattr(fitted, name, None)), "")


def _loadings(components: Sequence[Component], names: Sequence[str]) -> Iterator[str]:
    columns = list(components[:MAX_COMPONENTS])
    strength = np.max([np.abs(c.loadings) for c in columns], axis=0)
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
    titles = [c.name if c.site is None else f"{c.site} {c.name}" for c in columns]
    lines = ((names[j], *(float(c.loadings[j]) for c in columns)) for j in order)
    yield sortable("loadings", ("feature", *titles), lines)
    yield '<p class="paper">Printed: the features with the largest loadings.</p>'


def _outliers(fitted: RobustPCA, min_count: int) -> Iterator[str]:
    yield (
        f"<p>An entry is an outlier if its distance from the low-rank part exceeds "
        f"{fitted.threshold_:.3g}, in the model's scale.</p>"
    )
    if fitted.n_left_out_:
        yield (
            f"<p>{_count(fitted.n_left_out_, min_count)} rows lie apart from all others, and were left "
            "out.</p>"
        )


def _certificate(fitted: Fitted | Summary, run: RunRecord) -> Iterator[str]:
    """State how far the components may be from the exact ones."""
    if not run.history:
        yield from _certificate_of_summary(fitted)
        return
    special = {RobustPCA: ROBUST_STOPPED, PersonalizedPCA: PERSONALIZED_STOPPED}
    words = {**STOPPED, **special.get(type(fitted), {})}
    yield f"<p>{shown(words.get(run.stop_reason, run.stop_reason))}</p>"
    if isinstance(fitted, PersonalizedPCA):
        yield (
            f"<p>Misalignment, which measures how much local components differ between sites: "
            f"{fitted.misalignment_:.3g}. Near 0, shared and local components cannot be told apart.</p>"
        )
    elif isinstance(fitted, FederatedPCA) and not run.privacy:
        yield _sentence(angle_in_words(run.angle_bound))
        if run.left_out:
            yield f"<p>Each variance is too small by at most {run.left_out:.2g} of the total.</p>"
    if run.n_certain:
        yield f"<p>{run.n_certain} components are certain.</p>"


def _certificate_of_summary(fitted: Any) -> Iterator[str]:
    """State what truncation cost a stream or a summary."""
    summary: Summary | None = getattr(
        fitted, "summary_", fitted if isinstance(fitted, Summary) else None
    )
    if summary is None:
        yield "<p>This file has a site's own part of a model, without the record of the run.</p>"
        return
    outside = summary.lost / summary.energy if summary.energy else 0.0
    bound = summary.angle_bound(min(n_components_of(fitted), len(summary.singular_values)))
    yield f"<p>{outside:.2%} of the variance lies outside the directions kept.</p>"
    if not summary.known.missing and bound < 1:
        yield f"<p>{STOPPED['exact']}</p>"
    else:
        yield _sentence(angle_in_words(bound))


def _sentence(text: str) -> str:
    return f"<p>{shown(text[0].upper() + text[1:])}.</p>"


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
    together: dict[tuple[str, ...], tuple[int, int]] = {}
    for total in run.ledger.totals(None):
        key = (total.question, total.direction, total.field, _shape(total), total.how)
        messages, crossed = together.get(key, (0, 0))
        together[key] = (messages + total.messages, crossed + total.bytes)
    lines = [(*key, *numbers) for key, numbers in together.items()]
    heads = ("question", "direction", "field", "shape", "use", "messages", "bytes")
    yield table(heads, lines, n_text=5, kind="long")
    yield '<p class="paper">Printed: the first lines.</p>'


def _shape(total: Total) -> str:
    """Return a shape as text, with a letter for each length that a site's rows may determine."""
    named: tuple[str, ...] = ()
    bounded: set[str] = set()
    if total.direction == "up":
        try:
            question = find_question(total.question)
        except FedpcaError:
            return " x ".join("?" for _ in total.shape)
        declared = question.answers.get(total.field)
        bounded = set(question.at_most)
        named = () if declared is None else declared.dimensions
    dimensions = named if len(named) == len(total.shape) else ("",) * len(total.shape)
    return " x ".join(
        name if name in bounded else str(length)
        for name, length in zip(dimensions, total.shape, strict=True)
    )


def _privacy(run: RunRecord) -> Iterator[str]:
    uses = {t.how for t in run.ledger.totals(None)}
    if "seen" in uses:
        seen = {t.question for t in run.ledger.totals(None) if t.how == "seen"}
        yield f"<p>The coordinator read each site's answer to: {shown(', '.join(sorted(seen)))}.</p>"
    if "summed" in uses:
        yield (
            "<p>Of all other answers, the program used only the total over sites. Without secure sums, "
            "the coordinator's machine received each one.</p>"
        )
    if run.secure:
        yield (
            f"<p>Sums were secure: the coordinator could read only totals over {len(run.sites)} sites. "
            f"Hash of their roster: <code>{shown(run.secure['roster'])}</code></p>"
        )
    if run.privacy:
        yield _sentence(privacy_in_words(run.privacy))
    else:
        yield "<p>No noise was added, so the result is not differentially private.</p>"
    if run.proofs:
        yield (
            "<p>Sites signed their answers; <code>fedpca ledger verify</code> compares them with a "
            "site's ledger.</p>"
        )
        lines = ((site, proof["key"], proof["head"]) for site, proof in run.proofs.items())
        heads = ("site", "fingerprint of its key", "head of its ledger")
        yield table(heads, lines, n_text=3, kind="short")


def _reproduce(fitted: Fitted | Summary, name: str, run: RunRecord) -> Iterator[str]:
    versions = [f"{package} {metadata.version(package)}" for package in PACKAGES]
    if not isinstance(fitted, Summary):
        seed = f"  # seed of the run: {run.seed}" if run.history else ""
        yield f"<pre>{shown(' '.join(repr(fitted).split()))}{seed}</pre>"
    if run.history and len(run.sites) <= MAX_SITES:
        yield f"<p>Sites: {', '.join(shown(site, MAX_NAME) for site in run.sites)}</p>"
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
