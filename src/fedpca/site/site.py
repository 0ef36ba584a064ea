"""Answer questions at a site, next to its rows.

A site decodes a request, checks it against its policy and the question's declaration, answers it next
to the rows, checks the answer and encodes it. A failure becomes an encoded error that names the problem
and never a value of a row.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, cast

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import (
    REPORTED_BY_SITES,
    FedpcaError,
    InputError,
    MessageError,
    SiteFailed,
)
from fedpca.protocol.message import Header, Message, compose, decode, encode
from fedpca.protocol.question import find_question
from fedpca.rows.in_memory import checksum
from fedpca.rows.open import file_states, open_rows, refuse_gone, state_of
from fedpca.rows.standardized import MAX_CACHE_BYTES, Frame, StandardizedRows
from fedpca.site.memory import (
    MEMORY_GONE,
    ROWS_CHANGED,
    MemoryFile,
    Saved,
    recall,
    remember,
    remembers,
)
from fedpca.site.policy import TRUSTING, Policy

log = logging.getLogger("fedpca.site")

MAX_PROCESS_CACHE_BYTES = 512 << 20  # what all sites of one process may spend on cached A'A
MAX_ENDED_RUNS = 1000  # ended runs whose late questions a site still recognizes

T = TypeVar("T")


def cache_share(n_sites: int) -> int:
    """Return the bytes that each of several sites in one process may spend on a cached A'A."""
    return min(MAX_CACHE_BYTES, MAX_PROCESS_CACHE_BYTES // max(1, n_sites))


class Site:
    """One holder of rows, with a stable name of its own.

    Parameters
    ----------
    rows : array, sparse matrix, data frame, table, path, or list of paths
        The private rows, see `fedpca.rows.open.open_rows`.
    name : str
        The name by which the coordinator knows the site.
    policy : Policy, optional
        The questions that the site answers; by default every question that is installed.
    store : path, optional
        A folder of the site's own that keeps its memory when the process ends.
    memory_limit : int
        Bytes that the site may spend on a cached A'A. The site also holds one block of rows (16 MiB),
        the scores of its rows, and a few more matrices of the size of A'A while it forms A'A.
    """

    def __init__(
        self,
        rows: Any,
        *,
        name: str,
        policy: Policy | None = None,
        store: str | os.PathLike[str] | None = None,
        memory_limit: int = MAX_CACHE_BYTES,
    ) -> None:
        self._source = rows
        with _naming_site(name):
            self._files = file_states(rows)  # first, so that a change during opening is noticed
            self.rows = open_rows(rows)
        self.name = name
        self.policy = policy or TRUSTING
        self.store = None if store is None else Path(store)
        self.has_own_store = store is not None  # an engine may lend a store to a site without one
        self.memory_limit = memory_limit
        self.memory: dict[str, Array] = _read_only({})
        self._run: str | None = None
        self._round = 0  # the last round answered
        self._memory_before = self.memory  # as it was before that round
        self._ended: deque[str] = deque(maxlen=MAX_ENDED_RUNS)
        self._answered: tuple[int, Message] | None = None  # the last round and its reply
        self._standardized: StandardizedRows | None = None
        self._lock = threading.Lock()

    @property
    def fingerprint(self) -> str:
        """Identify the rows as they are now, so that a resumed run can recognize them."""
        return self._fingerprint_of(file_states(self._source))

    def _fingerprint_of(self, files: Mapping[Path, str]) -> str:
        return "; ".join(f"{file.name} {state}" for file, state in files.items()) or self._checksum

    @cached_property
    def _checksum(self) -> str:
        return checksum(self.rows)

    def answer_bytes(self, request: bytes) -> bytes:
        """Return the encoded answer to an encoded question; engines between processes call this."""
        try:
            message = decode(request)
        except MessageError as error:
            return encode(self.refusal({}, error))
        return encode(self.answer(message))

    def answer(self, request: Message, *, keep: bool = True) -> Message:
        """Return the answer, or an error in its place; a round asked twice gets the same answer twice.

        Where answers hardly ever get lost on their way, an engine passes ``keep=False``. The site then
        does not store the answer, and computes it once more if it is asked again.
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
        """Compose an answer that only says what went wrong."""
        # a site reports an error by the nearest class that the coordinator knows
        kind = next(k for k in type(error).__mro__ if k.__name__ in REPORTED_BY_SITES)
        return self._reply(asked, {"error": kind.__name__, "text": str(error)}, {})

    @property
    def standardized(self) -> StandardizedRows:
        """Return the rows, centered and scaled as the run asks and with features in its order."""
        frame = self.recall(Frame)
        if self._standardized is None or not frame.is_same_as(self._standardized.frame):
            self._standardized = StandardizedRows(
                self.rows, frame, max_cache_bytes=self.memory_limit
            )
        return self._standardized

    def remembers(self, kind: type) -> bool:
        """Return whether an earlier question of the run remembered a dataclass of this kind."""
        return remembers(self.memory, kind)

    def recall(self, kind: type[T]) -> T:
        """Return the dataclass that an earlier question of the run remembered."""
        return recall(self.memory, kind)

    def remember(self, value: Any) -> None:
        """Keep a dataclass of arrays and numbers until the run ends."""
        remember(self.memory, value)

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
        dimensions = {"d": self.rows.n_features}
        arrays = question.check_request(message.arrays, dimensions)
        memory = self.memory
        # a round that is asked again starts from the same memory as the first time
        before = self._memory_before if header["round"] == self._round else memory
        try:
            self.memory = before
            if question.remembers:
                self.memory = dict(before)
                # memory must not hold a view, which would keep the whole request alive
                arrays = {key: array.copy() for key, array in arrays.items()}
            try:
                raw = question(self, **arrays)
            except Exception:
                self._refuse_changed_rows()  # a changed file explains the failure better
                raise
            self._refuse_changed_rows()
            answer = question.check_answer({k: np.asarray(v) for k, v in raw.items()}, dimensions)
            reply = self._reply(header, {}, answer)
            if question.remembers:
                self._save(header["round"], reply)
        except BaseException:
            self.memory = memory
            raise
        # C order, as in a memory file: BLAS gives other bits for another order
        self.memory = _read_only({k: np.asarray(v, order="C") for k, v in self.memory.items()})
        self._answered = (header["round"], reply) if keep else None
        self._round, self._memory_before = header["round"], before
        return reply

    def _reply(self, asked: Header, more: Header, arrays: Mapping[str, Array]) -> Message:
        """Compose an answer whose header repeats the run, the round and the question."""
        echo = {key: asked.get(key) for key in ("run", "round", "question")}
        return compose({**echo, "site": self.name, **more}, arrays)

    def _enter(self, run: str, last: int) -> None:
        """Begin a run with an empty memory, or with the memory that an earlier process saved.

        ``last`` is the run's last round that changed the memory of sites. Without that memory any
        answer could be wrong.

        Files that changed since the site opened them are opened again. A site may run for months while
        its files change every night; within a run they must stay the same.
        """
        if run in self._ended:
            raise MessageError("the run is over: another one has begun at this site since")
        files = file_states(self._source)
        refuse_gone(files)
        saved = self._load(run, files) if last else None
        if (0 if saved is None else saved.round) < last:
            raise MessageError(
                f"this question needs the memory of round {last}, which the site does not have; "
                f"{MEMORY_GONE}"
            )
        if files != self._files:
            self.rows, self._files, self._standardized = open_rows(self._source), files, None
        self.memory = _read_only({} if saved is None else saved.memory)
        self._answered = None if saved is None else (saved.round, saved.reply)
        self._round = 0 if saved is None else saved.round
        if self._run is not None:
            self._ended.append(self._run)
        self._run = run

    def _refuse_changed_rows(self) -> None:
        """Refuse to answer if a file changed since the run began."""
        now = {file: state_of(file) for file in self._files}
        refuse_gone(now)
        if now != self._files:
            self._standardized = None  # it may hold products of old and of new rows
            raise InputError(ROWS_CHANGED)

    def file(self, suffix: str) -> Path | None:
        """Return the path of a file in the site's own folder, or None if it has no folder."""
        if self.store is None:
            return None
        # two names may look the same once made safe for a file system; the checksum keeps them apart
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", self.name)
        return self.store / f"{safe}-{zlib.crc32(self.name.encode()):08x}{suffix}"

    def _save(self, round_number: int, reply: Message) -> None:
        """Save the memory and the answer that belongs to it, before the answer leaves."""
        path = self.file(".memory")
        if path is not None:
            saved = Saved(round_number, reply, self.memory)
            MemoryFile(path).save(str(self._run), self._fingerprint_of(self._files), saved)

    def _load(self, run: str, files: Mapping[Path, str]) -> Saved | None:
        """Return what an earlier process saved of this run, if anything."""
        path = self.file(".memory")
        return None if path is None else MemoryFile(path).load(run, self._fingerprint_of(files))


def _read_only(memory: dict[str, Array]) -> dict[str, Array]:
    """Return memory that a question can only read; a question that remembers gets a copy."""
    return cast(dict[str, Array], MappingProxyType(memory))


@contextmanager
def _naming_site(name: str) -> Iterator[None]:
    """Put the site's name in front of an error about its rows."""
    try:
        yield
    except InputError as error:
        raise InputError(f"site {name!r}: {error}") from None
