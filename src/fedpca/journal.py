"""Record and replay: the answers of a run, appended to a file as they come.

A run is deterministic given its seed and its answers. So the program that crashed is simply run
again: the questions whose answers are in the journal get them from there, and the first one that is
not goes to the sites. A journal is a row of encoded messages, the first of which says which run it
belongs to. Each is on the disk before the program goes on.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fedpca.errors import JournalError, MessageError
from fedpca.message import MARK, PREFIX_BYTES, Array, Message, compose, decode, encode, encoded_size

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock; two runs there must be kept apart
    fcntl = None  # type: ignore[assignment]


class Journal:
    """A file of recorded answers that a run reads first and then writes.

    Parameters
    ----------
    path : path
        Created by the first run; given again, it resumes that run.
    about : dict
        What the run is (its program, parameters and sites); another run's journal is refused.
    seed : int
        The seed that a new run shall have.
    """

    def __init__(self, path: str | os.PathLike[str], *, about: Mapping[str, Any], seed: int):
        self.path = Path(path)
        about = json.loads(json.dumps(about))
        self._file: BinaryIO = _open_or_create(self.path)
        try:
            self._lock()
            if os.fstat(self._file.fileno()).st_size == 0:
                self.append({"run": secrets.token_hex(8), "seed": seed, "about": about}, {})
                self._file.seek(0)
            first = self._read()
            if first is None or "about" not in first.header:
                raise JournalError(f"{self.path} is not a journal; give the name of a new file")
            _refuse_other(self.path, first.header["about"], about)
        except BaseException:
            self.close()
            raise
        self.run: str = first.header["run"]
        self.seed: int = first.header["seed"]

    def next(self) -> Message | None:
        """The next recorded round, or None where the record ends; a torn last record is dropped."""
        start = self._file.tell()
        record = self._read()
        if record is None:
            self._file.truncate(start)
            self._file.seek(start)
        return record

    def append(self, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Write one round and wait until it is on the disk."""
        self._file.write(encode(compose(header, arrays, limit=None)))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _read(self) -> Message | None:
        """The message at the file's position, or None where the file ends within it."""
        start = self._file.tell()
        length = os.fstat(self._file.fileno()).st_size - start
        prefix = self._file.read(PREFIX_BYTES)
        size = encoded_size(prefix)
        if size is None and not prefix.strip(b"\0") and not self._file.read().strip(b"\0"):
            return None  # the end, or zeros that a file system put where bytes were due
        if len(prefix) < PREFIX_BYTES:
            return None
        if size is not None and size > length:
            if MARK in self._file.read():
                raise JournalError(f"{self.path} is damaged at byte {start:,}: more records follow")
            return None
        try:
            return decode(
                prefix + self._file.read((size or PREFIX_BYTES) - PREFIX_BYTES), limit=None
            )
        except MessageError as error:
            if size == length:
                return None
            raise JournalError(f"{self.path} is damaged at byte {start:,}: {error}") from None

    def _lock(self) -> None:
        if fcntl is None:  # pragma: no cover
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise JournalError(f"{self.path} is in use by another run") from None


def recorded_sites(path: str | os.PathLike[str] | None) -> list[str] | None:
    """The sites of the run in a journal; None where there is no run yet, or no journal."""
    try:
        with open(path or "", "rb") as file:  # noqa: PTH123
            prefix = file.read(PREFIX_BYTES)
            first = decode(prefix + file.read((encoded_size(prefix) or 0) - PREFIX_BYTES))
        return [str(name) for name in first.header["about"]["sites"]]
    except (OSError, MessageError, LookupError, TypeError):
        return None  # what is wrong with it is said when it is opened


def _open_or_create(path: Path) -> BinaryIO:
    """The file for reading and writing; a new one is created empty, to be filled once locked.

    It is its owner's alone: answers that were seen are in it.
    """
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb+")
    except OSError as error:
        raise JournalError(f"{path} cannot be a journal: {error.strerror}") from None


def _refuse_other(path: Path, recorded: Any, about: Any, where: str = "") -> None:
    """Raise an error that names the first thing in which the journal's run differs from this one."""
    if recorded == about:
        return
    if isinstance(recorded, dict) and isinstance(about, dict):
        for key in sorted(recorded.keys() | about.keys()):
            inner = f"{where}, {key}" if where else key
            _refuse_other(path, recorded.get(key), about.get(key), inner)
    raise JournalError(
        f"{path} belongs to another run ({where}: {recorded!r} there, {about!r} here); give the name "
        "of a new file"
    )
