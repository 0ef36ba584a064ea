"""The file of a `StreamingPCA`: a model that others can use, and all that is needed to go on."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from fedpca.blocks import Mean
from fedpca.errors import FileError
from fedpca.model import Model, model_in
from fedpca.rank import AdaptiveRank
from fedpca.scatter import Scatter
from fedpca.stream import Stream
from fedpca.summary_file import arrays_of, header_of, summary_in
from fedpca.tensorfile import Arrays, check_arrays, read_arrays, write_arrays

ESTIMATOR = "StreamingPCA"
CARRIED = "carried/"  # before the names of the arrays of the summary
SCATTER = "scatter/"  # and of those of the scatter, where there is one


def write_stream(
    path: str | os.PathLike[str], model: Model, stream: Stream, parameters: dict[str, Any]
) -> None:
    """Write the model and the stream behind it, whole or not at all."""
    arrays = model.arrays()
    arrays |= {CARRIED + name: array for name, array in arrays_of(stream.carried).items()}
    if stream.scatter is not None:
        mean = stream.scatter.mean
        whole: dict[str, Any] = {
            "n": mean.n,
            "high": mean.high,
            "low": mean.low,
            "lower": stream.scatter.lower,
        }
        arrays |= {SCATTER + name: array for name, array in whole.items()}
    header = {
        "estimator": ESTIMATOR,
        "parameters": parameters,
        "features": header_of(stream.carried)["features"],
        "n_samples": stream.n_seen,
        "carried": header_of(stream.carried),
        "rank": None if stream.rank is None else asdict(stream.rank),
        "n_spare": stream.n_spare,
        "angle_bound": stream.summary.angle_bound(),
    }
    write_arrays(path, arrays, header)


def read_stream(path: str | os.PathLike[str]) -> tuple[Stream, dict[str, Any]]:
    """The stream in a file and the parameters of its estimator, after every check."""
    arrays, header = read_arrays(path, "model")
    if header.get("estimator") != ESTIMATOR:
        raise FileError(f"{path} holds a {header.get('estimator')}, not a {ESTIMATOR}")
    model_in(path, arrays, header)
    try:
        carried = summary_in(path, _below(CARRIED, arrays), header["carried"])
        rank = None if header["rank"] is None else _rank_in(header["rank"])
        n_spare = int(header["n_spare"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(f"{path} has a header that cannot be used: {error}") from None
    scatter = _scatter_in(path, _below(SCATTER, arrays), carried.n_features)
    return Stream(carried, scatter, rank, header["n_samples"], n_spare), header["parameters"]


def _rank_in(header: dict[str, Any]) -> AdaptiveRank:
    """The rank of a stream, each of its values of the kind that it must have."""
    kinds = {"rule": str, "share": float, "alpha": float, "beta": float}
    values: dict[str, Any] = {k: kinds.get(k, int)(value) for k, value in header.items()}
    return AdaptiveRank(**values)


def _scatter_in(path: Any, arrays: Arrays, d: int) -> Scatter | None:
    if not arrays:
        return None
    due = {"n": (), "high": (d,), "low": (d,), "lower": (d, d)}
    check_arrays(path, "model", arrays, due)
    scatter = Scatter(d)
    scatter.mean = Mean(float(arrays["n"]), arrays["high"], arrays["low"])
    scatter.lower[:] = arrays["lower"]
    return scatter


def _below(prefix: str, arrays: Arrays) -> Arrays:
    found = {name: array for name, array in arrays.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): array for name, array in found.items()}
