"""Read genotypes from a PLINK 1 fileset, which stores two bits for each, variant by variant.

A row is a sample, and a column is a variant. A value is the number of copies, 0, 1, or 2, of the
counted allele in the variant's name (`fedpca.rows.genotypes.variants`), or NaN if the genotype is
missing. Only a few megabytes of the file are decoded at a time. How often each value occurs in a column
is counted without decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError, SiteFailed
from fedpca.rows.columns import some_of
from fedpca.rows.genotypes.plink_files import (
    Genotypes,
    Samples,
    Variants,
    fileset,
    read_alleles,
    read_samples,
    read_variants,
)
from fedpca.rows.genotypes.variants import can_be_matched
from fedpca.rows.in_memory import Block, rows_per_block
from fedpca.rows.reading import AS_STORED, Reading

MAGIC = b"\x6c\x1b\x01"  # begins a file that is stored variant by variant
BY_SAMPLE = b"\x6c\x1b\x00"
PER_BYTE = 4
MISSING_CODE = 1
FIRST_ALLELE = np.array([2.0, np.nan, 1.0, 0.0])  # copies of the first allele, by code
CODES = (np.arange(256)[:, None] >> np.arange(0, 8, 2) & 3).astype(np.uint8)  # (256, 4), by byte
_DECODED = FIRST_ALLELE[CODES]  # (256, 4)
_LOW_BITS = np.uint64(0x5555555555555555)
PACKED_BYTES = 16 << 20  # of the file to hold in memory at a time
MAX_ENDS = 1000  # how many lines of a file to check at their ends
MIN_ENDS = 100  # in this many lines, no sample has two copies of the first allele throughout
MAX_GAP = 4  # lines are read in one piece if at least one in this many is used


class GenotypeRows:
    """The genotypes of samples at the variants of a fileset, as rows.

    ``variants`` and ``samples`` say which variants and samples to use, and in what order.
    """

    pass_cost = 4.0
    are_variants = True

    def __init__(
        self, bed: Path, variants: Variants, samples: Samples, absent: Array | None = None
    ):
        self._bed, self._variants, self._samples = bed, variants, samples
        self._absent = absent  # (d,) of bool, variants that the file does not have
        self._line_bytes = -(-samples.n_lines // PER_BYTE)
        self.features = variants.names
        self.n_features, self.n_rows = len(variants.names), len(samples.lines)
        self.dtypes = ("genotype",) * self.n_features

    @property
    def sample_ids(self) -> tuple[tuple[str, str], ...]:
        """Return the family and the individual id of each sample."""
        return self._samples.ids

    def alleles(self) -> dict[str, tuple[str, str]]:
        """Return the counted allele and the other allele of each variant, as the fileset writes them.

        Variants that the fileset does not have are left out.
        """
        read, own = read_alleles(self._bed), self._variants
        absent = np.zeros(self.n_features, bool) if self._absent is None else self._absent
        each = zip(own.names, own.lines.tolist(), own.counts_first.tolist(), absent, strict=True)
        return {
            name: read[line] if is_first else (read[line][1], read[line][0])
            for name, line, is_first, is_absent in each
            if not is_absent
        }

    def at(self, positions: Array) -> GenotypeRows:
        """Return the rows in the columns at these positions."""
        own = self._variants
        names = tuple(own.names[i] for i in positions.tolist())
        chosen = Variants(names, own.lines[positions], own.counts_first[positions], own.n_lines)
        absent = None if self._absent is None else self._absent[positions]
        rows = GenotypeRows(self._bed, chosen, self._samples, absent)
        if "counts" in self.__dict__:
            rows.__dict__["counts"] = self.counts[positions]
        return rows

    def blocks(self) -> Iterator[Block]:
        """Yield the same blocks as if the rows were in memory, in float64 with NaN where missing."""
        step = rows_per_block(self.n_features)
        per_read = max(step, PER_BYTE * PACKED_BYTES // max(1, self.n_features))
        per_read -= per_read % step
        counts_second = ~self._variants.counts_first
        for start in range(0, self.n_rows, per_read):
            lines = self._samples.lines[start : start + per_read]
            low, high = byte_range(lines)
            packed = self.packed(0, self.n_features, low, high)
            for first in range(0, len(lines), step):
                some = lines[first : first + step]
                left, right = byte_range(some)
                part = np.ascontiguousarray(packed[:, left - low : right - low])
                block = _DECODED[part].reshape(self.n_features, -1)
                block = block[:, some - PER_BYTE * left]
                block[counts_second] = 2.0 - block[counts_second]
                yield np.ascontiguousarray(block.T)

    @property
    def id_schema(self) -> Any:
        """Return the names and types of the samples' ids."""
        import pyarrow as pa

        return pa.schema([("FID", pa.string()), ("IID", pa.string())])

    def ids(self) -> Any:
        """Return the ids of all samples as an Arrow record batch."""
        import pyarrow as pa

        columns = [pa.array([each[i] for each in self.sample_ids], pa.string()) for i in range(2)]
        return pa.record_batch(columns, schema=self.id_schema)

    def blocks_with_ids(self) -> Iterator[tuple[Block, Any]]:
        """Yield each block with the ids of its samples, as an Arrow record batch."""
        ids, start = self.ids(), 0
        for block in self.blocks():
            yield block, ids.slice(start, len(block))
            start += len(block)

    @cached_property
    def counts(self) -> Array:
        """Count each variant's samples with 0, 1, and 2 copies and without a value, ``(d, 4)``."""
        counts = np.empty((self.n_features, 4), np.int64)
        width = -(-self._line_bytes // 8) * 8
        is_used = np.zeros(PER_BYTE * width, np.uint8)
        is_used[self._samples.lines] = 1
        used = (is_used.reshape(-1, PER_BYTE) << np.arange(0, 8, 2, dtype=np.uint8)).sum(
            axis=1, dtype=np.uint8
        )
        mask = used.view(np.uint64)
        step = max(1, PACKED_BYTES // max(1, width))
        for start in range(0, self.n_features, step):
            stop = min(start + step, self.n_features)
            whole = np.zeros((stop - start, width), np.uint8)
            whole[:, : self._line_bytes] = self.packed(start, stop, 0, self._line_bytes)
            words = whole.view(np.uint64)
            low, high = words & mask, (words >> np.uint64(1)) & mask
            part = counts[start:stop]
            part[:, 0] = np.bitwise_count(low & high).sum(axis=1)
            part[:, 1] = np.bitwise_count(high & ~low).sum(axis=1)
            part[:, 3] = np.bitwise_count(low & ~high).sum(axis=1)
            part[:, 2] = self.n_rows - part[:, 0] - part[:, 1] - part[:, 3]
        counts_second = ~self._variants.counts_first
        counts[counts_second, :3] = counts[counts_second, 2::-1]
        return counts

    def values(self, missing: Array) -> Array:
        """Return the value of each code in each column, ``(d, 4)``; missing ones get ``missing``."""
        values = np.where(self._variants.counts_first[:, None], FIRST_ALLELE, 2 - FIRST_ALLELE)
        values[:, MISSING_CODE] = missing
        return values

    @property
    def lines(self) -> Array:
        """Return the position of each sample in a line of the file."""
        return self._samples.lines

    def packed(self, start: int, stop: int, low: int, high: int) -> Array:
        """Return bytes ``low`` to ``high`` of the line of each column, ``(stop - start, b)``."""
        lines, width = self._variants.lines[start:stop], high - low
        if self._absent is not None:
            return self._packed_or_absent(start, stop, low, high)
        packed = np.empty((stop - start, width), np.uint8)
        if not packed.size:
            return packed
        try:
            with self._bed.open("rb", buffering=0) as file:
                span = int(lines.max() - lines.min()) + 1
                if width == self._line_bytes and span <= MAX_GAP * len(lines):
                    whole = np.empty((span, width), np.uint8)
                    self._read(file, whole, int(lines.min()), 0)
                    return (
                        whole
                        if span == len(lines) and (np.diff(lines) == 1).all()
                        else (whole[lines - lines.min()])
                    )
                for each, line in zip(packed, lines.tolist(), strict=True):
                    self._read(file, each, line, low)
        except OSError:
            raise SiteFailed(
                f"{self._bed} can no longer be read; the site must restore it"
            ) from None
        return packed

    def _packed_or_absent(self, start: int, stop: int, low: int, high: int) -> Array:
        """Return packed lines; at variants that the file lacks, all samples are missing."""
        assert self._absent is not None
        packed = np.full((stop - start, high - low), 0b01010101, np.uint8)
        here = np.flatnonzero(~self._absent[start:stop])
        if here.size:
            rows = self.at(here + start)
            rows._absent = None
            packed[here] = rows.packed(0, len(here), low, high)
        return packed

    def _read(self, file: Any, into: Array, line: int, low: int) -> None:
        """Fill an array with bytes of the file, starting at byte ``low`` of a line."""
        view = into.reshape(-1).data
        file.seek(len(MAGIC) + line * self._line_bytes + low)
        done = 0
        while done < len(view):
            n = file.readinto(view[done:])
            if not n:
                raise SiteFailed(
                    f"{self._bed} is shorter than it was; files must not change in a run"
                )
            done += n


def byte_range(lines: Array) -> tuple[int, int]:
    """Return the range of bytes in a line that holds these samples."""
    return int(lines.min()) // PER_BYTE, int(lines.max()) // PER_BYTE + 1


def open_genotypes(source: Genotypes, reading: Reading = AS_STORED) -> GenotypeRows:
    """Return the rows in a fileset; refuse a damaged fileset.

    ``reading`` lists columns by the names of variants. At variants that a model uses but the fileset
    does not have, all samples are missing.
    """
    variants, samples = read_variants(source), read_samples(source)
    _check_bed(source.bed, variants, samples)
    rows = GenotypeRows(source.bed, variants, samples)
    if not reading.drop and reading.columns is None:
        return rows
    if reading.by_position:
        return _in_model(rows, reading.columns or ())
    position = {name: i for i, name in enumerate(rows.features)}
    return rows.at(np.array([position[name] for name in reading.features_among(rows.features)]))


def _in_model(rows: GenotypeRows, features: Sequence[str]) -> GenotypeRows:
    """Return rows at a model's variants; at variants that the file lacks, all samples are missing."""
    position = {name: i for i, name in enumerate(rows.features)}
    found = np.array([position.get(name, -1) for name in features])
    if (found < 0).all():
        raise InputError(
            f"{rows.n_features:,} variants were found, but none that the model uses, such as "
            f"{some_of(features, 1)}; compare ids, positions, and alleles"
        )
    own = rows._variants
    at = np.maximum(found, 0)
    variants = Variants(tuple(features), own.lines[at], own.counts_first[at], own.n_lines)
    absent = found < 0
    return GenotypeRows(rows._bed, variants, rows._samples, absent if absent.any() else None)


def matchable(rows: Any) -> Any:
    """Return rows without variants that could not be matched with variants of other cohorts."""
    if not isinstance(rows, GenotypeRows):
        return rows
    kept = [i for i, name in enumerate(rows.features) if can_be_matched(name)]
    if not kept:
        raise InputError(
            f"all {rows.n_features:,} variants have strand-ambiguous alleles or lack an allele, so "
            "they cannot be matched with those of other cohorts; use other variants"
        )
    return rows if len(kept) == rows.n_features else rows.at(np.array(kept))


def n_absent(rows: Any) -> int:
    """Return how many of a model's variants are not in the rows."""
    absent = getattr(rows, "_absent", None)
    return 0 if absent is None else int(absent.sum())


def _check_bed(bed: Path, variants: Variants, samples: Samples) -> None:
    """Refuse a file that is no .bed file, or whose size does not fit the rest of its fileset."""
    with bed.open("rb") as file:
        magic = file.read(len(MAGIC))
    if magic == BY_SAMPLE:
        raise InputError(
            "the genotypes are stored sample by sample, as very old versions of plink did; write the "
            "file again with plink2 --make-bed"
        )
    if magic != MAGIC:
        raise InputError(
            "this is not a PLINK 1 .bed file, because its first bytes differ; use a .bed file"
        )
    expected = len(MAGIC) + variants.n_lines * -(-samples.n_lines // PER_BYTE)
    size = bed.stat().st_size
    if size != expected:
        _, bim, fam = fileset(bed)
        raise InputError(
            f"the file has {size:,} bytes instead of {expected:,}, the size for {variants.n_lines:,} "
            f"variants in {bim.name} and {samples.n_lines:,} samples in {fam.name}; it is damaged, or "
            "the three files do not belong together: copy them again"
        )
    _check_ends(bed, variants, samples)


def _check_ends(bed: Path, variants: Variants, samples: Samples) -> None:
    """Refuse a file whose lines end before or after the last sample, even within the same byte.

    The unused bits of a byte are zero. As genotypes, they would mean two copies of the first allele in
    every line.
    """
    n_unused = -samples.n_lines % PER_BYTE
    width = -(-samples.n_lines // PER_BYTE)
    with bed.open("rb", buffering=0) as file:
        ends = bytearray()
        for line in variants.lines[: MAX_ENDS if width else 0].tolist():
            file.seek(len(MAGIC) + (line + 1) * width - 1)
            ends += file.read(1)
    codes = CODES[np.frombuffer(bytes(ends), np.uint8)]  # (m, 4)
    _, bim, fam = fileset(bed)
    if n_unused and codes[:, PER_BYTE - n_unused :].any():
        raise InputError(
            f"the file has more samples than the {samples.n_lines:,} in {fam.name}; the three files do "
            "not belong together, or another program wrote it: write it again with plink2 --make-bed"
        )
    if len(codes) >= MIN_ENDS and not codes[:, PER_BYTE - n_unused - 1].any():
        raise InputError(
            f"the last of the {samples.n_lines:,} samples in {fam.name} has only the first alleles in "
            f"{bim.name}, as if there were no sample; the three files do not belong together"
        )
