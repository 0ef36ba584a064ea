"""Decide which runs a site takes part in, and what leaves the site.

A run meets the rules of a site's policy in this order:

1. Its plan is considered: who signed it, whether the policy and the privacy budget allow it, and
   whether a person at the site has approved it.
2. Each question is checked against the plan, the rows, and the number of rounds a day.
3. Before a noisy answer leaves, the site counts how much of the privacy budget the answer spends.

Each rule is in a separate module, which this module calls. If a site's policy answers everything, none
of these rules apply, except those for private runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

from fedpca.arrays import Array, Arrays
from fedpca.errors import FileError, PolicyRefused, SiteFailed
from fedpca.protocol.message import Header
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import Question
from fedpca.rows.in_memory import Rows
from fedpca.site.daily_limits import SET_ASIDE, Budget
from fedpca.site.directions import directions_in
from fedpca.site.disclosure import Disclosure
from fedpca.site.guard import Agreement, Guard, Keys, agreement_to
from fedpca.site.policy import Policy
from fedpca.site.privacy_budget import SUFFIX, PrivacyBudget, Release, Session
from fedpca.site.requests import Requests, requests_folder

log = logging.getLogger("fedpca.site")


class Gate:
    """The rules of a site's policy, applied to plans, questions, rows, and answers.

    ``file`` takes a suffix and returns the path of the site's file with that suffix, or None if the
    site has no folder. If a run asks for a person's approval, ``tell`` is called with a line of text.
    """

    def __init__(
        self,
        policy: Policy,
        site: str,
        *,
        keys: Keys | None,
        tell: Callable[[str], None] | None,
        file: Callable[[str], Path | None],
    ) -> None:
        self._policy, self._site, self._tell, self._file = policy, site, tell, file
        self._guard = None if policy.is_open else Guard(policy, site, keys)
        self._disclosure = Disclosure(policy) if policy.protects_few else None
        self._budget = Budget(policy) if policy.has_budget else None

    def consider(self, run: str, plan: RunPlan, signature: bytes) -> None:
        """Refuse a plan if its signature is wrong, a rule forbids it, or no person approved it."""
        if self._guard is None:
            return
        signer = self._guard.check_signature(plan, signature)
        self._guard.consider(run, plan)
        if plan.is_private:
            self._privacy_budget.check(plan, run, self._file(SUFFIX))
        if self._policy.approval:
            self._ask_for_approval(plan, signer)

    def admit(self, memory: Mapping[str, Array], run: str, plan: RunPlan) -> Agreement:
        """Return the agreement to a plan that `consider` has not refused."""
        return agreement_to(plan) if self._guard is None else self._guard.admit(memory, run, plan)

    def check_question(self, question: Question, header: Header, *, is_private: bool) -> None:
        """Refuse a question whose run is not approved, or that does not fit the kind of run."""
        if header["verb"] != question.verb:
            raise PolicyRefused(
                f"verb={header['verb']!r} does not fit question {question.name!r}, which declares "
                f"verb={question.verb!r}"
            )
        if self._policy.approval:
            self._requests.refuse_undecided(header["run"].rpartition(".")[0])
        if question.spends is not None and not is_private:
            raise PolicyRefused(
                f"question {question.name!r} is only for differentially private runs, but no plan with "
                "privacy settings was declared; use FederatedPCA(privacy=Privacy(...))"
            )
        if is_private and question.reads_rows and question.spends is None:
            raise PolicyRefused(
                f"the declared plan is differentially private, but question {question.name!r} asks "
                "for an answer without noise"
            )

    def check_step(
        self,
        memory: Mapping[str, Array],
        question: Question,
        header: Header,
        arrays: Arrays,
        n_features: int,
    ) -> Agreement | None:
        """Refuse a question that the plan does not allow now; otherwise, return the new agreement.

        If the site answers everything, check nothing, and return None.
        """
        if self._guard is None:
            return None
        return self._guard.check(memory, question, header, arrays, n_features)

    @property
    def leaves_out_few(self) -> bool:
        """Return whether the policy withholds numbers that describe too few rows."""
        return self._disclosure is not None

    def few_variants(self, rows: Rows, missing: int, record: Path | None) -> set[str]:
        """Return the names of the columns whose sums the policy does not let leave the site.

        After a change of one row, another set of names would tell about that row.
        """
        if self._disclosure is None:
            return set()
        self._disclosure.check_change(rows, record)
        few = self._disclosure.few_of(rows, missing)
        return {*few.rare, *few.gapped}

    def look_at(self, rows: Rows, record: Path | None) -> None:
        """Check the rows as the policy requires, so that the first run does not have to wait."""
        if self._disclosure is not None:
            self._disclosure.look(rows, record)

    def check_rows(self, rows: Rows, missing: int, record: Path | None, used: Rows) -> None:
        """Refuse rows if the policy does not let their sums leave the site; see `Disclosure.check`."""
        if self._disclosure is not None:
            self._disclosure.check(rows, missing, record, used)

    def check_directions(
        self,
        question: Question,
        answer: Arrays,
        shapes: Mapping[str, tuple[int, ...]],
        rows: Rows,
        missing: int,
        record: Path | None,
    ) -> None:
        """Refuse an answer if answers would show the rows in too many directions; else count it.

        ``answer`` is empty if the site could not answer; ``shapes`` are those that it would have.
        """
        if self._disclosure is not None:
            if answer:
                shapes = {name: array.shape for name, array in answer.items()}
            n_shown = directions_in(question, shapes)
            self._disclosure.count_directions(rows, missing, record, n_shown, answer)

    def start_over(self) -> None:
        """Count the next run as a new run, even if its name is the same."""
        if self._budget is not None:
            self._budget.start_over()

    def spend_round(self, run: str, *, keeps_process: bool) -> None:
        """Count a round of a run against the budget of the policy, if there is one."""
        if self._budget is not None:
            set_aside = SET_ASIDE if keeps_process else 1
            self._budget.spend(run, self._file(".budget"), set_aside)

    def spend(self, question: Question, header: Header, plan: RunPlan, session: Session) -> None:
        """Count what a noisy answer spends of the privacy budget, before it is saved and sent."""
        assert question.spends is not None
        run, number = str(header["run"]), header["round"]
        mu2 = question.spends(plan)
        release = Release.now(run, session, number, question.name, plan, mu2)
        self._privacy_budget.spend(release, self._file(SUFFIX))

    @cached_property
    def _privacy_budget(self) -> PrivacyBudget:
        """Return what private runs have spent."""
        return PrivacyBudget(self._policy)

    def privacy_budget_in_words(self) -> str:
        """Return how much of its privacy budget the site has spent, or "" if nothing limits it."""
        if self._policy.is_open:
            return ""
        return self._privacy_budget.in_words(self._file(SUFFIX))

    def _ask_for_approval(self, plan: RunPlan, signer: str) -> None:
        """Refuse a plan until a person at the site has approved it."""
        try:
            self._requests.check(plan, signer)
        except (FileError, OSError) as error:
            log.error("site %s cannot keep the request of a run: %s", self._site, error)
            raise SiteFailed(
                "the site cannot keep the request for approval; see the site's log for details"
            ) from None

    @property
    def _requests(self) -> Requests:
        """Return the requests of runs for a person's approval."""
        path = self._file("")
        if path is None:
            raise PolicyRefused(
                "the policy asks a person about each run, but the site has no folder for the requests; "
                "the site must be created with Site(..., store=FOLDER)"
            )
        folder = requests_folder(path.parent, self._site)
        return Requests(folder, self._policy.approval_days, self._tell)
