"""The program of a fit, from the first question to the last."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpca.errors import PolicyRefused
from fedpca.federation import Federation
from fedpca.message import Array
from fedpca.moments import Moments, moments
from fedpca.planner import choose_solver
from fedpca.question import question
from fedpca.rank import rank_rule
from fedpca.solvers import SOLVERS, Solution


@question(asks={"V": "float64 d k"}, answers={"explained": "float64", "total": "float64"})
def explained_energy(site: Any, V: Array) -> dict[str, Any]:
    """What the components carry of a site's sum of squares, and the whole of it."""
    total = np.float64(site.memory["energy"])
    return {"explained": np.float64(site.framed.energy_along(V, total)), "total": total}


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
