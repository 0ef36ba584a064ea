"""Carry out the steps common to every `fit`.

Each `fit` accepts rows in any form, runs a program, and warns if it did not converge.
"""

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
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import RunRecord, known_share
from fedpca.errors import InputError
from fedpca.estimators.weights import weighted_sites
from fedpca.privacy.gaussian import Privacy
from fedpca.protocol.plan import PRIVATE
from fedpca.rows.columns import some_of
from fedpca.rows.formats.array_files import is_array_on_disk
from fedpca.rows.genotypes.genotype_rows import GenotypeRows, n_absent
from fedpca.rows.genotypes.plink_files import Genotypes
from fedpca.rows.gpu.devices import on_host
from fedpca.rows.in_memory import Rows, is_cells, is_foreign, whole
from fedpca.rows.labels import rows_by_label, take_label_column
from fedpca.rows.matching import open_matching, scores_in_blocks
from fedpca.rows.open import is_dask, joined_rows, open_rows
from fedpca.rows.reading import AS_STORED, Reading
from fedpca.rows.weighted import checked_weights
from fedpca.site.site import Site
from fedpca.solvers.catalogue import not_squaring, to_plain

FEATURE_ATTRIBUTES = {"n_features_in_", "feature_names_in_"}  # attributes that fit sets
MIN_TO_JUDGE = 4  # if fewer components are possible, keeping more than half of them means nothing


def run_program(
    estimator: BaseEstimator,
    fed: Federation,
    program: Callable[..., Any],
    solver: Any,
    parameters: dict[str, Any],
    privacy: Privacy | None = None,
    **more: Any,
) -> tuple[Any, RunRecord]:
    """Run a program over a federation, and return its result and the run record.

    The program receives ``parameters`` and ``more``. A journal identifies the run by the estimator's
    name, ``solver``, ``parameters``, and ``privacy``, but not by ``more``.
    """
    plain = None if solver is None else to_plain(solver)
    identity = {
        "program": type(estimator).__name__,
        "parameters": {**parameters, "solver": plain},
    }
    if privacy is not None:
        identity["privacy"] = {PRIVATE: privacy.to_plain()}
        more["privacy"] = privacy
    result = fed.run(
        partial(program, solver=solver, **parameters, **more),
        identity=identity,
        seed=run_seed(estimator.random_state),
    )
    return result, fed.record.with_outcome(result.outcome)


def plain_params(estimator: BaseEstimator) -> dict[str, Any]:
    """Return an estimator's parameters, with NumPy scalars converted to Python numbers."""
    given = estimator.get_params(deep=False)
    return {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}


def warn_unconverged(estimator: BaseEstimator, run: RunRecord, what: str, hint: str = "") -> None:
    """Warn if a solver ran out of rounds.

    Call this directly from ``fit``, so that the warning points to the line that called ``fit``.
    """
    if run.stop_reason == "max_rounds":
        warnings.warn(
            f"{what} {run.solver!r} stopped at max_rounds={estimator.max_rounds} before reaching "
            f"tol={estimator.tol}; increase max_rounds or tol{hint}",
            ConvergenceWarning,
            stacklevel=3,
        )


def warn_uncertain(run: RunRecord, k: int) -> None:
    """Warn if rounding in sums of squares hides some of the components.

    Call this directly from ``fit``, so that the warning points to the line that called ``fit``.
    """
    if run.stop_reason == "uncertain":
        better, other = not_squaring(), ""
        if better and run.solver not in better:
            other = f", or solver={better[0]!r}, which does not square the rows"
        warnings.warn(
            f"only {run.n_certain} of the {k} components are certain: rounding hides the others, "
            f"because variances, or differences between them, are tiny compared with the largest "
            f"variance; the sine of the angle to the exact components may be as large as "
            f"{run.angle_bound:.0e}; use scale=True or fewer "
            f"components{other}{'; ' * bool(run.advice)}{run.advice}",
            ConvergenceWarning,
            stacklevel=3,
        )


