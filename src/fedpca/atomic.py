"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpca.errors import FileError


@contextmanager
def writing(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends without error.

    The bytes are on the disk before the name is, so a crash leaves the old file or the new one. A
    private file is its owner's alone, from its first byte.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileError(f"{target}: the folder {target.parent} does not exist")
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
