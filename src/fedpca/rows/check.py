"""Check rows before a fit: find what would stop the fit, in one pass over the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.facts import COUNT, Column, Fact, Records, Section, Sections, choice
from fedpca.protocol.invariants import MAX_VALUE
from fedpca.rows.columns import matching_order, some_of
from fedpca.rows.gaps import ERROR
from fedpca.rows.genotypes.genotype_rows import GenotypeRows
from fedpca.rows.genotypes.variants import common_variants, left_out_in_words
from fedpca.rows.in_memory import Block, Rows, is_sparse
from fedpca.rows.rare import look_for_few

MIN_TOTAL_ROWS = 2  # at all sites together
MIN_NUMBERED_ROWS = 3  # with fewer rows, measurements may look like row numbers

MAX_LISTED_COLUMNS = 20  # columns that are listed one by one
MAX_RARE_COLUMNS = 50  # rare columns that a finding names


class Finding(NamedTuple):
    """Something in the rows that a person should know before a fit, and what to do about it."""

    where: str  # a site's name, or "all sites"
    text: str
    stops_fit: bool


@dataclass(frozen=True)
class Examined:
    """What one pass over rows found in each column."""

    n_rows: int
    n_features: int
    features: tuple[str, ...] | None
    dtypes: tuple[str, ...]
    n_nan: Array  # (d,)
    n_infinite: Array  # (d,)
    smallest: Array  # of the finite values, (d,); infinity if there are none
    largest: Array  # (d,)
    counts_up: Array  # whether each value is 1 more than the value above it, (d,) of bool

    @property
    def is_constant(self) -> Array:
        """Return which columns have the same value in all rows, ``(d,)`` of bool."""
        is_whole = (self.n_nan == 0) & (self.n_infinite == 0)
        return np.asarray((self.smallest == self.largest) & is_whole & (self.n_rows > 1))

    def names(self, chosen: Array) -> list[str]:
        """Return the names of the chosen columns, or their positions if they have no names."""
        return [
            str(i) if self.features is None else self.features[i] for i in np.flatnonzero(chosen)
        ]

    def facts(self, site: str) -> Records:
        """Return what was found in each column of a site, those with the most bad values first."""
        names = self.names(self.n_nan >= 0)
        n_bad = self.n_nan + self.n_infinite
        is_short = len(names) <= MAX_LISTED_COLUMNS
        order = range(len(names)) if is_short else np.argsort(-n_bad, kind="stable")
        rows = [
            (
                names[i],
                self.dtypes[i],
                int(self.n_nan[i]),
                int(self.n_infinite[i]),
                bool(self.is_constant[i]),
            )
            for i in order
        ]
        return Records(
            f"columns.{site}", COLUMN, rows, f"Columns of {site}", n_shown=MAX_LISTED_COLUMNS
        )


@dataclass(frozen=True)
class Checked:
    """What a check of several sites' rows found."""

    sites: Mapping[str, Examined]
    findings: Sequence[Finding]

    @property
    def n_stops(self) -> int:
        """Return the number of findings that would stop a fit."""
        return sum(finding.stops_fit for finding in self.findings)

    def facts(self, *, has_columns: bool = False) -> Sections:
        """Return what was found at each site, in each column on request, and what it means."""
        rows = [
            (
                name,
                at.n_rows,
                at.n_features,
                ", ".join(f"{n:,} {kind}" for kind, n in Counter(at.dtypes).items()),
                *(int(each.sum()) for each in (at.n_nan, at.n_infinite, at.is_constant)),
            )
            for name, at in self.sites.items()
        ]
        findings = [(each.stops_fit, each.where, each.text) for each in self.findings]
        return (
            Records("sites", EXAMINED, rows),
            *(at.facts(name) for name, at in self.sites.items() if has_columns),
            Records("findings", FINDING, findings, as_lines=True),
            Section("", (Fact("stops_a_fit", self.n_stops, COUNT, "findings that stop a fit"),)),
        )


