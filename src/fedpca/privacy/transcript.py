"""What a curious coordinator hears in a run: every message, and what sums would leave of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedpca.engines.local import LocalEngine
from fedpca.errors import SiteError
from fedpca.federation import Engine, Federation
from fedpca.message import Message, decode
from fedpca.question import Arrays


class Heard(NamedTuple):
    """One question, and what its listener makes of the answers.

    The last one is no question but what everybody learns, the "published" model; the answer to it is
    the site's share of all rows.
    """

    question: str
    asked: Arrays
    answer: Arrays


class Exchange(NamedTuple):
    """One question, and every site's answer to it."""

    question: str
    verb: str
    asked: Arrays
    answers: dict[str, Arrays]


@dataclass
class Transcript:
    """All messages of one run, by the number of their round."""

    rounds: dict[int, Exchange] = field(default_factory=dict)
    model: Arrays = field(default_factory=dict)

    def heard(
        self, site: str, how: str, rows: Mapping[str, int], among: Collection[str] | None = None
    ) -> list[Heard]:
        """All that a listener hears of a site.

        Parameters
        ----------
        site : str
            Whose C shall be worked out.
        how : {"seen", "summed", "published"}
            Every answer of the site; or, behind sums, its answers to what is gathered and of the rest
            its share of the total, the best guess at a part of which nothing else is known; or the
            model alone.
        rows : dict
            How many each site has: a sum is shared out by them.
        among : collection of str, optional
            Over whom a sum hides the site: all sites, unless some tell the listener their own parts.
        """
        among = rows if among is None else among
        share = rows[site] / sum(rows[name] for name in among)
        of_all = np.array(rows[site] / sum(rows.values()))
        rounds = () if how == "published" else self.rounds.values()
        said = [
            Heard(e.question, e.asked, _part(e, share, among))
            if how == "summed" and e.verb == "sum"
            else Heard(e.question, e.asked, e.answers[site])
            for e in rounds
        ]
        return [*said, Heard("published", self.model, {"share": of_all})]


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
                exchange.answers[name] = message.arrays
            yield name, reply


def record(estimator: Any, sites: Any) -> Transcript:
    """Fit an estimator to sites within this process, and give all messages of it."""
    listener = Listener(LocalEngine(sites))
    estimator.fit(Federation(listener))
    published = {
        "V": estimator.components_.T,
        "eigenvalues": estimator.singular_values_**2,
        "mean": estimator.mean_,
        "noise": estimator.noise_variance_ * (estimator.n_samples_ - 1),
    }
    listener.transcript.model = {name: np.asarray(array) for name, array in published.items()}
    return listener.transcript


def _part(exchange: Exchange, share: float, among: Collection[str]) -> Arrays:
    answers = [answer for site, answer in exchange.answers.items() if site in among]
    return {
        name: np.asarray(share * np.sum([answer[name] for answer in answers], axis=0))
        for name in answers[0]
    }
