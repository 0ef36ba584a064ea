"""What a fitted `RobustPCA` does with rows: scores, two parts, and how far outside entries are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from fedpca.message import Array
from fedpca.model import Model
from fedpca.rows import is_sparse
from fedpca.solvers.robust_site import separate


class Parts(NamedTuple):
    """Rows as the sum of two parts, up to noise, each ``(n, d)``."""

    low_rank: Array  # missing values are filled in here
    sparse: Array


class OutlierScores(NamedTuple):
    """How far outside entries are: above 1 they are outliers."""

    rows: Array  # (n,), the share of a row's entries that are outliers
    cells: Array  # (n, d)


class RobustRowsMixin(ClassNamePrefixFeaturesOutMixin, TransformerMixin):  # type: ignore[misc]
    """Methods of an estimator that has robust components."""

    components_: Array
    mean_: Array
    scale_: Array
    threshold_: float
    n_components_: int

    if TYPE_CHECKING:

        def _model(self) -> Model: ...

    def transform(self, X: Any) -> Array:
        """Scores of rows on the components, outliers and missing values left out of account."""
        rows = self._validated(X)
        scores, _ = self._separate(rows)
        return scores.astype(rows.dtype, copy=False)

    def inverse_transform(self, X: Any) -> Array:
        """The rows that have these scores, without noise or outliers."""
        check_is_fitted(self)
        scores = check_array(X, dtype=[np.float64, np.float32])
        rows = self._model().inverse_transform(scores)
        return rows.astype(scores.dtype, copy=False)

    def split(self, X: Any) -> Parts:
        """Rows as a low-rank and a sparse part, with the components as they are.

        Missing values are zero in the sparse part and filled in by the low-rank one.
        """
        scores, S = self._separate(self._validated(X))
        return Parts(self._model().inverse_transform(scores), S * self.scale_)

    def outlier_scores(self, X: Any) -> OutlierScores:
        """How far entries lie from the low-rank part, in thresholds, and how much of each row does."""
        rows = self._validated(X)
        scores, _ = self._separate(rows)
        A, present = self._framed(rows)
        cells = np.where(present, np.abs(A - scores @ self.components_), 0.0) / self.threshold_
        n_present = np.maximum(present.sum(axis=1), 1)
        return OutlierScores((cells > 1).sum(axis=1) / n_present, cells)

    def _framed(self, rows: Any) -> tuple[Array, Array]:
        dense = np.asarray(rows.toarray() if is_sparse(rows) else rows, np.float64)
        present = ~np.isnan(dense)
        return np.where(present, (dense - self.mean_) / self.scale_, 0.0), present

    def _separate(self, rows: Any) -> tuple[Array, Array]:
        A, present = self._framed(rows)
        return separate(A, present, self.components_.T, self.threshold_)

    def _validated(self, X: Any, reset: bool = False) -> Any:
        if not reset:
            check_is_fitted(self)
        return validate_data(
            self,
            X,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            ensure_all_finite="allow-nan",
            ensure_min_samples=2 if reset else 1,
            reset=reset,
        )

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags
