"""Questions that all methods of robust PCA ask first and last, and what a site keeps.

    A_i = (X_i - 1 m') / s,   A_i = V_i U' + S_i + noise

The components U, d x r, are common to all sites. The scores V_i, n_i x r, and the sparse part S_i stay
at the site. For a given U, each method finds V_i and S_i in a few passes that start from the previous
round's V_i. The passes use hard thresholds, soft thresholds, or the published gradient steps.
Missing entries, and outliers under a hard threshold, do not count: ``V_i U'`` replaces them
(`fedpca.models.robust`). The question of a round is in the file of its method.

Between questions, a site keeps the scores V_i. At the end, it also keeps the sparse part S_i
and, if it has a folder, a list of its outliers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.errors import InputError
from fedpca.linalg.scratch import Scratch
from fedpca.models.outliers import write_outliers
from fedpca.models.robust import TIMES_MEDIAN, RobustModel, column_sums, separate
from fedpca.protocol.question import question
from fedpca.rows.standardized import refuse_large, refuse_overflow
from fedpca.site.store import OUTLIERS
from fedpca.solvers.common_features import own_order
from fedpca.solvers.robust.blocks import (
    PresentRows,
    RobustFrame,
    Sizes,
    blocks_about,
    present_rows,
    standardized_blocks,
)
from fedpca.solvers.robust.medians import (
    BINS,
    FIRST_SHIFT,
    KINDS,
    MANY,
    MIN_CELL,
    N_BINS,
    add_spread,
    as_bins,
    count_in_bins,
    undivided_bins,
)
from fedpca.solvers.robust.schedule import check_last_threshold, follow_bins
from fedpca.solvers.standardize import large_mean

if TYPE_CHECKING:
    from fedpca.site.site import Site

CARRY = {"turn": "float64 q r", "center": "float64 d", "mean_scores": "float64 q"}
SUMS = {
    "AV": "float64 d r",
    "VV": "float64 r r, semidefinite",
    "sizes": f"int64 {N_BINS}, count",
    "total": "float64 d",
    "rows": "int64, count",
}
NO_ROWS = np.zeros(0, np.int64)
MAX_OUTLIER = 1e70  # larger entries are refused, since sums of their squares could overflow


@dataclass(frozen=True)
class Scores:
    """The scores of a site's rows after the last round, which the site remembers."""

    V: Array  # (n, r)
    mostly_outliers: Array  # indices of rows that do not affect the components


@dataclass(frozen=True)
class SparsePart:
    """A site's outliers, as a CSR matrix, and its entry counts; the site keeps both at the end."""

    values: Array
    columns: Array
    row_starts: Array
    n_outliers: int
    n_present: int


def impossible_sums(answer: Arrays, _: Arrays) -> str | None:
    """Return what is wrong with counts and sums of a site's values, or None if nothing is."""
    if (answer["present"] > answer["n"]).any():
        return "has more values than rows"
    return large_mean(answer["total"], answer["present"], MAX_OUTLIER)


