"""Keep the site's own record of what it was asked and what it sent.

The coordinator also keeps a ledger, but the site cannot check it. So the site keeps its own ledger on
its own disk, and writes to it before each answer leaves. Each question gets one line of JSON, and the
lines are chained (`fedpca.site.chained_lines`)::

    {"entry": 3, "time": "2026-11-15T12:00:00+00:00", "run": "1f..0", "round": 3,
     "question": "local_power_steps", "verb": "sum", "sites": 3,
     "came": {"Z": [30, 5], "steps": []}, "values": {"steps": 4}, "bytes_in": 1408,
     "left": {"Y": [30, 5]}, "bytes_out": 1400, "refused": null,
     "digest_in": "5e..1", "digest_out": "a0..7", "salt": "77..c", "previous": "c4..9",
     "chain": "0b..2"}

``values`` holds the parameters that are single numbers. In a run with secure sums, ``mask`` says how
the answer is masked: ``{"Y": [64, 40]}`` means a ring of 64 bits and numbers multiplied by 2^40, and
"bound" means that only the size of the numbers left the site, masked as well. ``digest_in`` is the
SHA-256 of the question's bytes, and ``digest_out`` that of the answer's. The coordinator keeps the head
of each site's ledger in the run record. Comparing that head with the ledger shows whether the last
lines were removed.
"""

from __future__ import annotations

import datetime
import math
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpca.arrays import Array
from fedpca.errors import FileError, InputError, MessageError, SiteFailed
from fedpca.protocol.message import QUESTION, Message, decode, encode
from fedpca.protocol.printable import MAX_REASON_CHARS, printable
from fedpca.protocol.proof import NO_HEAD, SALT_BYTES, commitment, digest, statement
from fedpca.rows.in_memory import Rows
from fedpca.site.chained_lines import ChainCheck, add, opened, verified
from fedpca.site.site import Site
from fedpca.site.store import LEDGER
from fedpca.site.time_limit import interrupted_after
from fedpca.storage import atomic

MAX_MASKED_FIELDS = 100  # more than any question has; the ledger lists only this many


@dataclass(frozen=True)
class Recorded:
    """An encoded answer, and what proves the answer's place in the ledger.

    ``head`` is the chain value of the answer's line. It is `NO_HEAD` if the line could not be written.
    """

    data: bytes
    digest_in: str
    head: str
    salt: str

    def statement(self) -> bytes:
        """Return the bytes for the site to sign."""
        return statement(self.digest_in, commitment(self.salt, digest(self.data)), self.head)


class AnswerLog:
    """A log that forwards questions to a site and records each question before its answer leaves.

    Parameters
    ----------
    site : Site
        The site that answers.
    path : path
        The site's ledger file; new lines are appended to it.
    tell : callable
        Called with a one-line description of each question.
    timeout : float, optional
        How many seconds the work on a question may take; see `fedpca.site.time_limit`.
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
        return self.reply(request).data

    def reply(self, request: bytes) -> Recorded:
        """Return the encoded answer to an encoded question, with the answer's place in the ledger."""
        rows = self._site.rows
        try:
            asked = decode(request)
            with interrupted_after(self._timeout):
                answered = self._site.answer(asked)
        except MessageError as error:
            asked = Message({}, {}, len(request))
            answered = self._site.refusal({}, error)
        if self._site.rows is not rows:
            # the next question that reads the rows will report this error
            with suppress(InputError):
                self._tell(f"the files changed and were reopened: {size(self._site.rows)}")
        data, digest_in = encode(answered), digest(request)
        salt = secrets.token_hex(SALT_BYTES)
        entry = {
            **_entry(asked, answered),
            "digest_in": digest_in,
            "digest_out": digest(data),
            "salt": salt,
        }
        try:
            with opened(self._path, LEDGER) as file:
                entry = add(file, entry, LEDGER)
        except SiteFailed as error:  # no answer may leave unrecorded
            self._tell(f"{error.__cause__}; no answers will leave until this is fixed")
            refusal = self._site.refusal(asked.header, error)
            return Recorded(encode(refusal), digest_in, NO_HEAD, salt)
        self._tell(in_words(entry))
        return Recorded(data, digest_in, entry["chain"], salt)


