"""Questions for robust PCA: what a site computes in each round and what it keeps at the end.

    A_i = (X_i - 1 m') / s,   A_i = V_i U' + S_i + noise

The components U, d x r, are common to all sites. The scores V_i, n_i x r, and the sparse part S_i stay
at the site. For a given U, each method finds V_i and S_i in a few passes that start from the previous
round's V_i. It uses hard thresholds, soft thresholds, or the gradient steps of the published method.
Missing entries, and outliers under a hard threshold, do not count: ``V_i U'`` replaces them
(`fedpca.models.robust`).

A site reads its rows in blocks that fit into a processor's cache. Between questions, it keeps the
scores V_i. At the end, it also keeps the sparse part S_i.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.models.robust import (
    TIMES_MEDIAN,
    judge,
    median_size,
    separate,
    stepped,
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

BLOCK_ENTRIES = 1 << 15  # a block and the arrays of its size fit into a cache
LARGE_BLOCK_ENTRIES = 1 << 20  # for rows that need many passes, most of them over few rows
NO_ROWS = np.zeros(0, np.int64)
MIN_BLOCK_ROWS = 64  # fewer would make products slow
SIZES_ENTRIES = 1 << 14  # entries whose median is taken, or somewhat fewer

CARRY = {"turn": "float64 q r", "center": "float64 d", "mean_scores": "float64 q"}
SUMS = {"AV": "float64 d r", "VV": "float64 r r", "sizes": f"int64 {N_BINS}"}


@dataclass(frozen=True)
class PresentRows:
    """What a site remembers about its rows: how many count, the order of the columns, and which."""

    n: int
    order: Array | None = None  # (d,), each common feature's column; None if the order is the same
    left_out: Array | None = None  # indices of rows that have a value but do not count


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
    mostly_outliers: Array  # indices of rows that do not affect the components


@dataclass(frozen=True)
class SparsePart:
    """A site's outliers, as a CSR matrix, and entry counts, which the site keeps at the end."""

    values: Array
    columns: Array
    row_starts: Array
    n_outliers: int
    n_present: int


