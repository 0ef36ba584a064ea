"""Present a site's rows to a run: centered, scaled, and in the common feature order.

    A = (X - 1 m') / s,   with the products A'A and A'(A Z)

X holds the site's rows, m is the mean over all sites or the site's own mean, and s is the common scale.
A is never stored. Blocks are centered on the fly. The scale and the column order are applied to Z and
to the result, not to the rows.

If rows have weights, a row of A is multiplied by the root of its weight. Gaps are filled, or their rows
are left out, as the run specifies (see `fedpca.rows.gaps`).

Rows are centered before they are multiplied (see `fedpca.rows.centering`). Subtracting ``n m m'`` from
raw second moments loses every digit at an offset of 1e8. Raw moments are therefore used only for a
block whose diagonal shows that at most eight bits are lost.

Sums of squares and products are rounded to a grid, so that they do not tell how single rows were
rounded (see `fedpca.linalg.grid`). That happens before the scale is applied, which has no part in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg.blas import dgemm

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.linalg.dense import gram_of
from fedpca.linalg.grid import score_norms, secret_shares, to_grid
from fedpca.protocol.invariants import MAX_VALUE
from fedpca.rows.centering import MAX_CANCELLATION, Centered, Mean, center_block, full_columns
from fedpca.rows.gaps import ERROR, MEAN, are_counted, counting_blocks, on_device
from fedpca.rows.genotypes.products import VariantProducts
from fedpca.rows.gpu.products import DeviceProducts
from fedpca.rows.in_memory import Block, Rows, is_sparse, is_wide, rows_per_block
from fedpca.rows.one_pass import ProvisionalScatter
from fedpca.rows.panels import Panels

MAX_CACHE_BYTES = 256 << 20  # how much memory a site may use to cache A'A
TINY_VALUE, TINY_SQUARES = 1e-145, 1e-290  # below these, squares lose digits
MIN_ENERGY = 1e-140  # above this, the square of a sum of squares does not underflow
MAX_ENERGY = 1e150  # below this, the square of a sum of squares does not overflow
FEW_FEATURES = 512  # up to this many features, products always use A'A, whatever it costs
# multiplications; if reading an entry costs at least as much, files are read only once
READ_ONCE_COST = 100.0
# columns whose terms of a score are added up at a time; the number of terms in sequence sets how much
# rounding can add up, and so how coarse the grid of products is
COLUMNS_PER_SUM = 480


def column_sums(rows: Rows) -> tuple[int, Array]:
    """Return the number of rows and the sum of each column, in the rows' own column order."""
    count = 0
    total = np.zeros(rows.n_features)
    with np.errstate(over="ignore", invalid="ignore"):  # the caller checks that the sums are finite
        for block in rows.blocks():
            # multiplying by ones sums in float64, at the speed of BLAS
            total += np.ones(block.shape[0]) @ block
            count += block.shape[0]
    return count, total


def refuse_tiny(mean: Array, energy: float = 1.0) -> None:
    """Refuse rows whose squares underflow, judging by their mean or their sum of squares.

    The variance of these rows would be zero, so every component would be as good as any other.
    """
    largest = float(np.abs(mean).max(initial=0.0))
    if 0 < largest < TINY_VALUE or 0 < energy < TINY_SQUARES:
        raise InputError(
            f"the values are so small that their squares underflow: the largest mean is "
            f"{largest:.1e}; rescale the columns to values above {TINY_VALUE:.0e}"
        )


def deviations(variance: Array, mean: Array, n: float) -> Array:
    """Return the standard deviations, with 1 for columns that are constant up to rounding.

    As in scikit-learn's StandardScaler, a column counts as constant if its variance is so small that
    it may come from rounding.
    """
    eps = np.finfo(np.float64).eps
    # the first term is the rounding of a sum of n squares; the second is that of the mean, and decides
    # far from the origin
    constant = variance <= n * eps * variance + (n * mean * eps) ** 2
    return np.where(constant, 1.0, np.sqrt(np.where(constant, 1.0, variance)))


