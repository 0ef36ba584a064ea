"""Sites within this process, one after another or on threads, with the same bits either way."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpca.errors import InputError, SiteError, SiteTimeout
from fedpca.site import MEMORY_LIMIT, Site

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
        if n_jobs is not None and n_jobs < 1:
            raise InputError(f"n_jobs={n_jobs} must be at least 1, or None")
        if not isinstance(sites, Mapping):
            sites = {getattr(rows, "name", f"site-{i}") if isinstance(rows, Site) else f"site-{i}": rows for i, rows in enumerate(sites, start=1)}
        self._store = None if journal is None else Path(f"{os.fspath(journal)}.sites")
        self._memory_limit = min(MEMORY_LIMIT, CACHE_LIMIT // max(1, len(sites)))
        opened = [self._site(str(name), rows) for name, rows in sites.items()]
        self._sites = {site.name: site for site in opened}
        self.names = [site.name for site in opened]
        self.n_jobs = n_jobs or 1

    def ask(
        self, names: Sequence[str], request: bytes, timeout: float | None
    ) -> Iterator[tuple[str, bytes | SiteError]]:
        """Each site's answer as it comes."""
        if self.n_jobs == 1 and timeout is None:
            for name in names:
                yield name, self._sites[name].answer(request)
        else:
            yield from self._on_threads(names, request, timeout)

    def _on_threads(
        self, names: Sequence[str], request: bytes, timeout: float | None
    ) -> Iterator[tuple[str, bytes | SiteError]]:
        """Keep ``n_jobs`` sites at work, and wait for none longer than the time limit.

        A thread cannot be stopped, so one that is too slow is left behind; its late answer is
        ignored, and as a daemon it does not hold the process up.
        """
        answers: queue.Queue[tuple[str, bytes | SiteError]] = queue.Queue()
        turns = threading.Semaphore(self.n_jobs)
        late: dict[str, threading.Timer] = {}
        settled = threading.Lock()
        done: set[str] = set()

        def settle(name: str, answer: bytes | SiteError) -> None:
            with settled:
                if name in done:
                    return
                done.add(name)
            if name in late:
                late[name].cancel()
            answers.put((name, answer))
            turns.release()

        def work(name: str) -> None:
            settle(name, self._sites[name].answer(request))

        def start() -> None:
            for name in names:
                turns.acquire()
                if timeout is not None:
                    error = SiteTimeout(f"no answer within {timeout:g} s")
                    late[name] = threading.Timer(timeout, settle, (name, error))
                    late[name].daemon = True
                    late[name].start()
                threading.Thread(target=work, args=(name,), daemon=True).start()

        threading.Thread(target=start, daemon=True).start()
        for _ in names:
            yield answers.get()

    def _site(self, name: str, rows: Any) -> Site:
        if isinstance(rows, Site):
            rows.store = rows.store or self._store
            return rows
        return Site(rows, name=name, store=self._store, memory_limit=self._memory_limit)