def present_rows(
    site: Site,
    order: Array | None,
    entries: int = BLOCK_ENTRIES,
    left_out: Array | None = None,
) -> Iterator[Array]:
    """Yield a site's rows in small blocks, ``(n, d)``, with columns in the common order.

    Rows without any values are left out, since they carry no information about components, center, or
    variances. So are those among the others
    whose indices are in ``left_out``.
    """
    done = 0
    for block in site.rows.blocks():
        step = max(MIN_BLOCK_ROWS, entries // max(1, block.shape[1]))
        for start in range(0, block.shape[0], step):
            part = block[start : start + step]
            rows = np.asarray(part.toarray() if is_sparse(part) else part, np.float64)
            is_empty = np.isnan(rows).all(axis=1)
            if is_empty.any():
                rows = rows[~is_empty]
            if left_out is not None:
                own = left_out[(left_out >= done) & (left_out < done + len(rows))] - done
                done += len(rows)
                rows = np.delete(rows, own, axis=0)
            yield rows if order is None else rows[:, order]


class Block(NamedTuple):
    """Some of a site's rows, standardized."""

    rows: slice  # where they are among the rows that have a value
    A: Array  # (m, d), zero where a value is missing
    present: Array  # (m, d), whether an entry has a value


def blocks_about(
    site: Site,
    center: Array,
    scale: Array | float = 1.0,
    features: Array | slice = slice(None),
    entries: int = BLOCK_ENTRIES,
) -> Iterator[Block]:
    """Yield some features of a site's rows about a center, in units of a scale."""
    done = 0
    own = site.recall(PresentRows)
    for rows in present_rows(site, own.order, entries, own.left_out):
        yield Block(slice(done, done + len(rows)), *values_about(rows[:, features], center, scale))
        done += len(rows)


def standardized_blocks(
    site: Site, center: Array | float = 0.0, entries: int = BLOCK_ENTRIES
) -> Iterator[Block]:
    """Yield A, standardized with the run's center and scale.

    ``center`` shifts the center further, in units of the scale. Features that do not vary are set to
    zero, and none of their entries count as present. Otherwise, those entries would appear to fit.
    """
    frame = site.recall(RobustFrame)
    constant = np.flatnonzero(frame.varies == 0)
    about = frame.mean + center * frame.scale
    for block in blocks_about(site, about, frame.scale, entries=entries):
        block.A[:, constant] = 0.0
        block.present[:, constant] = False
        yield block


class Sizes:
    """A sample of entries' sizes, for their median; all of them unless there are many."""

    def __init__(self, site: Site) -> None:
        n_entries = site.recall(PresentRows).n * site.rows.n_features
        self._step = -(-n_entries // SIZES_ENTRIES) or 1
        self._sizes: list[Array] = []

    def add(self, rows: slice, values: Array, chosen: Array) -> None:
        """Add the sizes of the chosen entries in every ``step``-th row."""
        every = slice(-rows.start % self._step, None, self._step)
        self._sizes.append(np.abs(values[every][chosen[every]]))

    def median(self) -> float:
        """Return the median size, or zero if there are no entries."""
        return median_size(np.concatenate(self._sizes)) if self._sizes else 0.0


@question(
    asks={"features": "uint8 bytes"},
    answers={"n": "int64", "present": "int64 d", "total": "float64 d"},
    remembers=True,
)
def count_present(site: Site, features: Array) -> dict[str, Any]:
    """Count the rows that have a value, and count and sum each feature's values."""
    order = own_order(site, features)
    n, present = 0, np.zeros(site.rows.n_features, np.int64)
    total = np.zeros(len(present))
    for rows in present_rows(site, order):
        if np.isinf(rows).any():
            raise InputError("the rows contain infinite values; use NaN for missing values")
        n += len(rows)
        present += (~np.isnan(rows)).sum(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            total += np.nansum(rows, axis=0)
    site.remember(PresentRows(n, order))
    refuse_overflow(total)
    return {"n": np.int64(n), "present": present, "total": total}


@question(asks={"about": "float64 d"}, answers={"squares": "float64 d"})
def squares_present(site: Site, about: Array) -> dict[str, Array]:
    """Sum the squares of each feature's values about a point."""
    squares = np.zeros(len(about))
    for block in blocks_about(site, about):
        with np.errstate(over="ignore"):
            squares += np.einsum("ij,ij->j", block.A, block.A)
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
    counted = count_in_bins(
        np.empty((0, len(guess))), np.empty((0, len(guess)), bool), guess, int(shift), "values"
    )
    for block in blocks_about(site, about, features=features):
        own = count_in_bins(block.A, block.present, guess, int(shift), KINDS[int(of)])
        counted = {name: counts + own[name] for name, counts in counted.items()}
    return counted


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
    sizes, above_zero = Sizes(site), Sizes(site)
    for rows, A, present in standardized_blocks(site):
        sizes.add(rows, A, present)
        above_zero.add(rows, A, A != 0)
    size = sizes.median() or above_zero.median()
    n = site.recall(PresentRows).n
    return {"sizes": as_bins(size, float(reference), n if size else 0)}


@question(
    asks={"U": "float64 d r", "threshold": "float64"},
    answers={"Y": "float64 d r"},
)
def clipped_product(site: Site, U: Array, threshold: Array) -> dict[str, Any]:
    """Send C'(C U), where C is the rows with zeros for entries missing or beyond the threshold."""
    Y = np.zeros_like(U)
    for block in standardized_blocks(site):
        C = without_large(block.A, float(threshold))
        Y += C.T @ (C @ U)
    return {"Y": Y}


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
    d, r = U.shape
    carried = None if is_first else carried_scores(site, turn, mean_scores)
    scores, sizes = np.empty((site.recall(PresentRows).n, r)), Sizes(site)
    AV, VV, total = np.zeros((d, r)), np.zeros((r, r)), np.zeros(d)
    good, n = np.zeros(d, np.int64), 0
    for own, A, present in standardized_blocks(site, center):
        V = without_large(A, threshold) @ U if carried is None else carried[own]
        L = V @ U.T
        rows = judge(A - L, present, threshold, reach)
        restart = rows.mostly_outliers
        if restart.any() and carried is not None:
            V[restart] = separate(A[restart], present[restart], U, float(threshold))[0]
            L = V @ U.T
            rows = judge(A - L, present, threshold, reach)
        V, L = stepped(V, L, U, rows)
        rows = judge(A - L, present, threshold, reach)
        D, V = L + rows.pull, V + rows.pull @ U
        scores[own] = V
        sizes.add(own, rows.R, present)
        good += np.count_nonzero(rows.inliers, axis=0)
        if rows.mostly_outliers.any():  # such rows do not affect U until their scores fit
            D, V = D[~rows.mostly_outliers], V[~rows.mostly_outliers]
        AV += D.T @ V
        VV += V.T @ V
        total += D.sum(axis=0)
        n += len(D)
    site.remember(Scores(scores, NO_ROWS))
    return {
        "AV": AV,
        "VV": VV,
        "sizes": as_bins(sizes.median(), float(threshold), len(scores)),
        "good": good,
        "total": total,
        "rows": np.int64(n),
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
    d, r = U.shape
    carried = None if is_first else carried_scores(site, turn, mean_scores)
    scores, sizes = np.empty((site.recall(PresentRows).n, r)), Sizes(site)
    AV, VV, total = np.zeros((d, r)), np.zeros((r, r)), np.zeros(d)
    to_scores = _regression(U, float(ridge))
    for rows, A, present in standardized_blocks(site, center):
        V = without_large(A, threshold) @ to_scores if carried is None else carried[rows]
        V, D, R = _soft_passes(A, present, U, V, float(threshold), to_scores, int(passes))
        scores[rows] = V
        sizes.add(rows, R, present)
        AV += D.T @ V
        VV += V.T @ V
        total += D.sum(axis=0)
    site.remember(Scores(scores, NO_ROWS))
    n = len(scores)
    return {
        "AV": AV,
        "VV": VV,
        "sizes": as_bins(sizes.median(), float(threshold), n),
        "total": total,
    }


def carried_scores(site: Site, turn: Array, mean_scores: Array) -> Array:
    """Return the last round's scores, converted to the new center and the new U."""
    return np.asarray((site.recall(Scores).V - mean_scores) @ turn)


def _regression(U: Array, ridge: float) -> Array:
    """Return the matrix, ``(d, r)``, that maps rows to their scores by ridge regression on U."""
    return np.asarray(U @ np.linalg.inv(U.T @ U + ridge * np.eye(U.shape[1])))


def _soft_passes(
    A: Array, present: Array, U: Array, V: Array, threshold: float, to_scores: Array, passes: int
) -> tuple[Array, Array, Array]:
    """Return the scores V, the cleaned rows D, and the residuals after some passes.

    D holds the rows without the sparse part and with missing entries filled in.
    """
    for _ in range(passes):
        L = V @ U.T
        R = A - L
        D = L + np.clip(R, -threshold, threshold) * present
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
    n_own = site.recall(PresentRows).n
    weight = n_own / int(n)
    scores = np.empty((n_own, U.shape[1])) if is_first else site.recall(Scores).V.copy()
    for done in range(int(steps)):
        to_scores = _regression(U, float(ridge))
        AV, VV = np.zeros_like(U), np.zeros((U.shape[1],) * 2)
        for rows, A, present in standardized_blocks(site):
            starts = is_first and not done
            V = without_large(A, threshold) @ to_scores if starts else scores[rows]
            V, D, _ = _soft_passes(A, present, U, V, float(threshold), to_scores, int(passes))
            scores[rows] = V
            AV += D.T @ V
            VV += V.T @ V
        longest = float(np.linalg.eigvalsh(VV)[-1])  # the squared norm of V
        eta = float(step) or (0.5 / (longest + weight * float(ridge)) if longest > 0 else 0.0)
        U = U - eta * (U @ VV - AV + weight * ridge * U)
    site.remember(Scores(scores, NO_ROWS))
    return {"U": weight * U, "VV": VV}


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
    carried = None if afresh else carried_scores(site, turn, mean_scores)
    first = 0.0 if carried is not None else TIMES_MEDIAN * _typical_size(site, center)
    d, r = U.shape
    scores, sparse = np.empty((site.recall(PresentRows).n, r)), [sp.csr_array((0, d))]
    VV, n_present = np.zeros((r, r)), 0
    counts = np.zeros(len(scores), bool)
    for rows, A, present in standardized_blocks(site, center, LARGE_BLOCK_ENTRIES):
        own = None if carried is None else carried[rows]
        V, S = separate(A, present, U, float(threshold), first=first, V=own)
        scores[rows] = V
        sparse.append(sp.csr_array(S))
        in_row = np.count_nonzero(present, axis=1)
        counts[rows] = 2 * np.count_nonzero(S, axis=1) <= in_row
        V = V[counts[rows]]
        VV += V.T @ V
        n_present += int(in_row.sum())
    site.remember(Scores(scores, np.flatnonzero(~counts)))
    whole = sp.vstack(sparse, format="csr")
    columns, row_starts = whole.indices.astype(np.int64), whole.indptr.astype(np.int64)
    site.remember(SparsePart(whole.data, columns, row_starts, whole.nnz, n_present))
    return {"VV": VV, "rows": np.int64(counts.sum())}


def _typical_size(site: Site, center: Array) -> float:
    """Return the median size of the site's entries."""
    sizes = Sizes(site)
    for rows, A, present in standardized_blocks(site, center):
        sizes.add(rows, A, present)
    return sizes.median()


@question(answers={"outliers": "int64", "present": "int64"})
def sparse_share(site: Site) -> dict[str, Any]:
    """Count the site's outliers and its present entries."""
    part = site.recall(SparsePart)
    return {"outliers": np.int64(part.n_outliers), "present": np.int64(part.n_present)}