def refuse_large(total: Array, n: Any, most: float = MAX_VALUE) -> None:
    """Refuse rows with a mean, ``total / n``, so large that squares about it overflow."""
    if (np.abs(total) > most * n).any():
        raise InputError(
            f"the values are so large that squares about their mean overflow: a column's mean is "
            f"beyond {most:.0e}; rescale the columns"
        )


def usable_energy(energy: float) -> float:
    """Return the total sum of squares, or refuse a value that would make products lose digits."""
    if energy and not MIN_ENERGY < energy < MAX_ENERGY:
        raise InputError(
            f"the sum of squares about the mean is {energy:.1e}, but must be between "
            f"{MIN_ENERGY:.0e} and {MAX_ENERGY:.0e}, or products lose digits; rescale the columns"
        )
    return energy


def is_read_once(rows: Rows, missing: int, max_cache_bytes: int) -> bool:
    """Return whether to read rows only once, since they are slow to read and A'A is small.

    Parquet and CSV files are slow to read, because they must be decoded each time. Arrays on disk need
    no decoding, and are read several times, so that products have the same bits as for rows in memory.
    Gaps cannot be filled in the first reading, because the mean over all sites is not known yet. Rows
    on a device are multiplied there.
    """
    if on_device(rows, missing) is not None:
        return False
    d = rows.n_features
    is_small = d <= FEW_FEATURES and 8 * d**2 <= max_cache_bytes
    return is_small and rows.pass_cost >= READ_ONCE_COST and missing != MEAN


@dataclass(frozen=True)
class Frame:
    """The feature order, mean, and scale that a run applies to a site's rows.

    Parameters
    ----------
    mean, scale : ndarray of shape (d,)
        The mean and the scale, in the common feature order.
    order : ndarray of shape (d,), optional
        The position of each common feature among the site's own columns; None if the order is the same.
    sums : ndarray of shape (d,), optional
        The sums of the site's own columns, if they are already known.
    n_products : int
        How many columns the rows will be multiplied by, as far as the run can tell.
    energy : float, optional
        The sum of squares of the rows in this frame, if it is already known.
    missing : int
        What to do with gaps, as a position in `fedpca.rows.gaps.MISSING`.
    fill : ndarray of shape (d,), optional
        The values that fill gaps, in the common feature order.
    weight : float, optional
        The total weight of the site's rows that count, if it is already known.
    """

    mean: Array
    scale: Array
    order: Array | None = None
    sums: Array | None = None
    n_products: int = 1
    energy: float | None = None
    missing: int = ERROR
    fill: Array | None = None
    weight: float | None = None

    def is_same_as(self, other: Frame) -> bool:
        """Return whether both frames give the same products."""
        return self.n_products == other.n_products and all(
            getattr(self, name) is getattr(other, name)
            for name in ("mean", "scale", "order", "sums")
        )


