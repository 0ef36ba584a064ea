"""Chain the lines of a file, so that nobody can change, remove, or insert one unnoticed.

Each line is a JSON object. Its ``chain`` is the SHA-256 of its other contents as canonical JSON. The
other contents include the number of the ``entry`` and the chain of the ``previous`` entry, so each
chain value commits to all lines before it. The last chain value is the head of the file.

A power failure may tear a line. What is left of it stays where it is. The next line holds its digest
as ``unchained``. From then on, nobody can change it unnoticed, but nothing proves what the line was
before. A chain by itself cannot show whether the last lines of the file were removed. Only a copy of
the head that is kept elsewhere can show that.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fedpca.facts import COUNT, YES, Fact, Section, Sections, cautions
from fedpca.protocol.proof import NO_HEAD, digest
from fedpca.site.store import Kind, is_hash
from fedpca.storage import atomic
from fedpca.storage.regular import refuse_special

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock; users must keep processes apart
    fcntl = None  # type: ignore[assignment]

Entry = dict[str, Any]
TAIL_BYTES = 1 << 16  # usually longer than a line

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_START = b'{"entry": '  # of each line
_TORN = "torn, as by a power failure"


@dataclass
class ChainCheck:
    """What was found when the lines of a file were checked.

    ``problem`` names the first line that was changed, removed, or inserted, and is empty if the chain
    is whole. If ``is_torn`` is true, the problem is a last line that was not written completely.
    ``notes`` names lines that are not verified. ``head`` is the last verified chain value.
    """

    n_entries: int = 0
    head: str = NO_HEAD
    runs: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    problem: str = ""
    is_torn: bool = False

    def facts(self) -> Sections:
        """Return how long the chain is, and whether it is whole, as sections of facts."""
        return (
            cautions(self.notes),
            Section(
                "",
                (
                    Fact("entries", self.n_entries, COUNT),
                    Fact("runs", len(self.runs), COUNT),
                    Fact("whole", not self.problem, YES, "chain is whole"),
                    Fact("problem", self.problem),
                    Fact("head", self.head),
                ),
            ),
        )


@contextmanager
def opened(path: Path, kind: Kind) -> Iterator[IO[bytes]]:
    """Open a file to `add` lines to it; other processes that add lines wait for their turn."""
    with kind.writing(path):
        refuse_special(path)  # which could be opened, but keeps nothing
        with open(path, "ab+", buffering=0, opener=_open_private) as file:
            if fcntl is not None:
                with suppress(OSError):  # some network drives have no locks
                    fcntl.flock(file, fcntl.LOCK_EX)
            if not file.seek(0, os.SEEK_END):
                atomic.flush_folder(path.parent)  # a power failure must not lose the new file
            yield file


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def add(file: IO[bytes], contents: Mapping[str, Any], kind: Kind) -> Entry:
    """Add an entry to an open file, flush the file, and return the entry as it was written.

    The line is written completely or not at all.
    """
    end = file.seek(0, os.SEEK_END)
    number, head, loose = _end_of_chain(file, end, kind)
    unchained = {"unchained": digest(b"\n".join(loose))} if loose else {}
    entry = {"entry": number + 1, **contents, **unchained, "previous": head}
    entry["chain"] = chain_of(entry)
    # a power failure can leave part of a line
    is_torn = _read(file, max(0, end - 1), end) not in (b"", b"\n")
    data = b"\n" * is_torn + json.dumps(entry).encode() + b"\n"
    try:
        while data:  # a nearly full disk may accept only some of the bytes
            data = data[file.write(data) :]
        os.fsync(file.fileno())
    except OSError:
        file.truncate(end)
        raise
    return entry


def chain_of(entry: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an entry's contents, which include the chain of the previous entry."""
    contents = {name: value for name, value in entry.items() if name != "chain"}
    return digest(_CANONICAL.encode(contents).encode())


