"""Questions for robust PCA: what a site computes in each round and what it keeps at the end.

    A_i = (X_i - 1 m') / s,   A_i = V_i U' + S_i + noise

The components U, d x r, are common to all sites. The scores V_i, n_i x r, and the sparse part S_i stay
at the site. For a given U, each method finds V_i and S_i in a few passes that start from the previous
round's V_i. It uses hard thresholds, soft thresholds, or the gradient steps of the published method.
Missing entries, and outliers under a hard threshold, do not count: ``V_i U'`` replaces them
(`fedpca.models.robust`).

A site reads all its rows into memory while it answers, one site at a time. Between questions, it keeps
the scores V_i. At the end, it also keeps the sparse part S_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.models.robust import (
    TIMES_MEDIAN,
    fitted_scores,
    judge,
    separate,
    typical_size,
    values_about,
    without_large,
)
from fedpca.protocol.question import question
from fedpca.rows.in_memory import is_sparse
from fedpca.rows.standardized import refuse_overflow
from fedpca.solvers.robust.medians import BINS, KINDS, N_BINS, as_bins, count_in_bins
from fedpca.solvers.standardize import own_order

if TYPE_CHECKING:
    from fedpca.site.site import Site

CARRY = {"turn": "float64 q r", "center": "float64 d", "mean_scores": "float64 q"}
SUMS = {"AV": "float64 d r", "VV": "float64 r r", "sizes": f"int64 {N_BINS}"}


@dataclass(frozen=True)
class PresentRows:
    """What a site remembers about its rows: how many have a value and the order of the columns."""

    n: int
    order: Array | None = None  # (d,), each common feature's column; None if the order is the same


@dataclass(frozen=True)
class RobustFrame:
    """The run's center and scale, which a site remembers."""

    mean: Array  # (d,)
    scale: Array  # (d,)
    varies: Array  # (d,), 1 for features that vary, else 0


@dataclass(frozen=True)
class Scores:
    """The scores of a site's rows after the last round, which the site remembers."""

    V: Array  # (n, r)


@dataclass(frozen=True)
class SparsePart:
    """A site's outliers, as a CSR matrix, and entry counts, which the site keeps at the end."""

    values: Array
    columns: Array
    row_starts: Array
    n_outliers: int
    n_present: int


def whole_rows(site: Site, order: Array | None) -> Array:
    """Read all rows of a site, ``(n, d)``, with columns in the common order.

    Rows without any values are left out, since they carry no information about components, center, or
    variances.
    """
    blocks = [b.toarray() if is_sparse(b) else np.asarray(b) for b in site.rows.blocks()]
    rows = np.vstack(blocks) if blocks else np.empty((0, site.rows.n_features))
    rows = rows[~np.isnan(rows).all(axis=1)]
    return np.asarray(rows if order is None else rows[:, order], np.float64)


def rows_about(
    site: Site, center: Array, features: Array | slice = slice(None)
) -> tuple[Array, Array]:
    """Return some features of a site's rows about a center, unscaled, and a mask of present values."""
    rows = whole_rows(site, site.recall(PresentRows).order)
    return values_about(rows[:, features], center)


def standardized_rows(site: Site, center: Array | float = 0.0) -> tuple[Array, Array]:
    """Return A, standardized with the run's center and scale, and a mask of entries that are present.

    ``center`` shifts the center further, in units of the scale. Features that do not vary are set to
    zero, and none of their entries count as present. Otherwise, those entries would appear to fit.
    """
    frame, rows = site.recall(RobustFrame), whole_rows(site, site.recall(PresentRows).order)
    A, present = values_about(rows, frame.mean + center * frame.scale, frame.scale)
    return np.where(frame.varies, A, 0.0), present & (frame.varies > 0)


@question(
    asks={"features": "uint8 bytes"},
    answers={"n": "int64", "present": "int64 d", "total": "float64 d"},
    remembers=True,
)
def count_present(site: Site, features: Array) -> dict[str, Any]:
    """Count the rows that have a value, and count and sum each feature's values."""
    order = own_order(site, features)
    rows = whole_rows(site, order)
    site.remember(PresentRows(len(rows), order))
    if np.isinf(rows).any():
        raise InputError("the rows contain infinite values; use NaN for missing values")
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.nansum(rows, axis=0)
    refuse_overflow(total)
    return {"n": np.int64(len(rows)), "present": (~np.isnan(rows)).sum(axis=0), "total": total}


