"""Ask every site a question and combine the answers.

`Federation.sum` returns the total of the sites' answers, and `Federation.gather` returns the answer of
each site. So the choice between the two determines what is disclosed. Sums are computed in float64 and
in site order. Therefore, the same run gives the same bits on every engine, except on a Dask cluster
with many sites, where workers add up answers in groups.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.approval import OnWaiting
from fedpca.coordinator.journal import recorded_sites
from fedpca.coordinator.record import RunRecord
from fedpca.coordinator.run import Run, Terms
from fedpca.coordinator.warm_start import WarmStart
from fedpca.engines.base import Engine, OnOnline
from fedpca.errors import InputError, SitesBusy, SitesLost
from fedpca.linalg.blas_threads import threads_for_entries
from fedpca.protocol.plan import MAX_PURPOSE, RunPlan
from fedpca.protocol.question import Question
from fedpca.rows.reading import Reading, option_names, reading_of, shows_options

T = TypeVar("T")
ON_REFUSAL = ("lose", "stop")  # what happens if a site refuses and a quorum remains


class Federation:
    """The coordinator's handle to all sites.

    Parameters
    ----------
    engine : Engine
        The engine that carries the messages; see `Federation.local`.
    quorum : int, optional
        The smallest number of sites that must answer in every round; by default, all sites.
    on_refusal : str
        What happens if a site refuses a question because of its policy or its rows, and a quorum
        remains without it. With "lose", the site is lost, like a site that does not answer. With
        "stop", the run stops. Without a quorum, every refusal stops the run.
    timeout : float, optional
        How many seconds a site has to answer in each round.
    journal : path, optional
        The file from which the run can be resumed.
    on_round : callable, optional
        A function that is called after each round with that round's entry in `RunRecord.history`.
    on_answer : callable, optional
        A function that is called when the sites are asked, and again after each site's answer. It gets
        a dict with the ``round``, the name of the ``question``, the ``sites`` that are asked, and the
        ``site`` that has just answered. When the sites are asked, ``site`` is None.
    purpose : str
        The reason for the runs, as one line of text that people at the sites read.
    approval_wait : float
        How many seconds a run waits for sites where a person must approve it. After that, it raises
        `ApprovalPending`, which names the sites where nobody has approved it.
    on_waiting : callable, optional
        A function that is called with the run's name and the names of the sites that still have to
        approve it, whenever the list of these sites changes.
    secure : bool
        Whether to use secure sums, which let the coordinator read the total over all sites but nothing
        about a single site. This requires the extra ``privacy``.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA, Federation
    >>> rng = np.random.default_rng(0)
    >>> sites = {"north": rng.normal(size=(50, 4)), "south": rng.normal(size=(30, 4))}
    >>> federation = Federation.local(sites, quorum=1)  # one site may fail
    >>> FederatedPCA(2).fit(federation).run_.sites
    ('north', 'south')
    """

    # so that changing a setting here, instead of in `terms`, is an error
    __slots__ = ("__weakref__", "_current", "_in_use", "_journal_path", "terms")

    def __init__(
        self,
        engine: Engine,
        *,
        quorum: int | None = None,
        on_refusal: str = "lose",
        timeout: float | None = None,
        journal: str | os.PathLike[str] | None = None,
        on_round: Callable[[dict[str, Any]], None] | None = None,
        on_answer: Callable[[dict[str, Any]], None] | None = None,
        purpose: str = "",
        approval_wait: float = 0.0,
        on_waiting: OnWaiting | None = None,
        secure: bool = False,
    ) -> None:
        if not isinstance(engine, Engine):
            raise InputError(
                f"engine must be derived from fedpca.engines.base.Engine, not {type(engine).__name__}; "
                "for rows in this process, use Federation.local"
            )
        if not isinstance(engine, Engine):
            raise InputError(
                f"engine must be derived from fedpca.engines.base.Engine, not {type(engine).__name__}; "
                "for rows in this process, use Federation.local"
            )
        names = list(engine.names)
        if not names:
            raise InputError("a federation must have at least one site, got none; add a site")
        if len(set(names)) < len(names):
            raise InputError(f"site names must be unique, got {names}; rename the duplicates")
        _check_limits(quorum, timeout, len(names))
        _check_approval(purpose, approval_wait)
        if on_refusal not in ON_REFUSAL:
            raise InputError(f"on_refusal={on_refusal!r} must be one of {', '.join(ON_REFUSAL)}")
        _refuse_lacking(engine, secure=secure, journal=journal is not None)
        self.terms = Terms(
            engine=engine,
            quorum=len(names) if quorum is None else quorum,
            on_refusal=on_refusal,
            timeout=timeout,
            on_round=on_round,
            on_answer=on_answer,
            purpose=purpose,
            approval_wait=approval_wait,
            on_waiting=on_waiting,
            secure=secure,
        )
        self._journal_path = journal
        self._in_use = threading.Lock()
        self._current = Run(self.terms)

    @classmethod
    def local(cls, sites: Any, *, n_jobs: int | None = None, **options: Any) -> Federation:
        """Return a federation of sites in this process.

        Parameters
        ----------
        sites : dict or list
            The rows of each site or a `Site`, in a dict by name or in a list. Rows in a list get the
            names site-1, site-2, and so on.
        n_jobs : int, optional
            The number of sites that work at the same time, each in a thread. The default depends on the
            rows. If all rows are arrays in memory, and their blocks need no long matrix products, up to
            four sites work side by side, but no more than the number of threads that BLAS may use.
            Otherwise, or if the arrays are tiny, the sites work one after another.
        **options
            ``quorum``, ``on_refusal``, ``timeout``, ``journal``, ``on_round``, ``on_answer``,
            ``purpose``, ``approval_wait``, ``on_waiting``, and ``secure``, as for `Federation`. A
            site's time limit starts when the site begins to work. With a journal ``F``, the sites keep
            their memory in the folder ``F.sites``.
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
        on_online: OnOnline | None = None,
        **options: Any,
    ) -> Federation:
        """Return a federation of sites connected to a server; this requires the extra ``flower``.

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
            different run is using some of the sites, a fit waits up to the same number of seconds for
            that run to end, and then raises `SitesBusy`.
        on_online : callable, optional
            A function that is called with the names of all sites and the names of the sites that are
            online, whenever one of the two lists changes.
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
            on_online=on_online,
        )
        try:
            return cls(engine, quorum=quorum, timeout=timeout, **options)
        except BaseException:
            engine.close()
            raise

    @classmethod
    @shows_options
    def dask(
        cls,
        client: Any,
        rows: Any,
        *,
        reading: Reading | None = None,
        **options: Any,
    ) -> Federation:
        """Return a federation of the workers of a Dask cluster; this requires the extra ``dask``.

        The rows stay at the workers, which also add up the answers. If a worker is lost, another worker
        reads the lost worker's rows again and answers in its place.

        Parameters
        ----------
        client : distributed.Client, str, or None
            A client of the cluster, or the address of the cluster's scheduler. None stands for the
            client in use. If no client is in use, this process reads the rows, one block at a time.
        rows : Dask array or data frame, delayed blocks, paths, or a dict of these
            Either a table whose blocks are spread over the workers, so that each worker is a site, or a
            dict with the rows of each site. Blocks of unknown length and sparse blocks are accepted.
            Paths of files or folders, which may contain ``*``, are paths as the workers see them. Each
            file is read by a single worker.
        reading : Reading, optional
            How the rows are read, if all options are in one value.
        **options
            How the rows are read, as for `Site`; and ``quorum``, ``on_refusal``, ``timeout``, and
            ``on_round``, as for `Federation`.
        """
        from fedpca.engines.dask.engine import connect

        how = {name: options.pop(name) for name in option_names() if name in options}
        engine = connect(client, rows, reading_of(reading, how))
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
            The `Grid` that Flower passes to the main function of a ServerApp.
        sites : int or list of str
            The number of sites, or their names. A resumed run keeps the sites that it started with.
        wait : float
            How many seconds to wait for all sites to come online. After that, a quorum is enough.
        quorum, timeout, **options
            As for `Federation`; the time limit applies to a whole round. The sites refuse ``secure``,
            because a Flower app answers each question in a new process.
        """
        from fedpca.engines.flower_app.engine import GridEngine

        _check_limits(quorum, timeout)
        resumed = recorded_sites(options.get("journal"))
        engine = GridEngine(grid, sites=resumed or sites, quorum=quorum, wait=wait)
        return cls(engine, quorum=quorum, timeout=timeout, **options)

    def watch(
        self,
        on_round: Callable[[dict[str, Any]], None] | None = None,
        on_answer: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Use these functions from now on, in place of those given when the federation was created."""
        self.terms.on_round, self.terms.on_answer = on_round, on_answer

    @property
    def engine(self) -> Engine:
        """Return the engine that carries the messages."""
        return self.terms.engine

    def close(self) -> None:
        """Close connections and threads; the federation can be used again afterward."""
        self.engine.close()

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sum(self, question: Question, **arrays: Any) -> Arrays:
        """Ask all sites and return the total of their answers; the program sees nothing else."""
        return self._current.ask(question, "sum", arrays).total

    def gather(self, question: Question, **arrays: Any) -> dict[str, Arrays]:
        """Ask all sites and return each site's answer by name; the coordinator sees every answer."""
        return self._current.ask(question, "gather", arrays).answers

    @contextmanager
    def optional(self) -> Iterator[None]:
        """Mark the questions that are asked inside as ones that the program can do without.

        If a site's policy refuses such a question, `PolicyRefused` is raised, and no site is lost.
        """
        before, self.terms.is_optional = self.terms.is_optional, True
        try:
            yield
        finally:
            self.terms.is_optional = before

    @property
    def record(self) -> RunRecord:
        """Return the record of the current run, or of the last one."""
        return self._current.record

    @property
    def plan(self) -> RunPlan:
        """Return the plan of the current attempt, as it is declared to the sites."""
        return self._current.plan

    def bind(self, *, features: Sequence[str] | None = None, **lengths: int) -> None:
        """Fix the lengths of dimensions for all later messages of the run, as in ``bind(d=30)``.

        ``features`` are the names of the d features, in the order of the rows of subspaces.
        """
        attempt = self._current.attempt
        attempt.dimensions |= lengths
        attempt.features = None if features is None else tuple(features)

    def report(self, residual: float, subspace: Callable[[], Array]) -> None:
        """Record the residual after a round, and a function that returns the best subspace so far."""
        self._current.report(residual, subspace)

    def report_influence(self, kind: str, values: Mapping[str, float]) -> None:
        """Record one number about each site's part in the result, as in `RunRecord.influence`."""
        self.record.add_influence(kind, values)

    def report_log_normalized(self, target: float) -> None:
        """Record the sum to which all sites normalize their cells, or zero if they do not."""
        self.record.log_normalized = target

    def rng(self) -> np.random.Generator:
        """Return a random generator that depends only on the run's seed and the round."""
        return np.random.default_rng([self.record.seed, self.record.rounds])

    def run(
        self,
        program: Callable[[Federation, WarmStart | None], T],
        *,
        identity: Mapping[str, Any],
        seed: int | None = None,
    ) -> T:
        """Run ``program(federation, start)`` and return its result.

        Only the sites in `record.sites` contribute to the result. If sites are lost but enough remain
        for a quorum, the program starts over with the remaining sites. ``start`` is then a `WarmStart`
        with the best subspace that the program has reported. In the first attempt, and if no subspace
        was reported, ``start`` is None. ``identity`` describes the run in plain values, so that a
        journal from a different run is refused. A site answers one run at a time. If a different run is
        using the sites, this run raises `SitesBusy`, and the other run goes on.
        """
        with self._one_at_a_time():
            _refuse_lacking(self.engine, privacy="privacy" in identity)
            run = self._current = Run(self.terms, identity, seed)
            with run.until_its_end(self._journal_path):
                while True:
                    try:
                        with threads_for_entries(0):  # one BLAS thread, until large arrays are used
                            result = program(self, run.warm_start())
                        run.go_on_after_refusal()
                        return result
                    except SitesLost as lost:
                        run.go_on_without(lost)

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Refuse a second run in this federation until the first run ends."""
        if not self._in_use.acquire(blocking=False):
            raise SitesBusy(
                "a different run is using this federation; wait until that run ends, or create a "
                "second federation with its own sites"
            )
        try:
            yield
        finally:
            self._in_use.release()


def _refuse_lacking(engine: Engine, **wanted: bool) -> None:
    """Refuse what an engine does not support."""
    for name, is_wanted in wanted.items():
        if is_wanted and name in engine.lacks:
            raise InputError(engine.lacks[name])


def _check_approval(purpose: Any, approval_wait: Any) -> None:
    """Refuse a purpose that no plan can hold, or a wait that is not a number of seconds."""
    if not isinstance(purpose, str) or len(purpose) > MAX_PURPOSE:
        raise InputError(f"the purpose must be a string, at most {MAX_PURPOSE} characters long")
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