def check_ledger(path: Path) -> None:
    """Refuse a ledger that cannot be written, because no answer may leave the site without it."""
    atomic.check_writable(path)
    try:
        with opened(path, LEDGER):
            pass
    except SiteFailed as error:
        raise FileError(str(error.__cause__)) from None


def check_chain(path: Path) -> ChainCheck:
    """Check the lines of a ledger up to the first that was changed, removed, or inserted."""
    check = ChainCheck()
    try:
        for _ in verified(path, check, LEDGER):
            pass
    except FileNotFoundError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from None
    return check


def check_proof(path: Path, proof: Mapping[str, str]) -> tuple[int, str]:
    """Return the number of the entry that a proof is for, and what is wrong with the entry.

    ``proof`` is a site's entry in `RunRecord.proofs`. The number is 0 if the ledger has no such entry.
    The text is empty if nothing is wrong.
    """
    for entry in verified(path, ChainCheck(), LEDGER):
        if entry["chain"] != proof["head"]:
            continue
        number: int = entry["entry"]
        if entry["digest_in"] != proof["digest_in"]:
            return number, f"entry {number} records a different question than the run record"
        if commitment(entry["salt"], entry["digest_out"]) != proof["commitment"]:
            return number, f"entry {number} records a different answer than the run record"
        return number, ""
    return 0, (
        f"no verified entry has the head {proof['head']} that is in the run record: the last lines "
        "were removed, the chain was rewritten, or this is the ledger of a different site"
    )


def size(rows: Rows) -> str:
    """Return the number of rows and features in words."""
    return f"{rows.n_rows:,} rows with {rows.n_features} features"


def in_words(entry: dict[str, Any]) -> str:
    """Return a ledger entry as a sentence; text from the coordinator is made safe to print."""
    head = f"round {printable(entry['round'])}, {printable(entry['question'])}: "
    received = f"received {entry['bytes_in']:,} bytes{_fields(entry['came'])}; "
    if entry["refused"] is not None:
        why = printable(entry["refused"], MAX_REASON_CHARS)
        return f"{head}{received}not answered: {why}"
    fate = "which the coordinator will see"
    if entry["verb"] == "sum":
        hidden = "masked, " if entry.get("mask") else ""
        fate = f"{hidden}to be summed over {printable(entry['sites'])} sites"
    return f"{head}{received}sends {entry['bytes_out']:,} bytes{_fields(entry['left'])}, {fate}"


def _entry(asked: Message, answered: Message) -> dict[str, Any]:
    """Return the ledger entry for one question and its answer."""
    header = asked.header
    mask = {"mask": _mask(header["mask"])} if "mask" in header else {}
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **{name: _brief(header.get(name)) for name in ("run", "round", "question", "verb")},
        "sites": _brief(header.get("n_sites")),
        **mask,
        "came": {name: list(array.shape) for name, array in asked.arrays.items()},
        "values": {name: _plain(v) for name, v in asked.arrays.items() if v.ndim == 0},
        "bytes_in": asked.n_bytes,
        "left": {name: list(array.shape) for name, array in answered.arrays.items()},
        "bytes_out": answered.n_bytes,
        "refused": answered.header.get("text"),
    }


def _mask(mask: Any) -> Any:
    """Return how a question wants its answer masked; cut any unexpected text short."""
    if not isinstance(mask, dict) or not QUESTION["mask"].is_valid(mask):
        return _brief(mask)
    return {printable(name): ring for name, ring in list(mask.items())[:MAX_MASKED_FIELDS]}


def _plain(scalar: Array) -> Any:
    """Return a number for JSON, or text if it is not finite, since JSON has no such numbers."""
    value = scalar.item()
    return value if math.isfinite(value) else str(value)


def _brief(value: Any) -> Any:
    """Return a value from a question's header; cut text short, so that it cannot fill the disk."""
    return value if value is None or isinstance(value, int) else printable(value)


def _fields(shapes: dict[str, list[int]]) -> str:
    """List a message's fields with their shapes."""
    if not shapes:
        return ""
    described = [f"{name} {' x '.join(map(str, shape))}".strip() for name, shape in shapes.items()]
    return f" ({printable(', '.join(described), MAX_REASON_CHARS)})"
