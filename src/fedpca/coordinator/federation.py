"""Ask every site a question and combine the answers.

`Federation.sum` returns the total of the sites' answers. `Federation.gather` returns each site's
answer. So the choice of method determines what is disclosed. Sums are computed in float64 and in site
order, so the same run gives the same bits on every engine.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedpca._version import __version__
from fedpca.arrays import Array, Arrays, Dimensions
from fedpca.coordinator.approval import ApprovalWait, OnWaiting
from fedpca.coordinator.declaration import Declaration, refuse_unmaskable
from fedpca.coordinator.journal import Journal, recorded_sites
from fedpca.coordinator.record import RunRecord, shares_of
from fedpca.coordinator.round import Reply, Round, collect, joined
from fedpca.engines.base import Engine, Summand, Total
from fedpca.errors import (
    FedpcaError,
    InputError,
    JournalError,
    PolicyRefused,
    QuorumLost,
    SitesBusy,
    SitesLost,
)
from fedpca.linalg.blas_threads import threads_for_entries
from fedpca.protocol.plan import MAX_PURPOSE, NO_KEY, SECURE, RunPlan
from fedpca.protocol.question import Question

if TYPE_CHECKING:
    from fedpca.coordinator.secure import Masks, SecureSums

T = TypeVar("T")


class Federation:
    """The coordinator's handle to all sites.

    Parameters
    ----------
    engine : Engine
        The engine that carries the messages; see `Federation.local`.
    quorum : int, optional
        The smallest number of sites that must answer in every round; by default, all sites.
    timeout : float, optional
        How many seconds a site has to answer in each round.
    journal : path, optional
        The file from which the run can be resumed.
    on_round : callable, optional
        A function that is called after each round with that round's entry in `RunRecord.history`.
    purpose : str
        Why the runs take place, in a line of words that people at the sites read.
    approval_wait : float
        How many seconds a run waits for sites where a person must approve it. After that,
        `ApprovalPending` names those that have not.
    on_waiting : callable, optional
        A function that is called with the run's name and the names of the sites that have still to
        approve it, whenever they change.
    secure : bool
        Whether sums are secure: the coordinator can read the total over all sites, and nothing about a
        single one. This requires the extra ``privacy``.
    """

    # state of the current run, set by _begin
    _journal: Journal | None
    _best: Callable[[], Array] | None
    _unannounced: dict[str, Any] | None
    _asked_before: dict[str, Any]  # the entry of a message before the question of a round
    _refused: Round | None  # the last round, if a policy refused it
    _is_held: bool  # whether the sites are reserved for the run
    _reservation: ExitStack  # which ends when it is closed
    _is_declared: bool  # whether the sites know the plan of this attempt
    _identity: Mapping[str, Any] | None  # what the plan says about the program
    _secure_sums: SecureSums | None  # in a run with secure sums

    def __init__(
        self,
        engine: Engine,
        *,
        quorum: int | None = None,
        timeout: float | None = None,
        journal: str | os.PathLike[str] | None = None,
        on_round: Callable[[dict[str, Any]], None] | None = None,
        purpose: str = "",
        approval_wait: float = 0.0,
        on_waiting: OnWaiting | None = None,
        secure: bool = False,
    ) -> None:
        names = list(engine.names)
        if not names:
            raise InputError("a federation needs at least one site")
        if len(set(names)) < len(names):
            raise InputError(f"site names must be unique, but they are {names}")
        _check_limits(quorum, timeout, len(names))
        _check_approval(purpose, approval_wait)
        _refuse_lacking(engine, secure=secure, journal=journal is not None)
        self.engine = engine
        self.quorum = len(names) if quorum is None else quorum
        self.timeout = timeout
        self.on_round = on_round
        self.purpose = purpose
        self.approval_wait = approval_wait
        self.on_waiting = on_waiting
        self.secure = secure
        self._journal_path = journal
        self._in_use = threading.Lock()
        self._until_end: ExitStack | None = None  # what a run gives back when it ends
        self._begin(secrets.randbits(63))

    @classmethod
    def local(cls, sites: Any, *, n_jobs: int | None = None, **options: Any) -> Federation:
        """Return a federation of sites within this process.

        Parameters
        ----------
        sites : dict, list
            The rows of each site, or a `Site`, keyed by name. Sites in a list are named site-1,
            site-2, and so on.
        n_jobs : int, optional
            The number of sites that work at the same time, each in a thread; by default, one at a time.
        **options
            ``quorum``, ``timeout``, ``journal``, ``on_round``, ``purpose``, ``approval_wait``,
            ``on_waiting``, and ``secure``, as for `Federation`. A site's time limit starts when the
            site begins to work. With a journal ``F``, the sites keep their memory in the folder
            ``F.sites``.
        """
        from fedpca.engines.local import LocalEngine

        engine = LocalEngine(sites, n_jobs=n_jobs, journal=options.get("journal"))
        return cls(engine, **options)

    @classmethod
    def flower(
        cls,
        address: str,
        *,
        sites: int | Sequence[str] | None = None,
        credentials: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        wait: float = 60.0,
        quorum: int | None = None,
        timeout: float | None = 600.0,
        **options: Any,
    ) -> Federation:
        """Return a federation of the sites that joined a server; this requires the extra ``flower``.

        Parameters
        ----------
        address : str
            The address of the coordinator's server, which `fedpca serve` starts, as HOST or HOST:PORT.
        sites : int or list of str, optional
            The number of sites, or their names; by default, all sites whose keys the server has. A
            resumed run keeps the sites that it started with.
        credentials : path, optional
            The folder that holds ``coordinator.secret`` and ``ca.pem``; by default, the folder that
            `fedpca serve` uses. Without a ``ca.pem``, the server's certificate must come from an
            authority that this machine trusts.
        insecure : bool
            Whether to use plain HTTP, without TLS.
        wait : float
            How many seconds to wait for all sites to come online. After that, a quorum is enough. If a
            different run is using some of the sites, a fit waits as long for that run to end, and then
            raises `SitesBusy`.
        quorum, timeout, **options
            As for `Federation`; the time limit applies to a whole round.
        """
        from fedpca.engines.flower.engine import connect

        _check_limits(quorum, timeout)
        _check_approval(options.get("purpose", ""), options.get("approval_wait", 0.0))
        engine = connect(
            address,
            sites=sites,
            credentials=credentials,
            insecure=insecure,
            wait=wait,
            quorum=quorum,
            resumed=recorded_sites(options.get("journal")),
        )
        try:
            return cls(engine, quorum=quorum, timeout=timeout, **options)
        except BaseException:
            engine.close()
            raise

    @classmethod
    def dask(
        cls,
        client: Any,
        rows: Any,
        *,
        drop: str | Sequence[str] | None = None,
        columns: str | Sequence[str] | None = None,
        id: str | Sequence[str] | None = None,
        weight: str | None = None,
        **options: Any,
    ) -> Federation:
        """Return a federation of the workers of a Dask cluster; this requires the extra ``dask``.

        The rows stay at the workers, and sums are added up there. If a worker is lost, another one
        reads its rows again and answers in its place.

        Parameters
        ----------
        client : distributed.Client, str, or None
            The cluster, or the address of its scheduler; None stands for the client in use. Without a
            client, this process reads the rows, one block at a time.
        rows : Dask array or data frame, delayed blocks, paths, or a dict of these
            A table, whose blocks are spread over the workers, one site for each; or a dict with the
            rows of each site. Blocks of unknown length and sparse blocks are accepted. Paths of files
            or folders, which may contain ``*``, are those that the workers see. A file is read by one
            worker.
        drop, columns, id, weight
            The names of columns, as for `Site`.
        **options
            ``quorum``, ``timeout``, and ``on_round``, as for `Federation`.
        """
        from fedpca.engines.dask.engine import connect

        choice = {"drop": drop, "columns": columns, "id": id, "weight": weight}
        engine = connect(client, rows, choice)
        try:
            return cls(engine, **options)
        except BaseException:
            engine.close()
            raise

    @classmethod
    def flower_app(
        cls,
        grid: Any,
        *,
        sites: int | Sequence[str],
        wait: float = 60.0,
        quorum: int | None = None,
        timeout: float | None = 600.0,
        **options: Any,
    ) -> Federation:
        """Return a federation of the nodes of a Flower app; this requires the extra ``flower-app``.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
            What Flower hands to the main function of a ServerApp.
        sites : int or list of str
            The number of sites, or their names. A resumed run keeps the sites that it started with.
        wait : float
            How many seconds to wait for all sites to come online. After that, a quorum is enough.
        quorum, timeout, **options
            As for `Federation`; the time limit applies to a whole round. ``secure`` is refused by the
            sites, because each question has a process of its own there.
        """
        from fedpca.engines.flower_app.engine import GridEngine

        _check_limits(quorum, timeout)
        resumed = recorded_sites(options.get("journal"))
        engine = GridEngine(grid, sites=resumed or sites, quorum=quorum, wait=wait)
        return cls(engine, quorum=quorum, timeout=timeout, **options)

    def close(self) -> None:
        """Close connections and threads; the federation can be used again afterward."""
        self.engine.close()

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sum(self, question: Question, **arrays: Any) -> Arrays:
        """Ask all sites and return the total of their answers; the program sees nothing else."""
        _check_verb(question, "sum")
        return self._ask(question, arrays).total

    def gather(self, question: Question, **arrays: Any) -> dict[str, Arrays]:
        """Ask all sites and return their answers, keyed by site name; the coordinator sees each one."""
        _check_verb(question, "gather")
        if self.secure and question.reads_rows:
            raise PolicyRefused(
                f"{question.name!r} shows the answer of each site, which no secure sum can hide"
            )
        return self._ask(question, arrays).answers

    @property
    def plan(self) -> RunPlan:
        """Return the plan of the present attempt, as the sites are told."""
        return self._plan()

    def bind(self, **lengths: int) -> None:
        """Require these dimensions in all later messages of the run, as in ``bind(d=30)``."""
        self._dimensions |= lengths

    def report(self, residual: float, subspace: Callable[[], Array]) -> None:
        """Record the residual after a round and a function that returns the current best subspace."""
        self.record.history[-1]["residual"] = residual
        self._best = subspace

    def report_influence(self, kind: str, values: Mapping[str, float]) -> None:
        """Record one number about each site's part in the result, as in `RunRecord.influence`."""
        for name, value in values.items():
            self.record.influence.setdefault(name, {})[kind] = value

    def rng(self) -> np.random.Generator:
        """Return a random generator that depends only on the run's seed and the round."""
        return np.random.default_rng([self.record.seed, self.record.rounds])

    def run(
        self,
        program: Callable[[Federation, Array | None], T],
        *,
        identity: Mapping[str, Any],
        seed: int | None = None,
    ) -> T:
        """Run ``program(federation, start)`` and return its result for exactly `record.sites`.

        If sites are lost but enough remain for a quorum, the program starts over with the remaining
        sites. In that case, ``start`` is the best subspace that the program reported; otherwise, it is
        None. ``identity`` describes the run in plain values, so that a journal from a different run is
        refused. A site answers one run at a time: if a different run is using the sites, `SitesBusy`
        is raised, and that run goes on.
        """
        with self._one_at_a_time():
            return self._run_program(program, identity, seed)

    def _run_program(
        self,
        program: Callable[[Federation, Array | None], T],
        identity: Mapping[str, Any],
        seed: int | None,
    ) -> T:
        _refuse_lacking(self.engine, privacy="privacy" in identity)
        self._begin(secrets.randbits(63) if seed is None else seed)
        self._identity = identity
        self._begin_secure_sums()
        if self._journal_path is not None:
            identity = {
                **identity,
                "version": __version__,
                "sites": list(self.record.sites),
                "quorum": self.quorum,
                "purpose": self.purpose,
                "secure": self.secure,
                "rows": dict(self.engine.fingerprints()),
            }
            journal = Journal(self._journal_path, identity=identity, seed=self.record.seed)
            if seed not in (None, journal.seed):
                journal.close()
                raise JournalError(
                    f"{journal.path} belongs to a run with seed {journal.seed}, not {seed}; use that "
                    "seed or specify a new file"
                )
            self._journal, self._run, self.record.seed = journal, journal.run, journal.seed
        try:
            while True:
                try:
                    with threads_for_entries(0):  # until large arrays are at work
                        result = program(self, None if self._best is None else self._best())
                    self._go_on_after_refusal()
                    return result
                except SitesLost as lost:
                    self._go_on_without(lost)
        finally:
            try:
                self._announce()
            finally:
                if self._journal is not None:
                    self._journal.close()
                    self._journal = None

    def _begin_secure_sums(self) -> None:
        """Begin an attempt in which nothing is known about the size of sums."""
        if self.secure:
            from fedpca.coordinator.secure import SecureSums
            from fedpca.privacy.offers import roster_hash

            self._secure_sums = SecureSums()
            self.record.secure = {"roster": roster_hash(self._plan())}

    def _go_on_after_refusal(self) -> None:
        """Record a round that a policy refused, once the program goes on without its answers.

        If the refusal ends the run, a person may change the policy, so the resumed run asks again.
        """
        refused, self._refused = self._refused, None
        if refused is not None and self._journal is not None:
            self._journal.append(*refused.to_record())

    def _begin(self, seed: int) -> None:
        absent: Mapping[str, str] = getattr(self.engine, "absent", {})
        lost = [
            {"site": name, "round": 0, "question": "", "reason": f"site {name!r}: {reason}"}
            for name, reason in absent.items()
        ]
        self.record = RunRecord(seed=seed, sites=tuple(self.engine.names), lost=lost)
        self._dimensions: Dimensions = {}
        self._run = secrets.token_hex(8)
        self._attempt = 0
        self._memory = 0  # the last round of this attempt that changed the sites' memory
        self._energies: dict[str, float] = {}  # each site's sum of squares, if it was told
        self._journal = None
        self._best = None
        self._unannounced = None
        self._asked_before = {}
        self._refused = None
        self._is_held = False
        self._is_declared = False
        self._identity = None
        self._secure_sums = None

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Refuse a second run in this federation, and give the sites back when the first one ends."""
        if not self._in_use.acquire(blocking=False):
            raise SitesBusy(
                "a different run is using this federation; wait until it ends, or create a second "
                "federation with sites of its own"
            )
        try:
            with ExitStack() as self._until_end:
                yield
        finally:
            self._until_end = None
            self._in_use.release()

    def _hold_sites(self) -> None:
        """Reserve the sites before the first question of a run, if the engine shares them."""
        hold = getattr(self.engine, "hold", None)
        if hold is not None and self._until_end is not None and not self._is_held:
            self._reservation = self._until_end.enter_context(ExitStack())
            self._reservation.enter_context(hold(self._run))
            self._is_held = True

    def _release_sites(self) -> None:
        """Let other runs use the sites, until `_hold_sites` reserves them again."""
        if self._is_held:
            self._is_held = False
            self._reservation.close()

    def _ask(self, question: Question, arrays: Mapping[str, Any]) -> Round:
        """Ask all sites a question, or read the answers from the journal, and record the round."""
        self._announce()
        self._go_on_after_refusal()
        began = time.perf_counter()
        dimensions = dict(self._dimensions)
        checked = question.check_request(arrays, dimensions)
        asked = self._round(question, checked, dimensions, self._masks_for(question, checked))
        entry = self._complete(asked)
        if asked.has_failed:
            self._keep_entry(entry)
            masks = self._masks_for(question, checked, has_failed=True)
            asked = self._round(question, checked, dict(self._dimensions), masks)
            entry = self._complete(asked)
        self._enter_history(entry, time.perf_counter() - began)
        self._count_spent(question)
        asked.raise_outcome()
        if asked.masks is not None:  # whose flags are no part of the answer
            asked.total = {name: asked.total[name] for name in question.answers}
        if question.remembers:
            self._memory = asked.number
        self._keep_told(asked)
        return asked

    def _round(
        self, question: Question, arrays: Arrays, dimensions: Dimensions, masks: Masks | None
    ) -> Round:
        """Return the next round of the run."""
        return Round(
            run=f"{self._run}.{self._attempt}",
            number=self.record.rounds + 1,
            question=question,
            arrays=arrays,
            sites=self.record.sites,
            dimensions=dimensions,
            memory=self._memory,
            energies=self._energies,
            masks=masks,
        )

    def _complete(self, asked: Round) -> dict[str, Any]:
        """Ask the sites, or read the answers from the journal; return the entry for the history."""
        recorded = None if self._journal is None else self._journal.next()
        if recorded is not None:
            asked.from_record(recorded)
        else:
            asked.refused = self._send(asked)
            # a loss that ends the run may pass, so the resumed run asks again
            is_final = asked.refused is None and self._has_quorum(asked.lost)
            if self._journal is not None and is_final:
                self._journal.append(*asked.to_record())
            elif isinstance(asked.refused, PolicyRefused):
                self._refused = asked
        return asked.enter(self.record.ledger)

    def _masks_for(
        self, question: Question, arrays: Arrays, *, has_failed: bool = False
    ) -> Masks | None:
        """Return the masks of the answers in a run with secure sums, else None.

        If nobody knows how large the answers are, the sites are asked for that first, in a message
        within the same round. So they are if a bound was tried, and ``has_failed``.
        """
        if not self.secure or question.verb != "sum":
            return None
        if self._secure_sums is None:
            raise InputError(
                "secure sums need a run, in which the sites exchange keys; use Federation.run, or an "
                "estimator's fit"
            )

        def ask(masks: Masks) -> Arrays:
            asked = self._round(question, arrays, dict(self._dimensions), masks)
            self._keep_entry(self._complete(asked))
            if asked.lost or asked.refused is not None:  # the round ends here
                self._enter_history({})
            asked.raise_outcome()
            return asked.total

        n_sites = len(self.record.sites)
        return self._secure_sums.masks_for(question, arrays, n_sites, ask, has_failed=has_failed)

    def _keep_entry(self, entry: dict[str, Any]) -> None:
        """Keep the entry of a message that is followed by another one in the same round."""
        before = self._asked_before
        bytes_of = {name: entry[name] + before.get(name, 0) for name in ("bytes_up", "bytes_down")}
        self._asked_before = {**entry, **bytes_of}

    def _enter_history(self, entry: dict[str, Any], seconds: float = 0.0) -> None:
        """Enter a round into the history, with the bytes of messages before it in the same round."""
        before, self._asked_before = self._asked_before, {}
        for name in ("bytes_up", "bytes_down") if entry and before else ():
            entry[name] += before[name]
        self.record.history.append({**before, **entry, "seconds": seconds, "residual": None})
        self._unannounced = self.record.history[-1]

    def _declare(self) -> dict[str, str]:
        """Declare the run's plan to the sites before the first question of an attempt.

        Return what went wrong at each site that did not answer. A refusal is raised. Only engines with
        sites that follow a plan have ``declares``.
        """
        if self._is_declared or self._identity is None:
            return {}
        plan = self._plan()
        if not plan.privacy and not getattr(self.engine, "declares", False):
            return {}
        if self.secure:
            refuse_unmaskable(plan)
        attempt = f"{self._run}.{self._attempt}"
        declaration = Declaration(self.engine, plan, attempt, self._memory, self.timeout)
        can_resume = self._journal is not None
        wait = ApprovalWait(self._run, self.approval_wait, can_resume, self.on_waiting)
        failed = declaration.declare(wait, self._hold_sites, self._release_sites)
        if self.secure and not failed:
            failed = declaration.agree_on_keys()
        self._is_declared = True
        return failed

    def _plan(self) -> RunPlan:
        """Return the plan of this attempt, as the sites are told."""
        identity = self._identity or {}
        keys: Mapping[str, str] = getattr(self.engine, "keys", {})
        return RunPlan(
            run=self._run,
            program=str(identity.get("program", "program")),
            parameters=identity.get("parameters", {}),
            sites={name: keys.get(name, NO_KEY) for name in self.record.sites},
            purpose=self.purpose,
            privacy={**identity.get("privacy", {}), **({SECURE: True} if self.secure else {})},
        )

    def _count_spent(self, question: Question) -> None:
        """Add what a question takes from the privacy of the rows, also if only some sites answered."""
        if question.spends is not None:
            from fedpca.privacy.gaussian import Privacy, epsilon_of

            plan, spent = self._plan(), self.record.privacy
            settings = Privacy.of(plan)
            mu = math.hypot(spent.get("mu", 0.0), math.sqrt(question.spends(plan)))
            self.record.privacy = {
                **settings.to_plain(),
                "promised": settings.epsilon,
                "mu": mu,
                "epsilon": epsilon_of(mu, settings.delta),
            }

    def _keep_told(self, asked: Round) -> None:
        """Keep each site's share of the rows, weight, and variance, if all sites told them.

        Rows are counted once. Weights are kept if they differ from the numbers of rows.
        """
        if self._secure_sums is not None and asked.masks is not None:
            self._secure_sums.keep_told(asked.masks, asked.total)
            return
        told = asked.told
        kinds = {"rows": "rows", "weight": "weight", "energy": "variance"}
        if any("rows" in known for known in self.record.influence.values()):
            del kinds["rows"]
        if all(each.get("weight") == each.get("rows") for each in told.values()):
            del kinds["weight"]
        for word, kind in kinds.items():
            amounts = {name: each[word] for name, each in told.items() if word in each}
            if len(amounts) == len(self.record.sites):
                self.report_influence(kind, shares_of(amounts))
                if word == "energy":
                    self._energies = amounts

    def _send(self, asked: Round) -> FedpcaError | None:
        """Ask all sites, retry those that failed, and return an error if any site refuses.

        A site that refuses because of its rows or its policy has not failed. A person must decide
        whether to ask again or continue without it.
        """
        self._hold_sites()
        failed = self._declare()
        if failed:
            asked.close(lost=failed, is_void=True)
            return None
        refused: dict[str, FedpcaError] = {}
        for attempt in (1, 2):
            pending = asked.sites if attempt == 1 else tuple(failed)
            asked.retried = list(failed)
            failed = {name: f"site {name!r} did not answer" for name in pending}
            refused |= collect(self._replies(asked, pending), asked.accept, failed)
            if not failed or refused:
                break
        asked.close(lost=failed, is_void=bool(failed or refused))
        self.record.proofs |= getattr(self.engine, "proofs", {})
        return joined(refused, asked.sites) if refused else None

    def _replies(self, asked: Round, names: Sequence[str]) -> Iterable[tuple[str, Reply | Summand]]:
        """Ask sites, and return what each replied; some engines add up the answers on the way."""
        ask_total = getattr(self.engine, "ask_total", None)
        if ask_total is None or asked.verb != "sum":
            return self.engine.ask(names, asked.request, self.timeout)
        total: Total = ask_total(names, asked.request, self.timeout)
        asked.add_total(total)
        return total.replies.items()

    def _has_quorum(self, lost: Collection[str]) -> bool:
        """Return whether enough sites remain without the lost ones."""
        return len(self.record.sites) - len(lost) >= self.quorum

    def _announce(self) -> None:
        """Announce the last round once the solver has had a chance to report on it."""
        entry, self._unannounced = self._unannounced, None
        if entry is not None and self.on_round is not None:
            self.on_round(entry)

    def _go_on_without(self, lost: SitesLost) -> None:
        """Record the lost sites and prepare a new attempt without them, if a quorum remains."""
        remaining = tuple(name for name in self.record.sites if name not in lost.sites)
        last = self.record.history[-1]
        self.record.lost += [
            {
                "site": name,
                "round": last["round"],
                "question": last["question"],
                "reason": lost.reasons[name],
            }
            for name in lost.sites
        ]
        if not self._has_quorum(lost.sites):
            raise QuorumLost(
                f"{len(remaining)} of {len(self.record.sites)} sites are left, but the quorum is "
                f"{self.quorum}; {lost}"
            ) from lost
        self.record.sites = remaining
        self.record.influence, self._energies = {}, {}
        self._attempt += 1
        self._memory = 0
        self._is_declared = False
        self._begin_secure_sums()


def _check_verb(question: Question, verb: str) -> None:
    """Refuse to combine answers in a way that the question does not declare."""
    if question.verb != verb:
        raise InputError(
            f"the answers to {question.name!r} are for {question.verb!r}, not {verb!r}; use "
            f"Federation.{question.verb}, or declare the question with verb={verb!r}"
        )


def _refuse_lacking(engine: Engine, **wanted: bool) -> None:
    """Refuse what an engine says that it cannot do."""
    lacks: Mapping[str, str] = getattr(engine, "lacks", {})
    for name, is_wanted in wanted.items():
        if is_wanted and name in lacks:
            raise InputError(lacks[name])


def _check_approval(purpose: Any, approval_wait: Any) -> None:
    """Refuse a purpose that no plan can hold, or a wait that is no number of seconds."""
    if not isinstance(purpose, str) or len(purpose) > MAX_PURPOSE:
        raise InputError(f"the purpose must be a text of at most {MAX_PURPOSE} characters")
    if not isinstance(approval_wait, Real) or not float(approval_wait) >= 0:
        raise InputError(f"approval_wait={approval_wait!r} must be a nonnegative number of seconds")


def _check_limits(quorum: Any, timeout: Any, n_sites: int | None = None) -> None:
    """Refuse a quorum that is out of range or a time limit that is not positive."""
    is_number = quorum is None or isinstance(quorum, Integral)
    if not is_number or (quorum is not None and not 1 <= quorum <= (n_sites or quorum)):
        most = "the number of sites" if n_sites is None else f"{n_sites}, the number of sites"
        raise InputError(f"quorum={quorum} must be a whole number from 1 to {most}")
    if timeout is not None and not (isinstance(timeout, Real) and float(timeout) > 0):
        raise InputError(f"timeout={timeout!r} must be a positive number of seconds or None")
