"""Search for the numbers of shared and local components that predict held-out entries best.

    error = the mean square of  x_j - E[x_j | the other entries of its row],   x in a held-out row

The expectation assumes the fitted components, plus noise that may differ between columns. The part of a
row outside the components would be a poor measure, because it shrinks with every added component, even
one of pure noise. In contrast, the error of an entry that is predicted from the rest of its row can
grow. Noise in one column says nothing about another, so a component that fits noise makes predictions
worse.

Often, many pairs of numbers do almost equally well. The search chooses the smallest pair whose error
exceeds the smallest error by at most one standard error.

Sources: for predicting entries, see Bro, Kjeldahl, Smilde, and Kiers, "Cross-validation of component
models" (2008). The rule of one standard error is from Breiman, Friedman, Olshen, and Stone,
"Classification and Regression Trees" (1984).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.estimators.fitting import holds_rows, is_many_sites, without_labels
from fedpca.estimators.personalized import MIN_MISALIGNMENT, PersonalizedPCA
from fedpca.models.linear import Model
from fedpca.rows.columns import column_order
from fedpca.rows.in_memory import Rows, is_sparse, refuse_non_finite
from fedpca.rows.labels import rows_by_label
from fedpca.rows.open import open_rows
from fedpca.rows.standardized import column_sums
from fedpca.solvers.personalized.local_ranks import LocalRanks

MIN_ROWS_TO_SPLIT = 4  # sites with fewer rows hold out no rows
MIN_NOISE = 1e-6  # smallest mean noise of the columns, as a share of their mean variance
PRIOR_ROWS = 10  # made-up rows of mean noise that are added to each column, which may be constant
# a search need not resolve errors much smaller than one percent
SEARCH = {
    "n_init": 1,
    "tol": 1e-6,
}

Halves = tuple[dict[str, Any], dict[str, Any]]  # fitted and held-out rows by site


@dataclass(frozen=True)
class RankSearch:
    """Results for each pair of ranks, and the best pair.

    ``table`` has an entry for each pair, with ``n_shared``, ``n_local``, ``error``, ``excess``,
    ``standard_error``, and ``misalignment``. The error is the mean squared error of an entry of a
    held-out row that is predicted from the rest of the row, averaged over sites, in standardized units
    if ``scale`` is True. The excess is the error minus the smallest error, and ``standard_error`` is
    the standard error of the excess.

    ``best`` is the smallest of the pairs whose excess is at most one standard error. In the size of a
    pair, a shared component counts once, and a local component counts once for each site. Pairs with a
    misalignment below 0.05 are left out, unless this would leave no pair.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import search_ranks
    >>> rng = np.random.default_rng(0)
    >>> shared, *own = np.eye(6)[:4] * 4
    >>> sites = [rng.normal(size=(40, 2)) @ [shared, v] + rng.normal(size=(40, 6)) for v in own]
    >>> found = search_ranks(sites, [1, 2], [1, 2], random_state=0)
    >>> [(line["n_shared"], line["n_local"]) for line in found.table]
    [(1, 1), (1, 2), (2, 1), (2, 2)]
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
    """Try all pairs of ranks, and compare how well they predict rows held out at every site.

    Parameters
    ----------
    X : dict or list of rows, or rows
        The same as for `PersonalizedPCA.fit`, except that a `Federation` is not allowed. Files are read
        into memory.
    n_shared, n_local : sequences of int
        The numbers of shared and of local components to try, which can be 0.
    sites : array of shape (n_samples,) or str, optional
        The site label for each row, if X is one table, or the name of the column that holds the labels.
    held_out : float
        The share of each site's rows to hold out.
    n_repeats : int
        The number of times to repeat the split, with different rows held out each time.
    random_state : int, RandomState or None
        The seed for choosing the held-out rows.
    **parameters
        Additional parameters for `PersonalizedPCA`. In a search, ``n_init`` is 1 and
        ``tol`` is 1e-6 by default.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import search_ranks
    >>> rng = np.random.default_rng(0)
    >>> shared, *own = np.eye(6)[:4] * 4
    >>> sites = [rng.normal(size=(40, 2)) @ [shared, v] + rng.normal(size=(40, 6)) for v in own]
    >>> search_ranks(sites, [1, 2], [1, 2], random_state=0).best
    (1, 1)
    """
    if not 0 < held_out < 1:
        raise InputError(f"held_out={held_out} must be greater than 0 and less than 1")
    if not isinstance(n_repeats, Integral) or n_repeats < 1:
        raise InputError(f"n_repeats={n_repeats!r} must be a positive integer")
    pairs = product(np.atleast_1d(n_shared).tolist(), np.atleast_1d(n_local).tolist())
    tried = [pair for pair in pairs if pair != (0, 0)]
    if not tried:
        raise InputError(
            "n_shared and n_local must each list numbers to try, and must not both be only zeros; use "
            "numbers such as n_shared=[1, 2, 3]"
        )
    rows = _rows(X, sites)
    d = next(iter(rows.values())).shape[1]
    for k, r in tried:
        LocalRanks.of(r).check_features(k, d)
    rng = check_random_state(random_state)
    splits = [_hold_out(rows, held_out, rng) for _ in range(n_repeats)]
    trials = {
        (k, r): _trial(splits, PersonalizedPCA(k, r, **(SEARCH | parameters))) for k, r in tried
    }
    return _chosen(trials, len(rows), n_repeats)


