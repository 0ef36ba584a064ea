"""Keep what a site knows about its current run: its memory of the run, and the last round.

A round may be repeated, because an answer was lost in transit or the coordinator was restarted. The
site then gives the same answer again, or starts from the same memory as the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from fedpca.site.memory import Saved, recall, remembers

if TYPE_CHECKING:
    from fedpca.site.masking import AnswerMasks, MaskSecrets

Memory = dict[str, Array]
T = TypeVar("T")
_OPEN = "OpenAnswer."  # begins the names in memory of an answer that may be masked again
_OPEN_KEY = _OPEN + "key"


@dataclass(frozen=True)
class Checkpoint:
    """How far a site has come in a run; a copy of the site can continue from there."""

    run: str
    round: int  # the last round that was answered
    memory: Arrays


@dataclass(frozen=True)
class Pending:
    """An answer of which the site has sent only the size, and the site's memory after it."""

    key: tuple[int, bytes]  # the round, and a hash of what was asked
    answer: Arrays
    memory: Memory


@dataclass(eq=False)
class CurrentRun:
    """The run that a site is in; without a name, the site is in no run yet."""

    name: str | None = None
    memory: Memory = field(default_factory=lambda: read_only({}))
    round: int = 0  # the last round that was answered
    # the reply to that round; None if it is computed again when needed
    reply: Message | None = None
    missing: int | None = None  # what happens to gaps in this run, if it is known
    is_beyond_bound: bool = False  # whether an answer was too large for its masks
    _memory_before: Memory = field(init=False)  # memory before that round
    _pending: Pending | None = None
    _secrets: MaskSecrets | None = None  # for the masks, once masks are needed

    def __post_init__(self) -> None:
        self._memory_before = self.memory

    @classmethod
    def begin(cls, name: str, saved: Saved | None) -> CurrentRun:
        """Return a run with empty memory, or with the memory that an earlier process saved."""
        if saved is None:
            return cls(name)
        return cls(name, read_only(saved.memory), saved.round, saved.reply)

    @classmethod
    def resume(cls, checkpoint: Checkpoint | None) -> CurrentRun:
        """Return the run at a checkpoint, or no run yet."""
        if checkpoint is None:
            return cls()
        return cls(checkpoint.run, read_only(checkpoint.memory), checkpoint.round)

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
        return self._memory_before if number == self.round else self._without_open_answer()

    def masks_for(self, question: Question, request: Message, site: str) -> AnswerMasks | None:
        """Return how to mask the answer to a question, or None if the run has no secure sums."""
        if question.verb != "sum" or "MaskKeys.private" not in self.memory:
            if "mask" in request.header:
                raise PolicyRefused("the declared plan has no secure sums, so nothing is masked")
            return None
        from fedpca.site.masking import AnswerMasks, MaskKeys

        if self.is_beyond_bound:  # each further bound would tell more about the answer's size
            raise PolicyRefused(
                "an answer was larger than its bound, which ends this run at this site"
            )
        if self._secrets is None:
            self._secrets = recall(self.memory, MaskKeys).secrets_of(self.plan, site)
        return AnswerMasks(question, request, site, self._secrets)

    def take_pending(self, masks: AnswerMasks) -> Arrays | None:
        """Return the answer whose size was asked for before; restore the memory from after it.

        A coordinator that asks for the size of an answer must then ask for the answer itself.
        Otherwise, sizes would reveal something about answers that are never sent.
        """
        pending = self._pending
        if pending is None:
            return None
        if pending.key != masks.key:
            raise PolicyRefused(
                f"round {pending.key[0]} asked for the size of a different answer before; it must "
                "first ask for that answer itself"
            )
        self.memory = pending.memory
        return pending.answer

    def hold_back(self, masks: AnswerMasks, answer: Arrays) -> Arrays:
        """Return the size of an answer under masks, and keep the answer until it is asked for."""
        self._pending = Pending(masks.key, answer, self.memory)
        return masks.of(answer)

    def masked(self, masks: AnswerMasks, answer: Arrays) -> Arrays:
        """Return an answer under masks; an answer beyond its bound ends the run at this site."""
        from fedpca.privacy.secure_sum import BeyondBound

        try:
            return masks.of(answer)
        except BeyondBound:
            self.is_beyond_bound = True
            raise

    def keep_open(self, masks: AnswerMasks, answer: Arrays) -> None:
        """Remember an answer that may be masked again, because its bound was only tried."""
        fields = {f"{_OPEN}field {name}": array for name, array in answer.items()}
        key = np.frombuffer(masks.key[1], np.uint8)
        self.memory = {**self.memory, _OPEN_KEY: key, **fields}

    @property
    def has_open_answer(self) -> bool:
        """Return whether the answer to the last round may be masked again."""
        return _OPEN_KEY in self.memory

    def open_answer(self, masks: AnswerMasks) -> Arrays | None:
        """Return the answer to the last round if it is to be masked again, else None.

        No second bound is tried, because several bounds would reveal how large the answers are.
        """
        number, digest = masks.key
        if number != self.round or masks.is_tried or self.memory[_OPEN_KEY].tobytes() != digest:
            return None
        start = f"{_OPEN}field "
        return {k.removeprefix(start): v for k, v in self.memory.items() if k.startswith(start)}

    def close_answer(self, reply: Message, save: Callable[[], None]) -> None:
        """Forget an answer that has been masked again; ``reply`` replaces the first reply."""
        memory, self.memory = self.memory, self._without_open_answer()
        try:
            save()
        except BaseException:
            self.memory = memory
            raise
        self.reply = None if self.reply is None else reply

    def _without_open_answer(self) -> Memory:
        if not self.has_open_answer:
            return self.memory
        return read_only({k: v for k, v in self.memory.items() if not k.startswith(_OPEN)})

    def advance(self, number: int, before: Memory, reply: Message | None) -> None:
        """Count a round as answered; call this when nothing can go wrong with it anymore."""
        if self.memory is not before:
            # C order, as in a memory file: the last bits of BLAS results depend on the order
            self.memory = read_only({k: np.asarray(v, order="C") for k, v in self.memory.items()})
        self.round, self._memory_before, self.reply = number, before, reply
        self._pending = None


def read_only(memory: Memory) -> Memory:
    """Return a read-only view of memory; a question that writes to memory gets a copy."""
    return cast(Memory, MappingProxyType(memory))
