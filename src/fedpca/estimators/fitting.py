"""The steps of every `fit`: accept rows in any form, run a program, and warn about its end."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import RunRecord
from fedpca.errors import InputError
from fedpca.rows.in_memory import JoinedRows, Rows
from fedpca.rows.open import open_rows
from fedpca.site.site import Site
from fedpca.solvers.catalogue import to_plain

FEATURES = {"n_features_in_", "feature_names_in_"}  # attributes that a fit sets


def run_program(
    estimator: BaseEstimator,
    fed: Federation,
    program: Callable[..., Any],
    solver: Any,
    parameters: dict[str, Any],
    **more: Any,
) -> tuple[Any, RunRecord]:
    """Run a program over a federation; return its result and the record of the run.

    The program gets ``parameters`` and ``more``. A journal recognizes the run by ``parameters`` alone.
    """
    plain = None if solver is None else to_plain(solver)
    result = fed.run(
        partial(program, solver=solver, **parameters, **more),
        identity={
            "program": type(estimator).__name__,
            "parameters": {**parameters, "solver": plain},
        },
        seed=seed_of(estimator.random_state),
    )
    return result, fed.record.with_outcome(result.outcome)


def plain_params(estimator: BaseEstimator) -> dict[str, Any]:
    """Return an estimator's parameters, with NumPy scalars turned into Python numbers."""
    given = estimator.get_params(deep=False)
    return {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}


def warn_unconverged(estimator: BaseEstimator, run: RunRecord, what: str, hint: str = "") -> None:
    """Warn if a solver used up its rounds; call it from ``fit``, so that it points at fit's caller."""
    if run.stop_reason == "max_rounds":
        warnings.warn(
            f"{what} {run.solver!r} stopped after max_rounds={estimator.max_rounds} before it met "
            f"tol={estimator.tol}; allow more rounds or a larger tol{hint}",
            ConvergenceWarning,
            stacklevel=3,
        )


def seed_of(random_state: Any) -> int | None:
    """Return the seed of a run from scikit-learn's ``random_state``."""
    if random_state is None:
        return None
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))


def refuse_many_sites(X: Any) -> None:
    """Refuse the rows of several sites, since `fit_transform` needs one table."""
    if is_many_sites(X):
        raise InputError("fit_transform takes one table; call fit, then transform each site's rows")


def set_features(estimator: BaseEstimator, n_features: int, names: Any) -> None:
    """Set scikit-learn's attributes for the number and names of features."""
    estimator.n_features_in_ = n_features
    if names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)


def forget_features(estimator: BaseEstimator) -> None:
    """Delete the attributes for features, so that a fit starts without those of the last one."""
    for name in FEATURES:
        estimator.__dict__.pop(name, None)


@contextmanager
def new_features(estimator: BaseEstimator) -> Iterator[None]:
    """Start a fit without the features of the last one; restore them if it fails."""
    before = dict(estimator.__dict__)
    forget_features(estimator)
    try:
        yield
    except BaseException:
        forget_features(estimator)
        for name in FEATURES & before.keys():
            setattr(estimator, name, before[name])
        raise


def is_many_sites(X: Any) -> bool:
    """Return whether X is a federation, or a list or dict of sites' rows, and not one table."""
    if isinstance(X, Federation | Mapping):
        return not sp.issparse(X)  # one of scipy's formats is a dict
    if not isinstance(X, list | tuple) or not X or not _is_rows(X[0]):
        return False
    for i, item in enumerate(X, start=1):
        if not _is_rows(item):
            raise InputError(
                f"site-{i} of the list is not a 2-D table ({type(item).__name__}); give one"
            )
    return True


def validated(estimator: Any, X: Any, **checks: Any) -> Any:
    """Return one table after scikit-learn's checks, or the rows of several sites unchanged."""
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
    """Return whether X holds the rows themselves, and not sites or a federation that keep them."""
    if isinstance(X, Federation):
        return False
    items = X.values() if isinstance(X, Mapping) and not sp.issparse(X) else X
    return not (is_many_sites(X) and any(isinstance(item, Site) for item in items))


def as_federation(X: Any, sites: Any = None) -> Federation:
    """Return X if it is a federation, or a federation in this process over the rows in X."""
    if is_many_sites(X):
        if sites is not None:
            raise InputError(
                "sites= labels the rows of one table; these rows are split already, so leave sites= out"
            )
        return X if isinstance(X, Federation) else Federation.local(X)
    return Federation.local([X] if sites is None else rows_by_label(X, sites))


def rows_by_label(X: Any, sites: Any) -> dict[str, Any]:
    """Return the rows of one table, grouped by their site labels."""
    labels = labels_of_rows(sites, X.shape[0])
    return {str(name): X[labels == name] for name in np.unique(labels)}


def labels_of_rows(sites: Any, n_rows: int) -> Array:
    """Return the site labels as strings, after checking that each row has one."""
    labels = np.asarray(sites)
    if labels.shape != (n_rows,):
        raise InputError(
            f"sites has shape {labels.shape}; give one label for each of the {n_rows} rows"
        )
    n_unlabeled = sum(label is None or label != label for label in labels.tolist())
    if n_unlabeled:
        raise InputError(f"sites has no label for {n_unlabeled} rows; give each row one")
    return labels.astype(str)


def as_stream(X: Any) -> Rows | Iterator[Any] | None:
    """Return the rows of files, or an iterator of batches; None if X is one table."""
    if isinstance(X, Federation):
        raise InputError("the rows of a Federation stay at their sites; use FederatedPCA")
    if isinstance(X, Iterator):
        return X
    if _is_path(X):
        return open_rows(X)
    if not is_many_sites(X):
        return None
    items = list(X.values() if isinstance(X, Mapping) else X)
    if any(isinstance(item, Site) for item in items):
        raise InputError("the rows of a Site stay there; use FederatedPCA")
    if items and all(_is_path(item) for item in items):
        return JoinedRows([(str(item), open_rows(item)) for item in items])
    return iter(items)


def _is_path(item: Any) -> bool:
    return isinstance(item, str | os.PathLike)


def _is_rows(item: Any) -> bool:
    """Return whether an item of a list is a site's rows: a path, a data frame, or anything 2-D."""
    if _is_path(item) or isinstance(item, Site):
        return True
    shape = getattr(item, "shape", None)
    if shape is not None:
        return len(shape) == 2
    return isinstance(item, list | tuple) and bool(item) and np.ndim(item[0]) == 1
