"""Find columns to which a single row contributes nearly everything.

    share = max_i W / (W - w_i) w_i (x_i - m)^2 / sum_i w_i (x_i - m)^2

Here, W is the sum of the weights w, and m the weighted mean. This is how much of the column's sum of
squares about the mean goes away if the row is left out. If it is nearly 1, then the products of this
column with all others are nearly a multiple of the row. If one row has nearly all the weight, then the
mean is nearly this row. Statistical offices call this dominance, and publish no cell of a table with a
contributor above some share.

Source: Hundepool et al., "Statistical disclosure control" (2012), chapter 4.
"""

from __future__ import annotations

import numpy as np

from fedpca.arrays import Array
from fedpca.rows.gaps import counting_blocks, has_gaps
from fedpca.rows.in_memory import Block, Rows, is_sparse

MAX_COLUMNS = 2000  # with more, products of all pairs of columns would take more than 32 MB
# values added at a time, so that they stay in cache, and sparse rows take little memory
SHARES_PART_ENTRIES = 1 << 18
_ROUNDING = 1e-13  # of a sum of squares, relative to the squares of the values themselves


class Shares:
    """The largest share of any row in each column, over rows that are added block by block.

    The mean is known only in the end. Without weights, the row that is farthest from it has the
    smallest or the largest value. With weights, the rows must be read a second time.

    If there are few columns, their products are added up too, for `fedpca.rows.leverages`. A gap then
    counts as ``about``, the mean of the first rows. The variances of the first rows serve as units in
    which each row's distance from ``about`` is measured.
    """

    def __init__(self, n_features: int) -> None:
        self.about: Array | None = None  # (d,), near the mean, so that squares do not cancel
        self.n_rows = 0
        self._products: Array | None = None  # (d, d), relative to about
        if n_features <= MAX_COLUMNS:
            self._products = np.zeros((n_features, n_features))
        self._sums = np.zeros(
            (3, n_features)
        )  # of weights, values, and squares, relative to _about
        self._unit: Array | None = None  # (d,), 1 over the variances of the first rows, or 0
        self._farthest = 0.0  # the largest squared distance of a row from about, in these units
        self._low, self._high = np.full(n_features, np.inf), np.full(n_features, -np.inf)
        self.weight, self._largest_weight = 0.0, 0.0
        self.has_weights = False

    @np.errstate(invalid="ignore", divide="ignore", over="ignore")
    def add(self, block: Block, weights: Array | None) -> None:
        """Add the next block of rows."""
        self.has_weights |= weights is not None
        step = max(1, SHARES_PART_ENTRIES // max(1, block.shape[1]))
        for start in range(0, block.shape[0], step):
            part = block[start : start + step]
            values = np.asarray(part.toarray() if is_sparse(part) else part, np.float64)
            self._add(values, None if weights is None else weights[start : start + step])

    def _add(self, values: Array, weights: Array | None) -> None:
        each = np.ones(len(values)) if weights is None else weights
        self.n_rows += len(values)
        self.weight += float(each.sum())
        self._largest_weight = max(self._largest_weight, float(each.max()))
        present: Array | None = None
        if has_gaps(values):
            present = ~np.isnan(values)
            values = np.where(present, values, 0.0)
        if self.about is None:
            self.about = each @ values / (each.sum() if present is None else each @ present)
            self.about = np.nan_to_num(self.about, posinf=0.0, neginf=0.0)
        apart = values - self.about
        if present is None:
            counted = np.full(values.shape[1], each.sum())
            low, high = apart.min(axis=0), apart.max(axis=0)
        else:
            apart[~present] = 0.0
            counted = each @ present
            low = np.where(present, apart, np.inf).min(axis=0)
            high = np.where(present, apart, -np.inf).max(axis=0)
        squares = np.square(apart)
        sums = each @ squares
        self._sums += np.array([counted, each @ apart, sums])
        np.minimum(self._low, low, out=self._low)
        np.maximum(self._high, high, out=self._high)
        if self._unit is None:
            self._unit = np.where(sums > 0, each.sum() / sums, 0.0)
        distances = each * (squares @ self._unit)
        self._farthest = float(np.maximum(self._farthest, distances.max()))  # NaN stays NaN
        if self._products is not None:
            part = apart if weights is None else np.sqrt(each)[:, None] * apart
            self._products += part.T @ part

    @property
    def of_weight(self) -> float:
        """Return the largest share that a row has of the total weight."""
        return self._largest_weight / self.weight if self.weight else 0.0

    @property
    def has_products(self) -> bool:
        """Return whether products of all pairs of columns were added up."""
        return self._products is not None

    @property
    def filled_mean(self) -> Array:
        """Return the mean of each column with its gaps filled, ``(d,)``."""
        assert self.about is not None
        return np.asarray(self.about + self._sums[1] / self.weight)

    @property
    def products(self) -> Array:
        """Return the products of the columns about their means, with gaps filled, ``(d, d)``."""
        assert self._products is not None
        return self._products - np.outer(self._sums[1], self._sums[1] / self.weight)

    @np.errstate(invalid="ignore", divide="ignore", over="ignore")
    def farthest(self, columns: Array, norms: Array) -> float:
        """Bound the square of a row of A in some columns, divided by their norms; NaN if unknown.

        A row's distance from the mean is at most that from ``about`` and that between both.
        """
        assert self._unit is not None
        stretch = (1 / (np.square(norms) * self._unit[columns])).max()
        shift = np.linalg.norm(self._sums[1, columns] / self.weight / norms)
        return float(
            (np.sqrt(stretch * self._farthest) + np.sqrt(self._largest_weight) * shift) ** 2
        )

    @property
    def varies(self) -> Array:
        """Return which columns are not constant but for rounding, with gaps filled, ``(d,)``."""
        if self.about is None:
            return np.zeros(self._sums.shape[1], bool)
        with np.errstate(invalid="ignore", over="ignore"):
            spread = self._sums[2] - np.square(self._sums[1]) / self.weight
            whole = self._sums[2] + np.square(self.about) * self.weight
            return np.asarray((spread > _ROUNDING * whole) & np.isfinite(spread))

    def of_columns(self, rows: Rows, missing: int) -> Array:
        """Return the largest share that a row has of each column, ``(d,)``; 0 for constant columns."""
        weight, total, squares = self._sums
        if self.about is None:
            return np.zeros(rows.n_features)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            mean = np.where(weight > 0, total / weight, 0.0)
            spread = squares - weight * np.square(mean)
            if self.has_weights:
                largest = _largest_squares(rows, missing, self.about + mean, weight)
            else:
                largest = np.square(np.maximum(self._high - mean, mean - self._low))
                largest *= weight / (weight - 1)
            about = np.square(self.about) * weight
            varies = spread > _ROUNDING * (squares + about)
            return np.asarray(np.where(varies, largest / spread, 0.0))


def shares_of(rows: Rows, missing: int) -> Shares:
    """Return the shares of the rows that count."""
    shares = Shares(rows.n_features)
    for block, weights in counting_blocks(rows, missing):
        shares.add(block, weights)
    return shares


def shares_of_counts(counts: Array) -> Array:
    """Return the largest share of a row in each variant, given how often each genotype occurs."""
    values, n = np.arange(3.0), counts[:, :3].astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = n @ values / n.sum(axis=1)
        squares = np.square(values - mean[:, None])
        spread = (n * squares).sum(axis=1)
        largest = np.where(n > 0, squares, 0.0).max(axis=1) / (1 - 1 / n.sum(axis=1))
        return np.asarray(np.where(spread > 0, largest / spread, 0.0))


def _largest_squares(rows: Rows, missing: int, mean: Array, weight: Array) -> Array:
    """Return how much each column's sum of squares falls, at most, if a row is left out, ``(d,)``."""
    largest = np.zeros(rows.n_features)
    for block, weights in counting_blocks(rows, missing):
        values = np.asarray(block.toarray() if is_sparse(block) else block, np.float64)
        if len(values) and weights is not None:
            each = weights[:, None] * weight / (weight - weights[:, None])
            squares = np.nan_to_num(np.square(values - mean) * each, nan=0.0)
            np.maximum(largest, squares.max(axis=0), out=largest)
    return largest
