"""Chain the lines of a file, so that nobody can change, remove, or insert one unnoticed.

Each line is a JSON object. Its ``chain`` is the SHA-256 of its other contents as canonical JSON. The
other contents include the number of the ``entry`` and the chain of the ``previous`` entry, so each
chain value commits to all lines before it. The last chain value is the head of the file.

Some lines may have no chain, such as a line torn by a power failure. They stay where they are. The next
chained line holds their digest as ``unchained``. From then on, nobody can change these lines unnoticed,
but nothing proves what they were before. A chain by itself cannot show whether the last lines of the
file were removed. Only a copy of the head that is kept elsewhere can show that.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fedpca.facts import COUNT, YES, Fact, Section, Sections, cautions
from fedpca.protocol.proof import NO_HEAD, digest
from fedpca.storage.regular import refuse_special

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock; users must keep processes apart
    fcntl = None  # type: ignore[assignment]

Entry = dict[str, Any]
TAIL_BYTES = 1 << 16  # usually longer than a line

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_HEX = re.compile(r"[0-9a-f]{64}")
_START = b'{"entry": '  # of each line


@dataclass(frozen=True)
class Kind:
    """A kind of file with chained lines.

    ``has_fields`` returns whether a line has all fields that an entry of this kind must have. If
    ``has_older_lines`` is true, lines that an older fedpca wrote without a chain may come first.
    """

    has_fields: Callable[[Entry], bool]
    has_older_lines: bool = False


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
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to `add` lines to it; other processes that add lines wait for their turn."""
    with path.open("ab+", buffering=0) as file:
        if fcntl is not None:
            with suppress(OSError):  # some network drives have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def add(file: IO[bytes], contents: Mapping[str, Any], kind: Kind) -> Entry:
    """Add an entry to an open file, flush the file, and return the entry as it was written.

    The line is written completely or not at all.
    """
    end = file.seek(0, os.SEEK_END)
    number, head, loose, is_torn = _end_of_chain(file, end, kind)
    unchained = {} if loose is None else {"unchained": digest(loose)}
    entry = {"entry": number + 1, **contents, **unchained, "previous": head}
    entry["chain"] = chain_of(entry)
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
    loose: list[bytes] = []  # lines without a chain after the last chained line
    replaced = 0  # the line of the last entry
    refuse_special(path)
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            line = raw.removesuffix(b"\n")
            entry = _chained(line, kind)
            if entry is None:
                loose.append(line)
                continue
            check.problem = _fault(entry, line, number, check, loose, replaced, kind)
            if check.problem:
                return
            check.notes += _about_loose(loose, number)
            check.n_entries, check.head, replaced, loose = (
                entry["entry"],
                entry["chain"],
                number,
                [],
            )
            if isinstance(entry.get("run"), str):
                check.runs.add(entry["run"].partition(".")[0])
            yield entry
    if loose:
        check.problem = _unsealed(loose, replaced)
        check.is_torn = not raw.endswith(b"\n") and all(map(_is_cut, loose))


def _fault(
    entry: Entry,
    line: bytes,
    number: int,
    check: ChainCheck,
    loose: list[bytes],
    last: int,
    kind: Kind,
) -> str:
    """Return what is wrong with a chained line, or an empty string."""
    if chain_of(entry) != entry["chain"] or json.dumps(entry).encode() != line:
        return f"line {number} was changed"
    follows = entry["previous"] == check.head and entry["entry"] == check.n_entries + 1
    if not follows and loose:
        return f"line {number - len(loose)} was changed or inserted; it has no chain"
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
        return f"line {number - len(loose)} was changed or inserted; it has no chain"
    must_chain = last or not kind.has_older_lines
    lines = [
        i for i, each in enumerate(loose, number - len(loose)) if must_chain and _is_json(each)
    ]
    if lines:
        return (
            f"line {lines[0]} has no chain; it was changed or inserted, or an older fedpca wrote it"
        )
    return ""


def _about_loose(loose: list[bytes], number: int) -> list[str]:
    """Return a note about the lines without a chain that come before this line, if there are any."""
    if not loose:
        return []
    kind = "from before the chain" if any(map(_is_json, loose)) else "torn, as by a power failure"
    first, last = number - len(loose), number - 1
    lines = f"line {last} is" if first == last else f"lines {first} to {last} are"
    return [f"{lines} {kind}: not verified, but unchanged since line {number} was written"]


def _unsealed(loose: list[bytes], last: int) -> str:
    """Return what is wrong with the lines at the end of a file that have no chain."""
    if not last and any(map(_is_json, loose)):
        return "line 1 has no chain, and no later line has one: an older fedpca wrote this ledger"
    if len(loose) == 1 and not _is_json(loose[0]):
        return (
            f"line {last + 1} is torn, as by a power failure; it is not verified, but once the "
            "next answer is recorded, nobody can change it unnoticed"
        )
    return f"line {last + 1} has no chain; it was changed or inserted, or an older fedpca wrote it"


def _end_of_chain(file: IO[bytes], end: int, kind: Kind) -> tuple[int, str, bytes | None, bool]:
    """Return the last entry's number and chain, the lines after it, and whether the file is torn."""
    tail = _read(file, max(0, end - TAIL_BYTES), end)
    lines = tail.removesuffix(b"\n").split(b"\n")
    is_torn = end > 0 and not tail.endswith(b"\n")  # a power failure can leave part of a line
    last = _chained(lines[-1], kind)
    if last is not None:
        return last["entry"], last["chain"], None, is_torn
    # the last line is longer than the tail, or it has no chain
    lines = _read(file, 0, end).removesuffix(b"\n").split(b"\n") if end else []
    for i in range(len(lines), 0, -1):
        last = _chained(lines[i - 1], kind)
        if last is not None:
            loose = b"\n".join(lines[i:]) if i < len(lines) else None
            return last["entry"], last["chain"], loose, is_torn
    return 0, NO_HEAD, b"\n".join(lines) if lines else None, is_torn


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
    return entry if is_chained and kind.has_fields(entry) else None


def is_hash(value: object) -> bool:
    """Return whether a value is a SHA-256 hash as text."""
    return isinstance(value, str) and _HEX.fullmatch(value) is not None


def _is_cut(line: bytes) -> bool:
    """Return whether a line is the beginning of an entry and lacks its end, where the chain is."""
    begins = line[: len(_START)] == _START[: len(line)]
    return begins and re.search(rb'"chain": "[0-9a-f]{64}', line) is None


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
