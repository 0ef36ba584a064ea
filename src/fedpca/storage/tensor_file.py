"""Write and read named float64 arrays with a JSON header in a safetensors file.

A file is written completely or not at all. Reading validates the whole file and never executes code.
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

from fedpca._version import __version__
from fedpca.arrays import Arrays, Dimensions, check_arrays, declare
from fedpca.errors import FileError
from fedpca.storage import atomic

FORMAT_VERSION = 2
HEADER_KEY = "fedpca"  # the only key in the file's metadata


def write_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, Any], header: Mapping[str, Any]
) -> None:
    """Write the arrays and a header that describes them."""
    full_header = {"format": FORMAT_VERSION, "version": __version__, **header}
    # ascontiguousarray would turn a scalar into a vector
    ready = {name: np.asarray(array, np.float64, order="C") for name, array in arrays.items()}
    with atomic.writing(path) as temporary:
        save_file(ready, temporary, metadata={HEADER_KEY: json.dumps(full_header, sort_keys=True)})


def read_arrays(path: str | os.PathLike[str], kind: str) -> tuple[Arrays, dict[str, Any]]:
    """Return a file's arrays and header; ``kind`` names the expected content in error messages."""
    path = Path(path)
    if not path.is_file():
        problem = "is a folder; provide a file name" if path.is_dir() else "does not exist"
        raise FileError(f"{path} {problem}")
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get(HEADER_KEY, "null"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, TypeError):
        raise FileError(
            f"{path} is not a readable fedpca {kind} file; to read rows, use fit or summarize"
        ) from None
    if not isinstance(header, dict):
        raise FileError(f"{path} is not a fedpca {kind} file; use a file that fedpca wrote")
    if header.get("format") != FORMAT_VERSION:
        raise FileError(
            f"{path} has format {header.get('format')}; this version of fedpca reads format "
            f"{FORMAT_VERSION}. Install the same version everywhere and write the file again"
        )
    return arrays, header


def check_file_arrays(
    path: str | os.PathLike[str], arrays: Arrays, table: Mapping[str, str]
) -> tuple[Arrays, Dimensions]:
    """Return the arrays in a file that ``table`` declares, and the lengths of their dimensions."""
    lengths: Dimensions = {}
    return check_arrays(declare(table), arrays, lengths, str(path), FileError), lengths


def check_features(path: str | os.PathLike[str], features: Any, d: int) -> None:
    """Refuse feature names that are not a list of ``d`` strings."""
    are_names = isinstance(features, list) and all(isinstance(name, str) for name in features)
    if features is not None and not (are_names and len(features) == d):
        raise FileError(
            f"{path}: the feature names are not a list of {d} strings; rewrite the file"
        )
