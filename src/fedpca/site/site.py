"""Define a site, which holds rows, and what a question may use of it.

A question gets the site as its first argument. The question reads the site's rows, and may remember
values until the run ends. Everything that a coordinator asks goes through `fedpca.site.conversation`.
"""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import (
    FedpcaError,
    InputError,
    MessageError,
)
from fedpca.linalg.blas_threads import jobs_for_arrays
from fedpca.protocol.message import Header, Message, decode, encode
from fedpca.protocol.plan import RunPlan
from fedpca.rows.gaps import DROP, Totals, column_totals
from fedpca.rows.genotypes.genotype_rows import GenotypeRows
from fedpca.rows.hashes import secret_of
from fedpca.rows.in_memory import DenseRows, Rows, SparseRows
from fedpca.rows.one_pass import ProvisionalScatter
from fedpca.rows.reading import Reading, shows_options
from fedpca.rows.standardized import MAX_CACHE_BYTES, Frame, StandardizedRows, is_read_once
from fedpca.site.conversation import Conversation, refusal
from fedpca.site.current_run import CurrentRun, Memory
from fedpca.site.guard import Agreement, Keys
from fedpca.site.memory import (
    ROWS_CHANGED,
    Checkpoint,
    recall,
    remember,
    remembers,
)
from fedpca.site.policy import TRUSTING, Policy
from fedpca.site.privacy_budget import Session
from fedpca.site.source import Source
from fedpca.site.store import ROWS, Kind

MAX_PROCESS_CACHE_BYTES = 512 << 20  # to cache A'A, for all sites in a process together

T = TypeVar("T")


@dataclass(frozen=True)
class ChosenVariants:
    """The positions, among the site's columns, of the variants that a run uses; kept in memory."""

    positions: Array  # (d,)