class StandardizedRows:
    """A site's rows in a frame, with the products that solvers need.

    Parameters
    ----------
    rows : Rows
        The site's own rows.
    frame : Frame
        The feature order, mean, and scale.
    max_cache_bytes : int
        The maximum memory for caching A'A.
    only_sums : bool
        Whether products always use A'A if it fits in ``max_cache_bytes``. They are then computed only
        from sums over rows.
    scatter : ProvisionalScatter, optional
        The scatter of the rows about a provisional center, if it is already known.
    secret : bytes, optional
        What moves the points between two steps of sums that are formed from directions.
    """

    def __init__(
        self,
        rows: Rows,
        frame: Frame,
        *,
        max_cache_bytes: int = MAX_CACHE_BYTES,
        only_sums: bool = False,
        scatter: ProvisionalScatter | None = None,
        secret: bytes | None = None,
    ) -> None:
        self.frame = frame
        self._secret = secret
        self._only_sums = only_sums
        self._rows = rows
        self._is_read_once = is_read_once(rows, frame.missing, max_cache_bytes)
        self._scatter = scatter
        self._order = slice(None) if frame.order is None else frame.order
        self._mean = self._to_own_order(frame.mean)
        self._fill = None if frame.fill is None else self._to_own_order(frame.fill)
        self._scale = frame.scale
        self._is_unscaled = bool((frame.scale == 1).all())
        self._sums = frame.sums
        self._n_products = int(frame.n_products)
        self._max_cache_bytes = max_cache_bytes
        self._gram: Array | None = None
        self._full_columns: dict[int, Array] = {}  # by the index of a sparse block
        there = on_device(rows, frame.missing)
        self._device = None if there is None else DeviceProducts(there, self._mean)
        self._variants = None
        if are_counted(rows, frame.missing):
            self._variants = VariantProducts(rows, self._mean, self._fill)

    @property
    def n_features(self) -> int:
        """Return the number of features."""
        return len(self._mean)

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return self._rows.n_rows

    def squares(self) -> Array:
        """Return the sum of squares of each column of A, ``(d,)``, from A'A if that saves a pass."""
        is_computed_anyway = (
            self._device is not None and self._n_products > 1 and self._gram_pays(1)
        )
        if self._is_read_once or is_computed_anyway:
            return self.gram().diagonal().copy()
        return np.asarray(self._own_squares[self._order] / self._scale**2)

    def without_constant_columns(self) -> StandardizedRows:
        """Return the rows with zeros in columns whose variance may come from rounding of the mean.

        The scale of these columns becomes infinite. scikit-learn's StandardScaler uses the same bound
        to detect a constant column. Without this, a date in milliseconds that never changes might seem
        to vary more than all other columns.
        """
        squares = self.gram().diagonal() if self._gram_pays(1) else self.squares()
        n, eps = self.n_rows, np.finfo(np.float64).eps
        constant = squares <= n * (n * self.frame.mean / self._scale * eps) ** 2
        if not constant.any():
            return self
        # dividing by infinity gives exact zeros, so these columns vanish without a copy of the rows
        scale = np.where(constant, np.inf, self._scale)
        frame = replace(self.frame, scale=scale)
        return StandardizedRows(
            self._rows,
            frame,
            max_cache_bytes=self._max_cache_bytes,
            only_sums=self._only_sums,
            scatter=self._scatter,
            secret=self._secret,
        )

    def energy(self) -> float:
        """Return the sum of the squared entries of A, using A'A if it is computed anyway."""
        total = self.gram().diagonal() if self._gram_pays(1) else self.squares()
        return usable_energy(float(total.sum()))

    def gram(self) -> Array:
        """Return A'A, ``(d, d)``; cache it if later products will use it and memory allows."""
        if self._gram is not None:
            return self._gram
        with np.errstate(over="ignore", invalid="ignore"):
            gram = self._own_gram()
        squares = gram.diagonal()
        # checked before the grid, whose steps would not be finite either
        refuse_overflow(squares)
        refuse_tiny(np.zeros(1), float(squares.sum()))  # their grid would be zero
        if self._device is None:  # a device has rounded it already
            norms = np.sqrt(np.maximum(squares, 0.0))
            # before the scale is applied: whoever chooses the scale must not choose the grid
            gram = to_grid(gram, norms, norms)
        if not isinstance(self._order, slice):
            gram = gram[np.ix_(self._order, self._order)]
        if not self._is_unscaled:
            gram /= np.outer(self._scale, self._scale)
        if self._gram_pays(1):
            self._gram = gram
        return gram

    def gram_times(self, Z: Array) -> Array:
        """Return A'(A Z), ``(d, k)``, using A'A if that is cheaper over the whole run."""
        by_gram = self._gram_pays(Z.shape[1])
        if by_gram and self._device is None:
            return np.asarray(self.gram() @ Z)
        own = self._directions(Z)
        if by_gram and self._device is not None:
            return self._undirected(self._device.gram_times(own, by_gram=True))
        norms = np.sqrt(self._own_squares)
        shifts = np.zeros_like(norms)
        if self._device is not None:
            total, n_terms = self._device.gram_times(own, by_gram=False), float(len(own))
        elif self._variants is not None:
            total, n_terms = self._variants.gram_times(own), self._variants.n_terms
        else:
            total, shifts, n_terms = self._streamed_gram_times(own)
        # sizes of terms are added up, not the terms themselves, which a lying coordinator could make
        # cancel
        of_scores = score_norms(norms + shifts, own)
        shares = self.shares(total.shape, own)
        return self._undirected(to_grid(total, norms, of_scores, n_terms, shares))

    def shares(self, shape: tuple[int, ...], Z: Array) -> Array | None:
        """Return what moves the points between two steps of sums that are formed from directions."""
        if self._secret is None:
            return None
        return secret_shares(self._secret, shape, self._mean, Z)

    def _streamed_gram_times(self, own: Array) -> tuple[Array, Array, float]:
        """Return ``Y'(Y Z)``, Y being the rows about the mean, and what its grid depends on.

        The second array, ``(d,)``, has the norms of the means that were subtracted from products, not
        from rows. They add to the norms that scores are formed from. The number counts the terms of a
        score.
        """
        transposed = np.ascontiguousarray(own.T)  # makes BLAS up to 1.5 times as fast
        total, n_terms = np.zeros_like(own), 1.0
        is_shifted = np.zeros(len(own), bool)
        n_rows = n_stored = 0
        for index, (block, weights) in enumerate(self._own_blocks(may_be_tall=True)):
            if is_wide(block):
                is_shifted |= self._panels.is_shifted
                n_terms = max(n_terms, self._panels.n_terms)
                scores = self._panels.scores(block, own)
                scores *= _each(block, weights)[:, None]
                self._panels.add_combined(block, scores, total)
                continue
            part = self._center(index, block, weights)
            if part.shift is not None:
                is_shifted |= part.shift != 0
            if is_sparse(block):
                n_rows, n_stored = n_rows + block.shape[0], n_stored + block.nnz
            else:
                n_terms = max(n_terms, _n_terms(len(own)))
            product = _product(part, own, transposed)
            total = product if index == 0 else np.add(total, product, out=total)
        # sqrt(n) |m| is the norm of a column that is nowhere but at its mean
        shifts = np.where(is_shifted, np.sqrt(self._weight) * np.abs(self._mean), 0.0)
        return total, shifts, max(n_terms, n_stored / max(1, n_rows))

    def energy_along(self, V: Array, energy: float) -> float:
        """Return ``||A V||^2`` for V, ``(d, k)``; ``energy`` is the sum of the squared entries of A."""
        by_gram = self._gram_pays(V.shape[1])
        if self._device is not None:
            total = self._device.energy_along(self._directions(V), by_gram=by_gram)
            return total if by_gram else self._rounded_energy(total, V, energy)
        if by_gram:
            return float(np.vdot(V, self.gram() @ V))
        own = self._directions(V)
        if self._variants is not None:
            return self._rounded_energy(self._variants.energy_along(own), V, energy)
        transposed = np.ascontiguousarray(own.T)
        offsets = self._rows.n_rows * np.square(self._mean)
        # the means then hold at most 256 times the energy, so subtracting them from scores costs at
        # most eight bits of the sum, and saves a copy of the rows
        is_near_origin = self._scaled_sum(offsets) <= MAX_CANCELLATION * energy
        total, is_shifted = 0.0, np.zeros(len(own), bool)
        for index, (block, weights) in enumerate(self._own_blocks(may_be_tall=True)):
            if is_wide(block):
                is_shifted |= self._panels.is_shifted
                scores = self._panels.scores(block, own)
                scores *= np.sqrt(_each(block, weights))[:, None]
            else:
                is_raw = is_near_origin and weights is None
                part = (
                    Centered(block, self._mean) if is_raw else self._center(index, block, weights)
                )
                if part.shift is not None:
                    is_shifted |= part.shift != 0
                scores = _scores(part, own, transposed)
            total += float(np.vdot(scores, scores))
        shifts = self._scaled_sum(np.where(is_shifted, self._weight * np.square(self._mean), 0.0))
        return self._rounded_energy(total, V, np.square(np.sqrt(energy) + np.sqrt(shifts)))

    def _rounded_energy(self, total: float, V: Array, size: float) -> float:
        """Return ``||A V||^2`` on its grid; ``size`` bounds the squares that scores are formed from.

        By Cauchy and Schwarz, that is no less than ``nu_j^2`` for a direction of length 1. The sum is
        shown as a share of the total, so the grid need not be as fine as that of products.
        """
        norm = np.sqrt(np.array([size * float(np.vdot(V, V))]))
        shares = self.shares((1,), V)
        return float(to_grid(np.array([total]), norm, norm, len(V), shares)[0])

    def parts(self) -> Iterator[tuple[Mean, Centered]]:
        """Yield the blocks of A in the common feature order and scale, each about a mean of zero."""
        zero = np.zeros(len(self._mean))
        for index, (own, weights) in enumerate(self._own_blocks()):
            block = self._center(index, own, weights)
            rows = block.rows[:, self._order]
            shift = None if block.shift is None else block.shift[self._order] / self._scale
            if not self._is_unscaled:
                rows = rows / self._scale if shift is None else _scaled(rows, self._scale)
            yield Mean(block.weight, zero, zero), Centered(rows, shift, block.roots)

    def dense_blocks(self) -> Iterator[Array]:
        """Yield the rows of A as dense arrays, ``(b, d)``, a few megabytes at a time."""
        step = rows_per_block(len(self._mean))
        for _, part in self.parts():
            for start in range(0, part.n_rows, step):
                yield part.part(start, start + step).dense()

    def _own_gram(self) -> Array:
        """Return A'A for the centered rows, in their own column order and without the scale."""
        if self._device is not None:
            return self._device.gram()
        if self._variants is not None:
            return self._variants.gram()
        if self._is_read_once:
            central = self._provisional_scatter().about(self._mean)
            if central is not None:
                return central
        moments = RawMoments(self._mean)
        centered = None
        for index, (block, weights) in enumerate(self._own_blocks()):
            # if one block is too far from the origin, later blocks probably are too
            is_whole = block.shape[0] == self._rows.n_rows
            is_raw = centered is None and weights is None
            if is_raw and moments.add(block, self._sums if is_whole else None):
                continue
            gram = self._center(index, block, weights).inner()
            centered = gram if centered is None else np.add(centered, gram, out=centered)
        return moments.central() if centered is None else centered + moments.central()

    @cached_property
    def _own_squares(self) -> Array:
        """Return each column's sum of squares about the mean, in the rows' own order and unscaled."""
        if self._device is not None:
            total = self._device.squares()
            refuse_overflow(total)
            return _squares_on_grid(total)
        if self._variants is not None:
            return _squares_on_grid(self._variants.squares())
        total = np.zeros(len(self._mean))
        with np.errstate(over="ignore", invalid="ignore"):
            for index, (block, weights) in enumerate(self._own_blocks(may_be_tall=True)):
                if is_wide(block):
                    total += Panels(self._mean).squares(block, _each(block, weights))
                else:
                    total += self._center(index, block, weights).squares()
        refuse_overflow(total)
        return _squares_on_grid(total)

    @cached_property
    def _panels(self) -> Panels:
        """Return how to multiply wide rows: where few bits cancel, subtract means from products.

        In which columns that is done depends only on the rows and the frame.
        """
        if self._sums is None:
            return Panels(self._mean)
        # sum x^2 = sum (x - m)^2 + m (2 sum x - n m), so raw squares need no further pass
        raw = self._own_squares + self._mean * (2 * self._sums - self._weight * self._mean)
        return Panels(self._mean, raw <= MAX_CANCELLATION * self._own_squares)

    @property
    def _weight(self) -> float:
        return float(self._rows.n_rows if self.frame.weight is None else self.frame.weight)

    def _scaled_sum(self, squares: Array) -> float:
        """Return the sum of numbers of the rows' own columns, divided by the squared scale."""
        return float(np.sum(squares[self._order] / self._scale**2))

    def _provisional_scatter(self) -> ProvisionalScatter:
        missing = self.frame.missing
        if self._scatter is None or not self._scatter.is_of(self._rows, missing):
            self._scatter = ProvisionalScatter.read(self._rows, missing)
        return self._scatter

    def _own_blocks(self, *, may_be_tall: bool = False) -> Iterator[tuple[Block, Array | None]]:
        """Return the rows that count, without gaps, and their weights."""
        missing = self.frame.missing
        return counting_blocks(self._rows, missing, self._fill, may_be_tall=may_be_tall)

    def _center(self, index: int, block: Block, weights: Array | None) -> Centered:
        # kept from product to product, because finding these columns reads every index
        if is_sparse(block) and index not in self._full_columns:
            self._full_columns[index] = full_columns(block)
        centered = center_block(block, self._mean, self._full_columns.get(index))
        return centered if weights is None else centered.weighted(weights)

    def _gram_fits(self) -> bool:
        return 8 * len(self._mean) ** 2 <= self._max_cache_bytes

    def _gram_pays(self, width: int) -> bool:
        """Return whether computing and using A'A costs less than passes over the rows.

        The answer depends only on the frame, not on earlier questions, because a restarted site must
        produce the same bits.

        Passes over the rows use each row's scores along directions that the coordinator chooses. If the
        terms of a score nearly cancel, rounding selects rows, and the product reveals these rows. A'A,
        in contrast, is a sum over rows before any direction is known. With few features, A'A costs
        little, so it is used unless no products are expected. A site whose coordinator may lie always
        uses A'A if it fits in ``max_cache_bytes``.
        """
        if not self._gram_fits():
            return False
        n, d = self._rows.n_rows, len(self._mean)
        if self._only_sums or (d <= FEW_FEATURES and self._n_products):
            return True
        # in multiplications and additions: A'A is symmetric and takes n d^2, and then 2 d^2 a column;
        # without it, a column takes two products with the rows, and each block of columns reads them
        # once
        columns = max(self._n_products, width)
        one_pass = n * d * self._rows.pass_cost
        cached = n * d**2 + 2 * d**2 * columns + one_pass
        streamed = 4 * n * d * columns + one_pass * columns / max(1, width)
        return cached < streamed

    def _directions(self, Z: Array) -> Array:
        """Apply the scale and the column order to Z, so that they need not be applied to the rows."""
        return self._to_own_order(Z if self._is_unscaled else Z / self._scale[:, None])

    def _undirected(self, product: Array) -> Array:
        """Return a product with centered rows in the common order, divided by the scale."""
        ordered = product[self._order]
        return np.asarray(ordered if self._is_unscaled else ordered / self._scale[:, None])

    def _to_own_order(self, array: Array) -> Array:
        if isinstance(self._order, slice):
            return array
        own = np.empty_like(array)
        own[self._order] = array
        return own


def _squares_on_grid(squares: Array) -> Array:
    """Return sums of squares as whole multiples of their steps."""
    norms = np.sqrt(np.maximum(squares, 0.0))
    return to_grid(squares, norms, norms)


def _n_terms(n_features: int) -> float:
    """Return how many terms are added in sequence in a score of dense rows."""
    return min(n_features, COLUMNS_PER_SUM) + n_features // COLUMNS_PER_SUM


def _times_block(transposed: Array, block: Array) -> Array:
    """Return ``Z' X'``, ``(k, b)``, adding up a few columns of X at a time; Z' is ``(k, d)``."""
    if block.shape[1] <= COLUMNS_PER_SUM:
        return np.asarray(transposed @ block.T)
    # short sums in sequence keep the terms few, and so the grid of products fine
    total = np.zeros((len(transposed), len(block)))
    for start in range(0, block.shape[1], COLUMNS_PER_SUM):
        columns = slice(start, start + COLUMNS_PER_SUM)
        total += transposed[:, columns] @ block[:, columns].T
    return total


def _each(block: Block, weights: Array | None) -> Array:
    """Return the weight of each row in a block."""
    return np.ones(block.shape[0]) if weights is None else weights


def _product(part: Centered, own: Array, transposed: Array) -> Array:
    """Return Y'(Y Z), ``(d, k)``; Y holds the rows about a mean, and ``own`` is Z."""
    block, shift, roots = part
    if shift is None:
        return np.asarray((_times_block(transposed, block) @ block).T)
    # einsum avoids BLAS, whose threads would spin on cores that sparse products need
    along = np.einsum("i,ij->j", shift, own)
    scores = block @ own - (along if roots is None else np.outer(roots, along))
    sums = scores.sum(axis=0) if roots is None else np.einsum("i,ij->j", roots, scores)
    product = block.T @ scores
    # Y'S = X'S - m (1'S), so sparse rows stay sparse
    product -= np.outer(shift, sums)
    return np.asarray(product)


