"""Ask sites in this process, either sequentially or on threads, with identical results."""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any

from fedpca.engines.base import Engine
from fedpca.errors import InputError, SiteError, SitesBusy, SiteTimeout
from fedpca.protocol.message import Message
from fedpca.site.site import Site, cache_share, jobs_for

MAX_BEGUN = 4  # times n_jobs: how many sites may be working or have answers that nobody has taken

_RESERVING = threading.Lock()  # two engines may have sites in common


class LocalEngine(Engine):
    """An engine for sites in this process.

    Parameters
    ----------
    sites : dict or list
        Each site's rows or a `Site`, in a dict by name or in a list.
    n_jobs : int, optional
        The number of sites that work at the same time, each in a thread; see `jobs_for` for the
        default.
    journal : path, optional
        The run's journal; the sites save their memory in a folder next to it.
    """

    def __init__(
        self,
        sites: Any,
        *,
        n_jobs: int | None = None,
        journal: str | os.PathLike[str] | None = None,
    ) -> None:
        if n_jobs is not None and (not isinstance(n_jobs, Integral) or n_jobs < 1):
            raise InputError(f"n_jobs={n_jobs} must be a positive integer or None")
        if not isinstance(sites, Mapping | list | tuple):
            raise InputError(
                f"sites must be a dict or list with each site's rows, not {type(sites).__name__}"
            )
        self._store = None if journal is None else Path(f"{os.fspath(journal)}.sites")
        self._memory_limit = cache_share(len(sites))
        named = (
            sites.items()
            if isinstance(sites, Mapping)
            else [(_own_name(rows) or f"site-{i}", rows) for i, rows in enumerate(sites, start=1)]
        )
        opened = [self._site(str(name), rows) for name, rows in named]
        for site in opened:
            site.is_in_process = True
        self.sites = {site.name: site for site in opened}
        self.names = [site.name for site in opened]  # `Federation` refuses duplicates
        # any site may require a run to declare its plan
        self.declares = any(not site.policy.is_open for site in opened)
        self._n_jobs = n_jobs or jobs_for(opened)
        self._pool: ThreadPoolExecutor | None = None

    @contextmanager
    def hold(self, run: str) -> Iterator[None]:
        """Reserve the sites for a run; raise `SitesBusy` if any of them is already reserved.

        Only sites that were passed as a `Site` can belong to two engines.
        """
        sites = list(self.sites.values())
        with _RESERVING:
            self._refuse_reserved(None)
            for site in sites:
                site.reserved_by = self
        try:
            with ExitStack() as queried:
                for site in sites:
                    queried.enter_context(site.source.asking_here(run))
                yield
        finally:
            for site in sites:
                site.reserved_by = None

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, Message | SiteError]]:
        """Yield each site's answer as it arrives."""
        self._refuse_reserved(self)
        if timeout is not None:
            yield from self._within(timeout, names, request)
        elif self._n_jobs == 1:
            for name in names:
                yield name, self._answer(request, name)
        else:
            yield from self._on_threads(names, request)

    def fingerprints(self) -> dict[str, str]:
        """Return a fingerprint of each site's rows, for the journal."""
        return {name: site.fingerprint for name, site in self.sites.items()}

    def close(self) -> None:
        """Stop the threads."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def _refuse_reserved(self, by: LocalEngine | None) -> None:
        """Refuse sites that are reserved, unless ``by`` has reserved them."""
        busy = [s.name for s in self.sites.values() if s.reserved_by not in (None, by)]
        if busy:
            raise SitesBusy(
                f"a different run in this process is using {', '.join(busy)}; wait until that run "
                "ends, or create a second Site with the same rows"
            )

    def _answer(self, request: Message, name: str) -> Message:
        return self.sites[name].answer(request, keep=False)

    def _on_threads(self, names: Sequence[str], request: Message) -> Iterator[tuple[str, Message]]:
        """Keep ``n_jobs`` sites busy, and yield their answers in order.

        The calling thread works too. If it only waited, every answer would wake it, and it would take
        Python's lock from the threads that work.
        """
        n_helpers = self._n_jobs - 1
        pool = self._pool = self._pool or ThreadPoolExecutor(n_helpers)
        left = deque(names)
        begun: deque[tuple[str, Future[Message]]] = deque()
        beginning = threading.Lock()

        def work_once() -> bool:
            """Let the next site answer, unless too many answers are waiting to be taken."""
            with beginning:
                if not left or len(begun) >= MAX_BEGUN * self._n_jobs:
                    return False
                name, answer = left.popleft(), Future[Message]()
                begun.append((name, answer))
            try:
                answer.set_result(self._answer(request, name))
            except BaseException as error:
                answer.set_exception(error)
                if not isinstance(error, Exception):  # such as an interrupt, which stops the run
                    raise
            return True

        def work() -> None:
            while work_once():
                pass

        helpers: list[Future[None]] = []
        try:
            while left or begun:
                helpers = [helper for helper in helpers if not helper.done()]
                if left:
                    helpers += [pool.submit(work) for _ in range(n_helpers - len(helpers))]
                if not work_once():
                    begun[0][1].exception()  # waits for this answer
                while begun and begun[0][1].done():
                    first, answer = begun.popleft()
                    yield first, answer.result()
        finally:  # the caller may stop before the last answer
            with beginning:
                left.clear()

    def _within(
        self, timeout: float, names: Sequence[str], request: Message
    ) -> Iterator[tuple[str, Message | SiteError]]:
        """Keep ``n_jobs`` sites busy, and wait for each site no longer than the time limit.

        A thread cannot be stopped, so a slow thread keeps running, and its late answer is ignored. The
        threads are daemons, so they do not keep the process alive. While one site is slow, only a few
        of the sites after it begin, since their answers cannot be added up before the slow site's.
        """
        answers: queue.Queue[tuple[str, Message | SiteError]] = queue.Queue()
        turns = threading.Semaphore(self._n_jobs)
        room = threading.Semaphore(MAX_BEGUN * self._n_jobs)
        is_over = threading.Event()
        timers: dict[str, threading.Timer] = {}
        done_lock = threading.Lock()
        done: set[str] = set()

        def finish(name: str, answer: Message | SiteError) -> None:
            with done_lock:
                if name in done:
                    return
                done.add(name)
            timers[name].cancel()
            answers.put((name, answer))
            turns.release()

        def work(name: str) -> None:
            finish(name, self.sites[name].answer(request))

        def start() -> None:
            for name in names:
                room.acquire()
                turns.acquire()
                if is_over.is_set():
                    return
                late_after = min(timeout, threading.TIMEOUT_MAX)
                error = SiteTimeout(f"no answer within {timeout:g} s")
                timers[name] = threading.Timer(late_after, finish, (name, error))
                timers[name].daemon = True
                timers[name].start()
                threading.Thread(target=work, args=(name,), daemon=True).start()

        threading.Thread(target=start, daemon=True).start()
        ahead: set[str] = set()  # sites that answered before an earlier site did
        oldest = 0
        try:
            for _ in names:
                name, answer = answers.get()
                ahead.add(name)
                yield name, answer
                while oldest < len(names) and names[oldest] in ahead:
                    ahead.remove(names[oldest])
                    oldest += 1
                    room.release()
        finally:  # the caller may stop before the last answer
            is_over.set()
            room.release()

    def _site(self, name: str, rows: Any) -> Site:
        """Return ``rows`` if it is a site; otherwise, return a new site with these rows."""
        if isinstance(rows, Site):
            if rows.name != name:
                raise InputError(
                    f"the site passed as {name!r} must be passed as {rows.name!r}, which is its name"
                )
            if not rows.has_own_store:
                rows.store = self._store
            return rows
        return Site(rows, name=name, store=self._store, memory_limit=self._memory_limit)


def _own_name(rows: Any) -> str | None:
    return rows.name if isinstance(rows, Site) else None
