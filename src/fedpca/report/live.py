"""Serve a page that shows the progress of a run, or the state of a server.

The page loads nothing from elsewhere. It follows a stream of events (Server-Sent Events). Each event
has the whole current state, so a slow reader skips states, and the server keeps no old states. Nobody
can change anything through the page, because the server only answers GET. Other web pages in the same
browser cannot read it, because requests from other origins are refused. Requests are also refused if
their ``Host`` is a name that this server was not given, because the owner of another web page could
point that page's host name to this machine.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from fedpca.engines.addresses import address_of, origin_of
from fedpca.errors import InputError
from fedpca.report.boards import Feed
from fedpca.report.markup import script_hash

HOST, PORT = "127.0.0.1", 8642
MAX_READERS = 32  # connections at a time from this machine, and as many from others
MAX_FROM_ONE = 8  # of those from another machine
STALLED_S = 10.0  # how long a reader may take to send a request, or to receive a part of an answer
PAUSE_S = 0.25  # shortest time between two events for one reader
LEAVE_S = 0.25  # how soon a stream notices that it made room for another reader
HEARTBEAT_S = 15.0  # after this silence, an empty message is sent to detect readers that are gone
FAREWELL_S = 1.0  # after a run ends, how long to wait until readers have learned that it ended

UNKNOWN_NAME = (
    "this page is not served under that host name; use an IP address, or start the page with "
    "--page-at NAME:PORT"
)
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class LivePage:
    """A small web server for one page and its events.

    Parameters
    ----------
    feed : Feed
        What the page shows.
    address : str
        HOST:PORT, HOST, or PORT. Port 0 stands for any free port.
    """

    def __init__(self, feed: Feed, address: str = "") -> None:
        host, port = parse_address(address)
        self._feed = feed
        try:
            family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = _server_of(family)(where[:2], _Handler)
        except OSError as error:
            raise InputError(_why_not(host, port, error)) from None
        self._server.feed = feed
        self._server.names = frozenset({"localhost", host.lower()})
        self._host = host
        threading.Thread(target=self._serve, name="fedpca page", daemon=True).start()

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)

    @property
    def url(self) -> str:
        """Return the address to open in a browser."""
        port = self._server.server_address[1]
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
        host = everywhere.get(self._host, f"[{self._host}]" if ":" in self._host else self._host)
        return f"http://{host}:{port}/"

    @property
    def is_for_others(self) -> bool:
        """Return whether other machines can reach the page."""
        address = str(self._server.server_address[0]).partition("%")[0]
        return not ipaddress.ip_address(address).is_loopback

    def close(self) -> None:
        """Stop serving; if the run has ended, first give readers up to `FAREWELL_S` to learn that."""
        if self._feed.is_over:
            until = time.monotonic() + FAREWELL_S
            while self._server.n_streams and time.monotonic() < until:
                time.sleep(0.01)
        self._server.shutdown()
        self._server.server_close()


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and port in HOST:PORT, HOST, or PORT; a missing part takes its default."""
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = ("", text) if text.isdigit() else (text, "")
    elif "]" in port or (":" in host and not host.startswith("[")):  # IPv6 without a port
        host, port = text, ""
    host = host.removeprefix("[").removesuffix("]")
    if port and not (port.isdigit() and int(port) < 65536):
        raise InputError(
            f"page at {text!r}: the port must be a number from 0 to 65535, as in {HOST}:{PORT}"
        )
    return host or HOST, int(port) if port else PORT


def _why_not(host: str, port: int, error: OSError) -> str:
    """Return why a page cannot be served at this address, and what to do about it."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} at {host} is in use, perhaps by the page of a different run; choose another "
            f"with --page-at {port + 1 if port < 65535 else port - 1}, or any free port with "
            "--page-at 0"
        )
    reason = error.strerror or os.strerror(error.errno or 0)
    return (
        f"cannot show a page at {host}, port {port}: {reason}; choose a different address with "
        "--page-at HOST:PORT"
    )


class _Readers:
    """The connections of readers, in the order in which they came; the oldest makes room for a new one.

    A browser whose stream ends asks for a new one, so a reader who is cut off comes back. This machine
    has places of its own, so other machines cannot cut off its owner. Among the others, an address with
    many connections loses one first, so that each can only cut off itself.
    """

    def __init__(self) -> None:
        self._open: dict[Any, str] = {}  # where each connection comes from, oldest first
        self._lock = threading.Lock()

    def admit(self, request: Any, host: str) -> None:
        """Count a connection, and end another one if there are too many."""
        is_own = address_of(host).is_loopback or host == request.getsockname()[0]
        origin = "" if is_own else origin_of(host)
        with self._lock:
            counts = Counter(self._open.values())
            n_others = counts.total() - counts[""]
            crowded = None
            if counts[origin] >= (MAX_READERS if is_own else MAX_FROM_ONE):
                crowded = origin
            elif not is_own and n_others >= MAX_READERS:
                del counts[""]
                crowded = counts.most_common(1)[0][0]
            oldest = next((each for each, where in self._open.items() if where == crowded), None)
            if oldest is not None:
                del self._open[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = origin

    def leave(self, request: Any) -> None:
        """Stop counting a connection."""
        with self._lock:
            self._open.pop(request, None)

    def __contains__(self, request: object) -> bool:
        with self._lock:
            return request in self._open


class _Server(ThreadingHTTPServer):
    """A server with a thread per reader, which never keeps the process alive."""

    daemon_threads = True
    block_on_close = False
    feed: Feed
    names: frozenset[str]

    def __init__(self, *arguments: Any) -> None:
        self.readers = _Readers()
        self.n_streams = 0
        self.counting = threading.Lock()
        super().__init__(*arguments)

    def server_bind(self) -> None:
        """Bind as a plain socket server does; an HTTP server would look up this machine's name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread; if there are too many readers, end the connection of another one."""
        self.readers.admit(request, client_address[0])
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self.readers.leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one reader."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.readers.leave(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing, because a reader who goes away is not an error of the run."""


