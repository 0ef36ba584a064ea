"""Record what a curious coordinator learns from a run: every message, or only the sums."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.federation import Federation
from fedpca.engines.base import Engine
from fedpca.engines.local import LocalEngine
from fedpca.errors import InputError, SiteError
from fedpca.protocol.message import Message, decode
from fedpca.protocol.plan import DECLARE

LISTENERS = {
    "seen": "every answer from the site",
    "summed": "sums over sites, and the site's answers to gathered questions",
    "published": "only the model",
}


class Published(NamedTuple):
    """The model that everyone receives at the end."""

    V: Array  # (d, k)
    eigenvalues: Array  # the k largest of the pooled A'A, (k,)
    noise: float  # the mean of the remaining eigenvalues
    mean: Array


class Heard(NamedTuple):
    """A question and the answer that a listener attributes to the site."""

    question: str
    asked: Arrays
    answer: Arrays


class View(NamedTuple):
    """Everything that a listener knows about a site."""

    messages: Sequence[Heard]
    model: Published
    share: float  # the site's rows as a fraction of all rows


class Exchange(NamedTuple):
    """A question and every site's answer to it."""

    question: str
    verb: str
    asked: Arrays
    answers: dict[str, Arrays]


@dataclass
class Transcript:
    """All messages from a run, by round number, and the resulting model."""

    rounds: dict[int, Exchange] = field(default_factory=dict)
    model: Published | None = None

    def heard(
        self,
        site: str,
        listener: str,
        rows: Mapping[str, int],
        among: Collection[str] | None = None,
    ) -> View:
        """Return everything that a listener knows about a site.

        Parameters
        ----------
        site : str
            The site whose C is to be estimated.
        listener : {"seen", "summed", "published"}
            "seen" hears every answer from the site. "summed" hears its answers to gathered questions,
            and estimates its part of each sum as the total times the site's share of the rows.
            "published" knows only the model.
        rows : dict
            Number of rows at each site.
        among : collection of str, optional
            The sites in each sum whose parts the listener does not know; by default, all sites.
        """
        if listener not in LISTENERS:
            raise InputError(f"listener={listener!r} must be one of {', '.join(LISTENERS)}")
        if self.model is None:
            raise InputError("the run has no model yet; set the transcript's model after the fit")
        among = rows if among is None else among
        weight = rows[site] / sum(rows[name] for name in among)
        messages = [
            Heard(e.question, e.asked, _weighted_total(e, weight, among))
            if listener == "summed" and e.verb == "sum"
            else Heard(e.question, e.asked, e.answers[site])
            for e in (self.rounds.values() if listener != "published" else ())
            if site in e.answers  # the site may have refused
        ]
        return View(messages, self.model, rows[site] / sum(rows.values()))


class Listener:
    """An engine that forwards messages to an underlying engine and records them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.names = engine.names
        self.transcript = Transcript()

    @property
    def declares(self) -> bool:
        return bool(getattr(self._engine, "declares", False))

    def fingerprints(self) -> Mapping[str, str]:
        return self._engine.fingerprints()

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, Message | bytes | SiteError]]:
        header = request.header
        if header["question"] == DECLARE:
            yield from self._engine.ask(names, request, timeout)
            return
        exchange = Exchange(header["question"], header["verb"], request.arrays, {})
        exchange = self.transcript.rounds.setdefault(header["round"], exchange)
        for name, reply in self._engine.ask(names, request, timeout):
            if not isinstance(reply, SiteError):
                message = decode(reply) if isinstance(reply, bytes) else reply
                if "error" not in message.header:  # a refusal contains no answer
                    exchange.answers[name] = message.arrays
            yield name, reply

    def close(self) -> None:
        self._engine.close()


def record(estimator: Any, sites: Any) -> Transcript:
    """Fit an estimator to sites in this process, and return all messages from the run."""
    listener = Listener(LocalEngine(sites))
    estimator.fit(Federation(listener))
    listener.transcript.model = Published(
        estimator.components_.T,
        estimator.singular_values_**2,
        estimator.noise_variance_ * (estimator.n_samples_ - 1),
        estimator.mean_,
    )
    return listener.transcript


def _weighted_total(exchange: Exchange, weight: float, among: Collection[str]) -> Arrays:
    """Return the sum of some sites' answers, times a weight."""
    answers = [answer for site, answer in exchange.answers.items() if site in among]
    return {
        name: np.asarray(weight * np.sum([answer[name] for answer in answers], axis=0))
        for name in answers[0]
    }
