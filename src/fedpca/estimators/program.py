"""The program of a fit, from the first question to the last."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpca.errors import PolicyRefused
from fedpca.federation import Federation
from fedpca.framed import MOST_CANCELLATION, FramedRows
from fedpca.message import Array
from fedpca.moments import Moments, moments
from fedpca.planner import choose_solver
from fedpca.question import question
from fedpca.rank import rank_rule
from fedpca.solvers import SOLVERS, Solution


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
) -> tuple[Moments, Solution, dict[str, float]]:
    """The program of a fit: moments, the choice of solver and rank, the solver, the check a site."""
    known = moments(fed, center=center, scale=scale)
    rank = rank_rule(n_components, known.n, known.d)
    if solver == "auto":
        solver = choose_solver(known.n, known.d, rank.first_look)
    fed.record.solver = solver
    solve = SOLVERS[solver]
    solution = solve(fed, known, rank, start=start, tol=tol, max_rounds=max_rounds)
    fed.record.stopped = solution.stopped
    try:
        shares = fed.gather(explained_energy, V=np.ascontiguousarray(solution.vectors))
    except PolicyRefused:  # then nobody but the site knows
        shares = {}
    ratios = {
        name: float(share["explained"] / share["total"]) if share["total"] > 0 else float("nan")
        for name, share in shares.items()
    }
    return known, solution, ratios
