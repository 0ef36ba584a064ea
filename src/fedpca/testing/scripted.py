"""An engine within this process whose answers a script may change, lose, repeat or replace.

Tests of faults need sites that fail in a certain way at a certain moment. A script sees every reply
before the coordinator does::

    def lose_north(reply):
        return None if reply.site == "north" else reply.answer

    federation = Federation(ScriptedEngine(sites, lose_north), quorum=2)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedpca.engines.base import Engine
from fedpca.engines.local import LocalEngine
from fedpca.errors import SiteError
from fedpca.protocol.message import Message, decode, encode

Answer = Message | bytes | SiteError


class Asked(NamedTuple):
    """One call of `ScriptedEngine.ask`."""

    question: str
    round: int
    sites: tuple[str, ...]


class Reply(NamedTuple):
    """One site's answer on its way to the coordinator."""

    site: str
    question: str
    round: int
    request: Message
    answer: Answer


# What reaches the coordinator in a reply's place: an answer, nothing, or answers by site.
Script = Callable[[Reply], Answer | Sequence[tuple[str, Answer]] | None]


class ScriptedEngine:
    """Carry messages to sites in this process, and let a script change what comes back.

    Parameters
    ----------
    sites : dict, list or Engine
        Rows or a `Site` of each site, or an engine that carries the messages.
    script : callable, optional
        Given each `Reply`; returns the answer to deliver, None to lose it, or a list of (site, answer)
        to deliver in its place. What it raises stops the run, as a crash would.
    as_bytes : bool
        Whether messages travel encoded, as between processes.
    hides_rows : bool
        Whether the engine cannot look at rows, as between machines: it has no fingerprints of them.
    journal : path, optional
        The run's journal; the sites keep their memory beside it.

    Attributes
    ----------
    asked : list of Asked
        What was asked of whom, in the order in which it was asked.
    bytes_down, bytes_up : int
        The encoded bytes to the sites and from them.
    """

    def __init__(
        self,
        sites: Any,
        script: Script | None = None,
        *,
        as_bytes: bool = True,
        hides_rows: bool = False,
        journal: str | os.PathLike[str] | None = None,
    ) -> None:
        self.engine: Engine = (
            sites if hasattr(sites, "ask") else LocalEngine(sites, journal=journal)
        )
        self._script, self._as_bytes, self._hides_rows = script, as_bytes, hides_rows
        self.asked: list[Asked] = []
        self.bytes_down = self.bytes_up = 0

    @property
    def names(self) -> Sequence[str]:
        return self.engine.names

    def fingerprints(self) -> Mapping[str, str]:
        return {} if self._hides_rows else self.engine.fingerprints()

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, Answer]]:
        """Yield what the script makes of each site's answer."""
        question, number = request.header["question"], request.header["round"]
        self.asked.append(Asked(question, number, tuple(names)))
        self.bytes_down += len(names) * request.n_bytes
        sent = decode(encode(request)) if self._as_bytes else request
        for name, answer in self.engine.ask(names, sent, timeout):
            if isinstance(answer, Message):
                self.bytes_up += answer.n_bytes
                answer = encode(answer) if self._as_bytes else answer
            elif isinstance(answer, bytes):
                self.bytes_up += len(answer)
            yield from self._delivered(Reply(name, question, number, request, answer))

    def close(self) -> None:
        self.engine.close()

    def _delivered(self, reply: Reply) -> Sequence[tuple[str, Answer]]:
        if self._script is None:
            return [(reply.site, reply.answer)]
        delivered = self._script(reply)
        if delivered is None:
            return []
        if isinstance(delivered, Message | bytes | SiteError):
            return [(reply.site, delivered)]
        return delivered


def spoil(
    change: Callable[[Any], Answer | None],
    *,
    sites: Collection[str] | None = None,
    question: str | None = None,
    from_round: int = 1,
) -> Script:
    """Return a script that changes the answers of some sites, to one question, from some round on.

    ``change`` takes the answer and returns another one, or None to lose it.
    """

    def script(reply: Reply) -> Answer | None:
        is_due = (
            (sites is None or reply.site in sites)
            and question in (None, reply.question)
            and reply.round >= from_round
        )
        return change(reply.answer) if is_due else reply.answer

    return script