def warn_noise(run: RunRecord, k: int) -> None:
    """Warn if noise for privacy hides components, or is larger than needed.

    Call this directly from ``fit``, so that the warning points to the line that called ``fit``.
    """
    if not run.privacy:
        return
    if not run.secure and len(run.sites) > 1:
        warnings.warn(
            f"sums were not secure, so each of the {len(run.sites)} sites added all of the noise, and "
            f"the total noise is {np.sqrt(len(run.sites)):.1f} times as large as needed; use a "
            "federation with secure=True",
            UserWarning,
            stacklevel=3,
        )
    if run.n_certain < k:
        warnings.warn(
            f"only {run.n_certain} of the {k} components stand out from the noise that sites added for "
            f"epsilon={run.privacy['promised']:g}; use fewer components, more rows, a smaller "
            "row_bound, or a larger epsilon",
            UserWarning,
            stacklevel=3,
        )


def warn_dominant(run: RunRecord) -> None:
    """Warn if one site with few rows has almost all of the variance, or nearly all of the rows.

    Such a site determines the components.

    Call this directly from ``fit``, so that the warning points to the line that called ``fit``.
    """
    name = run.dominant_site
    if name is not None:
        known = run.influence[name]
        caused = known.get("caused", known["variance"])
        part = f"{known['rows']:.1%} of the rows"
        if "weight" in known:
            part = f"{known['weight']:.1%} of the weight"
        warnings.warn(
            f"site {name!r} has {part} but causes {caused:.1%} of the "
            "variance, so the components mostly describe this site; check the units and the values of "
            "its rows, or fit without this site",
            UserWarning,
            stacklevel=3,
        )
    heavy = run.heavy_site
    if heavy is not None:
        warnings.warn(
            f"site {heavy!r} claims {known_share(run.influence[heavy]):.4%} of the rows or of their "
            "weight, so the components describe hardly any other site; check its row count and "
            "weights, or fit without this site",
            UserWarning,
            stacklevel=3,
        )


def warn_rank(rule: Any, k: int, most: int, *, is_above_noise: bool) -> None:
    """Warn if a rule found no component, or kept so many that it cannot have recognized the noise.

    Call this directly from ``fit``, so that the warning points to the line that called ``fit``.
    """
    if not isinstance(rule, str):
        return
    if not is_above_noise:
        warnings.warn(
            f"n_components={rule!r} found no component above the noise, and keeps 1; perhaps the "
            "columns have nothing in common, or there are too few rows to tell",
            UserWarning,
            stacklevel=3,
        )
    elif most >= MIN_TO_JUDGE and k > most / 2 and rule != "gap":
        warnings.warn(
            f"n_components={rule!r} found no noise floor, and keeps {k} of at most {most} components; "
            + ("use 'auto', a share, or a number" if rule != "auto" else "use a share or a number"),
            UserWarning,
            stacklevel=3,
        )


def run_seed(random_state: Any) -> int | None:
    """Return a seed for a run, based on scikit-learn's ``random_state``."""
    if random_state is None:
        return None
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))


def refuse_many_sites(X: Any) -> None:
    """Refuse rows from several sites, because `fit_transform` needs a single table."""
    if is_many_sites(X):
        raise InputError(
            "fit_transform takes a single table; call fit, and then transform the rows of each site"
        )


def set_features(estimator: BaseEstimator, n_features: int, names: Any) -> None:
    """Set scikit-learn's attributes for the number and names of features."""
    estimator.n_features_in_ = n_features
    if names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)


def forget_features(estimator: BaseEstimator) -> None:
    """Delete the feature attributes, so that a fit does not start with the previous fit's features."""
    for name in FEATURE_ATTRIBUTES:
        estimator.__dict__.pop(name, None)


@contextmanager
def new_features(estimator: BaseEstimator) -> Iterator[None]:
    """Start a fit without the previous fit's features, and restore them if the new fit fails."""
    before = dict(estimator.__dict__)
    forget_features(estimator)
    try:
        yield
    except BaseException:
        forget_features(estimator)
        for name in FEATURE_ATTRIBUTES & before.keys():
            setattr(estimator, name, before[name])
        raise


def is_many_sites(X: Any) -> bool:
    """Return whether X is a federation or a list or dict of sites' rows, rather than one table."""
    if isinstance(X, Federation | Mapping):
        return not sp.issparse(X)  # scipy's DOK format is a dict
    if not isinstance(X, list | tuple) or not X or not _is_rows(X[0]):
        return False
    for i, item in enumerate(X, start=1):
        if not _is_rows(item):
            raise InputError(f"site-{i} in the list must be a 2-D table, got {type(item).__name__}")
    return True


