"""Carry questions between organizations by Flower (flwr, the extra ``flower``).

The coordinator runs Flower's server (`server`). Every site is one of its nodes (`site_client`), and a
fit asks the sites through the server (`engine`, `run`). Each of our messages travels inside one of
Flower's (`envelope`). Flower can also send apps, which are code that sites run; this package does not
use that. Flower is imported in this folder only.
"""

from __future__ import annotations

import os

from fedpca.errors import InputError

# must come before the first import of Flower, which otherwise calls home
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

try:
    import flwr  # noqa: F401
except ImportError:
    raise InputError(
        "a federation across machines needs Flower; install it with: pip install 'fedpca[flower]'"
    ) from None
