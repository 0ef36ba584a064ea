"""Merge one summary from each site in a tree, in one pass over the rows and one round.

    S = sum_i S_i + M,    S_i = C_i' diag(s_i^2) C_i + E_i,    M the scatter between the sites' means

A site streams its rows once and sends its leading directions and a bound on what they leave out,
E_i. Summaries and their bounds are merged ``fan_in`` at a time, by the coordinator or by
aggregators on the way to it. So the result states how far it can be from the result for the pooled
rows. It is exact if nothing was left out.

Source: Grammenos, Mendoza-Smith, Mascolo and Crowcroft, "Federated PCA with adaptive rank estimation",
Algorithm 1. In the paper, the mean is zero. Here, each site has its own mean, and the means are merged
too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import StopReason
from fedpca.errors import InputError
from fedpca.linalg.rank_rules import RankRule, Spectrum, check_n_components, first_look, rank_rule
from fedpca.protocol.invariants import ROUNDING
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import Question, question
from fedpca.protocol.script import Order, Script, either, maybe, repeat, then
from fedpca.rows.centering import about_own_mean, naming_bad_values
from fedpca.rows.gaps import WAY_OUT
from fedpca.rows.in_memory import about_n_rows
from fedpca.rows.standardized import refuse_large
from fedpca.solvers.common_features import own_order
from fedpca.solvers.contract import (
    EXPLAINED,
    Problem,
    Solution,
    after_moments,
    check_choice,
    check_whole,
    explains_too_much,
    is_rank_rule,
    moments_and_rank,
)
from fedpca.solvers.influence import report_summaries
from fedpca.solvers.standardize import (
    SCALES,
    Moments,
    at_least_two,
    large_mean,
    near_frame,
)
from fedpca.summary.bounds import eigenvalue_bound
from fedpca.summary.from_rows import summarize_parts
from fedpca.summary.summary import N_SPARE, SHAPES, Summary, merge_in_tree

if TYPE_CHECKING:
    from fedpca.site.site import Site

MEANINGS = {
    "n": "nonnegative, rows",
    "squares": "squares, energy",
    "directions": "orthonormal",
    "singular_values": "squares, decreasing",
    "tail": "squares",
    "missing": "squares",
}
SUMMARY = {
    name: ", ".join(filter(None, [f"float64 {shape}", MEANINGS.get(name, "")]))
    for name, shape in SHAPES.items()
}
WANTED = {
    "n_components": "int64, nonnegative",
    "rule": "uint8 rule, fixed",
    "n_spare": "int64, nonnegative",
}

T = TypeVar("T")


@dataclass(frozen=True)
class Merge:
    """Merge one summary from each site in a tree.

    Parameters
    ----------
    fan_in : int, optional
        How many summaries are merged at a time; by default, all of them, or 32 if there are hundreds.
    site_components : int, float in (0, 1), {"auto", "mp", "gap"} or None
        The number of directions that each site sends, or a rule that the site uses to choose it. The
        default is the number of components. A site also sends ten spare directions.
    own_means : bool
        Whether sites center on their own means, which are then merged too, in one pass and one round.
        Otherwise, they use the common mean, which takes an extra round first. With ``scale``, with
        missing values or weights, or without ``center``, sites never center on their own means.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> from fedpca.solvers import Merge
    >>> rows = np.random.default_rng(0).normal(size=(90, 6)) * [4, 3, 1, 1, 1, 1]
    >>> sites = [rows[:50], rows[50:]]
    >>> pca = FederatedPCA(2, solver=Merge(fan_in=2), random_state=0).fit(sites)
    >>> pca.run_.solver, pca.run_.stop_reason
    ('merge', 'exact')
    """

    name: ClassVar[str] = "merge"
    guarantee: ClassVar[str] = "bounded"
    seen: ClassVar[tuple[str, ...]] = ("summarize_rows", "summarize_about", "explained_in_summary")

    fan_in: int | None = None
    site_components: Any = None
    own_means: bool = True

    def __post_init__(self) -> None:
        if self.fan_in is not None:
            check_whole("fan_in", self.fan_in, 2)
        check_site_components(self.site_components)
        check_choice("own_means", self.own_means, (True, False))

    def script(self, plan: RunPlan) -> Script:
        common, own = summarizing(plan, summarize_about), summarizing(plan, summarize_rows)
        values, bounds = asked_directions(plan, self.site_components)
        values |= {"n_spare": N_SPARE, "sends_spare": True}
        looks = (summarize_about.name, summarize_rows.name)
        script = after_moments(plan, common, looks=looks, values=values, bounds=bounds)
        given = plan.parameters
        is_one_round = self.own_means and given.get("center", True) and not given.get("scale")
        if not is_one_round or given.get("missing", "error") != "error":
            return script
        # if rows have weights, they are summarized about the common mean after all
        return replace(script, order=either(script.order, then(own, maybe(explained_in_summary))))

    def solve(self, fed: Federation, problem: Problem) -> Solution:
        """Return the leading directions of the merged summaries, without iterating."""
        # without center, there is no mean to merge; with scale, the deviations must come first
        is_one_round = self.own_means and problem.center and not problem.scale and problem.is_plain
        if is_one_round and problem.moments is None:
            return self._about_own_means(fed, problem)
        moments, rank = moments_and_rank(fed, problem)

        def merged(wanted: int) -> tuple[list[Summary], Summary]:
            fields = directions_to_ask(self.site_components, wanted, moments.d)
            fields |= {"mean": moments.mean, "scale": moments.scale, "sends_spare": np.int64(True)}
            summaries = gather_summaries(fed, summarize_about, wanted, **fields)
            return summaries, merge_in_tree(summaries, self.fan_in)

        (sites, summary), k = look_further(
            merged,
            lambda answers, is_last: decided_rank(
                rank, replace(answers[1].spectrum, n=moments.n), is_last
            ),
            looks(rank.first_look, moments.d, self.site_components),
        )
        solution = solution_of(fed, moments, summary, k)
        report_summaries(fed, sites, summary, solution.vectors)
        return solution

    def _about_own_means(self, fed: Federation, problem: Problem) -> Solution:
        """Merge summaries about each site's own mean, along with the means, in one round."""
        d = problem.common.n_features

        def merged(wanted: int) -> tuple[list[Summary], Summary]:
            fields = directions_to_ask(self.site_components, wanted, d)
            fields["features"] = problem.common.to_ask
            ask = partial(gather_summaries, fed, summarize_rows, wanted, centered=True)
            summaries = ask(**fields)
            return summaries, merge_in_tree(summaries, self.fan_in)

        def rank_by(answers: tuple[list[Summary], Summary], is_last: bool) -> int | None:
            _, summary = answers
            rank = rank_rule(problem.n_components, at_least_two(round(summary.n)), d)
            return decided_rank(rank, summary.spectrum, is_last)

        first = first_look(problem.n_components, d)
        counts = looks(first, d, self.site_components)
        (sites, summary), k = look_further(merged, rank_by, counts)
        n = round(summary.n)
        moments = Moments(n, summary.mean, np.ones(d), problem.common.names, float(n))
        solution = solution_of(fed, moments, summary, k)
        report_summaries(fed, sites, summary, solution.vectors)
        return replace(solution, share_question=explained_in_summary)