def _scores(part: Centered, own: Array, transposed: Array) -> Array:
    """Return the scores of rows about a mean, ``(k, b)``; ``own`` is ``(d, k)``."""
    block, shift, roots = part
    scores = np.asarray((block @ own).T if is_sparse(block) else _times_block(transposed, block))
    if shift is not None:
        along = (shift @ own)[:, None]
        scores -= along if roots is None else along * roots
    return scores


def _scaled(block: Block, scale: Array) -> Block:
    return (block @ sp.diags_array(1 / scale)).tocsr()


def refuse_overflow(squares: Array) -> None:
    """Refuse rows if a sum of their squares is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = squares.sum()
    if not np.isfinite(total):
        raise InputError("the values are so large that their squares overflow; rescale the columns")


class RawMoments:
    """The sum of A'A over blocks so near the origin that they need no centered copies."""

    def __init__(self, mean: Array) -> None:
        self._mean = mean
        self._gram: Array | None = None
        self._sums = np.zeros(len(mean))
        self._n = 0

    def add(self, block: Block, sums: Array | None) -> bool:
        """Add a block and return True; if its raw moments lose too many digits, return False instead.

        ``sums`` holds the sums of the block's columns, if they are already known.
        """
        # products of float32 have seven digits; `center_block` shifts sparse blocks without a dense
        # copy
        if is_sparse(block) or block.dtype != np.float64:
            return False
        raw = gram_of(block)
        if sums is None:
            sums = np.ones(len(block)) @ block
        # judged by the block itself: digits that one block loses stay lost in the sum over all blocks
        central = raw.diagonal() - 2 * sums * self._mean + len(block) * self._mean**2
        if (raw.diagonal() > MAX_CANCELLATION * central).any():
            return False
        self._gram = raw if self._gram is None else np.add(self._gram, raw, out=self._gram)
        self._sums += sums
        self._n += len(block)
        return True

    def central(self) -> Array:
        """Return ``X'X - s m' - m s' + n m m'`` for the added blocks; s holds their column sums."""
        if self._gram is None:
            return np.zeros((len(self._mean), len(self._mean)))
        # s m' + m s' - n m m' = h m' + m h' with h = s - n m / 2, so one update of rank 2 is enough
        half = self._sums - self._n / 2 * self._mean
        pair, mirror = np.stack([half, self._mean]), np.stack([self._mean, half])
        # dgemm works in place; a temporary of this size costs more than the arithmetic
        dgemm(-1.0, pair.T, mirror.T, beta=1.0, c=self._gram.T, trans_b=True, overwrite_c=True)
        return self._gram
