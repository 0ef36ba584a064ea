"""Keep the site's own record of what it was asked and what it sent.

The coordinator also keeps a ledger, but the site cannot check it. The site writes this one itself, on
its own disk, before each answer leaves. Each question gets one line of JSON::

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
from fedpca.printable import MAX_REASON_CHARS, printable
from fedpca.protocol.message import Message, decode, encode
from fedpca.rows.in_memory import Rows
from fedpca.site.site import Site
from fedpca.site.time_limit import interrupted_after
from fedpca.storage import atomic


class AnswerLog:
    """A log that forwards questions to a site and records each one before its answer leaves.

    Parameters
    ----------
    site : Site
        The site that answers.
    path : path
        The site's ledger file; new lines are appended to it.
    tell : callable
        Called with a one-line description of each question.
    timeout : float, optional
        Seconds after which the work on a question is ended; see `fedpca.site.time_limit`.
    """

    def __init__(
        self,
        site: Site,
        path: Path,
        tell: Callable[[str], None],
        timeout: float | None = None,
    ) -> None:
        self._site, self._path, self._tell, self._timeout = site, path, tell, timeout

    def answer(self, request: bytes) -> bytes:
        """Return the encoded answer to an encoded question."""
        rows = self._site.rows
        try:
            asked = decode(request)
            with interrupted_after(self._timeout):
                answered = self._site.answer(asked)
        except MessageError as error:
            asked = Message({}, {}, len(request))
            answered = self._site.refusal({}, error)
        if self._site.rows is not rows:
            with suppress(
                InputError
            ):  # the next question that reads the rows will report this error
                self._tell(f"the files changed and were reopened: {size(self._site.rows)}")
        entry = _entry(asked, answered)
        try:
            _append(self._path, json.dumps(entry))
        except OSError as error:  # no answer may leave unrecorded
            self._tell(
                f"cannot write to {self._path}: {error.strerror}; no answers will leave until this is "
                "fixed"
            )
            answered = self._site.refusal(
                asked.header, SiteFailed("the site cannot write to its ledger")
            )
        else:
            self._tell(in_words(entry))
        return encode(answered)


def check_ledger(path: Path) -> None:
    """Refuse a ledger that cannot be written, since no answer could leave the site."""
    atomic.check_writable(path)
    try:
        path.open("ab").close()
    except OSError as error:
        raise atomic.unwritable(path, error) from None


def _append(path: Path, line: str) -> None:
    """Append a line to a file and flush it to disk, either completely or not at all."""
    with path.open("ab+", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        is_torn = file.read() not in (b"", b"\n")  # a power failure can leave an unterminated line
        data = b"\n" * is_torn + line.encode() + b"\n"
        try:
            while data:  # a nearly full disk may accept only some of the bytes
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(end)
            raise


def size(rows: Rows) -> str:
    """Return the number of rows and features in words."""
    return f"{rows.n_rows:,} rows with {rows.n_features} features"


def in_words(entry: dict[str, Any]) -> str:
    """Return a ledger entry as a sentence, in which whatever the coordinator sent is printable."""
    head = f"round {printable(entry['round'])}, {printable(entry['question'])}: "
    received = f"received {entry['bytes_in']:,} bytes{_fields(entry['came'])}; "
    if entry["refused"] is not None:
        why = printable(entry["refused"], MAX_REASON_CHARS)
        return f"{head}{received}not answered: {why}"
    fate = "which the coordinator will see"
    if entry["verb"] == "sum":
        fate = f"to be summed over {printable(entry['sites'])} sites"
    return f"{head}{received}sends {entry['bytes_out']:,} bytes{_fields(entry['left'])}, {fate}"


def _entry(asked: Message, answered: Message) -> dict[str, Any]:
    """Return the ledger entry for one question and its answer."""
    header = asked.header
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "run": _brief(header.get("run")),
        "round": _brief(header.get("round")),
        "question": _brief(header.get("question")),
        "verb": _brief(header.get("verb")),
        "sites": _brief(header.get("n_sites")),
        "came": {name: list(array.shape) for name, array in asked.arrays.items()},
        "bytes_in": asked.n_bytes,
        "left": {name: list(array.shape) for name, array in answered.arrays.items()},
        "bytes_out": answered.n_bytes,
        "refused": answered.header.get("text"),
    }


def _brief(value: Any) -> Any:
    """Return a value from a question's header; a long text must not fill the disk."""
    return value if value is None or isinstance(value, int) else printable(value)


def _fields(shapes: dict[str, list[int]]) -> str:
    """List a message's fields with their shapes."""
    if not shapes:
        return ""
    described = [f"{name} {' x '.join(map(str, shape))}".strip() for name, shape in shapes.items()]
    return f" ({printable(', '.join(described), MAX_REASON_CHARS)})"
