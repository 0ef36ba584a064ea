"""The program of a fit, from the first question to the last."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpca.blocks import MOST_CANCELLATION
from fedpca.errors import PolicyRefused
from fedpca.federation import Federation
from fedpca.framed import FramedRows
from fedpca.message import Array
from fedpca.moments import Moments, common_features, moments
from fedpca.planner import choose_solver
from fedpca.question import Question, question
from fedpca.rank import rank_rule
from fedpca.solvers import SOLVERS, Solution
from fedpca.solvers.merging import explained_in_summary, merge_own_means


@question(asks={"V": "float64 d k"}, answers={"explained": "float64", "total": "float64"})
def explained_energy(site: Any, V: Array) -> dict[str, Any]:
    """What the components carry of a site's squares about its own mean, and all of these.

    Squares about a point exceed those about the mean by n times the squared distance. Where a site is
    so far from the others that the difference would cancel, its rows are read once more.
    """
    total, n = float(site.memory["energy"]), site.rows.n_rows
    explained = site.framed.energy_along(V, total)
    own_mean = site.memory["sums"][site.memory.get("order", slice(None))] / max(1, n)
    away = (own_mean - site.memory["mean"]) / site.memory["scale"]
    between = n * float(away @ away)
    if between <= MOST_CANCELLATION * (total - between):
        explained, total = explained - n * float(np.sum((away @ V) ** 2)), total - between
    else:
        own = FramedRows(
            site.rows,
            mean=own_mean,
            scale=site.memory["scale"],
            order=site.memory.get("order"),
        )
        total = float(own.squares().sum())
        explained = own.energy_along(V, total)
    return {"explained": np.float64(explained), "total": np.float64(total)}


def principal_components(
    fed: Federation,
    start: Array | None,
    *,
    n_components: Any,
    solver: str,
    center: bool,
    scale: bool,
    tol: float,
    max_rounds: int,
    options: dict[str, Any],
) -> tuple[Moments, Solution, dict[str, float]]:
    """The program of a fit: moments, the choice of solver and rank, the solver, the check a site."""
    common = common_features(fed)
    options = dict(options)
    # about zero there is no mean to have
    one_pass = solver == "merge" and options.pop("own_means") and center and not scale
    if one_pass:
        fed.record.solver = solver
        known, solution = merge_own_means(fed, common, n_components, **options)
    else:
        known = moments(fed, common, center=center, scale=scale)
        rank = rank_rule(n_components, known.n, known.d)
        if solver == "auto":
            solver = choose_solver(known.n, known.d, rank.first_look)
        fed.record.solver = solver
        solution = SOLVERS[solver](
            fed, known, rank, start=start, tol=tol, max_rounds=max_rounds, **options
        )
    for name in ("stopped", "missing", "angle_bound", "advice"):
        setattr(fed.record, name, getattr(solution, name))
    asked = explained_in_summary if one_pass else explained_energy
    return known, solution, _shares(fed, asked, solution.vectors)


def _shares(fed: Federation, asked: Question, V: Array) -> dict[str, float]:
    """The share of each site's variance that the components explain, where its policy tells."""
    try:
        answers = fed.gather(asked, V=np.ascontiguousarray(V))
    except PolicyRefused:  # then nobody but the site knows
        return {}
    return {
        name: float(share["explained"] / share["total"]) if share["total"] > 0 else float("nan")
        for name, share in answers.items()
    }
