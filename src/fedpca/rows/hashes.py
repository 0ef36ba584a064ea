"""Hash rows, so that later runs can tell how many rows have changed since."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.rows.gaps import has_gaps
from fedpca.rows.in_memory import Block, Rows, is_sparse, weighted_blocks

MAX_HASHED_ROWS = 1000  # from which a site derives its own secret
_ROWS = b"fedpca rows"
HASH_BYTES = 8  # of a row; among 10^6 rows, any two agree by chance with probability 3e-8
PART_ENTRIES = 1 << 16  # copied at a time, so that they stay in cache


class RowHasher:
    """Hashes each row that counts, as int64; the order of the columns does not matter."""

    def __init__(self, rows: Rows, secret: bytes) -> None:
        self._secret = secret
        self._order: Array | None = None
        if rows.features is not None and list(rows.features) != sorted(rows.features):
            self._order = np.argsort(np.array(rows.features))
        self._found: list[bytes] = []

    def add(self, block: Block, weights: Array | None) -> None:
        """Hash the next block of rows."""
        if self._order is not None:
            block = block[:, self._order]
        step = max(1, PART_ENTRIES // max(1, block.shape[1]))
        for start in range(0, block.shape[0], step):
            for i, data in enumerate(_bytes_of_rows(block[start : start + step]), start):
                hashed = hashlib.blake2b(data, digest_size=HASH_BYTES, key=self._secret)
                if weights is not None:
                    hashed.update(weights[i].tobytes())
                self._found.append(hashed.digest())

    @property
    def hashes(self) -> Array:
        """Return the hashes, in the order of the rows."""
        return np.frombuffer(b"".join(self._found), np.int64)


def secret_of(rows: Rows) -> bytes:
    """Return a hash of the first rows, which are secret, so that the same rows give the same bits."""
    digest = hashlib.sha256(_ROWS)
    for block, _ in itertools.islice(weighted_blocks(rows), 1):
        part: Any = block[:MAX_HASHED_ROWS]
        for array in (part.data, part.indices, part.indptr) if is_sparse(part) else (part,):
            digest.update(np.asarray(array).tobytes())
    return digest.digest()


def changes(before: Array, after: Array) -> tuple[Array, Array]:
    """Return the positions of the rows that were removed, and of those that were added.

    Both are multisets in ascending order. A row with a new value counts as both.
    """
    values, where = np.unique(np.concatenate([before, after]), return_inverse=True)
    n_before = np.bincount(where[: len(before)], minlength=len(values))
    n_after = np.bincount(where[len(before) :], minlength=len(values))
    return _extra(before, values, n_before - n_after), _extra(after, values, n_after - n_before)


def _extra(ordered: Array, values: Array, n_more: Array) -> Array:
    # equal rows have equal gaps, so it does not matter which of them are meant
    first = np.searchsorted(ordered, values[n_more > 0])
    found = [np.arange(i, i + n) for i, n in zip(first, n_more[n_more > 0], strict=True)]
    return np.concatenate([np.zeros(0, int), *found])


def n_changed(before: Array, after: Array) -> int:
    """Return how many rows were removed, or were added if these are fewer; 0 if no row has changed."""
    return min((len(part) for part in changes(before, after) if len(part)), default=0)


def _bytes_of_rows(block: Block) -> list[memoryview]:
    """Return each row's values as bytes, with a single form of zero and a single form of NaN."""
    if not is_sparse(block):
        values = _one_form(block)
        width = values.shape[1] * values.itemsize
        data = values.reshape(-1).data.cast("B")
        return [data[i * width : (i + 1) * width] for i in range(values.shape[0])]
    part = block.copy()
    part.eliminate_zeros()
    part.sort_indices()
    entries = np.empty(part.nnz, np.dtype([("column", "<i8"), ("value", "<f8")]))
    entries["column"], entries["value"] = part.indices, _one_form(part.data)
    data, ends = memoryview(entries.tobytes()), part.indptr * entries.itemsize
    return [data[start:end] for start, end in itertools.pairwise(ends)]


def _one_form(values: Array) -> Array:
    values = np.add(values, 0.0, dtype=np.float64, order="C")  # turns -0 into 0, and copies
    if has_gaps(values):
        values[np.isnan(values)] = np.nan
    return values
