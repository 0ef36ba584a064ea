"""Record the rows in a site's last run, and tell whether enough of them have changed since."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.rows.gap_patterns import GapFlags, few_columns
from fedpca.rows.hashes import changes
from fedpca.site.store import Kept

# names of the arrays in the record that are about rows
ROWS, GAP_COLUMNS, GAPS = "all", "gap columns", "gaps"
SECRET = "secret"  # with which rows and answers are hashed
SECRET_BYTES = 32


class RowsRecord:
    """What a site keeps about the rows of its runs, and about what answers have shown of them.

    ``secret``, with which rows and answers are hashed, is that of the record once it has been read.
    There is no path if the rows cannot change, or the site keeps no files. The record then counts
    until the site ends.
    """

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self.secret = secrets.token_bytes(SECRET_BYTES)

    @property
    def path(self) -> Path | None:
        """Return the path of the file, if there is one."""
        return self._kept.path

    def read(self) -> Arrays:
        """Return what the record holds, and hash with its secret from now on."""
        # a record without its secret is damaged
        kept = self._kept.read(lambda found: {SECRET: found.arrays[SECRET], **found.arrays}) or {}
        self.secret = kept.pop(SECRET).tobytes() if kept else self.secret
        return kept

    def write(self, arrays: Arrays) -> None:
        """Replace what the record holds."""
        self._kept.write({}, {**arrays, SECRET: np.frombuffer(self.secret, np.uint8)})


class LastRows(NamedTuple):
    """Hashes of the rows, in ascending order, and their gaps."""

    hashes: Array
    gaps: GapFlags  # columns are positions among the sorted names of all columns

    def flags_in(self, columns: Array) -> Array:
        """Return which rows have gaps in these columns, ``(n, len(columns))``."""
        flags = np.zeros((len(self.hashes), len(columns)), bool)
        flags[:, np.searchsorted(columns, self.gaps.columns)] = self.gaps.flags
        return flags


def has_few_changed(before: LastRows, now: LastRows, least: int) -> bool:
    """Return whether two runs on these rows would together reveal a sum over fewer changed rows.

    If no row has gaps, the difference between two runs is a sum over all changed rows. Otherwise, both
    runs reveal sums over parts of their rows, such as those without gaps, and only a few changed rows
    may be in such a part. Let a combination a of the first run's sums and a combination b of the second
    run's sums weigh rows as in `fedpca.rows.gap_patterns`. Each row that stays has weight (a + b)'v,
    each removed row a'v, and each added row b'v. If (a + b)'v is not zero on all rows that stay, it is
    nonzero on at least m of them, provided that the gaps of these rows pass the rule by themselves.
    Otherwise, a = -b as far as they matter, so the changed rows must pass the rule by themselves.
    """
    removed, added = changes(before.hashes, now.hashes)
    if not len(removed) and not len(added):
        return False
    # rows that were removed do not hide one that was added, since someone may know them all
    if any(0 < len(part) < least for part in (removed, added)):
        return True
    n_before, n_now = len(before.hashes), len(now.hashes)
    # if no row is found again, it may be only the columns that have changed, or their units
    if len(removed) == n_before and len(added) == n_now and 0 < abs(n_now - n_before) < least:
        return True
    columns = np.union1d(before.gaps.columns, now.gaps.columns)
    if not columns.size:
        return False
    flags = before.flags_in(columns)
    stays = np.ones(len(flags), bool)
    stays[removed] = False
    gone, new = flags[removed], now.flags_in(columns)[added]
    # without removed rows, the rows that stay are those of the last run, which passed; likewise without
    # added rows, they are those of this run
    if len(gone) and len(new) and _gives_away(flags[stays], least):
        return True
    gone_fails, new_fails = _gives_away(gone, least), _gives_away(new, least)
    if gone_fails and new_fails:
        return True
    # a combination that is not zero on rows that fail is not zero on rows that pass either, if all
    # patterns of gaps among the former are also among the latter
    if gone_fails:
        return not _has_patterns(new, gone)
    return new_fails and not _has_patterns(gone, new)


def _gives_away(flags: Array, least: int) -> bool:
    # the columns that have no gaps matter too, so there is one column more
    return bool(
        flags.size and few_columns(flags, least, n_features=flags.shape[1] + 1, drops=True).any()
    )


def _has_patterns(flags: Array, wanted: Array) -> bool:
    have = {row.tobytes() for row in flags}
    return all(row.tobytes() in have for row in wanted)


def recorded(kept: Arrays) -> LastRows | None:
    """Return the rows of the last run, or None if there was none."""
    if ROWS not in kept:
        return None
    hashes, columns = kept[ROWS], kept.get(GAP_COLUMNS, np.zeros(0, np.int64))
    flags = np.zeros((len(hashes), 0), bool)
    if columns.size:
        flags = np.unpackbits(kept[GAPS], axis=1, count=len(columns)).astype(bool)
    return LastRows(hashes, GapFlags(columns, flags))


def arrays_of(rows: LastRows) -> Arrays:
    """Return the arrays that record the rows of a run."""
    columns, flags = rows.gaps
    packed = np.packbits(flags, axis=1)
    return {ROWS: rows.hashes, GAP_COLUMNS: columns.astype(np.int64), GAPS: packed}
