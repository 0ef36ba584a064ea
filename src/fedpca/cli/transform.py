"""Run `fedpca transform`: write scores for the rows in a file, one block at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedpca.arrays import Array
from fedpca.cli.console import err, exit_codes, out, refuse_overwriting
from fedpca.cli.options import Columns, Drop, Force, Id, Quiet, choice_of
from fedpca.cli.progress import counting
from fedpca.errors import InputError
from fedpca.estimators import RobustPCA
from fedpca.models.linear import Model, load_model
from fedpca.models.personalized import is_personalized, load_personalized
from fedpca.rows.choice import ALL_COLUMNS, ColumnChoice
from fedpca.rows.columns import distinct_names, some_of
from fedpca.rows.gaps import filled
from fedpca.rows.in_memory import about_n_rows
from fedpca.rows.matching import open_matching, scores_in_blocks
from fedpca.storage.table_file import check_format, writing_table


def transform(
    model: Annotated[Path, typer.Argument(help="Model written by `fedpca fit` or `fedpca merge`.")],
    file: Annotated[Path, typer.Argument(help="File or folder of rows.")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Write the scores to this file (.parquet or .csv)."),
    ],
    site: Annotated[
        str | None,
        typer.Option(help="Site that the rows belong to; only for a personalized model."),
    ] = None,
    drop: Drop = [],  # noqa: B006
    columns: Columns = [],  # noqa: B006
    id: Id = [],  # noqa: B006
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write the scores of rows on a model's components.

    MODEL is a file written by `fedpca fit` or `fedpca merge`. FILE is a file or folder of rows. Columns
    are matched by name, and columns that are not features of the model are ignored. Columns given with
    --id are written beside the scores.
    """
    with exit_codes():
        refuse_overwriting(output, force)
        choice = ColumnChoice.of(**choice_of(drop, columns, id))
        n_rows = write_scores(model, file, output, site, choice, quiet=quiet)
        if not quiet:
            out.print(f"Wrote {n_rows:,} rows to {output}")


def write_scores(
    model_path: Path,
    source: Path,
    output: Path,
    site: str | None = None,
    choice: ColumnChoice = ALL_COLUMNS,
    *,
    quiet: bool = True,
) -> int:
    """Write the ids and scores of rows as Parquet or CSV, and return the number of rows.

    Columns are matched by name if both the model and the rows have column names. If the model has
    site-specific components, ``site`` names the site that the rows belong to.
    """
    import pyarrow as pa

    check_format(output)
    model, header = _model(model_path, site)
    score: Callable[[Any], Array]
    score = partial(model.transform, whiten=bool(header["parameters"].get("whiten")))
    if header.get("estimator") == RobustPCA.__name__:  # its scores ignore outliers
        score = RobustPCA.load(model_path).model_.transform
    if header["parameters"].get("missing") == "mean":
        score = partial(_score_filled, score, model.mean)
    k, d = model.components.shape
    features = header["features"]
    rows = open_matching(source, features, d, choice)
    if features is not None and rows.features is None:
        err.print(
            f"warning: {source} has no column names; its columns are assumed to be "
            f"{some_of(features)} in order",
            soft_wrap=True,
        )
    names = header.get("scores", [f"pc{i + 1}" for i in range(k)])
    has_ids = bool(choice.ids)
    id_fields = list(getattr(rows, "id_schema", ())) if has_ids else []
    distinct_names([*choice.ids, *names])
    schema = pa.schema([*id_fields, *((name, pa.float64()) for name in names)])
    written = 0
    about = partial(about_n_rows, rows)
    with counting(quiet, "rows", about) as on_block, writing_table(output, schema) as writer:
        for scores, ids in scores_in_blocks(rows, score, with_ids=has_ids):
            columns = [*(ids.columns if has_ids else ()), *np.ascontiguousarray(scores.T)]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            written += len(scores)
            if on_block is not None:
                on_block(written, "writing scores")
    return written


def _score_filled(score: Callable[[Any], Array], fill: Array, block: Any) -> Array:
    """Return the scores of rows whose missing values take those of ``fill``."""
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
