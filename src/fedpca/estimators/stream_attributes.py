"""The fitted attributes of a stream, worked out when somebody asks and not for every batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpca.lowrank import rows_at_once
from fedpca.message import Array
from fedpca.model import Model
from fedpca.stream import Stream
from fedpca.summary import Summary


class StreamAttributes:
    """What IncrementalPCA has after a batch, for an estimator with ``_model()`` and a stream."""

    batch_size: int | None

    if TYPE_CHECKING:

        def _model(self) -> Model: ...

        def _fitted_stream(self) -> Stream: ...

    @property
    def summary_(self) -> Summary:
        """What is carried of the rows so far."""
        return self._fitted_stream().summary

    @property
    def components_(self) -> Array:
        """Orthonormal rows, ``(n_components_, n_features_in_)``."""
        return self._model().components

    @property
    def explained_variance_(self) -> Array:
        """The variance along each component."""
        return self._model().explained_variance

    @property
    def explained_variance_ratio_(self) -> Array:
        """The share of each component in the variance of all features."""
        model = self._model()
        return np.asarray(model.explained_variance / (float(model.total_variance) or 1.0))

    @property
    def singular_values_(self) -> Array:
        """Of the rows about the mean, along each component."""
        return self._model().singular_values

    @property
    def mean_(self) -> Array:
        """The mean of the rows so far; zeros without ``center``."""
        return self.summary_.mean.copy()

    @property
    def var_(self) -> Array:
        """The variance of each feature, over n."""
        return np.asarray(self.summary_.squares / self.summary_.n)

    @property
    def noise_variance_(self) -> float:
        """Mean variance of what is left out."""
        return float(self._model().noise_variance)

    @property
    def n_components_(self) -> int:
        """How many components there are."""
        return int(self._model().components.shape[0])

    @property
    def n_samples_seen_(self) -> int:
        """Rows so far, each counted once whatever it weighs."""
        return self._fitted_stream().n_seen

    @property
    def batch_size_(self) -> int:
        """Rows of a batch where `fit` reads a table or a file and batches make a difference."""
        return self.batch_size or rows_at_once(self._fitted_stream().carried.room)

    @property
    def angle_bound_(self) -> float:
        """Sine of the largest angle to the components of all rows at once, at most."""
        return self.summary_.angle_bound(self.n_components_)
