"""How many shared and how many local components: by rows that were held out.

What k of d components, shared and local, leave of a held-out row falls with every further one. One of
noise takes ``1 / (d - k)`` of the noise that is left, so that ``error / (d - k)`` stays as it is, and

    criterion = error / (d - k)^2,

as in generalised cross-validation, grows; with one of the rows' own it falls. It does not say whether
shared and local components can be told apart; the misalignment beside it does. Compare Josse and
Husson, "Selecting the number of components in PCA using cross-validation approximations" (2012).
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

from fedpca.errors import InputError
from fedpca.estimators.inputs import holds_rows, is_many_sites, rows_by_label
from fedpca.estimators.personal_program import check_ranks
from fedpca.estimators.personalized import ALIKE, PersonalizedPCA
from fedpca.framed import column_sums
from fedpca.message import Array
from fedpca.rows import Rows, column_order, is_sparse, open_rows, refuse_non_finite

FEWEST = 4  # rows of a site of which some are held out


@dataclass(frozen=True)
class RankSearch:
    """What each pair of ranks came to, and the one to take.

    ``table`` has an entry for each pair: ``n_shared``, ``n_local``, the mean squared ``error`` of a
    held-out row, on average over sites, the ``criterion``, and the ``misalignment``. ``best`` is the
    pair of the lowest criterion among those with a misalignment of at least 0.05, or among all where
    there are none.
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
    """Try all pairs of ranks on rows that are held out at every site.

    Parameters
    ----------
    X : dict or list of rows, or rows
        As for `PersonalizedPCA.fit`, but not a `Federation`; files are read into memory.
    n_shared, n_local : sequences of int
        The numbers to try.
    sites : array of shape (n_samples,), optional
        The label of the site to which each row of one table belongs.
    held_out : float
        Share of each site's rows that is held out.
    n_repeats : int
        How often, with other rows each time.
    random_state : int, RandomState or None
        Seed of the choice of rows.
    **parameters
        Of `PersonalizedPCA`.
    """
    if not 0 < held_out < 1:
        raise InputError(f"held_out={held_out} is not a share between 0 and 1")
    if not isinstance(n_repeats, Integral) or n_repeats < 1:
        raise InputError(f"n_repeats={n_repeats!r} is not a number of at least 1")
    tried = [(int(k), int(r)) for k in np.atleast_1d(n_shared) for r in np.atleast_1d(n_local)]
    if not tried:
        raise InputError("search_ranks needs numbers to try, as in n_shared=[1, 2, 3]")
    rows = _rows(X, sites)
    d = next(iter(rows.values())).shape[1]
    for k, r in tried:
        check_ranks(k, r, d)
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
    apart = [entry for entry in table if entry["misalignment"] >= ALIKE] or table
    best = min(apart, key=lambda entry: float(entry["criterion"]))
    return RankSearch(table, (best["n_shared"], best["n_local"]))


def _rows(X: Any, sites: Any) -> dict[str, Any]:
    """The rows of each site in memory, their columns in the order of the first one's."""
    if not holds_rows(X):
        raise InputError("the rows of a Federation or a Site stay there; search where they are")
    if not is_many_sites(X):
        table = _in_memory("the rows", open_rows(X), None)
        labels = ["all"] * table.shape[0] if sites is None else sites
        return rows_by_label(table, labels)
    named = X if isinstance(X, Mapping) else {f"site-{i}": part for i, part in enumerate(X, 1)}
    opened = {str(name): open_rows(part) for name, part in named.items()}
    first = next(iter(opened.values())).features
    return {name: _in_memory(f"site {name!r}", part, first) for name, part in opened.items()}


def _in_memory(where: str, rows: Rows, features: Sequence[str] | None) -> Any:
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
    """The rows to fit and those to try, by site; a site of few rows lends none."""
    fitted, tried = {}, {}
    for name, part in rows.items():
        n = part.shape[0]
        n_out = min(max(1, round(share * n)), n - 2) if n >= FEWEST else 0
        order: Array = rng.permutation(n)
        fitted[name] = part[np.sort(order[n_out:])]
        if n_out:
            tried[name] = part[np.sort(order[:n_out])]
    if not tried:
        raise InputError(f"no site has the {FEWEST} rows of which some can be held out")
    return fitted, tried


def _figures(
    estimator: PersonalizedPCA, fitted: dict[str, Any], tried: dict[str, Any]
) -> tuple[float, float]:
    """The error of a held-out row, on average over sites, and the misalignment."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "misalignment_=", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.set_params(gather=True).fit(fitted)
    errors = estimator.reconstruction_errors(tried)
    return float(np.mean(list(errors.values()))), estimator.misalignment_
