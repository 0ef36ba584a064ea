"""One pass and one round: every site sends a summary of its rows, and summaries are merged in a tree.

    S = sum_i S_i + what joins the means,    S_i = C_i' diag(s_i^2) C_i + E_i

A site streams its rows once and sends its leading directions; the coordinator, or aggregators on the
way to it, merge them ``fan_in`` at a time. What the sites left out is known to them and sent along,
so the result states how far it can be from that of the pooled rows, and is exact where nothing was
left out.

Source: Algorithm 1 of Grammenos, Mendoza-Smith, Mascolo and Crowcroft, "Federated PCA with adaptive
rank estimation". The mean, which they take to be zero, is each site's own and is merged too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np

from fedpca.blocks import about_own_mean, naming_bad_values
from fedpca.bounds import eigenvalue_bound
from fedpca.federation import Federation
from fedpca.message import Array
from fedpca.moments import CommonFeatures, Moments, at_least_two, own_order
from fedpca.question import Question, question
from fedpca.rank import RankRule, Spectrum, check_n_components, first_look, rank_rule
from fedpca.solvers.solution import Solution
from fedpca.summarize import summarize_parts
from fedpca.summary import N_SPARE, Summary, merge_in_tree
from fedpca.summary_file import SHAPES, arrays_of, summary_of

SUMMARY = {name: " ".join(("float64", *shape)) for name, shape in SHAPES.items()}
WANTED = {"n_components": "int64", "rule": "uint8 rule", "n_spare": "int64"}

T = TypeVar("T")


@question(asks={"features": "uint8 names", **WANTED}, answers=SUMMARY, remembers=True)
def summarize_rows(
    site: Any, features: Array, n_components: Array, rule: Array, n_spare: Array
) -> dict[str, Any]:
    """A summary of a site's rows about their own mean, of which the site keeps the directions."""
    order = own_order(site, features)
    columns = slice(None) if order is None else order
    parts = (about_own_mean(block[:, columns]) for block in site.rows.blocks())
    with naming_bad_values(site.rows):
        summary = summarize_parts(
            parts, site.rows.n_features, _wanted(n_components, rule), n_spare=int(n_spare)
        )
    site.memory["own_rows"] = summary.known.rows()
    site.memory["own_energy"] = np.float64(summary.energy)
    return arrays_of(summary)


@question(
    asks={"mean": "float64 d", "scale": "float64 d", "sends_spare": "int64", **WANTED},
    answers=SUMMARY,
    remembers=True,
)
def summarize_about(
    site: Any,
    mean: Array,
    scale: Array,
    sends_spare: Array,
    n_components: Array,
    rule: Array,
    n_spare: Array,
) -> dict[str, Any]:
    """A summary of a site's rows about the common mean and in the common scale."""
    site.memory |= {"mean": mean, "scale": scale}
    summary = summarize_parts(
        site.framed.parts(),
        len(mean),
        _wanted(n_components, rule),
        n_spare=int(n_spare),
        center=False,
    )
    site.memory["energy"] = np.float64(summary.energy)
    return arrays_of(summary if sends_spare else summary.truncate(summary.n_components))


@question(asks={"V": "float64 d k"}, answers={"explained": "float64", "total": "float64"})
def explained_in_summary(site: Any, V: Array) -> dict[str, Any]:
    """What the components carry of the squares in a site's summary, and all of these.

    No row is read again, so it is too small by what the summary left out.
    """
    scores = site.memory["own_rows"] @ V
    return {"explained": np.float64(np.sum(scores**2)), "total": site.memory["own_energy"]}


def merge_about_mean(
    fed: Federation,
    known: Moments,
    rank: RankRule,
    *,
    start: Array | None,
    tol: float,
    max_rounds: int,
    fan_in: int | None = None,
    site_components: Any = None,
) -> Solution:
    """Summaries about a mean and in a scale that all sites know; one round after the mean.

    ``start``, ``tol`` and ``max_rounds`` do not matter.
    """

    def merged(wanted: int) -> Summary:
        fields = directions_to_ask(site_components, wanted, known.d)
        fields |= {"mean": known.mean, "scale": known.scale, "sends_spare": np.int64(True)}
        return merge_in_tree(gather_summaries(fed, summarize_about, wanted, **fields), fan_in)

    summary, k = look_further(
        merged,
        lambda summary, is_last: settled(rank, summary.spectrum, is_last),
        looks(rank.first_look, known.d, site_components),
    )
    return solution_of(fed, summary, k)