class RankTrial(NamedTuple):
    """The result of one pair of ranks; the errors of a split add up to the mean error over sites."""

    errors: Array  # (n_repeats * n_held_out,)
    misalignment: float


def _chosen(
    trials: Mapping[tuple[int, int], RankTrial], n_sites: int, n_repeats: int
) -> RankSearch:
    """Tabulate the trials, and choose the smallest pair within one standard error of the best."""
    is_apart = {
        pair: own.misalignment >= MIN_MISALIGNMENT or 0 in pair for pair, own in trials.items()
    }
    among = [pair for pair, apart in is_apart.items() if apart] or list(trials)
    least = trials[min(among, key=lambda pair: float(trials[pair].errors.sum()))]
    table, near = [], []
    for (k, r), own in trials.items():
        excess = own.errors - least.errors
        line = {
            "n_shared": k,
            "n_local": r,
            "error": float(own.errors.sum()) / n_repeats,
            "excess": float(excess.sum()) / n_repeats,
            "standard_error": float(np.sqrt(excess.size) * excess.std()) / n_repeats,
            "misalignment": own.misalignment,
        }
        table.append(line)
        if (k, r) in among and line["excess"] <= line["standard_error"]:
            near.append((k, r))
    return RankSearch(table, min(near, key=lambda pair: pair[0] + n_sites * pair[1]))


def _rows(X: Any, sites: Any) -> dict[str, Any]:
    """Read each site's rows into memory, with columns in the first site's order."""
    if not holds_rows(X):
        raise InputError(
            "search_ranks cannot read the rows of a Federation or a Site; pass the rows themselves"
        )
    if not is_many_sites(X):
        X, sites = without_labels(X, sites)
        table = in_memory("the rows", open_rows(X), None)
        labels = ["all"] * table.shape[0] if sites is None else sites
        return rows_by_label(table, labels)
    named = X if isinstance(X, Mapping) else {f"site-{i}": rows for i, rows in enumerate(X, 1)}
    opened = {str(name): open_rows(rows) for name, rows in named.items()}
    first = next(iter(opened.values())).features
    return {name: in_memory(f"site {name!r}", rows, first) for name, rows in opened.items()}


def in_memory(where: str, rows: Rows, features: Sequence[str] | None) -> Any:
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


def _hold_out(rows: Mapping[str, Any], share: float, rng: Any) -> Halves:
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
            f"every site has fewer than {MIN_ROWS_TO_SPLIT} rows, too few to hold out; pass more rows"
        )
    return fitted, tried


def _trial(splits: Sequence[Halves], estimator: PersonalizedPCA) -> RankTrial:
    """Fit one pair of ranks to each split, and predict the held-out rows."""
    errors, misalignments = [], []
    for seed, (fitted, held_out) in enumerate(splits):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(misalignment|ambiguity)_=", UserWarning)
            warnings.simplefilter("ignore", ConvergenceWarning)
            estimator.set_params(gather=True, random_state=seed).fit(fitted)
        for name, rows in held_out.items():
            model = estimator.model_.of_site(name)
            own = errors_from_rest(
                model, standardized(fitted[name], model), standardized(rows, model)
            )
            errors.append(own / (len(own) * len(held_out)))
        misalignments.append(estimator.misalignment_)
    return RankTrial(np.concatenate(errors), float(np.mean(misalignments)))


def standardized(rows: Any, model: Model) -> Array:
    """Subtract the model's mean from rows, and divide the result by the model's scale."""
    return np.asarray(((rows.toarray() if is_sparse(rows) else rows) - model.mean) / model.scale)


def errors_from_rest(model: Model, fitted: Array, held_out: Array) -> Array:
    """Predict each held-out entry from the rest of its row; return each row's mean squared error, (n,).

    The covariance is ``S = C' diag(variance) C + diag(noise)``; a column's noise is about its mean
    square outside the components. With ``P = inv(S)``, entry j of a row ``a`` has the error
    ``(a P)_j / P_jj``.
    """
    C = model.components
    squares = ((fitted - (fitted @ C.T) @ C) ** 2).sum(axis=0)
    usual = max(float(squares.mean()) / len(fitted), MIN_NOISE * float((fitted**2).mean())) or 1.0
    noise = (squares + PRIOR_ROWS * usual) / (len(fitted) + PRIOR_ROWS)
    has_variance = model.explained_variance > 0
    B = C[has_variance] / noise
    inner = np.diag(1 / model.explained_variance[has_variance]) + B @ C[has_variance].T
    explained = np.linalg.solve(inner, B)
    precisions = 1 / noise - np.einsum("kj,kj->j", B, explained)
    errors = (held_out / noise - (held_out @ B.T) @ explained) / precisions
    return np.asarray((errors**2).mean(axis=1))
