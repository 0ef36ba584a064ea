"""Rows separated with the components known: what a site keeps in the end, and what new rows are.

A = V U' + S + noise,   S where |A - V U'| is beyond the threshold
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from fedpca.message import Array
from fedpca.question import question
from fedpca.solvers.robust_rows import framed_rows
from fedpca.solvers.robust_site import (
    CARRY,
    FALL,
    TIMES_MEDIAN,
    filled,
    typical_size,
    without_large,
)

MOST_PASSES, SETTLED = 200, 1e-12  # until scores change by no more than this part


@question(
    asks={
        "U": "float64 d r",
        **CARRY,
        "threshold": "float64",
        "afresh": "int64",
    },
    answers={"VV": "float64 r r", "rows": "int64"},
    remembers=True,
)
def keep_sparse(
    site: Any,
    U: Array,
    turn: Array,
    centre: Array,
    mean_scores: Array,
    threshold: Array,
    afresh: Array,
) -> dict[str, Any]:
    """Keep the scores on the final, orthonormal U, and the sparse part; squares of scores go out.

    Not those of rows that are mostly beyond the threshold, which have no say in U either.
    """
    A, present = framed_rows(site, centre)
    found = None if afresh else (site.remembered("V")[0] - mean_scores) @ turn
    V, S = separate(A, present, U, float(threshold), V=found)
    kept = sp.csr_array(S)
    site.memory |= {
        "V": V,
        "sparse_values": kept.data,
        "sparse_columns": kept.indices.astype(np.int64),
        "sparse_rows": kept.indptr.astype(np.int64),
        "shares": np.array([kept.nnz, int(present.sum())]),
    }
    kept_rows = 2 * (S != 0).sum(axis=1) <= present.sum(axis=1)
    V = V[kept_rows]
    return {"VV": V.T @ V, "rows": np.int64(len(V))}


@question(answers={"outliers": "int64", "present": "int64"})
def sparse_share(site: Any) -> dict[str, Any]:
    """How many of the site's entries are outliers, and how many there are."""
    outliers, present = site.memory["shares"]
    return {"outliers": outliers, "present": present}


def separate(
    A: Array, present: Array, U: Array, threshold: float, *, V: Array | None = None
) -> tuple[Array, Array]:
    """Scores of rows on orthonormal U, ``(d, r)``, and their sparse part, beyond the threshold.

    Outliers give way before what they hide: at first each row has a threshold of its own, that falls as
    its median residual does. Where the median is itself an outlier, it then falls without it.
    """
    if V is None:
        V = without_large(A, max(TIMES_MEDIAN * typical_size(A, present), threshold)) @ U
    for _ in range(MOST_PASSES):
        L = V @ U.T
        own = _own_thresholds(A - L, present, threshold)
        last, V = V, filled(A, present, L, own).D @ U
        if (own <= threshold).all() or _has_settled(last, V):
            break
    for _ in range(MOST_PASSES):
        last, V = V, filled(A, present, V @ U.T, own).D @ U
        if (own <= threshold).all() and _has_settled(last, V):
            break
        own = np.maximum(FALL * own, threshold)
    R = A - V @ U.T
    return V, np.where(present & (np.abs(R) > threshold), R, 0.0)


def _own_thresholds(R: Array, present: Array, threshold: float) -> Array:
    """Those of each row on the way to the common one, ``(n, 1)``: a multiple of its median residual."""
    sizes = np.sort(np.where(present, np.abs(R), np.inf), axis=1)
    middle = np.minimum(present.sum(axis=1, keepdims=True) // 2, R.shape[1] - 1)
    medians = np.where(present.any(axis=1, keepdims=True), np.take_along_axis(sizes, middle, 1), 0)
    return np.maximum(TIMES_MEDIAN * medians, threshold)


def _has_settled(last: Array, V: Array) -> bool:
    return bool(np.linalg.norm(V - last) <= SETTLED * np.linalg.norm(V))
