"""Provide an in-process engine with a script that can change, drop, repeat, or replace answers.

Tests of faults need sites that fail in a specific way at a specific moment. A script sees every reply
before the coordinator does::

    def lose_north(reply):
        return None if reply.site == "north" else reply.answer

    federation = Federation(ScriptedEngine(sites, lose_north), quorum=2)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from fedpca.engines.base import Engine, EngineWrapper
from fedpca.engines.local import LocalEngine
from fedpca.errors import SiteError
from fedpca.protocol.message import Message, decode, encode

Answer = Message | bytes | SiteError


class AskCall(NamedTuple):
    """One call to `ScriptedEngine.ask`."""

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


# A script returns what the coordinator gets instead: an answer, None, or (site, answer) pairs.
AnswerScript = Callable[[Reply], Answer | Sequence[tuple[str, Answer]] | None]


class ScriptedEngine(EngineWrapper):
    """An engine that asks sites in this process, and lets a script change their answers.

    Parameters
    ----------
    sites : dict, list or Engine
        The rows or the `Site` for each site, or an engine that carries the messages.
    script : callable, optional
        A function that takes each `Reply`. It returns the answer to deliver, None to drop the answer,
        or a list of (site, answer) pairs to deliver instead. If it raises an exception, the run stops
        as it would in a crash.
    as_bytes : bool
        Whether to encode messages, as an engine between processes does.
    hides_rows : bool
        Whether to act like an engine between machines, which has neither the sites nor fingerprints of
        their rows.
    journal : path, optional
        The run's journal. The sites keep their memory next to it.

    Attributes
    ----------
    asked : list of AskCall
        Each question and the sites that were asked, in order.
    bytes_down, bytes_up : int
        The number of encoded bytes sent to the sites and received from them.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA, Federation
    >>> from fedpca.testing import ScriptedEngine
    >>> rng = np.random.default_rng(0)
    >>> sites = {"north": rng.normal(size=(50, 4)), "south": rng.normal(size=(30, 4))}
    >>> def lose_north(reply):
    ...     return None if reply.site == "north" else reply.answer
    >>> federation = Federation(ScriptedEngine(sites, lose_north), quorum=1)
    >>> FederatedPCA(2).fit(federation).run_.sites
    ('south',)
    """

    def __init__(
        self,
        sites: Any,
        script: AnswerScript | None = None,
        *,
        as_bytes: bool = True,
        hides_rows: bool = False,
        journal: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            sites if isinstance(sites, Engine) else LocalEngine(sites, journal=journal)
        )
        self._script, self._as_bytes = script, as_bytes
        if hides_rows:
            self.sites, self.fingerprints = {}, dict
        self.asked: list[AskCall] = []
        self.bytes_down = self.bytes_up = 0

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, Answer]]:
        """Ask the sites, and yield each answer after the script has processed it."""
        question, number = request.header["question"], request.header["round"]
        self.asked.append(AskCall(question, number, tuple(names)))
        self.bytes_down += len(names) * request.n_bytes
        sent = decode(encode(request)) if self._as_bytes else request
        for name, answer in self.engine.ask(names, sent, timeout):
            if isinstance(answer, Message):
                self.bytes_up += answer.n_bytes
                answer = encode(answer) if self._as_bytes else answer
            elif isinstance(answer, bytes):
                self.bytes_up += len(answer)
            yield from self._delivered(Reply(name, question, number, request, answer))

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
) -> AnswerScript:
    """Return a script that changes some answers.

    The script changes the answers that ``sites`` give to ``question`` from round ``from_round`` on.
    None stands for all sites or all questions. ``change`` takes an answer and returns a new answer, or
    None to drop the answer.
    """

    def script(reply: Reply) -> Answer | None:
        is_due = (
            (sites is None or reply.site in sites)
            and question in (None, reply.question)
            and reply.round >= from_round
        )
        return change(reply.answer) if is_due else reply.answer

    return script
