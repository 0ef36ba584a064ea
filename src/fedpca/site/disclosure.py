"""Refuse to answer if a number would be about so few rows that it describes single rows.

Here, m is `Policy.min_count`. No count or sum over fewer than m rows leaves the site:

- a site with fewer than m rows does not answer;
- a column in which fewer than m rows differ from the most frequent value is refused by name, because
  the sum of the column reveals a sum over these rows;
- a run in which ``missing="drop"`` leaves out fewer than m rows is refused, because its difference from
  a run that fills the gaps would be a sum over these rows;
- a run with ``missing="mean"`` is refused if fewer than m rows have a gap in one column and a value in
  another, because runs with other means, or without these rows, would reveal sums over these rows;
- a run is refused if some rows have changed since the last run, but fewer than `Policy.min_change`,
  because the difference between the two runs would reveal sums over these rows.

A refusal may name columns and bounds, but never tells how many of these rows there are, or which.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import secrets
from pathlib import Path

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import FileError, InputError, MessageError, PolicyRefused, SiteFailed
from fedpca.protocol.message import compose, decode, encode
from fedpca.rows.columns import some_of
from fedpca.rows.gaps import DROP, ERROR, has_gaps, rows_with_gaps
from fedpca.rows.in_memory import Block, Rows, is_sparse, weighted_blocks
from fedpca.rows.rare import Few, look_for_few
from fedpca.site.policy import Policy
from fedpca.storage import atomic

log = logging.getLogger("fedpca.site")

MAX_NAMES = 50  # names of rare columns in a message
HASH_BYTES = 8  # of a row; among 10^6 rows, any two agree by chance with probability 3e-8
SECRET_BYTES = 32


class Disclosure:
    """The checks of a site's rows; they read the rows once each time the files are opened."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._begin(None)

    def _begin(self, rows: Rows | None) -> None:
        self._rows = rows
        self._used: Rows | None = rows
        self._few: dict[int, Few] = {}  # by what happens to gaps, in the columns used
        self._compared: set[int] = set()  # what happened to gaps when rows were compared
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._hashes: dict[bool, Array] = {}  # of all rows, or only of those without gaps

    def look(self, rows: Rows, path: Path | None) -> None:
        """Check rows as soon as they are opened, so that the first run does not have to wait."""
        if rows is not self._rows:
            self._begin(rows)
        self._few_of(rows, ERROR)
        if path is not None and self._policy.least_change > 1:
            self._hashes_of(rows, False, _read(path)[0])

    def few_of(self, rows: Rows, missing: int) -> Few:
        """Return which columns have few rows of a kind, and how many rows count."""
        if rows is not self._rows:
            self._begin(rows)
        return self._few_of(rows, missing)

    def check(self, rows: Rows, missing: int, path: Path | None, used: Rows | None = None) -> None:
        """Refuse rows if the policy does not let their sums leave the site, and name the rule.

        ``missing`` says what happens to gaps. ``path`` is the site's record of the rows in its last
        run, or None if the rows cannot change or the site keeps no files. If the run does not use all
        columns, ``used`` has only those that it uses. Changes are looked for in all columns.
        """
        if rows is not self._rows:
            self._begin(rows)
        few = self._few_of(rows if used is None else used, missing)
        reason = reason_against(few, self._policy.min_count)
        if reason is not None:
            raise PolicyRefused(reason)
        if path is not None and self._policy.least_change > 1 and missing not in self._compared:
            self._compare(rows, missing, path)
            self._compared.add(missing)

    def _few_of(self, rows: Rows, missing: int) -> Few:
        if self._policy.min_count == 1:
            return Few(0, 0, [])
        if rows is not self._used:
            self._used, self._few = rows, {}
        if missing not in self._few:
            self._few[missing] = look_for_few(rows, self._policy.min_count, missing)
        return self._few[missing]

    def _hashes_of(self, rows: Rows, only_whole: bool, secret: bytes | None) -> Array:
        if secret is not None and secret != self._secret:
            self._secret, self._hashes = secret, {}
        if only_whole not in self._hashes:
            found = row_hashes(rows, self._secret, only_whole=only_whole)
            self._hashes[only_whole] = np.sort(found)
        return self._hashes[only_whole]

    def _compare(self, rows: Rows, missing: int, path: Path) -> None:
        """Refuse rows if too few have changed since the last run; otherwise, record the rows.

        Rows without gaps are recorded separately, because a run may have used only those.
        """
        secret, kept = _read(path)
        hashes = self._hashes_of(rows, missing == DROP, secret)
        least = self._policy.least_change
        if any(0 < n_changed(before, hashes) < least for before in kept.values()):
            raise PolicyRefused(
                f"fewer rows have changed since the site's last run than its policy's "
                f"min_change={least}, so the difference between the runs would give these rows away; "
                f"wait until more rows have changed, or restore the rows of the last run; if the "
                f"changed rows are no secret, the site can delete {path.name} in its folder"
            )
        kind = "whole" if missing == DROP else "all"
        if kind not in kept or not np.array_equal(kept[kind], hashes):
            _write(path, self._secret, {**kept, kind: hashes})


