"""Open the sites that a command uses: files on this machine, or sites at a server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedpca.cli.options import opened_sites, sites_of, sources_of
from fedpca.cli.progress import approvals
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import RunRecord
from fedpca.errors import InputError
from fedpca.rows.formats.files import BED, kind_of
from fedpca.rows.open import opened_paths
from fedpca.rows.reading import Reading


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
    fitted: Any,
    files: list[str] | None,
    databases: list[str],
    reading: Reading,
    server: AtServer,
    *,
    secure: bool,
    quiet: bool,
) -> Federation:
    """Return the sites in files or at a server.

    If the user chooses no columns, only the features of the fitted model are read from files with
    column names, which leaves out ids and other columns that were not in the fit.
    """
    has_rows = bool(files) or reading.query is not None
    if (server.host is None) == (not has_rows):
        raise InputError("specify either the sites' files or --federation HOST, but not both")
    if server.host is not None:
        refuse_reading(reading)
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
    sources = sources_of(files, databases, reading)
    return Federation.local(
        opened_sites(sources, _as_in_model(fitted, sources.values(), reading)), secure=secure
    )


def refuse_reading(reading: Reading) -> None:
    """Refuse options for rows that this machine does not read."""
    if reading.given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in reading.given)
        raise InputError(
            f"{flags}: these options only apply to files; each site in a federation passes them to "
            "fedpca join"
        )


def _as_in_model(fitted: Any, sources: Iterable[str], reading: Reading) -> Reading:
    """Return the reading with the columns and the normalization of a fitted model."""
    if reading.columns is not None:
        return reading
    features = getattr(fitted, "feature_names_in_", None)
    target = reading.log_normalize or getattr(fitted, "run_", RunRecord()).log_normalized
    reading = replace(reading, log_normalize=target, of_model=True)
    paths = [] if reading.query is not None else list(sources)
    # sites with genotypes agree on the model's variants in the run, and tell which of them are absent
    are_genotypes = any(kind_of(path) == BED for path in opened_paths(paths))
    if features is None or reading.drop or reading.mask_var is not None or are_genotypes:
        return reading
    return replace(reading, columns=tuple(str(name) for name in features))
