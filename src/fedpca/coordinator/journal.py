"""Record a run's answers in a file and replay them when the run is resumed.

A run is determined by its seed and the answers that it receives. To resume a program that crashed, run
the program again: the journal answers the questions that it has recorded, and the sites answer all
later ones. A journal is a sequence of encoded messages; the first message identifies the run. Each
message is on disk before the program continues.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from fedpca.arrays import Array
from fedpca.errors import JournalError, MessageError
from fedpca.protocol.message import (
    MARK,
    PREFIX_BYTES,
    Message,
    compose,
    decode,
    encode,
    encoded_size,
)
from fedpca.storage.regular import refuse_special

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock; users must keep runs apart
    fcntl = None  # type: ignore[assignment]


class Journal:
    """A file of recorded answers that a run first replays and then extends.

    Parameters
    ----------
    path : path
        A new file starts a new run; an existing journal resumes its run.
    identity : dict
        The run's program, parameters, and sites. A journal from a different run is refused.
    seed : int, optional
        The seed of the run. A journal with another seed is refused. By default, a resumed run has the
        journal's seed, and a new run has one that is chosen at random.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, identity: Mapping[str, Any], seed: int | None = None
    ) -> None:
        self.path = Path(path)
        identity = json.loads(json.dumps(identity))
        self._file: BinaryIO = _open_or_create(self.path)
        try:
            self._lock()
            first = self._read()
            if first is None and self._is_torn_at_the_start():
                self._file.seek(0)
                self._file.truncate()
                drawn = secrets.randbits(63) if seed is None else seed
                self.append({"run": secrets.token_hex(8), "seed": drawn, "identity": identity}, {})
                self._file.seek(0)
                first = self._read()
            if first is None or "identity" not in first.header:
                raise JournalError(f"{self.path} is not a journal; specify a journal or a new file")
            _refuse_other(self.path, first.header["identity"], identity)
            self.run: str = first.header["run"]
            self.seed: int = first.header["seed"]
            if seed not in (None, self.seed):
                raise JournalError(
                    f"{self.path} belongs to a run with seed {self.seed}, not {seed}; use the "
                    "journal's seed, or specify a new file"
                )
        except BaseException:
            self.close()
            raise

    def next(self) -> Message | None:
        """Return the next recorded round, or None at the end; drop an incomplete last record."""
        start = self._file.tell()
        record = self._read()
        if record is None:
            self._file.truncate(start)
            self._file.seek(start)
        return record

    def append(self, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Write one round and wait until it is on disk."""
        try:
            self._file.write(encode(compose(header, arrays, limit=None)))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise JournalError(
                f"cannot write to journal {self.path}: {error.strerror}; free space there, and run "
                "the same command again: it continues from the last recorded round"
            ) from None

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # closing tries again to write bytes that `append` could not
            self._file.close()

    def _read(self) -> Message | None:
        """Return the message at the current position, or None if the file ends within that message."""
        start = self._file.tell()
        length = os.fstat(self._file.fileno()).st_size - start
        prefix = self._file.read(PREFIX_BYTES)
        size = encoded_size(prefix)
        if size is None and not prefix.strip(b"\0") and not self._file.read().strip(b"\0"):
            return None  # the end, or zeros that a file system wrote in place of the last bytes
        if len(prefix) < PREFIX_BYTES:
            return None
        if size is not None and size > length:
            if _holds_record(self._file.read()):
                raise JournalError(
                    f"{self.path} is damaged at byte {start:,}: an incomplete record is followed by "
                    "more records; specify a new file"
                )
            return None
        try:
            return decode(
                prefix + self._file.read((size or PREFIX_BYTES) - PREFIX_BYTES), limit=None
            )
        except MessageError as error:
            if size == length:
                return None
            raise JournalError(
                f"{self.path} is damaged at byte {start:,}: {error}; specify a new file"
            ) from None

    def _is_torn_at_the_start(self) -> bool:
        """Return whether the file is empty or holds only a first record that a crash cut short."""
        self._file.seek(0)
        start = self._file.read(len(MARK))
        return MARK.startswith(start) or not (start + self._file.read()).strip(b"\0")

    def _lock(self) -> None:
        if fcntl is None:  # pragma: no cover
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise JournalError(
                f"{self.path} is in use by another run; wait for that run to end, or specify a new file"
            ) from None


def _holds_record(data: bytes) -> bool:
    """Return whether there is a whole record in ``data``, which begins within another record.

    An answer may contain the bytes with which a record begins, so only a record that can be decoded
    counts. Without one, nothing is lost if the rest of the file is asked again.
    """
    start = data.find(MARK)
    while start >= 0:
        size = encoded_size(data[start : start + PREFIX_BYTES])
        if size is not None and start + size <= len(data):
            with suppress(MessageError):
                decode(data[start : start + size], limit=None)
                return True
        start = data.find(MARK, start + 1)
    return False


def recorded_sites(path: str | os.PathLike[str] | None) -> list[str] | None:
    """Return the sites recorded in a journal, or None if there is no usable journal."""
    if path is None:
        return None
    refuse_special(path, JournalError)
    try:
        with Path(path).open("rb") as file:
            prefix = file.read(PREFIX_BYTES)
            size = encoded_size(prefix) or PREFIX_BYTES
            first = decode(prefix + file.read(size - PREFIX_BYTES), limit=None)
        return [str(name) for name in first.header["identity"]["sites"]]
    except (OSError, MessageError, LookupError, TypeError):
        return None  # opening the journal for the run reports what is wrong with it


def _open_or_create(path: Path) -> BinaryIO:
    """Open a file for reading and writing, creating an empty one if necessary.

    Nothing is written until the file is locked. Only the file's owner can read it, since it holds
    individual sites' answers.
    """
    refuse_special(path, JournalError)
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb+")
    except OSError as error:
        raise JournalError(
            f"cannot open journal {path}: {error.strerror}; specify a different file"
        ) from None


def _refuse_other(path: Path, recorded: Any, identity: Any, where: str = "") -> None:
    """Refuse a journal from a different run and name the first difference."""
    if recorded == identity:
        return
    if isinstance(recorded, dict) and isinstance(identity, dict):
        for key in sorted(recorded.keys() | identity.keys()):
            inner = f"{where}, {key}" if where else key
            _refuse_other(path, recorded.get(key), identity.get(key), inner)
    raise JournalError(
        f"{path} belongs to a different run ({where}: {recorded!r} in the journal, {identity!r} now); "
        "specify a new file"
    )