@question(
    doing="counting rows and values",
    asks={"features": "uint8 bytes"},
    answers={"n": "int64, count, rows", "present": "int64 d, count", "total": "float64 d"},
    remembers=True,
    check=impossible_sums,
)
def count_present(site: Site, features: Array) -> dict[str, Any]:
    """Count the rows that have a value, and count and sum each feature's values."""
    order = own_order(site, features)
    n, present = 0, np.zeros(site.rows.n_features, np.int64)
    total = np.zeros(len(present))
    for rows in present_rows(site, PresentRows(site.rows.n_rows, order)):
        if np.isinf(rows).any():
            raise InputError("the rows contain infinite values; use NaN for missing values")
        n += len(rows)
        present += (~np.isnan(rows)).sum(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            total += np.nansum(rows, axis=0)
    is_whole = int(present.sum()) == site.rows.n_rows * len(present)
    site.remember(PresentRows(n, order, is_whole=is_whole))
    refuse_overflow(total)
    refuse_large(total, present, MAX_OUTLIER)
    return {"n": np.int64(n), "present": present, "total": total}


@question(
    doing="adding up squares",
    asks={"about": "float64 d"},
    answers={"squares": "float64 d, squares"},
)
def squares_present(site: Site, about: Array) -> dict[str, Array]:
    """Sum the squares of each feature's values about a point."""
    squares = np.zeros(len(about))
    for block in blocks_about(site, about):
        with np.errstate(over="ignore"):
            squares += np.einsum("ij,ij->j", block.A, block.A)
    refuse_overflow(squares)
    return {"squares": squares}


@question(
    doing="finding medians",
    asks={
        "features": "int64 m",
        "about": "float64 m",
        "guess": "float64 m",
        "shift": f"int64, 0..{FIRST_SHIFT}",
        "of": f"int64, 0..{len(KINDS) - 1}",
    },
    answers={
        "counts": f"int64 m {BINS + 2}, count",
        "less": "int64 m, count",
        "equal": "int64 m, count",
    },
    remembers=True,
    grows={"m": "d"},
    passes=75,
)
def count_values(
    site: Site, features: Array, about: Array, guess: Array, shift: Array, of: Array
) -> dict[str, Array]:
    """Count some features' values below the bin of a guess, in each part of that bin, and above it.

    Also count the values less than the guess and the values equal to it. ``of`` selects what is
    counted: the values about a point, their distances from it, or their nonzero distances from it. A
    bin that holds few of the site's values is not divided.
    """
    follow_bins(site, features, about, guess, int(shift), int(of))
    level, kind = int(shift), KINDS[int(of)]
    counted, inside = _histograms(site, features, about, guess, level, kind)
    bins, number = undivided_bins(inside, site.policy.min_count)
    if number.any():
        counted, _ = _histograms(site, features, about, guess, level, kind, bins)
        add_spread(counted, guess, level, bins, number)
    return counted


def _histograms(
    site: Site,
    features: Array,
    about: Array,
    guess: Array,
    shift: int,
    kind: str,
    undivided: Array | None = None,
) -> tuple[Arrays, Array]:
    """Add up, over all blocks, what `count_in_bins` counts in each of them."""
    scratch, inside = Scratch(), np.zeros(0, np.int64)
    total: Arrays = {}
    for block in blocks_about(site, about, features=features):
        counted, within = count_in_bins(
            block.A, block.present, guess, shift, kind, undivided, scratch
        )
        total = {name: own + total[name] if total else own for name, own in counted.items()}
        inside = within + inside if inside.size else within
    return total, inside


@question(
    doing="measuring the typical size of values",
    asks={
        "mean": "float64 d, fixed",
        "scale": "float64 d, fixed, positive",
        "varies": "uint8 d, flag",
        "reference": "float64, positive",
    },
    answers={"sizes": f"int64 {N_BINS}, count"},
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


def least_count(site: Site) -> int:
    """Return the smallest number of rows that a sum may cover.

    A site with many rows requires a few of them in each sum, whatever its policy says, since that
    costs it nothing. So its result is the same under every policy with a ``min_count`` of at most
    `MIN_CELL`.
    """
    has_many = site.recall(PresentRows).n >= MANY
    return max(site.policy.min_count, MIN_CELL if has_many else 1)


class Round:
    """What a site adds up over its blocks in a round, and the scores that it will remember.

    The cleaned rows are ``D = V U' + C``, where C holds the residuals that count. So sums of D follow
    from sums of C and from sums of scores, which are far fewer than the entries.
    """

    def __init__(self, site: Site, U: Array) -> None:
        d, r = U.shape
        self.scores = np.empty((site.recall(PresentRows).n, r))
        self.sizes = Sizes(site)
        self.VV = np.zeros((r, r))
        self._U, self._n = U, 0
        self._CV, self._C_total = np.zeros((d, r)), np.zeros(d)
        self._fitted, self._fitted_total = np.zeros((r, r)), np.zeros(r)

    def add(self, C: Array, V: Array, before: Array) -> None:
        """Add a block of cleaned rows, ``before U' + C``, whose scores are now V."""
        self._fitted += before.T @ V
        self._fitted_total += column_sums(before)
        self._CV += C.T @ V
        self._C_total += column_sums(C)
        self.VV += V.T @ V
        self._n += len(V)

    @property
    def AV(self) -> Array:
        """Return D'V, ``(d, r)``."""
        return np.asarray(self._U @ self._fitted + self._CV)

    def without_small(self, good: Array, least: int) -> Array:
        """Remove sums over fewer than ``least`` rows; return the number of inliers in each column.

        A column with fewer than ``least`` inliers counts as if it had none: the fit replaces all of
        its entries. If fewer than ``least`` rows count, none do.
        """
        few = (good > 0) & (good < least)
        self._CV[few], self._C_total[few] = 0.0, 0.0
        good = np.where(few, 0, good)
        if self._n < least:
            for total in (self._CV, self._C_total, self._fitted, self._fitted_total, self.VV, good):
                total[:] = 0
            self._n = 0
        return good

    def answer(self, threshold: Array) -> dict[str, Any]:
        """Return the sums, and the bin of the median size relative to the threshold."""
        sizes = as_bins(self.sizes.median(), float(threshold), len(self.scores))
        total = self._U @ self._fitted_total + self._C_total
        n = np.int64(self._n)
        return {"AV": self.AV, "VV": self.VV, "sizes": sizes, "total": total, "rows": n}


def carried_scores(site: Site, turn: Array, mean_scores: Array) -> Array:
    """Return the last round's scores, converted to the new center and the new U."""
    return np.asarray((site.recall(Scores).V - mean_scores) @ turn)


@question(
    doing="separating outliers at the end",
    asks={
        "U": "float64 d r, orthonormal",
        **CARRY,
        "threshold": "float64, positive",
        "afresh": "int64, flag",
    },
    answers={"VV": "float64 r r, semidefinite, energy", "rows": "int64, count"},
    remembers=True,
    passes=300,
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

    If the site has a folder, it writes the list of its outliers there.
    """
    check_last_threshold(site, threshold)
    carried = None if afresh else carried_scores(site, turn, mean_scores)
    first = 0.0 if carried is not None else TIMES_MEDIAN * typical_size(site, center)
    r = U.shape[1]
    scores = np.empty((site.recall(PresentRows).n, r))
    VV, n_present, d = np.zeros((r, r)), 0, len(U)
    values, columns, in_rows = [], [], []  # the outliers of each block
    counts = np.zeros(len(scores), bool)
    for rows, A, present in standardized_blocks(site, center):
        own = None if carried is None else carried[rows]
        V, S = separate(A, present, U, float(threshold), first=first, V=own)
        scores[rows] = V
        where = np.flatnonzero(S)
        values.append(S.ravel()[where])
        columns.append(where % d)
        in_rows.append(np.bincount(where // d, minlength=len(S)))
        n_values = np.count_nonzero(present, axis=1)
        counts[rows] = 2 * in_rows[-1] <= n_values
        V = V[counts[rows]]
        VV += V.T @ V
        n_present += int(n_values.sum())
    site.remember(Scores(scores, np.flatnonzero(~counts)))
    row_starts = np.concatenate([[0], np.cumsum(np.concatenate(in_rows))])
    outliers = np.concatenate(values)
    site.remember(
        SparsePart(outliers, np.concatenate(columns), row_starts, len(outliers), n_present)
    )
    n = int(counts.sum())
    path = site.file(OUTLIERS)
    if path is not None:
        frame = site.recall(RobustFrame)
        model = RobustModel.from_low_rank(
            np.ascontiguousarray(U.T),
            np.diag(VV) / max(1, n - 1),
            mean=frame.mean + center * frame.scale,
            scale=frame.scale,
            noise_variance=0.0,
            n=max(n, 1),
            threshold=float(threshold),
        )
        _write_own_outliers(site, path, model)
    if n < least_count(site):
        VV, n = np.zeros_like(VV), 0
    return {"VV": VV, "rows": np.int64(n)}


def _write_own_outliers(site: Site, path: Path, model: RobustModel) -> None:
    """Write the list of the site's outliers, with columns in the common order."""
    order = site.recall(PresentRows).order
    names = site.rows.features
    if names is not None and order is not None:
        names = tuple(names[j] for j in order)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_outliers(path, model, {site.name: site.rows}, names, private=True)


def typical_size(site: Site, center: Array) -> float:
    """Return the median size of the site's entries."""
    sizes = Sizes(site)
    for rows, A, present in standardized_blocks(site, center):
        sizes.add(rows, A, present)
    return sizes.median()


def too_many_outliers(answer: Arrays, _: Arrays) -> str | None:
    """Return what is wrong if an answer has more outliers than values, else None."""
    return None if answer["outliers"] <= answer["present"] else "has more outliers than values"


@question(
    verb="gather",
    doing="counting outliers",
    answers={"outliers": "int64, count", "present": "int64, count"},
    check=too_many_outliers,
)
def sparse_share(site: Site) -> dict[str, Any]:
    """Count the site's outliers and its values; fewer outliers than ``min_count`` count as none."""
    part = site.recall(SparsePart)
    n = part.n_outliers if part.n_outliers >= site.policy.min_count else 0
    return {"outliers": np.int64(n), "present": np.int64(part.n_present)}
