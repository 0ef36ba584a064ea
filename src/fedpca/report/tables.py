"""Print tables on a terminal, or write them to a file."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fedpca.audit.exposures import Exposure, Leakage
from fedpca.audit.lying import ATTACKS, OWN, PUBLISHED, Lying, Outcome
from fedpca.audit.transcript import LISTENERS
from fedpca.coordinator.record import RunRecord
from fedpca.errors import InputError
from fedpca.estimators import FederatedPCA, PersonalizedPCA, RobustPCA, StreamingPCA
from fedpca.report.contents import Fitted, components_of, feature_names, leading_features
from fedpca.storage import atomic
from fedpca.summary.summary import Summary

MAX_COMPONENTS_SHOWN = 20
N_LEADING_FEATURES = 5  # features that are named for each component
MAX_ROUNDING = 1e-6  # rounding may make a spent epsilon exceed the promised one by this share
WIDE = 10_000  # characters per line if the output has no width because it is not a terminal


def new_table(title: str | None, left: Sequence[str], right: Sequence[str], **style: Any) -> Table:
    """Return a table with columns of text and then of numbers; long names are folded, never cut."""
    table = Table(title=title, title_justify="left", **style)
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", overflow="fold")
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table within the width of a terminal, or else as wide as its contents."""
    if not console.is_terminal:
        console = Console(file=console.file, width=WIDE, highlight=False, markup=False, emoji=False)
    console.print(table)


def print_crossed(console: Console, run: RunRecord, site: str | None = None) -> None:
    """Print a table of the data exchanged, by question and field, for all sites or one site."""
    refuse_unknown_site(run, site)
    title = "Data exchanged" if site is None else f"Data exchanged with {site}"
    left = ("question", "direction", "field", "shape", "how")
    table = new_table(title, left, ("messages", "bytes"))
    for row in run.ledger.totals(site):
        shape = " x ".join(str(n) for n in row.shape)
        table.add_row(
            row.question,
            row.direction,
            row.field,
            shape,
            row.how,
            f"{row.messages:,}",
            f"{row.bytes:,}",
        )
    print_table(console, table)
    if run.rings:
        _print_rings(console, run)
    console.print(
        f"{run.rounds} rounds, {run.bytes_up:,} bytes from the sites, {run.bytes_down:,} to them"
    )


def _print_rings(console: Console, run: RunRecord) -> None:
    """Print in which ring each masked field was summed, and how finely its numbers were rounded."""
    table = new_table("Rings of masked answers", ("question", "field"), ("bits", "step"))
    for question, name, bits, fraction_bits in run.rings:
        table.add_row(question, name, str(bits), f"2^{-fraction_bits}")
    print_table(console, table)


def refuse_unknown_site(run: RunRecord, site: str | None) -> None:
    """Refuse the name of a site that did not take part in the run."""
    if site not in (None, *run.sites, *(loss["site"] for loss in run.lost)):
        raise InputError(f"no site {site!r} in this run; the sites are {', '.join(run.sites)}")


def print_leakage(out: Console, leakage: Leakage, by_site: bool) -> None:
    """Print the attack results for the most exposed site per listener, or for every site."""
    title = "Relative error of the best estimate of a site's covariance, by rounds"
    left = ("solver", "listener", "site", "best attack")
    right = ("1", "10", "all", "rounds", "exposed")
    table = new_table(title, left, right, box=box.SIMPLE_HEAD, show_edge=False)
    table.padding = (0, 1, 0, 0)
    for solver in leakage.solvers:
        for listener in ("seen", "summed"):
            ends = [leakage.best(solver, listener, site) for site in leakage.sites]
            for end in ends if by_site else [min(ends, key=lambda e: e.error)]:
                early = [leakage.best(solver, listener, end.site, n).error for n in (1, 10)]
                errors = [f"{e:.2f}" if e > 0.01 else f"{e:.0e}" for e in (*early, end.error)]
                figures = (*errors, str(end.round), f"{end.exposed:.0%}")
                table.add_row(solver, listener, end.site, end.attack, *figures)
    print_table(out, table)
    out.print(
        "An error of 0 means that the covariance is known; 1 is no better than guessing zero."
    )
    guesses = ", ".join(f"{guess:.2g} ({site})" for site, guess in leakage.guesses.items())
    out.print(f"Errors of guesses that use no messages: {guesses}.")
    out.print("'exposed' is the share of the site's variance on eigenvectors known to within 10%.")
    for listener in ("seen", "summed"):
        masked = ", which is masked unless it is gathered" if leakage.is_secure else ""
        out.print(
            f"'{listener}' hears {LISTENERS[listener]}{masked if listener == 'seen' else ''}."
        )