def merge_own_means(
    fed: Federation,
    common: CommonFeatures,
    n_components: Any,
    *,
    fan_in: int | None = None,
    site_components: Any = None,
) -> tuple[Moments, Solution]:
    """Summaries about each site's own mean, and with them the mean of all: no round before."""
    d = common.n_features

    def merged(wanted: int) -> Summary:
        fields = directions_to_ask(site_components, wanted, d)
        fields["features"] = common.to_ask
        ask = partial(gather_summaries, fed, summarize_rows, wanted, centered=True)
        return merge_in_tree(ask(**fields), fan_in)

    def rank_by(summary: Summary, is_last: bool) -> int | None:
        rank = rank_rule(n_components, at_least_two(round(summary.n)), d)
        return settled(rank, summary.spectrum, is_last)

    first = first_look(n_components, d)
    summary, k = look_further(merged, rank_by, looks(first, d, site_components))
    known = Moments(round(summary.n), summary.mean, np.ones(d), common.features)
    return known, solution_of(fed, summary, k)


def looks(first: int, d: int, site_components: Any) -> list[int]:
    """How many directions to ask of sites, and how many more each time a rule must see further."""
    counts = [min(first, d)]
    while not site_components and counts[-1] < d:
        counts.append(min(2 * counts[-1], d))
    return counts


def look_further(
    ask: Callable[[int], T], rank: Callable[[T, bool], int | None], counts: list[int]
) -> tuple[T, int]:
    """What sites answer and the rank by it, asked again for more until the rank is settled."""
    *others, last = counts
    for count in others:
        found = ask(count)
        k = rank(found, False)
        if k is not None:
            return found, k
    found = ask(last)
    return found, rank(found, True) or 1


def settled(rank: RankRule, spectrum: Spectrum, is_last: bool) -> int | None:
    """The rank by a spectrum; None where more of it must and can be seen."""
    k = rank(spectrum)
    return rank.settle(spectrum) if k is None and is_last else k


def gather_summaries(
    fed: Federation, asked: Question, wanted: int, *, centered: bool = False, **fields: Any
) -> list[Summary]:
    """Every site's summary in the order of sites, each with room for what is wanted of all."""
    summaries = []
    for answer in fed.gather(asked, **fields).values():
        r, d = answer["directions"].shape
        room = min(d, max(r, wanted + N_SPARE))
        summaries.append(
            summary_of(answer, n_components=min(wanted, room), room=room, centered=centered)
        )
    return summaries


def solution_of(fed: Federation, merged: Summary, k: int) -> Solution:
    """The k leading directions of a merged summary, and how far they may be from the pooled ones."""
    V, values = merged.known.leading(k)
    missing = eigenvalue_bound(merged.known, merged.energy, k)
    fed.report(missing, lambda: V)
    stopped = "approximate" if missing > 0 else "exact"
    return Solution(V, values, merged.energy, stopped, missing, merged.angle_bound(k))


def directions_to_ask(
    site_components: Any, wanted: int, d: int, n_spare: int = N_SPARE
) -> dict[str, Any]:
    """How many directions a site shall find, or its rule, as the fields of a question."""
    is_rule = isinstance(site_components, str | float)
    number = 0 if is_rule else min(d, site_components or wanted)
    rule = json.dumps(site_components).encode() if is_rule else b""
    return {
        "n_components": np.int64(number),
        "rule": np.frombuffer(rule, np.uint8),
        "n_spare": np.int64(n_spare),
    }


def _wanted(n_components: Array, rule: Array) -> Any:
    """The number or the rule that `directions_to_ask` wrote."""
    wanted = json.loads(rule.tobytes()) if rule.size else int(n_components)
    check_n_components(wanted)
    return wanted
