"""Carry out one run: ask its questions, keep its record and journal, and go on if sites are lost.

A program talks only to the `Federation`, which begins each run with a new `Run`. So nothing that a run
knows outlives it, and a run knows of the federation only on what terms its sites are asked.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedpca._version import __version__
from fedpca.arrays import Array, Arrays, Dimensions
from fedpca.coordinator.approval import ApprovalWait, OnWaiting
from fedpca.coordinator.declaration import Declaration, refuse_unmaskable
from fedpca.coordinator.journal import Journal
from fedpca.coordinator.record import RunRecord, shares_of
from fedpca.coordinator.round import RawAnswer, Round, collect, joined, reasons_of
from fedpca.coordinator.warm_start import WarmStart
from fedpca.engines.base import Engine, Summand
from fedpca.errors import FedpcaError, InputError, PolicyRefused, QuorumLost, SitesLost
from fedpca.protocol.plan import NO_KEY, SECURE, RunPlan
from fedpca.protocol.question import Question

if TYPE_CHECKING:
    from fedpca.coordinator.secure import Masks, SecureSums

OnRound = Callable[[dict[str, Any]], None]
OnAnswer = Callable[[dict[str, Any]], None]


@dataclass
class Terms:
    """The terms on which a federation asks its sites; `Federation` describes each of them."""

    engine: Engine
    quorum: int
    on_refusal: str
    timeout: float | None
    on_round: OnRound | None
    on_answer: OnAnswer | None
    purpose: str
    approval_wait: float
    on_waiting: OnWaiting | None
    secure: bool
    is_optional: bool = False  # whether answers can be done without, maybe those of a whole run


@dataclass
class Attempt:
    """What a run knows about its sites until one of them is lost and the program starts again.

    All that depends on which sites take part is here, so that a new attempt begins with nothing from
    the one before. What outlives a lost site, such as the ledger, is the run's.
    """

    number: int = 0
    sums: SecureSums | None = None  # the sizes of masked sums, in a run with secure sums
    memory: int = 0  # the last round that changed the sites' memory
    is_declared: bool = False  # whether the sites know the plan
    dimensions: Dimensions = field(default_factory=dict)  # lengths that later messages must have
    features: tuple[str, ...] | None = None  # their names, if they have any
    energies: dict[str, float] = field(default_factory=dict)  # each site's sum of squares, if known
    # by word, the question that was told amounts last, and the amount of each site
    told: dict[str, tuple[str, dict[str, float]]] = field(default_factory=dict)


class Run:
    """One run of a program, from its first question to its last.

    Parameters
    ----------
    terms : Terms
        The terms on which sites are asked.
    identity : mapping, optional
        What the plan says about the program. It is None for questions that are asked outside a run.
        For these, no site is reserved, and no plan is declared.
    seed : int, optional
        The seed of all random numbers; by default, it is chosen at random.
    """

    def __init__(
        self, terms: Terms, identity: Mapping[str, Any] | None = None, seed: int | None = None
    ) -> None:
        lost = [
            {"site": name, "round": 0, "question": "", "reason": f"site {name!r}: {reason}"}
            for name, reason in terms.engine.absent.items()
        ]
        drawn = secrets.randbits(63) if seed is None else seed
        self.record = RunRecord(seed=drawn, sites=tuple(terms.engine.names), lost=lost)
        self.name = secrets.token_hex(8)
        self._terms, self._identity, self._seed = terms, identity, seed
        self._journal: Journal | None = None
        self._is_going = False  # whether `until_its_end` has begun and not yet ended
        self._reservation: ExitStack | None = None  # holds the sites until it is closed
        # returns the best subspace that was reported; and the features of its rows
        self._best: tuple[Callable[[], Array], tuple[str, ...] | None] | None = None
        self._messages: list[dict[str, Any]] = []  # entries of the current round's messages
        self._unannounced: dict[str, Any] | None = None  # the last round, for `on_round`
        self._refused: Round | None = None  # the last round, if a policy refused it
        self.attempt = Attempt()

    @contextmanager
    def until_its_end(self, path: str | os.PathLike[str] | None) -> Iterator[None]:
        """Open the journal if a path is given; release the journal and the sites when the run ends."""
        with ExitStack() as at_end:
            at_end.callback(self._end)
            self._is_going = True
            if path is not None:
                self._journal = at_end.enter_context(closing(self._open_journal(path)))
                self.name, self.record.seed = self._journal.run, self._journal.seed
            at_end.callback(self._announce)
            self._begin_attempt(0)
            yield

    def _end(self) -> None:
        self._is_going, self._journal = False, None
        self._release_sites()

    @property
    def plan(self) -> RunPlan:
        """Return the plan of the current attempt, as it is declared to the sites."""
        identity, terms = self._identity or {}, self._terms
        return RunPlan(
            run=self.name,
            program=str(identity.get("program", "program")),
            parameters=identity.get("parameters", {}),
            sites={name: terms.engine.keys.get(name, NO_KEY) for name in self.record.sites},
            purpose=terms.purpose,
            privacy={**identity.get("privacy", {}), **({SECURE: True} if terms.secure else {})},
            quorum=terms.quorum,
        )

    def report(self, residual: float, subspace: Callable[[], Array]) -> None:
        """Record the residual after a round, and a function that returns the best subspace so far."""
        self.record.history[-1]["residual"] = residual
        self._best = subspace, self.attempt.features

    def warm_start(self) -> WarmStart | None:
        """Return the best subspace that an earlier attempt reported, if there is one."""
        if self._best is None:
            return None
        subspace, features = self._best
        return WarmStart(subspace(), features)

    def _begin_attempt(self, number: int) -> None:
        """Begin an attempt, with the sites that are left."""
        sums = None
        if self._terms.secure:
            from fedpca.coordinator.secure import SecureSums
            from fedpca.privacy.offers import roster_hash

            sums = SecureSums()
            self.record.secure = {"roster": roster_hash(self.plan)}
        self.attempt = Attempt(number, sums)

    def go_on_without(self, lost: SitesLost) -> None:
        """Record the lost sites and begin a new attempt without them, if a quorum remains."""
        sites = self.record.sites
        remaining = tuple(name for name in sites if name not in lost.sites)
        self.record.add_lost({name: lost.reasons[name] for name in lost.sites})
        if not self._has_quorum(lost.sites):
            raise QuorumLost(
                f"{len(remaining)} of {len(sites)} sites are left, but the quorum is "
                f"{self._terms.quorum}; {lost}"
            ) from lost
        self.record.sites, self.record.influence = remaining, {}
        self._begin_attempt(self.attempt.number + 1)

    def go_on_after_refusal(self) -> None:
        """Record that a policy refused the last round, now that the program goes on without it.

        A refusal that ends the run is not recorded, so that a resumed run asks the question again. The
        policy may have changed by then.
        """
        refused, self._refused = self._refused, None
        if refused is not None and self._journal is not None:
            self._journal.append(*refused.to_record())

    def _announce(self) -> None:
        """Announce the last round once the solver has had a chance to report on it."""
        entry, self._unannounced = self._unannounced, None
        if entry is not None and self._terms.on_round is not None:
            self._terms.on_round(entry)

    def ask(self, question: Question, verb: str, arrays: Mapping[str, Any]) -> Round:
        """Ask all sites a question, or read the answers from the journal, and record the round."""
        if question.verb != verb:
            raise InputError(
                f"the answers to {question.name!r} must be combined by {question.verb!r}, not "
                f"{verb!r}; use Federation.{question.verb}, or declare the question with verb={verb!r}"
            )
        if self._terms.secure and verb == "gather" and question.reads_rows:
            raise PolicyRefused(
                f"{question.name!r} shows the answer of each site, which no secure sum can hide; ask "
                "only questions with summed answers, or omit secure"
            )
        self._announce()
        self.go_on_after_refusal()
        self._messages, began = [], time.perf_counter()
        attempt = self.attempt
        dimensions = dict(attempt.dimensions)
        checked = question.check_request(arrays, dimensions)
        asked = self._complete(question, checked, dimensions, self._masks_for(question, checked))
        if asked.has_failed and asked.masks is not None and attempt.sums is not None:
            attempt.sums.keep_told(asked.masks, asked.total)
            masks = attempt.sums.masks_again(asked.masks)
            asked = self._complete(question, checked, dict(attempt.dimensions), masks)
        self._enter_history(time.perf_counter() - began)
        if question.spends is not None:
            self.record.add_spent(question.spends(self.plan), self.plan)
        asked.raise_outcome()
        if question.remembers:
            attempt.memory = asked.number
        self._keep_told(asked)
        if asked.masks is not None:  # sizes are not part of the answer
            asked.total = {name: asked.total[name] for name in question.answers}
        return asked

    def _masks_for(self, question: Question, arrays: Arrays) -> Masks | None:
        """Return the masks of the answers, or None if the answers are not masked.

        If the size of the answers is unknown, another message in the same round first asks for it.
        """
        if not self._terms.secure or question.verb != "sum":
            return None
        if self.attempt.sums is None:
            raise InputError(
                "secure sums need a run, in which the sites exchange keys; use Federation.run, or an "
                "estimator's fit"
            )

        def ask(masks: Masks) -> Arrays:
            asked = self._complete(question, arrays, dict(self.attempt.dimensions), masks)
            if asked.lost or asked.refused is not None:  # the round ends here
                self._enter_history(0.0)
            asked.raise_outcome()
            return asked.total

        return self.attempt.sums.masks_for(question, arrays, len(self.record.sites), ask)

    def _complete(
        self, question: Question, arrays: Arrays, dimensions: Dimensions, masks: Masks | None
    ) -> Round:
        """Ask the sites, or read the answers from the journal, and write the message to the ledger."""
        attempt = self.attempt
        asked = Round(
            run=f"{self.name}.{attempt.number}",
            number=self.record.rounds + 1,
            question=question,
            arrays=arrays,
            sites=self.record.sites,
            dimensions=dimensions,
            memory=attempt.memory,
            energies=attempt.energies,
            # a question that is asked again may be about other rows, such as those without gaps
            before={w: each for w, (by, each) in attempt.told.items() if by != question.name},
            masks=masks,
        )
        recorded = None if self._journal is None else self._journal.next()
        if recorded is not None:
            asked.from_record(recorded)
        else:
            asked.refused = self._send(asked)
            # if a loss ends the run, the sites may come back, so a resumed run asks them again
            is_final = asked.refused is None and self._has_quorum(asked.lost)
            if self._journal is not None and is_final:
                self._journal.append(*asked.to_record())
            elif isinstance(asked.refused, PolicyRefused):
                self._refused = asked
        self._messages.append(asked.enter(self.record.ledger))
        return asked

    def _enter_history(self, seconds: float) -> None:
        self._unannounced = self.record.add_round(self._messages, seconds)

    def _keep_told(self, asked: Round) -> None:
        """Store the sites' shares of the rows, weight, and variance if all answers contain them.

        Shares of the rows are stored only once. Weights are stored only if they differ from the row
        counts.
        """
        attempt, told = self.attempt, asked.told
        if attempt.sums is not None and asked.masks is not None:
            attempt.sums.keep_told(asked.masks, asked.total)
            return
        for word in {word for each in told.values() for word in each}:
            amounts = {name: each[word] for name, each in told.items() if word in each}
            attempt.told[word] = (asked.question.name, amounts)
        kinds = {"rows": "rows", "weight": "weight", "energy": "variance"}
        if any("rows" in known for known in self.record.influence.values()):
            del kinds["rows"]
        if all(each.get("weight") == each.get("rows") for each in told.values()):
            del kinds["weight"]
        for word, kind in kinds.items():
            amounts = {name: each[word] for name, each in told.items() if word in each}
            if len(amounts) == len(self.record.sites):
                self.record.add_influence(kind, shares_of(amounts))
                if word == "energy":
                    attempt.energies = amounts

    def _send(self, asked: Round) -> FedpcaError | None:
        """Ask all sites, ask failed sites a second time, and return the refusal that stops the run.

        A site that refuses because of its rows or its policy is not asked again, because it would
        refuse again. It is lost, unless its refusal stops the run.
        """
        self._hold_sites()
        failed = self._declare()
        if failed:
            asked.close(lost=failed, is_void=True)
            return None
        refused: dict[str, FedpcaError] = {}
        accept = self._announcing(asked)
        for attempt in (1, 2):
            pending = asked.sites if attempt == 1 else tuple(failed)
            asked.retried = list(failed)
            failed = {name: f"site {name!r} did not answer" for name in pending}
            refused |= collect(self._replies(asked, pending), accept, failed)
            stopped_by = self._stopped_by(refused)
            if not failed or stopped_by is not None:
                break
        lost = failed if stopped_by is not None else failed | reasons_of(refused)
        in_order = {name: lost[name] for name in asked.sites if name in lost}
        asked.close(lost=in_order, is_void=bool(lost or refused))
        self.record.proofs |= self._terms.engine.proofs
        return stopped_by

    def _announcing(self, asked: Round) -> Callable[[str, RawAnswer | Summand], None]:
        """Announce the question; return a function that accepts an answer and announces it."""
        on_answer = self._terms.on_answer
        if on_answer is None:
            return asked.accept
        about = {"round": asked.number, "question": asked.question.name, "sites": asked.sites}
        on_answer({**about, "site": None})

        def accept(name: str, reply: RawAnswer | Summand) -> None:
            asked.accept(name, reply)
            on_answer({**about, "site": name})

        return accept

    def _replies(
        self, asked: Round, names: Sequence[str]
    ) -> Iterable[tuple[str, RawAnswer | Summand]]:
        """Ask these sites, and return what each replied; some engines add up answers on the way."""
        engine, timeout = self._terms.engine, self._terms.timeout
        if engine.ask_total is None or asked.verb != "sum":
            return engine.ask(names, asked.request, timeout)
        total = engine.ask_total(names, asked.request, timeout)
        asked.add_total(total)
        return total.replies.items()

    def _declare(self) -> dict[str, str]:
        """Declare the run's plan to the sites before the first question of an attempt.

        Return what went wrong at each site that is lost; raise an error if a refusal stops the run. The
        plan is declared if the engine says so, or if the run uses secure sums or differential privacy.
        """
        attempt, terms = self.attempt, self._terms
        if attempt.is_declared or self._identity is None:
            return {}
        plan = self.plan
        if not plan.privacy and not terms.engine.declares:
            return {}
        if terms.secure:
            refuse_unmaskable(plan)
        run = f"{self.name}.{attempt.number}"
        declaration = Declaration(
            terms.engine, plan, run, attempt.memory, terms.timeout, self._stopped_by
        )
        can_resume = self._journal is not None
        wait = ApprovalWait(self.name, terms.approval_wait, can_resume, terms.on_waiting)
        failed = declaration.declare(wait, self._hold_sites, self._release_sites)
        if terms.secure and not failed:
            failed = declaration.agree_on_keys()
        attempt.is_declared = True
        return failed

    def _hold_sites(self) -> None:
        """Reserve the sites before a run's first question, if other runs could use them, too."""
        if self._is_going and self._reservation is None:
            with ExitStack() as held:
                held.enter_context(self._terms.engine.hold(self.name))
                self._reservation = held.pop_all()

    def _release_sites(self) -> None:
        """Let other runs use the sites, until `_hold_sites` reserves them again."""
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            reservation.close()

    def _stopped_by(self, refused: Mapping[str, FedpcaError]) -> FedpcaError | None:
        """Return the error with which these refusals stop the run, or None if the sites are lost.

        Refusals stop a run that would have no quorum left, so that a person sees the reasons. If the
        program can do without an answer, it sees the refusals of policies itself.
        """
        is_for_program = self._terms.is_optional and any(
            isinstance(error, PolicyRefused) for error in refused.values()
        )
        may_lose = self._terms.on_refusal == "lose" and not is_for_program
        if not refused or (may_lose and self._has_quorum(refused)):
            return None
        return joined(refused, self.record.sites, PolicyRefused if is_for_program else None)

    def _open_journal(self, path: str | os.PathLike[str]) -> Journal:
        """Open the journal of this run, or refuse a journal that belongs to a different run."""
        identity = {
            **(self._identity or {}),
            "version": __version__,
            "sites": list(self.record.sites),
            "quorum": self._terms.quorum,
            "purpose": self._terms.purpose,
            "secure": self._terms.secure,
            "rows": dict(self._terms.engine.fingerprints()),
        }
        return Journal(path, identity=identity, seed=self._seed)

    def _has_quorum(self, lost: Collection[str]) -> bool:
        """Return whether enough sites remain without the lost ones."""
        return len(self.record.sites) - len(lost) >= self._terms.quorum