def write_exposures(path: Path, leakage: Leakage) -> None:
    """Write the result of every attack on every site after each round, as CSV."""
    with atomic.writing(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Exposure._fields)
        writer.writerows(leakage.exposures)


def print_lying(out: Console, lying: Lying) -> None:
    """Print what each attack of a lying coordinator recovers under each policy, or what stopped it."""
    headings = [name for policy in lying.policies for name in (policy, "questions")]
    groups = {
        "What a lying coordinator recovers": OWN,
        "What a lying coordinator recovers with published attacks": PUBLISHED,
    }
    for title, group in groups.items():
        table = new_table(title, ("attack", *headings), ())
        for attack in filter(lying.attacks.__contains__, group):
            cells = []
            for policy in lying.policies:
                outcome = lying.of(attack, policy)
                cells += [outcome.in_words, f"{outcome.questions:,}"]
            table.add_row(attack, *cells)
        if table.row_count:
            print_table(out, table)
    rules = new_table("What stopped it", ("attack", "policy", "rule"), ())
    for attack in lying.attacks:
        for policy in lying.policies:
            outcome = lying.of(attack, policy)
            if not outcome.has_found and outcome.rules:
                rules.add_row(attack, policy, outcome.rules[0])
    print_table(out, rules)
    for name in lying.attacks:
        source = f" Source: {ATTACKS[name].source}." if ATTACKS[name].source else ""
        out.print(f"{name}: {ATTACKS[name].words}{source}", soft_wrap=True)
    guess = lying.guess
    out.print(
        f"A guess from the published model recovers {guess.records} records and {guess.values} values."
    )
    for policy in lying.policies:
        better = [outcome.attack for outcome in lying.better_than_guess(policy)]
        listed = ", ".join(better) or "none"
        out.print(f"Attacks that do better, policy {policy!r}: {listed}.", soft_wrap=True)


def lying_as_csv(lying: Lying) -> str:
    """Return the outcome of every attack under every policy as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Outcome._fields)
    for outcome in lying.outcomes:
        writer.writerow(["; ".join(x) if isinstance(x, tuple) else x for x in outcome])
    return text.getvalue().rstrip("\n")


def lying_as_json(lying: Lying) -> str:
    """Return the outcome of every attack under every policy, and of the guess, as JSON."""
    contents = {
        "policies": {name: policy.in_words() for name, policy in lying.policies.items()},
        "guess": {"records": lying.guess.records, "values": lying.guess.values},
        "outcomes": [outcome._asdict() for outcome in lying.outcomes],
    }
    return json.dumps(contents, indent=2)


def lying_as_markdown(lying: Lying, policies: Iterable[str] | None = None) -> str:
    """Return the table of what each attack recovers under some policies, for a page of documentation.

    By default, the table has all policies.
    """
    policies = list(lying.policies if policies is None else policies)
    lines = [f"| attack | {' | '.join(policies)} |", f"|---|{'---|' * len(policies)}"]
    for attack in lying.attacks:
        cells = []
        for policy in policies:
            outcome = lying.of(attack, policy)
            cells.append(
                f"**{outcome.in_words}**, {outcome.questions:,} questions"
                if outcome.has_found
                else "nothing"
            )
        lines.append(f"| {attack} | {' | '.join(cells)} |")
    return "\n".join(lines)


def print_model(out: Console, model: Fitted) -> None:
    """Print a model's contents and how it was fitted."""
    if isinstance(model, StreamingPCA):
        _print_stream(out, model)
    elif isinstance(model, PersonalizedPCA):
        _print_personalized(out, model)
    elif isinstance(model, RobustPCA):
        _print_robust(out, model)
    else:
        _print_federated(out, model)


