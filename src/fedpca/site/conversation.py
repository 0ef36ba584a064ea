"""Take a site's part in its conversation with a coordinator.

A conversation consists of one or more runs, one after the other. The site admits the plan of a run,
agrees on keys for masks, answers questions in order, and saves its memory before an answer leaves.
`fedpca.site.site` has what a question may use of the site, and `fedpca.site.gate` has the rules of the
policy.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedpca.arrays import Array, Arrays, Dimensions
from fedpca.errors import (
    REPORTED_BY_SITES,
    FedpcaError,
    InputError,
    MessageError,
    PolicyRefused,
    SiteFailed,
)
from fedpca.linalg.blas_threads import threads_for_entries
from fedpca.protocol.message import (
    ECHOED,
    Checked,
    Header,
    Message,
    compose,
    echo,
)
from fedpca.protocol.plan import AGREE, DECLARE, RunPlan
from fedpca.protocol.question import Question, find_question
from fedpca.site.current_run import CurrentRun, read_only
from fedpca.site.daily_limits import SET_ASIDE
from fedpca.site.directions import directions_in
from fedpca.site.gate import Gate
from fedpca.site.guard import UNDECLARED, Agreement, Keys
from fedpca.site.guard import keep as keep_agreement
from fedpca.site.memory import MEMORY_GONE, Checkpoint, recall, remember
from fedpca.site.privacy_budget import SESSION_BYTES, Session
from fedpca.site.store import MEMORY

if TYPE_CHECKING:
    from fedpca.site.site import Site

log = logging.getLogger("fedpca.site")

MAX_ENDED_RUNS = 1000  # number of ended runs whose late questions a site recognizes
# in memory: that it depends on numbers from the coordinator; that the site could not answer
CHOSEN, FAILED = "chosen numbers", "no answer"


class Conversation:
    """The questions of a coordinator to a site, and the run that the site is in.

    ``keys`` holds the keys of the site and its coordinator if they are on different machines. If a run
    asks for a person's approval, ``tell`` is called with a line of text.
    """

    def __init__(
        self, site: Site, *, keys: Keys | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        self._site, self._keys = site, keys
        self.run = CurrentRun()
        self.gate = Gate(site.policy, site.name, keys=keys, tell=tell, file=site.file)
        self._ended: deque[str] = deque(maxlen=MAX_ENDED_RUNS)
        self._lock = threading.Lock()

    def answer(self, request: Message, *, keep: bool = True) -> Message:
        """Return the answer or an error message; a repeated round gets the same answer.

        An engine that rarely loses answers in transit passes ``keep=False``. The site then does not
        keep the answer, but computes it again if the round is repeated.
        """
        with self._lock:
            try:
                return self._answer(request, keep)
            except tuple(REPORTED_BY_SITES.values()) as error:
                return refusal(self._site.name, request.header, error)
            except Exception as error:  # other exceptions may quote a value from a row or a path
                log.exception("site %s could not answer", self._site.name)
                text = f"{type(error).__name__}; see the site's log for details"
                return refusal(self._site.name, request.header, SiteFailed(text))

    def _answer(self, message: Message, keep: bool) -> Message:
        """Answer a question, a plan, or a request to agree on keys."""
        header = message.question_header
        if header["question"] == DECLARE:
            return self._declare(message)
        if header["run"] != self.run.name:
            is_masked = header["question"] == AGREE or "mask" in header
            self._enter(header["run"], header["memory"], has_keys=is_masked)
        if header["question"] == AGREE:
            return self._agree_on_keys(message)
        run, number = self.run, header["round"]
        reply = run.reply_to(number)
        if reply is not None and run.held_for(message) is None:
            return reply
        if number < run.round:
            raise MessageError(f"round {number} was requested after round {run.round}")
        return self._answer_new(message, keep)

    def _answer_new(self, message: Message, keep: bool) -> Message:
        """Answer a round that the site has not answered yet, or whose answer it did not keep."""
        run, site, header = self.run, self._site, message.header
        number = header["round"]
        question = find_question(header["question"])
        arrays, dimensions = self._checked(message, question)
        masks = run.masks_for(question, message, site)
        memory, before, asked = run.memory, run.memory_before(number), arrays
        agreed = None
        if not site.policy.is_open:
            guard, d = self.gate.guard, dimensions["d"]
            agreed = guard.check(before, question, header, arrays, d)
        # enough noise hides single rows, and nothing else takes the place of the rules about few rows
        is_hidden = question.spends is not None and site.policy.noise_hides_rows(run.plan)
        if site.policy.protects_few and question.reads_rows and not is_hidden:
            gaps = run.treats_gaps(arrays)
            self.gate.disclosure.check(site.source.rows, gaps, site.rows)
        if site.policy.has_budget:
            # a process that ends with the question could not use rounds that are set aside
            self.gate.budget.spend(header["run"], SET_ASIDE if site.keeps_process else 1)
        try:
            run.memory = before if agreed is None else keep_agreement(before, agreed)
            if question.remembers:
                run.memory = dict(run.memory)
                # copy, because a view in memory would keep the whole request alive
                arrays = {key: array.copy() for key, array in arrays.items()}
            held = run.held_for(message)
            if held is not None:
                answer, run.memory = held.answer, held.memory
            else:
                run.refuse_other_than_held()
                compute = self._compute if masks is None else self._compute_or_fail_unseen
                answer = compute(question, arrays, dimensions)
                if site.policy.protects_few:
                    gaps, rows = run.treats_gaps(asked), site.source.rows
                    shapes = question.answer_shapes(asked, dimensions)
                    shapes |= {name: array.shape for name, array in answer.items()}
                    n_shown = directions_in(question, shapes)
                    self.gate.disclosure.count_directions(n_shown, answer, rows, gaps)
            sent = answer if masks is None else masks.of(answer, arrays, dimensions)
            reply = self._reply(header, sent)
            if masks is not None and masks.is_size:
                run.hold(message, answer)
                run.memory = memory
                return reply
            if masks is None and site.policy.is_open:
                reply.checked[question.name] = Checked(reply.arrays, dimensions, asked)
            if question.spends is not None:
                self.gate.spend(question, header, run.plan, run.recall(Session))
            # the agreement and an answer with noise must outlive the process too
            if question.remembers or agreed is not None or question.spends is not None:
                self._save(number, reply)
        except BaseException:
            run.memory = memory
            raise
        # under a plan, a repeated round must get the same numbers and the same noise
        is_kept = keep or agreed is not None or question.spends is not None
        run.advance(number, before, reply if is_kept else None)
        if masks is not None and masks.tells_size and is_kept:
            run.hold(message, answer)
        return reply

    def _checked(self, message: Message, question: Question) -> tuple[Arrays, Dimensions]:
        """Return a question's arrays and dimensions; refuse a question that the policy forbids."""
        header = message.header
        self.gate.check_question(question, header, is_private=self.run.remembers(Session))
        self._site.refuse_changed_rows()
        self._site.policy.check(question, header["n_sites"], self._site.rows)
        if not self._site.policy.is_open:  # a caller could change another site's arrays
            dimensions = {"d": self._site.rows.n_features}
            return question.check_request(message.arrays, dimensions), dimensions
        checked = question.checked_request(message, self._site.rows.n_features)
        return checked.arrays, dict(checked.dimensions)

    def _compute(self, question: Question, arrays: Arrays, dimensions: Dimensions) -> Arrays:
        """Return the checked answer to a question."""
        try:
            with threads_for_entries(0):  # one BLAS thread, except in long products
                raw = question(self._site, **arrays)
        except Exception:
            self._site.refuse_changed_rows()  # a changed file explains the failure better
            raise
        self._site.refuse_changed_rows()
        values = {k: np.asarray(v) for k, v in raw.items()}
        # numbers that are too large come from large rows, which a person must rescale
        return question.check_answer(values, dimensions, arrays, too_large=InputError)

    def _compute_or_fail_unseen(
        self, question: Question, arrays: Arrays, dimensions: Dimensions
    ) -> Arrays:
        """Return the answer to a masked question, or nothing if the site cannot answer.

        Whether a site can answer may depend on its rows and on numbers that the coordinator has chosen,
        so a refusal would tell about the rows. A site that could not answer once does not answer until
        the run ends. Without chosen numbers, a person should see what is wrong with the rows.
        """
        run = self.run
        is_chosen = any(each.dtype == "float64" for each in question.asks.values())
        if not is_chosen and CHOSEN not in run.memory:
            return self._compute(question, arrays, dimensions)
        if FAILED in run.memory:
            return {}
        memory = run.memory
        if question.remembers:
            run.memory = {**memory, CHOSEN: np.ones(1, np.uint8)}
        try:
            return self._compute(question, arrays, dimensions)
        except SiteFailed:  # files and time limits have nothing to do with the numbers
            raise
        except Exception:
            self._site.refuse_changed_rows()
            log.exception(
                "site %s cannot answer question %s, and hides that under its masks",
                self._site.name,
                question.name,
            )
            run.memory = {**memory, FAILED: np.ones(1, np.uint8)}
            return {}

    def _agree_on_keys(self, message: Message) -> Message:
        """Agree on secrets with other sites, so that answers can be masked."""
        from fedpca.site.masking import MaskKeys

        header = message.header
        if not self.run.remembers(Agreement) or not self.run.remembers(MaskKeys):
            raise PolicyRefused(UNDECLARED)
        keys = self.run.recall(MaskKeys).agree(
            header["run"], self.run.plan, self._site.name, message.arrays, self._keys
        )
        kept = dict(self.run.memory)
        remember(kept, keys)
        self.run.memory = read_only(kept)
        reply = self._reply(header, {})
        if self.run.round == 0:  # otherwise, the file of a later round has them already
            self._save(0, reply)
        return reply

    def _declare(self, message: Message) -> Message:
        """Admit the plan of a run, or refuse it; a site that answers everything needs no plan.

        A plan that is refused or waits for approval does not end the run that the site is in.
        """
        header = message.header
        plan = RunPlan.from_bytes(message.arrays.get("plan", np.empty(0)).tobytes())
        if plan.is_secure and not self._site.keeps_process:
            raise PolicyRefused(
                "this site starts a new process for each question, so it cannot know which answer it "
                "has told the size of; for secure sums, the site must use fedpca join"
            )
        signature = message.arrays.get("signature", np.empty(0, np.uint8)).tobytes()
        run, last = header["run"], header["memory"]
        self.gate.consider(run, plan, signature)
        needs_plan = not self._site.policy.is_open or plan.is_secure or plan.is_private
        if run != self.run.name:
            if not self._site.policy.is_open and not last and run in self._ended:
                self._ended.remove(run)  # the run waited for other sites, and begins only now
            self._enter(run, last, is_declared=True, has_keys=needs_plan)
        if not needs_plan:
            return self._reply(header, {})
        return self._begin_plan(header, plan, self.gate.admit(self.run.memory, plan))

    def _begin_plan(self, header: Header, plan: RunPlan, agreed: Agreement) -> Message:
        """Remember the agreement, and offer a key if the plan asks for secure sums."""
        is_new = not self.run.remembers(Agreement)
        kept = keep_agreement(self.run.memory, agreed) if is_new else dict(self.run.memory)
        if is_new and plan.is_private:
            key = np.frombuffer(secrets.token_bytes(SESSION_BYTES), np.uint8)
            remember(kept, Session(key))
        offer: Arrays = {}
        if plan.is_secure:
            from fedpca.site.masking import MaskKeys

            if not self.run.remembers(MaskKeys):
                remember(kept, MaskKeys.new(header["run"], plan, self._keys))
            offer = {"offer": recall(kept, MaskKeys).offer}
        self.run.memory = read_only(kept)
        reply = self._reply(header, offer)
        if is_new:
            self._save(0, reply)
        return reply

    def _reply(self, asked: Header, arrays: Mapping[str, Array]) -> Message:
        """Compose a reply whose header repeats the run, round, and question."""
        return compose({**{name: asked[name] for name in ECHOED}, "site": self._site.name}, arrays)

    def _enter(
        self, run: str, last: int, *, is_declared: bool = False, has_keys: bool = False
    ) -> None:
        """Begin a run with empty memory, or with the memory that an earlier process saved.

        ``last`` is the run's most recent round that changed the sites' memory. Without the memory from
        that round, any answer could be wrong.

        Files that have changed since the site opened them are opened again. A site may run for months
        while its files change every night, but they must not change during a run.
        """
        if run in self._ended:
            raise MessageError("this run is over because a newer run has started at this site")
        files = self._site.source.files_now()
        is_saved = last or has_keys or not self._site.policy.is_open
        path, saved = self._site.file(MEMORY), None
        if path is not None and is_saved:
            saved = Checkpoint.load(path, run, self._site.source.fingerprint_of(files))
        if (0 if saved is None else saved.round) < last:
            raise MessageError(
                f"this question needs the memory from round {last}, which the site does not have; "
                f"{MEMORY_GONE}"
            )
        if saved is None and not is_declared and not self._site.policy.is_open:
            raise PolicyRefused(UNDECLARED)  # the site stays in its current run
        self._site.reopen(files)
        if saved is None and self._site.policy.has_budget:
            self.gate.budget.start_over()
        if self.run.name is not None:
            self._ended.append(self.run.name)
        self.run = CurrentRun.resume(saved or Checkpoint(run, 0, {}))

    def _save(self, number: int, reply: Message) -> None:
        """Save the site's memory and the answer before the answer leaves."""
        path = self._site.file(MEMORY)
        if path is not None:
            rows = self._site.source.fingerprint_of(self._site.source.files)
            Checkpoint(str(self.run.name), number, self.run.memory, reply).save(path, rows)


def refusal(site: str, asked: Header, error: FedpcaError) -> Message:
    """Compose a site's reply that contains only an error."""
    # report the nearest base class that the coordinator recognizes
    kinds = [k for k in type(error).__mro__ if k.__name__ in REPORTED_BY_SITES]
    kind = kinds[0] if kinds else SiteFailed  # a FileError, for example, concerns only the site
    header = {**echo(asked), "site": site, "error": kind.__name__, "text": str(error)}
    return compose(header, {})