def without_labels(X: Any, sites: Any) -> tuple[Any, Any]:
    """Return one table and its site labels, taken from a column if ``sites`` names one."""
    if not isinstance(sites, str) or is_many_sites(X) or is_dask(X):
        return X, sites
    return take_label_column(X, sites)


def validated(estimator: Any, X: Any, **checks: Any) -> Any:
    """Check one table as scikit-learn does and return it.

    Return files, cells, several sites, Dask collections, and arrays on disk or on a device unchanged;
    the sites check them.
    """
    if is_many_sites(X) or reads_by_name(X) or is_dask(X) or is_array_on_disk(X) or is_foreign(X):
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
    """Return whether X holds the rows themselves, rather than sites or a federation."""
    if isinstance(X, Federation):
        return False
    items = X.values() if isinstance(X, Mapping) and not sp.issparse(X) else X
    return not (is_many_sites(X) and any(isinstance(item, Site) for item in items))


def as_federation(
    X: Any, sites: Any = None, weights: Any = None, *, is_private: bool = False
) -> Federation:
    """Return X if it is a federation; otherwise, return a federation over the rows in X.

    ``weights`` are the weights of rows in X, in a form that `FederatedPCA.fit` accepts. A private fit
    of several sites uses secure sums, so that the sites can share the noise.
    """
    if isinstance(X, Federation) and sites is None and weights is None:
        return X
    if _has_dask(X):
        return _on_dask(X, sites, weights)
    parts = _by_site(X, sites, weights)
    return Federation.local(parts, secure=is_private and len(parts) > 1)


def _has_dask(X: Any) -> bool:
    """Return whether X is a Dask collection, or holds the rows of sites as Dask collections."""
    if is_dask(X) or isinstance(X, Federation):
        return is_dask(X)
    items = X.values() if isinstance(X, Mapping) and not sp.issparse(X) else X
    return is_many_sites(X) and any(is_dask(item) for item in items)


def _on_dask(X: Any, sites: Any, weights: Any) -> Federation:
    """Return a federation of the workers that hold or compute the blocks of Dask collections."""
    if sites is not None:
        raise InputError(
            "sites= does not apply to a Dask collection, whose rows it would have to sort by site; "
            "pass a dict with the rows of each site, as in {name: X[X.site == name] for name in names}"
        )
    if not isinstance(weights, str | None):
        raise InputError(
            "sample_weight must be the name of a column if X is a Dask collection; add the weights to "
            "the data frame as a column"
        )
    if isinstance(X, list | tuple):
        X = {f"site-{i}": rows for i, rows in enumerate(X, start=1)}
    return Federation.dask(None, X, weight=weights)


def _by_site(X: Any, sites: Any, weights: Any) -> Any:
    """Return the rows of each site, as a list or a dict, with their weights if they have any."""
    if is_many_sites(X):
        if sites is not None:
            raise InputError(
                "sites= labels the rows of a single table; X is already split by site, so omit sites="
            )
        return X if weights is None else weighted_sites(X, weights)
    if is_path(X) and sites is not None:
        raise InputError(
            "X is a file, so sites must be the name of the column that holds each row's site; to use "
            "an array of labels, pass the rows themselves"
        )
    if weights is None:
        return [X] if sites is None else rows_by_label(X, sites)
    if sites is None:
        return weighted_sites([X], [weights])
    weights = checked_weights(weights, X.shape[0])
    return weighted_sites(rows_by_label(X, sites), rows_by_label(weights, sites))


def scores_of_file(
    estimator: BaseEstimator,
    path: Any,
    score: Callable[[Any], Array],
    width: int,
    of_genotypes: Callable[[GenotypeRows], Array] | None = None,
) -> Array:
    """Return the scores of cells or of the rows in files, ``(n, width)``, read block by block.

    Columns are matched by name, and columns that are not features of the model are ignored. The
    function ``of_genotypes``, if given, scores genotypes one variant at a time, as they are stored.
    """
    rows = matching_rows(estimator, path)
    for doubt in doubts_about(estimator, path, rows):
        warnings.warn(doubt, UserWarning, stacklevel=3)
    if of_genotypes is not None and isinstance(rows, GenotypeRows):
        return of_genotypes(rows)
    blocks = [scores for scores, _ in scores_in_blocks(rows, score)]
    return np.vstack([np.empty((0, width)), *blocks])


