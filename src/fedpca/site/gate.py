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

from collections.abc import Callable, Mapping
from pathlib import Path

from fedpca.arrays import Array, Arrays
from fedpca.errors import PolicyRefused
from fedpca.protocol.message import Header
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import Question
from fedpca.site.daily_limits import Budget
from fedpca.site.disclosure import Disclosure
from fedpca.site.guard import Agreement, Guard, Keys, agreement_to
from fedpca.site.policy import Policy
from fedpca.site.privacy_budget import PrivacyBudget, Release, Session
from fedpca.site.requests import Requests
from fedpca.site.store import BUDGET, PRIVACY, REQUESTS, ROWS, Kept, Kind


class Gate:
    """The rules of a site's policy, applied to plans, questions, rows, and answers.

    ``file`` returns the path of a file of the site, or None if the site has no folder. ``record`` does
    so for the record of its rows. If a run asks for a person's approval, ``tell`` is called with a line
    of text.
    """

    def __init__(
        self,
        policy: Policy,
        site: str,
        *,
        keys: Keys | None,
        tell: Callable[[str], None] | None,
        file: Callable[[Kind], Path | None],
        record: Callable[[], Path | None],
    ) -> None:
        self._policy, self._tell, self._file = policy, tell, file
        self._guard = None if policy.is_open else Guard(policy, site, keys)
        self._privacy_budget = PrivacyBudget(policy)
        self.disclosure = Disclosure(policy, Kept(ROWS, record))
        self.budget = Budget(policy, Kept(BUDGET, lambda: file(BUDGET)))

    def consider(self, run: str, plan: RunPlan, signature: bytes) -> None:
        """Refuse a plan if its signature is wrong, a rule forbids it, or no person approved it."""
        if self._guard is None:
            return
        signer = self._guard.check_signature(plan, signature)
        self._guard.consider(run, plan)
        if plan.is_private:
            self._privacy_budget.check(plan, run, self._file(PRIVACY))
        if self._policy.approval:
            self._requests.check(plan, signer)

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

    def spend(self, question: Question, header: Header, plan: RunPlan, session: Session) -> None:
        """Count what a noisy answer spends of the privacy budget, before it is saved and sent."""
        assert question.spends is not None
        run, number = str(header["run"]), header["round"]
        mu2 = question.spends(plan)
        release = Release.now(run, session, number, question.name, plan, mu2)
        self._privacy_budget.spend(release, self._file(PRIVACY))

    def privacy_budget_in_words(self) -> str:
        """Return how much of its privacy budget the site has spent, or "" if nothing limits it."""
        if self._policy.is_open:
            return ""
        return self._privacy_budget.in_words(self._file(PRIVACY))

    @property
    def _requests(self) -> Requests:
        """Return the requests of runs for a person's approval."""
        folder = self._file(REQUESTS)
        if folder is None:
            raise PolicyRefused(
                "the policy asks a person about each run, but the site has no folder for the requests; "
                "the site must be created with Site(..., store=FOLDER)"
            )
        return Requests(folder, self._policy.approval_days, self._tell)
