"""Run the coordinator's server: Flower's SuperLink, restricted to registered sites.

The server does not run apps. A fit claims its run from outside and asks the sites itself. Sites
authenticate with their registered keys, and fits authenticate with the coordinator's secret.
"""

from __future__ import annotations

import hmac
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import cast

import uvicorn
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from flwr.common.constant import (
    ACCESS_TOKEN_KEY,
    HEARTBEAT_DEFAULT_INTERVAL,
    ISOLATION_MODE_PROCESS,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    TRANSPORT_TYPE_GRPC_RERE,
    Status,
)
from flwr.server.superlink.linkstate import InMemoryLinkState, LinkState
from flwr.supercore.auth.typing import AccountInfo
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.main import create_app

from fedpca.engines.flower.connection import access_token
from fedpca.engines.flower.express import Express
from fedpca.engines.flower.listener import Listener, TimedProtocol
from fedpca.engines.flower.mailbox import Mailbox
from fedpca.engines.flower.request_filter import RequestFilter
from fedpca.engines.flower.reservations import ReservationDesk, Reservations
from fedpca.protocol.printable import MAX_REASON_CHARS, printable

log = logging.getLogger("fedpca.server")
OnSites = Callable[[Collection[str], Mapping[str, str]], None]
MAX_HTTP_HEADER_BYTES = 16 << 10  # of a request


class _SecretHolders(NoOpControlAuthnPlugin):
    """A plugin that lets only holders of the secret control runs; they all share one account."""

    def __init__(self, secret: bytes) -> None:
        self._token = access_token(secret)

    def validate_tokens_in_metadata(
        self, metadata: Sequence[tuple[str, str | bytes]]
    ) -> tuple[bool, AccountInfo | None]:
        shown = str(dict(metadata).get(ACCESS_TOKEN_KEY, ""))
        if not hmac.compare_digest(shown.encode(), self._token.encode()):
            return False, None
        return super().validate_tokens_in_metadata(metadata)


class _Server(uvicorn.Server):
    """A server that can shut down without waiting for the requests that its mailbox holds."""

    def __init__(self, config: uvicorn.Config, mailbox: Mailbox) -> None:
        super().__init__(config)
        self._mailbox = mailbox

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._mailbox.close()
        await super().shutdown(sockets)


