"""Ask sites through Flower's server.

The engine sends a question to each site's node, and resends it if the node goes offline and comes
back. A site that was killed and restarted is therefore asked again, and a site that has already
answered returns the same answer. A run survives sites that disconnect and servers that restart, as long
as they return within the time limit.

Each answer comes with the site's signature, which the engine verifies. The sites' public keys come
from the server, unless the coordinator keeps the NAME.pub files itself.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from flwr.proto.control_pb2 import ListNodesRequest
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.control.control_http_client import ControlHttpClient

from fedpca.engines.base import Engine, OnOnline, requested_sites
from fedpca.engines.credentials import (
    CA,
    COORDINATOR_KEY,
    PublicKey,
    fingerprint,
    pinned_site_keys,
    public_key_from_pem,
    read_authority,
    read_coordinator_key,
    read_secret,
    seal,
    verify_signature,
)
from fedpca.engines.default_locations import coordinator_folder, with_port
from fedpca.engines.flower.connection import Link, is_unauthorized, mapped_errors
from fedpca.engines.flower.reservations import Hold
from fedpca.engines.flower.run import ClaimedRun, control_client
from fedpca.errors import (
    FileError,
    InputError,
    JournalError,
    LinkError,
    LinkRefused,
    MessageError,
    QuorumLost,
    SiteError,
    SiteFailed,
    SiteTimeout,
)
from fedpca.protocol.message import Message, encode
from fedpca.protocol.proof import NO_HEAD, Proof, commitment, digest, statement
from fedpca.site.store import LEDGER

# pause between polls for answers; the server holds a poll until an answer arrives
ANSWER_POLL_S = 0.01
NODE_POLL_S = 0.5  # pause between checks of which sites are online
ABSENCE_LIMIT_S = 60.0  # how long to wait for an offline site or server


class FlowerEngine(Engine):
    """An engine for sites that have joined the server at ``link``.

    Parameters
    ----------
    link : Link
        The coordinator's server.
    secret : bytes
        The coordinator's secret, which authorizes it to start a run.
    sites : int or list of str, optional
        The number of sites to wait for, or their names; by default, all sites whose keys the server
        has. Sums are computed in list order, or in alphabetical order if no list is given.
    quorum : int, optional
        The minimum number of sites to continue with if some do not come online.
    wait : float
        Seconds to wait for the sites to come online. If a different run is using them, a fit waits up
        to the same number of seconds for that run to end.
    resumed : list of str, optional
        The sites in a resumed run. The run keeps them even if some do not come online, because the
        recorded answers cover all of them. The next round determines which sites are lost.
    pinned : dict of public keys, optional
        The sites' public keys that the coordinator keeps itself; the server provides the others.
    sign : callable, optional
        The function that signs a plan with the coordinator's key.
    on_online : callable, optional
        A function to call with the names of all sites and the names of those online, whenever one of
        the two lists changes.
    """

    declares = True  # sites on other machines follow the plan of a run

    def __init__(
        self,
        link: Link,
        secret: bytes,
        *,
        sites: int | Sequence[str] | None,
        quorum: int | None,
        wait: float,
        resumed: Sequence[str] | None = None,
        pinned: Mapping[str, PublicKey] | None = None,
        sign: Callable[[bytes], bytes] | None = None,
        on_online: OnOnline | None = None,
    ) -> None:
        self._link, self._secret, self._wait = link, secret, wait
        self._client: ControlHttpClient | None = None
        self._run: ClaimedRun | None = None
        self._hold: Hold | None = None
        self._pinned = dict(pinned or {})
        self._sign = sign
        self._on_online, self._told_online = on_online, ([""], [""])
        self.proofs: dict[str, dict[str, str]] = {}
        try:
            here = self._await_sites(resumed or sites, quorum, wait)
            self.names = list(resumed) if resumed else here
            # the server has keys of sites that do not take part, too
            self.keys = {name: key for name, key in self.keys.items() if name in self.names}
        except BaseException:
            self.close()
            raise

    def sign(self, data: bytes) -> bytes | None:
        """Return the signature with the coordinator's key, if there is one."""
        return None if self._sign is None else self._sign(data)

    @contextmanager
    def hold(self, run: str) -> Iterator[None]:
        """Reserve the sites for a run; raise `SitesBusy` if they are still in use after the wait."""
        self._release()
        self._hold = Hold(
            self._link,
            self._secret,
            run,
            self.names,
            wait=self._wait,
            absence_limit=ABSENCE_LIMIT_S,
        )
        try:
            yield
        finally:
            self._release()

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, bytes | SiteError]]:
        """Yield each site's answer as it arrives; one time limit covers all sites.

        A question that is asked outside of `hold` reserves the sites until they have answered.
        """
        if self._hold is not None:
            yield from self._ask(names, request, timeout)
        else:
            with self.hold(str(request.header["run"])):
                yield from self._ask(names, request, timeout)

    def _ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, bytes | SiteError]]:
        for name in names:
            self.proofs.pop(name, None)  # the proof may be from a different run
        limit = math.inf if timeout is None else timeout
        began = reached = time.monotonic()  # when the server was last reached
        asked = _Asked(
            encode(request),
            request.max_answer_bytes,
            dict.fromkeys(names, ""),
            dict.fromkeys(names, began),
        )
        while asked.pending:
            now = time.monotonic()
            try:
                with mapped_errors(self._link):
                    self._exchange(asked, now)
            except LinkError:
                now = time.monotonic()
                if now - reached > min(limit, ABSENCE_LIMIT_S):
                    raise
                self._drop()  # a restarted server has no record of this run
                asked.begin_again(now)
                time.sleep(NODE_POLL_S)
            else:
                reached = now
                asked.give_up(now, now - began > limit, limit)
            yield from asked.take()
            if asked.pending:
                time.sleep(ANSWER_POLL_S)

    def close(self) -> None:
        """End the run on the server and disconnect; a later question starts a new run."""
        self._release()
        run, self._run = self._run, None
        if run is not None:
            run.close()
        self._disconnect()

    def _drop(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.drop()
        self._disconnect()

    def _disconnect(self) -> None:
        control, self._client = self._client, None
        if control is not None:
            control.close()

    def _release(self) -> None:
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()

    @property
    def _control(self) -> ControlHttpClient:
        self._client = self._client or control_client(self._link, self._secret)
        return self._client

    def _await_sites(
        self, sites: int | Sequence[str] | None, quorum: int | None, wait: float
    ) -> list[str]:
        """Wait for all sites, or accept a quorum when the wait is over; return the sites' names."""
        until = time.monotonic() + wait
        while True:
            is_last = time.monotonic() > until
            try:
                with mapped_errors(self._link):
                    nodes = self._control.ListNodes(ListNodesRequest()).nodes_info
            except LinkError as error:
                if is_unauthorized(error):
                    raise LinkRefused(
                        f"the server at {self._link.address} has a different coordinator.secret; copy "
                        "that file from the server"
                    ) from None
                if is_last or isinstance(error, LinkRefused):
                    raise
                time.sleep(NODE_POLL_S)
                continue
            self.keys = self._fingerprints_of(nodes)
            online = {node.name for node in nodes if node.status == "online"}
            wanted = self._wanted(sites, sorted(node.name for node in nodes))
            here = [name for name in wanted if name in online]
            self._tell_online(wanted, online)
            due = sites if isinstance(sites, int) else len(wanted)
            if quorum is not None and not 1 <= quorum <= due:
                raise InputError(
                    f"quorum={quorum} must be between 1 and {due}, the number of sites"
                )
            if len(here) == due:
                return here
            if len(here) > due:
                raise InputError(
                    f"sites={due}, but {len(here)} are online at {self._link.address}: "
                    f"{', '.join(here)}; name the sites to ask"
                )
            if is_last:
                break
            time.sleep(NODE_POLL_S)
        offline = [name for name in wanted if name not in online]
        if quorum is None or len(here) < quorum:
            raise QuorumLost(
                f"{len(here)} of {due} sites are online after {wait:g} s, but "
                f"{'all' if quorum is None else quorum} are required; "
                f"not online: {', '.join(offline)}; increase wait, or set a smaller quorum"
            )
        if not isinstance(sites, int):  # otherwise, it is unknown which offline sites were meant
            self.absent = dict.fromkeys(offline, f"not online after {wait:g} s")
        return here

    def _tell_online(self, names: Sequence[str], online: Collection[str]) -> None:
        """Report which sites are online, if that has changed since the last report."""
        told = list(names), [name for name in names if name in online]
        if self._on_online is not None and told != self._told_online:
            self._on_online(*told)
        self._told_online = told

    def _fingerprints_of(self, nodes: Iterable[NodeInfo]) -> dict[str, str]:
        """Return the fingerprints of the sites' keys, except those that cannot be read."""
        found: dict[str, str] = {}
        for node in nodes:
            with suppress(FileError):
                key = self._pinned.get(node.name) or public_key_from_pem(node.public_key)
                found[node.name] = fingerprint(key)
        return found

    def _wanted(self, sites: int | Sequence[str] | None, registered: list[str]) -> list[str]:
        """Return the sites to ask, chosen from those whose keys the server has."""
        if sites is None or isinstance(sites, int):
            if sites is not None and not 1 <= sites <= len(registered):
                raise InputError(
                    f"sites={sites} must be between 1 and {len(registered)}, the number of sites whose "
                    f"keys {self._link.address} has: {', '.join(registered)}"
                )
            return registered
        strangers = [name for name in sites if name not in registered]
        if strangers:
            raise InputError(
                f"{self._link.address} has no key for {', '.join(strangers)}; use the names of sites "
                f"whose keys it has: {', '.join(registered)}"
            )
        return list(sites)

    def _exchange(self, asked: _Asked, now: float) -> None:
        """Ask online sites that have not been asked yet, and collect answers that have arrived."""
        if self._hold is not None:
            self._hold.check()
        if now >= asked.look_at:
            asked.look_at = now + NODE_POLL_S
            nodes = self._control.ListNodes(ListNodesRequest()).nodes_info
            online = {node.name: node for node in nodes if node.status == "online"}
            asked.seen |= dict.fromkeys(online, now)
            self._tell_online(self.names, online)
            self._push(asked, online)
        replies = self._run.pull(list(asked.numbers), asked.max_bytes) if self._run else ()
        for number, reply in replies:
            name = asked.numbers.pop(number)
            if isinstance(reply, SiteError):
                asked.finish(name, reply)
            elif reply is not None and name in asked.pending:
                asked.finish(name, self._verified(name, asked, *reply))
            elif name in asked.pending:
                asked.pending[name] = ""  # ask this site again

    def _verified(
        self, name: str, asked: _Asked, data: bytes, proof: bytes | None
    ) -> bytes | SiteError:
        """Return a site's answer if the site signed it for this question, and keep the proof."""
        if proof is None:
            return SiteFailed("the answer is not signed; install the same version of fedpca there")
        try:
            shown, key = Proof.from_bytes(proof), self._key_of(name, asked)
        except (FileError, MessageError) as error:
            return SiteFailed(str(error))
        committed = commitment(shown.salt, digest(data))
        if not verify_signature(
            key, shown.signature, statement(asked.digest, committed, shown.head)
        ):
            return SiteFailed(
                f"the signature of this answer to this question was not made with the key "
                f"{fingerprint(key)}; compare this fingerprint with the site's"
            )
        if shown.head == NO_HEAD:
            return SiteFailed(LEDGER.unsaved)
        self.proofs[name] = {
            "head": shown.head,
            "digest_in": asked.digest,
            "commitment": committed,
            "signature": shown.signature.hex(),
            "key": fingerprint(key),
        }
        return data

    def _key_of(self, name: str, asked: _Asked) -> PublicKey:
        """Return a site's public key: the coordinator's own copy, or else the server's."""
        return self._pinned.get(name) or public_key_from_pem(asked.keys[name])

    def _push(self, asked: _Asked, online: Mapping[str, NodeInfo]) -> None:
        """Send the question to each site that has come online since it was last asked."""
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
        asked.keys |= {name: online[name].public_key for name in due}


def connect(
    address: str,
    *,
    sites: Any,
    credentials: str | os.PathLike[str] | None,
    insecure: bool,
    wait: float,
    quorum: int | None,
    resumed: list[str] | None,
    on_online: OnOnline | None = None,
) -> FlowerEngine:
    """Return the engine once the sites are online; see `Federation.flower`.

    ``resumed`` lists the sites in a resumed run, which keeps the sites that it started with.
    """
    wanted = None if sites is None else requested_sites(sites)
    if not (isinstance(wait, int | float) and 0 <= wait < math.inf):
        raise InputError(f"wait={wait!r} must be a nonnegative number of seconds")
    if resumed is not None and not _are_those_of(resumed, wanted):
        raise JournalError(
            f"the journal belongs to a run with sites {', '.join(resumed)}, but sites={sites}; omit "
            "sites, or use a new journal"
        )
    folder = coordinator_folder(credentials)
    secret = read_secret(folder)
    has_ca = not insecure and (folder / CA).exists()
    ca = read_authority(folder / CA) if has_ca else None
    key = read_coordinator_key(folder) if (folder / COORDINATOR_KEY).exists() else None
    return FlowerEngine(
        Link(with_port(address), ca, plain=insecure),
        secret,
        sites=wanted,
        quorum=quorum,
        wait=wait,
        resumed=resumed,
        pinned=pinned_site_keys(folder),
        sign=None if key is None else partial(seal, key),
        on_online=on_online,
    )


def _are_those_of(resumed: Sequence[str], wanted: int | list[str] | None) -> bool:
    """Return whether a resumed run has the requested sites, or at most the requested number."""
    if isinstance(wanted, int):
        return wanted >= len(resumed)
    return wanted is None or wanted == list(resumed)


@dataclass
class _Asked:
    """The state of one question: which sites have been asked and which have answered."""

    data: bytes
    max_bytes: int  # the size of the largest answer to accept
    pending: dict[str, str]  # sites yet to answer, and when each asked node came online
    seen: dict[str, float]  # when each site was last seen online
    numbers: dict[str, str] = field(default_factory=dict)  # sites by Flower's message ID
    keys: dict[str, bytes] = field(default_factory=dict)  # the sites' public keys at the server
    look_at: float = 0.0  # when to check again which sites are online
    _finished: dict[str, bytes | SiteError] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Return the digest of the question, which the sites sign together with their answers."""
        return digest(self.data)

    def begin_again(self, now: float) -> None:
        """Arrange to ask every pending site again, and restart the absence clocks."""
        self.pending, self.numbers, self.look_at = dict.fromkeys(self.pending, ""), {}, 0.0
        self.seen = dict.fromkeys(self.seen, now)

    def finish(self, name: str, answer: bytes | SiteError) -> None:
        """Store a site's first answer, or an error in its place."""
        if self.pending.pop(name, None) is not None:
            self._finished[name] = answer

    def take(self) -> Iterator[tuple[str, bytes | SiteError]]:
        """Yield each stored answer once."""
        finished, self._finished = self._finished, {}
        yield from finished.items()

    def give_up(self, now: float, is_late: bool, limit: float) -> None:
        """Store an error for each site that has taken too long or been offline too long."""
        for name in list(self.pending):
            absence = now - self.seen[name]
            where = (
                f"; it has been offline for {absence:.0f} s" if absence > 2 * NODE_POLL_S else ""
            )
            if is_late:
                self.finish(name, SiteTimeout(f"no answer within {limit:g} s{where}"))
            elif absence > ABSENCE_LIMIT_S:
                self.finish(name, SiteFailed(f"no answer{where}"))
