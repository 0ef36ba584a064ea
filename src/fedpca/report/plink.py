"""Write a model of genotypes, and samples' entries in its eigenvectors, in the formats of plink2.

    G = A A' / M = U diag(l) U',   l = s^2 / M,   U = A V diag(1 / s)

G is the relationship matrix of the samples at all sites, A has M variants as columns, and s are the
singular values of A. Each site needs only the model to write the rows of U for its own samples. The
weight of the counted allele is ``-V sqrt(M) / 2``, and the other allele has the opposite weight, as
``plink2 --pca allele-wts`` writes them. So ``plink2 --score`` can project samples; the signs of the
scores are reversed, as they are with plink2's own weights. plink2 matches alleles by their letters. The
weights therefore use the letters in a cohort's own files if the files are at hand, and otherwise the
letters in the variants' names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.models.linear import Model
from fedpca.rows.genotypes.variants import misnamed_variant, split_name
from fedpca.storage import atomic

EIGENVEC = ".eigenvec"
WEIGHT_FILES = (".eigenvec.allele", ".afreq")
MODEL_FILES = (".eigenval", ".left_out.tsv")

# counted and other allele of a variant, as in a cohort's file
Alleles = Mapping[str, tuple[str, str]]


NAMED: Alleles = {}  # use the alleles in the names of the variants


def weight_files(prefix: Path) -> list[Path]:
    """Return the paths of the files that `write_weights` writes."""
    return [prefix.with_name(prefix.name + kind) for kind in WEIGHT_FILES]


def model_files(prefix: Path) -> list[Path]:
    """Return the paths of the files that `write_model` writes."""
    return [*(prefix.with_name(prefix.name + kind) for kind in MODEL_FILES), *weight_files(prefix)]


def write_model(
    prefix: Path,
    model: Model,
    names: Sequence[str],
    n: int,
    left_out: Mapping[str, str],
    alleles: Alleles = NAMED,
) -> list[Path]:
    """Write the files for a model of genotypes, and return the paths."""
    values, reasons, *_ = paths = model_files(prefix)
    _write(values, ([f"{value:.6g}"] for value in model.singular_values**2 / len(names)))
    _write(reasons, [("VARIANT", "REASON"), *left_out.items()])
    write_weights(prefix, model, names, n, alleles)
    return paths


def write_weights(
    prefix: Path, model: Model, names: Sequence[str], n: int, alleles: Alleles
) -> list[Path]:
    """Write the weights and the frequencies of alleles for plink2 --score, and return the paths."""
    weights, frequencies = paths = weight_files(prefix)
    _write(weights, _allele_weights(model, names, alleles))
    _write(frequencies, _frequencies(model, names, n, alleles))
    return paths


def write_eigenvec(path: Path, ids: Sequence[tuple[str, str]], parts: Array) -> None:
    """Write samples' ids and their entries in the eigenvectors, ``(n, k)``."""
    header = ["#FID", "IID", *_components(parts.shape[1])]
    rows = ([*sample, *map(_number, row)] for sample, row in zip(ids, parts.tolist(), strict=True))
    _write(path, _with(header, rows))


def checked_variants(names: Sequence[str] | None) -> Sequence[str]:
    """Return the names of a model's variants, or refuse a model whose features are not variants."""
    if names is None or misnamed_variant(names):
        raise InputError(
            "the features of the model are not variants; plink's formats require a model of genotypes"
        )
    return names


def _words(name: str, alleles: Alleles) -> tuple[str, str, str, str]:
    """Return a variant's chromosome, id, counted allele, and other allele."""
    chromosome, _, id, *named = split_name(name)
    counted, other = alleles.get(name, named)
    return chromosome, id, counted, other


def _allele_weights(
    model: Model, names: Sequence[str], alleles: Alleles
) -> Iterable[Sequence[str]]:
    yield ["#CHROM", "ID", "REF", "ALT", "A1", *_components(len(model.components))]
    weights = model.components.T * (np.sqrt(len(names)) / 2)
    for name, weight in zip(names, weights, strict=True):
        chromosome, id, counted, other = _words(name, alleles)
        for allele, signed in ((other, weight), (counted, -weight)):
            yield [chromosome, id, other, counted, allele, *map(_number, signed.tolist())]


def _frequencies(
    model: Model, names: Sequence[str], n: int, alleles: Alleles
) -> Iterable[Sequence[str]]:
    yield ["#CHROM", "ID", "REF", "ALT", "ALT_FREQS", "OBS_CT"]
    for name, mean in zip(names, model.mean.tolist(), strict=True):
        chromosome, id, counted, other = _words(name, alleles)
        yield [chromosome, id, other, counted, _number(mean / 2), str(2 * n)]


def _components(k: int) -> list[str]:
    return [f"PC{i + 1}" for i in range(k)]


def _number(value: float) -> str:
    return f"{value:.9g}"


def _with(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[Sequence[str]]:
    yield header
    yield from rows


def _write(path: Path, rows: Iterable[Sequence[str]]) -> None:
    with atomic.writing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines("\t".join(row) + "\n" for row in rows)
