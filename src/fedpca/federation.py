"""The coordinator's handle on all sites: `sum`, `gather`, quorum, ledger and journal.

`Federation.sum` gives the total of the sites' answers and `Federation.gather` every one of them. The
verb is the disclosure. Sums run in float64 and in the order of the sites, so that the same run gives
the same bits on every engine.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Protocol, TypeVar

import numpy as np

from fedpca._version import __version__
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
from fedpca.journal import Journal
from fedpca.message import Array, Message
from fedpca.question import Arrays, Question
from fedpca.round import Round
from fedpca.run import Run

T = TypeVar("T")


class Engine(Protocol):
    """Carries a question to sites and their answers back.

    `ask` takes the same message to every site of ``names``, encoded where it leaves the process. It
    yields each site's answer as it comes, in any order, as bytes where they came from elsewhere, or a
    `SiteError` in its place; whatever a transport raises is mapped to that one class.
    """

    @property
    def names(self) -> Sequence[str]: ...

    def fingerprints(self) -> Mapping[str, str]: ...  # of the rows that it can look at itself

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, Message | bytes | SiteError]]: ...

    def close(self) -> None: ...  # lets go of what it holds; asking again takes it up again


class Federation:
    """All sites, as the coordinator sees them.

    Parameters
    ----------
    engine : Engine
        Carries the messages; see `Federation.local`.
    quorum : int, optional
        Fewest sites that must answer every round; all of them by default.
    timeout : float, optional
        Seconds that a site has to answer a round.
    journal : path, optional
        File that makes the run resumable.
    on_round : callable, optional
        Called with the entry of `Run.history` after each round.
    """

    # of the run that goes on now, set by _begin
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
            raise InputError(f"sites need names of their own: {names}")
        _check_limits(quorum, timeout, len(names))
        self.engine = engine
        self.quorum = len(names) if quorum is None else quorum
        self.timeout = timeout
        self.on_round = on_round
        self._journal_path = journal
        self._begin(secrets.randbits(63))

    @classmethod
    def local(cls, sites: Any, *, n_jobs: int | None = None, **options: Any) -> Federation:
        """A federation within this process.

        Parameters
        ----------
        sites : dict, list
            Rows (or a `Site`) of each site by name, or a list of rows named site-1, site-2, ...
        n_jobs : int, optional
            Sites that work at the same time, on threads; one after another by default.
        **options
            ``quorum``, ``timeout``, ``journal``, ``on_round`` as above. The time limit counts from
            the moment at which a site's turn begins. Beside a journal ``F`` the sites keep their
            memory in the folder ``F.sites``.
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
        tls: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        wait: float = 60.0,
        quorum: int | None = None,
        timeout: float | None = 600.0,
        **options: Any,
    ) -> Federation:
        """A federation of sites that joined the server at ``address``; needs the extra ``flower``.

        Parameters
        ----------
        address : str
            HOST or HOST:PORT of what `fedpca serve` serves.
        sites : int or list of str, optional
            How many sites, or which; all whose keys the server has by default.
        tls : path, optional
            The folder of ``coordinator.secret`` and ``ca.pem``; that of `fedpca serve` by default.
            Without a ``ca.pem`` the server's certificate must be one of the usual authorities.
        insecure : bool
            Whether the server speaks plain HTTP.
        wait : float
            Seconds until the sites must be online, or as many of them as the quorum asks for.
        quorum, timeout, **options
            As above; a time limit is that of a whole round.
        """
        from fedpca.engines.flower.connect import connect

        _check_limits(quorum, timeout)
        engine = connect(
            address,
            sites=sites,
            tls=tls,
            insecure=insecure,
            wait=wait,
            quorum=quorum,
            journal=options.get("journal"),
        )
        try:
            return cls(engine, quorum=quorum, timeout=timeout, **options)
        except BaseException:
            engine.close()
            raise

    def close(self) -> None:
        """Let go of connections and threads; a federation may be used again afterwards."""
        self.engine.close()

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sum(self, question: Question, **arrays: Any) -> Arrays:
        """The total over sites of their answers; the coordinator needs no single one."""
        return self._ask("sum", question, arrays).total

    def gather(self, question: Question, **arrays: Any) -> dict[str, Arrays]:
        """Every site's answer by its name: the coordinator sees them all."""
        return self._ask("gather", question, arrays).answers

    def report(self, residual: float, subspace: Callable[[], Array]) -> None:
        """What a solver knows after a round: how far it is, and a way to its best subspace."""
        self.record.history[-1]["residual"] = residual
        self._best = subspace

    def rng(self) -> np.random.Generator:
        """Random numbers that depend on the run's seed and the round alone."""
        return np.random.default_rng([self.record.seed, self.record.rounds])

    def run(
        self,
        program: Callable[[Federation, Array | None], T],
        *,
        about: Mapping[str, Any],
        seed: int | None = None,
    ) -> T:
        """The result of ``program(federation, start)``, as of exactly the sites in `record.sites`.

        When sites are lost and the quorum holds, the program starts again with the others; ``start``
        is then the best subspace that it had reported, else None.
        """
        self._begin(secrets.randbits(63) if seed is None else seed)
        if self._journal_path is not None:
            about = {
                **about,
                "version": __version__,
                "sites": list(self.record.sites),
                "quorum": self.quorum,
                "rows": dict(self.engine.fingerprints()),
            }
            journal = Journal(self._journal_path, about=about, seed=self.record.seed)
            if seed not in (None, journal.seed):
                journal.close()
                raise JournalError(
                    f"{journal.path} belongs to a run of seed {journal.seed}, not {seed}"
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
        self.record = Run(seed=seed, sites=tuple(self.engine.names))
        self.n_features: int | None = None
        self._run = secrets.token_hex(8)
        self._attempt = 0
        self._memory = 0  # the attempt's last round of which sites had to remember something
        self._journal = None
        self._best = None
        self._unannounced = None

    def _ask(self, verb: str, question: Question, arrays: Mapping[str, Any]) -> Round:
        self._announce()
        began = time.perf_counter()
        dimensions = {} if self.n_features is None else {"d": self.n_features}
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
        """Ask all sites, and those that fail once more; what sites refuse is given back.

        Bad rows and policies are not failures: asking again, or going on without the site, is not for
        a program to decide.
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
        """Tell of the last round once the solver has had its chance to report on it."""
        entry, self._unannounced = self._unannounced, None
        if entry is not None and self.on_round is not None:
            self.on_round(entry)

    def _go_on_without(self, lost: SitesLost) -> None:
        left = tuple(name for name in self.record.sites if name not in lost.sites)
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
        if len(left) < self.quorum:
            raise QuorumLost(
                f"{len(left)} of {len(self.record.sites)} sites are left and the quorum is "
                f"{self.quorum}; {lost}"
            ) from lost
        self.record.sites = left
        self._attempt += 1
        self._memory = 0


def _check_limits(quorum: Any, timeout: Any, n_sites: int | None = None) -> None:
    """Refuse a quorum or a time limit that cannot be one, of so many sites if that is known."""
    is_number = quorum is None or isinstance(quorum, Integral)
    if not is_number or (quorum is not None and not 1 <= quorum <= (n_sites or quorum)):
        of = "the sites" if n_sites is None else f"the {n_sites} sites"
        raise InputError(f"quorum={quorum} is not a whole number between 1 and {of}")
    if timeout is not None and not (isinstance(timeout, Real) and float(timeout) > 0):
        raise InputError(f"timeout={timeout!r} must be a number of seconds above 0, or None")