def verified(path: Path, check: ChainCheck, kind: Kind) -> Iterator[Entry]:
    """Yield the entries of a file as long as the chain is whole; record the result in ``check``."""
    loose: list[bytes] = []  # torn lines after the last chained line
    last = 0  # the line of the last entry
    with kind.reading(path), path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            line = raw.removesuffix(b"\n")
            entry = _chained(line, kind)
            if entry is None:
                loose.append(line)
                continue
            check.problem = _fault(entry, line, number, check, loose, last)
            if check.problem:
                return
            if loose:
                lines = (
                    f"lines {last + 1} to {number - 1} are" if loose[1:] else f"line {last + 1} is"
                )
                check.notes.append(
                    f"{lines} {_TORN}: not verified, but unchanged since line {number} was written"
                )
            check.n_entries, check.head = entry["entry"], entry["chain"]
            last, loose = number, []
            if isinstance(entry.get("run"), str):
                check.runs.add(entry["run"].partition(".")[0])
            yield entry
    if loose:
        check.problem = _no_chain(last + 1)
        if len(loose) == 1 and not _is_json(loose[0]):
            check.problem = (
                f"line {last + 1} is {_TORN}; it is not verified, but once the next answer is "
                "recorded, nobody can change it unnoticed"
            )
        check.is_torn = not raw.endswith(b"\n") and all(map(_is_cut, loose))


def _fault(
    entry: Entry, line: bytes, number: int, check: ChainCheck, loose: list[bytes], last: int
) -> str:
    """Return what is wrong with a chained line, or an empty string."""
    if chain_of(entry) != entry["chain"] or json.dumps(entry).encode() != line:
        return f"line {number} was changed"
    follows = entry["previous"] == check.head and entry["entry"] == check.n_entries + 1
    if not follows and loose:
        return _no_chain(last + 1)
    if not follows and entry["entry"] > check.n_entries + 1:
        n_gone = entry["entry"] - check.n_entries - 1
        return f"{n_gone} entries before line {number} were removed"
    if not follows and entry["entry"] <= check.n_entries:
        return f"line {number} does not follow from line {last}; one of them was inserted"
    if not follows:
        return f"line {last} was replaced: line {number} follows from a different line"
    sealed = entry.get("unchained")
    if sealed is not None and not loose:
        return f"the lines without a chain before line {number} were removed"
    if loose and digest(b"\n".join(loose)) != sealed:
        return _no_chain(last + 1)
    # a whole line that has no chain was not torn, even if a chained line follows
    whole = [at for at, each in enumerate(loose, last + 1) if _is_json(each)]
    return _no_chain(whole[0]) if whole else ""


def _no_chain(number: int) -> str:
    return f"line {number} was changed or inserted; it has no chain"


def _end_of_chain(file: IO[bytes], end: int, kind: Kind) -> tuple[int, str, list[bytes]]:
    """Return the last entry's number and chain, and the lines after it."""
    lines: list[bytes] = []
    # the last entry may be longer than the tail, or torn lines may follow it
    for start in (max(0, end - TAIL_BYTES), 0) if end else ():
        lines = _read(file, start, end).removesuffix(b"\n").split(b"\n")
        for n_loose, line in enumerate(reversed(lines)):
            last = _chained(line, kind)
            if last is not None:
                return last["entry"], last["chain"], lines[len(lines) - n_loose :]
    return 0, NO_HEAD, lines


def _read(file: IO[bytes], start: int, end: int) -> bytes:
    """Read part of an unbuffered file; a single read may return fewer bytes than were asked for."""
    file.seek(start)
    data = b""
    while piece := file.read(end - start - len(data)):
        data += piece
    return data


def _chained(line: bytes, kind: Kind) -> Entry | None:
    """Return the entry in a line, or None if the line has no place in a chain."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or type(entry.get("entry")) is not int:
        return None
    is_chained = all(is_hash(entry.get(name)) for name in ("chain", "previous"))
    return entry if is_chained and kind.fits(entry) else None


def _is_cut(line: bytes) -> bool:
    """Return whether a line is the beginning of an entry and lacks its end, where the chain is."""
    begins = line[: len(_START)] == _START[: len(line)]
    return begins and re.search(rb'"chain": "[0-9a-f]{64}', line) is None


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
