"""Accept only as many connections to the server as sites and fits need, and end those that stall.

A site needs a handful of connections, and each request takes a moment. Without limits, anybody could
open more connections than all sites need, or send a request so slowly that it never ends. That would
use up the server's file descriptors and memory, and would not even require a key.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedpca.engines.flower.request_filter import MAX_BODY_BYTES
from fedpca.errors import LinkError

try:
    import resource
except ImportError:  # Windows, where a process has no limit of this kind
    resource = None  # type: ignore[assignment]

CONNECTIONS_PER_SITE = 16  # a site uses up to four, and leaves some behind when it reconnects
CONNECTIONS_FOR_FITS = 64
ADDRESSES = 4  # how many addresses may reach their limits at the same time
OTHER_FILES = 128  # file descriptors for everything except connections

HEADER_TIMEOUT_S = 20.0  # for the header of a request to arrive, including the pause before it
BODY_TIMEOUT_S = 30.0  # for a body to arrive, or an answer to leave, however short
MIN_BYTES_PER_S = 32 << 10  # the slowest that a long body or answer may travel
COMPLAINT_S = 60.0  # pause between lines about refused connections


class Listener:
    """Sockets that together accept a limited number of connections, in total and from each address.

    All sites may share an address, behind a firewall or a proxy. So one address may have as many
    connections as all sites and fits can use. The limit for all addresses together is a few times
    higher.

    Parameters
    ----------
    host, port : str, int
        The address to listen on.
    n_sites : int
        The number of sites that may join.
    tell : callable
        Called with a line of text about refused connections, at most once a minute.
    """

    def __init__(self, host: str, port: int, n_sites: int, tell: Callable[[str], None]) -> None:
        self._tell, self._told = tell, -COMPLAINT_S
        self._open: Counter[str] = Counter()
        self.most_from_one = CONNECTIONS_FOR_FITS + CONNECTIONS_PER_SITE * n_sites
        self.most = min(
            ADDRESSES * self.most_from_one, _descriptors(ADDRESSES * self.most_from_one)
        )
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

    def admit(self, connection: _Connection, host: str) -> bool:
        """Count a connection until it is closed; return False if there are too many."""
        origin = _origin(host)
        if self._open.total() >= self.most:
            self._complain(f"there are {self.most} connections, which is the limit")
            return False
        if self._open[origin] >= self.most_from_one:
            self._complain(
                f"{origin} has {self.most_from_one} connections, which is the limit for one address"
            )
            return False
        self._open[origin] += 1
        connection.release = weakref.finalize(connection, self._forget, origin)
        return True

    def _forget(self, origin: str) -> None:
        self._open[origin] -= 1
        if not self._open[origin]:
            del self._open[origin]

    def _complain(self, reason: str) -> None:
        now = time.monotonic()
        if now - self._told >= COMPLAINT_S:
            self._told = now
            self._tell(f"refused a connection because {reason}")


class _ListeningSocket(socket.socket):
    """A socket that closes the connections that its `Listener` does not admit."""

    def __init__(self, family: int, listener: Listener) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._listener = listener
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            self.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection; if it is refused, raise an error that makes asyncio try again."""
        number, address = self._accept()  # type: ignore[attr-defined]
        connection = _Connection(self.family, self.type, self.proto, fileno=number)
        if not self._listener.admit(connection, address[0]):
            connection.close()
            raise ConnectionAbortedError
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


def _origin(host: str) -> str:
    """Return the address under which to count a caller, who may have 2**64 IPv6 addresses."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


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
