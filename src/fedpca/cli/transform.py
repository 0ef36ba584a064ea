"""Run `fedpca transform`: write scores for the rows in a file, one block at a time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedpca.cli.console import err, exit_codes, out, refuse_overwriting
from fedpca.cli.options import Force, Quiet
from fedpca.errors import InputError
from fedpca.estimators import RobustPCA
from fedpca.models.linear import Model, load_model
from fedpca.models.personalized import is_personalized, load_personalized
from fedpca.rows.columns import column_order, some_of
from fedpca.rows.in_memory import refuse_non_finite
from fedpca.rows.open import open_rows
from fedpca.storage import atomic


def transform(
    model: Annotated[Path, typer.Argument(help="Model written by `fedpca fit` or `fedpca merge`.")],
    file: Annotated[Path, typer.Argument(help="File or folder of rows.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the scores to this file (.parquet).")
    ],
    site: Annotated[
        str | None,
        typer.Option(help="Site that the rows belong to; only for a personalized model."),
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write the scores of rows on a model's components.

    MODEL is a file written by `fedpca fit` or `fedpca merge`. FILE is a file or folder of rows.
    """
    with exit_codes():
        refuse_overwriting(output, force)
        n_rows = write_scores(model, file, output, site)
        if not quiet:
            out.print(f"Wrote {n_rows:,} rows to {output}")


def write_scores(model_path: Path, source: Path, output: Path, site: str | None = None) -> int:
    """Write scores as Parquet, and return the number of rows.

    Columns are matched by name if both the model and the rows have column names. If the model has
    site-specific components, ``site`` names the site that the rows belong to.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if output.suffix != ".parquet":
        raise InputError(f"{output} must end in .parquet, as in {output.stem}.parquet")
    model, header = _model(model_path, site)
    score = partial(model.transform, whiten=bool(header["parameters"].get("whiten")))
    if header.get("estimator") == RobustPCA.__name__:  # its scores ignore outliers
        score = RobustPCA.load(model_path).set_output(transform="default").transform
    rows = open_rows(source)
    k, d = model.components.shape
    order = None
    if header["features"] is not None and rows.features is not None:
        order = column_order(header["features"], rows.features, str(source))
    elif rows.n_features != d:
        raise InputError(f"{source} has {rows.n_features} columns, but the model has {d} features")
    elif header["features"] is not None:
        first = some_of(header["features"])
        err.print(
            f"warning: {source} has no column names; its columns are assumed to be {first} in order",
            soft_wrap=True,
        )
    names = header.get("scores", [f"pc{i + 1}" for i in range(k)])
    schema = pa.schema([(name, pa.float64()) for name in names])
    written = 0
    with atomic.writing(output) as path, pq.ParquetWriter(path, schema) as writer:
        for block in rows.blocks():
            ordered = block if order is None else block[:, order]
            scores = score(ordered)
            if not np.isfinite(scores).all():
                refuse_non_finite(rows)
            writer.write_batch(pa.record_batch(list(np.ascontiguousarray(scores.T)), schema=schema))
            written += len(scores)
    return written


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
