"""From what a user says of a federation to the engine that asks its sites."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from fedpca import credentials
from fedpca.engines.flower.engine import FlowerEngine
from fedpca.engines.flower.reach import Link
from fedpca.errors import InputError, JournalError
from fedpca.journal import recorded_sites
from fedpca.whereabouts import coordinator_folder, with_port


def connect(
    address: str,
    *,
    sites: Any,
    tls: str | os.PathLike[str] | None,
    insecure: bool,
    wait: float,
    quorum: int | None,
    journal: str | os.PathLike[str] | None,
) -> FlowerEngine:
    """The engine, once the sites are online; see `Federation.flower`.

    A run that is resumed keeps the sites with which it began.
    """
    wanted = _sites(sites)
    if not (isinstance(wait, int | float) and 0 <= wait < math.inf):
        raise InputError(f"wait={wait!r} must be a number of seconds of at least 0")
    resumed = recorded_sites(journal)
    if resumed is not None and not _are_those_of(resumed, wanted):
        raise JournalError(
            f"{journal} belongs to a run of {', '.join(resumed)}, and not to sites={sites}; leave "
            "sites out, or give the name of a new file"
        )
    folder = coordinator_folder(tls)
    has_ca = not insecure and (folder / credentials.CA).exists()
    ca = credentials.read_authority(folder / credentials.CA) if has_ca else None
    return FlowerEngine(
        Link(with_port(address), ca, plain=insecure),
        credentials.read_secret(folder),
        sites=wanted,
        quorum=quorum,
        wait=wait,
        resumed=resumed,
    )


def _sites(sites: Any) -> int | list[str] | None:
    """How many sites, or which."""
    if sites is None:
        return None
    if isinstance(sites, Integral) and not isinstance(sites, bool):
        return int(sites)
    is_list = isinstance(sites, Sequence) and not isinstance(sites, str | bytes)
    if not is_list or not sites or not all(isinstance(name, str) and name for name in sites):
        raise InputError(f"sites={sites!r} is neither a number of sites nor a list of their names")
    if len(set(sites)) < len(sites):
        raise InputError(f"sites={list(sites)} names one twice")
    return list(sites)


def _are_those_of(resumed: Sequence[str], wanted: int | list[str] | None) -> bool:
    """Whether a run's sites may be meant; of a number not all need have come when it began."""
    if isinstance(wanted, int):
        return wanted >= len(resumed)
    return wanted is None or wanted == list(resumed)
