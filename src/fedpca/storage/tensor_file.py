"""Write and read named float64 arrays with a JSON header in a safetensors file.

A file is written completely or not at all. Reading validates the whole file and never executes code.
The header holds a checksum of itself and of all arrays, so a file that was damaged on a disk or in
transit is refused. A file without a checksum is refused too: otherwise, damage could remove the
checksum as well.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedpca._version import __version__
from fedpca.arrays import Array, Arrays, Dimensions, check_arrays, declare
from fedpca.errors import FileError
from fedpca.storage import atomic
from fedpca.storage.regular import refuse_special

FORMAT_VERSION = 3
HEADER_KEY = "fedpca"  # the only key in the file's metadata
CHECKSUM_KEY = "sha256"  # in the header


def write_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, Any], header: Mapping[str, Any]
) -> None:
    """Write the arrays and a header that describes them."""
    plain = {"format": FORMAT_VERSION, "version": __version__, **header}
    full_header = json.loads(json.dumps(plain))  # the header as it will be read back
    # ascontiguousarray would turn a scalar into a vector
    ready = {name: np.asarray(array, np.float64, order="C") for name, array in arrays.items()}
    full_header[CHECKSUM_KEY] = contents_checksum(full_header, ready)
    with atomic.writing(path) as temporary:
        try:
            save_file(ready, temporary, metadata={HEADER_KEY: _text(full_header)})
        except SafetensorError as error:
            raise FileError(
                f"{path} cannot be written: {error}; free space there, or choose a different folder"
            ) from None


def read_arrays(path: str | os.PathLike[str], kind: str) -> tuple[Arrays, dict[str, Any]]:
    """Return a file's arrays and header; ``kind`` names the expected content in error messages."""
    path = Path(path)
    refuse_special(path)
    try:
        if not path.is_file():
            problem = "is a folder; provide a file name" if path.is_dir() else "does not exist"
            raise FileError(f"{path} {problem}")
        path.open("rb").close()  # without permission to read, safe_open would call the file missing
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(HEADER_KEY, "null")
            header = json.loads(text)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from None
    except (SafetensorError, ValueError, TypeError, RecursionError):
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
    # damage to the text need not change what it means, so the text is compared too
    is_intact = _text(header) == text
    if header.pop(CHECKSUM_KEY, None) != contents_checksum(header, arrays) or not is_intact:
        raise FileError(
            f"{path} is damaged: its checksum does not match; copy the file again, or write it again"
        )
    return arrays, header


def contents_checksum(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> str:
    """Return the SHA-256 of the arrays and the header; the header must not contain its checksum."""
    digest = hashlib.sha256(_text(header).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"\n{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def check_file_arrays(
    path: str | os.PathLike[str], arrays: Arrays, table: Mapping[str, str]
) -> tuple[Arrays, Dimensions]:
    """Check a file's arrays against the declarations in ``table``.

    Return the declared arrays and the lengths of their dimensions.
    """
    lengths: Dimensions = {}
    return check_arrays(declare(table), arrays, lengths, str(path), FileError), lengths


def check_features(path: str | os.PathLike[str], features: Any, d: int) -> None:
    """Refuse feature names that are not a list of ``d`` strings."""
    are_names = isinstance(features, list) and all(isinstance(name, str) for name in features)
    if features is not None and not (are_names and len(features) == d):
        raise FileError(
            f"{path}: the feature names must be a list of {d} strings; write the file again"
        )


def _text(header: Mapping[str, Any]) -> str:
    return json.dumps(header, sort_keys=True)
