"""Define `FederatedPCA`, which finds the principal components of the pooled rows."""

from __future__ import annotations

import os
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from fedpca.arrays import Array, Arrays
from fedpca.errors import InputError
from fedpca.estimators.files import estimator_from_header, file_header, record_in, usable_header
from fedpca.estimators.fitting import (
    as_federation,
    new_features,
    plain_params,
    reads_by_name,
    refuse_many_sites,
    run_program,
    scores_of_dask,
    scores_of_file,
    set_features,
    validated,
    warn_dominant,
    warn_noise,
    warn_rank,
    warn_uncertain,
    warn_unconverged,
    without_labels,
)
from fedpca.estimators.linear import LinearMethods
from fedpca.estimators.weights import without_column
from fedpca.facts import (
    DATA,
    SHARE,
    Column,
    Fact,
    Records,
    Sections,
    about,
    cautions,
    records_of_components,
)
from fedpca.linalg.rank_rules import RULES
from fedpca.models.control_limits import (
    ALPHA,
    ControlLimits,
    RowFlags,
    checked_traces,
    control_limits,
    t2_and_q,
)
from fedpca.models.linear import Model, linear_model_in
from fedpca.privacy.gaussian import Privacy
from fedpca.rows.gaps import MISSING, filled, has_gaps
from fedpca.rows.in_memory import canonical, is_sparse
from fedpca.rows.open import is_dask
from fedpca.solvers.catalogue import find_solver
from fedpca.solvers.contract import Solver
from fedpca.solvers.pca import MAX_MAF, principal_components
from fedpca.solvers.private.program import private_components
from fedpca.solvers.standardize import BINOMIAL
from fedpca.storage.tensor_file import read_arrays


