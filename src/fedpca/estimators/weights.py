"""Accept the weights of rows in every form that `FederatedPCA.fit` takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedpca.coordinator.federation import Federation
from fedpca.errors import InputError
from fedpca.rows.columns import some_of
from fedpca.rows.open import is_dask
from fedpca.site.site import Site, cache_share


def without_column(X: Any, weight: str) -> tuple[Any, Any]:
    """Return the rows of one table without the named column, and that column as weights.

    If X is a file, a Dask collection, or the rows of several sites, return X and the name unchanged.
    """
    if is_dask(X) or isinstance(X, Federation | Mapping | list | tuple | str | os.PathLike):
        return X, weight
    if not hasattr(X, "columns"):
        raise InputError(
            f"sample_weight={weight!r} names a column, but X has no column names; pass a data frame, "
            "or the weights as an array"
        )
    names = list(getattr(X, "column_names", X.columns))  # the columns of a pyarrow table are arrays
    if weight not in names:
        raise InputError(
            f"sample_weight={weight!r} is not a column of X; the columns are {some_of(names)}"
        )
    others = [name for name in names if name != weight]
    return X.select(others) if hasattr(X, "select") else X[others], np.asarray(X[weight])


def weighted_sites(X: Any, weights: Any) -> dict[str, Site]:
    """Return a `Site` for each site's rows, weighted by an array for the site or by a named column."""
    if isinstance(X, Federation):
        raise InputError(
            "sample_weight= does not reach the sites of a Federation; create them with "
            "Site(rows, weight=...)"
        )
    named = dict(X) if isinstance(X, Mapping) else {f"site-{i}": x for i, x in enumerate(X, 1)}
    if any(isinstance(rows, Site) for rows in named.values()):
        raise InputError(
            "sample_weight= does not apply to a Site; create it with Site(rows, weight=...)"
        )
    limit = cache_share(len(named))
    return {
        str(name): Site(rows, name=str(name), memory_limit=limit, weight=weight)
        for (name, rows), weight in zip(named.items(), _of_each(X, named, weights), strict=True)
    }


def _of_each(X: Any, named: dict[Any, Any], weights: Any) -> list[Any]:
    """Return the weights of each site, in order."""
    if isinstance(weights, str):
        return [weights] * len(named)
    if isinstance(X, Mapping):
        if not isinstance(weights, Mapping) or weights.keys() != X.keys():
            raise InputError(
                "X is a dict of sites' rows, so sample_weight must be a dict with the same names: "
                f"{some_of(list(named))}"
            )
        return [weights[name] for name in named]
    if not isinstance(weights, list | tuple) or len(weights) != len(named):
        raise InputError(
            f"X is a list of {len(named)} sites' rows, so sample_weight must be a list with the "
            f"weights of each site, or the name of a column"
        )
    return list(weights)
