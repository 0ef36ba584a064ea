"""The engine that asks sites through Flower's server.

A question is pushed to each site's node, and again where a node came online anew in the meantime: a
site that was killed and started again is asked again, and one that has answered gives the same
answer. So a run outlives sites that come and go, and a server that is started again, as long as the
time limit allows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.proto.control_pb2 import ListNodesRequest
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.control.control_http_client import ControlHttpClient

from fedpca.engines.flower.claimed import ClaimedRun, control_client
from fedpca.engines.flower.wire import Link, is_unauthorized, mapped_errors
from fedpca.errors import (
    InputError,
    LinkError,
    LinkRefused,
    QuorumLost,
    SiteError,
    SiteFailed,
    SiteTimeout,
)
from fedpca.message import Message, encode

PAUSE = 0.05  # seconds between two looks for answers
LOOK_AT_NODES = 0.5  # seconds between two looks at which sites are online
ABSENT = 60.0  # seconds for which a site that went away, or the server, is waited for


class FlowerEngine:
    """Carries messages to sites that joined the server at ``link``.

    Parameters
    ----------
    link : Link
        The coordinator's server.
    secret : bytes
        Its secret, by which it knows who may start a run.
    sites : int or list of str, optional
        How many sites, or which, to wait for; all that have keys by default. Sums are in the order of
        a list, else in that of the names.
    quorum : int, optional
        With how many of them it goes on where not all come.
    wait : float
        Seconds for which it waits until they are there.
    resumed : list of str, optional
        The sites of a run that goes on. They stay its sites, also those that do not come: what was
        answered holds for all of them, and who is lost is found as in any round.
    """

    def __init__(
        self,
        link: Link,
        secret: bytes,
        *,
        sites: int | Sequence[str] | None,
        quorum: int | None,
        wait: float,
        resumed: Sequence[str] | None = None,
    ) -> None:
        self._link, self._secret = link, secret
        self._open: ControlHttpClient | None = None
        self._run: ClaimedRun | None = None
        try:
            here = self._await_sites(resumed or sites, quorum, wait)
            self.names = list(resumed) if resumed else here
        except BaseException:
            self.close()
            raise

    def fingerprints(self) -> Mapping[str, str]:
        """None: rows are looked at by their sites only."""
        return {}

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, bytes | SiteError]]:
        """Each site's answer as it comes; the time limit is that of all together."""
        limit = math.inf if timeout is None else timeout
        began = reached = time.monotonic()  # when the server was last reached
        asked = _Asked(encode(request), dict.fromkeys(names, ""), dict.fromkeys(names, began))
        while asked.pending:
            now = time.monotonic()
            try:
                with mapped_errors(self._link):
                    answers = self._exchange(asked, now)
            except LinkError:
                if now - reached > min(limit, ABSENT):
                    raise
                self.close()  # the server may be another one that knows nothing of this run
                asked.begin_again()
                time.sleep(LOOK_AT_NODES)
                continue
            reached = now
            yield from answers.items()
            yield from asked.give_up(now, now - began > limit, limit)
            if asked.pending:
                time.sleep(PAUSE)

    def close(self) -> None:
        """End the run on the server and the connection; asking again begins another one."""
        run, self._run = self._run, None
        control, self._open = self._open, None
        if run is not None:
            run.close()
        if control is not None:
            control.close()

    @property
    def _control(self) -> ControlHttpClient:
        self._open = self._open or control_client(self._link, self._secret)
        return self._open

    def _await_sites(
        self, sites: int | Sequence[str] | None, quorum: int | None, wait: float
    ) -> list[str]:
        """The names of the sites, once they are online, or enough of them for the quorum."""
        until = time.monotonic() + wait
        while True:
            is_last = time.monotonic() > until
            try:
                with mapped_errors(self._link):
                    nodes = self._control.ListNodes(ListNodesRequest()).nodes_info
            except LinkError as error:
                if is_unauthorized(error):
                    raise LinkRefused(
                        f"the server at {self._link.address} has another coordinator.secret"
                    ) from None
                if is_last or isinstance(error, LinkRefused):
                    raise
                time.sleep(LOOK_AT_NODES)
                continue
            online = {node.name for node in nodes if node.status == "online"}
            wanted = self._wanted(sites, sorted(node.name for node in nodes))
            here = [name for name in wanted if name in online]
            due = sites if isinstance(sites, int) else len(wanted)
            if quorum is not None and not 1 <= quorum <= due:
                raise InputError(f"quorum={quorum} is not between 1 and the {due} sites")
            if len(here) == due:
                return here
            if len(here) > due:
                raise InputError(
                    f"sites={due}, and {len(here)} are online at {self._link.address}; name those "
                    f"to ask, of {', '.join(here)}"
                )
            if is_last:
                break
            time.sleep(LOOK_AT_NODES)
        missing = [name for name in wanted if name not in online]
        if quorum is None or len(here) < quorum:
            raise QuorumLost(
                f"{len(here)} of {due} sites are online "
                f"after {wait:g} s, and the quorum is {'all' if quorum is None else quorum}; "
                f"not online: {', '.join(missing)}"
            )
        return here

    def _wanted(self, sites: int | Sequence[str] | None, known: list[str]) -> list[str]:
        """The sites that may be asked, of those whose keys the server has."""
        if sites is None or isinstance(sites, int):
            if sites is not None and not 1 <= sites <= len(known):
                raise InputError(
                    f"sites={sites} is not between 1 and the {len(known)} whose keys are at "
                    f"{self._link.address}: {', '.join(known)}"
                )
            return known
        strangers = [name for name in sites if name not in known]
        if strangers:
            raise InputError(
                f"no key of {', '.join(strangers)} is at {self._link.address}, which knows "
                f"{', '.join(known)}"
            )
        return list(sites)

    def _exchange(self, asked: _Asked, now: float) -> dict[str, bytes | SiteError]:
        """Ask those who are online and were not asked since they came; take what is answered."""
        if now >= asked.look_at:
            asked.look_at = now + LOOK_AT_NODES
            nodes = self._control.ListNodes(ListNodesRequest()).nodes_info
            online = {node.name: node for node in nodes if node.status == "online"}
            asked.seen |= dict.fromkeys(online, now)
            self._push(asked, online)
        answers: dict[str, bytes | SiteError] = {}
        for number, reply in self._run.pull(list(asked.numbers)) if self._run else ():
            name = asked.numbers.pop(number)
            if reply is None and name in asked.pending:
                asked.pending[name] = ""  # to be asked again
            elif reply is not None and name in asked.pending:
                del asked.pending[name]
                answers[name] = reply
        return answers

    def _push(self, asked: _Asked, online: Mapping[str, NodeInfo]) -> None:
        due = [
            name
            for name, since in asked.pending.items()
            if name in online and online[name].last_activated_at != since
        ]
        if not due:
            return
        self._run = self._run or ClaimedRun(self._link, self._secret, self._control)
        numbers = self._run.push(asked.data, [online[name].node_id for name in due])
        asked.numbers |= zip(numbers, due, strict=True)
        asked.pending |= {name: online[name].last_activated_at for name in due}


@dataclass
class _Asked:
    """How far one question is."""

    data: bytes
    pending: dict[
        str, str
    ]  # sites that owe an answer, and when the node that was asked came online
    seen: dict[str, float]  # when each site was last online
    numbers: dict[str, str] = field(default_factory=dict)  # of Flower's messages, and to whom
    look_at: float = 0.0  # when to look again who is online

    def begin_again(self) -> None:
        """Whoever owes an answer must be asked anew."""
        self.pending, self.numbers, self.look_at = dict.fromkeys(self.pending, ""), {}, 0.0

    def give_up(self, now: float, is_late: bool, limit: float) -> Iterator[tuple[str, SiteError]]:
        """Those from whom no answer is to be expected, and why."""
        for name in list(self.pending):
            gone = now - self.seen[name]
            where = f"; it has been offline for {gone:.0f} s" if gone > 2 * LOOK_AT_NODES else ""
            if is_late:
                del self.pending[name]
                yield name, SiteTimeout(f"no answer within {limit:g} s{where}")
            elif gone > ABSENT:
                del self.pending[name]
                yield name, SiteFailed(f"no answer{where}")
