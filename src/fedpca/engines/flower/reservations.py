"""Let only one run at a time ask a site.

A site has memory for one run. So a run reserves its sites at the server before its first question, and
renews the reservation until the run ends. A second run on any of these sites has to wait. If a fit is
killed, its reservation ends after `RESERVATION_S` seconds. A run that is resumed from its journal is
still the same run, so it does not have to wait for its own reservation.
"""

from __future__ import annotations

import datetime
import getpass
import hmac
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import httpx
from flwr.supercore.protobuf.client import ProtobufClient
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fedpca.engines.flower.connection import Link, access_token, beating, mapped_errors
from fedpca.errors import LinkError, LinkRefused, SitesBusy
from fedpca.protocol.printable import MAX_REASON_CHARS, printable

HOLD_PATH = "/fedpca/hold"
TOKEN = "fedpca-coordinator"  # the header that carries the secret's token
RESERVATION_S = 30.0  # a reservation that is not renewed for this long ends
RENEW_S = 5.0  # pause between renewals
RETRY_S = 0.5  # pause between attempts to reserve sites that are in use


@dataclass(frozen=True)
class Reservation:
    """The sites that one run has reserved, and a description of its process."""

    run: str
    sites: tuple[str, ...]
    holder: str
    until: float


class Reservations:
    """The reservations that have not ended; no two of them have a site in common."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_run: dict[str, Reservation] = {}

    def take(self, run: str, sites: Sequence[str], holder: str) -> Reservation | None:
        """Reserve the sites for a run, or return a different run's reservation of some of them.

        A run that has a reservation renews it. A run that names no sites gives its reservation back.
        """
        now = self._clock()
        held = self._by_run.values()
        self._by_run = {other.run: other for other in held if other.until > now}
        for other in self._by_run.values():
            if other.run != run and not set(other.sites).isdisjoint(sites):
                return other
        self._by_run.pop(run, None)
        if sites:
            self._by_run[run] = Reservation(run, tuple(sites), holder, now + RESERVATION_S)
        return None

    def current(self) -> list[Reservation]:
        """Return the reservations that have not ended; any thread may call this."""
        now = self._clock()
        return [held for held in list(self._by_run.values()) if held.until > now]


class ReservationDesk:
    """Middleware that takes reservations from holders of the secret."""

    def __init__(self, app: ASGIApp, secret: bytes, tell: Callable[[str], None]) -> None:
        self._app, self._tell = app, tell
        self._token = access_token(secret).encode()
        self.reservations = Reservations()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != HOLD_PATH:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        if not hmac.compare_digest(request.headers.get(TOKEN, "").encode(), self._token):
            await Response(status_code=401)(scope, receive, send)
            return
        try:
            wanted = await request.json()
            run, sites = str(wanted["run"]), [str(name) for name in wanted["sites"]]
            holder = printable(wanted["holder"])
        except (ValueError, LookupError, TypeError):
            await Response(status_code=400)(scope, receive, send)
            return
        other = self.reservations.take(run, sites, holder)
        if other is not None:
            names = printable(", ".join(other.sites), MAX_REASON_CHARS)
            self._tell(f"{holder} must wait for {names}, in use by {other.holder}")
        reply = None if other is None else {"sites": other.sites, "holder": other.holder}
        await JSONResponse(reply)(scope, receive, send)


class Hold:
    """A reservation of a run's sites at the server, which lasts until `release`.

    Parameters
    ----------
    link : Link
        The coordinator's server.
    secret : bytes
        The coordinator's secret.
    run : str
        The name of the run; a resumed run keeps its name.
    sites : list of str
        The sites to reserve.
    wait : float
        Seconds to wait for sites that a different run has reserved.
    absence_limit : float
        Seconds to wait for a server that is offline.
    """

    def __init__(
        self,
        link: Link,
        secret: bytes,
        run: str,
        sites: Sequence[str],
        *,
        wait: float,
        absence_limit: float,
    ) -> None:
        self._run, self._sites, self._holder = run, list(sites), _who()
        self._renewed = 0.0
        self._token = access_token(secret)
        self._client = link.client(_HoldClient)
        try:
            self._await(link, wait, absence_limit)
        except BaseException:
            self._client.close()
            raise
        # if the server has been restarted, a renewal makes a new reservation
        self._stop = beating(self._renew, RENEW_S)

    def check(self) -> None:
        """Raise `SitesBusy` if a different run has taken the sites.

        That can happen if this process was paused, or if the server was restarted.
        """
        # this clock runs on while the machine is suspended; changing it causes at most one renewal
        if abs(time.time() - self._renewed) > 2 * RENEW_S:
            other = self._renew()
            if other is not None:
                raise self._busy(other, "a different run is using")

    def release(self) -> None:
        """Give the sites back."""
        self._stop.set()
        with suppress(httpx.HTTPError):
            self._send([])
        self._client.close()

    def _await(self, link: Link, wait: float, absence_limit: float) -> None:
        """Reserve the sites as soon as no other run has any of them."""
        began = reached = time.monotonic()  # when the server was last reached
        while True:
            now = time.monotonic()
            try:
                with mapped_errors(link):
                    other = self._renew()
            except LinkError as error:
                if isinstance(error, LinkRefused) or now - reached > absence_limit:
                    raise
            else:
                reached = now
                if other is None:
                    return
                if now - began > wait:
                    raise self._busy(other, f"after {wait:g} s, a different run is still using")
            time.sleep(RETRY_S)

    def _renew(self) -> dict[str, Any] | None:
        """Reserve the sites again, or return the other run's reservation that prevents this."""
        began = time.time()
        other = self._send(self._sites)
        if other is None:
            self._renewed = began
        return other

    def _send(self, sites: list[str]) -> dict[str, Any] | None:
        wanted = {"run": self._run, "sites": sites, "holder": self._holder}
        return self._client.take(wanted, self._token)

    def _busy(self, other: dict[str, Any], what: str) -> SitesBusy:
        """Return an error that names the sites in use, and who is using them."""
        names = ", ".join(name for name in self._sites if name in other["sites"])
        return SitesBusy(
            f"{what} {names}; it was started by {printable(other['holder'])}; wait until it ends, or "
            "increase wait"
        )


class _HoldClient(ProtobufClient):
    """A client with the address and the certificates of Flower's clients."""

    def take(self, wanted: dict[str, Any], token: str) -> dict[str, Any] | None:
        """Send a request for sites to the server, and return its reply."""
        url = f"{self._base_url}{HOLD_PATH}"
        reply = self._client.post(url, json=wanted, headers={TOKEN: token})
        reply.raise_for_status()
        try:
            return cast(dict[str, Any] | None, reply.json())
        except ValueError:
            raise httpx.RemoteProtocolError("the reply is not from a fedpca server") from None


def _who() -> str:
    """Return a phrase that tells people which process this is and who started it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        user = "an unnamed user"
    since = datetime.datetime.now(datetime.UTC)
    return f"{user} on {socket.gethostname()} (process {os.getpid()}, since {since:%Y-%m-%d %H:%M} UTC)"
