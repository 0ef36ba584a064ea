"""Write and read `StreamingPCA` files, which hold a usable model and the stream's state."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from fedpca.arrays import Arrays
from fedpca.errors import FileError
from fedpca.models.linear import Model, model_in
from fedpca.rows.centering import Mean
from fedpca.storage.tensor_file import check_file_arrays, write_arrays
from fedpca.summary.adaptive_rank import AdaptiveRank
from fedpca.summary.file import header_of, summary_in
from fedpca.summary.scatter import Scatter
from fedpca.summary.stream import Stream

CARRIED = "carried/"  # prefix for the summary's arrays
SCATTER = "scatter/"  # prefix for the scatter's arrays, if there is a scatter


def write_stream(
    path: str | os.PathLike[str], model: Model, stream: Stream, header: dict[str, Any]
) -> None:
    """Write the model and its stream's state to a file atomically."""
    arrays = model.arrays()
    arrays |= {CARRIED + name: array for name, array in stream.carried.to_arrays().items()}
    if stream.scatter is not None:
        mean = stream.scatter.mean
        whole: dict[str, Any] = {
            "n": mean.n,
            "high": mean.high,
            "low": mean.low,
            "lower": stream.scatter.lower,
        }
        arrays |= {SCATTER + name: array for name, array in whole.items()}
    header |= {
        "carried": header_of(stream.carried),
        "rank": None if stream.rank is None else asdict(stream.rank),
        "n_spare": stream.n_spare,
    }
    write_arrays(path, arrays, header)


def stream_in(path: str | os.PathLike[str], arrays: Arrays, header: dict[str, Any]) -> Stream:
    """Return the stream of a file that has been read, after validating it."""
    model_in(path, arrays, header)
    try:
        carried = summary_in(path, _below(CARRIED, arrays), header["carried"])
        rank = None if header["rank"] is None else _rank_in(header["rank"])
        n_spare = int(header["n_spare"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(f"{path} has an invalid header: {error}") from None
    scatter = _scatter_in(path, _below(SCATTER, arrays), carried.n_features)
    return Stream(carried, scatter, rank, header["n_samples"], n_spare)


def _rank_in(header: dict[str, Any]) -> AdaptiveRank:
    """Return the adaptive rank in a header, with each value converted to its type."""
    kinds = {"rule": str, "share": float, "alpha": float, "beta": float}
    values: dict[str, Any] = {k: kinds.get(k, int)(value) for k, value in header.items()}
    return AdaptiveRank(**values)


def _scatter_in(path: Any, arrays: Arrays, d: int) -> Scatter | None:
    """Return the scatter from a file's arrays, or None if there is none."""
    if not arrays:
        return None
    table = {"n": "float64", "high": "float64 d", "low": "float64 d", "lower": "float64 d d"}
    arrays, lengths = check_file_arrays(path, arrays, table)
    if lengths["d"] != d:
        raise FileError(
            f"{path}: the scatter has {lengths['d']} features instead of {d}; the file is damaged"
        )
    scatter = Scatter(d)
    scatter.mean = Mean(float(arrays["n"]), arrays["high"], arrays["low"])
    scatter.lower[:] = arrays["lower"]
    return scatter


def _below(prefix: str, arrays: Arrays) -> Arrays:
    """Return the arrays whose names start with a prefix, by their names without the prefix."""
    chosen = {name: array for name, array in arrays.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): array for name, array in chosen.items()}