EXAMINED = (
    Column("site"),
    Column("rows", COUNT),
    Column("columns", COUNT),
    Column("types"),
    Column("nan", COUNT, "NaN"),
    Column("infinite", COUNT),
    Column("constant", COUNT),
)
COLUMN = (
    Column("column"),
    Column("type"),
    Column("nan", COUNT, "NaN"),
    Column("infinite", COUNT),
    Column("constant", choice("yes", "")),
)
FINDING = (
    Column("stops_fit", choice("stops a fit", "note", is_alarm=True)),
    Column("where"),
    Column("text"),
)


def examine(rows: Rows) -> Examined:
    """Read the rows once, and return what was found in each column."""
    if isinstance(rows, GenotypeRows):
        return _examined_genotypes(rows)
    d = rows.n_features
    n_nan, n_infinite = np.zeros(d, dtype=int), np.zeros(d, dtype=int)
    smallest, largest = np.full(d, np.inf), np.full(d, -np.inf)
    counts_up = np.ones(d, dtype=bool)
    last: Array | None = None
    n_rows = 0
    for block in rows.blocks():
        if not block.shape[0]:
            continue
        n_rows += block.shape[0]
        n_nan += _count(block, np.isnan)
        n_infinite += _count(block, np.isinf)
        low, high = _finite_range(block)
        smallest, largest = np.minimum(smallest, low), np.maximum(largest, high)
        if is_sparse(block):
            counts_up[:] = False
        else:
            values = np.asarray(block, dtype=np.float64)
            above = values if last is None else np.vstack([last, values])
            counts_up &= (above[1:] - above[:-1] == 1).all(axis=0)
            last = values[-1:]
    return Examined(
        n_rows,
        d,
        rows.features,
        tuple(rows.dtypes),
        n_nan,
        n_infinite,
        smallest,
        largest,
        counts_up & (n_rows >= MIN_NUMBERED_ROWS),
    )


def _examined_genotypes(rows: GenotypeRows) -> Examined:
    """Return what is in each column of genotypes, using the counts of each value."""
    counts, d = rows.counts, rows.n_features
    has = counts[:, :3] > 0
    values = np.arange(3.0)
    return Examined(
        rows.n_rows,
        d,
        rows.features,
        rows.dtypes,
        counts[:, 3],
        np.zeros(d, int),
        np.where(has, values, np.inf).min(axis=1),
        np.where(has, values, -np.inf).max(axis=1),
        np.zeros(d, bool),
    )


def findings_at(name: str, at: Examined, *, allow_missing: bool = False) -> list[Finding]:
    """Return the findings about one site; with ``allow_missing``, NaN does not stop a fit."""
    findings = []

    def add(text: str, stops_fit: bool) -> None:
        findings.append(Finding(name, text, stops_fit))

    if not at.n_features:
        add("there are no columns; use a file with at least one", True)
    if not at.n_rows:
        add("there are no rows, so the site adds nothing to a fit", False)
    gaps = at.names(at.n_nan > 0)
    if gaps:
        way_out = (
            "a fit needs missing='mean' or missing='drop', or RobustPCA"
            if allow_missing
            else "fill in the values, remove these rows, or leave the columns out with --drop; with "
            "--allow-missing, a fit may fill them in or drop the rows, and RobustPCA accepts them"
        )
        # without a number, which would tell the coordinator if the site stays out of a run for this
        add(f"contains NaN in columns {some_of(gaps)}; {way_out}", not allow_missing)
    infinite = at.names(at.n_infinite > 0)
    if infinite:
        add(
            f"contains infinity in columns {some_of(infinite)}; correct the values, or remove these "
            "rows",
            True,
        )
    huge = at.names(_squares_overflow(at))
    if huge:
        add(
            f"columns {some_of(huge)} have values beyond {MAX_VALUE:.0e}, whose squares would "
            "overflow; rescale these columns",
            True,
        )
    constant = at.names(at.is_constant)
    if constant:
        add(
            f"constant columns: {some_of(constant)}; unless they vary at other sites, leave them out "
            "with --drop",
            False,
        )
    numbering = at.names(at.counts_up)
    if numbering:
        add(
            f"columns that number the rows: {some_of(numbering)}; if they are not measurements, use "
            "--id",
            False,
        )
    return findings


