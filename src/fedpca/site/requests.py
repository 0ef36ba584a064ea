"""Keep the runs that ask a person at the site for approval, and what the person decided.

Each request is a file in the site's folder, so no request is lost in a restart. A request is pending
until a person approves or denies it, or until it expires. An approval expires as well.

An approval is for one plan: the same run with the same program, parameters, purpose, and signer. The
run may lose sites and start over with the remaining sites, but with no fewer than the quorum in the
plan, and it may not gain any. A name that was used for one plan cannot be used for a different plan, so
a person approves only what that person has read.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fedpca.errors import ApprovalPending, InputError, PolicyRefused
from fedpca.facts import (
    COUNT,
    DATA,
    TIME,
    Fact,
    Section,
    Sections,
    ValueKind,
    choice,
    in_minutes,
    or_else,
)
from fedpca.protocol.message import Message, compose
from fedpca.protocol.plan import PRIVATE, RunPlan
from fedpca.protocol.printable import printable
from fedpca.site.store import REQUESTS

PENDING, APPROVED, DENIED, EXPIRED = "pending", "approved", "denied", "expired"
MAX_OF_SIGNER = 10  # pending requests of one key, and of all plans that nobody signed
MAX_OF_STRANGERS = 50  # of all keys whose runs nobody here has approved, which fills no disk
MAX_EXPIRED = 50  # number of undecided requests to keep after they expire
MAX_REASON = 500  # characters
_NAME = "request-*"


@dataclass(frozen=True)
class Request:
    """A run that asked for approval, as stored in a file; times are in ISO format."""

    run: str
    plan: str  # the plan's JSON
    signer: str  # the fingerprint of the key that signed the plan; empty if none did
    decision: str  # pending, approved, or denied
    since: str  # when the run first asked
    until: str  # when the request or the approval expires
    days: int  # how long an approval will last
    decided: str = ""
    reason: str = ""  # why the request was denied

    def __post_init__(self) -> None:
        if self.decision not in (PENDING, APPROVED, DENIED):
            raise ValueError("the decision must be pending, approved, or denied")
        if _time(self.since) > _time(self.until):
            raise ValueError("since must not be later than until")
        if self.declared.run != self.run:
            raise ValueError("the plan must be for the run of the request")

    @property
    def declared(self) -> RunPlan:
        """Return the plan that the run has declared."""
        return RunPlan.from_bytes(self.plan.encode())

    @property
    def state(self) -> str:
        """Return the current state: "pending", "approved", "denied", or "expired"."""
        is_over = self.decision != DENIED and _now() >= _time(self.until)
        return EXPIRED if is_over else self.decision

    def facts(self) -> Sections:
        """Return who asks for what, and what was decided, as sections of facts."""
        plan = self.declared
        private = plan.privacy.get(PRIVATE)
        if private is not None:
            first = ("epsilon", "delta", "row_bound")
            private = {name: private[name] for name in first if name in private} | dict(private)
        facts = (
            Fact("run", self.run),
            Fact("state", self.state),
            Fact("since", self.since, TIME, "asked"),
            Fact("until", self.until, TIME),
            Fact("decided", self.decided, TIME),
            Fact("program", plan.program),
            Fact("solver", plan.solver),
            Fact("parameters", dict(plan.parameters), VALUES),
            Fact("sites", dict(plan.sites), KEYS),
            Fact("quorum", plan.fewest_sites, COUNT, note="the run may go on with so many sites"),
            Fact("secure", plan.is_secure, SUMS, "sums"),
            Fact("privacy", private, PROMISE),
            Fact("signer", self.signer, or_else("nobody"), "signed by"),
            Fact("purpose", plan.purpose, or_else("not given")),
            Fact("reason", self.reason),
            Fact("digest", plan.digest, DATA),
        )
        return (Section("", facts),)

    def covers(self, plan: RunPlan, signer: str) -> bool:
        """Return whether a plan is the plan of this request, with its sites or at least a quorum."""
        asked = self.declared
        is_same = replace(plan, sites=asked.sites).to_bytes() == asked.to_bytes()
        has_no_more = plan.sites.items() <= asked.sites.items()
        has_quorum = len(plan.sites) >= asked.fewest_sites
        return is_same and has_no_more and has_quorum and signer == self.signer


SUMS = choice("secure", "plain: the coordinator can read each site's part")
VALUES = ValueKind(json.dumps)
KEYS = ValueKind(lambda key: f"({key[:16] or 'no key'})")
PROMISE = ValueKind(json.dumps, unknown="none: answers have no noise in them")


class Requests:
    """The requests in a site's folder.

    Parameters
    ----------
    folder : path
        The folder for the files; it is created when the first request arrives.
    days : int
        How many days a request waits for a decision, and how many days an approval lasts.
    tell : callable, optional
        Called with a line of text when a run asks for approval.
    """

    def __init__(
        self, folder: Path, days: int = 7, tell: Callable[[str], None] | None = None
    ) -> None:
        self._folder, self._days, self._tell = folder, days, tell

    def check(self, plan: RunPlan, signer: str) -> None:
        """Refuse a plan that no person has approved; if it is new, keep it as a request."""
        known = self._find(plan.run)
        if known is not None:
            self._refuse_other(known, plan, signer)
            if known.state == APPROVED:
                return
        if known is None or known.state == EXPIRED:
            known = self._ask(plan, signer)
        raise ApprovalPending(
            f"run {printable(plan.run)} waits for a person at the site to approve it, until "
            f"{in_minutes(known.until)}"
        )

    def refuse_undecided(self, run: str) -> None:
        """Refuse a question if its run was not approved, or if the approval has ended."""
        known = self._find(run)
        if known is not None and known.state == DENIED:
            raise _denial(known)
        if known is None or known.state != APPROVED:
            raise PolicyRefused(
                f"run {printable(run)} has no valid approval at this site; resume the run to ask again"
            )

    def all(self) -> list[Request]:
        """Return all requests, the oldest first."""
        found = [REQUESTS.read(path, _request_in) for path in sorted(self._folder.glob(_NAME))]
        return sorted(filter(None, found), key=lambda request: request.since)

    def named(self, run: str) -> Request:
        """Return the request of the run with this name, or of the only run that begins with it."""
        requests = self.all()
        found = [each for each in requests if run in (each.run, printable(each.run))]
        found = found or [each for each in requests if run and printable(each.run).startswith(run)]
        if len(found) != 1:
            fit = "no run has" if not found else f"{len(found)} runs have"
            names = ", ".join(printable(each.run) for each in found or requests) or "none"
            raise InputError(
                f"{fit} a name that begins with {printable(run)!r}; the runs are: {names}"
            )
        return found[0]

    def approve(self, request: Request) -> Request:
        """Approve a pending request; the approval lasts as long as the site's policy says."""
        if request.state == DENIED:
            raise InputError(
                f"run {printable(request.run)} was denied on {in_minutes(request.decided)}; the "
                "coordinator must begin a new run and ask again"
            )
        if request.state == EXPIRED:
            raise InputError(
                f"the request of run {printable(request.run)} expired on {in_minutes(request.until)}; "
                "the coordinator must ask again"
            )
        if request.state == APPROVED:
            return request
        now = _now()
        until = now + datetime.timedelta(days=request.days)
        return self._write(
            replace(request, decision=APPROVED, decided=_text(now), until=_text(until))
        )

    def deny(self, request: Request, reason: str = "") -> Request:
        """Deny a request, or revoke its approval; the coordinator is told the reason."""
        if len(reason) > MAX_REASON:
            raise InputError(f"the reason has {len(reason)} characters; use at most {MAX_REASON}")
        if request.state == DENIED:
            return request
        return self._write(replace(request, decision=DENIED, decided=_text(_now()), reason=reason))

    def _refuse_other(self, known: Request, plan: RunPlan, signer: str) -> None:
        """Refuse a run that was denied, or whose plan differs from the plan in the request."""
        if known.state == DENIED:
            raise _denial(known)
        if not known.covers(plan, signer):
            raise PolicyRefused(
                f"run {printable(plan.run)} asked for approval of a different plan before; begin a new "
                "run, with a new journal, to ask for this plan"
            )

    def _ask(self, plan: RunPlan, signer: str) -> Request:
        """Save a new request, and report it to the people at the site."""
        self._make_room(signer)
        now = _now()
        until = now + datetime.timedelta(days=self._days)
        request = Request(
            run=plan.run,
            plan=plan.to_bytes().decode(),
            signer=signer,
            decision=PENDING,
            since=_text(now),
            until=_text(until),
            days=self._days,
        )
        self._write(request)
        if self._tell is not None:
            self._tell(
                f"run {printable(plan.run)} asks for approval: {printable(plan.program)} with solver "
                f"{printable(plan.solver)} over {len(plan.sites)} sites, of which "
                f"{plan.fewest_sites} suffice, signed by "
                f"{signer or 'nobody'}, purpose: {printable(plan.purpose) or 'not given'}; see "
                "fedpca requests"
            )
        return request

    def _make_room(self, signer: str) -> None:
        """Remove old requests that nobody decided, so that a signer only crowds out its own.

        Anyone can make many keys. So keys whose runs nobody here has approved also share a limit.
        """
        requests = self.all()
        known = {each.signer for each in requests if each.decision == APPROVED} - {""}
        pending = [each for each in requests if each.state == PENDING]
        leaving = _beyond([each for each in pending if each.signer == signer], MAX_OF_SIGNER - 1)
        if signer not in known and not leaving:
            strangers = [each for each in pending if each.signer not in known]
            leaving = _beyond(strangers, MAX_OF_STRANGERS - 1)
        expired = [r for r in requests if r.state == EXPIRED and r.decision == PENDING]
        for request in (*leaving, *_beyond(expired, MAX_EXPIRED)):
            self._path(request.run).unlink(missing_ok=True)

    def _find(self, run: str) -> Request | None:
        return REQUESTS.read(self._path(run), _request_in)

    def _write(self, request: Request) -> Request:
        message = compose(asdict(request), {}, limit=None)
        REQUESTS.write(self._path(request.run), message)
        return request

    def _path(self, run: str) -> Path:
        """Return the path of a run's file, which is safe whatever characters the run's name has."""
        digest = hashlib.sha256(run.encode(errors="surrogatepass")).hexdigest()
        return self._folder / _NAME.replace("*", digest)


def _denial(request: Request) -> PolicyRefused:
    reason = f": {printable(request.reason, MAX_REASON)}" if request.reason else ""
    return PolicyRefused(
        f"a person at the site denied run {printable(request.run)} on "
        f"{in_minutes(request.decided)}{reason}"
    )


def _beyond(requests: list[Request], most: int) -> list[Request]:
    """Return the oldest requests, those beyond the most that may stay."""
    return requests[: max(0, len(requests) - most)]


def _request_in(message: Message) -> Request:
    return Request(**message.header)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


def _text(time: datetime.datetime) -> str:
    return time.isoformat(timespec="seconds")