def print_summary(out: Console, summary: Summary) -> None:
    """Print a summary's components, its error bounds, and what its file reveals."""
    out.print(
        f"summary of {summary.n:,.10g} rows with {summary.n_features:,} features: "
        f"{summary.n_components} components requested, {len(summary.singular_values)} directions kept"
    )
    _print_components(out, summary)
    _print_bounds(out, summary, summary.n_components)
    if summary.n <= summary.room:
        out.print("there are so few rows that this file reveals them; do not share it")
    table = new_table("What this file reveals", ("field", "shape"), ("bytes",))
    for name, array in summary.to_arrays().items():
        table.add_row(name, " x ".join(str(n) for n in array.shape), f"{array.nbytes:,}")
    print_table(out, table)


def _print_federated(out: Console, model: FederatedPCA) -> None:
    run = model.run_
    out.print(
        f"{model.n_components_} components from {model.n_features_in_:,} features and "
        f"{model.n_samples_:,} rows at {len(run.sites)} sites"
    )
    _print_run(out, run)
    _print_components(out, model)
    if run.stop_reason == "approximate":
        out.print(angle_in_words(run.angle_bound))
    if run.stop_reason == "within-noise":
        out.print(
            f"the first {run.n_certain} components equal those of the pooled rows; the variances of "
            "the others are within each other's sampling errors"
        )
    if model.site_variance_ratio_:
        shares = ", ".join(f"{k} {v:.1%}" for k, v in model.site_variance_ratio_.items())
        out.print(f"share of each site's variance explained: {shares}")
    _print_influence(out, run)


def _print_influence(out: Console, run: RunRecord) -> None:
    """Print each site's influence on the result, if known; model files do not store influences."""
    kinds = {
        "rows": "{:.1%}",
        "variance": "{:.1%}",
        "caused": "{:.1%}",
        "angle": "{:.2g}",
    }
    known = [kind for kind in kinds if any(kind in each for each in run.influence.values())]
    if not known or len(run.sites) < 2:
        return
    table = Table(title="Influence of each site", title_justify="left")
    table.add_column("site")
    for kind in known:
        table.add_column(kind, justify="right")
    sites = sorted(run.influence.items(), key=lambda item: -item[1].get("variance", 0.0))
    for name, each in sites[:20]:
        table.add_row(name, *(kinds[k].format(each[k]) if k in each else "" for k in known))
    out.print(table)
    if len(sites) > 20:
        out.print(f"... and {len(sites) - 20} more")
    if "caused" in known:
        out.print("caused: the share of the variance that would vanish without the site")
    if "angle" in known:
        out.print("angle: the sine of the angle by which the components would move without it")


def _print_personalized(out: Console, model: PersonalizedPCA) -> None:
    at_hand = list(model.local_components_)
    out.print(
        f"{len(model.components_)} shared components from {model.n_features_in_:,} features and "
        f"{model.n_samples_:,} rows"
    )
    if model.run_.history:  # a site's local file has no record of the run
        _print_run(out, model.run_)
        out.print(f"misalignment of the sites' local components: {model.misalignment_:.3g}")
    _print_components(out, model)
    right = ("local components", "shared", "local", "remainder")
    table = new_table("Share of each site's variance", ("site",), right)
    for name, shares in model.site_variance_.items():
        n_local = str(len(model.local_components_[name])) if name in at_hand else "at the site"
        parts = (shares[part] for part in ("shared", "local", "left"))  # a file may sort its keys
        table.add_row(name, n_local, *(f"{part:.1%}" for part in parts))
    if model.site_variance_:
        print_table(out, table)


def _print_robust(out: Console, model: RobustPCA) -> None:
    out.print(
        f"{model.n_components_} components from {model.n_features_in_:,} features and "
        f"{model.n_samples_:,} rows at {len(model.run_.sites)} sites, with outliers separated"
    )
    _print_run(out, model.run_)
    _print_components(out, model)
    out.print(f"an entry is an outlier if its residual exceeds {model.threshold_:.3g}")
    if model.sparse_share_:
        shares = ", ".join(f"{k} {v:.1%}" for k, v in model.sparse_share_.items())
        out.print(f"share of outliers among each site's entries: {shares}")


