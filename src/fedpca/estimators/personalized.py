"""Define `PersonalizedPCA`, which finds shared components and each site's local components."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from fedpca.arrays import Array, Arrays
from fedpca.errors import InputError
from fedpca.estimators.files import estimator_from_header, file_header, record_in, usable_header
from fedpca.estimators.fitting import (
    as_federation,
    holds_rows,
    is_path,
    matching_rows,
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
from fedpca.estimators.frames import rows_like, sites_framed
from fedpca.estimators.linear import tags_for_rows
from fedpca.facts import (
    LOCAL,
    NUMBER,
    SHARE,
    Column,
    Fact,
    Records,
    Sections,
    about,
    cautions,
    components_of,
    names_of_features,
    records_of_components,
)
from fedpca.models import site_similarity
from fedpca.models.personalized import PersonalizedModel, Split, personalized_in
from fedpca.models.site_similarity import ClusterEvidence
from fedpca.rows.open import is_dask
from fedpca.solvers.catalogue import PERSONALIZED, find_solver
from fedpca.solvers.personalized.contract import PersonalizedSolver
from fedpca.solvers.personalized.local_ranks import LocalRanks
from fedpca.solvers.personalized.program import shared_and_local
from fedpca.solvers.personalized.starts import STARTS
from fedpca.storage.tensor_file import read_arrays

STALL_TIMES_TOL = 100  # no warning for a stall if the residual is at most this many times tol
STALL_ROUNDING = 1e-10  # replaces a smaller tol, which rounding may make unreachable
MIN_MISALIGNMENT = 0.05  # below this, shared and local components cannot be distinguished


class PersonalizedPCA(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Find components that all sites share, and local components for each site.

    Each site's local components are orthogonal to the shared components.

    The coordinator asks for sums: products of rows with the shared components, and projections onto the
    sites' leading and local directions. Each site also sends its column names and three numbers.
    No site sends its local components unless ``gather`` allows it. If a site has a folder, the site
    keeps its local components there, in its own model file.

    Shared and local components can be distinguished only if the local ones differ between sites, which
    `misalignment_` measures. If ``n_local`` is too small, shared components follow some site's local
    directions. If ``n_local`` is too large, local components may absorb shared directions. Use
    `search_ranks` to choose the numbers.

    Parameters
    ----------
    n_shared : int
        The number of components that all sites share, or 0.
    n_local : int or dict
        The number of local components: one number for all sites, or a dict that maps each site's name
        to a number. A number can be 0.
    solver : {"power", "stiefel", "polar"}, or a solver from `fedpca.solvers`
        "power" needs no step length, and its objective never decreases. "stiefel" and "polar" are the
        published gradient methods. `Stiefel` and `Polar` take a step length and a retraction.
    start : {"stack", "average", "random"}
        "stack" starts from the directions that the leading directions of most sites have in common.
        "average" starts from the leading directions of the averaged covariance, as published; this
        fails if local variances are much larger than shared ones. "random" starts from random
        directions.
    n_init : int
        The number of starts for "power", which run side by side in the same rounds; the best result is
        kept. If ``start`` is "random", all starts are random. Otherwise, the first start is ``start``,
        the second is the other one of "stack" and "average", and the rest are random. Messages grow
        with the number of starts. "stiefel" and "polar" use one start.
    weights : {"site", "rows"}
        Whether to weight all sites equally or by their row counts.
    center : {"site", "common", "none"}
        Whether to center a site's rows on the site's own mean, on the mean of all sites' rows, or not
        at all. A site's own mean stays at the site unless ``scale`` is set.
    scale : bool
        Whether to divide each feature by its standard deviation over all sites. A constant feature is
        divided by 1. If True, the coordinator asks sites for their column sums.
    tol : float
        A share of the variance along the shared components. "power" stops when the next step is
        predicted to add at most this share. "stiefel" and "polar" stop when the last step added at most
        this share. Their steps are short if a site's variance is large, so they may stop too early.
    max_rounds : int
        The maximum number of rounds. If the solver needs more, the fit warns.
    gather : bool or None
        Whether the coordinator may see each site's local components. By default, it may if ``fit`` is
        given the rows themselves, but not if ``fit`` is given a `Federation` or sites.
    random_state : int, RandomState or None
        The seed for random starts.

    Attributes
    ----------
    components_ : ndarray of shape (n_shared, n_features_in_)
        The shared components.
    explained_variance_ : ndarray of shape (n_shared,)
        The variance along the shared components, averaged over sites, or over rows with
        ``weights="rows"``. Here, as in the published methods, a variance is a mean square: a sum of
        squares divided by n.
    explained_variance_ratio_ : ndarray of shape (n_shared,)
        These variances as shares of `total_variance_`, which is the variance of all features, averaged
        in the same way.
    local_components_, local_variance_ : dict
        The local components of each site in the model, ``(r, n_features_in_)``, and the variance along
        them. A site has fewer local components than requested if its rows span fewer directions.
    site_means_ : dict
        The mean that is subtracted from each site's rows.
    site_variance_ : dict
        The shares of each site's variance that are "shared", "local", and "left" (neither). The dict is
        empty if a site's policy withholds these shares, or if the fit used secure sums.
    left_out_ : dict or None
        For genotypes, the variants that the sites left out, and the reason for each. None for other
        rows, and for a model from a file.
    misalignment_ : float
        How much local components differ between sites: 1 minus the largest eigenvalue of the mean
        projection onto them. Near 0, the separation is meaningless, and the fit warns. Without local
        components, the value is 1.
    ambiguity_ : float
        How far other starts ended from `components_`: the largest sine of the angle to the result of a
        start whose objective is at most 0.1% lower. If this sine is above 0.1, the rows do not
        determine the shared components, and the fit warns. Smaller values count as 0.
    objective_ : float
        The variance along shared and local components, averaged over sites.
    scale_ : ndarray of shape (n_features_in_,)
        The scale of each feature, or ones if ``scale`` is False.
    run_ : RunRecord
        Rounds, bytes, history, ledger, lost sites, and the reason the solver stopped.

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
        "n_shared": [Interval(Integral, 0, None, closed="left")],
        "n_local": [Interval(Integral, 0, None, closed="left"), dict],
        "solver": [StrOptions(set(PERSONALIZED)), PersonalizedSolver],
        "start": [StrOptions(set(STARTS))],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "weights": [StrOptions({"site", "rows"})],
        "center": [StrOptions({"site", "common", "none"})],
        "scale": ["boolean"],
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
        solver: str | PersonalizedSolver = "power",
        start: str = "stack",
        n_init: int = 4,
        weights: str = "site",
        center: str = "site",
        scale: bool = False,
        tol: float = 1e-10,
        max_rounds: int = 500,
        gather: bool | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_shared = n_shared
        self.n_local = n_local
        self.solver = solver
        self.start = start
        self.n_init = n_init
        self.weights = weights
        self.center = center
        self.scale = scale
        self.tol = tol
        self.max_rounds = max_rounds
        self.gather = gather
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, sites: Any = None) -> Self:
        """Find the components that all sites share, and the local components of each site.

        Parameters
        ----------
        X : dict or list of rows, Federation, or rows
            A dict or list with the rows of each site; a `Federation`; or one table with ``sites``. A
            site's rows can be an array, a sparse matrix, a data frame, a Dask collection, or the path
            to a file or folder.
        y : None
            Ignored.
        sites : array of shape (n_samples,) or str, optional
            The site label for each row, if X is one table; or the name of the column that holds the
            labels, which is then not a feature.
        """
        self._validate_params()
        solver = find_solver(self.solver, "PersonalizedPCA")
        with new_features(self):
            X, sites = without_labels(X, sites)
            X = validated(self, X)
            gather = holds_rows(X) if self.gather is None else self.gather
            fed = as_federation(X, sites)
            ranks = LocalRanks.of(self.n_local)
            ranks.check_sites(fed.engine.names)
            for_files = self._header(0)["parameters"]
            parameters = plain_params(self) | {"n_local": ranks.plain, "gather": gather}
            del parameters["solver"], parameters["random_state"]
            result, run = run_program(
                self, fed, shared_and_local, solver, parameters, for_files=for_files
            )
        self._set_model(result.model, result.n, result.features)
        self.total_variance_ = result.total_variance
        self.objective_, self.misalignment_ = result.objective, result.misalignment
        self.ambiguity_ = result.ambiguity
        self.site_variance_ = result.site_variance
        self.left_out_ = result.left_out
        self.run_ = run
        warn_unconverged(self, run, "solver")
        warn_dominant(run)
        self._warn()
        return self

    def fit_transform(self, X: Any, y: Any = None, *, sites: Any = None) -> Array:
        """Fit the model to one table of rows, and return their scores."""
        refuse_many_sites(X)
        X, sites = without_labels(X, sites)
        return self.fit(X, sites=sites).transform(X, sites)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the scores' names: shared0, shared1, and so on, and then local0, local1, and so on."""
        check_is_fitted(self)
        return np.array(self.model_.score_names, dtype=object)

    def transform(self, X: Any, site: Any = None) -> Array:
        """Return the rows' scores, shared and then local, ``(n, n_shared + n_local)``.

        ``site`` is the name of the rows' site, or one label for each row. You can omit it if the model
        holds a single site. Columns for components that a site lacks are zero. ``X`` holds the rows, or
        is the path to a file or folder with the rows of one site.
        """
        if reads_by_name(X) and (is_path(X) or isinstance(site, str | None)):
            check_is_fitted(self)
            if not isinstance(site, str | None):
                raise InputError(
                    "X is a file, so site must be the name of one site; to use a label for each row, "
                    "pass the rows themselves"
                )
            score = partial(self.model_.transform, site=site)
            return scores_of_file(self, X, score, self.model_.n_scores)
        if is_dask(X):
            check_is_fitted(self)
            return scores_of_dask(X, partial(self.transform, site=site), self.model_.n_scores)
        rows = self._rows(X)
        return self.model_.transform(rows, site).astype(rows.dtype, copy=False)

    def inverse_transform(self, X: Any, site: Any = None) -> Array:
        """Return the rows that have these scores and lie in the span of the site's components."""
        check_is_fitted(self)
        scores = check_array(X, dtype=[np.float64, np.float32])
        if scores.shape[1] != self.model_.n_scores:
            raise InputError(
                f"scores have {scores.shape[1]} columns instead of {self.model_.n_scores}; pass one "
                "column per component"
            )
        return self.model_.inverse_transform(scores, site).astype(scores.dtype, copy=False)

    def split(self, X: Any, site: Any = None) -> Split:
        """Split centered rows into a shared part, a local part, and the remainder, ``left``.

        The parts are in the rows' original units. They are orthogonal once divided by `scale_`. If X is
        a data frame, so is each part, with the same index and columns.
        """
        parts = self.model_.split(self._rows(X), site)
        return Split(*(rows_like(self, X, part) for part in parts))

    def reconstruction_errors(self, X: Any, sites: Any = None) -> dict[str, float]:
        """Return the mean squared length of the remainder of each site's rows.

        The remainder is the part outside the site's components, divided by `scale_`. ``X`` is a dict
        that maps each site to its rows, or one table with ``sites``, which has one label for each row.
        The rows need not be those of the fit.
        """
        if not isinstance(X, Mapping) or sp.issparse(X):  # scipy's DOK format is a dict
            rows = self._rows(X)
            chosen = self.model_.by_site(sites, rows.shape[0])
            return {name: self.model_.error(rows[own], name) for name, own in chosen}
        return {
            str(name): self.model_.error(self._rows(rows), str(name)) for name, rows in X.items()
        }

    def add_site(self, name: str, X: Any, n_local: int | None = None) -> Self:
        """Add a site that was not in the fit, and find its local components from its rows.

        ``X`` holds the site's rows or their path. ``n_local`` is the number of local components for the
        site, and defaults to the number used in the fit. The shared components, `objective_`,
        `misalignment_`, and `n_samples_` do not change.
        """
        check_is_fitted(self)
        name = str(name)
        rank = LocalRanks.of(self.n_local if n_local is None else n_local).at(name)
        if name in self.local_components_:
            raise InputError(
                f"site {name!r} is already in the model; use a different name for the new site"
            )
        d, features = self.n_features_in_, getattr(self, "feature_names_in_", None)
        rows = matching_rows(self, X)
        LocalRanks.of(rank).check_features(len(self.components_), d)
        model = self.model_.with_site(name, rows, rank)
        self._set_model(model, self.n_samples_, features)
        self.site_variance_[name] = self.model_.parts[name].shares
        return self

    def site_affinity(self) -> Any:
        """Return the affinity of each pair of sites, from 0 to 1, ``(n_sites, n_sites)``.

        The affinity is 1 if the local components of two sites span the same space. Sites are in the
        order of `local_components_`. This method, `cluster_sites`, and `site_map` omit sites without
        local components. After ``set_output(transform="pandas")`` or ``"polars"``, this method and
        `site_map` return data frames with the sites' names.
        """
        sites = self._sites_with_components()
        affinity = site_similarity.site_affinity(sites)
        return sites_framed(self, affinity, list(sites), list(sites))

    def cluster_sites(self, n_clusters: int, random_state: Any = 0) -> dict[str, int]:
        """Group sites with similar local components, using spectral clustering of their affinities."""
        return site_similarity.cluster_sites(
            self._sites_with_components(), n_clusters, random_state
        )

    def cluster_evidence(
        self, n_clusters: int, *, n_draws: int = 200, random_state: Any = 0
    ) -> ClusterEvidence:
        """Group sites as `cluster_sites` does, and test whether the groups are real.

        Even sites without groups can be divided into groups. The groups are therefore compared with
        those of ``n_draws`` sets of points from one population with the same principal variances. If
        ``p_value`` is above 0.05, sites without groups would often look just as grouped. Fewer than
        about six sites are too few to tell.
        """
        return site_similarity.cluster_evidence(
            self._sites_with_components(), n_clusters, n_draws, random_state
        )

    def site_map(self, n_dimensions: int = 2) -> Any:
        """Map each site to a point with multidimensional scaling, ``(n_sites, n_dimensions)``.

        Distances between points approximate the distances between the sites' subspaces.
        """
        sites = self._sites_with_components()
        points = site_similarity.site_points(sites, n_dimensions)
        return sites_framed(self, points, list(sites), [f"x{i}" for i in range(n_dimensions)])

    def facts(self) -> Sections:
        """Return what the model holds and how it was fitted, as sections of `fedpca.facts`."""
        check_is_fitted(self)
        names = names_of_features(getattr(self, "feature_names_in_", None), self.n_features_in_)
        labels = [f"shared{i}" for i in range(len(self.components_))]
        components = components_of(
            self.explained_variance_, self.total_variance_, self.components_, names, labels=labels
        )
        for site, part in self.model_.parts.items():
            labels = [f"local{i}" for i in range(len(part.variance))]
            components += components_of(
                part.variance, part.total, part.components, names, labels=labels, site=site
            )
        ambiguous = "Different shared components are equally good; see ambiguity_ of the model."
        misalignment = Fact(
            "misalignment",
            self.misalignment_ if self.run_.history else None,  # a site's own file has none
            NUMBER,
            note="how much local components differ between sites; near 0, shared and local components "
            "cannot be told apart",
        )
        shares = [
            (
                name,
                len(self.local_components_[name]) if name in self.local_components_ else None,
                *(each[part] for part in ("shared", "local", "left")),  # a file may sort its keys
            )
            for name, each in self.site_variance_.items()
        ]
        return (
            about(
                "PersonalizedPCA", self.n_samples_, components, self.n_features_in_, misalignment
            ),
            cautions([*self.run_.cautions(), *([ambiguous] if self.ambiguity_ > 0 else [])]),
            records_of_components(components),
            Records(
                "site_variance",
                (
                    Column("site"),
                    Column("n_local", LOCAL, "local components"),
                    Column("shared", SHARE),
                    Column("local", SHARE),
                    Column("left", SHARE, "remainder"),
                ),
                shares,
                "Share of each site's variance",
                by_first=True,
            ),
            *self.run_.facts("PersonalizedPCA"),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a file that `fedpca.load` can read."""
        check_is_fitted(self)
        header = {
            "total_variance": self.total_variance_,
            "objective": self.objective_,
            "misalignment": self.misalignment_,
            "ambiguity": self.ambiguity_,
            "site_variance": self.site_variance_,
            "run": self.run_.to_header(),
        }
        self.model_.save(path, self._header(self.n_samples_, **header))

    def save_site(self, site: str, path: str | os.PathLike[str]) -> None:
        """Write the shared components and one site's local components, as the site itself would.

        The file holds nothing about other sites, so you can give the file to the site.
        """
        check_is_fitted(self)
        target = self.run_.log_normalized
        more = {"log_normalized": target} if target else {}
        header = self._header(self.n_samples_, total_variance=self.total_variance_, **more)
        self.model_.only(str(site)).save(path, header)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a fitted estimator that `save` or a site wrote."""
        return cls._from_file(path, *read_arrays(path, "model"))

    @classmethod
    def _from_file(
        cls, path: str | os.PathLike[str], arrays: Arrays, header: dict[str, Any]
    ) -> Self:
        """Return the fitted estimator in a file that has been read."""
        model = personalized_in(path, arrays, header)
        with usable_header(path):
            estimator = estimator_from_header(cls, path, header)
            estimator._set_model(model, header["n_samples"], header["features"])
            estimator.total_variance_ = float(header.get("total_variance", "nan"))
            # A file that a site wrote has no information about other sites.
            estimator.objective_ = float(header.get("objective", "nan"))
            estimator.misalignment_ = float(header.get("misalignment", "nan"))
            estimator.ambiguity_ = float(header.get("ambiguity", "nan"))
            shares = {name: part.shares for name, part in model.parts.items()}
            estimator.site_variance_ = dict(header.get("site_variance", shares))
            estimator.left_out_ = None
            estimator.run_ = record_in(header)
        return estimator

    def _header(self, n_samples: int, **more: Any) -> dict[str, Any]:
        """Return a file header, with ``n_local`` as plain values."""
        header = file_header(self, n_samples, **more)
        header["parameters"]["n_local"] = LocalRanks.of(self.n_local).plain
        return header

    def _set_model(self, model: PersonalizedModel, n_samples: int, features: Any) -> None:
        """Set the fitted attributes."""
        self.model_ = model
        self.components_ = model.components
        self.explained_variance_ = model.variance
        self.scale_ = model.scale
        self.local_components_ = {name: part.components for name, part in model.parts.items()}
        self.local_variance_ = {name: part.variance for name, part in model.parts.items()}
        self.site_means_ = {name: part.mean for name, part in model.parts.items()}
        self.n_samples_ = n_samples
        set_features(self, model.components.shape[1], features)

    @property
    def explained_variance_ratio_(self) -> Array:
        """Return each shared component's share of the variance of all features."""
        check_is_fitted(self)
        return np.asarray(self.explained_variance_ / (self.total_variance_ or 1.0))

    def __sklearn_tags__(self) -> Any:
        return tags_for_rows(super().__sklearn_tags__())

    def _sites_with_components(self) -> dict[str, Array]:
        """Return the local components of each site that has any."""
        check_is_fitted(self)
        sites = {name: V for name, V in self.local_components_.items() if len(V)}
        if not sites:
            raise InputError(
                "the model has no local components; fit with gather=True and n_local above 0"
            )
        return sites

    def _rows(self, X: Any) -> Any:
        """Check new rows as scikit-learn does, and return them."""
        check_is_fitted(self)
        return new_rows(self, X)

    def _warn(self) -> None:
        """Warn if the solver stalled early, if optima disagree, or if the sites are too similar."""
        residuals = [h["residual"] for h in self.run_.history if h["residual"] is not None]
        if self.run_.stop_reason == "stalled" and residuals[-1] > STALL_TIMES_TOL * max(
            self.tol, STALL_ROUNDING
        ):
            warnings.warn(
                f"method {self.run_.solver!r} stopped because no step increased the objective, but its "
                f"last residual is {residuals[-1]:.1e} of the shared variance; try a different start",
                ConvergenceWarning,
                stacklevel=3,
            )
        if self.ambiguity_:
            warnings.warn(
                f"ambiguity_={self.ambiguity_:.2g}: another start found different shared components "
                "that are as good to within 0.1%, so the rows do not determine the shared components; "
                "use different ranks, or increase n_init and compare the results",
                UserWarning,
                stacklevel=3,
            )
        if self.misalignment_ < MIN_MISALIGNMENT and self.n_shared:
            warnings.warn(
                f"misalignment_={self.misalignment_:.2g} is below {MIN_MISALIGNMENT}: the sites' local "
                "components have a direction in common, so shared and local components cannot be "
                "distinguished. Use a smaller n_local, a larger n_shared, or more sites",
                UserWarning,
                stacklevel=3,
            )
