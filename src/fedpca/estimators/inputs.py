"""What `fit` accepts, as a federation or as a stream."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedpca.errors import InputError
from fedpca.federation import Federation
from fedpca.rows import JoinedRows, Rows, open_rows
from fedpca.site import Site


def is_many_sites(X: Any) -> bool:
    """Whether X is a federation, or a list or dict of sites' rows, and not one table of rows."""
    if isinstance(X, Federation | Mapping):
        return not sp.issparse(X)  # one of scipy's formats is a dict
    if not isinstance(X, list | tuple) or not X or not _is_rows(X[0]):
        return False
    for i, item in enumerate(X, start=1):
        if not _is_rows(item):
            raise InputError(f"site-{i} of the list is not a 2-D table but {type(item).__name__}")
    return True


def as_federation(X: Any, sites: Any = None) -> Federation:
    """The federation that X is, or one within this process over the rows that X holds."""
    if is_many_sites(X):
        if sites is not None:
            raise InputError("sites= labels the rows of one array; these rows are split already")
        return X if isinstance(X, Federation) else Federation.local(X)
    if sites is None:
        return Federation.local([X])
    labels = np.asarray(sites)
    if labels.shape != (X.shape[0],):
        raise InputError(f"sites has shape {labels.shape}; give one label for {X.shape[0]} rows")
    n_missing = sum(label is None or label != label for label in labels.tolist())
    if n_missing:
        raise InputError(f"sites has no label for {n_missing} rows; give each row one")
    names = labels.astype(str)
    return Federation.local({str(name): X[names == name] for name in np.unique(names)})


def as_stream(X: Any) -> Rows | Iterator[Any] | None:
    """The rows of files, or an iterator of batches; None where X is one table."""
    if isinstance(X, Federation):
        raise InputError("the rows of a Federation stay at their sites; use FederatedPCA")
    if isinstance(X, Iterator):
        return X
    if _is_path(X):
        return open_rows(X)
    if not is_many_sites(X):
        return None
    parts = list(X.values() if isinstance(X, Mapping) else X)
    if any(isinstance(part, Site) for part in parts):
        raise InputError("the rows of a Site stay there; use FederatedPCA")
    if parts and all(_is_path(part) for part in parts):
        return JoinedRows([(str(part), open_rows(part)) for part in parts])
    return iter(parts)


def _is_path(item: Any) -> bool:
    return isinstance(item, str | os.PathLike)


def _is_rows(item: Any) -> bool:
    """Whether one element of a list is a site's rows: a path, a frame, or something 2-D."""
    if _is_path(item) or isinstance(item, Site):
        return True
    shape = getattr(item, "shape", None)
    if shape is not None:
        return len(shape) == 2
    return isinstance(item, list | tuple) and bool(item) and np.ndim(item[0]) == 1
