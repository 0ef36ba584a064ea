"""Declare a run to its sites before the first question, and wait where a person must approve the run.

The declaration is not a round, and the run's ledger does not list it, since it contains nothing about
rows. In a run with secure sums, each site replies to the declaration with an offer of a key. A second
message then passes all offers to all sites.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedpca.coordinator.approval import ApprovalWait
from fedpca.coordinator.round import RawAnswer, collect, reasons_of, reported
from fedpca.engines.base import Engine
from fedpca.errors import (
    ApprovalPending,
    FedpcaError,
    InputError,
    LinkError,
    LinkRefused,
    MessageError,
    PolicyRefused,
    SitesBusy,
)
from fedpca.protocol.message import Message, compose
from fedpca.protocol.plan import AGREE, DECLARE, NO_KEY, RunPlan
from fedpca.protocol.script import find_script

NO_BYTES = np.empty(0, np.uint8)
Failed = dict[str, str]  # what went wrong at each site that did not answer, or why it refused
StoppedBy = Callable[[Mapping[str, FedpcaError]], FedpcaError | None]


def refuse_unmaskable(plan: RunPlan) -> None:
    """Refuse a plan with too few sites for secure sums, or one that must show single sites' answers."""
    from fedpca.privacy.secure_sum import MIN_SITES, ONE_SITE

    if len(plan.sites) < MIN_SITES:
        raise InputError(ONE_SITE)
    try:
        sees = find_script(plan).sees
    except PolicyRefused:  # a program without a script may sum everything
        return
    if sees:
        raise InputError(
            f"{plan.program} with solver {plan.solver!r} shows the coordinator each site's answers to "
            f"{', '.join(sees)}, which no secure sum can hide; use a solver that needs only sums, such "
            "as 'lanczos', or omit secure"
        )


class Declaration:
    """The plan of one attempt of a run, on its way to the sites.

    Parameters
    ----------
    engine : Engine
        The engine that carries the messages.
    plan : RunPlan
        The plan to declare.
    run : str
        The name of the attempt.
    memory : int
        The number of the last round that changed the sites' memory; 0 unless the run is resumed.
    timeout : float, optional
        How many seconds a site has to answer.
    stopped_by : callable
        Takes the refusals by site, and returns the error with which they stop the run, or None if the
        sites that refuse are lost.
    """

    def __init__(
        self,
        engine: Engine,
        plan: RunPlan,
        run: str,
        memory: int,
        timeout: float | None,
        stopped_by: StoppedBy,
    ) -> None:
        self._engine, self._plan, self._timeout = engine, plan, timeout
        self._stopped_by = stopped_by
        self._header = {
            "run": run,
            "round": 0,
            "verb": "gather",
            "n_sites": len(plan.sites),
            "memory": memory,
        }
        self._replies: dict[str, Message] = {}

    def declare(
        self, wait: ApprovalWait, hold: Callable[[], None], release: Callable[[], None]
    ) -> Failed:
        """Declare the plan, and repeat this until people at all sites have approved it.

        Return what went wrong at each site that is lost; raise an error if a refusal stops the run.
        ``hold`` reserves the sites, and ``release`` lets other runs use them while this run waits.
        While people decide, an absent site may come back. So after everybody has decided, the plan is
        declared to all sites again. A site that refuses is lost at once.
        """
        request, waiting = self._request(), dict[str, str]()
        while True:
            try:
                hold()
                failed, pending, refused = self._ask(
                    tuple(waiting) or tuple(self._plan.sites), request
                )
            except (SitesBusy, LinkError) as error:
                if not waiting or isinstance(error, LinkRefused):
                    raise
                failed, pending, refused = {}, waiting, {}
            if refused:
                return refused if waiting else failed | refused
            if waiting:
                still = failed.keys() | pending.keys()
                pending = {n: pending.get(n, text) for n, text in waiting.items() if n in still}
            elif failed or not pending:
                wait.tell(())
                return failed
            if pending:
                release()
                wait.pause(pending)
            waiting = pending

    def agree_on_keys(self) -> Failed:
        """Send the offers of all sites to every site, so that each pair of sites shares a secret.

        A site whose offer the others would refuse has failed, and they are not asked.
        """
        from fedpca.engines.credentials import verify_der
        from fedpca.privacy.offers import Offer, check_offer, pack_offers

        offers: dict[str, Offer] = {}
        failed: Failed = {}
        for name in self._plan.sites:
            try:
                reply = self._replies[name]
                offer = Offer.from_bytes(reply.arrays.get("offer", NO_BYTES).tobytes())
                is_signed = self._plan.sites[name] != NO_KEY
                run = str(self._header["run"])
                check_offer(run, self._plan, name, offer, verify_der if is_signed else None)
                offers[name] = offer
            except (MessageError, PolicyRefused) as error:
                failed[name] = f"site {name!r}, while declaring the run: {error}"
        if failed:
            return failed
        request = compose({**self._header, "question": AGREE}, pack_offers(offers))
        failed, _, refused = self._ask(tuple(self._plan.sites), request)
        return failed | refused

    def _request(self) -> Message:
        arrays = {"plan": np.frombuffer(self._plan.to_bytes(), np.uint8)}
        signature = self._engine.sign(self._plan.statement)
        if signature is not None:
            arrays["signature"] = np.frombuffer(signature, np.uint8)
        return compose({**self._header, "question": DECLARE}, arrays)

    def _ask(self, names: Sequence[str], request: Message) -> tuple[Failed, Failed, Failed]:
        """Return what failed sites, sites where a person must decide, and sites that refuse said.

        Refusals that stop the run are raised after all sites have answered, so that the error names
        every site that refuses.
        """
        failed, pending = dict.fromkeys(names, ""), dict[str, str]()
        refused: dict[str, FedpcaError] = {}

        def accept(name: str, reply: RawAnswer) -> None:
            try:
                where = f"site {name!r}, round 0, while declaring the run"
                self._replies[name] = reported(reply, where)
            except ApprovalPending as error:
                pending[name] = str(error)

        for _ in range(2):
            names = tuple(failed)
            failed = {name: f"site {name!r} did not answer the declaration" for name in names}
            replies = self._engine.ask(names, request, self._timeout)
            refused |= collect(replies, accept, failed)
            error = self._stopped_by(refused)
            if error is not None:
                raise error
            if not failed:
                break
        return failed, pending, reasons_of(refused)
