"""Open the sites that a command uses: files on this machine, or sites at a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedpca.cli.options import choice_of, named_sites, opened_sites, sites_of
from fedpca.cli.progress import approvals
from fedpca.coordinator.federation import Federation
from fedpca.errors import InputError
from fedpca.rows.open import paths_of

TABLES = (".csv", ".parquet")  # files whose columns can be chosen by name


class AtServer(NamedTuple):
    """The options that choose sites at a server and say how to reach them."""

    host: str | None
    sites: str | None
    wait: float
    credentials: Path | None
    insecure: bool
    purpose: str
    approval_wait: float


def federation_of(
    files: list[str] | None,
    server: AtServer,
    *,
    drop: list[str],
    columns: list[str],
    id: list[str],
    weight: str | None,
    features: Sequence[str] | None,
    secure: bool,
    quiet: bool,
) -> Federation:
    """Return the sites in files or at a server.

    If the user chooses no columns, only the columns in ``features`` are read from tables, which leaves
    out ids and other columns that were not in the fit.
    """
    if (server.host is None) == (not files):
        raise InputError("specify either the sites' files or --federation HOST, but not both")
    choice: dict[str, Any] = {**choice_of(drop, columns, id), "weight": weight}
    if server.host is not None:
        if any(choice.values()):
            raise InputError(
                "--drop, --columns, --id, and --weight only apply to files; each site in a "
                "federation passes them to fedpca join"
            )
        return Federation.flower(
            server.host,
            sites=sites_of(server.sites),
            wait=server.wait,
            credentials=server.credentials,
            insecure=server.insecure,
            purpose=server.purpose,
            approval_wait=server.approval_wait,
            on_waiting=approvals(quiet),
            secure=secure,
        )
    if server.sites is not None or server.credentials or server.insecure or server.purpose:
        raise InputError(
            "--sites, --credentials, --insecure, and --purpose require --federation HOST"
        )
    is_chosen = bool(drop or columns or id)
    if features is not None and not is_chosen and _are_tables(files or []):
        choice["columns"] = list(features)
    return Federation.local(opened_sites(files or [], choice), secure=secure)


def _are_tables(files: list[str]) -> bool:
    """Return whether all files are tables with named columns."""
    paths = [path for source in named_sites(files).values() for path in paths_of(source)]
    return all(Path(path).suffix.lower() in TABLES for path in paths)
