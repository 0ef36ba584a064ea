"""Search for the best numbers of shared and local components, based on the error on held-out rows.

    criterion = error / (d - k)^2

Here, d is the number of features, and k counts both shared and local components. Each additional
component reduces the error of a held-out row. A component of pure noise removes ``1 / (d - k)`` of the
remaining noise. In that case, ``error / (d - k)`` stays the same and the criterion grows, as in
generalized cross-validation. A component that carries signal makes the criterion fall. The criterion
does not show whether shared and local components can be distinguished; the misalignment does.

Source: compare Josse and Husson, "Selecting the number of components in PCA using cross-validation
approximations" (2012).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.estimators.fitting import holds_rows, is_many_sites
from fedpca.estimators.personalized import MIN_MISALIGNMENT, PersonalizedPCA
from fedpca.rows.columns import column_order
from fedpca.rows.in_memory import Rows, is_sparse, refuse_non_finite
from fedpca.rows.labels import rows_by_label
from fedpca.rows.open import open_rows
from fedpca.rows.standardized import column_sums
from fedpca.solvers.personalized.local_ranks import LocalRanks

MIN_ROWS_TO_SPLIT = 4  # sites with fewer rows hold out no rows


@dataclass(frozen=True)
class RankSearch:
    """Results for each pair of ranks, and the best pair.

    ``table`` has an entry for each pair, with ``n_shared``, ``n_local``, ``error``, ``criterion``, and
    ``misalignment``. The error is the mean squared error of a held-out row, averaged over sites.
    ``best`` is the pair with the lowest criterion among the pairs with a misalignment of at least 0.05.
    If no pair reaches 0.05, ``best`` is chosen from all pairs.
    """

    table: list[dict[str, Any]]
    best: tuple[int, int]


def search_ranks(
    X: Any,
    n_shared: Sequence[int],
    n_local: Sequence[int],
    *,
    sites: Any = None,
    held_out: float = 0.25,
    n_repeats: int = 3,
    random_state: Any = 0,
    **parameters: Any,
) -> RankSearch:
    """Try all pairs of ranks, and compare their errors on rows held out at every site.

    Parameters
    ----------
    X : dict or list of rows, or rows
        The same as for `PersonalizedPCA.fit`, except that a `Federation` is not allowed. Files are read
        into memory.
    n_shared, n_local : sequences of int
        The numbers to try.
    sites : array of shape (n_samples,), optional
        The site label for each row, if X is one table.
    held_out : float
        The share of each site's rows to hold out.
    n_repeats : int
        The number of times to repeat the split, with different rows held out each time.
    random_state : int, RandomState or None
        The seed for choosing the held-out rows.
    **parameters
        Additional parameters for `PersonalizedPCA`.
    """
    if not 0 < held_out < 1:
        raise InputError(f"held_out={held_out} must be greater than 0 and less than 1")
    if not isinstance(n_repeats, Integral) or n_repeats < 1:
        raise InputError(f"n_repeats={n_repeats!r} must be a positive integer")
    tried = [(int(k), int(r)) for k in np.atleast_1d(n_shared) for r in np.atleast_1d(n_local)]
    if not tried:
        raise InputError(
            "n_shared and n_local must each list numbers to try, such as n_shared=[1, 2, 3]"
        )
    rows = _rows(X, sites)
    d = next(iter(rows.values())).shape[1]
    for k, r in tried:
        LocalRanks.of(r).check_features(k, d)
    rng = check_random_state(random_state)
    splits = [_hold_out(rows, held_out, rng) for _ in range(n_repeats)]
    table = []
    for k, r in tried:
        figures = [
            _figures(PersonalizedPCA(k, r, random_state=seed, **parameters), *split)
            for seed, split in enumerate(splits)
        ]
        error, misalignment = np.mean(figures, axis=0).tolist()
        table.append(
            {
                "n_shared": k,
                "n_local": r,
                "error": error,
                "criterion": error / (d - k - r) ** 2 if d > k + r else np.inf,
                "misalignment": misalignment,
            }
        )
    apart = [entry for entry in table if entry["misalignment"] >= MIN_MISALIGNMENT] or table
    best = min(apart, key=lambda entry: float(entry["criterion"]))
    return RankSearch(table, (best["n_shared"], best["n_local"]))


def _rows(X: Any, sites: Any) -> dict[str, Any]:
    """Read each site's rows into memory, with columns in the first site's order."""
    if not holds_rows(X):
        raise InputError(
            "search_ranks cannot read the rows of a Federation or a Site; pass the rows themselves"
        )
    if not is_many_sites(X):
        table = _in_memory("the rows", open_rows(X), None)
        labels = ["all"] * table.shape[0] if sites is None else sites
        return rows_by_label(table, labels)
    named = X if isinstance(X, Mapping) else {f"site-{i}": rows for i, rows in enumerate(X, 1)}
    opened = {str(name): open_rows(rows) for name, rows in named.items()}
    first = next(iter(opened.values())).features
    return {name: _in_memory(f"site {name!r}", rows, first) for name, rows in opened.items()}


def _in_memory(where: str, rows: Rows, features: Sequence[str] | None) -> Any:
    """Read rows into memory; if columns have names, put them in the order of ``features``."""
    _, sums = column_sums(rows)
    if not np.isfinite(sums).all():
        refuse_non_finite(rows)
    blocks = list(rows.blocks()) or [np.empty((0, rows.n_features))]
    whole = (sp.vstack if is_sparse(blocks[0]) else np.vstack)(blocks)
    if features is None or rows.features is None:
        return whole
    order = column_order(features, rows.features, where)
    return whole if order is None else whole[:, order]


def _hold_out(
    rows: Mapping[str, Any], share: float, rng: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split each site's rows into fitted and held-out rows; small sites hold out no rows."""
    fitted, tried = {}, {}
    for name, own in rows.items():
        n = own.shape[0]
        n_out = min(max(1, round(share * n)), n - 2) if n >= MIN_ROWS_TO_SPLIT else 0
        order: Array = rng.permutation(n)
        fitted[name] = own[np.sort(order[n_out:])]
        if n_out:
            tried[name] = own[np.sort(order[:n_out])]
    if not tried:
        raise InputError(
            f"every site has fewer than {MIN_ROWS_TO_SPLIT} rows, so none can be held out"
        )
    return fitted, tried


def _figures(
    estimator: PersonalizedPCA, fitted: dict[str, Any], tried: dict[str, Any]
) -> tuple[float, float]:
    """Return the mean error of held-out rows, averaged over sites, and the misalignment."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "misalignment_=", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.set_params(gather=True).fit(fitted)
    errors = estimator.reconstruction_errors(tried)
    return float(np.mean(list(errors.values()))), estimator.misalignment_