@question(asks={"about": "float64 d"}, answers={"squares": "float64 d"})
def squares_present(site: Site, about: Array) -> dict[str, Array]:
    """Sum the squares of each feature's values about a point."""
    away, _ = rows_about(site, about)
    with np.errstate(over="ignore"):
        squares = np.einsum("ij,ij->j", away, away)
    refuse_overflow(squares)
    return {"squares": squares}


@question(
    asks={
        "features": "int64 m",
        "about": "float64 m",
        "guess": "float64 m",
        "shift": "int64",
        "of": "int64",
    },
    answers={"counts": f"int64 m {BINS + 2}", "less": "int64 m", "equal": "int64 m"},
)
def count_values(
    site: Site, features: Array, about: Array, guess: Array, shift: Array, of: Array
) -> dict[str, Array]:
    """Count some features' values below the bin of a guess, in each part of it, and above it.

    Also count the values less than the guess and the values equal to it. ``of`` selects what is
    counted: the values about a point, their distances from it, or their nonzero distances from it.
    """
    values, present = rows_about(site, about, features)
    return count_in_bins(values, present, guess, int(shift), KINDS[int(of)])


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
def begin_robust(
    site: Site, mean: Array, scale: Array, varies: Array, reference: Array
) -> dict[str, Any]:
    """Store the center and the scale, and send the bin of the typical size of the site's entries.

    If most entries are zero, as in tables of counts, the typical size is that of the nonzero entries.
    """
    site.remember(RobustFrame(mean, scale, varies))
    A, present = standardized_rows(site)
    size = typical_size(A, present) or typical_size(A, A != 0)
    return {"sizes": as_bins(size, float(reference), len(A) if size else 0)}


@question(
    asks={"U": "float64 d r", "threshold": "float64"},
    answers={"Y": "float64 d r"},
)
def clipped_product(site: Site, U: Array, threshold: Array) -> dict[str, Any]:
    """Send C'(C U), where C is the rows with zeros for entries missing or beyond the threshold."""
    C = without_large(standardized_rows(site)[0], float(threshold))
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
    site: Site,
    U: Array,
    turn: Array,
    center: Array,
    mean_scores: Array,
    threshold: Array,
    reach: Array,
    is_first: Array,
) -> dict[str, Any]:
    """Fit scores on orthonormal U by least squares, leaving out outliers, and send sums for the next U.

    Rows are centered on ``center``, which has moved since the last round by the point that has
    ``mean_scores``. Rows that are mostly outliers get new scores from scratch. If they started from
    their current scores, a decreasing threshold would leave them behind.
    """
    A, present = standardized_rows(site, center)
    V = carried_scores(site, turn, mean_scores) if not is_first else without_large(A, threshold) @ U
    rows = judge(A, present, V @ U.T, threshold, reach)
    restart = rows.mostly_outliers
    if restart.any() and not is_first:
        V[restart] = separate(A[restart], present[restart], U, float(threshold))[0]
        rows = judge(A, present, V @ U.T, threshold, reach)
    V = fitted_scores(V, U, rows)
    L = V @ U.T
    rows = judge(A, present, L, threshold, reach)
    D, V = L + rows.pull, V + rows.pull @ U
    site.remember(Scores(V))
    sizes = as_bins(typical_size(rows.R, present), float(threshold), len(A))
    if rows.mostly_outliers.any():  # such rows do not affect U until their scores fit
        D, V = D[~rows.mostly_outliers], V[~rows.mostly_outliers]
    return {
        "AV": D.T @ V,
        "VV": V.T @ V,
        "sizes": sizes,
        "good": rows.inliers.sum(axis=0),
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
    site: Site,
    U: Array,
    turn: Array,
    center: Array,
    mean_scores: Array,
    threshold: Array,
    ridge: Array,
    passes: Array,
    is_first: Array,
) -> dict[str, Any]:
    """Fit scores on U by ridge regression, with residuals clipped to the threshold."""
    A, present = standardized_rows(site, center)
    if is_first:
        V = _first_scores(A, U, float(threshold), float(ridge))
    else:
        V = carried_scores(site, turn, mean_scores)
    V, D, R = _soft_passes(A, present, U, V, float(threshold), float(ridge), int(passes))
    site.remember(Scores(V))
    sizes = as_bins(typical_size(R, present), float(threshold), len(A))
    return {"AV": D.T @ V, "VV": V.T @ V, "sizes": sizes, "total": D.sum(axis=0)}


