"""Run `fedpca transform`: write scores for the rows in a file, one block at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedpca.arrays import Array
from fedpca.cli.console import err, exit_codes, out, refuse_overwriting, say
from fedpca.cli.option_groups import LeftOut, with_groups
from fedpca.cli.options import (
    BY_MODEL,
    Database,
    Force,
    Quiet,
    source_of,
)
from fedpca.cli.progress import counting
from fedpca.errors import InputError
from fedpca.estimators import FederatedPCA, load
from fedpca.estimators.cells import scoring, write_h5ad
from fedpca.estimators.fitting import doubts_about, matching_rows
from fedpca.models.control_limits import EVEN_NOISE, ControlLimits, RowFlags, t2_and_q
from fedpca.models.linear import Model
from fedpca.report.plink import (
    EIGENVEC,
    checked_variants,
    weight_files,
    write_eigenvec,
    write_weights,
)
from fedpca.rows.cells.h5ad import H5AD
from fedpca.rows.columns import distinct_names
from fedpca.rows.formats.files import kind_of
from fedpca.rows.genotypes.genotype_rows import GenotypeRows
from fedpca.rows.in_memory import about_n_rows
from fedpca.rows.matching import scores_in_blocks
from fedpca.rows.open import open_rows, resolved, state_of
from fedpca.rows.reading import AS_STORED, Reading
from fedpca.solvers.standardize import BINOMIAL
from fedpca.storage.table_file import check_format, writing_table

FLAGS = ("t2", "q", "flagged")  # columns after the scores


@with_groups
def transform(
    model: Annotated[Path, typer.Argument(help="Model written by `fedpca fit` or `fedpca merge`.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Write the scores to this file (.parquet, .csv, or .h5ad). For genotypes, a .eigenvec "
            "file holds the samples' entries in the eigenvectors, as in plink2.",
        ),
    ],
    file: Annotated[Path | None, typer.Argument(help="File or folder of rows.")] = None,
    database: Database = None,
    site: Annotated[
        str | None,
        typer.Option(help="Site that the rows belong to; only for a personalized model."),
    ] = None,
    flags: Annotated[
        bool,
        typer.Option(
            "--flags",
            help="Also write T2 and Q (SPE) for each row, and whether either exceeds its limit.",
        ),
    ] = False,
    reading: Annotated[Reading, LeftOut(BY_MODEL)] = AS_STORED,
    plink: Annotated[
        Path | None,
        typer.Option(
            metavar="PREFIX",
            help="Also write PREFIX.eigenvec.allele and PREFIX.afreq for plink2 --score, with the "
            "alleles in FILE; only for genotypes.",
        ),
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write the scores of rows on a model's components.

    MODEL is a file written by `fedpca fit` or `fedpca merge`. FILE is a file or folder of rows. Columns
    are matched by name, and columns that are not features of the model are ignored. The output also has
    the columns given with --id, or the sample ids of genotypes. With --flags, it also has T2, Q, and
    whether a row is unusual. Nothing is sent anywhere.

    If both FILE and the output end in .h5ad, the output is a copy of FILE with the scores in obsm, the
    components in varm, and the variances in uns, as scanpy writes them. If the sites normalized their
    cells for the fit, this command normalizes the cells in FILE too.
    """
    with exit_codes():
        refuse_overwriting(output, force)
        if flags and output.suffix == H5AD:
            raise InputError("--flags requires an output that ends in .parquet or .csv")
        rows, rest = resolved(source_of(file, database, reading), reading)
        for path in [] if plink is None else weight_files(plink):
            refuse_overwriting(path, force)
        pca = load(model)
        weights = None if plink is None else _allele_weights(pca, rows)
        limits = _limits(model, pca) if flags else None
        n_rows = write_scores(pca, rows, output, site, rest, limits=limits, quiet=quiet)
        if not quiet:
            out.print(f"Wrote {n_rows:,} rows to {output}")
        if plink is not None and weights is not None:
            for path in write_weights(plink, *weights):
                say(f"Wrote {path}")