def few_findings(name: str, rows: Rows, min_count: int) -> list[Finding]:
    """Return what a site with this ``min_count`` in its policy would refuse or leave out."""
    if min_count <= 1:
        return []
    few = look_for_few(rows, min_count, ERROR)
    site = f"a site whose policy has min_count={min_count}"
    refuses = f"{site} refuses every run"
    texts = []
    if 0 < few.n_rows < min_count:
        texts.append(f"there are fewer than {min_count} rows, and {refuses}")
    if few.rare and isinstance(rows, GenotypeRows):
        texts.append(
            f"in {len(few.rare):,} variants, fewer than {min_count} samples differ from the most "
            f"frequent genotype; {site} leaves them out of every run"
        )
    elif few.rare:
        texts.append(
            f"fewer than {min_count} rows differ from the most frequent value in columns "
            f"{some_of(few.rare, MAX_RARE_COLUMNS)}, and {refuses}; agree with all sites to leave "
            "these columns out with --drop"
        )
    return [Finding(name, text, False) for text in texts]


def findings_between(sites: Mapping[str, Examined]) -> list[Finding]:
    """Return the findings from comparing sites: different columns, or too few rows in all."""
    findings = []
    if sites:
        first, *others = sites
        are_variants = all("genotype" in site.dtypes for site in sites.values())
        if are_variants:
            findings += _findings_between_cohorts(sites)
        for name in [] if are_variants else others:
            try:
                matching_order(sites[first], sites[name], f"compared with {first}")
            except InputError as error:
                findings.append(Finding(name, str(error), True))
        n_rows = sum(site.n_rows for site in sites.values())
        if n_rows < MIN_TOTAL_ROWS:
            text = f"there are {n_rows} rows in all; a fit needs at least {MIN_TOTAL_ROWS}"
            findings.append(Finding("all sites", text, True))
    return findings


def _findings_between_cohorts(sites: Mapping[str, Examined]) -> list[Finding]:
    """Return a finding about the variants that sites with genotypes have in common, if needed."""
    try:
        kept, left_out = common_variants({name: at.features or () for name, at in sites.items()})
    except InputError as error:
        return [Finding("all sites", str(error), True)]
    if not left_out:
        return []
    text = f"{len(kept):,} variants are common; a fit leaves out {left_out_in_words(left_out)}"
    return [Finding("all sites", text, False)]


def refuse_unfit(findings: Sequence[Finding]) -> None:
    """Refuse rows if any of these findings would stop a fit."""
    reasons = [finding.text for finding in findings if finding.stops_fit]
    if reasons:
        raise InputError("; also, ".join(reasons))


def _count(block: Block, is_bad: np.ufunc) -> Array:
    """Return the number of bad values in each column."""
    if is_sparse(block):
        return np.bincount(block.indices[is_bad(block.data)], minlength=block.shape[1])
    return np.asarray(is_bad(np.asarray(block, dtype=np.float64)).sum(axis=0))


def _finite_range(block: Block) -> tuple[Array, Array]:
    """Return the smallest and the largest finite value in each column."""
    if is_sparse(block):
        is_finite = np.isfinite(block.data)
        columns, values = block.indices[is_finite], block.data[is_finite].astype(np.float64)
        # a column with fewer entries than rows contains zeros
        has_zeros = np.bincount(block.indices, minlength=block.shape[1]) < block.shape[0]
        low, high = np.where(has_zeros, 0.0, np.inf), np.where(has_zeros, 0.0, -np.inf)
        np.minimum.at(low, columns, values)
        np.maximum.at(high, columns, values)
        return low, high
    values = np.asarray(block, dtype=np.float64)
    is_finite = np.isfinite(values)
    low = np.where(is_finite, values, np.inf).min(axis=0)
    high = np.where(is_finite, values, -np.inf).max(axis=0)
    return low, high


def _squares_overflow(at: Examined) -> Array:
    largest: Array = np.maximum(np.abs(at.smallest), np.abs(at.largest))
    return np.asarray((at.smallest <= at.largest) & (largest > MAX_VALUE))
