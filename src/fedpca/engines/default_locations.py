"""Define default locations: the folder for files and the server's port."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fedpca.errors import InputError

PORT = 9092


def home() -> Path:
    """Return the default folder for files: FEDPCA_HOME, or .fedpca in the home directory."""
    return Path(os.environ.get("FEDPCA_HOME", "~/.fedpca")).expanduser()


def coordinator_folder(given: str | os.PathLike[str] | None) -> Path:
    """Return the folder for the coordinator's files: the given folder or the default."""
    return home() / "coordinator" if given is None else Path(given)


def _is_name(host: str) -> bool:
    """Return whether a string can be a host name or IP address, without a scheme or path."""
    try:
        host.encode("idna")  # rejects labels that are empty or too long
    except UnicodeError:
        return False
    return bool(host) and not re.search(r"[\s/\\?#@]", host)


def with_port(address: str) -> str:
    """Return the address with a port, adding the default port if there is none."""
    host, colon, port = address.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = address, str(PORT)
        address = f"{host}:{port}"
    is_bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if not _is_name(host) or not is_port or is_bare_ipv6:
        raise InputError(
            f"{address!r} must be HOST or HOST:PORT, as in server.example.org:{PORT} or [::1]"
        )
    return address
