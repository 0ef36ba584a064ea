"""Refuse to answer if a number would be about so few rows that it describes single rows.

Here, m is `Policy.min_count`. No count or sum over fewer than m rows leaves the site:

- a site with fewer than m rows does not answer;
- a column in which fewer than m rows differ from the most frequent value is refused by name, because
  the sum of the column reveals a sum over these rows;
- a run that fills gaps, or leaves out rows with gaps, is refused if such runs together would reveal a
  sum over fewer than m rows; see `fedpca.rows.gap_patterns`. It does not matter what the run itself
  does to gaps, because other runs may do something else;
- a run is refused if some rows have changed since the last run, but fewer than `Policy.min_change`, or
  if their gaps are such that sums over fewer of them would be revealed.

Sums over many rows may also be nearly about one row, or be so many that they show all rows:

- a run is refused if one row has more than `Policy.max_share` of the squares about the mean, along any
  direction, or if fewer than m rows have all squares along one; see `fedpca.rows.leverages`. Tables
  with too many columns for that are only looked at column by column. A run is also refused if one row
  has more than this share of the weight;
- an answer is refused if it and all earlier answers would show the rows in more directions than the
  site has rows for, by `Policy.min_rows_per_direction`; see `fedpca.site.directions`.

Genotypes have gaps in thousands of variants, and a run leaves out variants with few rows. So gaps of
genotypes are compared in pairs of variants only, and samples with gaps are never dropped.

A refusal may name columns and bounds, but never tells how many of these rows there are, or which.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.errors import PolicyRefused
from fedpca.linalg.blas_threads import threads_for_entries
from fedpca.linalg.dense import ROUNDING
from fedpca.rows.columns import some_of
from fedpca.rows.gap_patterns import GapFlags, RowGaps, few_columns, fewest_together
from fedpca.rows.gaps import DROP, ERROR, MEAN, are_counted
from fedpca.rows.genotypes.genotype_rows import GenotypeRows
from fedpca.rows.hashes import RowHasher
from fedpca.rows.in_memory import Rows, weighted_blocks
from fedpca.rows.leverages import WithGaps, look_for_alone
from fedpca.rows.rare import Few, Usual, look_for_few, names_at
from fedpca.rows.shares import MAX_COLUMNS, Shares, shares_of, shares_of_counts
from fedpca.rows.weighted import WeightedRows
from fedpca.site import rows_record
from fedpca.site.directions import Directions, Sizes, after_change
from fedpca.site.policy import Policy
from fedpca.site.store import Kept

MAX_NAMES = 50  # names of rare columns in a message


class Seen(NamedTuple):
    """What one pass over the rows finds out; rows are in the order in which they were read."""

    hashes: Array | None  # (n,), if rows are compared with those of the last run
    secret: bytes  # with which rows were hashed
    gaps: GapFlags  # none for genotypes
    shares: Shares | None  # if the policy limits shares
    usual: Usual | None  # none for genotypes
    n_heavy: float  # rows of equal weights in which sums vary as much, (sum w)^2 / sum w^2


class Disclosure:
    """The checks of a site's rows; they read the rows once each time the files are opened.

    ``kept`` keeps the rows of the last run, and what answers have shown.
    """

    def __init__(self, policy: Policy, kept: Kept) -> None:
        self._policy, self._record = policy, rows_record.RowsRecord(kept)
        self._directions = Directions(policy, self._record)
        self._begin(None)

    def _begin(self, rows: Rows | None) -> None:
        self._rows = rows
        self._used: Rows | None = rows
        self._few: dict[int, Few] = {}  # by what happens to gaps, in the columns used
        # why shares are too large, by what happens to gaps if there are any, in the columns used
        self._large: dict[int, str | None] = {}
        self._gapped: list[str] | None = None  # columns whose gaps reveal sums over few rows
        self._patterns: Array | None = None  # one column of each pattern of gaps
        self._is_compared = False  # whether rows were compared with those of the last run
        self._together: tuple[int, int] | None = None  # see `fewest_together`
        self._directions.begin()
        self._seen: Seen | None = None

    def look(self, rows: Rows) -> None:
        """Check rows as soon as they are opened, so that the first run does not have to wait."""
        if rows is not self._rows:
            self._begin(rows)
        if self._record.path is not None and self._policy.least_change > 1:
            self._record.read()
            self._see(rows, hashes=True)
            self._gapped_columns(rows)
        self._few_of(rows, ERROR)
        if self._policy.max_share is not None and not isinstance(rows, GenotypeRows):
            self._large_of(rows, rows, ERROR)

    def few_of(self, rows: Rows, missing: int) -> Few:
        """Return which columns have few rows of a kind, and how many rows count."""
        if rows is not self._rows:
            self._begin(rows)
        return self._few_of(rows, missing)

    def check(self, rows: Rows, missing: int, used: Rows | None = None) -> None:
        """Refuse rows if the policy does not let their sums leave the site, and name the rule.

        ``missing`` says what happens to gaps. If the run does not use all columns, ``used`` has only
        those that it uses. Changes are looked for in all columns.
        """
        if rows is not self._rows:
            self._begin(rows)
        used = rows if used is None else used
        reason = self._reason_against(rows, used, missing)
        if reason is not None:
            raise PolicyRefused(reason)
        self.check_change(rows)

    def check_change(self, rows: Rows) -> None:
        """Refuse rows of which too few have changed since the last run; see `check`."""
        if rows is not self._rows:
            self._begin(rows)
        is_due = self._record.path is not None and self._policy.least_change > 1
        if is_due and not self._is_compared:
            self._compare(rows)
            self._is_compared = True

    def count_directions(self, n_shown: int, answer: Arrays, rows: Rows, missing: int) -> None:
        """Refuse an answer if all answers together would show too many directions; else count it.

        See `Directions.count`. The rows are those that `check` has checked.
        """
        if n_shown and self._directions.need_count(missing):
            sizes = self._sizes(rows, missing)
            self._directions.count(n_shown, answer, missing, rows.n_features, sizes)

    def _sizes(self, rows: Rows, missing: int) -> Sizes:
        """Return how many rows a run uses, and how many are in parts that runs tell apart.

        Genotypes have gaps in so many variants that these parts are not looked at. If shares are
        limited, light rows count less.
        """
        if isinstance(rows, GenotypeRows):
            return Sizes(rows.n_rows)
        n_used = rows.n_rows if missing != DROP else self._see(rows).gaps.n_whole
        if isinstance(rows, WeightedRows) and self._policy.max_share is not None:
            # equal weights count all rows
            n_used = int(min(n_used, self._see(rows).n_heavy * (1 + ROUNDING)))
        if missing == ERROR or self._policy.min_count == 1:
            return Sizes(n_used)
        if self._together is None:
            self._together = fewest_together(self._see(rows).gaps.flags)
        n_together, n_apart = self._together
        return Sizes(n_used, n_apart, n_together)

    def _few_of(self, rows: Rows, missing: int) -> Few:
        if self._policy.min_count == 1:
            return Few(0, [])
        if rows is not self._used:
            self._used, self._few, self._large = rows, {}, {}
        if missing not in self._few:
            gapped = self._one_of_each(rows) if missing == MEAN else None
            seen = self._seen if rows is self._rows and missing == ERROR else None
            if seen is not None and seen.usual is not None:
                few = Few(seen.usual.n_rows, names_at(rows, seen.usual.is_rare))
            else:
                few = look_for_few(rows, self._policy.min_count, missing, gapped)
            self._few[missing] = few
        return self._few[missing]

    def _reason_against(self, rows: Rows, used: Rows, missing: int) -> str | None:
        """Return why no sum over the rows may leave the site and what to do about it, or None."""
        reason = reason_against(self._few_of(used, missing), self._policy.min_count)
        if reason is None and missing != ERROR and self._policy.min_count > 1:
            reason = self._reason_against_gaps(rows, used, missing)
        if reason is None and self._policy.max_share is not None:
            reason = self._large_of(rows, used, missing)
        return reason

    def _large_of(self, rows: Rows, used: Rows, missing: int) -> str | None:
        fills = missing == MEAN and self._one_of_each(rows).size > 0
        kind = missing if missing == DROP or fills else ERROR
        if kind not in self._large:
            with threads_for_entries(0):  # all products are of small blocks
                self._large[kind] = self._reason_against_shares(rows, used, kind)
        return self._large[kind]

    def _reason_against_gaps(self, rows: Rows, used: Rows, missing: int) -> str | None:
        rule = f"its policy's min_count={self._policy.min_count}"
        if isinstance(rows, GenotypeRows):
            if missing == DROP and rows.counts[:, 3].any():
                return (
                    "samples with gaps cannot be dropped, because runs that choose other variants "
                    f"would drop other samples, and comparing them would give samples away ({rule}); "
                    "use missing='mean'"
                )
            return None
        gapped = self._gapped_columns(rows)
        if not gapped:
            return None
        return (
            f"in columns {some_of(gapped, MAX_NAMES)}, gaps are in such rows that fits which fill them "
            f"with other means, or drop rows, would together give away a sum over fewer than "
            f"{self._policy.min_count} rows ({rule}); fill these gaps in the site's files, leave out "
            "the rows, or leave these columns out at all sites with --drop"
        )

    def _gapped_columns(self, rows: Rows) -> list[str]:
        """Return the columns whose gaps reveal sums over few rows, in any runs together."""
        least = self._policy.min_count
        if isinstance(rows, GenotypeRows) or least == 1:
            return []
        if self._gapped is None:
            columns, flags = gaps = self._see(rows).gaps
            few = few_columns(flags, least, n_features=rows.n_features, drops=gaps.n_whole >= least)
            chosen = np.zeros(rows.n_features, bool)
            chosen[columns[few]] = True
            self._gapped = names_at(rows, chosen)
        return self._gapped

    def _one_of_each(self, rows: Rows) -> Array:
        """Return one column of each pattern of gaps; none of genotypes, whose gaps are counted."""
        if self._patterns is None:
            self._patterns = np.zeros(0, int)
            gaps = None if isinstance(rows, GenotypeRows) else self._see(rows).gaps
            if gaps is not None and gaps.columns.size:
                first = np.unique(gaps.flags, axis=1, return_index=True)[1]
                self._patterns = gaps.columns[first]
        return self._patterns

    def _reason_against_shares(self, rows: Rows, used: Rows, missing: int) -> str | None:
        most, least = self._policy.max_share, self._policy.min_count
        assert most is not None
        rule = f"its policy's max_share={most:g}"
        of_row = of_rows = np.zeros(used.n_features, bool)
        if are_counted(used, missing):
            of_row = shares_of_counts(used.counts) > most
        else:
            gapped = self._one_of_each(rows) if missing == MEAN else np.zeros(0, int)
            missing = DROP if missing == DROP else MEAN
            shares = self._see(rows).shares if used is rows and missing == MEAN else None
            shares = shares_of(used, missing) if shares is None else shares
            if shares.has_weights and shares.of_weight > most:
                return f"one row has a larger share of the weight than {rule}; use other weights"
            beside, alone = WithGaps(used, gapped), None
            # about their mean, n rows in n - 1 directions all stand out
            limit = shares.n_rows // max(1, self._policy.min_rows_per_direction)
            limit = min(limit, shares.n_rows - 2)
            if gapped.size and beside.n_features <= MAX_COLUMNS:
                moved = shares_of(beside, MEAN)
                alone = look_for_alone(beside, MEAN, moved, most, least, most_directions=limit)
            if alone is not None:
                of_row, of_rows = map(beside.own, alone)
            elif shares.has_products:
                alone = look_for_alone(used, missing, shares, most, least, most_directions=limit)
                of_row, of_rows = alone or (of_row, of_rows)
            if alone is None:
                of_row = shares.of_columns(used, missing) > most
        way_out = "or leave some of them out at all sites with --drop"
        if of_row.any():
            return (
                f"in columns {some_of(names_at(used, of_row), MAX_NAMES)}, one row has a larger share "
                f"of the squares about the mean than {rule}, in one column or in a combination of "
                "them, so products with it nearly give this row away; clip or transform these "
                f"columns, {way_out}"
            )
        if of_rows.any():
            return (
                f"a combination of columns {some_of(names_at(used, of_rows), MAX_NAMES)} is constant "
                f"but for fewer than {least} rows, so products with it give a sum over these rows "
                f"away (its policy's min_count={least}); correct these rows, {way_out}"
            )
        return None

    def _see(self, rows: Rows, *, hashes: bool = False) -> Seen:
        """Return what one pass over the rows finds out; read them again only if that is not enough."""
        seen = self._seen
        if seen is None or (hashes and (seen.hashes is None or seen.secret != self._record.secret)):
            n, is_table = rows.n_features, not isinstance(rows, GenotypeRows)
            gaps = RowGaps(n if is_table else 0)
            shares = Shares(n) if is_table and self._policy.max_share is not None else None
            usual = Usual(n, self._policy.min_count) if is_table else None
            hasher = RowHasher(rows, self._record.secret) if hashes else None
            weight = squares = 0.0
            for block, weights in weighted_blocks(rows):
                if weights is not None:
                    weight += float(weights.sum())
                    squares += float(weights @ weights)
                if hasher is not None:
                    hasher.add(block, weights)
                if is_table:
                    gaps.add(block)
                if usual is not None and not usual.is_settled:
                    usual.add(block)
                if shares is not None:
                    shares.add(block, weights)
            found = None if hasher is None else hasher.hashes
            n_heavy = weight**2 / squares if squares else math.inf
            self._seen = seen = Seen(
                found, self._record.secret, gaps.flags(), shares, usual, n_heavy
            )
        return seen

    def _record_of(self, rows: Rows) -> rows_record.LastRows:
        seen = self._see(rows, hashes=True)
        assert seen.hashes is not None
        order = np.argsort(seen.hashes, kind="stable")
        hashes = seen.hashes[order]
        columns, flags = seen.gaps
        if not columns.size:
            return rows_record.LastRows(hashes, seen.gaps)
        if rows.features is not None:
            columns = np.argsort(np.argsort(np.array(rows.features)))[columns]
        by_name = np.argsort(columns)
        return rows_record.LastRows(hashes, GapFlags(columns[by_name], flags[order][:, by_name]))

    def _compare(self, rows: Rows) -> None:
        """Refuse rows if too few have changed since the last run; otherwise, record the rows."""
        kept = self._record.read()
        now, path = self._record_of(rows), self._record.path
        assert path is not None
        before = rows_record.recorded(kept)
        least = self._policy.least_change
        if before is not None and rows_record.has_few_changed(before, now, least):
            raise PolicyRefused(
                f"fewer rows have changed since the site's last run than its policy's "
                f"min_change={least}, or fewer of them have values where others have gaps, or all rows "
                f"look different and their number has changed by less, so the difference between the "
                f"runs would give these rows away; wait until more rows have "
                f"changed, or restore the rows of the last run; if the changed rows are no secret, the "
                f"site can delete {path.name} in its folder"
            )
        record = rows_record.arrays_of(now)
        if any(
            name not in kept or not np.array_equal(array, kept[name])
            for name, array in record.items()
        ):
            last = None if before is None else before.hashes
            self._record.write({**after_change(kept, last, now.hashes), **record})


def reason_against(few: Few, min_count: int) -> str | None:
    """Return why no sum over the rows may leave the site and what to do about it, or None."""
    rule = f"its policy's min_count={min_count}"
    if 0 < few.n_rows < min_count:
        return f"the site has fewer usable rows than {rule}; it needs more rows to take part"
    if few.gapped:
        return (
            f"in columns {some_of(few.gapped, MAX_NAMES)}, fewer than {min_count} rows have a gap but "
            f"a value in another column, and fits that fill gaps with other means would give these "
            f"rows away ({rule}); fill these gaps in the site's files"
        )
    if few.rare:
        return (
            f"fewer than {min_count} rows differ from the most frequent value in columns "
            f"{some_of(few.rare, MAX_NAMES)}, so a sum over such a column gives these rows away "
            f"({rule}); leave these columns out at all sites with --drop"
        )
    return None
