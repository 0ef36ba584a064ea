"""Return results as data frames with labels, following scikit-learn's ``set_output``.

After ``set_output(transform="pandas")`` or ``"polars"``, or the same setting in scikit-learn's
configuration, results are frames of that kind. By default, a result with an entry for each row of an
input frame is a frame of the same kind, and all other results are arrays. A pandas frame keeps the
index of the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.utils._set_output import ADAPTERS_MANAGER, _get_output_config

from fedpca.arrays import Array


def frame_kind(estimator: BaseEstimator, X: Any = None) -> str | None:
    """Return the kind of frame for results about the rows X: "pandas", "polars", or None for arrays."""
    chosen = str(_get_output_config("transform", estimator)["dense"])
    if chosen != "default":
        return chosen
    package = type(X).__module__.partition(".")[0]
    return package if package in ADAPTERS_MANAGER.adapters else None


def rows_like(estimator: BaseEstimator, X: Any, values: Array) -> Any:
    """Return values for each row of X and each feature, as a labeled frame if results are frames."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        names = [f"x{j}" for j in range(values.shape[1])]
    return _framed(frame_kind(estimator, X), values, list(names), X)


def column_like(estimator: BaseEstimator, X: Any, values: Array, name: str) -> Any:
    """Return one value for each row of X, as a named series if results are frames."""
    kind = frame_kind(estimator, X)
    framed = _framed(kind, values[:, None], [name], X)
    return values if kind is None else framed[name]


def sites_framed(
    estimator: BaseEstimator, values: Array, sites: Sequence[str], columns: Sequence[str]
) -> Any:
    """Return a row of values for each site, as a frame with the sites' names if results are frames.

    A polars frame has no index; its first column, "site", holds the names.
    """
    kind = frame_kind(estimator)
    framed = _framed(kind, values, list(columns))
    if kind == "pandas":
        framed.index = list(sites)
    elif kind == "polars":
        import polars as pl

        name = "site" if "site" not in columns else "site_name"
        framed = framed.insert_column(0, pl.Series(name, list(sites)))
    return framed


def _framed(kind: str | None, values: Array, columns: list[str], like: Any = None) -> Any:
    """Return an array as a frame of this kind, with the index of ``like`` if ``like`` has one."""
    if kind is None:
        return values
    adapter = ADAPTERS_MANAGER.adapters[kind]
    return adapter.create_container(values, values if like is None else like, columns)
