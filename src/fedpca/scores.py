"""Scores of the rows in a file, written a block at a time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpca import atomic
from fedpca.errors import InputError
from fedpca.estimators import RobustPCA
from fedpca.model import Model, load_model
from fedpca.personal_model import is_personalized, load_personal
from fedpca.rows import column_order, open_rows, refuse_non_finite


def write_scores(model_path: Path, source: Path, output: Path, site: str | None = None) -> int:
    """Write scores as Parquet, matching the columns by name where both have names.

    ``site`` says whose rows these are, where the model has components of single sites.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if output.suffix != ".parquet":
        raise InputError(f"{output} must end in .parquet")
    model, header = _model(model_path, site)
    transform = partial(model.transform, whiten=bool(header["parameters"].get("whiten")))
    if header.get("estimator") == RobustPCA.__name__:  # whose scores leave outliers out of account
        transform = RobustPCA.load(model_path).set_output(transform="default").transform
    rows = open_rows(source)
    k, d = model.components.shape
    order = None
    if header["features"] is not None and rows.features is not None:
        order = column_order(header["features"], rows.features, str(source))
    elif rows.n_features != d:
        raise InputError(f"{source} has {rows.n_features} columns and the model {d} features")
    n_shared = int(header["n_shared"]) if "n_shared" in header else k
    names = [f"pc{i + 1}" for i in range(n_shared)]
    names += [f"local{i + 1}" for i in range(k - n_shared)]
    schema = pa.schema([(name, pa.float64()) for name in names])
    written = 0
    with atomic.writing(output) as path, pq.ParquetWriter(path, schema) as writer:
        for block in rows.blocks():
            ordered = block if order is None else block[:, order]
            scores = transform(ordered)
            if not np.isfinite(scores).all():
                refuse_non_finite(rows)
            writer.write_batch(pa.record_batch(list(np.ascontiguousarray(scores.T)), schema=schema))
            written += len(scores)
    return written


def _model(path: Path, site: str | None) -> tuple[Model, dict[str, Any]]:
    """The model in a file, or what it is for one site, and the header."""
    if not is_personalized(path):
        if site is not None:
            raise InputError(f"{path} has no components of single sites; leave --site out")
        return load_model(path)
    model, header = load_personal(path)
    known = list(model.parts)
    if site is None and len(known) == 1:
        site = known[0]
    if site not in model.parts:
        whose = f"site {site!r}" if site else "which site"
        raise InputError(f"{path}: {whose}? It knows {known}; give --site one of these")
    return model.of_site(site), {**header, "n_shared": len(model.components)}
