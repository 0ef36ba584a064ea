"""Multiply rows on a device by directions, and by themselves.

    sum x,   sum (x - m)^2,   A'A,   A'(A Z),   ||A V||^2,   with A = X - 1 m'

Rows are centered and multiplied in float64 on the device, one chunk at a time. So an offset of 1e8
costs no digits, and results are as accurate as those of numpy. Only m, Z, and V are moved to the
device, and only sums over rows are moved back, once for each question.

Most GPUs are many times slower in float64 than in float32. A site may therefore ask for A'A in float32
or tf32. A'A is still one symmetric matrix, so every solver converges as usual. But A'A is slightly
inaccurate. The site reports how large the error may be (`fedpca.rows.gpu.device_rows.ROUNDING_OF`), so
no solver claims a smaller error.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.linalg.grid import to_add
from fedpca.rows.gpu.device_rows import ROWS_PER_PRODUCT, OnDevice, chunks
from fedpca.rows.gpu.devices import matrix_products_in, to_device, to_host

MIN_PANEL, MAX_PANELS = 500, 8  # fewest columns in a panel of A'A, and most panels


def sums_on_device(rows: OnDevice) -> tuple[int, Array]:
    """Return the number of rows and the sum of each column, in float64."""
    xp, n = rows.xp, 0
    total = xp.zeros(rows.n_features, dtype=xp.float64, device=rows.device)
    for block in rows.device_blocks():
        n += int(block.shape[0])
        if xp.isdtype(block.dtype, "bool"):
            block = xp.astype(block, xp.uint8)
        total += xp.sum(block, axis=0, dtype=xp.float64)  # without a float64 copy
    return n, to_host(total)


class DeviceProducts:
    """Products with centered rows on a device, in their own column order and without a scale.

    Parameters
    ----------
    rows : DeviceRows or MovedRows
        The rows, without gaps.
    mean : ndarray of shape (d,)
        The mean, in the order of the rows' own columns.
    """

    def __init__(self, rows: OnDevice, mean: Array) -> None:
        self._rows, self._xp = rows, rows.xp
        self._mean = to_device(mean, rows.xp, rows.device) if mean.any() else None
        self._gram: Any = None

    def squares(self) -> Array:
        """Return the sum of squares of each column of A, ``(d,)``."""
        return to_host(self._squares_there())

    def gram(self) -> Array:
        """Return A'A, ``(d, d)``."""
        return to_host(self._gram_there())

    def gram_times(self, Z: Array, *, by_gram: bool) -> Array:
        """Return A'(A Z), ``(d, k)``; with ``by_gram``, compute A'A first and keep it there."""
        there = self._to_device(Z)
        if by_gram:
            return to_host(self._xp.matmul(self._gram_there(), there))
        total = self._zeros(Z.shape)
        for A in self._stacks():
            scores = self._xp.matmul(A, there)
            total += self._xp.sum(self._xp.matmul(self._xp.matrix_transpose(A), scores), axis=0)
        return to_host(total)

    def energy_along(self, V: Array, *, by_gram: bool) -> float:
        """Return ``||A V||^2`` for V, ``(d, k)``; with ``by_gram``, compute A'A first."""
        there = self._to_device(V)
        if by_gram:
            product = self._xp.matmul(self._gram_there(), there)
            return float(to_host(self._xp.sum(there * product)))
        total = self._zeros(())
        for A in self._stacks():
            scores = self._xp.matmul(A, there)
            total += self._xp.sum(scores * scores)
        return float(to_host(total))

    def _squares_there(self) -> Any:
        total = self._zeros(self._rows.n_features)
        for A in self._stacks():
            total += self._xp.sum(A * A, axis=(0, 1))
        return total

    def _gram_there(self) -> Any:
        """Return A'A on its grid, which is computed once and stays on the device."""
        if self._gram is None:
            is_exact = self._rows.precision == "float64"
            gram = self._inner(self._stacks()) if is_exact else self._narrow_gram()
            squares = self._xp.reshape(gram, (-1,))[:: self._rows.n_features + 1]
            norms = self._xp.sqrt(squares)
            added = to_add(norms, norms)
            self._gram = (gram + added) - added
        return self._gram

    def _narrow_gram(self) -> Any:
        """Return A'A from products in float32 or tf32 that are added up in float64.

        Columns are scaled to a variance of one, so that no square overflows or underflows. Rounding
        must not take entries beyond what the squares on the diagonal allow. Otherwise, the largest
        eigenvalue could exceed the sum of these squares, which is impossible for any rows.
        """
        xp = self._xp
        squares = self._squares_there()
        sizes = xp.sqrt(squares / max(1, self._rows.n_rows))
        sizes = xp.where(sizes > 0, sizes, xp.ones_like(sizes))
        # sums of fewer products in float32 have smaller errors
        stacks = self._stacks(ROWS_PER_PRODUCT // 2)
        narrow = (xp.astype(A / sizes, xp.float32) for A in stacks)
        with matrix_products_in(self._rows.precision):
            gram = self._inner(narrow) * (sizes[:, None] * sizes[None, :])
        roots = xp.sqrt(squares)
        most = roots[:, None] * roots[None, :]
        gram = xp.minimum(xp.maximum(gram, -most), most)
        diagonal = xp.eye(self._rows.n_features, dtype=xp.bool, device=self._rows.device)
        return xp.where(diagonal, squares[None, :], gram)

    def _inner(self, stacks: Iterator[Any]) -> Any:
        """Return the sum of A'A over stacks, ``(d, d)`` in float64.

        The sum is symmetric. Each panel is multiplied only by its own columns and by later ones, which
        saves almost half of the work. All other entries are copied from earlier panels.
        """
        xp, d = self._xp, self._rows.n_features
        n_panels = max(1, min(MAX_PANELS, d // MIN_PANEL))
        cuts = list(pairwise(round(i * d / n_panels) for i in range(n_panels + 1)))
        panels = [self._zeros((stop - start, d - start)) for start, stop in cuts]
        for A in stacks:
            for panel, (start, stop) in zip(panels, cuts, strict=True):
                left = xp.matrix_transpose(A[:, :, start:stop])
                panel += xp.sum(xp.matmul(left, A[:, :, start:]), axis=0, dtype=xp.float64)
        rows = []
        for i, (start, stop) in enumerate(cuts):
            above = [panels[j][:, start - cuts[j][0] : stop - cuts[j][0]] for j in range(i)]
            rows.append(xp.concat([*map(xp.matrix_transpose, above), panels[i]], axis=1))
        return xp.concat(rows, axis=0)

    def _stacks(self, n_rows: int | None = None) -> Iterator[Any]:
        """Yield A in float64, as stacks of matrices with ROWS_PER_PRODUCT or ``n_rows`` rows each.

        A product with few columns keeps only a part of a GPU busy, so a GPU computes many of them at
        the same time.
        """
        xp, d = self._xp, self._rows.n_features
        n_rows = n_rows or ROWS_PER_PRODUCT
        for block in self._rows.device_blocks():
            for chunk in chunks(self._rows, block):
                if chunk.dtype not in (xp.float32, xp.float64):
                    chunk = xp.astype(chunk, xp.float64)
                # a difference of float32 and float64 is computed in float64, without another copy
                A = (
                    xp.astype(chunk, xp.float64, copy=False)
                    if self._mean is None
                    else chunk - self._mean
                )
                n_whole = A.shape[0] // n_rows
                stop = n_whole * n_rows
                if n_whole:
                    yield xp.reshape(A[:stop, :], (n_whole, n_rows, d))
                if stop < A.shape[0]:
                    yield xp.reshape(A[stop:, :], (1, A.shape[0] - stop, d))

    def _zeros(self, shape: Any) -> Any:
        return self._xp.zeros(shape, dtype=self._xp.float64, device=self._rows.device)

    def _to_device(self, values: Array) -> Any:
        return to_device(np.ascontiguousarray(values), self._xp, self._rows.device)
