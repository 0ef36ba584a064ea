"""Open a site's rows from any container."""

from __future__ import annotations

from typing import Any

import scipy.sparse as sp

from fedpca.rows.files import open_paths, paths_of
from fedpca.rows.in_memory import DenseRows, Rows, SparseRows
from fedpca.rows.tables import TableRows


def open_rows(source: Any) -> Rows:
    """Return the rows of an array, a sparse matrix, a data frame, a table, files or folders."""
    paths = paths_of(source)
    if paths:
        return open_paths(paths)
    if sp.issparse(source):
        return SparseRows(source)
    if hasattr(source, "__arrow_c_stream__"):
        return TableRows(source)
    return DenseRows(source)
