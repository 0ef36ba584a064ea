"""Ask sites through the `Grid` that Flower hands to a ServerApp.

A `Grid` identifies nodes by number, so the engine first asks each node for the name of its site. A
restarted SuperNode may have a new number, so the engine asks the new node, too.

A `Grid` downloads an answer completely before its size can be checked, so the engine refuses an answer
that is too large only after the download.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from flwr.app import Message as FlowerMessage
from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedpca.engines.base import Engine, requested_sites
from fedpca.engines.flower_app.envelope import ASK_ANSWER, ASK_NAME, unwrap, unwrap_name, wrap
from fedpca.errors import (
    FedpcaError,
    InputError,
    LinkError,
    MessageError,
    QuorumLost,
    SiteError,
    SiteFailed,
    SiteTimeout,
)
from fedpca.protocol.message import Message, encode
from fedpca.protocol.printable import MAX_REASON_CHARS, printable

FIRST_PAUSE_S, LAST_PAUSE_S = 0.02, 0.5  # between polls for answers; it grows while none arrive
NODE_POLL_S = 0.5  # pause between polls for nodes


class GridEngine(Engine):
    """An engine for the sites at the nodes of a `Grid`.

    Parameters
    ----------
    grid : Grid
        The `Grid` that Flower passes to the main function of a ServerApp.
    sites : int or list of str
        The number of sites to wait for, or their names. Sums are computed in list order, or in
        alphabetical order if only their number is given.
    quorum : int, optional
        The minimum number of sites to continue with if some do not come online.
    wait : float
        Seconds to wait for the sites to come online.
    """

    declares = True  # sites on other machines follow the plan of a run

    def __init__(
        self,
        grid: Grid,
        *,
        sites: int | Sequence[str],
        quorum: int | None = None,
        wait: float = 60.0,
    ) -> None:
        self._grid = grid
        self._nodes: dict[str, int] = {}  # the node of each site that has told its name
        self.names = self._await_sites(requested_sites(sites), quorum, wait)

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, bytes | SiteError]]:
        """Yield each site's answer as it arrives; one time limit covers all sites."""
        limit = math.inf if timeout is None else timeout
        if self._has_lost(names):
            self._look(until=time.monotonic() + limit)
        nodes = {self._nodes[name]: name for name in names if name in self._nodes}
        for name in names:
            if name not in self._nodes:
                yield name, SiteFailed("its SuperNode is not online; start it again")
        replies = self._exchange(wrap(encode(request)), ASK_ANSWER, list(nodes), limit)
        for node, reply in replies:
            if reply is None:
                yield nodes[node], SiteTimeout(f"no answer within {limit:g} s")
            else:
                yield nodes[node], _answer_in(reply, request.max_answer_bytes)

    def _await_sites(self, wanted: int | list[str], quorum: int | None, wait: float) -> list[str]:
        """Wait for all sites, or accept a quorum when the wait is over; return the sites' names."""
        named = [] if isinstance(wanted, int) else wanted
        due = wanted if isinstance(wanted, int) else len(wanted)
        if due < 1:
            raise InputError(f"sites={due} must be at least 1; pass the number of sites to ask")
        if quorum is not None and not 1 <= quorum <= due:
            raise InputError(f"quorum={quorum} must be between 1 and {due}, the number of sites")
        until = time.monotonic() + wait
        while True:
            is_last = time.monotonic() >= until
            self._look(until)
            here = [name for name in named or sorted(self._nodes) if name in self._nodes]
            if len(here) == due:
                return here
            if len(here) > due:
                raise InputError(
                    f"sites={due}, but {len(here)} are online: {', '.join(here)}; name "
                    "the sites to ask"
                )
            if is_last:
                break
            time.sleep(NODE_POLL_S)
        offline = [name for name in named if name not in here]
        if quorum is None or len(here) < quorum:
            absent = f"; not online: {', '.join(offline)}" if offline else ""
            raise QuorumLost(
                f"{len(here)} of {due} sites are online after {wait:g} s, but "
                f"{'all' if quorum is None else quorum} are required{absent}; "
                "increase wait, or set a smaller quorum"
            )
        self.absent = dict.fromkeys(offline, f"not online after {wait:g} s")
        return here

    def _has_lost(self, names: Sequence[str]) -> bool:
        """Return whether the node of some site is no longer online."""
        online = self._online()
        return any(self._nodes.get(name) not in online for name in names)

    def _look(self, until: float) -> None:
        """Ask nodes that came online for the names of their sites, and forget nodes that left."""
        online = self._online()
        self._nodes = {name: node for name, node in self._nodes.items() if node in online}
        new = sorted(online - set(self._nodes.values()))
        limit = max(NODE_POLL_S, until - time.monotonic())
        for node, reply in self._exchange(RecordDict(), ASK_NAME, new, limit):
            name = None if reply is None or reply.has_error() else unwrap_name(reply)
            if name is None:
                continue  # the node does not run fedpca, or its configuration is wrong (see its log)
            if name in self._nodes:
                raise InputError(
                    f"two SuperNodes have the site name {printable(name)!r}; give each a name of its "
                    "own in its --node-config"
                )
            self._nodes[name] = node

    def _online(self) -> set[int]:
        with _mapped_errors():
            return set(self._grid.get_node_ids())

    def _exchange(
        self, content: RecordDict, kind: str, nodes: Sequence[int], limit: float
    ) -> Iterator[tuple[int, FlowerMessage | None]]:
        """Send the same content to each node, and yield its reply, or None when time is up."""
        if not nodes:
            return
        until, pause = time.monotonic() + limit, FIRST_PAUSE_S
        with _mapped_errors():
            sent = self._grid.push_messages([FlowerMessage(content, n, kind) for n in nodes])
        waiting = dict(zip(sent, nodes, strict=True))
        if not all(waiting):
            raise LinkError("the SuperLink did not accept every message; try again")
        while waiting:
            is_last = time.monotonic() > until
            with _mapped_errors():
                replies = list(self._grid.pull_messages(list(waiting)))
            for reply in replies:
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    yield node, reply
            if is_last:
                break
            if waiting:
                time.sleep(pause)
                pause = FIRST_PAUSE_S if replies else min(1.5 * pause, LAST_PAUSE_S)
        for node in waiting.values():
            yield node, None


def _answer_in(reply: FlowerMessage, max_bytes: int) -> bytes | SiteError:
    """Return the answer that a node sent, or an error in its place."""
    if reply.has_error():
        reason = printable(
            reply.error.reason or f"Flower's error {reply.error.code}", MAX_REASON_CHARS
        )
        return SiteFailed(f"its ClientApp did not answer: {reason}")
    try:
        data = unwrap(reply)
    except MessageError as error:
        return SiteFailed(str(error))
    if len(data) > max_bytes:
        return SiteFailed(
            f"the answer has {len(data):,} bytes, more than the limit of {max_bytes:,}"
        )
    return data


@contextmanager
def _mapped_errors() -> Iterator[None]:
    """Turn whatever a `Grid` raises into a fedpca error; Flower does not document what that may be."""
    try:
        yield
    except FedpcaError:
        raise
    except Exception as error:
        text = printable(error, MAX_REASON_CHARS)
        raise LinkError(f"Flower's SuperLink failed: {type(error).__name__}: {text}") from error