def _print_run(out: Console, run: RunRecord) -> None:
    out.print(
        f"solver {run.solver} ({run.stop_reason}): {run.rounds} rounds, {run.bytes_up:,} bytes up, "
        f"{run.bytes_down:,} down"
    )
    if run.advice:
        out.print(run.advice)
    if run.secure:
        out.print(
            f"secure sums: answers were masked, and reveal only totals over {len(run.sites)} sites; "
            f"hash of their roster: {run.secure['roster']}",
            soft_wrap=True,
        )
    if run.privacy:
        out.print(privacy_in_words(run.privacy), soft_wrap=True)
    for loss in run.lost:
        out.print(f"lost in round {loss['round']}: {loss['reason']}")
    if run.proofs:
        table = new_table(
            "Signed answers", ("site", "fingerprint of its key", "head of its ledger"), ()
        )
        for site, proof in run.proofs.items():
            table.add_row(site, proof["key"], proof["head"])
        print_table(out, table)


def privacy_in_words(privacy: Mapping[str, Any]) -> str:
    """Return what a run promised about each row, and what it spent."""
    promised, spent = privacy["promised"], privacy["epsilon"]
    if math.isinf(promised):
        return "no differential privacy: epsilon was infinite, so no noise was added"
    text = (
        f"differential privacy: epsilon {promised:g} at delta {privacy['delta']:g} for each row; rows "
        f"count up to {privacy['row_bound']:g} from the mean"
    )
    if spent > promised * (1 + MAX_ROUNDING):
        return f"{text}; the run started over: it spent epsilon {spent:.4g}, more than promised"
    return f"{text}; spent: epsilon {spent:.4g}"


def _print_stream(out: Console, model: StreamingPCA) -> None:
    summary = model.summary_
    out.print(
        f"{model.n_components_} components from {model.n_features_in_:,} features and "
        f"{model.n_samples_seen_:,} rows, {len(summary.singular_values)} directions kept"
    )
    _print_components(out, model)
    _print_bounds(out, summary, model.n_components_)


def _print_components(out: Console, fitted: Fitted | Summary) -> None:
    """Print the first components, and the features with the largest loadings on each."""
    components = components_of(fitted)
    if not components:
        return
    table = new_table(None, (), ("component", "variance", "share", "cumulative"))
    features = new_table("Features with the largest loadings", ("component", "features"), ())
    names = feature_names(fitted)
    together: dict[str | None, float] = {}
    for component in components[:MAX_COMPONENTS_SHOWN]:
        site = component.site
        together[site] = together.get(site, 0.0) + float(component.share)
        label = component.name if site is None else f"{site} {component.name}"
        shares = (f"{component.share:.2%}", f"{together[site]:.2%}")
        table.add_row(label, f"{component.variance:.6g}", *shares)
        features.add_row(label, leading_features(component, names, N_LEADING_FEATURES))
    print_table(out, table)
    print_table(out, features)
    if len(components) > MAX_COMPONENTS_SHOWN:
        out.print(f"... and {len(components) - MAX_COMPONENTS_SHOWN} more")


def _print_bounds(out: Console, summary: Summary, k: int) -> None:
    outside = summary.lost / summary.energy if summary.energy else 0.0
    out.print(f"{outside:.2%} of the variance lies outside the directions kept")
    if not summary.known.missing and summary.angle_bound(k) < 1:
        out.print("the components are exactly those of the pooled rows")
        return
    out.print(angle_in_words(summary.angle_bound(k)))
    if summary.known.missing > 0:
        more = summary.variance_bound(k)
        out.print(
            f"the best {k} components would explain at most an additional {more:.2g} of the variance"
        )


def angle_in_words(bound: float) -> str:
    """Return a bound on the sine of the largest angle in words."""
    if bound >= 1:
        return "the eigengap is too small to bound the angle to the components of the pooled rows"
    return f"sine of the largest angle to the components of the pooled rows: at most {bound:.1e}"
