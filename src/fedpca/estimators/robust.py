"""`RobustPCA`: components that survive outliers, and where these are."""

from __future__ import annotations

import os
import warnings
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from fedpca.errors import InputError
from fedpca.estimators.inputs import as_federation, is_many_sites, validated
from fedpca.estimators.modelled import (
    check_kind,
    features_anew,
    plain_params,
    saved_features,
    saved_params,
    seed_of,
    usable_header,
)
from fedpca.estimators.robust_program import Robust, low_rank_and_sparse
from fedpca.estimators.robust_uses import RobustRowsMixin, low_rank_model
from fedpca.linalg import fix_signs
from fedpca.message import Array
from fedpca.model import Model, load_model
from fedpca.rows import some_of
from fedpca.run import Run

CORRUPTED = 0.4  # share of outliers above which a site is named


class RobustPCA(RobustRowsMixin, BaseEstimator):  # type: ignore[misc]
    """Principal components of rows that hold outliers, and missing values.

    Each site's rows are the sum of a low-rank part, with components common to all sites, and a sparse
    part of any size. Both stay at the site; what leaves it are sums that update the components.

    Parameters
    ----------
    n_components : int or None
        The rank of the low-rank part, where it is known; for a real table, as many components as are
        wanted.
    max_components : int or None
        A bound on the rank, where it is not: it is then read off where singular values fall most. A
        warning tells where they fall nowhere clearly; then all of these are taken.
    method : {"auto", "threshold", "least-squares", "dcf"}
        "threshold" needs the rank, and is exact where there is no noise and components are of like
        size. "auto" takes it, from a start by "least-squares" where its first rounds do not head for an
        exact end, or where only a bound on the rank is given. "dcf" takes its components from the
        published method, for comparison; as with the others, what they are not is then told from
        outliers by a hard threshold, and they are cut to the rank.
    center : {"median", "mean", "none"}
        About what rows are taken at first; a mean does not survive outliers. All but "dcf" then move
        it to the mean of what is none. "none" stays at zero.
    scale : bool
        Whether each feature is divided by the median distance from its median, so that outliers are
        judged alike in all of them; where most values are alike, by that of the others.
    tol : float
        The solver stops when a round turns the components by at most this, the sine of an angle. With
        "threshold" it is also enough if that is a fiftieth of what noise does to them.
    max_rounds : int
        Most rounds of the solver; a warning tells when they did not suffice. "auto" takes up to as many
        before, for its start, but not more than 25 to find the rank, or some 20 where that is given.
    local_steps : int
        For "dcf": gradient steps of a site between rounds.
    step : float or None
        For "dcf": the first step length, which decays; by default each site finds its own.
    random_state : int, RandomState or None
        Seed of the start.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features_in_)
    explained_variance_ : ndarray of shape (n_components_,)
        Variance of the low-rank part along these, without rows that are mostly outliers; with "dcf"
        about the first centre.
    mean_, scale_ : ndarray of shape (n_features_in_,)
        Centre and scale of each feature, of all sites' rows.
    threshold_ : float
        Residual beyond which an entry is an outlier, in the scale of the model.
    noise_variance_ : float
        Variance of an entry's noise, by the median size of residuals; 0 with "dcf", which does not ask.
    n_samples_ : int
        The number of rows that have a value.
    sparse_share_ : dict
        The share of outliers among each site's entries, of features that vary; empty where a policy
        keeps it to the site.
    corrupted_sites_ : list
        Sites of which so many entries are outliers that their own scores mean little.
    run_ : Run
        Rounds, bytes, history, ledger, lost sites, why the solver stopped, and as its `solver` the
        methods that ran.

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
        "method": [StrOptions({"auto", "threshold", "least-squares", "dcf"})],
        "center": [StrOptions({"median", "mean", "none"})],
        "scale": ["boolean"],
        "tol": [Interval(Real, 0, None, closed="left")],
        "max_rounds": [Interval(Integral, 1, None, closed="left")],
        "local_steps": [Interval(Integral, 1, 1000, closed="both")],
        "step": [Interval(Real, 0, None, closed="neither"), None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_components: int | None = None,
        *,
        max_components: int | None = None,
        method: str = "auto",
        center: str = "median",
        scale: bool = False,
        tol: float = 1e-9,
        max_rounds: int = 200,
        local_steps: int = 2,
        step: float | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.max_components = max_components
        self.method = method
        self.center = center
        self.scale = scale
        self.tol = tol
        self.max_rounds = max_rounds
        self.local_steps = local_steps
        self.step = step
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, sites: Any = None) -> Self:
        """Find the components of all sites' rows.

        Parameters
        ----------
        X : rows, list or dict of rows, or Federation
            As for `FederatedPCA.fit`; missing values are NaN.
        y : None
            Not used.
        sites : array of shape (n_samples,), optional
            The label of the site to which each row of one table belongs.
        """
        self._validate_params()
        self._check_ranks()
        with features_anew(self):
            rows = validated(self, X, ensure_all_finite="allow-nan")
            fed = as_federation(rows, sites)
            parameters = plain_params(self)
            del parameters["random_state"]
            found = fed.run(
                partial(low_rank_and_sparse, **parameters),
                about={"program": type(self).__name__, "parameters": parameters},
                seed=seed_of(self.random_state),
            )
        components = np.ascontiguousarray(fix_signs(found.U).T)
        model = low_rank_model(
            components, found.variance, found.mean, found.scale, found.noise_variance, found.n
        )
        self._set_model(model, found.n, found.features, found.threshold, found.shares)
        self.run_ = fed.record
        self._warn(found)
        return self

    def fit_transform(self, X: Any, y: Any = None, *, sites: Any = None) -> Array:
        """Fit to one table of rows and give their scores."""
        if is_many_sites(X):
            raise InputError("fit_transform takes one table; fit, then transform each site's rows")
        return self.fit(X, sites=sites).transform(X)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a file that `fedpca.load` reads."""
        model = self._model()
        header = {
            "estimator": type(self).__name__,
            "parameters": saved_params(self),
            "features": saved_features(self),
            "n_samples": self.n_samples_,
            "threshold": self.threshold_,
            "sparse_share": self.sparse_share_,
            "run": self.run_.to_header(),
        }
        model.save(path, header)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The fitted estimator that `save` wrote."""
        model, header = load_model(path)
        check_kind(path, header, cls.__name__)
        with usable_header(path):
            estimator = cls(**header["parameters"])
            estimator._validate_params()
            threshold = float(header["threshold"])
            if not 0 < threshold < np.inf:
                raise ValueError(f"threshold={threshold} is not above zero and finite")
            shares = dict(header["sparse_share"])
            estimator._set_model(model, header["n_samples"], header["features"], threshold, shares)
            estimator.run_ = Run.from_header(header["run"])
        return estimator

    def _check_ranks(self) -> None:
        if (self.n_components is None) == (self.max_components is None):
            raise InputError(
                f"n_components={self.n_components} and max_components={self.max_components}: give the "
                "rank, or a bound on it, and not both"
            )
        if self.method == "threshold" and self.n_components is None:
            raise InputError("method='threshold' needs n_components; 'auto' finds it from a bound")

    def _set_model(
        self, model: Model, n: int, features: Any, threshold: float, shares: dict[str, float]
    ) -> None:
        self.components_ = model.components
        self.explained_variance_ = model.explained_variance
        self.mean_, self.scale_ = model.mean, model.scale
        self.noise_variance_ = float(model.noise_variance)
        self.n_components_, self.n_features_in_ = model.components.shape
        self.n_samples_ = n
        self.threshold_ = threshold
        self.sparse_share_ = shares
        self.corrupted_sites_ = [name for name, share in shares.items() if share > CORRUPTED]
        if features is not None:
            self.feature_names_in_ = np.array(features, dtype=object)

    def _model(self) -> Model:
        check_is_fitted(self)
        return low_rank_model(
            self.components_,
            self.explained_variance_,
            self.mean_,
            self.scale_,
            self.noise_variance_,
            self.n_samples_,
        )

    def _warn(self, found: Robust) -> None:
        if self.run_.stopped == "max_rounds":
            message = (
                f"method {self.run_.solver!r} stopped after max_rounds={self.max_rounds} before it met "
                f"tol={self.tol}; allow more rounds or a larger tol, or ask for fewer components"
            )
            warnings.warn(message, ConvergenceWarning, stacklevel=3)
        if not found.rank_is_clear:
            message = (
                f"singular values up to max_components={self.max_components} fall nowhere clearly, so "
                f"the rank is not found and {self.n_components_} components are taken; give "
                "n_components if you want fewer"
            )
            warnings.warn(message, UserWarning, stacklevel=3)
        if found.lost.any():
            unnamed = [f"column {j}" for j in range(self.n_features_in_)]
            names = getattr(self, "feature_names_in_", unnamed)
            lost = [str(names[j]) for j in np.flatnonzero(found.lost)]
            message = (
                f"most entries of {some_of(lost)} are outliers; look at them, ask for more components,"
                f" or {'leave them out' if self.scale else 'use scale=True where sizes are unlike'}"
            )
            warnings.warn(message, UserWarning, stacklevel=3)
        if self.corrupted_sites_:
            shares = {name: f"{self.sparse_share_[name]:.0%}" for name in self.corrupted_sites_}
            message = (
                f"more than {CORRUPTED:.0%} of the entries are outliers at sites {shares}; look at "
                "their rows, or leave them out"
            )
            warnings.warn(message, UserWarning, stacklevel=3)
