"""A summary as named arrays, and its file: what a site sends where there is no server."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fedpca.blocks import Mean
from fedpca.errors import FileError
from fedpca.lowrank import LowRank
from fedpca.summary import Summary
from fedpca.tensorfile import Arrays, check_arrays, check_features, read_arrays, write_arrays

KIND = "summary"
SHAPES: dict[str, tuple[str, ...]] = {
    "n": (),
    "mean": ("d",),
    "mean_rest": ("d",),
    "squares": ("d",),
    "directions": ("r", "d"),
    "singular_values": ("r",),
    "tail": (),
    "missing": (),
}


def write_summary(path: str | os.PathLike[str], summary: Summary) -> None:
    """Write a summary, whole or not at all."""
    write_arrays(path, arrays_of(summary), header_of(summary))


def read_summary(path: str | os.PathLike[str]) -> Summary:
    """The summary in a file, after every check."""
    arrays, header = read_arrays(path, KIND)
    if header.get("kind") != KIND:
        raise FileError(f"{path} is not a summary but a model of fedpca")
    return summary_in(path, arrays, header)


def arrays_of(summary: Summary) -> Arrays:
    """All numbers of a summary, by name."""
    return {
        "n": np.array(summary.n),
        "mean": summary.at.high,
        "mean_rest": summary.at.low,
        "squares": summary.squares,
        "directions": np.ascontiguousarray(summary.directions),
        "singular_values": summary.singular_values,
        "tail": np.array(summary.known.tail),
        "missing": np.array(summary.known.missing),
    }


def summary_of(arrays: Arrays, **others: Any) -> Summary:
    """The summary of which `arrays_of` gave the numbers; ``others`` are the fields beside them."""
    at = Mean(float(arrays["n"]), arrays["mean"], arrays["mean_rest"])
    tail, missing = float(arrays["tail"]), float(arrays["missing"])
    known = LowRank(arrays["directions"], arrays["singular_values"], tail, missing)
    return Summary(at=at, squares=arrays["squares"], known=known, **others)


def is_summary(path: str | os.PathLike[str]) -> bool:
    """Whether a file of fedpca holds a summary and not a model."""
    return read_arrays(path, "model or summary")[1].get("kind") == KIND


def header_of(summary: Summary) -> dict[str, Any]:
    """What a file says of a summary beside its arrays."""
    return {
        "kind": KIND,
        "n_components": summary.n_components,
        "room": summary.room,
        "centered": summary.centered,
        "features": None if summary.features is None else list(summary.features),
    }


def summary_in(path: str | os.PathLike[str], arrays: Arrays, header: dict[str, Any]) -> Summary:
    """The summary in the arrays and the header of a file, after every check."""
    lengths = check_arrays(path, KIND, arrays, SHAPES)
    features = header.get("features")
    check_features(path, features, lengths["d"])
    wanted, room = header.get("n_components"), header.get("room")
    if not (isinstance(wanted, int) and isinstance(room, int) and 1 <= wanted <= room):
        raise FileError(f"{path}: {wanted} components do not fit into a room of {room}")
    summary = summary_of(
        arrays,
        n_components=wanted,
        room=room,
        centered=bool(header.get("centered")),
        features=None if features is None else tuple(features),
    )
    for problem, is_there in _problems(summary).items():
        if is_there:
            raise FileError(f"{path} has {problem}; write it again")
    return summary


def _problems(summary: Summary) -> dict[str, bool]:
    """What cannot be said of a summary, and whether it can be said of this one."""
    C, s = summary.directions, summary.singular_values
    defect = np.abs(C @ C.T - np.eye(len(C))).max(initial=0.0)
    return {
        "a number of rows below 0": summary.n < 0,
        "squares below 0": bool((summary.squares < 0).any()),
        "a bound below 0": min(summary.known.tail, summary.known.missing) < 0,
        "singular values that do not fall": bool((s < 0).any() or (np.diff(s) > 0).any()),
        "more directions than room": len(s) > summary.room,
        "directions that are not orthonormal": bool(defect > 1e-8),
        "more energy along its directions than in all": bool(
            summary.eigenvalues.sum() > (1 + 1e-8) * summary.energy
        ),
    }
