"""Ask sites at the workers of a Dask cluster, and add up their answers there.

A question becomes one task for each site. The task takes the site's rows, the site's memory, and the
question, and returns the answer. The changed memory is part of the result, and the next question's task
takes it from there. So the scheduler knows how each result was computed. If a worker is lost, the
scheduler has other workers read the rows again and repeat the questions that changed a site's memory.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from distributed import Client, Future, get_client, wait

from fedpca.engines.base import Engine, Total
from fedpca.engines.dask.at_worker import add_up, ask, ask_only, open_site, reply_of
from fedpca.engines.dask.tables import Share, blocks_of, joined_blocks, site_parts
from fedpca.engines.local import LocalEngine
from fedpca.errors import (
    FedpcaError,
    InputError,
    LinkError,
    MessageError,
    SiteError,
    SiteFailed,
    SiteTimeout,
)
from fedpca.protocol.message import Message
from fedpca.protocol.question import find_question
from fedpca.rows.reading import AS_STORED, Reading
from fedpca.site.site import Site

SUM_FAN_IN = 8  # answers that one task adds up
INLINE_BYTES = 1 << 20  # the client sends a larger question once, and the workers pass it on


def connect(client: Any, rows: Any, reading: Reading) -> Engine:
    """Return an engine for rows at the workers of a cluster; see `Federation.dask`.

    Without a cluster, the rows belong to one site in this process, or to one site for each item of a
    dict.
    """
    if isinstance(client, str):
        return DaskEngine.at_address(client, rows, reading)
    if client is None:
        try:
            client = get_client()
        except ValueError:
            tables = rows if isinstance(rows, Mapping) else {"site-1": rows}
            return LocalEngine(
                {n: Site(_here(table), name=str(n), reading=reading) for n, table in tables.items()}
            )
    return DaskEngine(client, rows, reading)


@dataclass(frozen=True)
class _Memory:
    """A site's memory in a run, before and after the last question that changed it."""

    run: str
    round: int = 0
    before: Future | None = None
    after: Future | None = None


