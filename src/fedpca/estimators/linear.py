"""Give estimators with a linear model the attributes and methods of scikit-learn's PCA."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.estimators.fitting import new_rows, reads_by_name, scores_of_dask, scores_of_file
from fedpca.facts import Component, components_of, names_of_features
from fedpca.models.features import FeatureTable
from fedpca.models.linear import Model
from fedpca.rows.open import is_dask

FITTED = (
    "components_",
    "explained_variance_",
    "explained_variance_ratio_",
    "singular_values_",
    "mean_",
    "noise_variance_",
    "n_components_",
    "n_samples_",
    "n_features_in_",
    "feature_names_in_",
)


class LinearAttributes:
    """Add the fitted attributes of an estimator, read from the model that ``_model()`` returns."""

    if TYPE_CHECKING:

        def _model(self) -> Model: ...

    @property
    def components_(self) -> Array:
        """Return the components as orthonormal rows, ``(n_components_, n_features_in_)``."""
        return self._model().components

    @property
    def explained_variance_(self) -> Array:
        """Return the variance along each component."""
        return self._model().explained_variance

    @property
    def explained_variance_ratio_(self) -> Array:
        """Return each component's share of the total variance of all features."""
        model = self._model()
        return np.asarray(model.explained_variance / (float(model.total_variance) or 1.0))

    @property
    def mean_(self) -> Array:
        """Return the mean of the rows, or zeros if ``center`` is False."""
        return self._model().mean

    @property
    def noise_variance_(self) -> float:
        """Return the mean variance along the discarded directions."""
        return float(self._model().noise_variance)

    @property
    def n_components_(self) -> int:
        """Return the number of components."""
        return len(self._model().components)

    @property
    def _n_features_out(self) -> int:
        return len(self._model().components)

    def _named_components(self) -> list[Component]:
        """Return the components with their shares, and with the name of each feature."""
        model = self._model()
        C, total = model.components, float(model.total_variance)
        names = names_of_features(getattr(self, "feature_names_in_", None), C.shape[1])
        return components_of(model.explained_variance, total, C, names)


class LinearMethods(LinearAttributes, ClassNamePrefixFeaturesOutMixin, TransformerMixin):  # type: ignore[misc]
    """Add the attributes and methods of a PCA to an estimator with ``_model()`` and ``whiten``."""

    whiten: bool

    @property
    def singular_values_(self) -> Array:
        """Return the singular values of the centered rows, one for each component."""
        return self._model().singular_values

    def transform(self, X: Any) -> Array:
        """Return the rows' scores on the components, ``(n, n_components_)``.

        ``X`` holds the rows, or is the path to a file or folder of rows. In a file, columns that are
        not features of the model are ignored.
        """
        model = self._model()
        if reads_by_name(X):
            score = partial(model.transform, whiten=self.whiten)
            return scores_of_file(self, X, score, len(model.components))
        if is_dask(X):
            return scores_of_dask(X, self.transform, len(model.components))
        rows = self._rows(X)
        scores = model.transform(rows, whiten=self.whiten)
        return scores.astype(rows.dtype, copy=False)

    def inverse_transform(self, X: Any) -> Array:
        """Return the rows that have these scores and lie in the span of the components."""
        return rows_from_scores(self._model(), X, whiten=self.whiten)

    def get_covariance(self) -> Array:
        """Return the covariance of the rows under the probabilistic model, ``(d, d)``."""
        return self._model().covariance()

    def get_precision(self) -> Array:
        """Return the inverse of `get_covariance`."""
        return self._model().precision()

    def loadings(self) -> FeatureTable:
        """Return the loading of each feature on each component: the entries of ``components_``."""
        return self._feature_table(self._model().components.T)

    def contributions(self) -> FeatureTable:
        """Return each feature's share of each component; the shares of a component add up to 1."""
        return self._feature_table(self._model().components.T ** 2)

    def cos2(self, feature_variances: Any = None) -> FeatureTable:
        """Return the share of each feature's variance that each component explains.

        The share is the squared correlation of the feature with the component. ``feature_variances``,
        ``(d,)``, has the variance of each feature, as `fedpca.diagnose` returns it. You can omit
        ``feature_variances`` if the model scales features or has all components.
        """
        return self._feature_table(self._model().cos2(feature_variances))

    def _feature_table(self, values: Array) -> FeatureTable:
        """Return a table of values, one for each feature and component, with the names of both."""
        features = names_of_features(getattr(self, "feature_names_in_", None), len(values))
        components = tuple(f"pc{i}" for i in range(1, values.shape[1] + 1))
        return FeatureTable(features, components, values)

    def score_samples(self, X: Any) -> Array:
        """Return the log-likelihood of each row under the probabilistic model."""
        model = self._model()
        return model.log_likelihood(self._rows(X, accept_sparse=False))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood of the rows."""
        return float(self.score_samples(X).mean())

    def to_sklearn(self) -> Any:
        """Return a scikit-learn PCA, preceded by a StandardScaler if features are scaled."""
        check_is_fitted(self)
        return _scikit_learn_twin(self)

    def __sklearn_tags__(self) -> Any:
        return tags_for_rows(super().__sklearn_tags__())

    def _rows(self, X: Any, accept_sparse: Any = ("csr", "csc"), **checks: Any) -> Any:
        """Check new rows as scikit-learn does, and return them as numpy arrays or sparse matrices."""
        return new_rows(self, X, accept_sparse=accept_sparse, **checks)


def rows_from_scores(model: Model, X: Any, *, whiten: bool = False) -> Array:
    """Return the rows that have these scores, in the scores' dtype."""
    scores = check_array(X, dtype=[np.float64, np.float32])
    if scores.shape[1] != len(model.components):
        raise InputError(
            f"scores have {scores.shape[1]} columns, but the model has {len(model.components)} "
            "components; pass one column per component"
        )
    return model.inverse_transform(scores, whiten=whiten).astype(scores.dtype, copy=False)


def tags_for_rows(tags: Any) -> Any:
    """Set scikit-learn's tags for an estimator that accepts sparse rows and preserves float32."""
    tags.transformer_tags.preserves_dtype = ["float64", "float32"]
    tags.input_tags.sparse = True
    return tags


def _scikit_learn_twin(model: Any) -> Any:
    """Make a PCA with the same scores, preceded by a StandardScaler if the model scales features."""
    # These imports are slow, and fit does not need them.
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pca = PCA(model.n_components_, whiten=model.whiten)
    for name in FITTED:
        if hasattr(model, name):
            setattr(pca, name, getattr(model, name))
    if hasattr(model, "n_samples_seen_"):
        pca.n_samples_ = model.n_samples_seen_
    if not getattr(model, "scale", False):
        return pca
    pca.mean_ = np.zeros(model.n_features_in_)
    scaler = StandardScaler(with_mean=model.center)
    scaler.mean_, scaler.scale_, scaler.var_ = model.mean_, model.scale_, model.scale_**2
    scaler.n_samples_seen_, scaler.n_features_in_ = pca.n_samples_, model.n_features_in_
    if hasattr(model, "feature_names_in_"):
        scaler.feature_names_in_ = model.feature_names_in_
        del pca.feature_names_in_
    return make_pipeline(scaler, pca)
