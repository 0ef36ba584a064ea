"""What a site was asked and what left it, in words for its log and line by line on its own disk.

The coordinator's ledger is the coordinator's word. This one is written at the site, before an answer
leaves, a line of JSON for each question::

    {"time": "2026-11-15T12:00:00+00:00", "run": "1f..0", "round": 3, "question": "covariance_product",
     "verb": "sum", "sites": 3, "came": {"Z": [30, 5]}, "bytes_in": 1408,
     "left": {"Y": [30, 5]}, "bytes_out": 1400, "refused": null}
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedpca.errors import InputError, MessageError, SiteFailed
from fedpca.message import Message, decode, encode
from fedpca.rows import Rows
from fedpca.site import Site


class SiteLedger:
    """Answers questions at a site, and writes down each before its answer leaves.

    Parameters
    ----------
    site : Site
        Whose rows they are asked of.
    path : path
        The ledger; new lines are added to it.
    tell : callable
        Given one line of words for each question.
    """

    def __init__(self, site: Site, path: Path, tell: Callable[[str], None]) -> None:
        self._site, self._path, self._tell = site, path, tell

    def answer(self, request: bytes) -> bytes:
        """The encoded answer to an encoded question."""
        rows = self._site.rows
        try:
            asked = decode(request)
            answered = self._site.answer(asked)
        except MessageError as error:
            asked = Message({}, {}, len(request))
            answered = self._site.refusal({}, error)
        if self._site.rows is not rows:
            with suppress(InputError):  # of which the question that reads them tells
                self._tell(f"the files changed and were opened anew: {size(self._site.rows)}")
        entry = _entry(asked, answered)
        try:
            _append(self._path, json.dumps(entry))
        except OSError as error:  # what is not written down does not leave
            self._tell(f"{self._path} cannot be written: {error.strerror}; nothing is answered")
            answered = self._site.refusal(
                asked.header, SiteFailed("the site's ledger cannot be written")
            )
        else:
            self._tell(in_words(entry))
        return encode(answered)


def _append(path: Path, line: str) -> None:
    """Put a line at the end of a file and on the disk, whole or not at all."""
    with path.open("ab+", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        is_torn = file.read() not in (b"", b"\n")  # by a power cut: its last line has no end
        data = b"\n" * is_torn + line.encode() + b"\n"
        try:
            while data:  # a disk that is nearly full takes a part
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(end)
            raise


def size(rows: Rows) -> str:
    """How many rows there are, and of how many features."""
    return f"{rows.n_rows:,} rows of {rows.n_features} features"


def in_words(entry: dict[str, Any]) -> str:
    """A line of the ledger as a sentence."""
    head = f"round {entry['round']}, {entry['question']}: "
    came = f"{entry['bytes_in']:,} bytes came{_fields(entry['came'])}; "
    if entry["refused"] is not None:
        return f"{head}{came}not answered: {entry['refused']}"
    fate = "to be seen by the coordinator"
    if entry["verb"] == "sum":
        fate = f"to be summed over {entry['sites']} sites"
    return f"{head}{came}{entry['bytes_out']:,} bytes leave{_fields(entry['left'])}, {fate}"


def _entry(asked: Message, answered: Message) -> dict[str, Any]:
    header = asked.header
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "run": header.get("run"),
        "round": header.get("round"),
        "question": header.get("question"),
        "verb": header.get("verb"),
        "sites": header.get("n_sites"),
        "came": {name: list(array.shape) for name, array in asked.arrays.items()},
        "bytes_in": asked.n_bytes,
        "left": {name: list(array.shape) for name, array in answered.arrays.items()},
        "bytes_out": answered.n_bytes,
        "refused": answered.header.get("text"),
    }


def _fields(shapes: dict[str, list[int]]) -> str:
    if not shapes:
        return ""
    parts = [f"{name} {' x '.join(map(str, shape))}".strip() for name, shape in shapes.items()]
    return f" ({', '.join(parts)})"
