"""Answer questions at a site, where its rows are.

A site decodes a request, checks it against the site's policy and the question's declaration, and
computes the answer where the rows are. It then checks and encodes the answer. A failure becomes an
encoded error that describes the problem but never contains a value from a row.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedpca.arrays import Array, Arrays, Dimensions
from fedpca.errors import (
    REPORTED_BY_SITES,
    FedpcaError,
    FileError,
    InputError,
    MessageError,
    PolicyRefused,
    SiteFailed,
)
from fedpca.linalg.blas_threads import jobs_for_arrays, threads_for_entries
from fedpca.protocol.message import Checked, Header, Message, compose, decode, encode
from fedpca.protocol.plan import AGREE, DECLARE, RunPlan
from fedpca.protocol.question import Question, find_question
from fedpca.rows.formats.query import Query
from fedpca.rows.gaps import DROP, ERROR, MISSING, Totals, column_totals
from fedpca.rows.genotypes.genotype_rows import GenotypeRows
from fedpca.rows.in_memory import DenseRows, Rows, SparseRows
from fedpca.rows.one_pass import ProvisionalScatter
from fedpca.rows.standardized import MAX_CACHE_BYTES, Frame, StandardizedRows, is_read_once
from fedpca.site.current_run import Checkpoint, CurrentRun, Memory, read_only
from fedpca.site.gate import Gate
from fedpca.site.guard import UNDECLARED, Agreement, Keys
from fedpca.site.guard import keep as keep_agreement
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
from fedpca.site.privacy_budget import SESSION_BYTES, Session
from fedpca.site.requests import file_stem
from fedpca.site.source import Source

log = logging.getLogger("fedpca.site")

MAX_PROCESS_CACHE_BYTES = 512 << 20  # to cache A'A, for all sites in a process together
MAX_ENDED_RUNS = 1000  # ended runs whose late questions a site recognizes

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
    drop, columns, id : str or list of str, optional
        Column names: ``drop`` lists columns that are not features, ``columns`` lists the only features,
        and ``id`` lists columns that identify the rows and never leave the site. By default, all
        columns are features.
    weight : str or array of shape (n_rows,), optional
        The weights of the rows, or the name of the column that holds them, which is then not a feature.
        A row with weight w counts as w equal rows; see `FederatedPCA.fit`.
    check : callable, optional
        A function that raises an `InputError` for rows that would fail a fit. It is called with the
        rows when the site opens them, and again when a run begins after a file has changed. If it fails
        in the second case, the site stays out of the run instead of ending the run for everybody.
    device : str, optional
        The device on which PyTorch or CuPy multiplies the rows: "cuda", "cuda:N", or "cpu". Rows from
        files and numpy arrays are moved to the device. They stay there if they fit in half of the
        device's free memory.
    precision : {"float64", "float32", "tf32"}, optional
        The precision in which a device computes A'A; by default, float64. Most GPUs are many times
        faster in float32, but `run_.angle_bound` is then larger, and fewer components are certain.
    layer, mask_var : str, optional
        For an AnnData object or an ``.h5ad`` file, whose rows are cells: the layer with the values, by
        default ``X``, and the column of ``var`` that marks the genes to use, such as
        "highly_variable". All sites must use the same genes.
    log_normalize : bool or float
        Whether to replace each value x of a cell with ``log(1 + S x / sum(x))``. The sum runs over all
        genes of the table, as in scanpy. A number sets S; True sets S to 1e4. All sites must use the
        same S.
    keys : Keys, optional
        The keys of the site and its coordinator, if they are on different machines.
    tell : callable, optional
        A function that is called with a line of text when a run asks for a person's approval.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from fedpca import Site
    >>> table = pa.table({"patient": ["p1", "p2"], "a": [1.0, 2.0], "b": [3.0, 5.0]})
    >>> Site(table, name="north", id="patient").rows.features
    ('a', 'b')
    """

    def __init__(
        self,
        rows: Any,
        *,
        name: str,
        policy: Policy | None = None,
        store: str | os.PathLike[str] | None = None,
        memory_limit: int = MAX_CACHE_BYTES,
        drop: str | Sequence[str] | None = None,
        columns: str | Sequence[str] | None = None,
        id: str | Sequence[str] | None = None,
        weight: Any = None,
        check: Callable[[Rows], None] | None = None,
        device: str | None = None,
        precision: str | None = None,
        layer: str | None = None,
        mask_var: str | None = None,
        log_normalize: bool | float = False,
        keys: Keys | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._source = Source(
            rows,
            site=name,
            drop=drop,
            columns=columns,
            id=id,
            weight=weight,
            check=check,
            device=device,
            precision=precision,
            layer=layer,
            mask_var=mask_var,
            log_normalize=log_normalize,
        )
        self.name = name
        self.policy = policy or TRUSTING
        self.store = None if store is None else Path(store)
        self.has_own_store = store is not None  # if not, an engine may set the store
        self.memory_limit = memory_limit
        self.is_in_process = False  # an engine sets this if the coordinator shares the process
        self.keeps_process = True  # an engine clears this if each question gets a new process
        self.reserved_by: object | None = None  # the engine in this process whose fit uses the site
        self._run = CurrentRun()
        self._ended: deque[str] = deque(maxlen=MAX_ENDED_RUNS)
        self._standardized: StandardizedRows | None = None
        self._scatter: ProvisionalScatter | None = None  # from the last pass that summed columns
        self._chosen: tuple[Rows, Array, Rows] | None = None  # all rows, chosen columns, their rows
        self._lock = threading.Lock()
        self._keys = keys
        self._gate = Gate(self.policy, name, keys=keys, tell=tell, file=self.file)

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
        return cls(Query(database, sql), name=name, **options)

    @property
    def rows(self) -> Rows:
        """Return the private rows; genotypes have only the columns that the run uses."""
        rows = self._source.rows
        if not isinstance(rows, GenotypeRows) or not self.remembers(ChosenVariants):
            return rows
        positions = self.recall(ChosenVariants).positions
        if self._chosen is None or self._chosen[0] is not rows or self._chosen[1] is not positions:
            self._chosen = (rows, positions, rows.at(positions))
        return self._chosen[2]

    @rows.setter
    def rows(self, rows: Rows) -> None:
        self._source.rows, self._standardized = rows, None

    def choose_variants(self, positions: Array) -> None:
        """Use only the columns at these positions of the genotypes, for the rest of the run."""
        if self.remembers(ChosenVariants):
            positions = self.recall(ChosenVariants).positions[positions]
        self.remember(ChosenVariants(positions))

    def leave_out_few(self) -> None:
        """Drop variants whose sums the policy does not let leave the site, if rows are genotypes.

        For other rows, a rare column ends the run. But every cohort has rare variants, so a run goes on
        without them.
        """
        rows = self._source.rows
        if not self._gate.leaves_out_few or not isinstance(rows, GenotypeRows):
            return
        if self.remembers(
            Session
        ):  # the choice of variants would reveal something about single samples, without noise
            return
        missing = self._missing({})
        if missing == DROP or rows.n_rows < self.policy.min_count:
            return  # the site then refuses, and gives the reason
        left_out = self._gate.few_variants(rows, missing)
        if left_out:
            kept = [i for i, name in enumerate(rows.features) if name not in left_out]
            self.choose_variants(np.array(kept, np.int64))

    @property
    def log_normalized(self) -> float:
        """Return the sum to which each cell is normalized, or 0 if cells are not normalized."""
        return self._source.log_normalized

    @property
    def memory(self) -> Memory:
        """Return the arrays that earlier questions in this run stored."""
        return self._run.memory

    @property
    def fingerprint(self) -> str:
        """Return a string that identifies the current rows, by which a resumed run recognizes them."""
        return self._source.fingerprint

    def answer_bytes(self, request: bytes) -> bytes:
        """Return the encoded answer to an encoded question; engines that cross processes call this."""
        try:
            message = decode(request)
        except MessageError as error:
            return encode(self.refusal({}, error))
        return encode(self.answer(message))

    def answer(self, request: Message, *, keep: bool = True) -> Message:
        """Return the answer or an error message; repeating a round returns the same answer.

        An engine that rarely loses answers in transit passes ``keep=False``. The site then does not
        keep the answer, but computes it again if the round is repeated.
        """
        with self._lock:
            try:
                return self._answer(request, keep)
            except tuple(REPORTED_BY_SITES.values()) as error:
                return self.refusal(request.header, error)
            except Exception as error:  # other exceptions may quote a value from a row or a path
                log.exception("site %s could not answer", self.name)
                text = f"{type(error).__name__}; see the site's log for details"
                return self.refusal(request.header, SiteFailed(text))

    def answer_from(
        self, before: Checkpoint | None, request: Message
    ) -> tuple[Checkpoint | None, Message]:
        """Answer a question from a checkpoint; return the checkpoint after it, and the answer.

        The result depends only on the rows, the checkpoint, and the question, so any copy of the site
        gives the same result. Cached products are kept, because they never change an answer.
        """
        self._run = CurrentRun.resume(before)
        reply = self.answer(request, keep=False)
        return self._run.checkpoint, reply

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
        )

    def column_totals(self, missing: int) -> Totals:
        """Return the sums of the columns; keep the scatter if this saves another reading of files."""
        self._scatter = scatter = None
        if is_read_once(self.rows, missing, self.memory_limit):
            scatter = ProvisionalScatter(self.rows, missing)
        totals = column_totals(self.rows, missing, None if scatter is None else scatter.add)
        self._scatter = scatter
        return totals

    def privacy_budget_in_words(self) -> str:
        """Return how much of its privacy budget the site has spent, or "" if it has no budget."""
        return self._gate.privacy_budget_in_words()

    def look_at_rows(self) -> None:
        """Check the rows as the policy requires, so that the first run does not have to wait."""
        self._gate.look_at(self.rows, self._record)

    @property
    def _record(self) -> Path | None:
        """Return the file that records the rows of the last run, if the rows can change."""
        return self.file(".rows") if self._source.files else None

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
        if not self.remembers(Agreement):
            raise PolicyRefused(UNDECLARED)
        return self._run.plan

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the names of the questions asked so far; the last one is being answered now."""
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

    def _answer(self, message: Message, keep: bool) -> Message:
        header = message.header
        if header["question"] == DECLARE:
            return self._declare(message)
        if header["run"] != self._run.name:
            is_masked = header["question"] == AGREE or "mask" in header
            self._enter(header["run"], header["memory"], has_keys=is_masked)
        if header["question"] == AGREE:
            return self._agree_on_keys(message)
        run, number = self._run, header["round"]
        again = self._masked_again(message)
        if again is not None:
            return again
        reply = run.reply_to(number)
        if reply is not None:
            return reply
        if number < run.round:
            raise MessageError(f"round {number} cannot be asked for after round {run.round}")
        question = find_question(header["question"])
        arrays, dimensions = self._checked(message, question)
        masks = run.masks_for(question, message, self.name)
        if question.spends is not None and masks is not None and (masks.is_bound or masks.is_tried):
            raise PolicyRefused(
                f"the answer to question {question.name!r} has only whole numbers and needs no bound, "
                "so the site does not tell their size"
            )
        memory, before, asked = run.memory, run.memory_before(number), arrays
        agreed = self._gate.check_step(before, question, header, arrays, dimensions.get("d", 0))
        # noise protects single rows, so a noisy answer needs no rule about few rows
        if self._gate.leaves_out_few and question.reads_rows and question.spends is None:
            missing = self._missing(arrays)
            self._gate.check_rows(self._source.rows, missing, self._record, self.rows)
        self._spend_round(header)
        try:
            run.memory = before if agreed is None else keep_agreement(before, agreed)
            if question.remembers:
                run.memory = dict(run.memory)
                # copy, because a view in memory would keep the whole request alive
                arrays = {key: array.copy() for key, array in arrays.items()}
            answer = None if masks is None else run.take_pending(masks)
            if answer is None:
                answer = self._compute(question, arrays, dimensions)
            if masks is not None and masks.is_bound:  # only the size of the answer is asked for
                size = run.hold_back(masks, answer)
                run.memory = memory
                return self._reply(header, {}, size)
            if masks is not None:
                if masks.is_tried:
                    run.keep_open(masks, answer)
                answer = run.masked(masks, answer)
            reply = self._reply(header, {}, answer)
            if masks is None and self.policy.is_open:
                reply.checked[question.name] = Checked(reply.arrays, dimensions, asked)
            if question.spends is not None:
                self._gate.spend(question, header, self.plan, self.recall(Session))
            # the agreement and an answer with noise must outlive the process too
            if question.remembers or agreed is not None or question.spends is not None:
                self._save(number, reply)
        except BaseException:
            run.memory = memory
            raise
        # under a plan, a repeated round must get the same numbers and the same noise
        is_kept = keep or agreed is not None or question.spends is not None
        run.advance(number, before, reply if is_kept else None)
        return reply

    def _masked_again(self, message: Message) -> Message | None:
        """Mask the last answer again if it is requested with different masks; allow this once.

        The coordinator requests this if it tried a bound and some site's answer exceeded that bound.
        """
        run, header = self._run, message.header
        if header["round"] != run.round or "mask" not in header or not run.has_open_answer:
            return None
        question = find_question(header["question"])
        masks = run.masks_for(question, message, self.name)
        answer = None if masks is None else run.open_answer(masks)
        if masks is None or answer is None:
            return None
        self._checked(message, question)
        self._spend_round(header)
        reply = self._reply(header, {}, run.masked(masks, answer))
        if not masks.is_bound:
            is_saved = question.remembers or not self.policy.is_open
            run.close_answer(reply, lambda: self._save(run.round, reply) if is_saved else None)
        return reply

    def _checked(self, message: Message, question: Question) -> tuple[Arrays, Dimensions]:
        """Return a question's arrays and dimensions; refuse a question that the policy forbids."""
        header = message.header
        self._gate.check_question(question, header, is_private=self.remembers(Session))
        self._refuse_changed_rows()
        n_rows = self.rows.n_rows if self.policy.min_rows else None
        self.policy.check(question, header["n_sites"], n_rows)
        if not self.policy.is_open:  # a caller could change arrays that another site has checked
            dimensions = {"d": self.rows.n_features}
            return question.check_request(message.arrays, dimensions), dimensions
        checked = question.checked_request(message, self.rows.n_features)
        return checked.arrays, dict(checked.dimensions)

    def _spend_round(self, header: Header) -> None:
        """Count a round of a run against the policy's budget, if it has one."""
        self._gate.spend_round(str(header["run"]), keeps_process=self.keeps_process)

    def _compute(self, question: Question, arrays: Arrays, dimensions: Dimensions) -> Arrays:
        """Return the checked answer to a question."""
        try:
            with threads_for_entries(0):  # one BLAS thread, except in long products
                raw = question(self, **arrays)
        except Exception:
            self._refuse_changed_rows()  # if a file changed, that explains the failure better
            raise
        self._refuse_changed_rows()
        values = {k: np.asarray(v) for k, v in raw.items()}
        # numbers that are too large come from large rows, which a person must rescale
        return question.check_answer(values, dimensions, arrays, too_large=InputError)

    def _agree_on_keys(self, message: Message) -> Message:
        """Agree on secrets with other sites, so that answers can be masked."""
        from fedpca.site.masking import MaskKeys

        header = message.header
        if not self.remembers(Agreement) or not self.remembers(MaskKeys):
            raise PolicyRefused(UNDECLARED)
        keys = self.recall(MaskKeys).agree(
            header["run"], self._run.plan, self.name, message.arrays, self._keys
        )
        kept = dict(self.memory)
        remember(kept, keys)
        self._run.memory = read_only(kept)
        reply = self._reply(header, {}, {})
        if self._run.round == 0:  # otherwise, the file of a later round has them already
            self._save(0, reply)
        return reply

    def _missing(self, asked: Mapping[str, Array]) -> int:
        """Return what happens to gaps in this run, as a position in `MISSING`."""
        run = self._run
        if "missing" in asked:
            run.missing = int(asked["missing"])
        elif run.missing is None and self.remembers(Agreement):
            given = self.plan.parameters.get("missing")
            run.missing = MISSING.index(given) if given in MISSING else ERROR
        return run.missing or ERROR

    def _declare(self, message: Message) -> Message:
        """Admit the plan of a run, or refuse it; a site that answers everything needs no plan.

        A plan that is refused or waits for approval does not end the run that the site is in.
        """
        header = message.header
        plan = RunPlan.from_bytes(message.arrays.get("plan", np.empty(0)).tobytes())
        if plan.is_secure and not self.keeps_process:
            raise PolicyRefused(
                "this site starts a new process for each question, so it cannot count how often the "
                "size of an answer was asked for; for secure sums, the site must use fedpca join"
            )
        signature = message.arrays.get("signature", np.empty(0, np.uint8)).tobytes()
        run, last = header["run"], header["memory"]
        self._gate.consider(run, plan, signature)
        needs_plan = not self.policy.is_open or plan.is_secure or plan.is_private
        if run != self._run.name:
            if not self.policy.is_open and not last and run in self._ended:
                self._ended.remove(run)  # the run waited for other sites, and begins only now
            self._enter(run, last, is_declared=True, has_keys=needs_plan)
        if not needs_plan:
            return self._reply(header, {}, {})
        return self._begin_plan(header, plan, self._gate.admit(self.memory, run, plan))

    def _begin_plan(self, header: Header, plan: RunPlan, agreed: Agreement) -> Message:
        """Remember the agreement, and offer a key if the plan asks for secure sums."""
        is_new = not self.remembers(Agreement)
        kept = keep_agreement(self.memory, agreed) if is_new else dict(self.memory)
        if is_new and plan.is_private:
            key = np.frombuffer(secrets.token_bytes(SESSION_BYTES), np.uint8)
            remember(kept, Session(key))
        offer: Arrays = {}
        if plan.is_secure:
            from fedpca.site.masking import MaskKeys

            if not self.remembers(MaskKeys):
                remember(kept, MaskKeys.new(header["run"], plan, self._keys))
            offer = {"offer": recall(kept, MaskKeys).offer}
        self._run.memory = read_only(kept)
        reply = self._reply(header, {}, offer)
        if is_new:
            self._save(0, reply)
        return reply

    def _reply(self, asked: Header, more: Header, arrays: Mapping[str, Array]) -> Message:
        """Compose a reply whose header repeats the run, round, and question."""
        return _reply(self.name, asked, more, arrays)

    def _enter(
        self, run: str, last: int, *, is_declared: bool = False, has_keys: bool = False
    ) -> None:
        """Begin a run with empty memory, or with the memory that an earlier process saved.

        ``last`` is the run's most recent round that changed the sites' memory. Without the memory from
        that round, any answer could be wrong.

        Files that have changed since the site opened them are opened again. A site may run for months
        while its files change every night, but they must not change during a run.
        """
        if run in self._ended:
            raise MessageError(
                "this run is over, because a newer run has begun at this site; start the fit again"
            )
        files = self._source.files_now()
        is_saved = last or has_keys or not self.policy.is_open
        saved = self._load(run, files) if is_saved else None
        if (0 if saved is None else saved.round) < last:
            raise MessageError(
                f"this question needs the memory of round {last}, which the site does not have; "
                f"{MEMORY_GONE}"
            )
        if saved is None and not is_declared and not self.policy.is_open:
            raise PolicyRefused(UNDECLARED)  # the site stays in its current run
        if files != self._source.files:
            self._source.reopen(files)
            self._standardized = None
        if saved is None:
            self._gate.start_over()
        if self._run.name is not None:
            self._ended.append(self._run.name)
        self._run = CurrentRun.begin(run, saved)

    def _refuse_changed_rows(self) -> None:
        """Refuse to answer if a file has changed since the run began."""
        if self._source.has_changed():
            self._standardized = self._scatter = None  # these may mix old and new rows
            raise InputError(ROWS_CHANGED)

    def file(self, suffix: str) -> Path | None:
        """Return the path of a file in the site's folder, or None if it has no folder."""
        if self.store is None:
            return None
        return self.store / f"{file_stem(self.name)}{suffix}"

    def _save(self, round_number: int, reply: Message) -> None:
        """Save the memory and the answer before the answer leaves."""
        path = self.file(".memory")
        if path is not None:
            saved = Saved(round_number, reply, self.memory)
            rows = self._source.fingerprint_of(self._source.files)
            try:
                MemoryFile(path).save(str(self._run.name), rows, saved)
            except (FileError, OSError) as error:
                log.error("site %s cannot save its memory: %s", self.name, error)
                raise SiteFailed(
                    "the site cannot save its memory; free up disk space at the site"
                ) from None

    def _load(self, run: str, files: Mapping[Path, str]) -> Saved | None:
        """Return what an earlier process saved for this run, or None."""
        path = self.file(".memory")
        return (
            None if path is None else MemoryFile(path).load(run, self._source.fingerprint_of(files))
        )


def refusal(site: str, asked: Header, error: FedpcaError) -> Message:
    """Compose a site's reply that contains only an error."""
    # report the nearest base class that the coordinator recognizes
    kinds = [k for k in type(error).__mro__ if k.__name__ in REPORTED_BY_SITES]
    kind = kinds[0] if kinds else SiteFailed  # a FileError, for example, concerns only the site
    return _reply(site, asked, {"error": kind.__name__, "text": str(error)}, {})


def _reply(site: str, asked: Header, more: Header, arrays: Mapping[str, Array]) -> Message:
    echo = {key: asked.get(key) for key in ("run", "round", "question")}
    return compose({**echo, "site": site, **more}, arrays)