class DaskEngine(Engine):
    """An engine for rows at the workers of a Dask cluster.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster.
    rows : Dask collection, delayed blocks, paths, or a dict of these
        One table for all workers, or the rows of each site; see `Federation.dask`.
    reading : Reading
        How the sites read their rows.
    """

    lacks = MappingProxyType(
        {
            "secure": "secure sums hide each site's answers, but all rows on a Dask cluster have one "
            "owner, who can read them anyway; omit secure=True, or use Federation.flower for rows of "
            "several owners",
            "journal": "a journal cannot resume a fit on a Dask cluster, where the sites' memory ends "
            "with the client; omit the journal: a fit there survives the loss of a worker even without "
            "one",
            "privacy": "on a Dask cluster, every worker would have to add the full noise; fit the rows "
            "in one process, or with Federation.flower and secure=True",
        }
    )

    def __init__(self, client: Client, rows: Any, reading: Reading = AS_STORED) -> None:
        if reading.query is not None:
            raise InputError(
                "the workers of a cluster cannot divide the result of a query among them; write the "
                "result to files, or read it with Site.query"
            )
        self._client = client
        self._address: str | None = None  # of the cluster, if this engine made the connection
        self._reading = reading
        self._shares: Mapping[str, Share] = site_parts(client, rows)
        self._sites: dict[str, Future] = {}
        self._memories: dict[str, _Memory] = {}
        self.names = list(self._shares)

    @classmethod
    def at_address(cls, address: str, rows: Any, reading: Reading) -> DaskEngine:
        """Return an engine that connects to a scheduler, and disconnects when the engine is closed."""
        client = _connected(address)
        try:
            engine = cls(client, rows, reading)
        except BaseException:
            client.close()
            raise
        engine._address = address
        return engine

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, Message | SiteError]]:
        """Yield the answer of each site once all have answered or the time is up."""
        replies = self._submit(names, request)
        self._await(list(replies.values()), timeout)
        for name, future in replies.items():
            yield name, _problem(future, timeout) or self._client.gather(future)

    def ask_total(self, names: Sequence[str], request: Message, timeout: float | None) -> Total:
        """Return the sum of the sites' answers, which workers add up in a tree."""
        replies = self._submit(names, request)
        root = self._tree(list(replies.values()))
        self._await([root], timeout)
        problem = _problem(root, timeout)
        if problem is None:
            return self._result(root)
        failed = {
            name: error
            for name, future in replies.items()
            if (error := _problem(future, timeout)) is not None
        }
        answered = [future for name, future in replies.items() if name not in failed]
        if not failed:  # so the sum itself failed
            failed, answered = dict.fromkeys(names, problem), []
        if not answered:
            return Total({}, failed, {})
        total = self._result(self._tree(answered))
        return Total(total.arrays, {**total.replies, **failed}, total.sums)

    def close(self) -> None:
        """Release what the cluster keeps for this engine."""
        self._sites, self._memories = {}, {}
        if self._address is not None:
            self._client.close()

    def _submit(self, names: Sequence[str], request: Message) -> dict[str, Future]:
        """Submit a question to sites, and return the futures of their replies."""
        if self._client.status == "closed" and self._address is not None:
            self._client = _connected(self._address)
        asked: Any = request
        if request.n_bytes > INLINE_BYTES:
            asked = self._client.submit(_same, request, key=_key("question"))
        return {name: self._ask_site(name, asked, request) for name in names}

    def _ask_site(self, name: str, asked: Message | Future, request: Message) -> Future:
        share = self._shares[name]
        # a task runs elsewhere if the worker is gone, and the rows are then read there
        at_worker = {"workers": [share.worker], "allow_other_workers": True}
        if name not in self._sites:
            given = (name, share.rows, self._reading, *share.futures)
            self._sites[name] = self._client.submit(
                open_site, *given, key=_key("open_site"), **at_worker
            )
        header = request.header
        memory = self._memories.get(name)
        if memory is None or memory.run != header["run"]:
            memory = _Memory(header["run"])
        is_again = header["round"] == memory.round
        before = memory.before if is_again else memory.after
        remembers, package = _about(header["question"])
        given = (self._sites[name], before, asked, package)
        key = _key(header["question"])
        if not remembers:
            return self._client.submit(ask_only, *given, key=key, **at_worker)
        after = self._client.submit(ask, *given, key=key, **at_worker)
        self._memories[name] = _Memory(header["run"], header["round"], before, after)
        return self._client.submit(reply_of, after, key=_key("reply_of"), **at_worker)

    def _tree(self, parts: Sequence[Future]) -> Future:
        """Return the future of the sum of all parts; each task adds up at most `SUM_FAN_IN` of them."""
        while len(parts) > SUM_FAN_IN:
            groups = [parts[i : i + SUM_FAN_IN] for i in range(0, len(parts), SUM_FAN_IN)]
            parts = [self._sum(group) if len(group) > 1 else group[0] for group in groups]
        return self._sum(parts)

    def _sum(self, parts: Sequence[Future]) -> Future:
        return self._client.submit(add_up, *parts, key=_key("add_up"))

    def _await(self, futures: Sequence[Future], timeout: float | None) -> None:
        """Wait until all futures are done, or until the time is up."""
        # `wait` asks the client in use, and this engine's may not be that
        with self._client.as_current(), suppress(TimeoutError):
            wait(futures, timeout=timeout)

    def _result(self, future: Future) -> Total:
        total: Total = future.result()
        return total


def _here(rows: Any) -> Any:
    """Return rows for a site in this process: paths as they are, and blocks to be computed here."""
    try:
        blocks = joined_blocks(blocks_of(rows))
    except InputError:
        return rows
    return blocks.open()


def _connected(address: str) -> Client:
    try:
        return Client(address, set_as_default=False)
    except (OSError, ValueError) as error:
        raise LinkError(
            f"there is no Dask scheduler at {address}: {error}; check the address, and whether "
            "the scheduler is running"
        ) from None


def _about(question: str) -> tuple[bool, str]:
    """Return whether a question changes a site's memory, and the module that defines it."""
    try:
        found = find_question(question)
    except MessageError:  # the site reports this error
        return False, __name__
    return found.remembers, found.function.__module__


def _problem(future: Future, timeout: float | None) -> SiteError | None:
    """Return why a future has no result, or None if it has one."""
    if future.status == "finished":
        return None
    if future.status == "pending":
        future.cancel()
        return SiteTimeout(f"no answer within {timeout:g} s")
    error = future.exception() if future.status == "error" else None
    if isinstance(error, FedpcaError):
        return SiteFailed(str(error))
    text = "its task was canceled" if error is None else f"{type(error).__name__}: {error}"
    return SiteFailed(f"{text}; see the log of the Dask workers for details")


def _key(name: str) -> str:
    """Return a key that no other task has; Dask's dashboard shows the name."""
    return f"{name}-{uuid.uuid4().hex}"


def _same(value: Any) -> Any:
    return value