class FederatedPCA(LinearMethods, BaseEstimator):  # type: ignore[misc]
    """Find the principal components of rows that stay at their sites.

    The result matches `sklearn.decomposition.PCA` on the pooled rows.

    Parameters
    ----------
    n_components : int, float in (0, 1), {"auto", "mp", "gap"} or None
        The number of components to keep. A float is a share of the variance: the fit keeps the fewest
        components that explain more than this share. "auto" compares the components with those of the
        same entries with random signs, and keeps those with more variance (parallel analysis). "mp"
        keeps the components above the Marchenko-Pastur edge, and assumes that all entries are equally
        noisy. "gap" keeps the components before the largest gap between successive variances. None
        keeps as many components as the rows and features allow.
    solver : str or Solver
        A solver's name, or a solver from `fedpca.solvers` with options, such as
        ``Faps(penalty=0.2)``. "auto" chooses between "covariance" and "lanczos", which are both exact,
        and takes the solver that moves fewer bytes. "subspace-iteration", "local-power", and "faps",
        which masks its messages, take more rounds. "tsqr" takes one round and does not square the
        rows, so it also finds components with tiny variances, but the coordinator sees each site's
        triangular factor. "merge" and "average" take one round, in which the coordinator sees each
        site's leading directions.
        `run_.angle_bound` bounds the error of every solver. Installed packages may add solvers.
    center : bool
        Whether to center rows on the mean of all sites' rows. If not, components describe how rows
        differ from zero.
    scale : bool or "binomial"
        Whether to divide each feature by its standard deviation over all sites. A constant feature is
        divided by 1. "binomial" is for genotypes: allele counts are divided by ``sqrt(2 p (1 - p))``,
        as in plink2, where p is the allele's frequency over all sites.
    whiten : bool
        Whether to divide scores by their standard deviations.
    tol : float
        The solver stops when ``||A'A V - V theta||_F`` is at most this share of the trace of A'A, and
        the sine of the angle to the exact components is at most a thousand times this number. If
        rounding makes that impossible, the fit warns. `Faps` can stop based on the objective instead.
    max_rounds : int
        The maximum number of rounds. If the solver needs more, the fit warns.
    random_state : int, RandomState or None
        The seed for the solver's random start.
    missing : {"error", "mean", "drop"}
        What to do with missing values, which are NaN. "error" refuses them. "mean" fills them with the
        mean of the feature's values at all sites: the result is that of the pooled rows with column
        means filled in, and `transform` fills in the same means. With "drop", each site leaves out its
        rows that have a missing value. Filled-in means make variances smaller; `RobustPCA` estimates
        the missing values instead.
    maf : float, optional
        Variants whose rarer allele has a lower frequency than this over all sites are left out. This
        applies only to genotypes in .bed files.
    privacy : Privacy, optional
        A promise of differential privacy, as in ``Privacy(epsilon=1, delta=1e-6, row_bound=8)``. Sites
        then add noise to the count, the mean, and the scatter, and send nothing else about their rows.
        The solver "covariance" sums the scatter. The solver "subspace-iteration", which suits many
        features, sums a few products instead. All attributes, even `n_samples_`, follow from these
        noisy sums. With secure sums, the sites share the noise. If you pass the rows of several sites
        to `fit`, it uses secure sums, unless the rows are Dask collections.

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
    residual_traces_ : ndarray of shape (3,) or None
        How variance is spread outside the components: the traces of the first three powers of the
        residual covariance, scaled to a total variance of 1. The limits of `flag_rows` follow from
        these traces. Only fits with the solver "covariance" and at most 500 features compute them.
    site_variance_ratio_ : dict
        The share of each site's variance, about the site's own mean, that the components explain. The
        dict is empty if a site's policy withholds this share, or if the fit used secure sums.
    n_samples_ : int
        The number of rows in the fit, not counting dropped rows or rows with weight zero.
    left_out_ : dict or None
        For genotypes, the variants that the sites left out, and the reason for each. None for other
        rows, and for a model from a file.
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
        "scale": ["boolean", StrOptions({BINOMIAL})],
        "whiten": ["boolean"],
        "tol": [Interval(Real, 0, None, closed="left")],
        "max_rounds": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "missing": [StrOptions(set(MISSING))],
        "maf": [Interval(Real, 0, MAX_MAF, closed="right"), None],
        "privacy": [Privacy, None],
    }

    def __init__(
        self,
        n_components: Any = None,
        *,
        solver: str | Solver = "auto",
        center: bool = True,
        scale: bool | str = False,
        whiten: bool = False,
        tol: float = 1e-10,
        max_rounds: int = 500,
        random_state: Any = None,
        missing: str = "error",
        maf: float | None = None,
        privacy: Privacy | None = None,
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.center = center
        self.scale = scale
        self.whiten = whiten
        self.tol = tol
        self.max_rounds = max_rounds
        self.random_state = random_state
        self.missing = missing
        self.maf = maf
        self.privacy = privacy

    def fit(self, X: Any, y: Any = None, *, sites: Any = None, sample_weight: Any = None) -> Self:
        """Find the components of all sites' rows.

        Parameters
        ----------
        X : rows, list or dict of rows, or Federation
            One table of rows; a list or dict with the rows of each site; or a `Federation`. A site's
            rows can be an array, a sparse matrix, a data frame, or the path to a file or folder. A
            single path is one site. A PyTorch or CuPy array is multiplied on its device. A Dask array
            or data frame stays on the workers of its cluster, as with `Federation.dask`.
        y : None
            Ignored.
        sites : array of shape (n_samples,) or str, optional
            The site label for each row, if X is one table; or the name of the column that holds the
            labels, which is then not a feature.
        sample_weight : array of shape (n_samples,), list or dict of arrays, or str, optional
            The weight of each row. If X holds several sites' rows, pass a list or dict with an array
            for each site. A string names the column that holds the weights, which is then not a
            feature. Sites in a `Federation` have their own weights: ``Site(rows, weight=...)``.

            Weights are frequencies: a row with weight 3 counts as three equal rows, and a row with
            weight 0 as none. Variances are therefore divided by the sum of the weights minus 1, and the
            weights must add up to at least 2.
        """
        self._validate_params()
        self._refuse_fill_about_zero()
        solver = find_solver(self.solver)
        with new_features(self):
            X, sites = without_labels(X, sites)
            if isinstance(sample_weight, str):
                X, sample_weight = without_column(X, sample_weight)
            # the sites look for NaN while they sum, and their errors say what to do about it
            rows = validated(self, X, ensure_all_finite=False)
            fed = as_federation(rows, sites, sample_weight, is_private=self.privacy is not None)
            parameters = plain_params(self)
            for name in ("solver", "whiten", "random_state", "privacy"):
                del parameters[name]
            if self.maf is None:
                del parameters["maf"]
            elif self.privacy is not None:
                raise InputError(
                    "maf has no differentially private mechanism; omit either maf or privacy"
                )
            program = principal_components if self.privacy is None else private_components
            result, run = run_program(self, fed, program, solver, parameters, self.privacy)
        solution, moments = result.solution, result.solution.moments
        model = Model.from_eigen(
            solution.vectors,
            solution.eigenvalues,
            solution.energy,
            moments.weight,
            moments.mean,
            moments.scale,
            moments.n,
        )
        self._set_model(model, moments.n_rows, moments.features)
        self.residual_traces_ = solution.residual
        self.site_variance_ratio_ = result.site_shares
        self.left_out_ = result.left_out
        self.run_ = run
        warn_unconverged(self, run, "solver")
        if self.center:  # without centering, the mean counts as variance
            warn_dominant(run)
        if self.n_components is not None:  # None keeps even components without any variance
            warn_uncertain(run, len(solution.eigenvalues))
        warn_noise(run, len(solution.eigenvalues))
        k, most = len(solution.eigenvalues), min(moments.n - 1, moments.d)
        warn_rank(self.n_components, k, most, is_above_noise=result.is_above_noise)
        return self

    def fit_transform(
        self, X: Any, y: Any = None, *, sites: Any = None, sample_weight: Any = None
    ) -> Array:
        """Fit the model to one table of rows, and return their scores."""
        refuse_many_sites(X)
        X, sites = without_labels(X, sites)
        if isinstance(sample_weight, str):
            X, sample_weight = without_column(X, sample_weight)
        scores = self.fit(X, sites=sites, sample_weight=sample_weight).transform(X)
        return scores if is_dask(X) else np.asarray(scores)

    def transform(self, X: Any) -> Array:
        """Return the rows' scores on the components, ``(n, n_components_)``.

        ``X`` holds the rows, or is the path to a file or folder of rows. In a file, columns that are
        not features of the model are ignored. If ``missing`` is "mean", missing values are filled with
        the mean; otherwise, they are refused. The scores of a Dask collection are a Dask array.
        """
        k = len(self._model().components)
        if reads_by_name(X):
            of_genotypes = partial(self._model().transform_genotypes, whiten=self.whiten)
            fills = self.missing == "mean"
            return scores_of_file(self, X, self._scores, k, of_genotypes if fills else None)
        if is_dask(X):
            return scores_of_dask(X, self.transform, k)
        rows = self._rows(X, ensure_all_finite="allow-nan")
        return self._scores(rows).astype(rows.dtype, copy=False)

    def _scores(self, rows: Any) -> Array:
        """Return the scores of rows, which may have missing values."""
        return self._model().transform(self._filled(rows), whiten=self.whiten)

    def _filled(self, rows: Any) -> Any:
        """Fill missing values with the mean if ``missing`` is "mean"; otherwise, refuse them."""
        if has_gaps(rows):
            if self.missing != "mean":
                raise InputError(
                    f"Input X contains NaN, but a model with missing={self.missing!r} cannot score "
                    "rows with NaN; fit with missing='mean' to fill in the mean, or use RobustPCA"
                )
            rows = filled(canonical(rows) if is_sparse(rows) else rows, self._model().mean)
        return rows

    @property
    def scale_(self) -> Array:
        """Return the scale of each feature, or ones if ``scale`` is False."""
        return self._model().scale

    @property
    def total_variance_(self) -> float:
        """Return the total variance of all features."""
        return float(self._model().total_variance)

    def control_limits(
        self, alpha: float = ALPHA, *, new_rows: bool = True, method: str = "moments"
    ) -> ControlLimits:
        """Return the limits of T2 and Q, beyond which a row is unlike the rows of the fit.

        No rows are needed. If rows are normally distributed, the share ``alpha`` of them is beyond each
        limit. ``new_rows`` says whether the limits are for rows that the model was not fitted to, which
        tend to be a little farther away. If `residual_traces_` is None, variance outside the components
        is assumed to be spread evenly, and `ControlLimits.basis` says so; `fedpca.diagnose` asks the
        sites, and returns better limits. ``method`` is "moments" or "jackson-mudholkar".
        """
        return control_limits(
            self._model(),
            is_centered=self.center,
            traces=self.residual_traces_,
            alpha=alpha,
            is_for_new_rows=new_rows,
            method=method,
        )

    def flag_rows(self, X: Any, limits: ControlLimits | None = None) -> RowFlags:
        """Return T2 and Q of each row, and which rows are beyond their limits.

        ``X`` holds rows of your own, or is the path to a file or folder of rows. Nothing about the rows
        is sent anywhere. By default, the limits are those of `control_limits` for new rows.
        """
        limits = self.control_limits() if limits is None else limits
        if reads_by_name(X):
            both = scores_of_file(self, X, self._t2_and_q, 2)
        else:
            both = self._t2_and_q(self._rows(X, ensure_all_finite="allow-nan"))
        return RowFlags(both[:, 0], both[:, 1], limits)

    def _t2_and_q(self, rows: Any) -> Array:
        """Return T2 and Q of rows, ``(n, 2)``; the rows may have missing values."""
        return t2_and_q(self._model(), self._filled(rows))

    def facts(self) -> Sections:
        """Return what the model holds and how it was fitted, as sections of `fedpca.facts`."""
        components, run = self._named_components(), self.run_
        noise = self.noise_variance_ / self.total_variance_ if self.total_variance_ else 0.0
        few = run.privacy and run.n_certain < len(components)
        texts = [f"Only {run.n_certain} components stand out from the noise that protects rows."]
        more = Fact("noise_share", noise or None, DATA)
        shares = Records(
            "site_variance_ratio",
            (Column("site"), Column("explained", SHARE)),
            list(self.site_variance_ratio_.items()),
            "Share of each site's variance that the components explain",
            by_first=True,
            n_shown=20,
        )
        return (
            about("FederatedPCA", self.n_samples_, components, self.n_features_in_, more),
            cautions([*run.cautions(), *(texts if few else [])]),
            records_of_components(components),
            shares,
            *run.facts("FederatedPCA"),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a file that `fedpca.load` can read."""
        header = {
            "site_variance_ratio": self.site_variance_ratio_,
            "run": self.run_.to_header(),
        }
        if self.residual_traces_ is not None:
            header["residual_traces"] = self.residual_traces_.tolist()
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
        model = linear_model_in(path, arrays, header)
        with usable_header(path):
            estimator = estimator_from_header(cls, path, header)
            estimator._set_model(model, header["n_samples"], header["features"])
            traces = header.get("residual_traces")
            estimator.residual_traces_ = None if traces is None else checked_traces(traces)
            estimator.site_variance_ratio_ = header["site_variance_ratio"]
            estimator.left_out_ = None
            estimator.run_ = record_in(header)
        return estimator

    def _refuse_fill_about_zero(self) -> None:
        """Refuse missing="mean" without centering, which would leave `transform` without means."""
        if self.missing == "mean" and not self.center:
            raise InputError(
                "missing='mean' requires center=True, because a model keeps the mean only if it "
                "centers rows; use missing='drop', or fill in the values yourself"
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing != "error"
        return tags

    def _set_model(self, model: Model, n_samples: int, features: Any) -> None:
        """Set the fitted attributes."""
        self.model_ = model
        self.n_samples_ = n_samples
        set_features(self, model.components.shape[1], features)

    def _model(self) -> Model:
        """Return the fitted model, or raise an error if the estimator is not fitted."""
        check_is_fitted(self)
        return self.model_
