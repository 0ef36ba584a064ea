"""What a fitted `RobustPCA` does with rows: scores, two parts, and how far outside entries are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fedpca.estimators.modelled import rows_from_scores, tags_for_rows
from fedpca.message import Array
from fedpca.model import Model
from fedpca.rows import is_sparse
from fedpca.solvers.robust_parts import TIMES_MEDIAN, separate
from fedpca.solvers.robust_rows import values_about


class Parts(NamedTuple):
    """Rows as the sum of two parts, up to noise, each ``(n, d)``."""

    low_rank: Array  # missing values are filled in here
    sparse: Array


class OutlierScores(NamedTuple):
    """How far outside entries are, and how much of each row is."""

    rows: Array  # (n,), the share of a row's entries that are outliers, from 0 to 1
    cells: Array  # (n, d), residuals in thresholds: above 1 an entry is an outlier


def low_rank_model(
    components: Array, variance: Array, mean: Array, scale: Array, noise_variance: float, n: int
) -> Model:
    """The model of n rows whose low-rank part varies so along its components, noise beside it."""
    return Model(
        components=components,
        explained_variance=variance,
        singular_values=np.sqrt(variance * (n - 1)),
        mean=mean,
        scale=scale,
        noise_variance=np.array(noise_variance),
        total_variance=np.array(variance.sum() + len(mean) * noise_variance),
    )


class RobustRowsMixin(ClassNamePrefixFeaturesOutMixin, TransformerMixin):  # type: ignore[misc]
    """Methods of an estimator that has robust components."""

    components_: Array
    explained_variance_: Array
    mean_: Array
    scale_: Array
    threshold_: float
    n_components_: int

    if TYPE_CHECKING:

        def _model(self) -> Model: ...

    def transform(self, X: Any) -> Array:
        """Scores of rows on the components, outliers and missing values left out of account."""
        rows = self._validated(X)
        scores, _ = self._separate(*self._framed(rows))
        return scores.astype(rows.dtype, copy=False)

    def inverse_transform(self, X: Any) -> Array:
        """The rows that have these scores, without noise or outliers."""
        return rows_from_scores(self._model(), X)

    def split(self, X: Any) -> Parts:
        """Rows as a low-rank and a sparse part, with the components as they are.

        Missing values are zero in the sparse part and filled in by the low-rank one.
        """
        scores, S = self._separate(*self._framed(self._validated(X)))
        return Parts(self._model().inverse_transform(scores), S * self.scale_)

    def outlier_scores(self, X: Any) -> OutlierScores:
        """How far entries lie from the low-rank part, in thresholds, and how much of each row does."""
        A, present = self._framed(self._validated(X))
        scores, _ = self._separate(A, present)
        cells = np.where(present, np.abs(A - scores @ self.components_), 0.0) / self.threshold_
        n_present = np.maximum(present.sum(axis=1), 1)
        return OutlierScores((cells > 1).sum(axis=1) / n_present, cells)

    def _framed(self, rows: Any) -> tuple[Array, Array]:
        dense = np.asarray(rows.toarray() if is_sparse(rows) else rows, np.float64)
        return values_about(dense, self.mean_, self.scale_)

    def _separate(self, A: Array, present: Array) -> tuple[Array, Array]:
        typical = float(np.sqrt(self.explained_variance_.sum() / len(self.mean_)))  # of entries
        first = TIMES_MEDIAN * typical
        return separate(A, present, self.components_.T, self.threshold_, first=first)

    def _validated(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(
            self,
            X,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            ensure_all_finite="allow-nan",
            reset=False,
        )

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    def __sklearn_tags__(self) -> Any:
        tags = tags_for_rows(super().__sklearn_tags__())
        tags.input_tags.allow_nan = True
        return tags
