"""Carry questions inside an ordinary Flower app, for organizations that already run Flower.

The fit is Flower's ServerApp, which asks through Flower's `Grid` (`engine`). Each site is a ClientApp
at a SuperNode, or at a node of Flower's simulation (`client`). This folder uses Flower's public
interface alone: the modules ``flwr.app``, ``flwr.serverapp``, and ``flwr.clientapp``.
`fedpca.engines.flower` is much faster, and uses more of Flower than that.
"""

from __future__ import annotations

from fedpca.errors import InputError

try:
    import flwr  # noqa: F401
except ImportError:
    raise InputError(
        "a Flower app requires Flower; install it with: pip install 'fedpca[flower-app]'"
    ) from None
