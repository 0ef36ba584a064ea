"""What estimators share: what a fitted one does with rows, its parameters, and its file.

Scores and rows from scores are those of all of them; the density of the probabilistic model is that of
`FederatedPCA` and `StreamingPCA`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from fedpca.errors import FileError, InputError
from fedpca.estimators.twin import scikit_learn_twin
from fedpca.message import Array
from fedpca.model import Model

FEATURES = {"n_features_in_", "feature_names_in_"}  # which a fit finds


class ModelMixin(ClassNamePrefixFeaturesOutMixin, TransformerMixin):  # type: ignore[misc]
    """scikit-learn's methods of a PCA, for an estimator with ``_model()`` and ``whiten``."""

    whiten: bool

    if TYPE_CHECKING:

        def _model(self) -> Model: ...

    def transform(self, X: Any) -> Array:
        """Scores of rows on the components, ``(n, n_components_)``."""
        model = self._model()
        rows = self._rows(X)
        scores = model.transform(rows, whiten=self.whiten)
        return scores.astype(rows.dtype, copy=False)

    def inverse_transform(self, X: Any) -> Array:
        """The rows that have these scores and nothing outside the components."""
        return rows_from_scores(self._model(), X, whiten=self.whiten)

    def get_covariance(self) -> Array:
        """The covariance of rows under the probabilistic model, ``(d, d)``."""
        return self._model().covariance()

    def get_precision(self) -> Array:
        """The inverse of `get_covariance`."""
        return self._model().precision()

    def score_samples(self, X: Any) -> Array:
        """The log-likelihood of each row under the probabilistic model."""
        model = self._model()
        return model.log_likelihood(self._rows(X, accept_sparse=False))

    def score(self, X: Any, y: Any = None) -> float:
        """The mean log-likelihood of rows."""
        return float(self.score_samples(X).mean())

    def to_sklearn(self) -> Any:
        """The same model as scikit-learn's PCA, behind its StandardScaler where rows are scaled."""
        check_is_fitted(self)
        return scikit_learn_twin(self)

    def __sklearn_tags__(self) -> Any:
        return tags_for_rows(super().__sklearn_tags__())

    @property
    def _n_features_out(self) -> int:
        return int(self._model().components.shape[0])

    def _rows(self, X: Any, accept_sparse: Any = ("csr", "csc")) -> Any:
        return validate_data(
            self, X, accept_sparse=accept_sparse, dtype=[np.float64, np.float32], reset=False
        )


def rows_from_scores(model: Model, X: Any, *, whiten: bool = False) -> Array:
    """The rows that have these scores, in their dtype."""
    scores = check_array(X, dtype=[np.float64, np.float32])
    if scores.shape[1] != len(model.components):
        raise InputError(
            f"scores have {scores.shape[1]} columns, but the model has {len(model.components)} "
            "components; give one column for each"
        )
    return model.inverse_transform(scores, whiten=whiten).astype(scores.dtype, copy=False)


def tags_for_rows(tags: Any) -> Any:
    """scikit-learn's tags of an estimator that takes sparse rows, and keeps float32."""
    tags.transformer_tags.preserves_dtype = ["float64", "float32"]
    tags.input_tags.sparse = True
    return tags


def plain_params(estimator: BaseEstimator) -> dict[str, Any]:
    """An estimator's parameters, with numpy's scalars as Python's own."""
    given = estimator.get_params(deep=False)
    return {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}


def seed_of(random_state: Any) -> int | None:
    """The seed of a run that scikit-learn's ``random_state`` stands for."""
    if random_state is None:
        return None
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))


def saved_params(estimator: BaseEstimator) -> dict[str, Any]:
    """The parameters that go into a file; a generator's state is no part of a model."""
    parameters = plain_params(estimator)
    if not isinstance(parameters["random_state"], int | None):
        parameters["random_state"] = None
    return parameters


def saved_features(estimator: BaseEstimator) -> list[str] | None:
    """The names of features that go into a file."""
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else list(names)


def forget_features(estimator: BaseEstimator) -> None:
    """Begin a fit without the features of the last one."""
    for name in FEATURES:
        estimator.__dict__.pop(name, None)


@contextmanager
def features_anew(estimator: BaseEstimator) -> Iterator[None]:
    """Find features for a fit without those of the last one, which stay if it fails."""
    before = dict(estimator.__dict__)
    forget_features(estimator)
    try:
        yield
    except BaseException:
        forget_features(estimator)
        for name in FEATURES & before.keys():
            setattr(estimator, name, before[name])
        raise


@contextmanager
def usable_header(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say of a file that its header lacks something, or holds what no estimator takes."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} has a header that cannot be used: {error}") from None


def check_kind(path: str | os.PathLike[str], header: dict[str, Any], kind: str) -> None:
    """Refuse the file of another estimator."""
    if header.get("estimator") != kind:
        raise FileError(f"{path} holds a {header.get('estimator')}, not a {kind}")