def cache_share(n_sites: int) -> int:
    """Return the number of bytes that each of the sites in a process may use to cache A'A."""
    return min(MAX_CACHE_BYTES, MAX_PROCESS_CACHE_BYTES // max(1, n_sites))


def jobs_for(sites: Sequence[Site]) -> int:
    """Return how many of the sites in one process should work at the same time, each in a thread.

    The number is 1 unless the rows of all sites are arrays in memory, because threads that read files
    would wait for each other.
    """
    all_rows = [site.rows for site in sites]
    if not all(isinstance(rows, DenseRows | SparseRows) for rows in all_rows):
        return 1
    return jobs_for_arrays([(rows.n_rows, rows.n_features) for rows in all_rows])


class Site:
    """A party that holds rows, with a stable name.

    Parameters
    ----------
    rows : array, sparse matrix, data frame, table, AnnData, path, or list of paths
        The private rows; see `fedpca.rows.open.open_rows`. An array of PyTorch or CuPy stays on its
        device and is multiplied there.
    name : str
        The name that the coordinator uses for the site.
    policy : Policy, optional
        The rules for what the site answers; by default, it answers every installed question.
    store : path, optional
        A folder where the site saves its memory, so that the memory outlives the process.
    memory_limit : int
        Bytes that the site may use to cache A'A. The site also holds one block of rows (16 MiB) and the
        scores of its rows. While it computes A'A, it holds a few more matrices of the size of A'A.
    check : callable, optional
        A function that raises an `InputError` for rows that would fail a fit. It is called with the
        rows when the site opens them, and again when a run begins after a file has changed. If it fails
        in the second case, the site stays out of the run instead of ending the run for everybody.
    keys : Keys, optional
        The keys of the site and its coordinator, if they are on different machines.
    tell : callable, optional
        A function that is called with a line of text when a run asks for a person's approval.
    reading : Reading, optional
        How the rows are read, if all options are in one value.
    **how
        How the rows are read: the options of `fedpca.rows.reading.Reading`, such as ``id="patient"``.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from fedpca import Site
    >>> table = pa.table({"patient": ["p1", "p2"], "a": [1.0, 2.0], "b": [3.0, 5.0]})
    >>> Site(table, name="north", id="patient").rows.features
    ('a', 'b')
    """

    @shows_options
    def __init__(
        self,
        rows: Any,
        *,
        name: str,
        policy: Policy | None = None,
        store: str | os.PathLike[str] | None = None,
        memory_limit: int = MAX_CACHE_BYTES,
        check: Callable[[Rows], None] | None = None,
        keys: Keys | None = None,
        tell: Callable[[str], None] | None = None,
        reading: Reading | None = None,
        **how: Any,
    ) -> None:
        self.source = Source(rows, site=name, reading=reading, how=how, check=check)
        self.name = name
        self.policy = policy or TRUSTING
        self.store = None if store is None else Path(store)
        self.has_own_store = store is not None  # if not, an engine may set the store
        self.memory_limit = memory_limit
        self.is_in_process = False  # an engine sets this if the coordinator shares the process
        self.keeps_process = True  # an engine clears this if each question gets a new process
        self.reserved_by: object | None = None  # the engine in this process whose fit uses the site
        self._standardized: StandardizedRows | None = None
        self._scatter: ProvisionalScatter | None = None  # from the last pass that summed columns
        self._chosen: tuple[Rows, Array, Rows] | None = None  # all rows, chosen columns, their rows
        self.conversation = Conversation(self, keys=keys, tell=tell)

    @classmethod
    def query(cls, database: Any, sql: str, *, name: str, **options: Any) -> Site:
        """Return a site whose rows are the result of a query to a database.

        The database is queried when the site is created, and again when a run begins. The rows of a run
        are kept in a temporary file that only the owner of the process can read.

        Parameters
        ----------
        database : str, callable, or connection
            An address, such as ``sqlite:///rows.db``, ``duckdb:///rows.duckdb``, or
            ``postgresql://user@host/name``, a DB-API connection, or a function that returns one.
        sql : str
            The query. With an ORDER BY, a restarted site can continue its run.
        name : str
            The name that the coordinator uses for the site.
        **options
            As for `Site`.

        Examples
        --------
        >>> import sqlite3
        >>> from fedpca import Site
        >>> clinic = sqlite3.connect(":memory:")
        >>> _ = clinic.execute("create table visits (patient text, age real, pressure real)")
        >>> _ = clinic.execute("insert into visits values ('p1', 61, 140), ('p2', 48, 125)")
        >>> site = Site.query(clinic, "select * from visits", name="north", id="patient")
        >>> site.rows.n_rows
        2
        """
        return cls(database, name=name, query=sql, **options)

    @property
    def rows(self) -> Rows:
        """Return the private rows; genotypes have only the columns that the run uses."""
        rows = self.source.rows
        if not isinstance(rows, GenotypeRows) or not self.remembers(ChosenVariants):
            return rows
        positions = self.recall(ChosenVariants).positions
        if self._chosen is None or self._chosen[0] is not rows or self._chosen[1] is not positions:
            self._chosen = (rows, positions, rows.at(positions))
        return self._chosen[2]

    @rows.setter
    def rows(self, rows: Rows) -> None:
        self.source.rows, self._standardized = rows, None

    def choose_variants(self, positions: Array) -> None:
        """Use only the columns at these positions of the genotypes, for the rest of the run."""
        if self.remembers(ChosenVariants):
            positions = self.recall(ChosenVariants).positions[positions]
        self.remember(ChosenVariants(positions))

    def leave_out_few(self) -> None:
        """Drop variants whose sums the policy does not let leave the site, if rows are genotypes.

        With other rows, a rare column makes the site refuse. But every cohort has rare variants, so a
        run goes on without them.
        """
        rows = self.source.rows
        if not self.policy.protects_few or not isinstance(rows, GenotypeRows):
            return
        if self.remembers(Session):
            # the choice of variants would reveal something about single samples, without noise
            return
        missing = self.conversation.run.treats_gaps({})
        if missing == DROP or rows.n_rows < self.policy.min_count:
            return  # the site then refuses, and gives the reason
        disclosure = self.conversation.gate.disclosure
        disclosure.check_change(rows)  # another list would tell about few samples that have changed
        few = disclosure.few_of(rows, missing)
        left_out = {*few.rare, *few.gapped}
        if left_out:
            kept = [i for i, name in enumerate(rows.features) if name not in left_out]
            self.choose_variants(np.array(kept, np.int64))

    @property
    def log_normalized(self) -> float:
        """Return the sum to which each cell is normalized, or 0 if cells are not normalized."""
        return self.source.reading.log_normalize

    @property
    def memory(self) -> Memory:
        """Return the arrays that earlier questions in this run stored."""
        return self.conversation.run.memory

    @property
    def fingerprint(self) -> str:
        """Return a string that identifies the current rows, so that a resumed run recognizes them."""
        return self.source.fingerprint

    def answer_bytes(self, request: bytes) -> bytes:
        """Return the encoded answer to an encoded question; engines that cross processes call this."""
        try:
            message = decode(request)
        except MessageError as error:
            return encode(self.refusal({}, error))
        return encode(self.answer(message))

    def answer(self, request: Message, *, keep: bool = True) -> Message:
        """Return the answer or an error message; a repeated round gets the same answer.

        An engine that rarely loses answers in transit passes ``keep=False``. The site then does not
        keep the answer, but computes it again if the round is repeated.
        """
        return self.conversation.answer(request, keep=keep)

    def answer_from(
        self, before: Checkpoint | None, request: Message
    ) -> tuple[Checkpoint | None, Message]:
        """Answer a question from a checkpoint; return the checkpoint after it, and the answer.

        The result depends only on the rows, the checkpoint, and the question, so any copy of the site
        gives the same result. Cached products are kept, because they never change an answer.
        """
        self.conversation.run = CurrentRun.resume(before)
        reply = self.answer(request, keep=False)
        return self.conversation.run.checkpoint, reply

    def refusal(self, asked: Header, error: FedpcaError) -> Message:
        """Compose a reply that contains only an error."""
        return refusal(self.name, asked, error)

    @property
    def standardized(self) -> StandardizedRows:
        """Return the rows, centered and scaled, with features in the order that the run requires."""
        frame = self.recall(Frame)
        if self._standardized is None or not frame.is_same_as(self._standardized.frame):
            self._standardized = self.rows_in(frame)
        return self._standardized

    def rows_in(self, frame: Frame) -> StandardizedRows:
        """Return the rows in a frame; if the coordinator may lie, use A'A in products if it fits."""
        return StandardizedRows(
            self.rows,
            frame,
            max_cache_bytes=self.memory_limit,
            only_sums=not self.policy.is_open,
            scatter=self._scatter,
            secret=self.rounding_secret(),
        )

    def rounding_secret(self) -> bytes | None:
        """Return what moves the points between two steps of rounded sums; see `fedpca.linalg.grid`.

        A coordinator that the site trusts, or that can read the rows anyway, needs no secret.
        """
        if self.policy.is_open or self.is_in_process:
            return None
        return secret_of(self.source.rows)

    def column_totals(self, missing: int) -> Totals:
        """Return the sums of the columns; keep the scatter if this saves another reading of files."""
        self._scatter = scatter = None
        if is_read_once(self.rows, missing, self.memory_limit):
            scatter = ProvisionalScatter(self.rows, missing)
        totals = column_totals(self.rows, missing, None if scatter is None else scatter.add)
        self._scatter = scatter
        return totals

    def privacy_budget_in_words(self) -> str:
        """Return how much of its privacy budget the site has spent, or "" if nothing limits it."""
        return self.conversation.gate.privacy_budget_in_words()

    def look_at_rows(self) -> None:
        """Check the rows as the policy requires, so that the first run does not have to wait."""
        self.conversation.gate.disclosure.look(self.rows)

    def remembers(self, kind: type) -> bool:
        """Return whether an earlier question in this run stored a dataclass of this type."""
        return remembers(self.memory, kind)

    def recall(self, kind: type[T]) -> T:
        """Return the dataclass of this type that an earlier question in this run stored."""
        return recall(self.memory, kind)

    def remember(self, value: Any) -> None:
        """Store a dataclass of arrays and numbers until the run ends."""
        remember(self.memory, value)

    @property
    def plan(self) -> RunPlan:
        """Return the plan of the run that the site is in."""
        return self.conversation.run.plan

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the names of the plan's questions so far; the last one is being answered now."""
        if not self.remembers(Agreement):
            return ()
        return tuple(self.recall(Agreement).asked.tobytes().decode().split())

    def secret(self, seed: int) -> Array:
        """Return random words that the coordinator does not know, for a question to remember.

        A coordinator in the same process can read the rows anyway. In that case, the words are computed
        from the seed, so that a run can be repeated.
        """
        if self.is_in_process:
            return np.array([seed, zlib.crc32(self.name.encode())])
        return np.array([secrets.randbits(32) for _ in range(8)])

    def reopen(self, files: Mapping[Path, str]) -> None:
        """Open the rows again if any of their files has changed since they were opened."""
        if files != self.source.files:
            self.source.reopen(files)
            self._standardized = None

    def refuse_changed_rows(self) -> None:
        """Refuse to answer if a file has changed since the run began."""
        if self.source.has_changed():
            self._standardized = self._scatter = None  # these may mix old and new rows
            raise InputError(ROWS_CHANGED)

    def file(self, kind: Kind) -> Path | None:
        """Return the path of a file in the site's folder, or None if the site keeps no such file."""
        # rows in memory cannot change, so there is nothing to compare those of the next run with
        is_needed = kind is not ROWS or bool(self.source.files)
        return kind.path(self.store, self.name) if self.store is not None and is_needed else None
