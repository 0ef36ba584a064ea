"""`StreamingPCA`: principal components of rows that come in batches and are not kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import assert_all_finite
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import validate_data

from fedpca.blocks import NotFinite, naming_bad_values
from fedpca.errors import InputError
from fedpca.estimators.inputs import as_stream
from fedpca.estimators.modelled import ModelMixin, forget_features, plain_params, usable_header
from fedpca.estimators.stream_attributes import StreamAttributes
from fedpca.estimators.stream_file import read_stream, write_stream
from fedpca.estimators.stream_start import begin_stream, first_rank
from fedpca.lowrank import rows_at_once
from fedpca.model import Model, model_of
from fedpca.rows import (
    Block,
    Rows,
    batches,
    canonical,
    is_sparse,
    open_rows,
    rows_per_block,
)
from fedpca.stream import Stream
from fedpca.summary import N_SPARE, Summary


class StreamingPCA(StreamAttributes, ModelMixin, BaseEstimator):  # type: ignore[misc]
    """Principal components of rows that come in batches of any size and are not kept.

    Parameters
    ----------
    n_components : int or None
        How many components: as many as rows and features allow by default; where ``rank`` finds it,
        the number to begin with.
    n_spare : int
        Directions carried beyond those reported. What a stream loses by forgetting its rows is lost
        at the last direction carried, and ten spare ones keep it out of the result.
    rank : {"fixed", "mp", "energy", "interval"}
        How the number of components follows the stream, by one a batch at the most: not at all; those
        above the Marchenko-Pastur edge of noise; fewest that explain more than ``share``; or such that
        the last one's share in the sum of singular values stays within ``[alpha, beta]``.
    max_components : int or None
        The largest number that it may find; 100 by default.
    forgetting : float in (0, 1]
        Each batch multiplies the singular values of all before it by this, and the weight of their
        rows by its square.
    center : bool
        Whether components are about the mean or about zero.
    whiten : bool
        Whether scores are divided by their standard deviations.
    share : float in (0, 1)
        For ``rank="energy"``.
    alpha, beta : float or None
        For ``rank="interval"``; 1 / max_components is beta by default, and a tenth of it alpha.
    hold_off : int
        Batches after a change of the number of components without another.
    batch_size : int or None
        Rows of a batch where `fit` reads a table, a file or a folder.
    moments : {"auto"} or bool
        Whether to keep the whole d x d matrix of second moments, which is exact: where that is cheaper
        and takes at most 16 MiB by default. A rank that is found never does.

    Attributes
    ----------
    components_, explained_variance_, explained_variance_ratio_, singular_values_, mean_, var_
        As in scikit-learn's IncrementalPCA; the ratio is that to the variance of all features.
    noise_variance_ : float
        Mean variance of what is left out.
    n_components_, n_samples_seen_, batch_size_ : int
    summary_ : Summary
        What is carried of the rows, to be merged or saved.
    angle_bound_ : float
        Sine of the largest angle to the components that all rows at once would give, at most.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import StreamingPCA
    >>> rng = np.random.default_rng(0)
    >>> pca = StreamingPCA(2)
    >>> for _ in range(5):
    ...     pca = pca.partial_fit(rng.normal(size=(3, 4)))
    >>> pca.components_.shape, pca.n_samples_seen_
    ((2, 4), 15)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "n_spare": [Interval(Integral, 0, None, closed="left")],
        "rank": [StrOptions({"fixed", "mp", "energy", "interval"})],
        "max_components": [Interval(Integral, 1, None, closed="left"), None],
        "forgetting": [Interval(Real, 0, 1, closed="right")],
        "center": ["boolean"],
        "whiten": ["boolean"],
        "share": [Interval(Real, 0, 1, closed="neither")],
        "alpha": [Interval(Real, 0, 1, closed="both"), None],
        "beta": [Interval(Real, 0, 1, closed="right"), None],
        "hold_off": [Interval(Integral, 0, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
        "moments": ["boolean", StrOptions({"auto"})],
    }

    def __init__(
        self,
        n_components: int | None = None,
        *,
        n_spare: int = N_SPARE,
        rank: str = "fixed",
        max_components: int | None = None,
        forgetting: float = 1.0,
        center: bool = True,
        whiten: bool = False,
        share: float = 0.95,
        alpha: float | None = None,
        beta: float | None = None,
        hold_off: int = 0,
        batch_size: int | None = None,
        moments: bool | str = "auto",
    ) -> None:
        self.n_components = n_components
        self.n_spare = n_spare
        self.rank = rank
        self.max_components = max_components
        self.forgetting = forgetting
        self.center = center
        self.whiten = whiten
        self.share = share
        self.alpha = alpha
        self.beta = beta
        self.hold_off = hold_off
        self.batch_size = batch_size
        self.moments = moments

    def fit(self, X: Any, y: Any = None, *, on_batch: Callable[[int], None] | None = None) -> Self:
        """Begin anew and take in all rows, which are read once.

        Parameters
        ----------
        X : rows, path, list of paths, or iterator of batches
            One table; the path of a Parquet, CSV, npy or npz file or of a folder of them; or an
            iterator or list of batches. Of several files the columns are matched by name.
        y : None
            Not used.
        on_batch : callable, optional
            Called after each batch with the number of rows so far.
        """
        self._validate_params()
        self._forget_all()
        for n_seen in self._batches_of(X):
            if on_batch is not None:
                on_batch(n_seen)
        if not self.__sklearn_is_fitted__():
            raise InputError("0 sample(s): there are no rows while a minimum of 1 is required")
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Take in a batch of any number of rows, from none upward."""
        is_first = not hasattr(self, "_stream")
        if is_first:
            self._validate_params()
        had_features = hasattr(self, "n_features_in_")
        try:
            self._take(self._checked(X, reset=not had_features))
        except Exception:
            if not had_features:
                self._forget_all()
            raise
        return self

    def _checked(self, X: Any, *, reset: bool) -> Any:
        """The batch as an array or CSR, after scikit-learn's checks; a plain one passes them all."""
        is_plain = type(X) is np.ndarray and X.ndim == 2 and X.dtype == np.float64
        is_known = not reset and not hasattr(self, "feature_names_in_")
        if is_plain and is_known and X.shape[1] == self.n_features_in_:
            return X
        rows = validate_data(
            self,
            X,
            reset=reset,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            ensure_min_samples=0,
            ensure_all_finite=False,  # seen in the mean, which is needed anyway
        )
        return canonical(rows) if is_sparse(rows) else rows

    def _take(self, rows: Any) -> None:
        """Take in checked rows; the stream begins with the first of them."""
        if not hasattr(self, "_stream"):
            if not rows.shape[0]:
                first_rank(self, rows.shape[1])  # bad parameters are named at once
                return
            self._stream = begin_stream(self, rows.shape[1], rows.shape[0])
        try:
            self._stream.take(rows, forgetting=self.forgetting)
        except NotFinite:
            if not self._stream.n_seen:
                del self._stream
            assert_all_finite(rows, estimator_name=type(self).__name__, input_name="X")
            raise

    def merge(self, other: StreamingPCA | Summary) -> Self:
        """Take in all that another estimator has seen, or a summary.

        One that keeps the whole scatter goes on with directions if the other has no scatter.
        """
        if isinstance(other, Summary):
            stream = Stream.of(other)
        elif isinstance(other, StreamingPCA):
            stream = other._fitted_stream()
        else:
            raise InputError(
                f"merge takes a StreamingPCA or a Summary, not a {type(other).__name__}"
            )
        self._fitted_stream().merge(stream)
        return self

    @classmethod
    def from_summary(cls, summary: Summary, n_components: int | None = None) -> Self:
        """The estimator that has seen the rows of a summary, and can go on."""
        wanted = summary.n_components if n_components is None else n_components
        if not isinstance(wanted, Integral) or not 1 <= wanted <= summary.n_features:
            raise InputError(
                f"n_components={wanted} is not between 1 and the {summary.n_features} features"
            )
        n_known = len(summary.singular_values)
        if wanted > n_known and summary.known.dropped > 0:
            raise InputError(
                f"n_components={wanted} exceeds the {n_known} directions that the summary carries; "
                "summarize the rows with more"
            )
        room = max(summary.room, int(wanted))
        n_spare = room - int(wanted)
        estimator = cls(int(wanted), n_spare=n_spare, center=summary.centered, moments=False)
        carried = summary.resize(int(wanted), room)
        estimator._set_stream(Stream.of(carried))
        return estimator

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that is carried to a file; `fedpca.load` gives an estimator that goes on."""
        write_stream(path, self._model(), self._fitted_stream(), plain_params(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The estimator that `save` wrote, which goes on as if it had never stopped."""
        stream, parameters = read_stream(path)
        with usable_header(path):
            estimator = cls(**parameters)
            estimator._validate_params()
        estimator._set_stream(stream)
        return estimator

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_stream") and self._stream.n_seen > 0

    def _fitted_stream(self) -> Stream:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet: no rows came so far. Call "
                "'fit' or 'partial_fit' first"
            )
        return self._stream

    def _set_stream(self, stream: Stream) -> None:
        self._stream = stream
        self._set_features(stream.carried.n_features, stream.carried.features)

    def _set_features(self, n_features: int, names: Sequence[str] | None) -> None:
        self.n_features_in_ = n_features
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)

    def _forget_all(self) -> None:
        self.__dict__.pop("_stream", None)
        forget_features(self)

    def _batches_of(self, X: Any) -> Iterator[int]:
        """Take in X batch by batch; the number of rows so far after each."""
        source = as_stream(X)
        if isinstance(source, Iterator):
            for batch in source:
                yield self.partial_fit(batch)._n_seen
            return
        if source is None:
            X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32])
        rows = open_rows(X) if source is None else source
        if not hasattr(self, "n_features_in_"):
            self._set_features(rows.n_features, rows.features)
        for batch in self._cut(rows):
            with naming_bad_values(rows):
                self._stream.take(batch, forgetting=self.forgetting)
            yield self._n_seen

    @property
    def _n_seen(self) -> int:
        return self._stream.n_seen if hasattr(self, "_stream") else 0

    def _cut(self, rows: Rows) -> Iterator[Block]:
        """Batches of rows; the blocks in which they are read, where size makes no difference."""
        if rows.n_features < 1:
            raise InputError("0 feature(s): the rows have no columns; a minimum of 1 is required")
        at_once = self.batch_size or rows_per_block(rows.n_features)
        self._stream = begin_stream(self, rows.n_features, at_once)
        if self.batch_size is None and self._stream.scatter is not None and self.forgetting == 1:
            return rows.blocks()
        return batches(rows.blocks(), self.batch_size or rows_at_once(self._stream.carried.room))

    def _model(self) -> Model:
        summary = self._fitted_stream().summary
        wanted = summary.n_components
        if self.n_components is None and self.rank == "fixed":
            wanted = max(1, min(wanted, self._stream.n_seen))
        vectors, eigenvalues = summary.known.leading(wanted)
        scale = np.ones(summary.n_features)
        mean, n_seen = summary.mean, self._stream.n_seen
        return model_of(vectors, eigenvalues, summary.energy, summary.n, mean, scale, n_seen)
