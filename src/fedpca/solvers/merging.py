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
from typing import Any

import numpy as np

from fedpca.blocks import about_own_mean, naming_bad_values
from fedpca.federation import Federation
from fedpca.linalg import complete_basis
from fedpca.message import Array
from fedpca.moments import CommonFeatures, Moments, at_least_two, own_order
from fedpca.question import Question, question
from fedpca.rank import RankRule, first_look, rank_rule
from fedpca.solvers.solution import Solution
from fedpca.summarize import summarize_parts
from fedpca.summary import N_SPARE, Summary, merge_in_tree
from fedpca.summary_file import arrays_of, summary_of

SUMMARY = {
    "n": "float64",
    "mean": "float64 d",
    "mean_rest": "float64 d",
    "squares": "float64 d",
    "directions": "float64 r d",
    "singular_values": "float64 r",
    "tail": "float64",
    "missing": "float64",
}


@question(
    asks={"features": "uint8 names", "options": "uint8 bytes"},
    answers=SUMMARY,
    remembers=True,
)
def summarize_rows(site: Any, features: Array, options: Array) -> dict[str, Any]:
    """A summary of a site's rows about their own mean, which the site keeps."""
    order = own_order(site, features)
    columns = slice(None) if order is None else order
    parts = (about_own_mean(block[:, columns]) for block in site.rows.blocks())
    with naming_bad_values(site.rows):
        summary = summarize_parts(parts, site.rows.n_features, **_from_bytes(options))
    answer = arrays_of(summary)
    site.memory |= answer
    return answer


@question(
    asks={"mean": "float64 d", "scale": "float64 d", "options": "uint8 bytes"},
    answers=SUMMARY,
    remembers=True,
)
def summarize_about(site: Any, mean: Array, scale: Array, options: Array) -> dict[str, Any]:
    """A summary of a site's rows about the common mean and in the common scale."""
    site.memory |= {"mean": mean, "scale": scale}
    given = _from_bytes(options)
    sends_spare = given.pop("sends_spare")
    summary = summarize_parts(site.framed.parts(), len(mean), center=False, **given)
    site.memory["energy"] = np.float64(summary.energy)
    return arrays_of(summary if sends_spare else summary.truncate(summary.n_components))


@question(asks={"V": "float64 d k"}, answers={"explained": "float64", "total": "float64"})
def explained_in_summary(site: Any, V: Array) -> dict[str, Any]:
    """What the components carry of the squares in a site's summary, and all of these.

    No row is read again, so it is too small by what the summary left out.
    """
    scores = (site.memory["directions"] @ V) * site.memory["singular_values"][:, None]
    total = site.memory["squares"].sum()
    return {"explained": np.float64(np.sum(scores**2)), "total": np.float64(total)}


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
    """Summaries about a mean and in a scale that all sites know; one round after the mean."""
    wanted = min(rank.first_look, known.d)
    while True:
        asked = at_most(known.d, site_components) or wanted
        spec = to_bytes(n_components=asked, sends_spare=True)
        summaries = gather_summaries(
            fed, summarize_about, wanted, mean=known.mean, scale=known.scale, options=spec
        )
        merged = merge_in_tree(summaries, fan_in)
        k = rank(merged.spectrum)
        if k is not None or site_components or wanted == known.d:
            return solution_of(fed, merged, k or rank.settle(merged.spectrum))
        wanted = min(2 * wanted, known.d)  # the rule must see more of the spectrum


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
    wanted = first_look(n_components, d)
    while True:
        spec = to_bytes(n_components=at_most(d, site_components) or wanted)
        summaries = gather_summaries(
            fed,
            summarize_rows,
            wanted,
            centered=True,
            features=common.to_ask,
            options=spec,
        )
        merged = merge_in_tree(summaries, fan_in)
        known = Moments(at_least_two(round(merged.n)), merged.mean, np.ones(d), common.features)
        rank = rank_rule(n_components, known.n, d)
        k = rank(merged.spectrum)
        if k is not None or site_components or wanted == d:
            return known, solution_of(fed, merged, k or rank.settle(merged.spectrum))
        wanted = min(2 * wanted, d)


def gather_summaries(
    fed: Federation, asked: Question, wanted: int, *, centered: bool = False, **arrays: Any
) -> list[Summary]:
    """Every site's summary in the order of sites, each with room for what is wanted of all."""
    summaries = []
    for answer in fed.gather(asked, **arrays).values():
        r, d = answer["directions"].shape
        room = min(d, max(r, wanted + N_SPARE))
        summaries.append(
            summary_of(answer, n_components=min(wanted, room), room=room, centered=centered)
        )
    return summaries


def solution_of(fed: Federation, merged: Summary, k: int) -> Solution:
    """The k leading directions of a merged summary, and how far they may be from the pooled ones."""
    values = np.zeros(k)
    found = merged.eigenvalues[:k]
    values[: len(found)] = found
    V = complete_basis(merged.directions[:k].T, k)
    known = merged.known
    left_out = min(known.missing + (known.tail if k > len(found) else 0.0), merged.lost)
    missing = left_out / merged.energy if merged.energy else 0.0
    fed.report(missing, lambda: V)
    stopped = "approximate" if missing > 0 else "exact"
    return Solution(V, values, merged.energy, stopped, missing, merged.angle_bound(k))


def at_most(d: int, site_components: Any) -> Any:
    """The directions that a user asks of each site, of which there are no more than features."""
    return min(d, site_components) if isinstance(site_components, int) else site_components


def to_bytes(**options: Any) -> Array:
    """Options of `summarize_parts` as a field of a message."""
    return np.frombuffer(json.dumps(options).encode(), np.uint8)


def _from_bytes(array: Array) -> dict[str, Any]:
    options: dict[str, Any] = json.loads(array.tobytes())
    return options