@dataclass(frozen=True)
class OwnSummary:
    """What a site remembers about its summary: its directions as rows and its total sum of squares."""

    rows: Array  # (r, d), directions times singular values
    energy: float


def impossible_summary(answer: Arrays, _: Arrays) -> str | None:
    """Return what is wrong with a summary in an answer, or None if nothing is."""
    r, d = answer["directions"].shape
    if r > d:
        return f"has {r} directions but only {d} features"
    s, n, energy = answer["singular_values"], answer["n"], float(answer["squares"].sum())
    if np.vdot(s, s) > (1 + ROUNDING) * energy:
        return "has more energy along its directions than in total"
    if max(answer["tail"], answer["missing"]) > (1 + ROUNDING) * energy:
        return "left out more than its total energy"
    return large_mean(n * (np.abs(answer["mean"]) + np.abs(answer["mean_rest"])), n)


@question(
    verb="gather",
    doing="summarizing rows",
    asks={"features": "uint8 names", **WANTED},
    answers=SUMMARY,
    remembers=True,
    at_most={"r": "d"},
    check=impossible_summary,
    work="summary",
)
def summarize_rows(
    site: Site, features: Array, n_components: Array, rule: Array, n_spare: Array
) -> dict[str, Any]:
    """Summarize a site's rows about their own mean and remember the directions."""
    order = own_order(site, features)
    columns = slice(None) if order is None else order
    centered = (about_own_mean(block[:, columns]) for block in site.rows.blocks())
    with naming_bad_values(site.rows, WAY_OUT):
        summary = summarize_parts(
            centered,
            site.rows.n_features,
            _wanted(n_components, rule),
            n_spare=int(n_spare),
            n_rows=about_n_rows(site.rows),
        )
    refuse_large(summary.mean * summary.n, summary.n)
    site.remember(OwnSummary(summary.known.rows(), summary.energy))
    return summary.to_arrays()


@question(
    verb="gather",
    doing="summarizing rows",
    asks={
        "mean": "float64 d, fixed",
        "scale": f"float64 d, fixed, {SCALES}",
        "sends_spare": "int64, fixed, flag",
        **WANTED,
    },
    answers=SUMMARY,
    remembers=True,
    at_most={"r": "d"},
    check=impossible_summary,
    work="summary",
)
def summarize_about(
    site: Site,
    mean: Array,
    scale: Array,
    sends_spare: Array,
    n_components: Array,
    rule: Array,
    n_spare: Array,
) -> dict[str, Any]:
    """Summarize a site's rows about the common mean and in the common scale."""
    frame = near_frame(site, mean, scale)
    site.remember(frame)
    summary = summarize_parts(
        site.standardized.parts(),
        len(mean),
        _wanted(n_components, rule),
        n_spare=int(n_spare),
        n_rows=about_n_rows(site.rows),
        center=False,
    )
    site.remember(replace(frame, energy=summary.energy))
    sent = summary if sends_spare else summary.truncate(summary.n_components)
    return sent.to_arrays()


