"""Find directions along which one row, or a few, contribute nearly everything.

    share = max over v of  (a_i'v)^2 / sum_j (a_j'v)^2  =  a_i' (A'A)^+ a_i

Here, a_i is a row of A, the rows about their own mean times the roots of their weights. The share is
the row's leverage. If it is 1, some combination v of the columns is constant in all other rows, and
A'A v is a multiple of the row: two columns may be equal but for this row, or it may be the only one
without a category. A row that has a column to itself is a special case. As in `fedpca.rows.shares`, a
leverage is divided by ``1 - w_i / W``, so that it is what falls away if the row is left out.

A set S of rows has a direction to itself if the largest eigenvalue of ``H_SS`` is 1, where
``H = A (A'A)^+ A' + (w_i w_j)^(1/2) / W``, because then v is constant in all other rows. The trace of
``H_SS`` is then at least 1, so some row of S has ``H_ii >= 1 / |S|``. Leaving out row j lowers
``1 - H_ii`` by ``H_ij^2 / (1 - H_jj)``. So row j for which this is largest is left out, then the next
one, and so on. This may miss a set if rows outside of it also have large leverages.

**Cost.** Let r be the length of the longest row, in columns of length 1, and l the smallest eigenvalue
of A'A in these columns. No leverage is larger than ``r^2 / l``. The pass that adds up A'A also bounds
r (see `fedpca.rows.shares`), and one Cholesky factorization tells whether l is large enough. So rows
that are many more than the columns are read only once. Otherwise, all leverages are computed. Sets are
looked for only if some row could belong to one.

**Gaps.** Whoever moves the means that fill gaps adds multiples of the columns' gaps, g, to the columns.
So products of runs together are those of A with the columns g beside it. A column c that follows from
others wherever it has a value, as a sum of them does, leaves ``fill - c`` on its gaps. A fill that all
but a few of these rows would have leaves only the few.

**Numerics.** Eigenvalues of A'A, with columns of length 1, are known up to a few d 2^-53, so lengths
along directions are known only down to 2^-20. But answers end at 2^-48 (`fedpca.linalg.grid`), and a
column's difference of length e from another shows the row up to ``n^(1/2) 2^-47 / e``. So directions
that are shorter than 2^-20 are stretched by 2^20, and looked at once more. What is then still shorter
than 2^-40 is left out: it shows a row up to ``n^(1/2) 2^-7``, 8 % among 100 rows. Rounding of the
values themselves, as in a column that is the sum of others, is about 2^-52 long, so it is left out too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.linalg.blas import dtrmm

from fedpca.arrays import Array
from fedpca.rows.gaps import counting_blocks
from fedpca.rows.in_memory import Rows, is_sparse, rows_per_block, weighted_blocks
from fedpca.rows.shares import Shares

SHORT = 2.0**-40  # square of the length of a direction that is looked at again, or left out
# A few extreme rows often have 99 % of an honest column. At this share, they would be read from the
# products to 0.1 %, so all other rows agree for a reason.
ALONE = 1 - 1e-6
MAX_TOGETHER = 8  # rows of a set; larger sets are not looked for
MAX_FIRST = 2000  # rows with the largest leverages for which a set is looked for
KEPT_BYTES = 64 << 20  # rows with the largest leverages that may be in a set
# a leverage that is only bounded must be this share below a limit, and so must sums of entries of H
LIMIT_MARGIN = 0.1
LEVERAGE_ROUNDING = 1e-3  # by less than this, rounding changes a leverage
# square of a length; if all directions are longer, a Cholesky factor gives leverages to 1e-7, and
# costs less than eigenvectors
LONG = 2.0**-20


class Alone(NamedTuple):
    """Columns that have a large part in a direction that few rows have to themselves, ``(d,)``."""

    of_row: Array  # of bool; one row has too large a share
    of_rows: Array  # of bool; fewer rows than a sum must cover have everything


class WithGaps:
    """Rows with another column for each of some columns: 1 where it has a gap, and 0 elsewhere."""

    pass_cost = 1.0

    def __init__(self, rows: Rows, gapped: Array) -> None:
        self._rows, self._gapped = rows, gapped
        self.n_features, self.features = rows.n_features + len(gapped), None
        self.dtypes = ("float64",) * self.n_features

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return self._rows.n_rows

    def blocks(self) -> Iterator[Array]:
        """Yield the rows in blocks."""
        return (block for block, _ in self.weighted_blocks())

    def weighted_blocks(self) -> Iterator[tuple[Array, Array | None]]:
        """Yield the rows in blocks, and their weights."""
        for block, weights in weighted_blocks(self._rows):
            values = np.asarray(block.toarray() if is_sparse(block) else block, np.float64)
            yield np.hstack([values, np.isnan(values[:, self._gapped])]), weights

    def own(self, chosen: Array) -> Array:
        """Return which of the rows' own columns are chosen, by themselves or for their gaps."""
        own = chosen[: self._rows.n_features].copy()
        own[self._gapped] |= chosen[len(own) :]
        return np.asarray(own)


