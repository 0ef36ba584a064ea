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
from functools import cached_property
from pathlib import Path

from fedpca.arrays import Array
from fedpca.errors import PolicyRefused
from fedpca.protocol.message import Header
from fedpca.protocol.plan import NO_KEY, RunPlan
from fedpca.protocol.printable import printable
from fedpca.protocol.question import Question
from fedpca.protocol.script import find_script
from fedpca.site.daily_limits import Budget
from fedpca.site.disclosure import Disclosure
from fedpca.site.guard import Agreement, Guard, Keys, agreement_to
from fedpca.site.memory import recall, remembers
from fedpca.site.policy import Policy
from fedpca.site.privacy_budget import PrivacyBudget, Release, Session
from fedpca.site.requests import Requests
from fedpca.site.store import BUDGET, PRIVACY, REQUESTS, ROWS, Kept, Kind


class Gate:
    """The rules of a site's policy, applied to plans, questions, rows, and answers.

    ``file`` returns the path of a file of the site, or None if the site keeps no such file. If a run
    asks for a person's approval, ``tell`` is called with a line of text. A site in the coordinator's
    own process has no keys.
    """

    def __init__(
        self,
        policy: Policy,
        site: str = "",
        *,
        keys: Keys | None = None,
        tell: Callable[[str], None] | None = None,
        file: Callable[[Kind], Path | None] = lambda _kind: None,
    ) -> None:
        self._policy, self._site, self._keys = policy, site, keys
        self._tell, self._file = tell, file

    # most sites in the coordinator's own process need none of these

    @cached_property
    def guard(self) -> Guard:
        """Return the questions that plans allow."""
        return Guard()

    @cached_property
    def disclosure(self) -> Disclosure:
        """Return the rules about few rows."""
        return Disclosure(self._policy, Kept(ROWS, lambda: self._file(ROWS)))

    @cached_property
    def budget(self) -> Budget:
        """Return the runs and rounds of a day."""
        return Budget(self._policy, Kept(BUDGET, lambda: self._file(BUDGET)))

    @cached_property
    def _privacy_budget(self) -> PrivacyBudget:
        return PrivacyBudget(self._policy)

    def consider(self, run: str, plan: RunPlan, signature: bytes) -> None:
        """Refuse a plan if its signature is wrong, a rule forbids it, or no person approved it."""
        if self._policy.is_open:
            return
        signer = self.signer_of(plan, signature)
        self.check_plan(run, plan)
        if self._policy.approval:
            self._requests.check(plan, signer)

    def signer_of(self, plan: RunPlan, signature: bytes) -> str:
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

    def check_plan(self, run: str, plan: RunPlan) -> None:
        """Refuse a plan that the policy or the privacy budget does not allow, and name the rule."""
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
        if plan.is_private:
            self._privacy_budget.check(plan, run, self._file(PRIVACY))

    def admit(self, memory: Mapping[str, Array], plan: RunPlan) -> Agreement:
        """Return the agreement to a plan that `consider` has not refused."""
        if self._policy.is_open or not remembers(memory, Agreement):
            return agreement_to(plan)
        # the coordinator was restarted, or its message was repeated
        agreed = recall(memory, Agreement)
        if agreed.plan.tobytes() != plan.to_bytes():
            raise PolicyRefused(
                "a different plan was declared for this run before; begin a new run"
            )
        return agreed

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


def refusal_of(policy: Policy, plan: RunPlan) -> str | None:
    """Return why a site with this policy would not take part in a run, or None if it would.

    The site's rows, and what the site has already spent of its budgets, are not considered.
    """
    if policy.is_open:
        return None
    try:
        Gate(policy).check_plan(f"{plan.run}.0", plan)
    except PolicyRefused as refusal:
        return str(refusal)
    return None
