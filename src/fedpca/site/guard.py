"""Hold every question against the plan that a site has admitted.

A coordinator may lie. So a site knows what was agreed, and answers that and nothing else: the questions
of the declared program, in their order, as often as the program may ask them, and with numbers within
the bounds that the questions declare. A refusal names the rule.

What a site has agreed to is part of its memory of the run. So it outlives the process, and a question
that is repeated because its answer was lost finds the state from before.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.errors import PolicyRefused
from fedpca.protocol.message import Header
from fedpca.protocol.parameters import FIXED
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import Question
from fedpca.protocol.script import NEVER, Order, Script, find_script
from fedpca.site.memory import recall, remember, remembers
from fedpca.site.policy import Policy

UNDECLARED = (
    "no plan was declared for this run, and the site's policy answers only what was declared; start "
    "the run with an estimator's fit, or with Federation.run"
)


@dataclass(frozen=True)
class Agreement:
    """What a site has agreed to in a run, and what it has answered, which the site remembers."""

    plan: Array  # the plan's bytes
    asked: Array  # the names of the questions answered, separated by spaces, as bytes
    fixed: Array  # hashes of the fixed fields by name, as JSON


class Guard:
    """The check of every question at a site that does not answer everything."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._run: _Run | None = None  # of the agreement that was followed last

    def admit(self, memory: Mapping[str, Array], run: str, plan: RunPlan) -> Agreement:
        """Return the agreement to a plan that the policy allows, or refuse it and name the rule."""
        if plan.run != run.rpartition(".")[0]:
            raise PolicyRefused(
                f"the plan is for run {plan.run!r}, but was declared in run {run!r}"
            )
        if remembers(
            memory, Agreement
        ):  # the coordinator was restarted, or its message was repeated
            agreed = recall(memory, Agreement)
            if agreed.plan.tobytes() != plan.to_bytes():
                raise PolicyRefused("a different plan was declared for this run before")
            return agreed
        self._policy.admit(plan, find_script(plan))
        return Agreement(*(_array(data) for data in (plan.to_bytes(), b"", b"{}")))

    def check(
        self, memory: Mapping[str, Array], question: Question, header: Header, arrays: Arrays
    ) -> Agreement:
        """Refuse a question that the plan does not provide for; return the agreement after it."""
        if not remembers(memory, Agreement):
            raise PolicyRefused(UNDECLARED)
        agreed = recall(memory, Agreement)
        run = self._follow(agreed)
        if header["n_sites"] != len(run.plan.sites):
            raise PolicyRefused(
                f"the question claims {header['n_sites']} sites, but the plan has "
                f"{len(run.plan.sites)}"
            )
        run.check_turn(question.name)
        question.check_bounds(arrays)
        run.check_values(question, arrays)
        run.check_lengths(question, arrays)
        fixed = self._check_fixed(agreed, question, arrays)
        asked = agreed.asked.tobytes() + question.name.encode() + b" "
        return replace(agreed, asked=_array(asked), fixed=_array(json.dumps(fixed).encode()))

    def _follow(self, agreed: Agreement) -> _Run:
        """Return how far a run has come, going on from where it was followed last if possible."""
        plan, asked = agreed.plan.tobytes(), agreed.asked.tobytes()
        run = self._run
        if run is None or run.data != plan or not asked.startswith(run.asked):
            decoded = RunPlan.from_bytes(plan)
            run = _Run.begin(plan, decoded, find_script(decoded))
        for name in asked[len(run.asked) :].decode().split():
            run = run.after(name)
        self._run = run
        return run

    def _check_fixed(self, agreed: Agreement, question: Question, arrays: Arrays) -> dict[str, str]:
        """Refuse a fixed field with a new value; return the hashes of all fixed fields."""
        known: dict[str, str] = json.loads(agreed.fixed.tobytes())
        for name, words in question.bounds.items():
            if FIXED in words:
                value = hashlib.sha256(arrays[name].tobytes()).hexdigest()
                if known.setdefault(name, value) != value:
                    raise PolicyRefused(
                        f"field {name!r} of question {question.name!r} has changed; it is set once a "
                        "run"
                    )
        return known


@dataclass(frozen=True)
class _Run:
    """How far a run has come in its script."""

    data: bytes  # the plan's
    plan: RunPlan
    script: Script
    asked: bytes
    order: Order  # what may follow
    counts: Counter[str]

    @classmethod
    def begin(cls, data: bytes, plan: RunPlan, script: Script) -> _Run:
        return cls(data, plan, script, b"", script.order, Counter())

    def after(self, name: str) -> _Run:
        """Return the state once a question has been answered."""
        return replace(
            self,
            asked=self.asked + name.encode() + b" ",
            order=self.order.after(name),
            counts=self.counts + Counter([name]),
        )

    def check_turn(self, name: str) -> None:
        """Refuse a question that may not come now, or that has been asked too often."""
        if self.order.after(name) is NEVER or self.order.after(name) == NEVER:
            now = ", ".join(sorted(set(self.order.next()))) or "nothing"
            raise PolicyRefused(
                f"question {name!r} is out of turn in the declared {self.plan.program} with solver "
                f"{self.plan.solver!r}; it may ask {now} now"
            )
        most = self.script.most.get(name)
        if most is not None and self.counts[name] >= most:
            raise PolicyRefused(
                f"question {name!r} has been asked {most} times, as often as the plan allows"
            )

    def check_values(self, question: Question, arrays: Arrays) -> None:
        """Refuse a field whose value does not follow from the plan."""
        for name, value in self.script.values.items():
            if name in arrays and not _equals(arrays[name], value):
                raise PolicyRefused(
                    f"field {name!r} of question {question.name!r} differs from the plan, which has "
                    f"{_in_words(value)}"
                )

    def check_lengths(self, question: Question, arrays: Arrays) -> None:
        """Refuse a field that is longer than the plan allows."""
        for name, (_, lengths) in question.asks.items():
            for length, found in zip(lengths, arrays[name].shape, strict=True):
                most = self.script.lengths.get(length, found)
                if found > most:
                    raise PolicyRefused(
                        f"field {name!r} of question {question.name!r} has length {length}={found}; "
                        f"the plan allows at most {most}"
                    )


def keep(memory: dict[str, Array], agreed: Agreement) -> dict[str, Array]:
    """Return memory with an agreement in it."""
    kept = dict(memory)
    remember(kept, agreed)
    return kept


def _array(data: bytes) -> Array:
    return np.frombuffer(data, np.uint8)


def _equals(array: Array, value: Any) -> bool:
    """Return whether a field has this value; one number stands for all numbers of a field."""
    is_number = np.ndim(value) == 0
    return bool((array == value).all() if is_number else np.array_equal(array, value))


def _in_words(value: Any) -> str:
    return str(value) if np.ndim(value) == 0 else f"{np.shape(value)} numbers"
