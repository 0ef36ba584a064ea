"""Write a file completely or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedpca.errors import FileError

PROBE_BYTES = 1 << 16  # a disk with less room than this counts as full
# errors that come only from writing to a disk, never from reading a file within the ``with`` block
_WRITE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


@contextmanager
def writing(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` when the ``with`` block ends without an error.

    The file is flushed to disk before it is renamed, and its folder afterward. So a crash, a power
    failure, or a full disk leaves either the old file or the new one. A private file is readable only
    by its owner from the moment it is created.
    """
    target = Path(path)
    temporary = _create_beside(target, private)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
        flush_folder(target.parent)
    except OSError as error:
        if error.errno not in _WRITE_ERRORS:
            raise
        raise unwritable(target, error) from None
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a path that cannot be written, before any work is wasted.

    A temporary file is written next to ``path`` and removed again. An existing file at ``path`` stays
    as it is.
    """
    target = Path(path)
    temporary = _create_beside(target, private=True)
    try:
        with temporary.open("rb+") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise unwritable(target, error) from None
    finally:
        temporary.unlink(missing_ok=True)


def unwritable(target: Path, error: OSError) -> FileError:
    """Return the error to raise if ``target`` cannot be written."""
    why = os.strerror(error.errno or 0)  # Arrow's own message names the temporary file
    return FileError(
        f"{target} cannot be written: {why}; free space or change permissions there, or "
        "choose a different folder"
    )


def _create_beside(target: Path, private: bool) -> Path:
    """Create an empty temporary file in the folder of ``target``, and return its path."""
    temporary = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}")
    try:
        if target.is_dir():
            raise FileError(f"{target} is a folder; use a file name")
        if not target.parent.is_dir():
            raise FileError(f"{target}: the folder {target.parent} does not exist; create it first")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        # the umask may remove permissions
        os.close(os.open(temporary, flags, 0o600 if private else 0o666))
    except OSError as error:
        raise unwritable(target, error) from None
    return temporary


def flush_folder(folder: Path) -> None:
    """Flush a folder's list of files to disk, if the system can do that."""
    # Windows cannot open a folder, and some network drives cannot flush one
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