def serve(
    host: str,
    port: int,
    *,
    sites: Mapping[str, EllipticCurvePublicKey],
    secret: bytes,
    certificate: Path | None,
    key: Path | None,
    tell: Callable[[str], None],
    on_sites: OnSites | None = None,
) -> None:
    """Serve until a signal stops the process.

    ``sites`` maps each site's name to its public key. Without a certificate and a key, the server uses
    plain HTTP. It keeps nothing on disk, because journals and the sites' memory hold everything that
    must outlive the server. ``tell`` is called with a line of text when a site connects or disconnects,
    and when a fit has to wait for sites that are in use. ``on_sites`` is called every second with the
    names of the sites online, and with a dict that tells who is using each site.
    """
    listener = Listener(host, port, len(sites), tell)
    app = create_app(
        SuperLinkLifespanConfig(
            control_address="",
            health_server_address=None,
            host=host,
            port=port,
            insecure=certificate is None,
            certificates=None,
            superexec_auth_secret=secret,
            authn_plugin=_SecretHolders(secret),
            event_log_plugin=None,
            fleet_event_log_plugin=None,
            enable_event_log=False,
            artifact_provider=None,
            enable_supernode_auth=True,
            fleet_api_type=TRANSPORT_TYPE_GRPC_RERE,
            fleet_api_address=None,
            simulation=False,
            ssl_ca_certfile=None,
            ssl_certfile=None if certificate is None else str(certificate),
            ssl_keyfile=None if key is None else str(key),
            database=FLWR_IN_MEMORY_DB_NAME,
            isolation=ISOLATION_MODE_PROCESS,
            runtime_dependency_install=False,
        ),
        SuperLinkLifespan,
    )
    state = app.state.linkstate_factory.state()
    for name, public_key in sites.items():
        state.create_node(
            NOOP_FLWR_AID,
            NOOP_ACCOUNT_NAME,
            public_key_to_bytes(public_key),
            HEARTBEAT_DEFAULT_INTERVAL,
            name=name,
        )
    flower_log = logging.getLogger("flwr")
    flower_log.setLevel(logging.WARNING)
    flower_log.addFilter(_escape)
    express = Express(app, cast(InMemoryLinkState, state))
    mailbox = Mailbox(express)
    desk = ReservationDesk(mailbox, secret, tell)
    watcher = Watcher(state, tell, desk.reservations, on_sites)
    threading.Thread(target=watcher.watch, daemon=True).start()
    config = uvicorn.Config(
        RequestFilter(desk, secret, cast(InMemoryLinkState, state), listener.know),
        http=TimedProtocol,
        ws="none",
        loop="asyncio",  # uvloop accepts connections by itself, without counting them
        h11_max_incomplete_event_size=MAX_HTTP_HEADER_BYTES,
        log_level="error",  # strangers must not be able to fill the log
        access_log=False,
        server_header=False,
        proxy_headers=False,  # they would replace the address under which a connection is counted
        timeout_graceful_shutdown=2,  # otherwise, connected sites delay shutdown
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    _Server(config, mailbox).run(sockets=listener.sockets)


def _escape(record: logging.LogRecord) -> bool:
    """Make a line of Flower's log printable, since it may quote what a site sent."""
    record.msg, record.args = printable(record.getMessage(), MAX_REASON_CHARS), ()
    return True


class Watcher:
    """What goes on beside the server: sites are reported, and messages from finished runs deleted.

    Parameters
    ----------
    state : LinkState
        What the server knows.
    tell : callable
        Called with a line of text when a site connects or disconnects.
    reservations : Reservations
        Who is using which sites.
    on_sites : callable, optional
        Called every second; see `serve`.
    """

    def __init__(
        self,
        state: LinkState,
        tell: Callable[[str], None],
        reservations: Reservations,
        on_sites: OnSites | None,
    ) -> None:
        self._state, self._tell = state, tell
        self._reservations, self._on_sites = reservations, on_sites
        self._online: set[str] = set()
        self._over: set[int] = set()  # finished runs, whose messages are deleted
        self._failed: set[str] = set()  # tasks whose failure is in the log

    def watch(self) -> None:
        """Look around every second, forever."""
        while True:
            self.look()
            time.sleep(1.0)

    def look(self) -> None:
        """Do each task once; a task that fails is tried again next time, and stops no other."""
        for task in (self._report, self._show, self._sweep):
            try:
                task()
            except Exception:
                # such as a closed terminal; once is enough, since it may fail every second
                if task.__name__ not in self._failed:
                    log.exception("a task of the server failed; it is tried again every second")
                self._failed.add(task.__name__)
            else:
                self._failed.discard(task.__name__)

    def _report(self) -> None:
        """Report sites that connect or disconnect."""
        nodes = self._state.get_node_info(owner_aids=[NOOP_FLWR_AID])
        now = {node.name for node in nodes if node.status == "online"}
        before, self._online = self._online, now
        for name in sorted(now ^ before):
            self._tell(f"{name} {'joined' if name in now else 'went offline'}")

    def _show(self) -> None:
        """Show which sites are online, and who is using them."""
        if self._on_sites is not None:
            held = self._reservations.current()
            self._on_sites(self._online, {n: each.holder for each in held for n in each.sites})

    def _sweep(self) -> None:
        """Delete messages from runs that have finished since the last time.

        If a fit is killed, the server marks its run as finished about a minute later.
        """
        over = {run.run_id for run in self._state.get_run_info(statuses=[Status.FINISHED])}
        for run_id in over - self._over:
            self._state.cleanup_run(run_id)
        self._over = over