def look_for_alone(
    rows: Rows,
    missing: int,
    shares: Shares,
    most: float,
    m: int,
    *,
    most_directions: float = np.inf,
) -> Alone | None:
    """Find directions of which one row has more than a share, or fewer than m rows have all.

    Return None if the rows have more than ``most_directions``, because then most rows would stand out.
    Constant columns, and columns that follow from others, are no directions.
    """
    found = Alone(np.zeros(rows.n_features, bool), np.zeros(rows.n_features, bool))
    columns = np.flatnonzero(shares.varies)
    if not columns.size:
        return found
    n_together = min(m - 1, MAX_TOGETHER)
    limit = (1 - LIMIT_MARGIN) * min(most, ALONE / max(1, n_together))
    products = shares.products[np.ix_(columns, columns)]
    norms = np.sqrt(products.diagonal())
    # leverages do not depend on units, but the condition of what they are computed from does
    correlations = products / norms / norms[:, None]
    farthest = shares.farthest(columns, norms)
    if _is_above(correlations, farthest / (limit - shares.of_weight)):
        # no row has a leverage beyond the limit, and no column follows from others
        return None if len(columns) > most_directions else found
    basis = _basis(rows, missing, shares, columns, norms, correlations)
    rank = basis.matrix.shape[1]
    if rank > most_directions:
        return None

    def name(where: Array, scores: Array) -> None:
        """Mark the columns with at least half of the largest part in any of these directions."""
        for direction in scores:
            part = np.abs(basis.matrix @ direction) * norms
            where[columns[part >= part.max() / 2]] = True

    largest = 0.0
    for scores, of_weight in _scores(rows, missing, shares, columns, basis):
        own = _squares(scores)
        name(found.of_row, scores[own > most * (1 - of_weight)])
        largest = max(largest, float((own + of_weight).max(initial=0.0)))
    # without the rows of a set, there must be more rows than directions
    may_be_in_sets = n_together > 1 and largest > (1 - LEVERAGE_ROUNDING) * ALONE / n_together
    if may_be_in_sets and shares.n_rows - n_together > rank + 1:
        scores_again = _scores(rows, missing, shares, columns, basis)
        for direction in _sets(_kept(scores_again, rank + 1, n_together), n_together):
            name(found.of_rows, direction[None, :rank])
    return found


class LeverageBasis(NamedTuple):
    """The matrix that turns rows about their mean into rows of U, with ``U'U = I``."""

    matrix: Array
    is_triangular: bool  # an upper one


def _basis(
    rows: Rows, missing: int, shares: Shares, columns: Array, norms: Array, correlations: Array
) -> LeverageBasis:
    if _is_above(correlations, LONG):
        root = np.linalg.inv(np.linalg.cholesky(correlations)).T
        return LeverageBasis(np.triu(root) / norms[:, None], is_triangular=True)
    values, vectors = np.linalg.eigh(correlations)
    basis = LeverageBasis(vectors / norms[:, None] / np.sqrt(np.maximum(values, SHORT)), False)
    if values[0] >= SHORT:
        return basis
    gram = np.zeros_like(correlations)
    for scores, _ in _scores(rows, missing, shares, columns, basis):
        gram += scores.T @ scores
    values, vectors = np.linalg.eigh(gram)
    stays = values >= SHORT
    return LeverageBasis(basis.matrix @ (vectors[:, stays] / np.sqrt(values[stays])), False)


def _is_above(matrix: Array, least: float) -> bool:
    """Return whether all eigenvalues are above a number, which is positive; false if it is NaN."""
    if not 0 < least < np.inf:
        return False
    try:
        np.linalg.cholesky(matrix - least * np.eye(len(matrix)))
    except np.linalg.LinAlgError:
        return False
    return True


