"""`PersonalizedPCA`: components that all sites share, and components of each site's own."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from fedpca.errors import InputError
from fedpca.estimators.affinity import AffinityMixin
from fedpca.estimators.inputs import as_federation, holds_rows, is_many_sites, validated
from fedpca.estimators.modelled import (
    features_anew,
    saved_features,
    saved_params,
    seed_of,
    usable_header,
)
from fedpca.estimators.personal_program import STARTS, Personalized, shared_and_local
from fedpca.estimators.personal_rows import PersonalRowsMixin
from fedpca.federation import Federation
from fedpca.message import Array
from fedpca.personal_model import PersonalModel, load_personal
from fedpca.run import Run
from fedpca.solvers.personalized import METHODS, RETRACTIONS

FAR, ROUNDING = (
    100,
    1e-10,
)  # times tol, or this, a solver that stalls may be from its end unmentioned
ALIKE = 0.05  # misalignment below which shared and local components cannot be told apart


class PersonalizedPCA(AffinityMixin, PersonalRowsMixin, BaseEstimator):  # type: ignore[misc]
    """Components that all sites share, and components of each site's own, orthogonal to these.

    A federation is asked for sums: of what rows make of the shared components, and of projections on
    the sites' leading and local directions; beside them for the names of columns and three numbers a
    site. No site's local components are told, unless ``gather`` allows it. Where a site has a folder,
    it keeps them there, as a model of its own.

    Shared components can be told from local ones only where the latter differ between sites, which
    `misalignment_` measures. With too small an ``n_local`` shared components follow what is some site's
    own, and too large a one may take in what is shared; `search_ranks` helps to choose.

    Parameters
    ----------
    n_shared : int
        Components that all sites have in common.
    n_local : int or dict
        Components of each site's own beside them: one number, or one for each site by its name.
    method : {"power", "stiefel", "polar"}
        "power" needs no step length, and the objective never falls. "stiefel" and "polar" are the
        published gradient methods.
    start : {"stack", "average", "random"}
        "stack" takes the directions that most sites' leading ones have in common, "average" those of
        the averaged covariance, as published, which fails where local variances are much larger, and
        "random" begins anywhere.
    weights : {"site", "rows"}
        Whether every site counts alike, or by its number of rows.
    center : {"site", "common", "none"}
        Whether a site's rows are taken about its own mean, which stays there without ``scale``, about
        the mean of all sites' rows, or about zero.
    scale : bool
        Whether each feature is divided by its standard deviation over all sites (a constant one by 1),
        for which the sums of columns are asked.
    retraction : {"polar", "qr"}
        For "stiefel" and "polar": how a basis is made orthonormal.
    step : float or None
        For "stiefel" and "polar": the step length at the start; by default about 1 over the largest
        eigenvalue of any site's covariance.
    tol : float
        "power" stops when the next step promises to add at most this part of the variance along the
        shared components, "stiefel" and "polar" when the last one did. Their steps are short where a
        site's variance is large, so that this need not be the end.
    max_rounds : int
        Most rounds of the solver; a warning tells when they did not suffice.
    gather : bool or None
        Whether the coordinator may see the local components of single sites. By default it may where
        ``fit`` was given the rows themselves, and not where it was given a `Federation` or sites.
    random_state : int, RandomState or None
        Seed of what is random in the start.

    Attributes
    ----------
    components_ : ndarray of shape (n_shared, n_features_in_)
        The shared components.
    explained_variance_ : ndarray of shape (n_shared,)
        Variance along these, on average over sites, or over rows with ``weights="rows"``. Variances are
        mean squares here: sums of squares over n, as in the paper.
    local_components_, local_variance_ : dict
        The components of each site that is known here, ``(r, n_features_in_)``, and the variance along
        them. A site whose rows have fewer directions than asked for has fewer.
    site_means_ : dict
        About which each site's rows are taken.
    site_variance_ : dict
        The share of each site's variance that is "shared", "local" and "left"; empty where a policy
        keeps it to the site.
    misalignment_ : float
        How much local components differ: 1 less the largest eigenvalue of the mean of the projections
        on them. Near 0 the separation means nothing, and a warning says so.
    objective_ : float
        Variance along shared and local components, on average over sites.
    scale_ : ndarray of shape (n_features_in_,)
    run_ : Run
        Rounds, bytes, history, ledger, lost sites, and why the solver stopped.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import PersonalizedPCA
    >>> rng = np.random.default_rng(0)
    >>> shared, *own = np.eye(4)[:3]
    >>> sites = {
    ...     name: rng.normal(size=(50, 2)) @ [3 * shared, 2 * own[i]] + rng.normal(size=(50, 4)) / 9
    ...     for i, name in enumerate(["north", "south"])
    ... }
    >>> pca = PersonalizedPCA(n_shared=1, n_local=1).fit(sites)
    >>> abs(pca.components_).round(1)
    array([[1., 0., 0., 0.]])
    >>> pca.transform(sites["north"], "north").shape
    (50, 2)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_shared": [Interval(Integral, 1, None, closed="left")],
        "n_local": [Interval(Integral, 1, None, closed="left"), dict],
        "method": [StrOptions(set(METHODS))],
        "start": [StrOptions(set(STARTS))],
        "weights": [StrOptions({"site", "rows"})],
        "center": [StrOptions({"site", "common", "none"})],
        "scale": ["boolean"],
        "retraction": [StrOptions(set(RETRACTIONS))],
        "step": [Interval(Real, 0, None, closed="neither"), None],
        "tol": [Interval(Real, 0, None, closed="left")],
        "max_rounds": [Interval(Integral, 1, None, closed="left")],
        "gather": ["boolean", None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_shared: int,
        n_local: Any,
        *,
        method: str = "power",
        start: str = "stack",
        weights: str = "site",
        center: str = "site",
        scale: bool = False,
        retraction: str = "polar",
        step: float | None = None,
        tol: float = 1e-10,
        max_rounds: int = 500,
        gather: bool | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_shared = n_shared
        self.n_local = n_local
        self.method = method
        self.start = start
        self.weights = weights
        self.center = center
        self.scale = scale
        self.retraction = retraction
        self.step = step
        self.tol = tol
        self.max_rounds = max_rounds
        self.gather = gather
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, sites: Any = None) -> Self:
        """Find what sites share and what each has of its own.

        Parameters
        ----------
        X : dict or list of rows, Federation, or rows
            The rows of each site, each an array, a sparse matrix, a data frame, or the path of a file
            or folder; or a `Federation`; or one table with ``sites``.
        y : None
            Not used.
        sites : array of shape (n_samples,), optional
            The label of the site to which each row of one table belongs.
        """
        self._validate_params()
        if self.method == "power" and (self.step is not None or self.retraction != "polar"):
            raise InputError(
                f"step={self.step} and retraction={self.retraction!r} are options of methods 'stiefel' "
                "and 'polar', not of 'power'"
            )
        with features_anew(self):
            X = validated(self, X)
            gather = holds_rows(X) if self.gather is None else self.gather
            fed = as_federation(X, sites)
            parameters = self._parameters(fed)
            program = partial(shared_and_local, parameters=dict(parameters))
            del parameters["random_state"]
            parameters["gather"] = gather
            found = fed.run(
                partial(program, **parameters),
                about={"program": type(self).__name__, "parameters": parameters},
                seed=seed_of(self.random_state),
            )
        self._set_model(found.model, found.n, found.features)
        self._set_reading(found, fed.record)
        self._warn()
        return self

    def fit_transform(self, X: Any, y: Any = None, *, sites: Any = None) -> Array:
        """Fit to one table of rows and give their scores."""
        if is_many_sites(X):
            raise InputError("fit_transform takes one table; fit, then transform each site's rows")
        return self.fit(X, sites=sites).transform(X, sites)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a file that `fedpca.load` reads."""
        check_is_fitted(self)
        header = {
            "parameters": self._parameters(),
            "features": saved_features(self),
            "n_samples": self.n_samples_,
            "objective": self.objective_,
            "misalignment": self.misalignment_,
            "site_variance": self.site_variance_,
            "run": self.run_.to_header(),
        }
        self.model_.save(path, header)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The fitted estimator that `save`, or a site, wrote."""
        model, header = load_personal(path)
        with usable_header(path):
            estimator = cls(**header["parameters"])
            estimator._validate_params()
            estimator._set_model(model, header["n_samples"], header["features"])
            # a site's own file knows nothing of the others
            estimator.objective_ = float(header.get("objective", "nan"))
            estimator.misalignment_ = float(header.get("misalignment", "nan"))
            shares = {name: part.shares for name, part in model.parts.items()}
            estimator.site_variance_ = dict(header.get("site_variance", shares))
            estimator.run_ = Run.from_header(header["run"]) if "run" in header else Run()
        return estimator

    def _parameters(self, fed: Federation | None = None) -> dict[str, Any]:
        """The parameters as plain values, with a number for each site of ``fed``."""
        parameters = saved_params(self)
        if isinstance(self.n_local, Mapping):
            given = {str(name): rank for name, rank in self.n_local.items()}
            for name, rank in given.items():
                if not isinstance(rank, Integral) or rank < 1:
                    raise InputError(f"n_local[{name!r}]={rank!r} is not a number of at least 1")
            parameters["n_local"] = {name: int(rank) for name, rank in given.items()}
            if fed is not None and set(given) != set(fed.engine.names):
                raise InputError(
                    f"n_local has numbers for {sorted(given)}, and the sites are "
                    f"{sorted(fed.engine.names)}"
                )
        return parameters

    def _set_model(self, model: PersonalModel, n_samples: int, features: Any) -> None:
        self.model_ = model
        self.components_ = model.components
        self.explained_variance_ = model.variance
        self.scale_ = model.scale
        self.local_components_ = {name: part.components for name, part in model.parts.items()}
        self.local_variance_ = {name: part.variance for name, part in model.parts.items()}
        self.site_means_ = {name: part.mean for name, part in model.parts.items()}
        self.n_features_in_ = model.components.shape[1]
        self.n_samples_ = n_samples
        if features is not None:
            self.feature_names_in_ = np.array(features, dtype=object)

    def _set_reading(self, found: Personalized, run: Run) -> None:
        self.objective_, self.misalignment_ = found.objective, found.misalignment
        self.site_variance_ = found.site_variance
        self.run_ = run

    def _warn(self) -> None:
        if self.run_.stopped == "max_rounds":
            warnings.warn(
                f"method {self.method!r} stopped after max_rounds={self.max_rounds} before it met "
                f"tol={self.tol}; allow more rounds or a larger tol",
                ConvergenceWarning,
                stacklevel=3,
            )
        residuals = [h["residual"] for h in self.run_.history if h["residual"] is not None]
        if self.run_.stopped == "stalled" and residuals[-1] > FAR * max(self.tol, ROUNDING):
            warnings.warn(
                f"method {self.method!r} stopped where no step raises the objective, although the last "
                f"one was to add {residuals[-1]:.1e} of the shared variance",
                ConvergenceWarning,
                stacklevel=3,
            )
        if self.misalignment_ < ALIKE:
            warnings.warn(
                f"misalignment_={self.misalignment_:.2g} is below {ALIKE}: the sites' own components "
                "have a direction in common, so that shared and local ones cannot be told apart. "
                "Use a smaller n_local or a larger n_shared, or more sites",
                UserWarning,
                stacklevel=3,
            )
