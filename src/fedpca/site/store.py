"""Keep the files of a site: one table of what they hold, and one way to read and to write them.

A file is written whole, or lines are appended to it (`fedpca.site.chained_lines`). A file that is
written whole is an encoded message: a header, named arrays, and a checksum. Whatever is written is on
disk before the answer that depends on it leaves. If it cannot be written, the answer does not leave.

Each file has a row in `FILES`: the words for errors, the checks of what is read, and the way out. So
each damaged file is refused in the same way, and nothing is taken from it. A person at the site must
choose the way out, because the file may have been damaged to make the site forget.
"""

from __future__ import annotations

import datetime
import logging
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fedpca.arrays import Arrays
from fedpca.errors import FileError, InputError, MessageError, SiteFailed
from fedpca.protocol.message import Message, compose, decode, encode
from fedpca.storage import atomic
from fedpca.storage.regular import refuse_special

log = logging.getLogger("fedpca.site")

T = TypeVar("T")
Check = Callable[[Any], bool]

# what reading a file with arbitrary contents can raise; an InputError is about the site's rows instead
_UNREADABLE = (MessageError, LookupError, ValueError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of file that a site keeps.

    Parameters
    ----------
    pattern : str
        The file's name, with ``*`` for the site's name.
    called : str
        What the file is called in errors, after "the site's".
    way_out : str
        What must happen to a damaged file.
    fields : dict
        A check of each value that the header of a file, or each of its lines, must have.
    in_backup : bool
        Whether a site that loses the file loses more than the current run.
    """

    pattern: str
    called: str
    way_out: str = ""
    fields: Mapping[str, Check] = field(default_factory=dict)
    in_backup: bool = False

    def path(self, folder: Path, site: str) -> Path:
        """Return the path of the file of a site that keeps its files in ``folder``."""
        return folder / self.pattern.replace("*", file_stem(site))

    def fits(self, values: Mapping[str, Any]) -> bool:
        """Return whether a header or a line has all values that this kind must have."""
        return all(name in values and check(values[name]) for name, check in self.fields.items())

    def damaged(self, path: Path, why: object) -> InputError:
        """Return the error to raise if a file is damaged."""
        return InputError(
            f"{path.name}, the site's {self.called}, is damaged: {why}; {self.way_out}"
        )

    @property
    def unsaved(self) -> str:
        """Return what a coordinator is told if a file cannot be written."""
        return f"the site cannot save its {self.called}; free up disk space at the site"

    @contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """Refuse a file that cannot be read; a file that is not there raises FileNotFoundError."""
        try:
            refuse_special(path)
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise InputError(
                f"{path.name}, the site's {self.called}, cannot be read: {error.strerror}; the site "
                "must fix this"
            ) from None

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Create the folder of a file, and keep the answer back if the file cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            yield
        except (FileError, OSError) as error:
            log.error("%s cannot be written: %s", path, error)  # only the site may learn the path
            raise SiteFailed(self.unsaved) from error

    def read(self, path: Path, build: Callable[[Message], T]) -> T | None:
        """Return what ``build`` makes of a file that was written whole, or None without a file."""
        try:
            with self.reading(path):
                message = decode(path.read_bytes(), limit=None)
                if not self.fits(message.header):
                    raise MessageError("it is a different kind of file")
                return build(message)
        except FileNotFoundError:
            return None
        except InputError:
            raise
        except _UNREADABLE as error:
            raise self.damaged(path, error) from None

    def write(self, path: Path, message: Message) -> None:
        """Replace a file, or leave the old one as it was."""
        with self.writing(path), atomic.writing(path, private=True) as temporary:
            temporary.write_bytes(encode(message))


class Kept:
    """A file that is written whole, or what it would hold, in memory, if the site has no folder.

    ``where`` returns the path, or None. An engine may give a site a folder later.
    """

    def __init__(self, kind: Kind, where: Callable[[], Path | None]) -> None:
        self._kind, self._where = kind, where
        self._held: Message | None = None

    @property
    def path(self) -> Path | None:
        """Return the path of the file, if there is one."""
        return self._where()

    def read(self, build: Callable[[Message], T]) -> T | None:
        """Return what ``build`` makes of the contents, or None if nothing was written."""
        path = self.path
        if path is not None:
            return self._kind.read(path, build)
        return None if self._held is None else build(self._held)

    def write(self, header: Mapping[str, Any], arrays: Arrays) -> None:
        """Replace the contents."""
        message, path = compose(header, arrays, limit=None), self.path
        if path is None:
            self._held = message
        else:
            self._kind.write(path, message)


def file_stem(site: str) -> str:
    """Return the beginning of the names of a site's files."""
    # two site names may become the same text here; the checksum tells them apart
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", site)
    return f"{safe}-{zlib.crc32(site.encode()):08x}"


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole(value: Any) -> bool:
    return type(value) is int


def is_hash(value: Any) -> bool:
    """Return whether a value is a SHA-256 hash as text."""
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def _is_salt(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32}", value) is not None


def _is_amount(value: Any) -> bool:
    """Return whether a value is a number, at least 0; infinity is text, because JSON has none."""
    is_number = type(value) in (int, float)
    return value == "inf" or (is_number and 0 <= value <= sys.float_info.max)


def _is_time(value: Any) -> bool:
    try:
        return datetime.datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


def _are_counts(value: Any) -> bool:
    """Return whether a value has the runs and the rounds of some minutes."""
    return isinstance(value, dict) and all(
        minute.isdecimal() and len(counts) == 2 and all(map(_is_whole, counts))
        for minute, counts in value.items()
    )


LEDGER = Kind(
    "ledger.jsonl",
    "ledger",
    fields={"digest_in": is_hash, "digest_out": is_hash, "salt": _is_salt},
    in_backup=True,
)
MEMORY = Kind(
    "*.memory",
    "memory",
    "start over with a new journal",
    {"run": _is_text, "round": _is_whole, "rows": _is_text},
)
ROWS = Kind(
    "*.rows",
    "record of its rows",
    "the site must restore the file, or delete it if neither changes of its rows nor what it has shown "
    "of them is secret",
    in_backup=True,
)
BUDGET = Kind(
    "*.budget",
    "count of runs and rounds",
    "the site must restore the file, or delete it to start counting from zero",
    {"latest": _is_whole, "run": _is_text, "counted": _are_counts},
    in_backup=True,
)
PRIVACY = Kind(
    "*.privacy",
    "privacy budget",
    "the site must restore the file, or move it away to start a new budget that does not count earlier "
    "answers",
    {
        **dict.fromkeys(("run", "session", "question", "purpose"), _is_text),
        **dict.fromkeys(("epsilon", "delta", "mu2", "total"), _is_amount),
        "time": _is_time,
        "round": _is_whole,
    },
    in_backup=True,
)
REQUESTS = Kind(
    "*.requests",
    "request for approval",
    "move the file away, so that the coordinator can ask again",
    {
        **dict.fromkeys(("run", "plan", "signer", "decision", "decided", "reason"), _is_text),
        **dict.fromkeys(("since", "until"), _is_time),
        "days": _is_whole,
    },
)
PERSONALIZED = Kind("*.fedpca", "model")
OUTLIERS = Kind("*.outliers.parquet", "list of outliers")
# all kinds above, so that none is forgotten
FILES = tuple(each for each in list(vars().values()) if isinstance(each, Kind))
