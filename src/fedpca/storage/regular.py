"""Refuse paths that are neither files nor folders, because reading them may never end.

A named pipe blocks whoever opens it until someone writes to it, and a device may have no end. Files are
also read more than once, which a pipe does not allow.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from fedpca.errors import FedpcaError, FileError

SPECIAL = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def refuse_special(path: str | os.PathLike[str], error: type[FedpcaError] = FileError) -> None:
    """Refuse a path that is a pipe, a socket, or a device; whoever opens it reports other problems."""
    kind = None
    with suppress(OSError, ValueError):
        kind = SPECIAL.get(stat.S_IFMT(Path(path).stat().st_mode))
    if kind is not None:
        raise error(
            f"{path} is {kind}, which fedpca does not read; write its contents to a file, and provide "
            "the file"
        )
