"""Keep what a site knows about its current run: its memory of the run, and the last round.

A round may be repeated, because an answer was lost in transit or the coordinator was restarted. The
site then gives the same answer again, or starts from the same memory as the first time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.errors import PolicyRefused
from fedpca.protocol.message import Message
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import Question
from fedpca.rows.gaps import ERROR, MISSING
from fedpca.site.guard import UNDECLARED, Agreement
from fedpca.site.memory import Checkpoint, recall, remembers

if TYPE_CHECKING:
    from fedpca.site.masking import AnswerMasks, MaskSecrets
    from fedpca.site.site import Site

Memory = dict[str, Array]
T = TypeVar("T")


@dataclass(frozen=True)
class Held:
    """An answer whose size was told, and which may be asked for in other rings."""

    round: int
    key: bytes  # a hash of what was asked
    answer: Arrays  # empty if the site could not answer
    memory: Memory  # after the answer


@dataclass(eq=False)
class CurrentRun:
    """The run that a site is in; without a name, the site is in no run yet."""

    name: str | None = None
    memory: Memory = field(default_factory=lambda: read_only({}))
    round: int = 0  # the last round that was answered
    # the reply to that round; None if it is computed again when needed
    reply: Message | None = None
    missing: int | None = None  # what happens to gaps in this run, if it is known
    _memory_before: Memory = field(init=False)  # memory before that round
    _held: Held | None = None
    _secrets: MaskSecrets | None = None  # for the masks, once masks are needed

    def __post_init__(self) -> None:
        self._memory_before = self.memory

    @classmethod
    def resume(cls, checkpoint: Checkpoint | None) -> CurrentRun:
        """Return the run at a checkpoint, or no run yet."""
        if checkpoint is None:
            return cls()
        memory = read_only(checkpoint.memory)
        return cls(checkpoint.run, memory, checkpoint.round, checkpoint.reply)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Return what a copy of the site needs to continue the run, or None if there is no run."""
        return None if self.name is None else Checkpoint(self.name, self.round, dict(self.memory))

    def remembers(self, kind: type) -> bool:
        """Return whether a question in this run stored a dataclass of this type."""
        return remembers(self.memory, kind)

    def recall(self, kind: type[T]) -> T:
        """Return the dataclass of this type that a question in this run stored."""
        return recall(self.memory, kind)

    @property
    def plan(self) -> RunPlan:
        """Return the plan that the site has agreed to."""
        if not self.remembers(Agreement):
            raise PolicyRefused(UNDECLARED)
        return RunPlan.from_bytes(self.recall(Agreement).plan.tobytes())

    def treats_gaps(self, asked: Mapping[str, Array]) -> int:
        """Return what happens to gaps in this run, as a position in `fedpca.rows.gaps.MISSING`."""
        if "missing" in asked:
            self.missing = int(asked["missing"])
        elif self.missing is None and self.remembers(Agreement):
            given = self.plan.parameters.get("missing")
            self.missing = MISSING.index(given) if given in MISSING else ERROR
        return self.missing or ERROR

    def reply_to(self, number: int) -> Message | None:
        """Return the reply to a round if it is the last one that was answered."""
        return self.reply if number == self.round else None

    def memory_before(self, number: int) -> Memory:
        """Return the memory from before a round; a repeated round starts from the same memory."""
        return self._memory_before if number == self.round else self.memory

    def masks_for(self, question: Question, request: Message, site: Site) -> AnswerMasks | None:
        """Return how to mask the answer to a question, or None if the run has no secure sums."""
        if question.verb != "sum" or "MaskKeys.private" not in self.memory:
            if "mask" in request.header:
                raise PolicyRefused("the declared plan has no secure sums, so nothing is masked")
            return None
        from fedpca.site.masking import AnswerMasks, MaskKeys

        if self._secrets is None:
            self._secrets = recall(self.memory, MaskKeys).secrets_of(
                self.plan, site.name, site.source.rows
            )
        return AnswerMasks.asked_for(question, request, site.name, self._secrets)

    def held_for(self, request: Message) -> Held | None:
        """Return the answer to this very question if the site has told its size, else None.

        The answer may be asked for in several rings, each of which shows the same total.
        """
        held = self._held
        if held is None or held.round != request.header["round"]:
            return None
        return held if held.key == request.digest_without("mask") else None

    def refuse_other_than_held(self) -> None:
        """Refuse to answer if the size of a different answer was told, but the answer not asked for.

        Otherwise, sizes would tell of more answers than the plan allows.
        """
        held = self._held
        if held is not None and held.round > self.round:
            raise PolicyRefused(
                f"round {held.round} asked for the size of a different answer before; it must "
                "first ask for that answer itself"
            )

    def hold(self, request: Message, answer: Arrays) -> None:
        """Keep an answer whose size is told, and the memory after it, until the next round."""
        key = request.digest_without("mask")
        self._held = Held(request.header["round"], key, answer, self.memory)

    def advance(self, number: int, before: Memory, reply: Message | None) -> None:
        """Count a round as answered; call this when nothing can go wrong with it anymore."""
        if self.memory is not before:
            # C order, as in a memory file: the last bits of BLAS results depend on the order
            self.memory = read_only({k: np.asarray(v, order="C") for k, v in self.memory.items()})
        self.round, self._memory_before, self.reply = number, before, reply
        self._held = None


def read_only(memory: Memory) -> Memory:
    """Return a read-only view of memory; a question that writes to memory gets a copy."""
    return cast(Memory, MappingProxyType(memory))
