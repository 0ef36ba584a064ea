"""Find how many rounds a solver takes, by letting it solve a made-up problem with the same variances.

From a random start, a solver's number of rounds depends on the rows only through the eigenvalues of
A'A and, for some solvers, through how the sites differ. So the solver's own program runs in this
process on rows that are made up from variances, which are guessed or come from public data:

    A = diag(sqrt(variance))                                 one site
    A_i = R_i S^(-1/2) diag(sqrt(variance)),  S = sum_i R_i'R_i     several, R_i like n_i random rows

Both have A'A = diag(variance). Several sites differ like sites whose rows are drawn from the same
distribution. Nobody's rows are involved. With many features, only some of the trailing variances are
kept, and the tolerance is raised by the same factor by which the sum of the variances falls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.solvers.contract import Solver, covariance_product
from fedpca.solvers.costs import Iterative, Rounds
from fedpca.solvers.exact.lanczos import Lanczos
from fedpca.solvers.pca import principal_components
from fedpca.solvers.planning.made_up import evenly_thinned, like_rows

# features of the made-up rows; Lanczos takes many, since it depends on all variances near the
# leading ones and needs few rounds
MAX_SIDE, MAX_SIDE_OF_LANCZOS = 240, 4000
MAX_ENTRIES = 1 << 17  # entries of a block of the made-up rows
LEAST_BLOCKS = 20  # blocks of k columns; with room for fewer, Lanczos would end too early
# side times squared columns; each round of other solvers takes many times as many operations
MAX_WORK = 1 << 18
N_STARTS = 3
MAX_SITES = 3  # made-up sites; more sites would not differ more


@dataclass(frozen=True)
class Rehearsed:
    """The rounds that a solver took and why it stopped.

    If the solver was not run, these are its usual rounds, and the reason is "".
    """

    rounds: Rounds
    stop_reason: str

    @property
    def has_ended(self) -> bool:
        """Return whether the solver ended before it ran out of rounds."""
        return self.stop_reason not in ("max_rounds", "stalled")


def rehearse(
    solver: Solver,
    variances: Array,
    k: int,
    rows: Sequence[int],
    *,
    tol: float,
    max_rounds: int,
) -> Rehearsed:
    """Return the rounds of a solver for sites with these numbers of rows and these variances.

    The rounds of subspace iteration vary with the start, so the median over a few starts is taken. With
    very many components, a rehearsal would take too long, so the solver's usual rounds are returned.
    """
    is_lanczos, d = isinstance(solver, Lanczos), len(variances)
    usual = solver.usual_rounds(sum(rows), d, k) if isinstance(solver, Iterative) else {}
    needs_sums = all(name == covariance_product.name for name, _ in usual)
    most = MAX_SIDE_OF_LANCZOS if is_lanczos else MAX_SIDE
    kept, tol = _thinned(np.sort(variances)[::-1], k, tol, most)
    is_too_thin = is_lanczos and len(kept) < min(d, LEAST_BLOCKS * k)
    if is_too_thin or (not is_lanczos and len(kept) * k**2 > MAX_WORK):
        return Rehearsed(usual, "")
    found: list[Rehearsed] = []
    for seed in range(N_STARTS if needs_sums and not is_lanczos else 1):
        made_up = _one_site(kept) if needs_sums else _several(kept, rows, d, seed)
        found.append(_rounds_for(solver, made_up, k, tol, max_rounds, seed))
        if not found[-1].has_ended:
            return found[-1]
    return sorted(found, key=lambda each: sum(each.rounds.values()))[len(found) // 2]


def _rounds_for(
    solver: Solver, made_up: dict[str, Any], k: int, tol: float, max_rounds: int, seed: int
) -> Rehearsed:
    """Return the rounds of a solver on made-up rows, from the start that a seed gives."""
    fed = Federation.local(made_up)
    program = partial(
        principal_components,
        solver=solver,
        n_components=k,
        center=False,
        scale=False,
        tol=tol,
        max_rounds=max_rounds,
    )
    result = fed.run(program, identity={"program": "rehearsal"}, seed=seed)
    first = fed.record.sites[0]
    widths: Counter[tuple[str, int]] = Counter()
    for entry in fed.record.ledger:
        if entry.site == first and entry.direction == "up" and entry.field == "Y":
            widths[entry.question, entry.shape[1]] += 1
    return Rehearsed(dict(widths), result.outcome.stop_reason)


def _one_site(variances: Array) -> dict[str, Any]:
    """Return one site's rows, which suffice for a solver that needs only sums."""
    p, roots = len(variances), np.sqrt(variances)
    side = max(p, 2)  # a fit needs two rows
    return {"rehearsal": sp.csr_array((roots, (range(p), range(p))), (side, p))}


def _several(variances: Array, rows: Sequence[int], d: int, seed: int) -> dict[str, Any]:
    """Return rows for several sites, each with its own sampling errors."""
    p = len(variances)
    rng = np.random.default_rng(seed)
    positive = int(np.count_nonzero(variances))
    n = [max(2, round(each * p / d)) for each in sorted(rows)[-MAX_SITES:]]
    n[-1] += max(0, positive - sum(n))
    factors = [like_rows(rng, each, positive) for each in n]
    values, U = np.linalg.eigh(np.sum([R.T @ R for R in factors], axis=0))
    whiten = (U / np.sqrt(values)) @ U.T * np.sqrt(variances[:positive])
    return {
        f"rehearsal {i}": np.pad(R @ whiten, ((0, 0), (0, p - positive)))
        for i, R in enumerate(factors)
    }


def _thinned(variances: Array, k: int, tol: float, most: int) -> tuple[Array, float]:
    """Return the variances, or fewer if there are very many, and the tolerance for their sum."""
    side = max(min(most, MAX_ENTRIES // k), 2 * k)
    if len(variances) <= side:
        return variances, tol
    kept = evenly_thinned(variances, max(k + 1, side // 2), side)
    return kept, tol * float(variances.sum() / (kept.sum() or 1.0))
