"""Scores of the rows in a file, written a block at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedpca import atomic
from fedpca.errors import InputError
from fedpca.model import load_model
from fedpca.rows import column_order, open_rows, refuse_non_finite


def write_scores(model_path: Path, source: Path, output: Path) -> int:
    """Write scores as Parquet, matching the columns by name where both have names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if output.suffix != ".parquet":
        raise InputError(f"{output} must end in .parquet")
    model, header = load_model(model_path)
    rows = open_rows(source)
    k, d = model.components.shape
    order = None
    if header["features"] is not None and rows.features is not None:
        order = column_order(header["features"], rows.features, str(source))
    elif rows.n_features != d:
        raise InputError(f"{source} has {rows.n_features} columns and the model {d} features")
    schema = pa.schema([(f"pc{i + 1}", pa.float64()) for i in range(k)])
    written = 0
    with atomic.writing(output) as path, pq.ParquetWriter(path, schema) as writer:
        for block in rows.blocks():
            ordered = block if order is None else block[:, order]
            scores = model.transform(ordered, whiten=bool(header["parameters"].get("whiten")))
            if not np.isfinite(scores).all():
                refuse_non_finite(rows)
            writer.write_batch(pa.record_batch(list(np.ascontiguousarray(scores.T)), schema=schema))
            written += len(scores)
    return written
