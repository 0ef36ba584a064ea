"""Define `RobustPCA`, which finds components despite outliers, and also finds the outliers."""

from __future__ import annotations

import os
import warnings
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from fedpca.arrays import Array, Arrays
from fedpca.errors import InputError
from fedpca.estimators.files import estimator_from_header, file_header, record_in, usable_header
from fedpca.estimators.fitting import (
    as_federation,
    new_features,
    new_rows,
    plain_params,
    reads_by_name,
    refuse_many_sites,
    run_program,
    scores_of_dask,
    scores_of_file,
    set_features,
    validated,
    warn_dominant,
    warn_unconverged,
    without_labels,
)
from fedpca.estimators.frames import column_like, rows_like
from fedpca.estimators.linear import LinearAttributes, rows_from_scores, tags_for_rows
from fedpca.facts import (
    NUMBER,
    ROWS,
    SHARE,
    Column,
    Fact,
    Records,
    Sections,
    about,
    cautions,
    records_of_components,
)
from fedpca.models.linear import Model, linear_model_in
from fedpca.models.robust import OutlierScores, Parts, RobustModel
from fedpca.rows.columns import some_of
from fedpca.rows.open import is_dask
from fedpca.solvers.catalogue import ROBUST, find_solver
from fedpca.solvers.robust.contract import RobustSolver
from fedpca.solvers.robust.program import RobustResult, low_rank_and_sparse
from fedpca.solvers.robust.rows_apart import DEPENDS
from fedpca.storage.tensor_file import read_arrays

CORRUPTED_SHARE = 0.4  # a site with a larger share of outliers counts as corrupted