def _scores(
    rows: Rows, missing: int, shares: Shares, columns: Array, basis: LeverageBasis
) -> Iterator[tuple[Array, Array]]:
    """Yield the rows of U, and each row's share of the weight; gaps count as a typical value."""
    step = rows_per_block(rows.n_features)
    chosen = slice(None) if len(columns) == rows.n_features else columns
    for block, weights in counting_blocks(rows, missing, shares.about):
        for start in range(0, block.shape[0], step):
            part = block[start : start + step]
            values = np.asarray(part.toarray() if is_sparse(part) else part, np.float64)
            each = np.ones(len(values)) if weights is None else weights[start : start + step]
            scores = np.subtract(values[:, chosen], shares.filled_mean[columns], order="C")
            if basis.is_triangular:  # half of the work
                scores = dtrmm(1.0, basis.matrix.T, scores.T, lower=1, overwrite_b=1).T
            else:
                scores = scores @ basis.matrix
            if weights is not None:
                scores *= np.sqrt(each)[:, None]
            yield scores, each / shares.weight


def _kept(scores: Iterator[tuple[Array, Array]], width: int, n_together: int) -> Array:
    """Return the rows of a root of H that may be in a set: those with the largest leverages."""
    n_kept = max(n_together, KEPT_BYTES // (8 * width))
    gram = np.zeros((width, width))  # of all rows; the identity but for rounding
    kept = np.zeros((0, width))
    for own, of_weight in scores:
        # the mean has a direction of its own, along which a row has its share of the weight
        with_weight = np.column_stack([own, np.sqrt(of_weight)])
        gram += with_weight.T @ with_weight
        kept = np.vstack([kept, with_weight])
        if len(kept) > n_kept:
            kept = kept[np.argpartition(-_squares(kept), n_kept)[:n_kept]]
    # rounding in a direction of length 2^-40 would be seen in the sixth digit
    return np.asarray(kept @ np.linalg.inv(np.linalg.cholesky(gram)).T)


def _sets(kept: Array, size: int) -> Iterator[Array]:
    """Yield the directions that some set of rows has to itself; rows are those of a root of H."""
    own = _squares(kept)
    first = np.flatnonzero(own > ALONE / size)
    if not _may_be_in_sets(kept, first, size):
        return
    first = first[np.argsort(-own[first])][:MAX_FIRST]
    step = max(1, KEPT_BYTES // (8 * max(len(kept), size * kept.shape[1])))
    for start in range(0, len(first), step):
        some = first[start : start + step]
        together = kept[_partners(kept, own, some, size)]
        values, vectors = np.linalg.eigh(together @ together.transpose(0, 2, 1))
        for i in np.flatnonzero(values[:, -1] > ALONE):
            yield vectors[i, :, -1] @ together[i]


def _may_be_in_sets(kept: Array, first: Array, size: int) -> bool:
    """Return false only if no set has a direction to itself, which is so for most tables.

    The largest eigenvalue of H_SS is at most the sum of ``|H_ij|`` over j in S, for the row i of S with
    the largest entry in the eigenvector. This row is among ``first``.
    """
    n_others = min(size - 1, len(kept) - 1)
    step = max(1, KEPT_BYTES // (8 * max(1, len(kept))))
    for start in range(0, len(first), step):
        some = first[start : start + step]
        links = np.abs(kept[some] @ kept.T)
        own = links[np.arange(len(some)), some].copy()
        links[np.arange(len(some)), some] = 0.0
        others = np.partition(links, len(kept) - n_others, axis=1)[:, len(kept) - n_others :]
        if (own + others.sum(axis=1) > 1 - LIMIT_MARGIN).any():
            return True
    return False


def _partners(kept: Array, own: Array, some: Array, size: int) -> Array:
    """Return sets that begin with some rows; each next row lowers ``1 - H_ii`` most, ``(c, size)``."""
    each, chosen = np.arange(len(some)), [some]
    link = -(kept[some] @ kept.T)  # row i of I - H, without the rows that are left out
    left = np.tile(1 - own, (len(some), 1))  # its diagonal
    pivots: list[Array] = []  # of its Cholesky factorization
    for _ in range(size - 1):
        gain = np.square(link) / np.maximum(left, 1 - ALONE)
        for rows in chosen:
            gain[each, rows] = -1.0
        best = gain.argmax(axis=1)
        pivot = -(kept[best] @ kept.T)
        pivot[each, best] += 1
        for earlier in pivots:
            pivot -= earlier[each, best][:, None] * earlier
        pivot /= np.sqrt(np.maximum(left[each, best], 1 - ALONE))[:, None]
        link -= (link[each, best] / np.sqrt(np.maximum(left[each, best], 1 - ALONE)))[
            :, None
        ] * pivot
        left -= np.square(pivot)
        pivots.append(pivot)
        chosen.append(best)
    return np.column_stack(chosen)


def _squares(scores: Array) -> Array:
    return np.asarray(np.einsum("ij,ij->i", scores, scores))