def carried_scores(site: Site, turn: Array, mean_scores: Array) -> Array:
    """Return the last round's scores, converted to the new center and the new U."""
    return np.asarray((site.recall(Scores).V - mean_scores) @ turn)


def _first_scores(A: Array, U: Array, threshold: float, ridge: float) -> Array:
    """Fit initial scores by ridge regression to the entries within the threshold."""
    return np.asarray(without_large(A, threshold) @ _regression(U, ridge))


def _regression(U: Array, ridge: float) -> Array:
    """Return the matrix, ``(d, r)``, that maps rows to their scores by ridge regression on U."""
    return np.asarray(U @ np.linalg.inv(U.T @ U + ridge * np.eye(U.shape[1])))


def _soft_passes(
    A: Array, present: Array, U: Array, V: Array, threshold: float, ridge: float, passes: int
) -> tuple[Array, Array, Array]:
    """Return the scores V, the cleaned rows D, and the residuals after some passes.

    D holds the rows without the sparse part and with missing entries filled in.
    """
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
    site: Site,
    U: Array,
    threshold: Array,
    ridge: Array,
    step: Array,
    steps: Array,
    passes: Array,
    n: Array,
    is_first: Array,
) -> dict[str, Any]:
    """Take local gradient steps on U, and send U weighted by the site's share of rows.

    A ``step`` of 0 means half the longest stable step length.
    """
    A, present = standardized_rows(site)
    V = None if is_first else site.recall(Scores).V
    if V is None:
        V = _first_scores(A, U, float(threshold), float(ridge))
    weight = len(A) / int(n)
    for _ in range(int(steps)):
        V, D, _ = _soft_passes(A, present, U, V, float(threshold), float(ridge), int(passes))
        gradient = U @ (V.T @ V) - D.T @ V + weight * ridge * U
        length = np.linalg.norm(V, 2) if len(V) else 0.0
        eta = float(step) or (0.5 / (length**2 + weight * float(ridge)) if length else 0.0)
        U = U - eta * gradient
    site.remember(Scores(V))
    return {"U": weight * U, "VV": V.T @ V}


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
def finish_robust(
    site: Site,
    U: Array,
    turn: Array,
    center: Array,
    mean_scores: Array,
    threshold: Array,
    afresh: Array,
) -> dict[str, Any]:
    """Keep the sparse part and the scores V on the final, orthonormal U, and send V'V.

    The sparse part and the scores cover the rows that have a value. V'V excludes rows that are mostly
    outliers, since they do not affect U either.
    """
    A, present = standardized_rows(site, center)
    carried = None if afresh else carried_scores(site, turn, mean_scores)
    first = TIMES_MEDIAN * typical_size(A, present)
    V, S = separate(A, present, U, float(threshold), first=first, V=carried)
    sparse = sp.csr_array(S)
    site.remember(Scores(V))
    columns, row_starts = sparse.indices.astype(np.int64), sparse.indptr.astype(np.int64)
    site.remember(SparsePart(sparse.data, columns, row_starts, sparse.nnz, int(present.sum())))
    mostly_inliers = 2 * (S != 0).sum(axis=1) <= present.sum(axis=1)
    V = V[mostly_inliers]
    return {"VV": V.T @ V, "rows": np.int64(len(V))}


@question(answers={"outliers": "int64", "present": "int64"})
def sparse_share(site: Site) -> dict[str, Any]:
    """Count the site's outliers and its present entries."""
    part = site.recall(SparsePart)
    return {"outliers": np.int64(part.n_outliers), "present": np.int64(part.n_present)}
