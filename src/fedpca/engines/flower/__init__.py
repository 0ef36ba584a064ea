"""A federation across organisations, carried by Flower (flwr, the extra ``flower``).

Flower's server stands at the coordinator (`link`), every site is one of its nodes (`node`), and a fit
asks them through it (`engine`). All that travels is one of our messages within one of Flower's
(`wire`): Flower's own way of sending apps, code that sites run, is not used. Flower's names appear in
this folder alone.
"""

from __future__ import annotations

import os

from fedpca.errors import InputError

# before the first import of Flower: its parts call home otherwise
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

try:
    import flwr  # noqa: F401
except ImportError:
    raise InputError(
        "a federation across machines needs Flower; install it with: pip install 'fedpca[flower]'"
    ) from None
