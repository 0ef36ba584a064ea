"""A `fedpca` with small limits on connections, so that a test reaches them soon.

The first argument holds them, such as ``HEADER_TIMEOUT_S=3``; the others are those of `fedpca`.
"""

from __future__ import annotations

import sys

from fedpca.cli.app import app
from fedpca.engines.flower import listener, request_filter

if __name__ == "__main__":
    for setting in sys.argv.pop(1).split(","):
        name, _, value = setting.partition("=")
        module = listener if hasattr(listener, name) else request_filter
        getattr(module, name)  # a misspelt name is an error
        setattr(module, name, type(getattr(module, name))(value))
    app()
