"""Find columns whose gaps would let sums over different rows be combined into a sum over few rows.

    v_r = (1, g_r1, ..., g_rK, w_r)

Here, g_rk is 1 if row r has a gap in the k-th column with gaps, and w_r is 1 if the row has no gap at
all. Whoever chooses how gaps are treated, and with which means they are filled, learns the sums of a
column c, and of 1, over the rows with values in c and in k, for every k, and over the rows without
gaps. Sums of these sums weigh row r with ``a'v_r``, for any a. So no combination may be nonzero on
fewer than m of the rows with a value in c, unless it is zero on all of them.

In terms of codes, the vectors of these rows generate a code whose minimum distance must be at least m.
Two steps decide this:

1. A combination that is nonzero on a pattern of gaps that m rows share is harmless. So only
   combinations that are zero on all such patterns matter, and the other rows matter only modulo these
   patterns. Rows that are multiples of each other there count as one pattern, and so on.
2. For the rows that are left, let H project onto the span of their vectors. If in each row of
   ``I - H``, the entry on the diagonal is larger than the sum of the m - 2 largest other entries, then
   each block of m - 1 rows and columns is invertible, so the vectors of the other rows still span the
   same space, and no combination is nonzero on only these m - 1 rows.

The first step is exact. The second one may refuse rows that are harmless, but never passes others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.rows.gaps import gaps_of, has_gaps
from fedpca.rows.in_memory import Block, is_sparse

NONE = -1  # in place of a column with gaps: any column without gaps
MAX_WORK = 1e11  # multiplications of a closer look, about 15 s; beyond, all columns count as few
MAX_COMPARED = 4000  # rows that are compared in pairs
_ZERO = 1e-7  # relative length of a vector that is zero but for rounding; others are far longer
_SMALL = 1e-10  # the same for an eigenvalue, relative to the largest one
_GRID = 1e7  # cells in a unit; projections in the same cells belong to the same direction


class RowGaps:
    """The gaps of rows, which are added block by block."""

    def __init__(self, n_features: int) -> None:
        self._n_features, self._n_rows = n_features, 0
        self._where: list[Array] = []  # positions of the rows with gaps
        self._packed: list[Array] = []  # their gaps, one bit for each column

    def add(self, block: Block) -> None:
        """Add the gaps of the next block of rows."""
        if has_gaps(block):
            gaps = gaps_of(block)
            where = np.flatnonzero(gaps @ np.ones(block.shape[1]) > 0)
            some = gaps[where]
            dense = some.toarray() if is_sparse(some) else some
            self._where.append(where + self._n_rows)
            self._packed.append(np.packbits(dense > 0, axis=1))
        self._n_rows += block.shape[0]

    def flags(self) -> GapFlags:
        """Return which rows have gaps in which columns."""
        if not self._where:
            return GapFlags(np.zeros(0, int), np.zeros((self._n_rows, 0), bool))
        where, packed = np.concatenate(self._where), np.concatenate(self._packed)
        some = np.bitwise_or.reduce(packed, axis=0)
        columns = np.flatnonzero(np.unpackbits(some, count=self._n_features))
        flags = np.zeros((self._n_rows, len(columns)), bool)
        flags[where] = (packed[:, columns // 8] >> (7 - columns % 8).astype(np.uint8)) & 1
        return GapFlags(columns, flags)


class GapFlags(NamedTuple):
    """Which rows have gaps in which columns."""

    columns: Array  # (K,), the positions of the columns with gaps
    flags: Array  # (n, K) of bool

    @property
    def n_whole(self) -> int:
        """Return the number of rows without gaps."""
        return int((~self.flags.any(axis=1)).sum())


def fewest_together(flags: Array) -> tuple[int, int]:
    """Return the fewest rows with values in any two columns, and the fewest of these that have gaps.

    Two columns count only if there are such rows.
    """
    if not flags.size:
        return len(flags), 0
    flags = flags[:, _distinct(flags.T)[0]]
    first, _, counts = _distinct(flags)
    gapped = flags[first].any(axis=1)
    # a column without gaps comes last; in tables without one, it is together with others more often
    present = np.column_stack([~flags[first], np.ones(len(first))]).astype(np.float64)
    together, apart = (
        (present * of_pattern[:, None]).T @ present for of_pattern in (counts, counts * gapped)
    )
    return int(together[together > 0].min()), int(apart[apart > 0].min(initial=len(flags)))


def few_columns(flags: Array, m: int, *, n_features: int, drops: bool) -> Array:
    """Return which columns with gaps are part of sums over fewer than m rows, ``(K,)`` of bool.

    ``flags``, ``(n, K)``, says which rows have gaps in these columns. ``drops`` says whether sums over
    the rows without gaps are known too.
    """
    if m <= 1 or not flags.size:
        return np.zeros(flags.shape[1], bool)
    first, same, _ = _distinct(flags.T)  # columns with the same gaps are one column
    flags = flags[:, first]
    first, _, counts = _distinct(flags)
    gaps = flags[first]
    n_columns = gaps.shape[1]
    if counts.min() >= m:
        return np.zeros(len(same), bool)
    whole = np.asarray(~gaps.any(axis=1))
    others = [whole[:, None]] if drops else []
    vectors = np.hstack([np.ones((len(gaps), 1)), gaps, *others]).astype(np.float64)
    few = _few_pairs(gaps, counts, np.asarray(whole & drops), m)
    in_doubt = _in_doubt(
        vectors, counts, m, n_columns, has_whole_columns=bool(len(same) < n_features)
    )
    if len(in_doubt) * len(vectors) * float(vectors.shape[1] ** 2) > MAX_WORK:
        return np.ones(len(same), bool)
    for c in in_doubt:
        here = np.ones(len(gaps), bool) if c == NONE else ~gaps[:, c]
        stand_out = _rows_standing_out(vectors[here], counts[here], m)
        if stand_out.any():
            named = gaps[here][stand_out].any(axis=0)
            # if these rows have no gaps, then it is the column itself that few rows have
            few |= named if named.any() else (np.arange(n_columns) == c) | (c == NONE)
    return np.asarray(few[same])


def _in_doubt(
    vectors: Array, counts: Array, m: int, n_columns: int, *, has_whole_columns: bool
) -> list[int]:
    """Return the columns with gaps that need a closer look; `NONE` stands for columns without gaps.

    The largest entry of H is at most ``s / l``, if no vector's square is larger than s and the smallest
    eigenvalue of ``V'V`` is l. So a look is not needed if ``V'V - (m - 1) s I`` is positive definite.
    """
    gram = (vectors.T * counts) @ vectors
    least = (m - 1) * float(np.square(vectors).sum(axis=1).max()) * (1 + _ZERO)
    found = []
    for c in [NONE] * has_whole_columns + list(range(n_columns)):
        own = gram
        if c != NONE:
            gone = vectors[:, 1 + c] > 0
            own = gram - (vectors[gone].T * counts[gone]) @ vectors[gone]
            own = np.delete(np.delete(own, 1 + c, axis=0), 1 + c, axis=1)
        if not _is_positive(own - least * np.eye(len(own))):
            found.append(c)
    return found


def _is_positive(matrix: Array) -> bool:
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True


def _distinct(flags: Array) -> tuple[Array, Array, Array]:
    """Return where each distinct row is first, which of them each row is, and how often they occur."""
    packed = np.ascontiguousarray(np.packbits(flags, axis=1))
    keys = packed.view(np.dtype((np.void, packed.shape[1]))).ravel()
    return np.unique(keys, return_index=True, return_inverse=True, return_counts=True)[1:]


def _few_pairs(gaps: Array, counts: Array, whole: Array, m: int) -> Array:
    """Return the columns that make few rows have values in two columns c and k; the same without gaps.

    The products of the columns c and k are summed over these rows. The columns are c and k themselves,
    if too few rows have both. If too few of those rows have gaps, the columns are where the gaps are.
    """
    present = (~gaps).astype(np.float64)
    together = (present * counts[:, None]).T @ present
    few = np.asarray(((together > 0) & (together < m)).any(axis=0))
    if whole.any():
        others = np.where(whole, 0, counts)
        apart = (present * others[:, None]).T @ present
        pairs = ((apart > 0) & (apart < m)).astype(np.float64)
        have_pair = np.einsum("uk,uk->u", present @ pairs, present) > 0
        few |= gaps[have_pair & ~whole].any(axis=0)
    return few


def _rows_standing_out(vectors: Array, counts: Array, m: int) -> Array:
    """Return which vectors some combination is nonzero on while it is zero on too many others."""
    left = np.arange(len(vectors))
    rest = vectors
    size = np.linalg.norm(vectors, axis=1)
    kinds = left  # equal for vectors that are multiples of each other
    rng = np.random.default_rng(0)
    while True:
        n_same = np.bincount(kinds, counts[left])
        _, first = np.unique(kinds, return_index=True)
        shared = first[n_same >= m]
        if shared.size:
            rest = rest @ _complement(rest[shared])
        length = np.linalg.norm(rest, axis=1)
        stays = length > _ZERO * size[left]
        left, rest = left[stays], rest[stays] / length[stays, None]
        stand_out = np.zeros(len(vectors), bool)
        if not left.size:
            return stand_out
        if kinds is not left and not shared.size:
            break
        kinds = _kinds(rest, rng)
    n_left = counts[left]
    is_safe = n_left.sum() >= m and kinds.max() > 0 and _is_spread(rest, n_left, m)
    stand_out[left] = not is_safe
    return stand_out


def _kinds(units: Array, rng: np.random.Generator) -> Array:
    """Return a number for each unit vector, the same for vectors that are equal up to their sign."""
    seen = units @ rng.normal(size=(units.shape[1], 3))
    seen *= np.sign(seen[:, :1])
    cells = np.rint(seen * _GRID).astype(np.int64)
    return np.unique(cells, axis=0, return_inverse=True)[1].ravel()


def _complement(vectors: Array) -> Array:
    """Return an orthonormal basis of the space orthogonal to all vectors."""
    values, basis = np.linalg.eigh(vectors.T @ vectors)
    return np.asarray(basis[:, values <= _SMALL * max(values[-1], 1.0)])


def _is_spread(rows: Array, counts: Array, m: int) -> bool:
    """Return whether no combination is nonzero on fewer than m rows; false if this is not certain."""
    basis = _orthonormal(rows, counts)
    own = np.square(basis).sum(axis=1)
    if own.max() * (m - 1) < 1 - _ZERO:  # no entry of H is larger than the largest on its diagonal
        return True
    each = np.repeat(np.arange(len(rows)), counts)
    if len(each) > MAX_COMPARED:
        each = np.random.default_rng(0).permutation(each)[:MAX_COMPARED]
        rank = basis.shape[1]
        basis = _orthonormal(rows[each], np.ones(len(each)))
        if basis.shape[1] < rank:
            return False
    else:
        basis = basis[each]
    H = np.abs(basis @ basis.T)
    own = H.diagonal().copy()
    np.fill_diagonal(H, 0)
    n_others = min(m - 2, len(H) - 1)
    if n_others:
        own += np.partition(H, len(H) - n_others, axis=1)[:, len(H) - n_others :].sum(axis=1)
    return bool((own < 1 - _ZERO).all())


def _orthonormal(rows: Array, counts: Array) -> Array:
    """Return the rows in a basis in which the vectors, as often as they count, are orthonormal."""
    values, basis = np.linalg.eigh((rows.T * counts) @ rows)
    some = values > _SMALL * values[-1]
    return np.asarray(rows @ (basis[:, some] / np.sqrt(values[some])))
