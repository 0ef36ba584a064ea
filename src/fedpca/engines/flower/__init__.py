"""Carry questions between organizations with Flower (the ``flwr`` package, in the extra ``flower``).

The coordinator runs Flower's server (`server`). Each site is a Flower node (`site_client`), and a fit
asks the sites through the server (`engine`, `run`). Each fedpca message travels inside a Flower message
(`envelope`). Flower can also send apps, which are code for sites to run; fedpca does not use this
feature. Only this folder and `fedpca.engines.flower_app` import Flower.
"""

from __future__ import annotations

import os

from fedpca.errors import InputError

# must be set before Flower is first imported; otherwise, Flower sends telemetry
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

try:
    import flwr  # noqa: F401
except ImportError:
    raise InputError(
        "a federation across machines requires Flower; install it with: pip install 'fedpca[flower]'"
    ) from None
