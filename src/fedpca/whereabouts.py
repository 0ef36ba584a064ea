"""Where things are unless told otherwise: the folder of our files, and the port of the server."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fedpca.errors import InputError

PORT = 9092


def home() -> Path:
    """Where files go that nobody named a folder for: FEDPCA_HOME, else .fedpca in the user's home."""
    return Path(os.environ.get("FEDPCA_HOME", "~/.fedpca")).expanduser()


def coordinator_folder(tls: str | os.PathLike[str] | None) -> Path:
    """The folder with the coordinator's files: the one given, else the usual one."""
    return home() / "coordinator" if tls is None else Path(tls)


def _is_name(host: str) -> bool:
    """Whether it can be a host's name or number, and not more of an address than that."""
    try:
        host.encode("idna")  # refuses parts between dots that are empty or too long
    except UnicodeError:
        return False
    return bool(host) and not re.search(r"[\s/\\?#@]", host)


def with_port(address: str) -> str:
    """The address with the usual port where it names none."""
    host, colon, port = address.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = address, str(PORT)
        address = f"{host}:{port}"
    is_bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if not _is_name(host) or not is_port or is_bare_ipv6:
        raise InputError(
            f"{address!r} is not HOST or HOST:PORT, as in server.example.org:{PORT} or [::1]"
        )
    return address
