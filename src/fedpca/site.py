"""A site: rows, memory and policy, and all that happens there when a question arrives.

A request is decoded, checked against the question's declaration, held against the policy, answered
next to the rows, checked again and encoded. Whatever goes wrong becomes an encoded error that names
the problem and never a value of a row.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from fedpca import atomic
from fedpca.errors import (
    REPORTED_BY_SITES,
    FedpcaError,
    InputError,
    MessageError,
    SiteFailed,
)
from fedpca.files import file_states, refuse_gone, state_of
from fedpca.framed import MEMORY_LIMIT, FramedRows
from fedpca.message import Array, Header, Message, compose, decode, encode
from fedpca.policy import Policy
from fedpca.question import find_question
from fedpca.rows import checksum, open_rows

log = logging.getLogger("fedpca.site")

_GONE = "if this resumes a run, the site's memory is gone: start it with a new journal"


class Site:
    """One holder of rows, with a stable name of its own.

    Parameters
    ----------
    rows : array, sparse matrix, data frame, table, path, or list of paths
        The private rows, see `fedpca.rows.open_rows`.
    name : str
        How the site is known to the coordinator.
    policy : Policy
        What it lets itself be asked.
    store : path, optional
        A folder of the site's own in which its memory outlives the process.
    memory_limit : int
        Bytes that it may spend on a cached A'A. Beside it a site holds one block of rows (16 MiB), its
        scores, and while A'A is formed a few matrices of that size.
    """

    def __init__(
        self,
        rows: Any,
        *,
        name: str,
        policy: Policy | None = None,
        store: str | os.PathLike[str] | None = None,
        memory_limit: int = MEMORY_LIMIT,
    ) -> None:
        self._source = rows
        with _named(name):
            self._files = file_states(rows)  # before they are opened: a change meanwhile is noticed
            self.rows = open_rows(rows)
        self.name = name
        self.policy = policy or Policy()
        self.store = None if store is None else Path(store)
        self.has_own_store = store is not None  # and not one that an engine lends it
        self.memory_limit = memory_limit
        self.memory: dict[str, Array] = _read_only({})
        self._run: str | None = None
        self._round = 0  # the last one answered
        self._memory_before = self.memory  # that round
        self._left: set[str] = set()  # runs that are over, whose late questions must not count
        self._answered: tuple[int, Message] | None = None  # round and reply
        self._framed: FramedRows | None = None
        self._frame: dict[str, Array] = {}
        self._lock = threading.Lock()

    @property
    def fingerprint(self) -> str:
        """By which the rows, as they are now, are known again when a run is resumed."""
        return self._known_by(file_states(self._source))

    def _known_by(self, files: Mapping[Path, str]) -> str:
        return "; ".join(f"{file.name} {state}" for file, state in files.items()) or self._checksum

    @cached_property
    def _checksum(self) -> str:
        return checksum(self.rows)

    def answer_bytes(self, request: bytes) -> bytes:
        """The encoded answer to an encoded question: what an engine between processes calls."""
        try:
            message = decode(request)
        except MessageError as error:
            return encode(self.refusal({}, error))
        return encode(self.answer(message))

    def answer(self, request: Message, *, keep: bool = True) -> Message:
        """The answer, or an error as an answer; a round asked again gets the same one again.

        Where answers are hardly ever lost on their way, an engine may spare the site from keeping
        them; one that is asked for again is then worked out again.
        """
        with self._lock:
            try:
                return self._answer(request, keep)
            except FedpcaError as error:
                return self.refusal(request.header, error)
            except Exception as error:  # the text of a foreign exception may quote a value
                log.exception("site %s could not answer", self.name)
                text = f"{type(error).__name__}; the site's own log has the details"
                return self.refusal(request.header, SiteFailed(text))

    def refusal(self, asked: Header, error: FedpcaError) -> Message:
        """An answer that holds nothing but what went wrong."""
        # by the nearest class that a site may report
        kind = next(k for k in type(error).__mro__ if k.__name__ in REPORTED_BY_SITES)
        return self._reply(asked, {"error": kind.__name__, "text": str(error)}, {})

    @property
    def framed(self) -> FramedRows:
        """The rows about the run's mean, in its scale and order of features."""
        self.remembered("mean", "scale")
        keys = ("mean", "scale", "order", "sums", "n_products")
        frame = {key: self.memory[key] for key in keys if key in self.memory}
        is_same = frame.keys() == self._frame.keys() and all(
            frame[key] is self._frame[key] for key in frame
        )
        if self._framed is None or not is_same:
            self._framed = FramedRows(self.rows, memory_limit=self.memory_limit, **frame)
            self._frame = frame
        return self._framed

    def remembered(self, *names: str) -> tuple[Array, ...]:
        """What earlier questions of the run left in memory, or an error where it is not there."""
        missing = [name for name in names if name not in self.memory]
        if missing:
            raise MessageError(f"asked before the {' and '.join(missing)} that it needs; {_GONE}")
        return tuple(self.memory[name] for name in names)

    def _answer(self, message: Message, keep: bool) -> Message:
        header = message.header
        if header["run"] != self._run:
            self._enter(header["run"], header["memory"])
        if self._answered is not None and self._answered[0] == header["round"]:
            return self._answered[1]
        if header["round"] < self._round:
            raise MessageError(f"round {header['round']} was asked after round {self._round}")
        question = find_question(header["question"])
        self._refuse_changed_rows()
        self.policy.check(question, header, self.rows.n_rows if self.policy.min_rows else None)
        lengths = {"d": self.rows.n_features}
        arrays = question.check_request(message.arrays, lengths)
        found = self.memory
        # a round that is asked again begins from the memory that it began from
        before = self._memory_before if header["round"] == self._round else found
        try:
            self.memory = before
            if question.remembers:
                self.memory = dict(before)
                # what it keeps must not be a view that keeps the whole request alive
                arrays = {key: array.copy() for key, array in arrays.items()}
            try:
                raw = question(self, **arrays)
            except Exception:
                self._refuse_changed_rows()  # which is then why
                raise
            self._refuse_changed_rows()
            answer = question.check_answer({k: np.asarray(v) for k, v in raw.items()}, lengths)
            reply = self._reply(header, {}, answer)
            if question.remembers:
                self._save(header["round"], reply)
        except BaseException:
            self.memory = found
            raise
        # in the order of a file: BLAS gives other bits for another one
        self.memory = _read_only({k: np.asarray(v, order="C") for k, v in self.memory.items()})
        self._answered = (header["round"], reply) if keep else None
        self._round, self._memory_before = header["round"], before
        return reply

    def _reply(self, asked: Header, more: Header, arrays: Mapping[str, Array]) -> Message:
        echo = {key: asked.get(key) for key in ("run", "round", "question")}
        return compose({**echo, "site": self.name, **more}, arrays)

    def _enter(self, run: str, last: int) -> None:
        """Begin a run with an empty memory, or with the one that an earlier process saved.

        ``last`` is the run's last round of which sites had to remember something: without it any
        answer could be a wrong one.

        Files that changed since they were opened are opened anew. A site goes on for months, and its
        rows are others every night; they stay the same within a run.
        """
        if run in self._left:
            raise MessageError("a question of a run that is over: another one has begun here since")
        files = file_states(self._source)
        refuse_gone(files)
        memory, answered = self._load(run, files) if last else ({}, None)
        round_number = 0 if answered is None else answered[0]
        if round_number < last:
            raise MessageError(f"asked before the memory of round {last} that it needs; {_GONE}")
        if files != self._files:
            self.rows, self._files, self._framed = open_rows(self._source), files, None
        self.memory, self._answered, self._round = _read_only(memory), answered, round_number
        if self._run is not None:
            self._left.add(self._run)
        self._run = run

    def _refuse_changed_rows(self) -> None:
        """Files are those with which the run began, before a question reads them and after."""
        now = {file: state_of(file) for file in self._files}
        refuse_gone(now)
        if now != self._files:
            self._framed = None  # which may hold products with both
            raise InputError("the rows changed since the run began; start it with a new journal")

    @property
    def _file(self) -> Path | None:
        return self.file(".memory")

    def file(self, suffix: str) -> Path | None:
        """A file of the site's own, where it has a folder for such."""
        if self.store is None:
            return None
        # two names may become one when made safe for a file system; the checksum keeps them apart
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", self.name)
        return self.store / f"{safe}-{zlib.crc32(self.name.encode()):08x}{suffix}"

    def _save(self, round_number: int, reply: Message) -> None:
        """Keep memory and the answer that goes with it, before the answer leaves."""
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        header = {"run": self._run, "round": round_number, "rows": self._known_by(self._files)}
        kept = {f"memory/{name}": array for name, array in self.memory.items()}
        with atomic.writing(self._file, private=True) as path:
            saved = {"reply": np.frombuffer(encode(reply), np.uint8), **kept}
            path.write_bytes(encode(compose(header, saved, limit=None)))

    def _load(
        self, run: str, files: Mapping[Path, str]
    ) -> tuple[dict[str, Array], tuple[int, Message] | None]:
        if self._file is None or not self._file.exists():
            return {}, None
        try:
            saved = decode(self._file.read_bytes(), limit=None)
        except MessageError as error:
            raise InputError(
                f"the memory in {self._file.name} is damaged ({error}); start with a new journal"
            ) from None
        if saved.header["run"] != run:
            return {}, None
        if saved.header["rows"] != self._known_by(files):
            raise InputError("the rows changed since the run began; start it with a new journal")
        reply = decode(saved.arrays.pop("reply").tobytes())
        memory = {name.removeprefix("memory/"): array for name, array in saved.arrays.items()}
        return memory, (saved.header["round"], reply)


def _read_only(memory: dict[str, Array]) -> dict[str, Array]:
    """Memory that a question may read; one that remembers is given a dict of its own instead."""
    return cast(dict[str, Array], MappingProxyType(memory))


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Put the site's name in front of what is wrong with its rows."""
    try:
        yield
    except InputError as error:
        raise InputError(f"site {name!r}: {error}") from None
