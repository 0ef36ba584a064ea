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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.auth.typing import AccountInfo
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.main import create_app
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fedpca.engines.flower.connection import access_token
from fedpca.engines.flower.hold import ReservationDesk
from fedpca.errors import LinkError

MAX_BODY_BYTES = 16 << 20


class _SmallBodies:
    """Middleware that rejects large requests, since Flower reads the body before checking the key."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            length = headers.get(b"content-length", b"0").decode()
            if (
                b"transfer-encoding" in headers
                or not length.isdigit()
                or int(length) > MAX_BODY_BYTES
            ):
                await Response(status_code=413)(scope, receive, send)
                return
        await self._app(scope, receive, send)


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


def serve(
    host: str,
    port: int,
    *,
    sites: Mapping[str, EllipticCurvePublicKey],
    secret: bytes,
    certificate: Path | None,
    key: Path | None,
    tell: Callable[[str], None],
) -> None:
    """Serve until a signal stops the process.

    ``sites`` maps each site's name to its public key. If no certificate and key are given, the server
    uses plain HTTP. It keeps nothing on disk, because journals and the sites' memory hold everything
    that must outlive it. ``tell`` is called with a line of text when a site connects or disconnects,
    and when a fit has to wait for sites that are in use.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise LinkError(
            f"cannot listen on {host}, port {port}: {error.strerror}; use a different --host or --port"
        ) from None
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
    logging.getLogger("flwr").setLevel(logging.WARNING)
    threading.Thread(target=_watch, args=(state, tell), daemon=True).start()
    uvicorn.run(
        _SmallBodies(ReservationDesk(app, secret, tell)),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,  # otherwise, connected sites delay shutdown
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )


def _watch(state: LinkState, tell: Callable[[str], None]) -> None:
    """Report sites that connect or disconnect, and delete messages from finished runs."""
    online: set[str] = set()
    over: set[int] = set()
    while True:
        nodes = state.get_node_info(owner_aids=[NOOP_FLWR_AID])
        now = {node.name for node in nodes if node.status == "online"}
        for name in sorted(now ^ online):
            tell(f"{name} {'joined' if name in now else 'went offline'}")
        online = now
        over = _sweep(state, over)
        time.sleep(1.0)


def _sweep(state: LinkState, swept: set[int]) -> set[int]:
    """Delete messages from finished runs that are not in ``swept``; return all finished runs.

    If a fit is killed, the server marks its run as finished about a minute later.
    """
    over = {run.run_id for run in state.get_run_info(statuses=[Status.FINISHED])}
    for run_id in over - swept:
        state.cleanup_run(run_id)
    return over
