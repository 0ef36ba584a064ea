"""Named float64 arrays with a JSON header, in a safetensors file that is written whole or not at all.

Reading checks everything and never runs code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedpca import atomic
from fedpca._version import __version__
from fedpca.errors import FileError
from fedpca.message import Array

FORMAT = 1
HEADER = "fedpca"  # the one key of the file's metadata

Arrays = dict[str, Array]


def write_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, Any], header: Mapping[str, Any]
) -> None:
    """Write the arrays and what ``header`` says about them."""
    about = {"format": FORMAT, "version": __version__, **header}
    # ascontiguousarray would turn a scalar into a vector
    ready = {name: np.asarray(array, np.float64, order="C") for name, array in arrays.items()}
    with atomic.writing(path) as temporary:
        save_file(ready, temporary, metadata={HEADER: json.dumps(about, sort_keys=True)})


def read_arrays(path: str | os.PathLike[str], kind: str) -> tuple[Arrays, dict[str, Any]]:
    """The arrays of a file and its header; ``kind`` says in an error what was looked for."""
    path = Path(path)
    if not path.is_file():
        problem = "is a folder; give the name of a file" if path.is_dir() else "does not exist"
        raise FileError(f"{path} {problem}")
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get(HEADER, "null"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, TypeError):
        raise FileError(
            f"{path} is not a readable {kind} file of fedpca; rows are read by fit and summarize"
        ) from None
    if not isinstance(header, dict):
        raise FileError(f"{path} is not a {kind} of fedpca")
    if header.get("format") != FORMAT:
        raise FileError(
            f"{path} has format {header.get('format')}; this fedpca reads {FORMAT}. Write it again "
            "with the same fedpca everywhere"
        )
    return arrays, header


def check_arrays(
    path: str | os.PathLike[str],
    kind: str,
    arrays: Arrays,
    due: Mapping[str, tuple[str | int, ...]],
) -> dict[str, int]:
    """Check arrays against their shapes; the lengths that the names in ``due`` stand for come back."""
    missing = due.keys() - arrays.keys()
    if missing:
        raise FileError(f"{path} is not a {kind} of fedpca: it has no {', '.join(sorted(missing))}")
    lengths: dict[str, int] = {}
    for name, shape in due.items():
        array = arrays[name]
        expected = shape
        if len(array.shape) == len(shape):
            expected = tuple(
                lengths.setdefault(length, found) if isinstance(length, str) else length
                for length, found in zip(shape, array.shape, strict=True)
            )
        if array.shape != expected or array.dtype != np.float64:
            raise FileError(
                f"{path}: {name} is {array.dtype} {array.shape}, not float64 {expected}"
            )
        if not np.isfinite(array).all():
            raise FileError(f"{path}: {name} has values that are not finite")
    return lengths


def check_features(path: str | os.PathLike[str], features: Any, d: int) -> None:
    """Refuse names of features that are not ``d`` words."""
    are_names = isinstance(features, list) and all(isinstance(name, str) for name in features)
    if features is not None and not (are_names and len(features) == d):
        raise FileError(f"{path}: the names of its {d} features are not {d} words")