def reason_against(few: Few, min_count: int) -> str | None:
    """Return why no sum over the rows may leave the site and what to do about it, or None."""
    rule = f"its policy's min_count={min_count}"
    if 0 < few.n_rows < min_count:
        return f"the site has fewer usable rows than {rule}; it needs more rows to take part"
    if 0 < few.n_left_out < min_count:
        return (
            f"missing='drop' would leave out fewer rows than {rule}, and comparing with a fit that "
            "fills their gaps would give them away; remove these rows from the site's files, or fill "
            "their gaps"
        )
    if few.gapped:
        return (
            f"in columns {some_of(few.gapped, MAX_NAMES)}, fewer than {min_count} rows have a gap but "
            f"a value in another column, and fits that fill gaps with other means would give these "
            f"rows away ({rule}); fill these gaps in the site's files, or use missing='drop'"
        )
    if few.rare:
        return (
            f"fewer than {min_count} rows differ from the most frequent value in columns "
            f"{some_of(few.rare, MAX_NAMES)}, so a sum over such a column gives these rows away "
            f"({rule}); leave these columns out at all sites with --drop"
        )
    return None


def n_changed(before: Array, after: Array) -> int:
    """Return the number of rows removed or the number of rows added, whichever is larger.

    So a row with a new value counts once, although it counts as both removed and added.
    """
    values, where = np.unique(np.concatenate([before, after]), return_inverse=True)
    counts = np.bincount(where[len(before) :], minlength=len(values))
    difference = counts - np.bincount(where[: len(before)], minlength=len(values))
    return int(max(difference[difference > 0].sum(), -difference[difference < 0].sum()))


def row_hashes(rows: Rows, secret: bytes, *, only_whole: bool = False) -> Array:
    """Return a hash of each row that counts, as int64; the order of the columns does not matter."""
    order = None
    if rows.features is not None and list(rows.features) != sorted(rows.features):
        order = np.argsort(np.array(rows.features))
    found: list[bytes] = []
    for block, weights in weighted_blocks(rows):
        if only_whole and has_gaps(block):
            whole = ~rows_with_gaps(block)
            block, weights = block[whole], None if weights is None else weights[whole]
        if order is not None:
            block = block[:, order]
        for i, data in enumerate(_bytes_of_rows(block)):
            hashed = hashlib.blake2b(data, digest_size=HASH_BYTES, key=secret)
            if weights is not None:
                hashed.update(weights[i].tobytes())
            found.append(hashed.digest())
    return np.frombuffer(b"".join(found), np.int64)


def _bytes_of_rows(block: Block) -> list[memoryview]:
    """Return each row's values as bytes, with a single form of zero and a single form of NaN."""
    if not is_sparse(block):
        values = _one_form(block)
        width = values.shape[1] * values.itemsize
        data = memoryview(values.tobytes())
        return [data[i * width : (i + 1) * width] for i in range(values.shape[0])]
    part = block.copy()
    part.eliminate_zeros()
    part.sort_indices()
    entries = np.empty(part.nnz, np.dtype([("column", "<i8"), ("value", "<f8")]))
    entries["column"], entries["value"] = part.indices, _one_form(part.data)
    data, ends = memoryview(entries.tobytes()), part.indptr * entries.itemsize
    return [data[start:end] for start, end in itertools.pairwise(ends)]


def _one_form(values: Array) -> Array:
    values = np.asarray(values, np.float64) + 0.0  # turns -0 into 0, and copies
    values[np.isnan(values)] = np.nan
    return values


def _read(path: Path) -> tuple[bytes | None, dict[str, Array]]:
    """Return the site's secret and the hashes of the last run's rows, if a file has them."""
    try:
        message = decode(path.read_bytes(), limit=None)
        arrays = {name: array.copy() for name, array in message.arrays.items()}
        return arrays.pop("secret").tobytes(), arrays
    except FileNotFoundError:
        return None, {}
    except OSError as error:
        raise InputError(
            f"{path.name}, the record of the rows in the site's last run, cannot be read: "
            f"{error.strerror}; the site must fix this"
        ) from None
    except (MessageError, KeyError):
        raise InputError(
            f"{path.name}, the record of the rows in the site's last run, is damaged, so the site "
            "cannot tell how many rows have changed; the site must restore the file, or delete it if "
            "the change is no secret"
        ) from None


def _write(path: Path, secret: bytes, kept: dict[str, Array]) -> None:
    """Record the rows of a run before the first answer of the run leaves."""
    arrays = {**kept, "secret": np.frombuffer(secret, np.uint8)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic.writing(path, private=True) as temporary:
            temporary.write_bytes(encode(compose({}, arrays, limit=None)))
    except (FileError, OSError) as error:
        log.error("the record of the site's rows cannot be written: %s", error)
        raise SiteFailed(
            "the site cannot record its rows; free up disk space at the site"
        ) from None
