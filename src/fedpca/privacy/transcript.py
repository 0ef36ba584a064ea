"""What a curious coordinator hears in a run: every message, and what sums would leave of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedpca.engines.local import LocalEngine
from fedpca.errors import InputError, SiteError
from fedpca.federation import Engine, Federation
from fedpca.message import Array, Message, decode
from fedpca.question import Arrays

LISTENERS = {
    "seen": "every answer of the site",
    "summed": "sums over sites, and the site's answers to what is gathered",
    "published": "the model alone",
}


class Published(NamedTuple):
    """What everybody learns in the end."""

    V: Array  # (d, k)
    eigenvalues: Array  # of all sites' A'A, (k,)
    noise: float  # the mean of its others
    mean: Array


class Heard(NamedTuple):
    """One question, and what its listener makes of the answers."""

    question: str
    asked: Arrays
    answer: Arrays


class View(NamedTuple):
    """All that a listener knows of one site."""

    messages: Sequence[Heard]
    model: Published
    share: float  # rows of the site for each row of all sites


class Exchange(NamedTuple):
    """One question, and every site's answer to it."""

    question: str
    verb: str
    asked: Arrays
    answers: dict[str, Arrays]


@dataclass
class Transcript:
    """All messages of one run, by the number of their round, and the model that came of them."""

    rounds: dict[int, Exchange] = field(default_factory=dict)
    model: Published | None = None

    def heard(
        self,
        site: str,
        listener: str,
        rows: Mapping[str, int],
        among: Collection[str] | None = None,
    ) -> View:
        """All that a listener knows of a site.

        Parameters
        ----------
        site : str
            Whose C shall be worked out.
        listener : {"seen", "summed", "published"}
            Every answer of the site; or, behind sums, its answers to what is gathered and of the rest
            its share of the total, the best guess at a part of which nothing else is known; or the
            model alone.
        rows : dict
            How many each site has: a sum is shared out by them.
        among : collection of str, optional
            Over whom a sum hides the site: all sites, unless some tell the listener their own parts.
        """
        if listener not in LISTENERS:
            raise InputError(f"no listener {listener!r}; there are {', '.join(LISTENERS)}")
        if self.model is None:
            raise InputError("the run has no model yet; what is heard of it is not whole")
        among = rows if among is None else among
        share = rows[site] / sum(rows[name] for name in among)
        messages = [
            Heard(e.question, e.asked, _part(e, share, among))
            if listener == "summed" and e.verb == "sum"
            else Heard(e.question, e.asked, e.answers[site])
            for e in (self.rounds.values() if listener != "published" else ())
            if site in e.answers  # and did not refuse
        ]
        return View(messages, self.model, rows[site] / sum(rows.values()))


class Listener:
    """An engine that lets another one carry the messages, and writes them down."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.names = engine.names
        self.transcript = Transcript()

    def fingerprints(self) -> Mapping[str, str]:
        return self._engine.fingerprints()

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, Message | bytes | SiteError]]:
        header = request.header
        exchange = Exchange(header["question"], header["verb"], request.arrays, {})
        exchange = self.transcript.rounds.setdefault(header["round"], exchange)
        for name, reply in self._engine.ask(names, request, timeout):
            if not isinstance(reply, SiteError):
                message = decode(reply) if isinstance(reply, bytes) else reply
                if "error" not in message.header:  # a refusal tells nothing
                    exchange.answers[name] = message.arrays
            yield name, reply

    def close(self) -> None:
        self._engine.close()


def record(estimator: Any, sites: Any) -> Transcript:
    """Fit an estimator to sites within this process, and give all messages of it."""
    listener = Listener(LocalEngine(sites))
    estimator.fit(Federation(listener))
    listener.transcript.model = Published(
        estimator.components_.T,
        estimator.singular_values_**2,
        estimator.noise_variance_ * (estimator.n_samples_ - 1),
        estimator.mean_,
    )
    return listener.transcript


def _part(exchange: Exchange, share: float, among: Collection[str]) -> Arrays:
    answers = [answer for site, answer in exchange.answers.items() if site in among]
    return {
        name: np.asarray(share * np.sum([answer[name] for answer in answers], axis=0))
        for name in answers[0]
    }
