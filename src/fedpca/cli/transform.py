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
from fedpca.estimators import FederatedPCA, RobustPCA, load
from fedpca.estimators.cells import write_h5ad
from fedpca.estimators.files import record_in
from fedpca.models.control_limits import EVEN_NOISE, ControlLimits, RowFlags, t2_and_q
from fedpca.models.linear import Model, load_model
from fedpca.models.personalized import is_personalized, load_personalized
from fedpca.report.plink import (
    EIGENVEC,
    checked_variants,
    weight_files,
    write_eigenvec,
    write_weights,
)
from fedpca.rows.cells.h5ad import H5AD
from fedpca.rows.columns import distinct_names, some_of
from fedpca.rows.formats.files import kind_of
from fedpca.rows.gaps import filled
from fedpca.rows.genotypes.genotype_rows import GenotypeRows, n_absent
from fedpca.rows.in_memory import about_n_rows
from fedpca.rows.matching import open_matching, scores_in_blocks
from fedpca.rows.open import open_rows, resolved, state_of
from fedpca.rows.reading import AS_STORED, Reading
from fedpca.solvers.standardize import BINOMIAL
from fedpca.storage.table_file import check_format, writing_table
from fedpca.storage.tensor_file import read_arrays

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
        weights = None if plink is None else _allele_weights(model, rows)
        n_rows = write_scores(model, rows, output, site, rest, with_flags=flags, quiet=quiet)
        if not quiet:
            out.print(f"Wrote {n_rows:,} rows to {output}")
        if plink is not None and weights is not None:
            for path in write_weights(plink, *weights):
                say(f"Wrote {path}")


def write_scores(
    model_path: Path,
    source: Any,
    output: Path,
    site: str | None = None,
    reading: Reading = AS_STORED,
    *,
    with_flags: bool = False,
    quiet: bool = True,
) -> int:
    """Write the ids and scores of rows as Parquet or CSV, and return the number of rows.

    Columns are matched by name if both the model and the rows have column names. If the model has
    site-specific components, ``site`` names the site that the rows belong to. ``with_flags`` adds T2,
    Q, and whether either is beyond its limit for new rows, as 1 or 0.
    """
    import pyarrow as pa

    if output.suffix == H5AD:
        return _write_cells(model_path, source, output, site, reading)
    if output.suffix != EIGENVEC:
        check_format(output)
    model, header = _model(model_path, site)
    score: Callable[[Any], Array]
    parameters = header["parameters"]
    whiten = bool(parameters.get("whiten"))
    score = partial(model.transform, whiten=whiten)
    if header.get("estimator") == RobustPCA.__name__:  # its scores ignore outliers
        score = RobustPCA.load(model_path).model_.transform
    if with_flags:
        score = partial(_score_and_flag, score, model, _limits(model_path, header))
    if parameters.get("missing") == "mean":
        score = partial(_score_filled, score, model.mean)
    k, d = model.components.shape
    features = header["features"]
    target = record_in(header).log_normalized
    rows = open_matching(source, features, d, reading, log_normalized=target)
    if features is not None and rows.features is None:
        err.print(
            f"warning: {source} has no column names; its columns are assumed to be in this order: "
            f"{some_of(features)}",
            soft_wrap=True,
        )
    if n_absent(rows):
        err.print(
            f"warning: {source} lacks {n_absent(rows):,} of the model's {d:,} variants; they count as "
            "missing",
            soft_wrap=True,
        )
    if with_flags and isinstance(rows, GenotypeRows):
        raise InputError("--flags does not apply to genotypes, which have no limits; omit --flags")
    if output.suffix == EIGENVEC:
        return _write_eigenvec(output, model, rows)
    names = [
        *header.get("scores", [f"pc{i + 1}" for i in range(k)]),
        *(FLAGS if with_flags else ()),
    ]
    has_ids = bool(reading.id) or isinstance(rows, GenotypeRows)
    id_fields = list(getattr(rows, "id_schema", ())) if has_ids else []
    distinct_names([*(field.name for field in id_fields), *names])
    schema = pa.schema([*id_fields, *((name, pa.float64()) for name in names)])
    fills = header.get("estimator") == FederatedPCA.__name__ and parameters.get("missing") == "mean"
    if fills and isinstance(rows, GenotypeRows):
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
    model_path: Path, source: Any
) -> tuple[Model, Sequence[str], int, dict[str, tuple[str, str]]]:
    """Return a model, its variants, its number of samples, and the alleles in a cohort's own file."""
    header = read_arrays(model_path, "model")[1]
    if header.get("parameters", {}).get("scale") != BINOMIAL:
        raise InputError(
            "--plink requires a model fitted with --binomial, because plink2 scales genotypes that way"
        )
    rows = open_rows(source)
    if not isinstance(rows, GenotypeRows):
        raise InputError(
            f"--plink requires a .bed file, because it needs the alleles; got {source}"
        )
    model, header = load_model(model_path)
    names = checked_variants(header["features"])
    return model, names, header["n_samples"], rows.alleles()


def _limits(path: Path, header: dict[str, Any]) -> ControlLimits:
    """Return the limits for new rows that follow from the model."""
    if header.get("estimator") != FederatedPCA.__name__:
        raise InputError(
            f"{path} has no limits for rows; --flags requires a model fitted with --kind pca"
        )
    limits = FederatedPCA.load(path).control_limits()
    if limits.basis == EVEN_NOISE:
        err.print(
            "warning: the model file does not say how variance is spread outside the components, so "
            "the limit of Q assumes even noise; `fedpca diagnose -o` writes a model file that does",
            soft_wrap=True,
        )
    return limits


def _score_and_flag(
    score: Callable[[Any], Array], model: Model, limits: ControlLimits, block: Any
) -> Array:
    """Return the scores, T2, and Q of rows, and a column with 1 for rows beyond a limit."""
    t2, q = t2_and_q(model, block).T
    flags = RowFlags(t2, q, limits)
    return np.column_stack([score(block), flags.t2, flags.q, flags.flagged.astype(float)])


def _write_cells(
    model_path: Path, source: Any, output: Path, site: str | None, reading: Reading
) -> int:
    """Write a copy of an ``.h5ad`` file with the results in it, and return the number of cells."""
    if not isinstance(source, Path) or kind_of(source) != H5AD:
        raise InputError(
            f"{output} can only be written from an .h5ad file; use an output ending in .parquet or .csv"
        )
    if reading.given.keys() - {"layer"}:
        raise InputError("--drop, --columns, and --id do not apply to an .h5ad output; omit them")
    state = state_of(source)
    pca = load(model_path)
    return write_h5ad(pca, source, state, output, layer=reading.layer, site=site)


def _score_filled(score: Callable[[Any], Array], fill: Array, block: Any) -> Array:
    """Return what ``score`` returns for rows whose missing values are replaced by ``fill``."""
    return score(filled(block, fill))


def _model(path: Path, site: str | None) -> tuple[Model, dict[str, Any]]:
    """Return the model in a file, or its part for one site, and the file's header."""
    if not is_personalized(path):
        if site is not None:
            raise InputError(f"{path} has no site-specific components; omit --site")
        return load_model(path)
    model, header = load_personalized(path)
    sites = list(model.parts)
    if site is None and len(sites) == 1:
        site = sites[0]
    if site not in model.parts:
        problem = f"no site {site!r} in the model" if site else "the rows' site is not given"
        raise InputError(f"{path}: {problem}; set --site to one of {sites}")
    return model.of_site(site), {**header, "scores": model.only(site).score_names}