@question(
    verb="gather",
    doing="measuring the variance explained at each site",
    asks={"V": "float64 d k, orthonormal"},
    answers=EXPLAINED,
    check=explains_too_much,
)
def explained_in_summary(site: Site, V: Array) -> dict[str, Any]:
    """Send the sum of squares along the components, from a site's summary, and the site's total.

    No rows are read again, so the first sum lacks what the summary left out.
    """
    own = site.recall(OwnSummary)
    # rounding may push the sum above the total
    explained = min(float(np.sum((own.rows @ V) ** 2)), own.energy)
    return {"explained": np.float64(explained), "total": np.float64(own.energy)}


def looks(first: int, d: int, site_components: Any) -> list[int]:
    """Return how many directions to ask for in each attempt while the rank is undecided."""
    counts = [min(first, d)]
    while not site_components and counts[-1] < d:
        counts.append(min(2 * counts[-1], d))
    return counts


def look_further(
    ask: Callable[[int], T], rank: Callable[[T, bool], int | None], counts: list[int]
) -> tuple[T, int]:
    """Ask for more directions until they determine the rank; return the answer and the rank."""
    *others, last = counts
    for count in others:
        answer = ask(count)
        k = rank(answer, False)
        if k is not None:
            return answer, k
    answer = ask(last)
    return answer, rank(answer, True) or 1


def decided_rank(rank: RankRule, spectrum: Spectrum, is_last: bool) -> int | None:
    """Return the rank for a spectrum, or None if the rule needs to see more and can look again."""
    k = rank(spectrum)
    return rank.settle(spectrum) if k is None and is_last else k


def gather_summaries(
    fed: Federation, asked: Question, wanted: int, *, centered: bool = False, **fields: Any
) -> list[Summary]:
    """Gather every site's summary, in site order, with room for all wanted directions."""
    summaries = []
    for answer in fed.gather(asked, **fields).values():
        r, d = answer["directions"].shape
        room = min(d, max(r, wanted + N_SPARE))
        summaries.append(
            Summary.from_arrays(
                answer, n_components=min(wanted, room), room=room, centered=centered
            )
        )
    return summaries


def solution_of(fed: Federation, moments: Moments, merged: Summary, k: int) -> Solution:
    """Return the k leading directions of a merged summary and bounds on how far off they are."""
    V, values = merged.known.leading(k)
    left_out = eigenvalue_bound(merged.known, merged.energy, k)
    fed.report(left_out, lambda: V)
    reason: StopReason = "approximate" if left_out > 0 else "exact"
    return Solution(moments, V, values, merged.energy, reason, left_out, merged.angle_bound(k))


def directions_to_ask(
    site_components: Any, wanted: int, d: int, n_spare: int = N_SPARE
) -> dict[str, Any]:
    """Return the number of directions that a site should find, or the rule, as question fields."""
    is_rule = isinstance(site_components, str | float)
    number = 0 if is_rule else min(d, site_components or wanted)
    rule = json.dumps(site_components).encode() if is_rule else b""
    return {
        "n_components": np.int64(number),
        "rule": np.frombuffer(rule, np.uint8),
        "n_spare": np.int64(n_spare),
    }


def summarizing(plan: RunPlan, asked: Question) -> Order:
    """Return the order of `look_further`: one question, or more if a rule looks again."""
    return repeat(asked) if is_rank_rule(plan) else then(asked)


def asked_directions(
    plan: RunPlan, site_components: Any, times: int = 1
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values and bounds of `directions_to_ask`, with ``times`` directions per component."""
    fields = directions_to_ask(site_components, 1, 1)
    values: dict[str, Any] = {"rule": fields["rule"]}
    if fields["rule"].size:
        return {**values, "n_components": 0}, {}
    if site_components is None:
        n_components = plan.parameters.get("n_components")
        if n_components is None or is_rank_rule(plan):
            return values, {}
        site_components = times * int(n_components)
    return values, {"n_components": f"1..{site_components}"}


def _wanted(n_components: Array, rule: Array) -> Any:
    """Return the number or the rule that `directions_to_ask` encoded."""
    wanted = json.loads(rule.tobytes()) if rule.size else int(n_components)
    check_n_components(wanted)
    return wanted


def check_site_components(given: Any) -> None:
    """Refuse a value that is not a number of directions, a share, or a rule name."""
    try:
        check_n_components(given)
    except InputError as error:
        raise InputError(str(error).replace("n_components", "site_components")) from None
