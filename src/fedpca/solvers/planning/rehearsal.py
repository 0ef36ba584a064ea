"""Rehearse a fit: run its program on made-up rows, and keep the shapes of all messages.

How many rounds a fit takes, and what it asks, depends on the rows. So the real program runs in this
process, on few made-up rows. From a random start, its number of rounds depends on the rows only through
the variances along the components and through how the sites differ. Rehearsals with other starts and
other made-up rows show how much this number varies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fedpca.coordinator.federation import Federation
from fedpca.engines.base import Engine, EngineWrapper
from fedpca.engines.local import LocalEngine
from fedpca.errors import SiteError
from fedpca.privacy.gaussian import Privacy
from fedpca.protocol.message import Header, Message
from fedpca.protocol.plan import AGREE, DECLARE, PRIVATE
from fedpca.protocol.question import Question, find_question
from fedpca.site.site import Site
from fedpca.solvers.costs import rehearsed_for
from fedpca.solvers.planning.made_up import Cast

N_REHEARSALS, MOST_REHEARSALS = 3, 9  # the latter if the first ones differ
ALIKE = 1.3  # ratio of the most to the fewest rounds up to which rehearsals are alike
# the expected range of so many normal numbers, in standard deviations (Tippett, 1925)
RANGES = {1: 1.0, 2: 1.13, 3: 1.69, 4: 2.06, 5: 2.33, 6: 2.53, 7: 2.70, 8: 2.85, 9: 2.97}
DEVIATIONS = 2.5  # the stated range reaches this many standard deviations to either side


class Sent(NamedTuple):
    """A message's header, and the dtype and the shape of each field."""

    header: Header
    fields: Mapping[str, tuple[Any, tuple[int, ...]]]

    @classmethod
    def of(cls, message: Message) -> Sent:
        """Return what is kept of a message."""
        fields = {name: (array.dtype, array.shape) for name, array in message.arrays.items()}
        return cls(message.header, fields)


class Crossing(NamedTuple):
    """One message to all made-up sites, and the answer of each."""

    question: Question
    asked: Sent
    answers: dict[str, Sent]


@dataclass(frozen=True)
class Stage:
    """The program of a fit, and the made-up sites on which it runs.

    ``rows`` is the number of rows that each of them has.
    """

    program: Callable[..., Any]
    sites: Mapping[str, Site]
    cast: Cast
    rows: Mapping[str, int]
    n_sites: int  # of the real fit
    d: int  # features of the real fit
    secure: bool = False
    privacy: Privacy | None = None
    is_drawn: bool = False


@dataclass(frozen=True)
class Rehearsal:
    """What made-up sites were asked, and how the fit ended.

    ``fewest`` and ``most`` say how many rounds a fit may take, given how other rehearsals differ.
    """

    stage: Stage
    crossings: Sequence[Crossing]
    rounds: int
    stop_reason: str
    angle_bound: float = 0.0
    fewest: int = 0
    most: int = 0

    @property
    def solver_rounds(self) -> int:
        """Return the rounds of questions that are asked more than once."""
        asked = Counter(each.question.name for each in self.crossings)
        return sum(times for times in asked.values() if times > 1)

    @property
    def iterates(self) -> bool:
        """Return whether the number of rounds depends on the rows."""
        asked = Counter(each.question.name for each in self.crossings)
        return max(asked.values()) > 1


class Recorder(EngineWrapper):
    """An engine for made-up sites that keeps the shapes of all messages."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.crossings: list[Crossing] = []

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, Message | bytes | SiteError]]:
        asked = request.header["question"]
        if asked in (DECLARE, AGREE):
            yield from self.engine.ask(names, request, timeout)
            return
        crossing = Crossing(find_question(asked), Sent.of(request), {})
        self.crossings.append(crossing)
        for name, reply in self.engine.ask(names, request, timeout):
            if isinstance(reply, Message):
                crossing.answers[name] = Sent.of(reply)
            yield name, reply


def rehearse(stage: Stage, seed: int) -> Rehearsal:
    """Run a program on made-up sites, and return what it asked them."""
    recorder = Recorder(LocalEngine(dict(stage.sites)))
    identity: dict[str, Any] = {"program": "rehearsal"}
    if stage.privacy is not None:
        identity = {
            "program": "FederatedPCA",
            "parameters": {},
            "privacy": {PRIVATE: stage.privacy.to_plain()},
        }
    as_the_fit = rehearsed_for(stage.cast.side, stage.d, stage.n_sites / len(stage.sites))
    with Federation(recorder, secure=stage.secure) as fed, as_the_fit:
        result = fed.run(stage.program, identity=identity, seed=seed)
    outcome = result.outcome
    return Rehearsal(
        stage, recorder.crossings, fed.record.rounds, outcome.stop_reason, outcome.angle_bound
    )


def usual(
    rehearse: Callable[[int, bool], Rehearsal], *, secure: bool, first: int = N_REHEARSALS
) -> Rehearsal:
    """Return the rehearsal with the median number of rounds, out of some with different seeds.

    If the ``first`` ones differ, there are more of them. If most run out of rounds, no other is tried.
    Those on drawn rows only tell how much the number varies. A few rehearsals do not show the
    extremes. So the stated range follows from the standard deviation of the logarithms, which the
    range of the logarithms shows. Secure sums take as many rounds, so they are tried only once.
    """
    found: list[Rehearsal] = []
    for seed in range(MOST_REHEARSALS):
        found.append(rehearse(seed, False))
        n_out = sum(each.stop_reason == "max_rounds" for each in found)
        rounds = sorted(each.rounds for each in found)
        is_alike = rounds[-1] <= ALIKE * rounds[0]
        is_enough = not found[0].iterates or n_out == N_REHEARSALS
        if is_enough or (seed + 1 == first and is_alike):
            break
    exact = [seed for seed, each in enumerate(found) if not each.stage.is_drawn]
    exact.sort(key=lambda seed: found[seed].rounds)
    seed = exact[(len(exact) - 1) // 2]
    middle = found[seed]
    deviation = math.log(rounds[-1] / rounds[0]) / RANGES[len(rounds)]
    factor = math.exp(DEVIATIONS * deviation)
    fewest = min(rounds[0], math.floor(middle.rounds / factor))
    most = max(rounds[-1], math.ceil(middle.rounds * factor))
    if secure:  # some questions that a program can do without are not asked
        plain, middle = middle, rehearse(seed, True)
        fewest, most = (n + middle.rounds - plain.rounds for n in (fewest, most))
    return replace(middle, fewest=fewest, most=most)
