"""Carry questions to the workers of a Dask cluster (in the extra ``dask``).

All rows belong to one owner, who spreads them over workers. A site is what one worker reads (`tables`).
It is opened and asked at that worker (`at_worker`), and the client submits the questions (`engine`).
What a site remembers is the result of a task, so a lost worker loses nothing that cannot be computed
again. Only this folder imports Dask.
"""

from __future__ import annotations

from fedpca.errors import InputError

try:
    import distributed  # noqa: F401
except ImportError:
    raise InputError(
        "rows on a Dask cluster require Dask; install it with: pip install 'fedpca[dask]'"
    ) from None
