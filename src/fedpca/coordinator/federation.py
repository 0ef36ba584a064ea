"""Ask all sites questions, and combine their answers.

`Federation.sum` returns the total of the sites' answers, and `Federation.gather` returns every answer.
The verb is the disclosure. Sums run in float64 and in the order of the sites, so that the same run
gives the same bits on every engine.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np

from fedpca._version import __version__
from fedpca.arrays import Array, Arrays, Dimensions
from fedpca.coordinator.journal import Journal, recorded_sites
from fedpca.coordinator.record import RunRecord
from fedpca.coordinator.round import Round
from fedpca.engines.base import Engine
from fedpca.errors import (
    FedpcaError,
    InputError,
    JournalError,
    MessageError,
    PolicyRefused,
    QuorumLost,
    SiteError,
    SitesLost,
)
from fedpca.protocol.question import Question

T = TypeVar("T")


class Federation:
    """The coordinator's handle on all sites.

    Parameters
    ----------
    engine : Engine
        Carries the messages; see `Federation.local`.
    quorum : int, optional
        Fewest sites that must answer every round; by default all of them.
    timeout : float, optional
        Seconds that a site has to answer a round.
    journal : path, optional
        File from which the run can be resumed.
    on_round : callable, optional
        Called with the entry of `RunRecord.history` after each round.
    """

    # state of the current run, set by _begin
    _journal: Journal | None
    _best: Callable[[], Array] | None
    _unannounced: dict[str, Any] | None

    def __init__(
        self,
        engine: Engine,
        *,
        quorum: int | None = None,
        timeout: float | None = None,
        journal: str | os.PathLike[str] | None = None,
        on_round: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        names = list(engine.names)
        if not names:
            raise InputError("a federation needs at least one site")
        if len(set(names)) < len(names):
            raise InputError(f"two sites have the same name in {names}; give each its own")
        _check_limits(quorum, timeout, len(names))
        self.engine = engine
        self.quorum = len(names) if quorum is None else quorum
        self.timeout = timeout
        self.on_round = on_round
        self._journal_path = journal
        self._begin(secrets.randbits(63))

    @classmethod
    def local(cls, sites: Any, *, n_jobs: int | None = None, **options: Any) -> Federation:
        """Return a federation of sites within this process.

        Parameters
        ----------
        sites : dict, list
            The rows of each site, or a `Site`, by name. Sites in a list are called site-1, site-2, ...
        n_jobs : int, optional
            Number of sites that work at the same time, on threads; by default one after another.
        **options
            ``quorum``, ``timeout``, ``journal`` and ``on_round``, as above. The time limit counts from
            the moment when a site begins to work. With a journal ``F``, the sites keep their memory in
            the folder ``F.sites``.
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
        """Return a federation of the sites that joined a server; needs the extra ``flower``.

        Parameters
        ----------
        address : str
            HOST or HOST:PORT of the coordinator's server, started by `fedpca serve`.
        sites : int or list of str, optional
            The number of sites, or their names; by default all sites whose keys the server has. A run
            that is resumed keeps the sites that it began with.
        credentials : path, optional
            The folder that holds ``coordinator.secret`` and ``ca.pem``; by default the folder that
            `fedpca serve` uses. Without a ``ca.pem``, the server's certificate must come from an
            authority that this machine trusts.
        insecure : bool
            Whether to use plain HTTP, without TLS.
        wait : float
            Seconds to wait until the sites are online. After that, a quorum of them is enough.
        quorum, timeout, **options
            As above; the time limit holds for a whole round.
        """
        from fedpca.engines.flower.engine import connect

        _check_limits(quorum, timeout)
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

    def close(self) -> None:
        """Close connections and threads; the federation may be used again afterwards."""
        self.engine.close()

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sum(self, question: Question, **arrays: Any) -> Arrays:
        """Ask all sites and return the total of their answers, the only thing that the program sees."""
        return self._ask("sum", question, arrays).total

    def gather(self, question: Question, **arrays: Any) -> dict[str, Arrays]:
        """Ask all sites and return each answer by the site's name; the coordinator sees them all."""
        return self._ask("gather", question, arrays).answers

    def bind(self, **lengths: int) -> None:
        """Hold every later message of the run to these dimensions, as in ``bind(d=30)``."""
        self._dimensions |= lengths

    def report(self, residual: float, subspace: Callable[[], Array]) -> None:
        """Record the residual after a round, and a function that returns the best subspace so far."""
        self.record.history[-1]["residual"] = residual
        self._best = subspace

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
        """Return the result of ``program(federation, start)`` for exactly the sites in `record.sites`.

        When sites are lost and the quorum holds, the program starts again with the other sites. Then
        ``start`` is the best subspace that it had reported; otherwise it is None. ``identity`` says in
        plain values what the run is, so that a journal of another run is refused.
        """
        self._begin(secrets.randbits(63) if seed is None else seed)
        if self._journal_path is not None:
            identity = {
                **identity,
                "version": __version__,
                "sites": list(self.record.sites),
                "quorum": self.quorum,
                "rows": dict(self.engine.fingerprints()),
            }
            journal = Journal(self._journal_path, identity=identity, seed=self.record.seed)
            if seed not in (None, journal.seed):
                journal.close()
                raise JournalError(
                    f"{journal.path} belongs to a run with seed {journal.seed}, not {seed}; use that "
                    "seed, or give the name of a new file"
                )
            self._journal, self._run, self.record.seed = journal, journal.run, journal.seed
        try:
            while True:
                try:
                    return program(self, None if self._best is None else self._best())
                except SitesLost as lost:
                    self._go_on_without(lost)
        finally:
            try:
                self._announce()
            finally:
                if self._journal is not None:
                    self._journal.close()
                    self._journal = None

    def _begin(self, seed: int) -> None:
        self.record = RunRecord(seed=seed, sites=tuple(self.engine.names))
        self._dimensions: Dimensions = {}
        self._run = secrets.token_hex(8)
        self._attempt = 0
        self._memory = 0  # the last round of this attempt that changed the memory of sites
        self._journal = None
        self._best = None
        self._unannounced = None

    def _ask(self, verb: str, question: Question, arrays: Mapping[str, Any]) -> Round:
        """Ask all sites one question, or take the answers from the journal, and record the round."""
        self._announce()
        began = time.perf_counter()
        dimensions = dict(self._dimensions)
        asked = Round(
            run=f"{self._run}.{self._attempt}",
            number=self.record.rounds + 1,
            verb=verb,
            question=question,
            arrays=question.check_request(arrays, dimensions),
            sites=self.record.sites,
            dimensions=dimensions,
            memory=self._memory,
        )
        recorded = None if self._journal is None else self._journal.next()
        refused: FedpcaError | None = None
        if recorded is not None:
            asked.from_record(recorded)
        else:
            refused = self._send(asked)
            if self._journal is not None and refused is None:
                self._journal.append(*asked.to_record())
        entry = asked.enter(self.record.ledger)
        entry |= {"seconds": time.perf_counter() - began, "residual": None}
        self.record.history.append(entry)
        self._unannounced = entry
        if refused is not None:
            raise refused
        if asked.lost:
            raise SitesLost(asked.lost)
        if question.remembers:
            self._memory = asked.number
        return asked

    def _send(self, asked: Round) -> FedpcaError | None:
        """Ask all sites, ask failed ones once more, and return an error if any refuse.

        A site that refuses, because of its rows or its policy, has not failed. People must decide
        whether to ask again or to go on without it.
        """
        failed: dict[str, str] = {}
        refused: dict[str, FedpcaError] = {}
        for attempt in (1, 2):
            pending = asked.sites if attempt == 1 else tuple(failed)
            asked.retried = list(failed)
            failed = {name: f"site {name!r} gave no answer" for name in pending}
            for name, reply in self.engine.ask(pending, asked.request, self.timeout):
                try:
                    asked.accept(name, reply)
                except (MessageError, SiteError) as error:
                    failed[name] = str(error)
                except (InputError, PolicyRefused) as error:
                    refused[name] = error
                    failed.pop(name, None)
                else:
                    failed.pop(name, None)
            if not failed or refused:
                break
        asked.close(lost=failed, is_void=bool(failed or refused))
        if not refused:
            return None
        kind = type(next(iter(refused.values())))
        return kind("; ".join(str(error) for error in refused.values() if isinstance(error, kind)))

    def _announce(self) -> None:
        """Announce the last round once the solver has had its chance to report on it."""
        entry, self._unannounced = self._unannounced, None
        if entry is not None and self.on_round is not None:
            self.on_round(entry)

    def _go_on_without(self, lost: SitesLost) -> None:
        """Record the lost sites and prepare another attempt without them, if the quorum holds."""
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
        if len(remaining) < self.quorum:
            raise QuorumLost(
                f"{len(remaining)} of {len(self.record.sites)} sites are left and the quorum is "
                f"{self.quorum}; {lost}"
            ) from lost
        self.record.sites = remaining
        self._attempt += 1
        self._memory = 0


def _check_limits(quorum: Any, timeout: Any, n_sites: int | None = None) -> None:
    """Refuse a quorum or a time limit that makes no sense for this number of sites, if given."""
    is_number = quorum is None or isinstance(quorum, Integral)
    if not is_number or (quorum is not None and not 1 <= quorum <= (n_sites or quorum)):
        of = "the sites" if n_sites is None else f"the {n_sites} sites"
        raise InputError(f"quorum={quorum} is not a whole number between 1 and {of}")
    if timeout is not None and not (isinstance(timeout, Real) and float(timeout) > 0):
        raise InputError(f"timeout={timeout!r} must be a number of seconds above 0, or None")