class _Server6(_Server):
    address_family = socket.AF_INET6


def _server_of(family: int) -> type[_Server]:
    return _Server6 if family == socket.AF_INET6 else _Server


class _Handler(BaseHTTPRequestHandler):
    """A request from a reader, and the answer to it."""

    server: _Server
    timeout = STALLED_S
    server_version, sys_version = "fedpca", ""

    def do_GET(self) -> None:
        """Send the page or the stream of its states."""
        if not _is_own_name(self.headers.get("Host", ""), self.server.names):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, UNKNOWN_NAME)
        elif self._is_from_elsewhere():
            self._refuse(HTTPStatus.FORBIDDEN, "other pages cannot read this one")
        elif self.path == "/":
            page, policy = _page()
            self._begin("text/html; charset=utf-8", {"Content-Security-Policy": policy}, len(page))
            self.wfile.write(page)
        elif self.path == "/events":
            self._stream()
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is only one page here, at /")

    def _is_from_elsewhere(self) -> bool:
        """Return whether a different web page makes the request, other than by a link to follow."""
        site = self.headers.get("Sec-Fetch-Site", "none")
        if self.path == "/" and self.headers.get("Sec-Fetch-Mode") == "navigate":
            return self.headers.get("Sec-Fetch-Dest", "document") != "document"
        return "Origin" in self.headers or site not in ("none", "same-origin")

    def _refuse_method(self) -> None:
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "this page only answers GET", {"Allow": "GET"})

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _refuse_method

    def _stream(self) -> None:
        """Send the state whenever it has changed, until the reader goes away or the run ends."""
        feed, seen = self.server.feed, -1
        with self.server.counting:
            self.server.n_streams += 1
        try:
            self._begin("text/event-stream")
            beat = time.monotonic() + HEARTBEAT_S
            while self.connection in self.server.readers:
                version, is_over = feed.wait(seen, LEAVE_S)
                if version <= seen and not is_over and time.monotonic() < beat:
                    continue
                beat = time.monotonic() + HEARTBEAT_S
                event = ": nothing new\n\n"
                if version > seen:
                    event = f"data: {feed.text()}\n\n"
                self.wfile.write(event.encode())
                self.wfile.flush()
                if is_over:
                    return
                seen = version
                time.sleep(PAUSE_S)
        finally:
            with self.server.counting:
                self.server.n_streams -= 1

    def _begin(
        self, kind: str, more: dict[str, str] | None = None, length: int | None = None
    ) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in {"Content-Type": kind, **HEADERS, **(more or {})}.items():
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _refuse(self, status: HTTPStatus, why: str, more: dict[str, str] | None = None) -> None:
        body = f"{why}\n".encode()
        self.send_response(status)
        for name, value in {"Content-Type": "text/plain", **HEADERS, **(more or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing, because the terminal is for the lines of the run."""


def _is_own_name(host: str, names: frozenset[str]) -> bool:
    """Return whether a Host header is an IP address, or a name that the page was given.

    The owner of a name decides which machine the name leads to. An IP address leads only to the machine
    that has this address.
    """
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/@\s]+)(:\d{1,5})?", host)
    if found is None:
        return False
    name = found[1].strip("[]").lower()
    if name in names:
        return True
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return False


@cache
def _page() -> tuple[bytes, str]:
    """Return the page, and the security policy that lets a browser run only the page's own script."""
    text = resources.files("fedpca.report").joinpath("live.html").read_text("utf-8")
    policy = (
        f"default-src 'none'; script-src '{script_hash(text)}'; style-src 'unsafe-inline'; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text.encode(), policy
