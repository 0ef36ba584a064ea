"""What a site does in a round of robust PCA: it separates its rows, with the components given.

    A_i = V_i U' + S_i + noise,   U of d x r common to all sites, V_i of n_i x r and sparse S_i its own

Three ways to find V_i and S_i for a U, each a few passes from where V_i was: hard and soft thresholds,
and the gradient steps of the published method. Entries that are missing, and those that hard
thresholds call outliers, are replaced by ``V_i U'``, as if they were unknown (`robust_parts`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpca.message import Array
from fedpca.question import question
from fedpca.solvers.medians import N_BINS, as_bins
from fedpca.solvers.robust_parts import fitted_scores, judged, separate, typical_size, without_large
from fedpca.solvers.robust_rows import framed_rows

CARRY = {"turn": "float64 q r", "centre": "float64 d", "mean_scores": "float64 q"}
SUMS = {"AV": "float64 d r", "VV": "float64 r r", "sizes": f"int64 {N_BINS}"}


@question(
    asks={
        "mean": "float64 d",
        "scale": "float64 d",
        "varies": "uint8 d",
        "reference": "float64",
    },
    answers={"sizes": f"int64 {N_BINS}"},
    remembers=True,
)
def enter_robust(
    site: Any, mean: Array, scale: Array, varies: Array, reference: Array
) -> dict[str, Any]:
    """Settle on the frame; the typical size of the site's entries goes out as its bin.

    Where most are zero, as in tables of counts, it is that of the others.
    """
    site.memory |= {"mean": mean, "scale": scale, "varies": varies}
    A, present = framed_rows(site)
    size = typical_size(A, present) or typical_size(A, A != 0)
    return {"sizes": as_bins(size, float(reference), len(A) if size else 0)}


@question(
    asks={"U": "float64 d r", "threshold": "float64"},
    answers={"Y": "float64 d r"},
)
def clipped_product(site: Any, U: Array, threshold: Array) -> dict[str, Any]:
    """C'(C U), C being the rows with zeros for all that is missing or beyond the threshold."""
    C = without_large(framed_rows(site)[0], float(threshold))
    return {"Y": C.T @ (C @ U)}


@question(
    asks={
        "U": "float64 d r",
        **CARRY,
        "threshold": "float64",
        "reach": "float64 d",
        "is_first": "int64",
    },
    answers={**SUMS, "good": "int64 d", "total": "float64 d", "rows": "int64"},
    remembers=True,
)
def hard_round(
    site: Any,
    U: Array,
    turn: Array,
    centre: Array,
    mean_scores: Array,
    threshold: Array,
    reach: Array,
    is_first: Array,
) -> dict[str, Any]:
    """Scores by least squares on orthonormal U, outliers beyond the threshold taken as unknown.

    Rows are taken about ``centre``, which moved by what had ``mean_scores``. Those that are lost are
    separated afresh: from where their scores are, a threshold that falls leaves them behind.
    """
    A, present = framed_rows(site, centre)
    V = carried_scores(site, turn, mean_scores) if not is_first else without_large(A, threshold) @ U
    rows = judged(A, present, V @ U.T, threshold, reach)
    if rows.lost.any() and not is_first:
        V[rows.lost] = separate(A[rows.lost], present[rows.lost], U, float(threshold))[0]
        rows = judged(A, present, V @ U.T, threshold, reach)
    V = fitted_scores(V, U, rows)
    L = V @ U.T
    rows = judged(A, present, L, threshold, reach)
    D, V = L + rows.pull, V + rows.pull @ U
    site.memory["V"] = V
    sizes = as_bins(typical_size(rows.R, present), float(threshold), len(A))
    if rows.lost.any():  # which have no say in U before their scores are found
        D, V = D[~rows.lost], V[~rows.lost]
    return {
        "AV": D.T @ V,
        "VV": V.T @ V,
        "sizes": sizes,
        "good": rows.good.sum(axis=0),
        "total": D.sum(axis=0),
        "rows": np.int64(len(D)),
    }


@question(
    asks={
        "U": "float64 d r",
        **CARRY,
        "threshold": "float64",
        "ridge": "float64",
        "passes": "int64",
        "is_first": "int64",
    },
    answers={**SUMS, "total": "float64 d"},
    remembers=True,
)
def soft_round(
    site: Any,
    U: Array,
    turn: Array,
    centre: Array,
    mean_scores: Array,
    threshold: Array,
    ridge: Array,
    passes: Array,
    is_first: Array,
) -> dict[str, Any]:
    """Scores by ridge regression on U, what is beyond the threshold taken off."""
    A, present = framed_rows(site, centre)
    if is_first:
        V = _first_scores(A, U, float(threshold), float(ridge))
    else:
        V = carried_scores(site, turn, mean_scores)
    V, D, R = _soft_passes(A, present, U, V, float(threshold), float(ridge), int(passes))
    site.memory["V"] = V
    sizes = as_bins(typical_size(R, present), float(threshold), len(A))
    return {"AV": D.T @ V, "VV": V.T @ V, "sizes": sizes, "total": D.sum(axis=0)}


def carried_scores(site: Any, turn: Array, mean_scores: Array) -> Array:
    """The scores of the last round, as they are about the new centre and on the new U."""
    return np.asarray((site.remembered("V")[0] - mean_scores) @ turn)


def _first_scores(A: Array, U: Array, threshold: float, ridge: float) -> Array:
    """Scores by ridge regression of what is within the threshold."""
    return np.asarray(without_large(A, threshold) @ _regression(U, ridge))


def _regression(U: Array, ridge: float) -> Array:
    """What takes rows to their scores by ridge regression on U, ``(d, r)``."""
    return np.asarray(U @ np.linalg.inv(U.T @ U + ridge * np.eye(U.shape[1])))


def _soft_passes(
    A: Array, present: Array, U: Array, V: Array, threshold: float, ridge: float, passes: int
) -> tuple[Array, Array, Array]:
    """V, the rows without the sparse part and with missing entries filled in, and the residuals."""
    to_scores = _regression(U, ridge)
    for _ in range(passes):
        L = V @ U.T
        R = A - L
        D = np.where(present, L + np.clip(R, -threshold, threshold), L)
        V = D @ to_scores
    return V, D, R


@question(
    asks={
        "U": "float64 d r",
        "threshold": "float64",
        "ridge": "float64",
        "step": "float64",
        "steps": "int64",
        "passes": "int64",
        "n": "int64",
        "is_first": "int64",
    },
    answers={"U": "float64 d r", "VV": "float64 r r"},
    remembers=True,
)
def gradient_round(
    site: Any,
    U: Array,
    threshold: Array,
    ridge: Array,
    step: Array,
    steps: Array,
    passes: Array,
    n: Array,
    is_first: Array,
) -> dict[str, Any]:
    """Local gradient steps of U, weighted by rows; one of 0 is half of the longest that is stable."""
    A, present = framed_rows(site)
    V = None if is_first else site.remembered("V")[0]
    if V is None:
        V = _first_scores(A, U, float(threshold), float(ridge))
    weight = len(A) / int(n)
    for _ in range(int(steps)):
        V, D, _ = _soft_passes(A, present, U, V, float(threshold), float(ridge), int(passes))
        gradient = U @ (V.T @ V) - D.T @ V + weight * ridge * U
        length = np.linalg.norm(V, 2) if len(V) else 0.0
        eta = float(step) or (0.5 / (length**2 + weight * float(ridge)) if length else 0.0)
        U = U - eta * gradient
    site.memory["V"] = V
    return {"U": weight * U, "VV": V.T @ V}
