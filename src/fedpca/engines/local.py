"""Sites within this process, one after another or on threads, with the same bits either way."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

from fedpca.errors import InputError, SiteError, SiteTimeout
from fedpca.framed import MEMORY_LIMIT
from fedpca.message import Message
from fedpca.site import Site

CACHE_LIMIT = 512 << 20  # bytes that all sites of one process may spend on cached A'A together


class LocalEngine:
    """Carries messages to sites that live in this process.

    Parameters
    ----------
    sites : dict, list
        Rows or a `Site` of each site, by name or in order.
    n_jobs : int, optional
        Sites that work at the same time; one by default.
    journal : path, optional
        The run's journal; the sites keep their memory in a folder beside it.
    """

    def __init__(
        self,
        sites: Any,
        *,
        n_jobs: int | None = None,
        journal: str | os.PathLike[str] | None = None,
    ) -> None:
        if n_jobs is not None and (not isinstance(n_jobs, Integral) or n_jobs < 1):
            raise InputError(f"n_jobs={n_jobs} must be a whole number of at least 1, or None")
        if not isinstance(sites, Mapping | list | tuple):
            raise InputError(
                f"sites come as a dict or list of each one's rows, not as {type(sites).__name__}"
            )
        self._store = None if journal is None else Path(f"{os.fspath(journal)}.sites")
        self._memory_limit = min(MEMORY_LIMIT, CACHE_LIMIT // max(1, len(sites)))
        named = (
            sites.items()
            if isinstance(sites, Mapping)
            else [(_own_name(rows) or f"site-{i}", rows) for i, rows in enumerate(sites, start=1)]
        )
        opened = [self._site(str(name), rows) for name, rows in named]
        self._sites = {site.name: site for site in opened}
        self.names = [site.name for site in opened]
        self._n_jobs = n_jobs or 1
        self._pool: ThreadPoolExecutor | None = None

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, Message | SiteError]]:
        """Each site's answer as it comes."""
        if timeout is not None:
            yield from self._within(timeout, names, request)
        elif self._n_jobs == 1:
            for name in names:
                yield name, self._answer(request, name)
        else:
            self._pool = self._pool or ThreadPoolExecutor(self._n_jobs)
            work = partial(self._answer, request)
            yield from zip(names, self._pool.map(work, names), strict=True)

    def fingerprints(self) -> dict[str, str]:
        """By which a journal knows the rows of a run again."""
        return {name: site.fingerprint for name, site in self._sites.items()}

    def close(self) -> None:
        """Let the threads go."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def _answer(self, request: Message, name: str) -> Message:
        return self._sites[name].answer(request, keep=False)

    def _within(
        self, timeout: float, names: Sequence[str], request: Message
    ) -> Iterator[tuple[str, Message | SiteError]]:
        """Keep ``n_jobs`` sites at work, and wait for none longer than the time limit.

        A thread cannot be stopped, so one that is too slow is left behind; its late answer is
        ignored, and as a daemon it does not hold the process up.
        """
        answers: queue.Queue[tuple[str, Message | SiteError]] = queue.Queue()
        turns = threading.Semaphore(self._n_jobs)
        late: dict[str, threading.Timer] = {}
        settled = threading.Lock()
        done: set[str] = set()

        def settle(name: str, answer: Message | SiteError) -> None:
            with settled:
                if name in done:
                    return
                done.add(name)
            late[name].cancel()
            answers.put((name, answer))
            turns.release()

        def work(name: str) -> None:
            settle(name, self._sites[name].answer(request))

        def start() -> None:
            for name in names:
                turns.acquire()
                late_after = min(timeout, threading.TIMEOUT_MAX)
                error = SiteTimeout(f"no answer within {timeout:g} s")
                late[name] = threading.Timer(late_after, settle, (name, error))
                late[name].daemon = True
                late[name].start()
                threading.Thread(target=work, args=(name,), daemon=True).start()

        threading.Thread(target=start, daemon=True).start()
        for _ in names:
            yield answers.get()

    def _site(self, name: str, rows: Any) -> Site:
        if isinstance(rows, Site):
            if rows.name != name:
                raise InputError(f"the site given as {name!r} calls itself {rows.name!r}")
            if not rows.has_own_store:
                rows.store = self._store
            return rows
        return Site(rows, name=name, store=self._store, memory_limit=self._memory_limit)


def _own_name(rows: Any) -> str | None:
    return rows.name if isinstance(rows, Site) else None
