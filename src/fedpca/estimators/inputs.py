"""What `fit` accepts, as a federation or as a stream."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import validate_data

from fedpca.errors import InputError
from fedpca.federation import Federation
from fedpca.message import Array
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


def validated(estimator: Any, X: Any, **checks: Any) -> Any:
    """One table to be fitted as scikit-learn checks it, and rows of several sites as they are."""
    if is_many_sites(X):
        return X
    return validate_data(
        estimator,
        X,
        accept_sparse="csr",
        dtype=[np.float64, np.float32],
        ensure_min_samples=2,
        **checks,
    )


def holds_rows(X: Any) -> bool:
    """Whether X are rows, and not sites or a federation to which they are left."""
    if isinstance(X, Federation):
        return False
    parts = X.values() if isinstance(X, Mapping) and not sp.issparse(X) else X
    return not (is_many_sites(X) and any(isinstance(part, Site) for part in parts))


def as_federation(X: Any, sites: Any = None) -> Federation:
    """The federation that X is, or one within this process over the rows that X holds."""
    if is_many_sites(X):
        if sites is not None:
            raise InputError("sites= labels the rows of one array; these rows are split already")
        return X if isinstance(X, Federation) else Federation.local(X)
    return Federation.local([X] if sites is None else rows_by_label(X, sites))


def rows_by_label(X: Any, sites: Any) -> dict[str, Any]:
    """The rows of one table by the label of the site that each belongs to."""
    labels = labels_of_rows(sites, X.shape[0])
    return {str(name): X[labels == name] for name in np.unique(labels)}


def labels_of_rows(sites: Any, n_rows: int) -> Array:
    """The labels as words, one a row."""
    labels = np.asarray(sites)
    if labels.shape != (n_rows,):
        raise InputError(f"sites has shape {labels.shape}; give one label for {n_rows} rows")
    n_missing = sum(label is None or label != label for label in labels.tolist())
    if n_missing:
        raise InputError(f"sites has no label for {n_missing} rows; give each row one")
    return labels.astype(str)


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
