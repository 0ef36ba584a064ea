"""Carry questions inside an ordinary Flower app, for organizations that already run Flower.

The fit runs in a ServerApp, and asks the sites through Flower's `Grid` (`engine`). Each site runs in a
ClientApp, at a SuperNode or at a node of Flower's simulation (`client`). This folder uses only Flower's
public interface: the modules ``flwr.app``, ``flwr.serverapp``, and ``flwr.clientapp``.
`fedpca.engines.flower` is much faster, but it also uses internal parts of Flower.
"""

from __future__ import annotations

from fedpca.errors import InputError

try:
    import flwr  # noqa: F401
except ImportError:
    raise InputError(
        "a Flower app requires Flower; install it with: pip install 'fedpca[flower-app]'"
    ) from None
