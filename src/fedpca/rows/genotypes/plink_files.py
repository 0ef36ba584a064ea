"""Read the text files of a PLINK 1 fileset, and the lists of variants and samples to use."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.rows.columns import distinct_names
from fedpca.rows.genotypes.variants import (
    MAX_VARIANT_CHARS,
    NO_ALLELE,
    misnamed_variant,
    variant_name,
)
from fedpca.storage.regular import refuse_special

N_AUTOSOMES = 22
BIM_COLUMNS = FAM_COLUMNS = 6

Ids = str | os.PathLike[str] | Sequence[str]


@dataclass(frozen=True)
class Genotypes:
    """The genotypes of samples in a PLINK 1 fileset, for `fedpca.Site`.

    Parameters
    ----------
    path : path
        The ``.bed`` file; the ``.bim`` and ``.fam`` files are in the same folder.
    keep : path or list of str, optional
        The samples to use: a file for plink's ``--keep``, or a list of sample ids (IID).
    extract : path or list of str, optional
        The variants to use: a file for plink's ``--extract``, or a list of variant ids.
    n_autosomes : int
        The number of autosomes. Variants on sex chromosomes and in mitochondria are left out, as by
        ``plink2 --pca``.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from fedpca import Genotypes, Site
    >>> bed = Path(mkdtemp()) / "north.bed"
    >>> _ = bed.write_bytes(bytes([0x6C, 0x1B, 0x01, 0b001000, 0b110011]))
    >>> variants = ["1 rs1 0 10 A G", "1 rs2 0 20 C T"]
    >>> _ = bed.with_suffix(".bim").write_text("".join(f"{line}{chr(10)}" for line in variants))
    >>> samples = [f"f i{i} 0 0 0 0" for i in (1, 2, 3)]
    >>> _ = bed.with_suffix(".fam").write_text("".join(f"{line}{chr(10)}" for line in samples))
    >>> site = Site(Genotypes(bed, keep=["i1", "i2"]), name="north")
    >>> site.rows.features
    ('1:10:rs1:A:G', '1:20:rs2:A:G')
    >>> next(site.rows.blocks())  # the copies of A, in the file or on the other strand
    array([[2., 2.],
           [1., 0.]])
    """

    path: str | os.PathLike[str]
    keep: Ids | None = None
    extract: Ids | None = None
    n_autosomes: int = N_AUTOSOMES

    @property
    def bed(self) -> Path:
        """Return the path of the ``.bed`` file."""
        return Path(self.path)

    @property
    def files(self) -> list[Path]:
        """Return all files that determine the rows."""
        lists = (self.keep, self.extract)
        return [*fileset(self.bed), *(Path(x) for x in lists if isinstance(x, str | os.PathLike))]

    def in_words(self) -> str:
        """Return text about all that determines the rows but is in no file, to detect changes."""
        given = {"keep": self.keep, "extract": self.extract}
        words = [f"{self.n_autosomes} autosomes"]
        for name, ids in given.items():
            if ids is not None and not isinstance(ids, str | os.PathLike):
                digest = hashlib.sha256(" ".join(ids).encode()).hexdigest()
                words.append(f"{name} {digest[:16]}")
        return "; ".join(words)


def fileset(bed: Path) -> list[Path]:
    """Return the three files of a fileset."""
    return [bed, bed.with_suffix(".bim"), bed.with_suffix(".fam")]


@dataclass(frozen=True)
class Variants:
    """The variants of a fileset that are used."""

    names: tuple[str, ...]
    lines: Array  # (d,), the position of each variant in the .bed file
    counts_first: Array  # (d,) of bool, whether rows count the allele that the .bed file counts
    n_lines: int  # in the .bim file


@dataclass(frozen=True)
class Samples:
    """The samples of a fileset that are used."""

    ids: tuple[tuple[str, str], ...]  # family and individual
    lines: Array  # (n,), the position of each sample in the .bed file
    n_lines: int  # in the .fam file


def read_variants(source: Genotypes) -> Variants:
    """Read the variants of a fileset on autosomes; if ``extract`` is given, only those in it."""
    path = fileset(source.bed)[1]
    wanted = None if source.extract is None else set(_tokens(source.extract))
    names, lines, counts_first, n_lines = [], [], [], 0
    for number, words in _lines(path, BIM_COLUMNS):
        n_lines += 1
        chromosome, id, _, position, first, second = words
        chromosome = chromosome.lower().removeprefix("chr")
        if not (position.isascii() and position.removeprefix("-").isdecimal()):
            raise InputError(
                f"line {number} has a position that is not a whole number; correct the position"
            )
        place = int(position)
        if ":" in first + second:
            raise InputError(f"line {number} has an allele with a colon; leave this variant out")
        if first == second and first not in NO_ALLELE:
            raise InputError(f"line {number} has the same allele twice; leave this variant out")
        is_autosome = chromosome.isdecimal() and int(chromosome) <= source.n_autosomes
        if not is_autosome or place < 0 or (wanted is not None and id not in wanted):
            continue
        name, is_first = variant_name(str(int(chromosome)), place, id, first, second)
        names.append(name)
        lines.append(number - 1)
        counts_first.append(is_first)
    if not names:
        among = "autosomes" if wanted is None else "autosomes among those to extract"
        raise InputError(f"{path.name} has no variants on {among}; check both files")
    if misnamed_variant(names):
        raise InputError(
            f"{path.name} has variants whose ids or alleles have characters that cannot be printed, or "
            f"more than {MAX_VARIANT_CHARS} characters in all; leave these variants out"
        )
    kept = distinct_names(names)
    return Variants(kept, np.array(lines), np.array(counts_first, bool), n_lines)


def read_alleles(bed: Path) -> list[tuple[str, str]]:
    """Read both alleles in each line of a ``.bim`` file; the .bed file counts the first."""
    lines = _lines(fileset(bed)[1], BIM_COLUMNS)
    return [(words[4].upper(), words[5].upper()) for _, words in lines]


def read_samples(source: Genotypes) -> Samples:
    """Read the samples of a fileset; if ``keep`` is given, only those in it."""
    path = fileset(source.bed)[2]
    is_kept = _sample_filter(source.keep)
    ids, lines, n_lines = [], [], 0
    for number, words in _lines(path, FAM_COLUMNS):
        n_lines += 1
        if is_kept(words[0], words[1]):
            ids.append((words[0], words[1]))
            lines.append(number - 1)
    if len(set(ids)) < len(ids):
        raise InputError(f"{path.name} lists a sample twice; give each sample a unique id")
    if n_lines and not ids:
        raise InputError(f"{path.name} has none of the samples to keep; check both files")
    return Samples(tuple(ids), np.array(lines, np.int64), n_lines)


def _sample_filter(keep: Ids | None) -> Callable[[str, str], bool]:
    """Return a function that tells whether to use a sample, given its family and individual id."""
    if keep is None:
        return lambda *_: True
    if not isinstance(keep, str | os.PathLike):
        listed = set(keep)
        return lambda *sample: sample[1] in listed
    lines = _read(Path(keep)).splitlines()
    rows = [line.split() for line in lines if line.strip()]
    header = rows[0][0].upper() if rows else ""
    if header.startswith("#"):
        rows = [row[:1] if header == "#IID" else row for row in rows[1:]]
    individuals = {row[0] for row in rows if len(row) == 1}
    pairs = {(row[0], row[1]) for row in rows if len(row) > 1}
    return lambda *sample: sample[1] in individuals or sample in pairs


def _tokens(extract: Ids) -> Sequence[str]:
    if isinstance(extract, str | os.PathLike):
        return _read(Path(extract)).split()
    return extract


def _lines(path: Path, n_words: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the words of each line."""
    lines = _read(path).split("\n")
    for number, line in enumerate(lines[:-1] if not lines[-1] else lines, start=1):
        words = line.split()
        if len(words) != n_words:
            raise InputError(
                f"line {number} of {path.name} has {len(words)} words instead of {n_words}; write the "
                "file again with plink2 --make-bed"
            )
        yield number, words


def _read(path: Path) -> str:
    refuse_special(path, InputError)
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; check the name") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text in UTF-8; write it again") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from None
