"""A site's rows for robust PCA, in blocks that fit into a processor's cache.

    A = (X - 1 m') / s,   with zeros where a value is missing

A round makes a dozen arrays of the size of A. If A were a whole table, each of these arrays would
travel to memory and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.linalg.scratch import Scratch
from fedpca.models.robust import median_size, values_about
from fedpca.rows.in_memory import is_sparse

if TYPE_CHECKING:
    from fedpca.site.site import Site

BLOCK_ENTRIES = 1 << 17  # a few arrays of this size fit into a cache
MIN_ROWS = 64  # least rows in a block; fewer would make products slow
MAX_SIZES = 1 << 14  # most entries whose median size is taken


@dataclass(frozen=True)
class PresentRows:
    """Which of a site's rows count, and the order of their columns, which the site remembers."""

    n: int  # rows that count
    order: Array | None = None  # (d,), each common feature's column; None if the order is the same
    left_out: Array | None = None  # indices of rows that have a value but do not count
    is_whole: bool = False  # whether no value is missing, so that checks for gaps can be skipped


@dataclass(frozen=True)
class RobustFrame:
    """The run's center and scale, which a site remembers."""

    mean: Array  # (d,)
    scale: Array  # (d,)
    varies: Array  # (d,), 1 for features that vary, else 0


def present_rows(site: Site, which: PresentRows) -> Iterator[Array]:
    """Yield the rows that count, in blocks ``(m, d)``; there is at least one block.

    Columns are in the common order. Rows without any values do not count, since they carry no
    information about components, center, or variances.
    """
    n_seen, has_yielded = 0, False
    for block in site.rows.blocks():
        step = max(MIN_ROWS, BLOCK_ENTRIES // max(1, block.shape[1]))
        for start in range(0, block.shape[0], step):
            part = block[start : start + step]
            rows = np.asarray(part.toarray() if is_sparse(part) else part, np.float64)
            if not which.is_whole and np.isnan(rows).any():
                rows = rows[~np.isnan(rows).all(axis=1)]
            if which.left_out is not None:
                own = which.left_out - n_seen
                n_seen += len(rows)
                rows = np.delete(rows, own[(own >= 0) & (own < len(rows))], axis=0)
            yield rows if which.order is None else rows[:, which.order]
            has_yielded = True
    if not has_yielded:
        yield np.empty((0, site.rows.n_features))


class Block(NamedTuple):
    """Some of a site's rows, standardized."""

    rows: slice  # the positions of these rows among the rows that count
    A: Array  # (m, d), zero where a value is missing
    present: Array  # (m, d), whether an entry has a value


def blocks_about(
    site: Site,
    center: Array,
    scale: Array | float = 1.0,
    features: Array | slice = slice(None),
) -> Iterator[Block]:
    """Yield some features of a site's rows about a center, in units of a scale.

    Each block overwrites the one before.
    """
    done, scratch = 0, Scratch()
    in_order = np.arange(site.rows.n_features)
    if isinstance(features, np.ndarray) and np.array_equal(features, in_order):
        features = slice(None)  # a slice copies nothing
    which = site.recall(PresentRows)
    for rows in present_rows(site, which):
        values = values_about(
            rows[:, features], center, scale, is_whole=which.is_whole, scratch=scratch
        )
        yield Block(slice(done, done + len(rows)), *values)
        done += len(rows)


def standardized_blocks(site: Site, center: Array | float = 0.0) -> Iterator[Block]:
    """Yield A in blocks, standardized with the run's center and scale.

    ``center`` shifts the center further, in units of the scale. Features that do not vary are set to
    zero, and none of their entries count as present. Otherwise, those entries would appear to fit.
    """
    frame = site.recall(RobustFrame)
    constant = np.flatnonzero(frame.varies == 0)
    about = frame.mean + center * frame.scale
    for block in blocks_about(site, about, frame.scale):
        block.A[:, constant] = 0.0
        block.present[:, constant] = False
        yield block


class Sizes:
    """The sizes of entries, for their median; if there are many entries, only some rows' sizes."""

    def __init__(self, site: Site) -> None:
        n_entries = site.recall(PresentRows).n * site.rows.n_features
        self._step = -(-n_entries // MAX_SIZES) or 1
        self._sizes: list[Array] = []

    def add(self, rows: slice, values: Array, chosen: Array) -> None:
        """Add the sizes of the chosen entries in every ``step``-th row."""
        every = slice(-rows.start % self._step, None, self._step)
        self._sizes.append(np.abs(values[every][chosen[every]]))

    def median(self) -> float:
        """Return the median size, or zero if there are no entries."""
        return median_size(np.concatenate(self._sizes))
