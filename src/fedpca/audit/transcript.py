"""Record what a curious coordinator learns from a run: every message, or only the sums."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.federation import Federation
from fedpca.engines.base import Engine, EngineWrapper
from fedpca.engines.local import LocalEngine
from fedpca.errors import InputError, SiteError
from fedpca.protocol.message import Message, decode
from fedpca.protocol.plan import AGREE, DECLARE

if TYPE_CHECKING:
    from fedpca.audit.masked_answers import MaskedRound

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
    """A question and every site's answer to it, as the coordinator receives them."""

    question: str
    verb: str
    asked: Arrays
    answers: dict[str, Arrays]
    masks: MaskedRound | None = None  # how the answers are masked, in a run with secure sums


@dataclass
class Transcript:
    """All messages from a run, by round number, and the resulting model.

    ``secrets`` are those that each site shares with its neighbors in a run with secure sums. A listener
    knows the secrets of sites that collude.
    """

    rounds: dict[int, Exchange] = field(default_factory=dict)
    model: Published | None = None
    secrets: dict[str, dict[str, bytes]] = field(default_factory=dict)

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
            "seen" hears every answer from the site; in a run with secure sums, this listener reads
            masked answers as if they were numbers. "summed" hears the site's answers to gathered
            questions, and estimates the site's part of each sum as the total times the site's share of
            the rows. "published" knows only the model.
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
        told = {name: secrets for name, secrets in self.secrets.items() if name not in among}

        def answer(exchange: Exchange) -> Arrays:
            if listener == "summed" and exchange.verb == "sum":
                return _weighted_total(exchange, weight, among, told)
            if exchange.masks is not None:
                return exchange.masks.sum(exchange.answers, [site], told)
            return exchange.answers[site]

        messages = [
            Heard(e.question, e.asked, answer(e))
            for e in (self.rounds.values() if listener != "published" else ())
            if site in e.answers  # the site may have refused
        ]
        return View(messages, self.model, rows[site] / sum(rows.values()))


class RecordingEngine(EngineWrapper):
    """An engine that records the messages that another engine carries."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.transcript = Transcript()

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, Message | bytes | SiteError]]:
        header = request.header
        if header["question"] in (DECLARE, AGREE):
            yield from self.engine.ask(names, request, timeout)
            if header["question"] == AGREE:
                self._note_secrets()
            return
        masks = None
        if "mask" in header:
            from fedpca.audit.masked_answers import MaskedRound

            masks = MaskedRound.of(request)
            if masks is None:
                # the total reveals the size of the largest number, which no attack uses
                yield from self.engine.ask(names, request, timeout)
                return
        exchange = Exchange(header["question"], header["verb"], request.arrays, {}, masks)
        before = self.transcript.rounds.get(header["round"])
        # if a round is repeated with other masks, a bound was too small, and the round starts over
        if before is not None and before.masks == masks:
            exchange = before
        self.transcript.rounds[header["round"]] = exchange
        for name, reply in self.engine.ask(names, request, timeout):
            if not isinstance(reply, SiteError):
                message = decode(reply) if isinstance(reply, bytes) else reply
                if "error" not in message.header:  # a refusal contains no answer
                    exchange.answers[name] = message.arrays
            yield name, reply

    def _note_secrets(self) -> None:
        """Keep the secrets that sites would reveal if they colluded."""
        from fedpca.audit.masked_answers import secrets_of

        self.transcript.secrets = {n: secrets_of(site) for n, site in self.engine.sites.items()}


def record(estimator: Any, sites: Any, *, secure: bool = False) -> Transcript:
    """Fit an estimator to sites in this process, and return all messages from the run."""
    listener = RecordingEngine(LocalEngine(sites))
    estimator.fit(Federation(listener, secure=secure))
    listener.transcript.model = Published(
        estimator.components_.T,
        estimator.singular_values_**2,
        estimator.noise_variance_ * (estimator.n_samples_ - 1),
        estimator.mean_,
    )
    return listener.transcript


def _weighted_total(
    exchange: Exchange,
    weight: float,
    among: Collection[str],
    told: Mapping[str, Mapping[str, bytes]],
) -> Arrays:
    """Return the sum of some sites' answers, times a weight.

    ``told`` holds the secrets that the listener knows, with which it removes masks.
    """
    if exchange.masks is not None:
        sites = [site for site in exchange.answers if site in among]
        total = exchange.masks.sum(exchange.answers, sites, told)
        return {name: np.asarray(weight * array) for name, array in total.items()}
    answers = [answer for site, answer in exchange.answers.items() if site in among]
    return {
        name: np.asarray(weight * np.sum([answer[name] for answer in answers], axis=0))
        for name in answers[0]
    }
