"""`FederatedPCA`: the principal components that the pooled rows would give."""

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
    ModelMixin,
    check_kind,
    features_anew,
    plain_params,
    saved_features,
    saved_params,
    seed_of,
    usable_header,
)
from fedpca.estimators.program import principal_components
from fedpca.message import Array
from fedpca.model import Model, load_model, model_of
from fedpca.moments import Moments
from fedpca.rank import RULES
from fedpca.run import Run
from fedpca.solvers import OPTIONS, SOLVERS, Solution
from fedpca.solvers.faps import PENALTY, STOP_RULES
from fedpca.solvers.faps_local import BY_CONDITION
from fedpca.solvers.local_power import HALVE_EVERY


class FederatedPCA(ModelMixin, BaseEstimator):  # type: ignore[misc]
    """Principal components of rows that stay at their sites.

    The result is that of `sklearn.decomposition.PCA` on the pooled rows.

    Parameters
    ----------
    n_components : int, float in (0, 1), {"auto", "mp", "gap"} or None
        How many components: a number, the fewest that explain more than a share of the variance, the
        number above the noise ("mp", the Marchenko-Pastur edge, is "auto"), the number before the
        largest gap, or as many as rows and features allow.
    solver : {"auto", "covariance", "lanczos", "power", "local-power", "faps", "merge", "average"}
        "auto" takes the exact solver that moves fewer bytes, "covariance" or "lanczos". "power",
        "local-power" and "faps", which masks what it sends, take more rounds. "merge" and "average"
        take one round, in which the coordinator sees the leading directions of each site;
        `run_.angle_bound` says how far from exact they can be.
    center : bool
        Whether components are about the mean of all sites' rows or about zero.
    scale : bool
        Whether each feature is divided by its standard deviation over all sites (a constant one by 1).
    whiten : bool
        Whether scores are divided by their standard deviations.
    tol : float
        The solver stops when ``||A'A V - V theta||_F`` is at most this part of the total variance
        (see ``stop`` for "faps").
    max_rounds : int
        Most rounds of the solver; a warning tells when they did not suffice.
    random_state : int, RandomState or None
        Seed of the solver's start.
    local_steps : int, {"decrease", "change"} or None
        For "faps": steps of subspace iteration that a site takes in each round, 5 by default; or the
        condition that ends them, a sufficient decrease of the local problem or a small change. For
        "local-power": power steps in the first rounds, 8 by default.
    halve_every : int
        For "local-power": rounds after which there are half as many local steps.
    penalty : float
        For "faps": how strongly a site's copy of the subspace is held to the common one at the start,
        as a share of its largest eigenvalue. The best one is about the square root of the gap behind
        the components, as such a share; where sites are unlike it grows by itself.
    stop : {"kkt", "objective"}
        For "faps": whether ``tol`` bounds the residual, or the relative change of the variance
        explained.
    site_components : int, float in (0, 1), {"auto", "mp", "gap"} or None
        For "merge" and "average": how many directions each site sends, or the rule by which it finds
        that itself; "merge" adds ten spare ones to it. By default as many as components, or three
        for each component with "average".
    fan_in : int or None
        For "merge": how many summaries are merged at a time, in a tree; all at once by default.
    own_means : bool
        For "merge": whether sites centre on their own means, which are merged too, in one pass and
        one round; or on the common mean, one round after it. With ``scale`` or without ``center``
        it is always the latter.
    weights : {"eigenvalues", "unweighted"}
        For "average": how directions count.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features_in_)
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarray of (n_components_,)
        The ratio is that to the variance of all features, kept or not.
    mean_, scale_ : ndarray of shape (n_features_in_,)
        Of all sites' rows; zeros without ``center`` and ones without ``scale``.
    noise_variance_ : float
        Mean variance of what is left out.
    site_variance_ratio_ : dict
        Share of each site's variance, about its own mean, that the components explain; empty where a
        site's policy keeps it to itself.
    run_ : Run
        Rounds, bytes, history, ledger, lost sites, and why the solver stopped.

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
        "solver": [StrOptions({"auto", *SOLVERS})],
        "center": ["boolean"],
        "scale": ["boolean"],
        "whiten": ["boolean"],
        "tol": [Interval(Real, 0, None, closed="left")],
        "max_rounds": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "local_steps": [
            Interval(Integral, 1, 1000, closed="both"),
            StrOptions(set(BY_CONDITION)),
            None,
        ],
        "halve_every": [Interval(Integral, 1, 2**31, closed="both")],
        "penalty": [Interval(Real, 0, 1000, closed="right")],
        "stop": [StrOptions(set(STOP_RULES))],
        "site_components": [
            Interval(Integral, 1, None, closed="left"),
            Interval(Real, 0, 1, closed="neither"),
            StrOptions(set(RULES)),
            None,
        ],
        "fan_in": [Interval(Integral, 2, None, closed="left"), None],
        "own_means": ["boolean"],
        "weights": [StrOptions({"eigenvalues", "unweighted"})],
    }

    def __init__(
        self,
        n_components: Any = None,
        *,
        solver: str = "auto",
        center: bool = True,
        scale: bool = False,
        whiten: bool = False,
        tol: float = 1e-10,
        max_rounds: int = 500,
        random_state: Any = None,
        local_steps: Any = None,
        halve_every: int = HALVE_EVERY,
        penalty: float = PENALTY,
        stop: str = "kkt",
        site_components: Any = None,
        fan_in: int | None = None,
        own_means: bool = True,
        weights: str = "eigenvalues",
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.center = center
        self.scale = scale
        self.whiten = whiten
        self.tol = tol
        self.max_rounds = max_rounds
        self.random_state = random_state
        self.local_steps = local_steps
        self.halve_every = halve_every
        self.penalty = penalty
        self.stop = stop
        self.site_components = site_components
        self.fan_in = fan_in
        self.own_means = own_means
        self.weights = weights

    def fit(self, X: Any, y: Any = None, *, sites: Any = None) -> Self:
        """Find the components of all sites' rows.

        Parameters
        ----------
        X : rows, list or dict of rows, or Federation
            One table of rows; or the rows of each site, each an array, a sparse matrix, a data
            frame, or the path of a file or folder; or a `Federation`.
        y : None
            Not used.
        sites : array of shape (n_samples,), optional
            The label of the site to which each row of one table belongs.
        """
        self._validate_params()
        with features_anew(self):
            fed = as_federation(validated(self, X), sites)
            parameters = plain_params(self)
            del parameters["whiten"], parameters["random_state"]
            parameters["options"] = self._options(parameters)
            known, solution, self.site_variance_ratio_ = fed.run(
                partial(principal_components, **parameters),
                about={"program": type(self).__name__, "parameters": parameters},
                seed=seed_of(self.random_state),
            )
        self._set_fitted(known, solution, fed.record)
        if solution.stopped == "max_rounds":
            warnings.warn(
                f"solver {fed.record.solver!r} stopped after max_rounds={self.max_rounds} before it "
                f"met tol={self.tol}; allow more rounds or a larger tol",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def fit_transform(self, X: Any, y: Any = None, *, sites: Any = None) -> Array:
        """Fit to one table of rows and give their scores."""
        if is_many_sites(X):
            raise InputError("fit_transform takes one table; fit, then transform each site's rows")
        return np.asarray(self.fit(X, sites=sites).transform(X))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a file that `fedpca.load` reads."""
        model, run = self._model(), self.run_
        header = {
            "estimator": type(self).__name__,
            "parameters": saved_params(self),
            "features": saved_features(self),
            "n_samples": self.n_samples_,
            "site_variance_ratio": self.site_variance_ratio_,
            "run": run.to_header(),
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
            estimator._set_model(model, header["n_samples"], header["features"])
            estimator.site_variance_ratio_ = header["site_variance_ratio"]
            estimator.run_ = Run.from_header(header["run"])
        return estimator

    def _options(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Take the options of solvers out of the parameters, and keep those of the one that is used."""
        defaults = {name: type(self)().get_params()[name] for s in OPTIONS.values() for name in s}
        given = {name: parameters.pop(name) for name in defaults}
        known = OPTIONS.get(self.solver, ())
        for name, value in given.items():
            if name not in known and value != defaults[name]:
                takers = " and ".join(repr(s) for s in OPTIONS if name in OPTIONS[s])
                raise InputError(
                    f"{name}={value!r} is an option of solver {takers}, not of {self.solver!r}"
                )
        if self.solver == "local-power" and isinstance(self.local_steps, str):
            raise InputError(
                f"local_steps={self.local_steps!r} is a condition of solver 'faps'; give "
                "'local-power' a number"
            )
        return {name: given[name] for name in known}

    def _set_fitted(self, known: Moments, solution: Solution, run: Run) -> None:
        model = model_of(
            solution.vectors,
            solution.eigenvalues,
            solution.energy,
            known.n,
            known.mean,
            known.scale,
        )
        self._set_model(model, known.n, known.features)
        self.run_ = run

    def _set_model(self, model: Model, n_samples: int, features: Any) -> None:
        self.components_ = model.components
        self.explained_variance_ = model.explained_variance
        self.explained_variance_ratio_ = model.explained_variance / (
            float(model.total_variance) or 1.0
        )
        self.singular_values_ = model.singular_values
        self.mean_, self.scale_ = model.mean, model.scale
        self.noise_variance_ = float(model.noise_variance)
        self.total_variance_ = float(model.total_variance)
        self.n_components_, self.n_features_in_ = model.components.shape
        self.n_samples_ = n_samples
        if features is not None:
            self.feature_names_in_ = np.array(features, dtype=object)

    def _model(self) -> Model:
        check_is_fitted(self)
        return Model(
            components=self.components_,
            explained_variance=self.explained_variance_,
            singular_values=self.singular_values_,
            mean=self.mean_,
            scale=self.scale_,
            noise_variance=np.array(self.noise_variance_),
            total_variance=np.array(self.total_variance_),
        )