class RobustPCA(
    LinearAttributes,
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Find the principal components of rows with outliers and missing values.

    Each site's rows are modeled as the sum of a low-rank part, with components common to all sites, and
    a sparse part with entries of any size. Both parts stay at the site. The site sends only sums that
    update the components.

    Parameters
    ----------
    n_components : int or None
        The rank of the low-rank part, if it is known. For real data, this is the number of components
        to keep.
    max_components : int or None
        A bound on the rank, if the rank is not known. The solver "auto" adds components until the
        residuals look like noise, which means that no direction stands out when they are compared with
        the same residuals with random signs. The other solvers set the rank at the largest drop in the
        singular values. If no rank up to the bound is clear, the fit warns and keeps as many components
        as the bound allows.
    solver : {"auto", "threshold", "least-squares", "dcf"}, or a solver from `fedpca.solvers`
        "threshold" requires the rank. It is exact if there is no noise and the components are of
        similar size. "auto" uses "threshold", but starts with "least-squares" if the first rounds do
        not lead to an exact solution, or if only a bound on the rank is given. "dcf" is the published
        method, included for comparison. Its components are truncated to the rank, and a hard threshold
        then finds the outliers, as with the other methods.
    center : {"median", "mean", "none"}
        The initial center of the rows. A mean is not robust to outliers. All methods except "dcf" later
        move the center to the mean of the rows without outliers. "none" keeps the center at zero.
    scale : bool
        Whether to divide each feature by its median absolute deviation from its median, so that the
        same outlier threshold suits all features. If most values of a feature are equal, the median
        deviation of its other values is used instead.
    rows : {"auto", "all"}
        Which rows to fit. "auto" leaves out rows that lie apart from all others along a component, and
        warns. If kept, such rows would become a component, because they lie in one direction. "all"
        keeps them.
    tol : float
        The solver stops when a round rotates the components by at most this much, as the sine of an
        angle. "threshold" also stops when a round rotates them by at most a fiftieth of the rotation
        that noise causes.
    max_rounds : int
        The maximum number of rounds. If the solver needs more, the fit warns. "auto" may use additional
        rounds for its start: up to 25 to find the rank, or about 20 if the rank is given, and at most
        this number again.
    random_state : int, RandomState or None
        The seed for the random start.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features_in_)
    explained_variance_ : ndarray of shape (n_components_,)
        The variance of the low-rank part along the components, excluding rows that are mostly outliers.
        With "dcf", it is the variance about the initial center.
    explained_variance_ratio_ : ndarray of shape (n_components_,)
        These variances as shares of the variance of all features without outliers, which is the
        variance of the low-rank part plus that of the noise.
    mean_, scale_ : ndarray of shape (n_features_in_,)
        The center and scale of each feature over all sites' rows.
    threshold_ : float
        The largest residual, in the model's scale, of an entry that is not an outlier.
    noise_variance_ : float
        The variance of an entry's noise, estimated from the median size of the residuals; 0 with "dcf",
        which does not estimate it.
    n_samples_ : int
        The number of rows that have at least one value and were not left out.
    n_left_out_ : int
        The number of rows that were left out because they lie apart from all others.
    left_out_ : dict or None
        For genotypes, the variants that the sites left out, and the reason for each. None for other
        rows, and for a model from a file.
    sparse_share_ : dict
        The share of outliers among each site's entries, for features that vary. The dict is empty if a
        site's policy withholds this share, or if the fit used secure sums.
    corrupted_sites_ : list
        Sites with so many outliers that the scores of their rows mean little.
    run_ : RunRecord
        Rounds, bytes, history, ledger, lost sites, and the reason the solver stopped. Its `solver`
        names the methods that ran.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import RobustPCA
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 8))
    >>> X[5, 3] += 100
    >>> pca = RobustPCA(2, center="none").fit({"north": X[:30], "south": X[30:]})
    >>> pca.split(X).sparse[5].round().tolist()
    [0.0, 0.0, 0.0, 100.0, 0.0, 0.0, 0.0, 0.0]
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "max_components": [Interval(Integral, 1, None, closed="left"), None],
        "solver": [StrOptions(set(ROBUST)), RobustSolver],
        "center": [StrOptions({"median", "mean", "none"})],
        "scale": ["boolean"],
        "rows": [StrOptions({"auto", "all"})],
        "tol": [Interval(Real, 0, None, closed="left")],
        "max_rounds": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_components: int | None = None,
        *,
        max_components: int | None = None,
        solver: str | RobustSolver = "auto",
        center: str = "median",
        scale: bool = False,
        rows: str = "auto",
        tol: float = 1e-9,
        max_rounds: int = 200,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.max_components = max_components
        self.solver = solver
        self.center = center
        self.scale = scale
        self.rows = rows
        self.tol = tol
        self.max_rounds = max_rounds
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, sites: Any = None) -> Self:
        """Find the components of all sites' rows.

        Parameters
        ----------
        X : rows, list or dict of rows, or Federation
            The same as for `FederatedPCA.fit`, except that NaN marks missing values.
        y : None
            Ignored.
        sites : array of shape (n_samples,) or str, optional
            The site label for each row, if X is one table; or the name of the column that holds the
            labels, which is then not a feature.
        """
        self._validate_params()
        solver = find_solver(self.solver, "RobustPCA")
        self._check_ranks(solver)
        with new_features(self):
            X, sites = without_labels(X, sites)
            fed = as_federation(validated(self, X, ensure_all_finite="allow-nan"), sites)
            parameters = plain_params(self)
            del parameters["solver"], parameters["random_state"]
            result, run = run_program(self, fed, low_rank_and_sparse, solver, parameters)
        self._set_model(result.model, result.n, result.features, result.shares)
        self.n_left_out_ = result.n_left_out
        self.left_out_ = result.left_out
        self.run_ = run
        warn_unconverged(self, run, "solver", ", or request fewer components")
        warn_dominant(run)
        self._warn(result)
        return self

    def fit_transform(self, X: Any, y: Any = None, *, sites: Any = None) -> Array:
        """Fit the model to one table of rows, and return their scores."""
        refuse_many_sites(X)
        X, sites = without_labels(X, sites)
        return self.fit(X, sites=sites).transform(X)

    def transform(self, X: Any) -> Array:
        """Return the rows' scores on the components, ignoring outliers and missing values.

        ``X`` holds the rows, or is the path to a file or folder of rows.
        """
        if reads_by_name(X):
            check_is_fitted(self)
            return scores_of_file(self, X, self.model_.transform, self.n_components_)
        if is_dask(X):
            return scores_of_dask(X, self.transform, self.n_components_)
        rows = self._rows(X)
        return self.model_.transform(rows).astype(rows.dtype, copy=False)

    def inverse_transform(self, X: Any) -> Array:
        """Return the rows that have these scores, without noise or outliers."""
        return rows_from_scores(self._model(), X)

    def split(self, X: Any) -> Parts:
        """Split rows into a low-rank part and a sparse part, keeping the components fixed.

        The low-rank part fills in missing values, which are zero in the sparse part. If X is a data
        frame, so is each part, with the same index and columns.
        """
        parts = self.model_.split(self._rows(X))
        return Parts(*(rows_like(self, X, part) for part in parts))

    def outlier_scores(self, X: Any) -> OutlierScores:
        """Return each entry's residual divided by the threshold, and each row's share of outliers.

        If X is a data frame, the shares are a series and the entries' scores are a frame, with the same
        index and columns.
        """
        scores = self.model_.outlier_scores(self._rows(X))
        shares = column_like(self, X, scores.rows, "outlier_share")
        return OutlierScores(shares, rows_like(self, X, scores.cells))

    @property
    def scale_(self) -> Array:
        """Return the scale of each feature, or ones if ``scale`` is False."""
        return self._model().scale

    @property
    def threshold_(self) -> float:
        """Return the largest residual, in the model's scale, of an entry that is not an outlier."""
        check_is_fitted(self)
        return self.model_.threshold

    @property
    def corrupted_sites_(self) -> list[str]:
        """Return the sites with so many outliers that the scores of their rows mean little."""
        check_is_fitted(self)
        return [name for name, share in self.sparse_share_.items() if share > CORRUPTED_SHARE]

    def facts(self) -> Sections:
        """Return what the model holds and how it was fitted, as sections of `fedpca.facts`."""
        components = self._named_components()
        texts = [
            f"So many entries of {site} are outliers that the scores of its rows mean little."
            for site in self.corrupted_sites_
        ]
        more = (
            Fact(
                "threshold",
                self.threshold_,
                NUMBER,
                note="an entry is an outlier if it is farther from the low-rank part, in the model's "
                "scale",
            ),
            Fact(
                "n_left_out",
                self.n_left_out_,
                ROWS,
                "rows left out",
                "they lie apart from all others" if self.n_left_out_ else "",
            ),
        )
        shares = Records(
            "sparse_share",
            (Column("site"), Column("outliers", SHARE)),
            list(self.sparse_share_.items()),
            "Share of outliers among each site's entries",
            by_first=True,
            n_shown=20,
        )
        return (
            about("RobustPCA", self.n_samples_, components, self.n_features_in_, *more),
            cautions([*self.run_.cautions(), *texts]),
            records_of_components(components),
            shares,
            *self.run_.facts("RobustPCA"),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a file that `fedpca.load` can read."""
        header = {
            "threshold": self.threshold_,
            "sparse_share": self.sparse_share_,
            "n_left_out": self.n_left_out_,
            "run": self.run_.to_header(),
        }
        self._model().save(path, file_header(self, self.n_samples_, **header))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a fitted estimator from a file that `save` wrote."""
        return cls._from_file(path, *read_arrays(path, "model"))

    @classmethod
    def _from_file(
        cls, path: str | os.PathLike[str], arrays: Arrays, header: dict[str, Any]
    ) -> Self:
        """Return the fitted estimator in a file that has been read."""
        linear = linear_model_in(path, arrays, header)
        with usable_header(path):
            estimator = estimator_from_header(cls, path, header)
            threshold = float(header["threshold"])
            if not 0 < threshold < np.inf:
                raise ValueError(f"threshold={threshold} must be positive and finite")
            model, shares = RobustModel(linear, threshold), dict(header["sparse_share"])
            estimator._set_model(model, header["n_samples"], header["features"], shares)
            estimator.n_left_out_ = int(header["n_left_out"])
            estimator.left_out_ = None
            estimator.run_ = record_in(header)
        return estimator

    def _check_ranks(self, solver: RobustSolver) -> None:
        """Require either a rank or a bound, and require the rank if the solver needs it."""
        if (self.n_components is None) == (self.max_components is None):
            raise InputError(
                f"n_components={self.n_components} and max_components={self.max_components}: pass "
                "either the rank or a bound on it, but not both"
            )
        if solver.needs_rank and self.n_components is None:
            raise InputError(
                f"solver={solver.name!r} requires n_components; use solver='auto' to find the rank "
                "from max_components"
            )

    def _set_model(
        self, model: RobustModel, n: int, features: Any, shares: dict[str, float]
    ) -> None:
        """Set the fitted attributes."""
        self.model_ = model
        self.n_samples_ = n
        self.sparse_share_ = shares
        set_features(self, model.linear.components.shape[1], features)

    def _model(self) -> Model:
        """Return the fitted linear model, or raise an error if the estimator is not fitted."""
        check_is_fitted(self)
        return self.model_.linear

    def _rows(self, X: Any) -> Any:
        """Check new rows as scikit-learn does, but allow NaN, and return them."""
        check_is_fitted(self)
        return new_rows(self, X, ensure_all_finite="allow-nan")

    def __sklearn_tags__(self) -> Any:
        tags = tags_for_rows(super().__sklearn_tags__())
        tags.input_tags.allow_nan = True
        return tags

    def _warn(self, result: RobustResult) -> None:
        """Warn about an unclear rank, unusual rows, and features and sites with too many outliers."""
        if not result.rank_is_clear:
            message = (
                f"no rank up to max_components={self.max_components} is clear, so "
                f"{self.n_components_} components are kept; raise max_components, or set n_components"
            )
            warnings.warn(message, UserWarning, stacklevel=3)
        if result.n_left_out:
            message = (
                f"{result.n_left_out} rows lie apart from all others along a component, and were left "
                "out; inspect the rows with large scores, or use rows='all' to keep them"
            )
            warnings.warn(message, UserWarning, stacklevel=3)
        depends = np.flatnonzero(result.far.variance > DEPENDS)
        if len(depends):
            first = depends[0]
            message = (
                f"{int(result.far.n[first])} of {result.n} rows lie far from the others and cause "
                f"{result.far.variance[first]:.0%} of the variance of component {first + 1}; inspect "
                "the rows with large scores, and compare with a fit without these rows"
            )
            warnings.warn(message, UserWarning, stacklevel=3)
        if result.mostly_outliers.any():
            unnamed = [f"column {j}" for j in range(self.n_features_in_)]
            names = getattr(self, "feature_names_in_", unnamed)
            bad = [str(names[j]) for j in np.flatnonzero(result.mostly_outliers)]
            message = (
                f"most entries of {some_of(bad)} are outliers; inspect these columns, request more "
                f"components, or "
                f"{'exclude the columns' if self.scale else 'use scale=True if units differ'}"
            )
            warnings.warn(message, UserWarning, stacklevel=3)
        if self.corrupted_sites_:
            shares = {name: f"{self.sparse_share_[name]:.0%}" for name in self.corrupted_sites_}
            message = (
                f"more than {CORRUPTED_SHARE:.0%} of the entries are outliers at sites {shares}; "
                "inspect the rows of these sites, or exclude the sites"
            )
            warnings.warn(message, UserWarning, stacklevel=3)