def doubts_about(estimator: BaseEstimator, path: Any, rows: Rows) -> Iterator[str]:
    """Yield what may be wrong with rows that were matched with the features of a model."""
    features = getattr(estimator, "feature_names_in_", None)
    if features is not None and rows.features is None:
        yield (
            f"{path} has no column names; its columns are assumed to be in this order: "
            f"{some_of([str(name) for name in features])}"
        )
    if n_absent(rows):
        yield (
            f"{path} lacks {n_absent(rows):,} of the model's {rows.n_features:,} variants; they count "
            "as missing"
        )


def matching_rows(estimator: BaseEstimator, source: Any, reading: Reading = AS_STORED) -> Rows:
    """Return a source's rows with the columns of the fit, and with cells normalized as in the fit."""
    check_is_fitted(estimator)
    names = getattr(estimator, "feature_names_in_", None)
    features = None if names is None else [str(name) for name in names]
    run = getattr(estimator, "run_", RunRecord())
    return open_matching(
        source,
        features,
        estimator.n_features_in_,
        reading,
        log_normalized=run.log_normalized,
    )


def new_rows(estimator: BaseEstimator, X: Any, *, accept_sparse: Any = "csr", **checks: Any) -> Any:
    """Check new rows as scikit-learn does, and return them as numpy arrays or sparse matrices.

    The genes of cells are matched by name.
    """
    checks |= {"accept_sparse": accept_sparse, "dtype": [np.float64, np.float32]}
    if is_cells(X):
        return check_array(whole(matching_rows(estimator, X)), **checks)
    return validate_data(estimator, on_host(X), reset=False, **checks)


def scores_of_dask(X: Any, transform: Callable[[Any], Array], width: int) -> Array:
    """Return the scores of a Dask collection's rows as a Dask array, to be computed block by block.

    ``transform`` scores the rows of one block, ``(b, d)``.
    """
    scores: Array  # a Dask array has a different type, but is used like an array
    if not hasattr(X, "chunks"):  # a data frame, whose blocks have the names of features
        scores = X.map_partitions(transform, meta=np.empty((0, width)))
        return scores
    whole = X.rechunk({1: -1})
    dtype = X.dtype if X.dtype.kind == "f" else np.float64
    chunks, meta = (whole.chunks[0], (width,)), np.empty((0, width), dtype)
    scores = whole.map_blocks(transform, chunks=chunks, meta=meta)
    return scores


def as_stream(X: Any) -> Rows | Iterator[Any] | None:
    """Return the rows in files or an iterator over batches; return None if X is one table."""
    if isinstance(X, Federation):
        raise InputError("a Federation's rows stay at their sites; use FederatedPCA instead")
    if isinstance(X, Iterator):
        return X
    if reads_by_name(X):
        return open_rows(X)
    if not is_many_sites(X):
        return None
    items = list(X.values() if isinstance(X, Mapping) else X)
    if any(isinstance(item, Site) for item in items):
        raise InputError("a Site's rows stay at the site; use FederatedPCA instead")
    if items and all(reads_by_name(item) for item in items):
        return joined_rows([(str(item), open_rows(item)) for item in items])
    return iter(items)


def is_path(item: Any) -> bool:
    """Return whether an item refers to rows in files: a file or folder, a pattern, or genotypes."""
    return isinstance(item, str | os.PathLike | Genotypes)


def reads_by_name(item: Any) -> bool:
    """Return whether an item is a path or holds cells, so that its columns are matched by name."""
    return is_path(item) or is_cells(item)


def _is_rows(item: Any) -> bool:
    """Return whether a list item is a site's rows: a path, a data frame, or anything 2-D."""
    if is_path(item) or isinstance(item, Site):
        return True
    shape = getattr(item, "shape", None)
    if shape is not None:
        return len(shape) == 2
    return isinstance(item, list | tuple) and bool(item) and np.ndim(item[0]) == 1
