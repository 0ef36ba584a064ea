"""Write a file completely or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpca.errors import FileError


@contextmanager
def writing(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` when the ``with`` block ends without an error.

    The file is flushed to disk before it is renamed, so a crash leaves either the old file or the new
    one. A private file is readable only by its owner from the moment it is created.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileError(f"{target}: the folder {target.parent} does not exist; create it first")
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o600 if private else 0o666 & ~_umask())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
