"""Write summaries to files and read them back, so that sites can share them without a server."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fedpca.arrays import Arrays
from fedpca.errors import FileError
from fedpca.storage.tensor_file import check_features, check_file_arrays, read_arrays, write_arrays
from fedpca.summary.summary import SHAPES, Summary

SUMMARY_KIND = "summary"


def write_summary(path: str | os.PathLike[str], summary: Summary) -> None:
    """Write a summary to a file atomically."""
    write_arrays(path, summary.to_arrays(), header_of(summary))


def read_summary(path: str | os.PathLike[str]) -> Summary:
    """Return the summary in a file after validating it."""
    arrays, header = read_arrays(path, SUMMARY_KIND)
    if header.get("kind") != SUMMARY_KIND:
        raise FileError(f"{path} is a model, not a summary; use a summary file")
    return summary_in(path, arrays, header)


def is_summary(path: str | os.PathLike[str]) -> bool:
    """Return whether a fedpca file contains a summary instead of a model."""
    return read_arrays(path, "model or summary")[1].get("kind") == SUMMARY_KIND


def header_of(summary: Summary) -> dict[str, Any]:
    """Return the header for a summary file, which contains all fields except the arrays."""
    return {
        "kind": SUMMARY_KIND,
        "n_components": summary.n_components,
        "room": summary.room,
        "centered": summary.centered,
        "features": None if summary.features is None else list(summary.features),
    }


def summary_in(path: str | os.PathLike[str], arrays: Arrays, header: dict[str, Any]) -> Summary:
    """Return the summary from a file's arrays and header after validating it."""
    table = {name: f"float64 {shape}" for name, shape in SHAPES.items()}
    arrays, lengths = check_file_arrays(path, arrays, table)
    features = header.get("features")
    check_features(path, features, lengths["d"])
    wanted, room = header.get("n_components"), header.get("room")
    if not (isinstance(wanted, int) and isinstance(room, int) and 1 <= wanted <= room):
        raise FileError(
            f"{path}: n_components={wanted} must be between 1 and room={room}; rewrite the file"
        )
    summary = Summary.from_arrays(
        arrays,
        n_components=wanted,
        room=room,
        centered=bool(header.get("centered")),
        features=None if features is None else tuple(features),
    )
    for problem, is_present in _problems(summary).items():
        if is_present:
            raise FileError(f"{path} has {problem}; rewrite the file")
    return summary


def _problems(summary: Summary) -> dict[str, bool]:
    """Return each possible problem and whether this summary has it."""
    C, s = summary.directions, summary.singular_values
    defect = np.abs(C @ C.T - np.eye(len(C))).max(initial=0.0)
    return {
        "a negative number of rows": summary.n < 0,
        "negative squares": bool((summary.squares < 0).any()),
        "a negative error bound": min(summary.known.tail, summary.known.missing) < 0,
        "singular values that are negative or not in decreasing order": bool(
            (s < 0).any() or (np.diff(s) > 0).any()
        ),
        "more directions than its room allows": len(s) > summary.room,
        "directions that are not orthonormal": bool(defect > 1e-8),
        "more energy along its directions than in total": bool(
            summary.eigenvalues.sum() > (1 + 1e-8) * summary.energy
        ),
    }