def write_scores(
    pca: Any,
    source: Any,
    output: Path,
    site: str | None,
    reading: Reading,
    *,
    limits: ControlLimits | None,
    quiet: bool,
) -> int:
    """Write the ids and scores of rows as Parquet or CSV, and return the number of rows.

    With ``limits``, also write T2, Q, and whether either is beyond its limit, as 1 or 0.
    """
    import pyarrow as pa

    if output.suffix == H5AD:
        return _write_cells(pca, source, output, site, reading)
    if output.suffix != EIGENVEC:
        check_format(output)
    model, score, names = scoring(pca, site)
    rows = matching_rows(pca, source, reading)
    for doubt in doubts_about(pca, source, rows):
        err.print(f"warning: {doubt}", soft_wrap=True)
    if output.suffix == EIGENVEC:
        return _write_eigenvec(output, model, rows)
    are_genotypes = isinstance(rows, GenotypeRows)
    if limits is not None:
        if are_genotypes:
            raise InputError(
                "--flags does not apply to genotypes, which have no limits; omit --flags"
            )
        score, names = partial(_score_and_flag, score, pca, limits), [*names, *FLAGS]
    has_ids = bool(reading.id) or are_genotypes
    id_fields = list(getattr(rows, "id_schema", ())) if has_ids else []
    distinct_names([*(field.name for field in id_fields), *names])
    schema = pa.schema([*id_fields, *((name, pa.float64()) for name in names)])
    if (
        isinstance(rows, GenotypeRows) and getattr(pca, "missing", "error") == "mean"
    ):  # in their packed form
        whiten = bool(pca.whiten)
        parts = iter([(model.transform_genotypes(rows, whiten=whiten), rows.ids())])
    else:
        parts = scores_in_blocks(rows, score, with_ids=has_ids)
    written = 0
    about = partial(about_n_rows, rows)
    with counting(quiet, "rows", about) as on_block, writing_table(output, schema) as writer:
        for scores, ids in parts:
            columns = [*(ids.columns if has_ids else ()), *np.ascontiguousarray(scores.T)]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            written += len(scores)
            if on_block is not None:
                on_block(written, "writing scores")
    return written


def _write_eigenvec(output: Path, model: Model, rows: Any) -> int:
    """Write samples' entries in the eigenvectors, as plink2 does; return the number of samples."""
    if not isinstance(rows, GenotypeRows):
        raise InputError(
            f"{output} can only hold samples of a .bed file; use .csv or .parquet for other rows"
        )
    write_eigenvec(output, rows.sample_ids, model.transform_genotypes(rows) / model.singular_values)
    return rows.n_rows


def _allele_weights(
    pca: Any, source: Any
) -> tuple[Model, Sequence[str], int, dict[str, tuple[str, str]]]:
    """Return a model, its variants, its number of samples, and the alleles in a cohort's own file."""
    if getattr(pca, "scale", None) != BINOMIAL:
        raise InputError(
            "--plink requires a model fitted with --binomial, because plink2 scales genotypes that way"
        )
    rows = open_rows(source)
    if not isinstance(rows, GenotypeRows):
        raise InputError(
            f"--plink requires a .bed file, because it needs the alleles; got {source}"
        )
    names = checked_variants(getattr(pca, "feature_names_in_", None))
    return pca._model(), names, pca.n_samples_, rows.alleles()


def _limits(path: Path, pca: Any) -> ControlLimits:
    """Return the limits for new rows that follow from the model."""
    if not isinstance(pca, FederatedPCA):
        raise InputError(
            f"{path} has no limits for rows; --flags requires a model fitted with --kind pca"
        )
    limits = pca.control_limits()
    if limits.basis == EVEN_NOISE:
        err.print(
            "warning: the model file does not say how variance is spread outside the components, so "
            "the limit of Q assumes even noise; `fedpca diagnose -o` writes a model file that does",
            soft_wrap=True,
        )
    return limits


def _score_and_flag(
    score: Callable[[Any], Array], pca: FederatedPCA, limits: ControlLimits, block: Any
) -> Array:
    """Return the scores, T2, and Q of rows, and a column with 1 for rows beyond a limit."""
    rows = pca._filled(block)
    t2, q = t2_and_q(pca._model(), rows).T
    flags = RowFlags(t2, q, limits)
    return np.column_stack([score(rows), flags.t2, flags.q, flags.flagged.astype(float)])


def _write_cells(pca: Any, source: Any, output: Path, site: str | None, reading: Reading) -> int:
    """Write a copy of an ``.h5ad`` file with the results in it, and return the number of cells."""
    if not isinstance(source, Path) or kind_of(source) != H5AD:
        raise InputError(
            f"{output} can only be written from an .h5ad file; use an output ending in .parquet or .csv"
        )
    if reading.given.keys() - {"layer"}:
        raise InputError("--drop, --columns, and --id do not apply to an .h5ad output; omit them")
    state = state_of(source)
    return write_h5ad(pca, source, state, output, layer=reading.layer, site=site)
