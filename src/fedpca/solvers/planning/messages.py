"""Count the bytes of every message of a fit from those of its rehearsal.

A message is ``prefix | header | arrays`` (`fedpca.protocol.message`). A question declares the shapes of
its fields in names. So the size of a message in the real fit follows from that of the same message in
a rehearsal: ``d`` stands for more features, other lengths are the same or grow as the question
declares, and the header names the real sites. If the fit takes these rounds and no site is asked again,
`run_.bytes_up` and `run_.bytes_down` will equal these counts.

With secure sums, the rows determine how many digits numbers need, and whether sites are asked for sizes
again. So these counts are close, but not exact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedpca.arrays import Declared
from fedpca.protocol.message import size_of
from fedpca.protocol.question import Question
from fedpca.solvers.planning.made_up import Party
from fedpca.solvers.planning.rehearsal import Crossing, Rehearsal, Sent


class Extent(NamedTuple):
    """The size of a site's rows, from which the lengths of fields follow."""

    n: int
    d: int

    def of(self, name: str) -> int:
        """Return the length that a name stands for, as in `Question.grows`."""
        rank = min(self.n, self.d)
        return {
            "d": self.d,
            "triangle": self.d * (self.d + 1) // 2,
            "factor": rank * self.d - rank * (rank - 1) // 2,
        }[name]


@dataclass(frozen=True)
class Crossed:
    """The bytes of some rounds with the same question, to and from each site."""

    question: Question
    lengths: Mapping[str, int]
    times: int
    down: int  # bytes to each site
    up: tuple[int, ...]  # bytes from each site


def count(
    rehearsal: Rehearsal,
    parties: Sequence[Party],
    *,
    answers: Callable[[Question], bool] = lambda _: True,
) -> tuple[list[Crossed], bool]:
    """Return the bytes of a fit's rounds, and whether all of them follow from the rehearsal.

    If ``answers`` is false for a question, the sites refuse it, and their refusals are not counted.
    """
    counter, cast = _Counter(rehearsal, len(parties)), rehearsal.stage.cast
    d = rehearsal.stage.d
    alike: dict[Any, Party] = {}  # one of the sites with equally long messages
    kinds = []
    for party in parties:
        above, below = cast.acting_for(party)
        kinds.append((len(json.dumps(party.name)), min(party.rows, d), above.name, below.name))
        alike.setdefault(kinds[-1], party)
    crossed: list[Crossed] = []
    is_exact = cast.times_k == 1
    for crossing in rehearsal.crossings:
        down, lengths = counter.down(crossing)
        up, is_answered = {}, answers(crossing.question)
        for kind, party in alike.items():
            above, below = cast.acting_for(party)
            n_bytes, own = counter.up(crossing, party, above)
            up[kind] = n_bytes * is_answered
            lengths = {**lengths, **{name: max(n, lengths.get(name, 0)) for name, n in own.items()}}
            is_exact &= above == below or own == counter.up(crossing, party, below)[1]
        if crossed and (crossed[-1].question, crossed[-1].lengths) == (crossing.question, lengths):
            last = crossed.pop()
            down, times = down + last.down, last.times + 1
            ups = tuple(up[kind] + before for kind, before in zip(kinds, last.up, strict=True))
        else:
            times, ups = 1, tuple(up[kind] for kind in kinds)
        crossed.append(Crossed(crossing.question, lengths, times, down, ups))
    return crossed, is_exact


@dataclass(frozen=True)
class _Counter:
    """Count the bytes of messages in the real fit."""

    rehearsal: Rehearsal
    n_sites: int

    def down(self, crossing: Crossing) -> tuple[int, dict[str, int]]:
        """Return the bytes of a message to a site, and its lengths."""
        stage = self.rehearsal.stage
        header = {**crossing.asked.header, "n_sites": self.n_sites}
        small, full = Extent(0, stage.cast.side), Extent(0, stage.d)
        return self._size(
            crossing.question, crossing.question.asks, crossing.asked, header, small, full
        )

    def up(self, crossing: Crossing, party: Party, actor: Party) -> tuple[int, dict[str, int]]:
        """Return the bytes of an answer from a site, and its lengths."""
        stage, sent = self.rehearsal.stage, crossing.answers[actor.name]
        header = {**sent.header, "site": party.name}
        small = Extent(stage.rows[actor.name], stage.cast.side)
        full = Extent(party.rows, stage.d)
        return self._size(crossing.question, crossing.question.answers, sent, header, small, full)

    def _size(
        self,
        question: Question,
        declared: Mapping[str, Declared],
        sent: Sent,
        header: Mapping[str, Any],
        small: Extent,
        full: Extent,
    ) -> tuple[int, dict[str, int]]:
        lengths: dict[str, int] = {}
        arrays = {}
        for name, (dtype, shape) in sent.fields.items():
            # fields of sizes are not declared, and masked numbers may have another axis at the end
            names = declared[name].dimensions if name in declared else ()
            real = list(shape)
            for i, (what, length) in enumerate(zip(names, shape, strict=False)):
                real[i] = self._length(question, what, length, small, full, dtype)
                if not what.isdigit() and what not in ("d", "triangle"):
                    lengths[what] = real[i]
            arrays[name] = np.broadcast_to(np.zeros((), dtype), real)
        return size_of(header, arrays), lengths

    def _length(
        self, question: Question, name: str, length: int, small: Extent, full: Extent, dtype: Any
    ) -> int:
        """Return a length in the real fit, rounded up."""
        if name.isdigit():
            return length
        by = name if name in ("d", "triangle") else question.grows.get(name)
        if by is not None:
            before = small.of(by)
            return -(-length * full.of(by) // before) if before else length
        is_text = dtype == np.uint8
        return length if is_text else int(np.ceil(length * self.rehearsal.stage.cast.times_k))
