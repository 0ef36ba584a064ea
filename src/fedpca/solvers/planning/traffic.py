"""Count the bytes of every message of a fit before any is sent.

A message is ``prefix | header | arrays`` (`fedpca.protocol.message`). Its header names the run, the
round, the question, the site, and the names and shapes of the arrays. All of this follows from the
questions of the solver and the names of the sites. So if the fit takes these rounds and no site has
to be asked again, `run_.bytes_up` and `run_.bytes_down` will equal these counts.

In a run with secure sums, the answers are elements of rings, and some rounds first ask how large the
numbers are. The rows determine how many digits a ring's unit has, and whether sites are asked for
sizes again. So these counts are close, but not exact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.protocol.message import Header, size_of
from fedpca.protocol.question import Question
from fedpca.solvers.costs import Asked

RUN = 16 * "0" + ".0"  # as long as the name of a run's first attempt
USUAL_FRACTION_BITS = 40  # bits of two digits, as in most rings


class Party(NamedTuple):
    """A site as a plan counts it: its name, its number of rows, and how many directions it keeps."""

    name: str
    rows: int
    n_local: int = 0


@dataclass(frozen=True)
class Crossed:
    """The bytes of some rounds, to and from each site."""

    question: Question
    lengths: Mapping[str, int]
    times: int
    down: int  # bytes to each site
    up: tuple[int, ...]  # bytes from each site


def traffic(
    asked: Callable[[Party], Sequence[Asked]],
    parties: Sequence[Party],
    d: int,
    *,
    secure: bool = False,
    answers: Callable[[Question], bool] = lambda _: True,
) -> Iterator[Crossed]:
    """Yield the bytes of a fit's rounds; ``asked`` returns the questions to a site.

    If ``answers`` is false for a question, the sites refuse it, and their refusals are not counted.
    """
    alike: dict[tuple[int, int, int], Party] = {}  # one of the sites with equally long messages
    kinds = [(len(json.dumps(party.name)), *party[1:]) for party in parties]
    for kind, party in zip(kinds, parties, strict=True):
        alike.setdefault(kind, party)
    own = {kind: asked(party) for kind, party in alike.items()}
    known, number, memory = _Known(), 0, 0
    for i, each in enumerate(own[kinds[0]]):
        down, up = 0, dict.fromkeys(alike, 0)
        for _ in range(each.times):
            number += 1
            for mask in known.masks(each.question) if secure else [None]:
                header = _header(each.question, number, memory, len(parties), mask)
                down += size_of(header, each.to_site(d))
                for kind, party in alike.items() if answers(each.question) else ():
                    answer = _masked(each.question, own[kind][i].from_site(d), mask)
                    up[kind] += _answer_bytes(header, party, answer)
            if each.question.remembers:
                memory = number
        if each.times:
            ups = tuple(up[kind] for kind in kinds)
            yield Crossed(each.question, each.lengths, each.times, down, ups)


def _header(question: Question, number: int, memory: int, n_sites: int, mask: Any) -> Header:
    """Return the header of a request, as `fedpca.coordinator.round` composes it."""
    header = {
        "run": RUN,
        "round": number,
        "question": question.name,
        "verb": question.verb,
        "n_sites": n_sites,
        "memory": memory,
    }
    return header if mask is None else {**header, "mask": mask}


def _answer_bytes(asked: Header, party: Party, arrays: Mapping[str, Array]) -> int:
    echo = {key: asked[key] for key in ("run", "round", "question")}
    return size_of({**echo, "site": party.name}, arrays)


class _Known:
    """What the coordinator knows about the size of answers, as in `fedpca.coordinator.secure`."""

    def __init__(self) -> None:
        self._has_energy = False
        self._sized: set[str] = set()

    def masks(self, question: Question) -> list[Any]:
        """Return what the headers of a round's messages say about masks."""
        from fedpca.privacy.rings import WHOLE
        from fedpca.privacy.secure_sum import ZERO, bits_of, sizes_of, to_header

        if question.verb != "sum":
            return [None]
        own: dict[str, list[int]] = to_header({ZERO: WHOLE})
        sizes = to_header(sizes_of(question))
        for name, declared in question.answers.items():
            is_whole = declared.dtype == "int64"
            own[name] = [bits_of(declared), 0 if is_whole else USUAL_FRACTION_BITS]
        fractions = [name for name, declared in question.answers.items() if declared[0] != "int64"]
        follows = question.times_energy is not None or all(
            "explained" in question.words[name] for name in fractions
        )
        masks: list[Any] = [own]
        if sizes and not (self._has_energy and follows):
            if question.name in self._sized:
                masks = [{**own, **sizes}]
            else:
                self._sized.add(question.name)
                masks = [{**to_header({ZERO: WHOLE}), **sizes}, own]
        if any("energy" in words for words in question.words.values()):
            self._has_energy = True
        return masks


def _masked(question: Question, own: Mapping[str, Array], mask: Any) -> Mapping[str, Array]:
    """Return stand-ins for the arrays of a masked answer."""
    if mask is None:
        return own
    from fedpca.privacy.rings import Ring

    zero, empty = np.zeros((), np.int64), np.empty(())
    return {
        name: np.broadcast_to(zero, Ring(*ring).shape(own.get(name, empty).shape))
        for name, ring in mask.items()
    }
