"""What a site keeps in the end, with the components known: the scores of its rows and what is wrong.

A = V U' + S + noise,   S where |A - V U'| is beyond the threshold
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from fedpca.message import Array
from fedpca.question import question
from fedpca.solvers.robust_parts import TIMES_MEDIAN, separate, typical_size
from fedpca.solvers.robust_rows import framed_rows
from fedpca.solvers.robust_site import CARRY, carried_scores


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
    """Keep the scores on the final, orthonormal U, and the sparse part, of rows that have a value.

    Squares of scores go out, but not those of rows that are mostly beyond the threshold: these have no
    say in U either.
    """
    A, present = framed_rows(site, centre)
    found = None if afresh else carried_scores(site, turn, mean_scores)
    first = TIMES_MEDIAN * typical_size(A, present)
    V, S = separate(A, present, U, float(threshold), first=first, V=found)
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
    outliers, present = site.remembered("shares")[0]
    return {"outliers": outliers, "present": present}
