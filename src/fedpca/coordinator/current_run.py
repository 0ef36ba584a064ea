"""Conduct one run: ask its questions, keep what is known about the sites, and go on if some are lost.

A program talks only to the `Federation`. This module holds what changes from round to round.
"""

from __future__ import annotations

import math
import os
import secrets
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

from fedpca._version import __version__
from fedpca.arrays import Array, Arrays, Dimensions
from fedpca.coordinator.approval import ApprovalWait
from fedpca.coordinator.declaration import Declaration, refuse_unmaskable
from fedpca.coordinator.journal import Journal
from fedpca.coordinator.record import RunRecord, shares_of
from fedpca.coordinator.round import Reply, Round, collect, joined, reasons_of
from fedpca.coordinator.warm_start import WarmStart
from fedpca.engines.base import Summand
from fedpca.errors import (
    FedpcaError,
    InputError,
    JournalError,
    PolicyRefused,
    QuorumLost,
    SitesLost,
)
from fedpca.protocol.plan import NO_KEY, SECURE, RunPlan
from fedpca.protocol.question import Question

if TYPE_CHECKING:
    from fedpca.coordinator.federation import Federation
    from fedpca.coordinator.secure import Masks, SecureSums


class CurrentRun:
    """The run that a federation is carrying out.

    Parameters
    ----------
    fed : Federation
        The federation whose engine, quorum, and other settings apply.
    seed : int, optional
        The seed of all random numbers; by default, it is chosen at random.
    identity : mapping, optional
        What the plan says about the program. It is None for questions that are asked outside a run.
        For these, no site is reserved, and no plan is declared.
    """

    def __init__(
        self, fed: Federation, seed: int | None = None, identity: Mapping[str, Any] | None = None
    ) -> None:
        lost = [
            {"site": name, "round": 0, "question": "", "reason": f"site {name!r}: {reason}"}
            for name, reason in fed.engine.absent.items()
        ]
        drawn = secrets.randbits(63) if seed is None else seed
        self.record = RunRecord(seed=drawn, sites=tuple(fed.engine.names), lost=lost)
        self.name = secrets.token_hex(8)
        self.dimensions: Dimensions = {}  # lengths that all later messages must have
        self.features: tuple[str, ...] | None = None  # their names, if they have any
        # returns the best subspace that was reported; and the features of its rows
        self.best: tuple[Callable[[], Array], tuple[str, ...] | None] | None = None
        self._fed: Federation = weakref.proxy(fed)  # weak, since a cycle would delay freeing both
        self._seed, self._identity = seed, identity
        self._attempt = 0
        self._memory = 0  # the last round of this attempt that changed the sites' memory
        self._is_declared = False  # whether the sites know the plan of this attempt
        self._energies: dict[str, float] = {}  # each site's sum of squares, if it is known
        # by word, the question that was told amounts last, and the amount of each site
        self._told: dict[str, tuple[str, dict[str, float]]] = {}
        self._journal: Journal | None = None
        self._is_going = False  # whether `until_its_end` has begun and not yet ended
        self._reservation: ExitStack | None = None  # holds the sites until it is closed
        self._unannounced: dict[str, Any] | None = None
        self._asked_before: dict[str, Any] = {}  # the entry of a message that precedes the question
        self._refused: Round | None = None  # the last round, if a policy refused it
        self._secure_sums: SecureSums | None = None
        if identity is not None:
            self._begin_secure_sums()

    @contextmanager
    def until_its_end(self, path: str | os.PathLike[str] | None) -> Iterator[None]:
        """Open the journal if a path is given; release the journal and the sites when the run ends."""
        with ExitStack() as at_end:
            at_end.callback(self._end)
            self._is_going = True
            if path is not None:
                self._journal = at_end.enter_context(closing(self._open_journal(path)))
                self.name, self.record.seed = self._journal.run, self._journal.seed
            at_end.callback(self.announce)
            yield

    def _end(self) -> None:
        self._is_going, self._journal = False, None
        self._release_sites()

    def ask(self, question: Question, arrays: Mapping[str, Any]) -> Round:
        """Ask all sites a question, or read the answers from the journal, and record the round."""
        self.announce()
        self.go_on_after_refusal()
        began = time.perf_counter()
        dimensions = dict(self.dimensions)
        checked = question.check_request(arrays, dimensions)
        asked = self._round(question, checked, dimensions, self._masks_for(question, checked))
        entry = self._complete(asked)
        if asked.has_failed and asked.masks is not None and self._secure_sums is not None:
            self._keep_entry(entry)
            self._secure_sums.keep_told(asked.masks, asked.total)
            masks = self._secure_sums.masks_again(asked.masks)
            asked = self._round(question, checked, dict(self.dimensions), masks)
            entry = self._complete(asked)
        self._enter_history(entry, time.perf_counter() - began)
        self._count_spent(question)
        asked.raise_outcome()
        if question.remembers:
            self._memory = asked.number
        self._keep_told(asked)
        if asked.masks is not None:  # sizes are not part of the answer
            asked.total = {name: asked.total[name] for name in question.answers}
        return asked

    def warm_start(self) -> WarmStart | None:
        """Return the best subspace that was reported in an earlier attempt, if there is one."""
        if self.best is None:
            return None
        subspace, features = self.best
        return WarmStart(subspace(), features)

    def plan(self) -> RunPlan:
        """Return the plan of this attempt, as it is declared to the sites."""
        identity = self._identity or {}
        keys = self._fed.engine.keys
        return RunPlan(
            run=self.name,
            program=str(identity.get("program", "program")),
            parameters=identity.get("parameters", {}),
            sites={name: keys.get(name, NO_KEY) for name in self.record.sites},
            purpose=self._fed.purpose,
            privacy={**identity.get("privacy", {}), **({SECURE: True} if self._fed.secure else {})},
            quorum=self._fed.quorum,
        )

    def announce(self) -> None:
        """Announce the last round once the solver has had a chance to report on it."""
        entry, self._unannounced = self._unannounced, None
        if entry is not None and self._fed.on_round is not None:
            self._fed.on_round(entry)

    def go_on_after_refusal(self) -> None:
        """Record that a policy refused the last round, now that the program goes on without it.

        A refusal that ends the run is not recorded, so that a resumed run asks the question again. The
        policy may have changed by then.
        """
        refused, self._refused = self._refused, None
        if refused is not None and self._journal is not None:
            self._journal.append(*refused.to_record())

    def go_on_without(self, lost: SitesLost) -> None:
        """Record the lost sites and prepare a new attempt without them, if a quorum remains."""
        remaining = tuple(name for name in self.record.sites if name not in lost.sites)
        last = self.record.history[-1]
        self.record.lost += [
            {
                "site": name,
                "round": last["round"],
                "question": last["question"],
                "reason": lost.reasons[name],
            }
            for name in lost.sites
        ]
        if not self._has_quorum(lost.sites):
            raise QuorumLost(
                f"{len(remaining)} of {len(self.record.sites)} sites are left, but the quorum is "
                f"{self._fed.quorum}; {lost}"
            ) from lost
        self.record.sites = remaining
        self.record.influence, self._energies, self._told = {}, {}, {}
        self._attempt += 1
        self._memory = 0
        self._is_declared = False
        self._begin_secure_sums()

    def _open_journal(self, path: str | os.PathLike[str]) -> Journal:
        """Open the journal of this run, or refuse a journal that belongs to a different run."""
        fed = self._fed
        identity = {
            **(self._identity or {}),
            "version": __version__,
            "sites": list(self.record.sites),
            "quorum": fed.quorum,
            "purpose": fed.purpose,
            "secure": fed.secure,
            "rows": dict(fed.engine.fingerprints()),
        }
        journal = Journal(path, identity=identity, seed=self.record.seed)
        if self._seed not in (None, journal.seed):
            journal.close()
            raise JournalError(
                f"{journal.path} belongs to a run with seed {journal.seed}, not {self._seed}; use the "
                "journal's seed, or specify a new file"
            )
        return journal

    def _begin_secure_sums(self) -> None:
        """Prepare secure sums for a new attempt, in which no sizes of sums are known yet."""
        if self._fed.secure:
            from fedpca.coordinator.secure import SecureSums
            from fedpca.privacy.offers import roster_hash

            self._secure_sums = SecureSums()
            self.record.secure = {"roster": roster_hash(self.plan())}

    def _hold_sites(self) -> None:
        """Reserve the sites before a run's first question, if other runs could use them, too."""
        if self._is_going and self._reservation is None:
            with ExitStack() as held:
                held.enter_context(self._fed.engine.hold(self.name))
                self._reservation = held.pop_all()

    def _release_sites(self) -> None:
        """Let other runs use the sites, until `_hold_sites` reserves them again."""
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            reservation.close()

    def _round(
        self, question: Question, arrays: Arrays, dimensions: Dimensions, masks: Masks | None
    ) -> Round:
        """Return the next round of the run."""
        return Round(
            run=f"{self.name}.{self._attempt}",
            number=self.record.rounds + 1,
            question=question,
            arrays=arrays,
            sites=self.record.sites,
            dimensions=dimensions,
            memory=self._memory,
            energies=self._energies,
            # a question that is asked again may be about other rows, such as those without gaps
            before={word: each for word, (by, each) in self._told.items() if by != question.name},
            masks=masks,
        )

    def _complete(self, asked: Round) -> dict[str, Any]:
        """Ask the sites, or read the answers from the journal; return the entry for the history."""
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
        return asked.enter(self.record.ledger)

    def _masks_for(self, question: Question, arrays: Arrays) -> Masks | None:
        """Return the masks of the answers, or None if the answers are not masked.

        If the size of the answers is unknown, another message in the same round first asks for it.
        """
        if not self._fed.secure or question.verb != "sum":
            return None
        if self._secure_sums is None:
            raise InputError(
                "secure sums need a run, in which the sites exchange keys; use Federation.run, or an "
                "estimator's fit"
            )

        def ask(masks: Masks) -> Arrays:
            asked = self._round(question, arrays, dict(self.dimensions), masks)
            self._keep_entry(self._complete(asked))
            if asked.lost or asked.refused is not None:  # the round ends here
                self._enter_history({})
            asked.raise_outcome()
            return asked.total

        n_sites = len(self.record.sites)
        return self._secure_sums.masks_for(question, arrays, n_sites, ask)

    def _keep_entry(self, entry: dict[str, Any]) -> None:
        """Keep the entry of a message that is followed by another message in the same round."""
        before = self._asked_before
        bytes_of = {name: entry[name] + before.get(name, 0) for name in ("bytes_up", "bytes_down")}
        self._asked_before = {**entry, **bytes_of}

    def _enter_history(self, entry: dict[str, Any], seconds: float = 0.0) -> None:
        """Add a round to the history, with the bytes of all messages that belong to the round."""
        before, self._asked_before = self._asked_before, {}
        for name in ("bytes_up", "bytes_down") if entry and before else ():
            entry[name] += before[name]
        self.record.history.append({**before, **entry, "seconds": seconds, "residual": None})
        self._unannounced = self.record.history[-1]

    def _declare(self) -> dict[str, str]:
        """Declare the run's plan to the sites before the first question of an attempt.

        Return what went wrong at each site that is lost; raise an error if a refusal stops the run. The
        plan is declared if the engine's attribute ``declares`` is true, or if the run uses secure sums
        or differential privacy.
        """
        if self._is_declared or self._identity is None:
            return {}
        plan = self.plan()
        if not plan.privacy and not self._fed.engine.declares:
            return {}
        if self._fed.secure:
            refuse_unmaskable(plan)
        attempt = f"{self.name}.{self._attempt}"
        declaration = Declaration(
            self._fed.engine, plan, attempt, self._memory, self._fed.timeout, self._stopped_by
        )
        can_resume = self._journal is not None
        wait = ApprovalWait(self.name, self._fed.approval_wait, can_resume, self._fed.on_waiting)
        failed = declaration.declare(wait, self._hold_sites, self._release_sites)
        if self._fed.secure and not failed:
            failed = declaration.agree_on_keys()
        self._is_declared = True
        return failed

    def _count_spent(self, question: Question) -> None:
        """Add what a question spends to the privacy budget spent, even if only some sites answered."""
        if question.spends is not None:
            from fedpca.privacy.gaussian import Privacy, epsilon_of

            plan, spent = self.plan(), self.record.privacy
            settings = Privacy.of(plan)
            mu = math.hypot(spent.get("mu", 0.0), math.sqrt(question.spends(plan)))
            self.record.privacy = {
                **settings.to_plain(),
                "promised": settings.epsilon,
                "mu": mu,
                "epsilon": epsilon_of(mu, settings.delta),
            }

    def _keep_told(self, asked: Round) -> None:
        """Store the sites' shares of the rows, weight, and variance if all answers contain them.

        Shares of the rows are stored only once. Weights are stored only if they differ from the row
        counts.
        """
        if self._secure_sums is not None and asked.masks is not None:
            self._secure_sums.keep_told(asked.masks, asked.total)
            return
        told = asked.told
        for word in {word for each in told.values() for word in each}:
            amounts = {name: each[word] for name, each in told.items() if word in each}
            self._told[word] = (asked.question.name, amounts)
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
                    self._energies = amounts

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
        self.record.proofs |= self._fed.engine.proofs
        return stopped_by

    def _stopped_by(self, refused: Mapping[str, FedpcaError]) -> FedpcaError | None:
        """Return the error with which these refusals stop the run, or None if the sites are lost.

        Refusals stop a run that would have no quorum left, so that a person sees the reasons. If the
        program can do without an answer, it sees the refusals of policies itself.
        """
        is_for_program = self._fed.asks_optional and any(
            isinstance(error, PolicyRefused) for error in refused.values()
        )
        may_lose = self._fed.on_refusal == "lose" and not is_for_program
        if not refused or (may_lose and self._has_quorum(refused)):
            return None
        return joined(refused, self.record.sites, PolicyRefused if is_for_program else None)

    def _announcing(self, asked: Round) -> Callable[[str, Reply | Summand], None]:
        """Announce the question; return a function that accepts an answer and announces it."""
        on_answer = self._fed.on_answer
        if on_answer is None:
            return asked.accept
        about = {"round": asked.number, "question": asked.question.name, "sites": asked.sites}
        on_answer({**about, "site": None})

        def accept(name: str, reply: Reply | Summand) -> None:
            asked.accept(name, reply)
            on_answer({**about, "site": name})

        return accept

    def _replies(self, asked: Round, names: Sequence[str]) -> Iterable[tuple[str, Reply | Summand]]:
        """Ask these sites, and return what each replied; some engines add up answers on the way."""
        asking = names, asked.request, self._fed.timeout
        total = self._fed.engine.ask_total(*asking) if asked.verb == "sum" else None
        if total is None:
            return self._fed.engine.ask(*asking)
        asked.add_total(total)
        return total.replies.items()

    def _has_quorum(self, lost: Collection[str]) -> bool:
        """Return whether enough sites remain without the lost ones."""
        return len(self.record.sites) - len(lost) >= self._fed.quorum
