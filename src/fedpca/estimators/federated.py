"""Define `FederatedPCA`, which finds the principal components of the pooled rows."""

from __future__ import annotations

import os
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from fedpca.arrays import Array
from fedpca.estimators.files import file_header, from_header, record_in, usable_header
from fedpca.estimators.fitting import (
    as_federation,
    new_features,
    plain_params,
    refuse_many_sites,
    run_program,
    set_features,
    validated,
    warn_dominant,
    warn_rank,
    warn_uncertain,
    warn_unconverged,
)
from fedpca.estimators.linear import LinearMethods
from fedpca.linalg.rank_rules import RULES
from fedpca.models.linear import Model, load_model
from fedpca.solvers.catalogue import find_solver
from fedpca.solvers.contract import Solver
from fedpca.solvers.pca import principal_components


class FederatedPCA(LinearMethods, BaseEstimator):  # type: ignore[misc]
    """Find the principal components of rows that stay at their sites.

    The result matches `sklearn.decomposition.PCA` on the pooled rows.

    Parameters
    ----------
    n_components : int, float in (0, 1), {"auto", "mp", "gap"} or None
        The number of components to keep. A float is a share of the variance: the fit keeps the fewest
        components that explain more than this share. "auto" keeps the components that are larger than
        those of the same entries with random signs (parallel analysis). "mp" keeps the components above
        the Marchenko-Pastur edge, which assumes that all entries are equally noisy. "gap" keeps the
        components before the largest gap. None keeps as many as the rows and features allow.
    solver : str or Solver
        A solver's name, or a solver from `fedpca.solvers` with options, such as
        ``Faps(penalty=0.2)``. "auto" chooses between the exact solvers "covariance" and "lanczos",
        whichever moves fewer bytes. "power", "local-power", and "faps", which masks its messages, take
        more rounds. "tsqr" takes one round and does not square the rows, so it also finds components
        with tiny variances, but the coordinator sees each site's triangular factor. "merge" and
        "average" take one round, in which the coordinator sees each site's leading directions.
        `run_.angle_bound` bounds the error of every solver. Installed packages may add solvers.
    center : bool
        Whether to center rows on the mean of all sites' rows. Otherwise, components are about zero.
    scale : bool
        Whether to divide each feature by its standard deviation over all sites. A constant feature is
        divided by 1.
    whiten : bool
        Whether to divide scores by their standard deviations.
    tol : float
        The solver stops when ``||A'A V - V theta||_F`` is at most this share of the trace of A'A, and
        the sine of the angle to the exact components is at most a thousand times this number, unless
        `Faps` is set to stop based on the objective. Where rounding prevents that, the fit warns.
    max_rounds : int
        The maximum number of rounds. If the solver needs more, the fit warns.
    random_state : int, RandomState or None
        The seed for the solver's random start.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features_in_)
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarray of (n_components_,)
        The ratio is relative to the total variance of all features, not just the kept components.
    mean_, scale_ : ndarray of shape (n_features_in_,)
        The mean and scale of all sites' rows. The mean is zero if ``center`` is False, and the scale is
        one if ``scale`` is False.
    noise_variance_ : float
        The mean variance along the discarded directions.
    model_ : Model
        The fitted model, which transforms rows.
    site_variance_ratio_ : dict
        The share of each site's variance, about its own mean, that the components explain. The dict is
        empty if a site's policy withholds this share.
    run_ : RunRecord
        Rounds, bytes, history, ledger, lost sites, and the reason the solver stopped.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> rng = np.random.default_rng(0)
    >>> north, south = rng.normal(size=(50, 4)), rng.normal(size=(30, 4))
    >>> pca = FederatedPCA(n_components=2).fit({"north": north, "south": south})
    >>> pca.transform(north).shape
    (50, 2)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [
            Interval(Integral, 1, None, closed="left"),
            Interval(Real, 0, 1, closed="neither"),
            StrOptions(set(RULES)),
            None,
        ],
        "solver": [str, Solver],
        "center": ["boolean"],
        "scale": ["boolean"],
        "whiten": ["boolean"],
        "tol": [Interval(Real, 0, None, closed="left")],
        "max_rounds": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_components: Any = None,
        *,
        solver: str | Solver = "auto",
        center: bool = True,
        scale: bool = False,
        whiten: bool = False,
        tol: float = 1e-10,
        max_rounds: int = 500,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.center = center
        self.scale = scale
        self.whiten = whiten
        self.tol = tol
        self.max_rounds = max_rounds
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, sites: Any = None) -> Self:
        """Find the components of all sites' rows.

        Parameters
        ----------
        X : rows, list or dict of rows, or Federation
            One table of rows; a list or dict with the rows of each site; or a `Federation`. A site's
            rows can be an array, a sparse matrix, a data frame, or the path to a file or folder.
        y : None
            Ignored.
        sites : array of shape (n_samples,), optional
            The site label for each row, if X is one table.
        """
        self._validate_params()
        solver = find_solver(self.solver)
        with new_features(self):
            fed = as_federation(validated(self, X), sites)
            parameters = plain_params(self)
            del parameters["solver"], parameters["whiten"], parameters["random_state"]
            result, run = run_program(self, fed, principal_components, solver, parameters)
        solution, moments = result.solution, result.solution.moments
        model = Model.from_eigen(
            solution.vectors,
            solution.eigenvalues,
            solution.energy,
            moments.n,
            moments.mean,
            moments.scale,
        )
        self._set_model(model, moments.n, moments.features)
        self.site_variance_ratio_ = result.site_shares
        self.run_ = run
        warn_unconverged(self, run, "solver")
        if self.center:  # about zero, a mean counts as variance
            warn_dominant(run)
        if self.n_components is not None:  # all components include those without any variance
            warn_uncertain(run, len(solution.eigenvalues))
        k, most = len(solution.eigenvalues), min(moments.n - 1, moments.d)
        warn_rank(self.n_components, k, most, is_above_noise=result.is_above_noise)
        return self

    def fit_transform(self, X: Any, y: Any = None, *, sites: Any = None) -> Array:
        """Fit the model to one table of rows, and return their scores."""
        refuse_many_sites(X)
        return np.asarray(self.fit(X, sites=sites).transform(X))

    @property
    def scale_(self) -> Array:
        """Return the scale of each feature, or ones if ``scale`` is False."""
        return self._model().scale

    @property
    def total_variance_(self) -> float:
        """Return the total variance of all features."""
        return float(self._model().total_variance)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a file that `fedpca.load` can read."""
        header = {
            "site_variance_ratio": self.site_variance_ratio_,
            "run": self.run_.to_header(),
        }
        self._model().save(path, file_header(self, self.n_samples_, **header))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read the fitted estimator that `save` wrote."""
        model, header = load_model(path)
        with usable_header(path):
            estimator = from_header(cls, path, header)
            estimator._set_model(model, header["n_samples"], header["features"])
            estimator.site_variance_ratio_ = header["site_variance_ratio"]
            estimator.run_ = record_in(header)
        return estimator

    def _set_model(self, model: Model, n_samples: int, features: Any) -> None:
        """Set the fitted attributes."""
        self.model_ = model
        self.n_samples_ = n_samples
        set_features(self, model.components.shape[1], features)

    def _model(self) -> Model:
        """Return the fitted model, or raise an error if the estimator is not fitted."""
        check_is_fitted(self)
        return self.model_
