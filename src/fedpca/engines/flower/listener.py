"""Accept only as many connections to the server as sites and fits need, and end those that stall.

A site needs a handful of connections, and each request takes a moment. Without limits, anybody could
open more connections than all sites need, or send a request so slowly that it never ends. That would
use up the server's file descriptors and memory, and would not even require a key.
"""

from __future__ import annotations

import asyncio
import socket
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedpca.engines.addresses import network_of
from fedpca.engines.flower.request_filter import MAX_BODY_BYTES
from fedpca.errors import LinkError

try:
    import resource
except ImportError:  # Windows, where a process has no limit of this kind
    resource = None  # type: ignore[assignment]

Caller = tuple[str, int]  # address and port

CONNECTIONS_PER_SITE = 16  # a site uses up to four, and leaves some behind when it reconnects
CONNECTIONS_FOR_FITS = 64
NETWORKS = 4  # how many networks may reach their limits at the same time
OTHER_FILES = 128  # file descriptors for everything except connections

HEADER_TIMEOUT_S = 20.0  # for the header of a request to arrive, including the pause before it
BODY_TIMEOUT_S = 30.0  # for a body to arrive, or an answer to leave, however short
MIN_BYTES_PER_S = 32 << 10  # the slowest that a long body or answer may travel
COMPLAINT_S = 60.0  # pause between lines about refused connections


@dataclass(eq=False)
class _Seat:
    """The place of a connection among those that are counted."""

    network: str
    connection: weakref.ref[_Connection]
    is_known: bool = False


class Listener:
    """Sockets that together have a limited number of connections, in total and from each network.

    All sites may share an address, behind a firewall or a proxy. So one network may have as many
    connections as all sites and fits can use. Connections on which a site or a fit has proved its key
    have as many places of their own, which strangers cannot take. A new connection is always accepted.
    If there are too many strangers, the oldest connection of the network with the most of them ends.

    Parameters
    ----------
    host, port : str, int
        The address to listen on.
    n_sites : int
        The number of sites that may join.
    tell : callable
        Called with a line of text about connections that were ended, at most once a minute.
    """

    def __init__(self, host: str, port: int, n_sites: int, tell: Callable[[str], None]) -> None:
        self._tell, self._told = tell, -COMPLAINT_S
        self._seats: dict[Caller, _Seat] = {}
        self._strangers: dict[str, dict[Caller, _Seat]] = {}  # by network, oldest first
        self._n_known = self._n_strangers = 0
        self.most_from_one = CONNECTIONS_FOR_FITS + CONNECTIONS_PER_SITE * n_sites
        self.most = min(NETWORKS * self.most_from_one, _descriptors(NETWORKS * self.most_from_one))
        self.most_from_one = min(self.most_from_one, max(1, self.most // 2))
        self.sockets = self._bound(host, port)

    def _bound(self, host: str, port: int) -> list[socket.socket]:
        """Return a socket for each address of the host; the server listens once it can answer."""
        bound: list[socket.socket] = []
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, *_, address in dict.fromkeys(found):
                bound.append(_ListeningSocket(family, self))
                bound[-1].bind(address)
        except OSError as error:
            for opened in bound:
                opened.close()
            raise LinkError(
                f"cannot listen on {host}, port {port}: {error.strerror}; use a different --host or "
                "--port"
            ) from None
        return bound

    def admit(self, connection: _Connection, caller: Caller) -> None:
        """Count a connection until it is closed; make room for it if there are too many."""
        network = network_of(caller[0])
        most = self.most - self.most_from_one  # the others are for those who have shown a key
        if len(self._strangers.get(network, ())) >= self.most_from_one:
            self._end_oldest(network, f"{network} has {self.most_from_one} of them")
        elif self._n_strangers >= most:
            crowded = max(self._strangers, key=lambda each: len(self._strangers[each]))
            self._end_oldest(crowded, f"there are {most} of them")
        seat = self._seats[caller] = _Seat(network, weakref.ref(connection))
        self._strangers.setdefault(network, {})[caller] = seat
        self._n_strangers += 1
        connection.release = weakref.finalize(connection, self._forget, caller, seat)

    def know(self, caller: Caller) -> None:
        """Note that a caller has proved its key, so its connection is not a stranger's anymore."""
        seat = self._seats.get(caller)
        if seat is not None and not seat.is_known and self._n_known < self.most_from_one:
            self._leave_strangers(caller, seat)
            seat.is_known = True
            self._n_known += 1

    def _forget(self, caller: Caller, seat: _Seat) -> None:
        if self._seats.get(caller) is seat:
            del self._seats[caller]
        if seat.is_known:
            self._n_known -= 1
        else:
            self._leave_strangers(caller, seat)

    def _leave_strangers(self, caller: Caller, seat: _Seat) -> None:
        own = self._strangers.get(seat.network, {})
        if own.get(caller) is seat:
            del own[caller]
            self._n_strangers -= 1
        if not own:
            self._strangers.pop(seat.network, None)

    def _end_oldest(self, network: str, reason: str) -> None:
        """End the oldest connection of a network on which nobody has shown a key."""
        self._complain(f"{reason}, which is the limit")
        seat = next(iter(self._strangers[network].values()))
        connection = seat.connection()
        if connection is not None:
            with suppress(OSError):  # the event loop then closes it
                connection.shutdown(socket.SHUT_RDWR)
            connection.release()

    def _complain(self, reason: str) -> None:
        now = time.monotonic()
        if now - self._told >= COMPLAINT_S:
            self._told = now
            self._tell(f"ended a connection that has shown no key because {reason}")


class _ListeningSocket(socket.socket):
    """A socket whose `Listener` counts its connections."""

    def __init__(self, family: int, listener: Listener) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._listener = listener
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            self.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection."""
        number, address = self._accept()  # type: ignore[attr-defined]
        connection = _Connection(self.family, self.type, self.proto, fileno=number)
        self._listener.admit(connection, address[:2])
        # otherwise, an answer's body would wait 40 ms for the caller to confirm the header
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection, address


class _Connection(socket.socket):
    """A connection that is counted until it is closed."""

    release: Callable[[], object] = staticmethod(lambda: None)

    def close(self) -> None:
        """Close the connection, and stop counting it."""
        super().close()
        self.release()


def _descriptors(wanted: int) -> int:
    """Return how many connections this process may have, after raising its limit if possible."""
    if resource is None:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + OTHER_FILES:
        soft = wanted + OTHER_FILES
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(2, soft - OTHER_FILES)


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, except that a connection ends if a request or an answer takes too long.

    By itself, uvicorn ends a connection only if nothing arrives on it between two requests.
    """

    _timer: asyncio.TimerHandle | None = None
    _phase: tuple[object, object] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Handle the data that arrived."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Restart the clock if a header, a body, or an answer has begun since the last call."""
        phase = (self.conn.their_state, self.cycle)
        if phase == self._phase or self.transport.is_closing():
            return
        self._phase = phase
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self._time_limit(), self.transport.abort)

    def _time_limit(self) -> float:
        """Return the seconds that the current phase may take."""
        if self.conn.their_state is h11.IDLE:
            return HEADER_TIMEOUT_S
        length = MAX_BODY_BYTES
        if self.conn.their_state is h11.SEND_BODY:
            declared = dict(self.headers).get(b"content-length", b"")
            length = min(length, int(declared) if declared.isdigit() else 0)
        return BODY_TIMEOUT_S + length / MIN_BYTES_PER_S
