"""Check every question against the plan that a site has admitted.

A coordinator may lie. So a site remembers what it agreed to, and answers nothing else: only the
questions of the declared program, in their order, no more often than the program may ask them, and with
numbers within the bounds that the questions declare. A refusal names the rule.

The agreement is part of the site's memory of the run, so it outlives the process. If a question is
repeated because its answer was lost, the site checks the question against the state from before it was
first asked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.errors import PolicyRefused
from fedpca.protocol.message import Header
from fedpca.protocol.parameters import FIXED, out_of_bounds, split_words
from fedpca.protocol.plan import NO_KEY, RunPlan
from fedpca.protocol.printable import printable
from fedpca.protocol.question import Question
from fedpca.protocol.script import NEVER, Order, Script, find_script
from fedpca.site.memory import recall, remember, remembers
from fedpca.site.policy import Policy
from fedpca.site.privacy_budget import PrivacyBudget

UNDECLARED = (
    "no plan was declared for this run, and the site's policy allows only declared questions; start "
    "the run with an estimator's fit, or with Federation.run"
)


@dataclass(frozen=True)
class Agreement:
    """What a site has agreed to and answered in a run; the site remembers it."""

    plan: Array  # the plan's bytes
    asked: Array  # the names of the questions answered, separated by spaces, as bytes
    fixed: Array  # hashes of the fixed fields by name, as JSON


@dataclass(frozen=True)
class Keys:
    """The keys by which a site on its own machine recognizes the parties of a run.

    ``own`` and ``coordinator`` are fingerprints. Without ``coordinator``, a plan may be signed by
    anyone, or not at all. ``signer_of`` takes a signature and the signed bytes, and returns the
    fingerprint of the key that made it, or an empty string if the signature is not valid. ``identity``
    is the site's public key in DER form, and ``sign`` signs with the matching private key. ``verify``
    takes a public key in DER form, a signature, and the signed bytes.
    """

    own: str
    signer_of: Callable[[bytes, bytes], str]
    coordinator: str | None = None
    identity: bytes = b""
    sign: Callable[[bytes], bytes] | None = None
    verify: Callable[[bytes, bytes, bytes], bool] | None = None


class Guard:
    """The rules that every question must pass at a site that does not answer everything.

    A site in the coordinator's own process has no keys.
    """

    def __init__(self, policy: Policy, site: str = "", keys: Keys | None = None) -> None:
        self._policy, self._site, self._keys = policy, site, keys
        self._runs: tuple[
            _Run, ...
        ] = ()  # the states before and after the last question that was checked

    def check_signature(self, plan: RunPlan, signature: bytes) -> str:
        """Return the fingerprint of the key that signed a plan; refuse a wrong signature or signer.

        If the plan is not signed, the fingerprint is an empty string.
        """
        if self._keys is None:
            return ""
        signer = self._keys.signer_of(signature, plan.statement) if signature else ""
        if signature and not signer:
            raise PolicyRefused(
                "the plan's signature is not valid: the plan or its signature was altered"
            )
        pinned = self._keys.coordinator
        if pinned is not None and not signer:
            raise PolicyRefused(
                f"the plan is not signed, but the site has pinned the coordinator's key {pinned}; put "
                "coordinator.key into the folder of the fit's credentials"
            )
        if pinned is not None and signer != pinned:
            raise PolicyRefused(
                f"the plan is signed by the key with fingerprint {signer}, but the site has pinned the "
                f"coordinator's key {pinned}; compare both with what "
                "`fedpca site-key --show coordinator.pub` prints"
            )
        return signer

    def consider(self, run: str, plan: RunPlan) -> None:
        """Refuse a plan that the policy does not allow, and name the rule."""
        if plan.run != run.rpartition(".")[0]:
            raise PolicyRefused(
                f"the plan is for run {plan.run!r}, but was declared in run {run!r}"
            )
        attempt = run.rpartition(".")[2]
        # the same number with leading zeros, or in other digits, would be another attempt
        is_number = attempt.isdecimal() and str(int(attempt[:10])) == attempt
        if not is_number or int(attempt) >= self._policy.max_attempts:
            raise PolicyRefused(
                f"attempt {printable(attempt)} of the run, counted from 0, is beyond the policy's "
                f"max_attempts={self._policy.max_attempts}; begin a new run"
            )
        own = NO_KEY if self._keys is None else self._keys.own
        if self._keys is not None and plan.sites.get(self._site) != own:
            raise PolicyRefused(
                f"the plan does not list this site as {self._site!r} with the key {own}; "
                "check that the server was given this site's own NAME.pub"
            )
        self._policy.admit(plan, find_script(plan), own)

    def admit(self, memory: Mapping[str, Array], run: str, plan: RunPlan) -> Agreement:
        """Return the agreement to a plan that the policy allows, or refuse it and name the rule."""
        self.consider(run, plan)
        # the coordinator was restarted, or its message was repeated
        if remembers(memory, Agreement):
            agreed = recall(memory, Agreement)
            if agreed.plan.tobytes() != plan.to_bytes():
                raise PolicyRefused(
                    "a different plan was declared for this run before; begin a new run"
                )
            return agreed
        script = find_script(plan)
        self._runs = (_Run(plan.to_bytes(), plan, script, b"", script.order, {}),)
        return agreement_to(plan)

    def check(
        self,
        memory: Mapping[str, Array],
        question: Question,
        header: Header,
        arrays: Arrays,
        n_features: int,
    ) -> Agreement:
        """Refuse a question that the plan does not allow now, or return the new agreement."""
        if not remembers(memory, Agreement):
            raise PolicyRefused(UNDECLARED)
        agreed = recall(memory, Agreement)
        run = self._follow(agreed)
        if header["n_sites"] != len(run.plan.sites):
            raise PolicyRefused(
                f"the question claims {header['n_sites']} sites, but the plan has "
                f"{len(run.plan.sites)}"
            )
        after = run.after(question.name)
        run.check_turn(question.name, after, n_features)
        question.check_bounds(arrays)
        run.check_values(question, arrays)
        run.check_lengths(question, arrays)
        fixed = run.check_fixed(agreed.fixed, question, arrays)
        self._runs = (run, after)
        return Agreement(agreed.plan, _array(after.asked), fixed)

    def _follow(self, agreed: Agreement) -> _Run:
        """Return the state of a run: the last known state if it fits, or else computed anew."""
        data, asked = agreed.plan.tobytes(), agreed.asked.tobytes()
        for run in self._runs:
            if run.data == data and run.asked == asked:
                return run
        plan = RunPlan.from_bytes(data)
        script = find_script(plan)
        run = _Run(data, plan, script, b"", script.order, {})
        for name in asked.decode().split():
            run = run.after(name)
        return run


@dataclass(frozen=True)
class _Run:
    """The state of a run: how far it has come in its script."""

    data: bytes  # the encoded plan
    plan: RunPlan
    script: Script
    asked: bytes
    order: Order  # what may follow
    counts: Mapping[str, int]  # how often each question was asked

    def after(self, name: str) -> _Run:
        """Return the state after the question with this name has been answered."""
        return _Run(
            self.data,
            self.plan,
            self.script,
            self.asked + name.encode() + b" ",
            self.order.after(name),
            {**self.counts, name: self.counts.get(name, 0) + 1},
        )

    def check_turn(self, name: str, after: _Run, n_features: int) -> None:
        """Refuse a question that is out of turn, or that has been asked too many times."""
        if after.order == NEVER:
            now = ", ".join(sorted(set(self.order.next()))) or "nothing"
            raise PolicyRefused(
                f"question {name!r} is out of turn: the declared {self.plan.program} with solver "
                f"{self.plan.solver!r} may ask {now} now"
            )
        most = self.script.most_times(name, n_features)
        if after.counts[name] > most:
            raise PolicyRefused(
                f"question {name!r} has been asked {most} times, as often as the plan allows"
            )

    def check_values(self, question: Question, arrays: Arrays) -> None:
        """Refuse a field with a value that the plan does not allow."""
        for name, array in arrays.items():
            for key in (name, f"{question.name}.{name}"):
                problem, words = None, self.script.bounds.get(key)
                if words:
                    problem = out_of_bounds(array, split_words(words), arrays)
                value = self.script.values.get(key)
                if callable(value):
                    value = value(self.counts.get(question.name, 0))
                if value is not None and not _is_all(array, value):
                    problem = f"must be {_in_words(value)}, as the plan says"
                if problem is not None:
                    raise PolicyRefused(f"field {name!r} of question {question.name!r} {problem}")

    def check_fixed(self, hashes: Array, question: Question, arrays: Arrays) -> Array:
        """Refuse a fixed field with a new value; return the hashes of all fixed fields."""
        names = [
            name
            for name in arrays
            if FIXED in question.bounds.get(name, ())
            or f"{question.name}.{name}" in self.script.fixed
        ]
        if not names:
            return hashes
        known: dict[str, str] = json.loads(hashes.tobytes())
        for name in names:
            value = hashlib.sha256(arrays[name].tobytes()).hexdigest()
            if known.setdefault(name, value) != value:
                raise PolicyRefused(
                    f"field {name!r} of question {question.name!r} must not change within a run"
                )
        return _array(json.dumps(known).encode())

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


def refusal_of(policy: Policy, plan: RunPlan) -> str | None:
    """Return why a site with this policy would not take part in a run, or None if it would.

    The site's rows, and what the site has already spent of its budgets, are not considered.
    """
    if policy.is_open:
        return None
    try:
        Guard(policy).consider(f"{plan.run}.0", plan)
        if plan.is_private:
            PrivacyBudget(policy).check(plan, plan.run, None)
    except PolicyRefused as refusal:
        return str(refusal)
    return None


def agreement_to(plan: RunPlan) -> Agreement:
    """Return the agreement to a plan before its first question."""
    return Agreement(*(_array(each) for each in (plan.to_bytes(), b"", b"{}")))


def keep(memory: dict[str, Array], agreed: Agreement) -> dict[str, Array]:
    """Return a copy of memory with an agreement in it."""
    kept = dict(memory)
    remember(kept, agreed)
    return kept


def _array(data: bytes) -> Array:
    return np.frombuffer(data, np.uint8)


def _is_all(array: Array, value: Any) -> bool:
    """Return whether an array equals the value; a number is compared with every entry."""
    return bool(np.all(array == value)) if np.ndim(value) == 0 else np.array_equal(array, value)


def _in_words(value: Any) -> str:
    return str(value) if np.ndim(value) == 0 else f"{np.shape(value)} numbers"
