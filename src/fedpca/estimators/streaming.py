"""Define `StreamingPCA`, which finds the principal components of rows that arrive in batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import assert_all_finite
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import validate_data

from fedpca.arrays import Array, Arrays
from fedpca.errors import InputError
from fedpca.estimators.files import estimator_from_header, file_header, usable_header
from fedpca.estimators.fitting import as_federation, as_stream, forget_features, set_features
from fedpca.estimators.linear import LinearMethods
from fedpca.estimators.stream_file import stream_in, write_stream
from fedpca.estimators.stream_rank import StreamRank, within_summary
from fedpca.facts import Sections, about, records_of_components
from fedpca.linalg.rank_rules import RULES
from fedpca.models.linear import Model
from fedpca.rows.centering import NotFinite, naming_bad_values
from fedpca.rows.gpu.devices import on_host
from fedpca.rows.in_memory import Block, Rows, batches, canonical, is_sparse, rows_per_block
from fedpca.rows.open import is_dask, open_rows
from fedpca.rows.standardized import refuse_tiny
from fedpca.solvers.common_features import common_features
from fedpca.solvers.one_round.merge import directions_to_ask, gather_summaries, summarize_rows
from fedpca.storage.tensor_file import read_arrays
from fedpca.summary.lowrank import rows_at_once
from fedpca.summary.scaled import scaled_summary
from fedpca.summary.scatter import Scatter, scatter_fits, scatter_pays
from fedpca.summary.stream import Stream
from fedpca.summary.summary import N_SPARE, Summary, merge_in_tree


class StreamingPCA(LinearMethods, BaseEstimator):  # type: ignore[misc]
    """Find the principal components of rows that arrive in batches of any size and are not stored.

    Parameters
    ----------
    n_components : int, float in (0, 1), {"auto", "mp", "gap"} or None
        The number of components. A share of the variance or a rule, as in `FederatedPCA`, chooses the
        number each time you access the components, up to ``max_components``. By default, the estimator
        keeps as many as the rows and features allow. If ``rank`` adapts the number, ``n_components`` is
        the initial number.
    n_spare : int
        The number of directions carried in addition to the components. Because a stream discards its
        rows, errors build up in the last directions that it carries. Ten spare directions keep these
        errors out of the result.
    rank : {"fixed", "auto", "mp", "energy", "interval"}
        How to adapt the number of components to the stream, by at most one per batch. "fixed" does not
        adapt it. "auto" keeps the components with more variance than those of a random table with as
        many rows, the same column variances, and unrelated columns (parallel analysis). "mp" keeps the
        components above the Marchenko-Pastur edge, and assumes that all entries are equally noisy.
        "energy" keeps the fewest components that explain more than ``share`` of the variance.
        "interval" keeps the last component's share of the sum of singular values within
        ``[alpha, beta]``; it does not recognize noise, so it also keeps directions of noise.
    max_components : int or None
        The largest number of components that ``rank`` or a rule may reach; 100 by default.
    forgetting : float in (0, 1]
        With each batch, the singular values of all earlier batches are multiplied by this factor, and
        the weights of the earlier rows by the square of this factor.
    center : bool
        Whether to center rows on their mean. If not, components describe how rows differ from zero.
    scale : bool
        Whether to divide each feature by its standard deviation. The stream itself stays in the
        original units, and the scale is applied when you access the components. That is exact if the
        stream keeps the full matrix of second moments or as many directions as features; otherwise,
        `angle_bound_` bounds the error. Requires ``center=True`` and ``rank="fixed"``.
    whiten : bool
        Whether to divide scores by their standard deviations.
    share : float in (0, 1)
        The share of the variance for ``rank="energy"``.
    alpha, beta : float or None
        The bounds for ``rank="interval"``. By default, beta is 1 / max_components and alpha is a tenth
        of beta.
    cooldown : int
        The number of batches to wait after the number of components changes before it may change again.
    batch_size : int or None
        The number of rows per batch when `fit` reads a table, a file, or a folder.
    exact : {"auto"} or bool
        Whether to keep the full d x d matrix of second moments, which gives the components of all rows
        without error. "auto" keeps the matrix only if it takes at most 16 MiB, and either the matrix is
        cheaper than directions or ``scale`` is True. If ``rank`` adapts the number of components,
        "auto" never keeps the matrix.

    Attributes
    ----------
    components_, explained_variance_, explained_variance_ratio_, singular_values_, mean_, var_
        The same as in scikit-learn's IncrementalPCA. The ratio is relative to the total variance of all
        features.
    scale_ : ndarray of shape (n_features_in_,)
        The standard deviations, or ones if ``scale`` is False.
    noise_variance_ : float
        The mean variance along the discarded directions.
    n_components_, n_samples_seen_, batch_size_ : int
    summary_ : Summary
        A summary of the rows seen, which can be merged or saved.
    angle_bound_ : float
        A bound on the error of the components: the sine of their largest angle to the components of all
        rows fitted together.

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
        "n_components": [
            Interval(Integral, 1, None, closed="left"),
            Interval(Real, 0, 1, closed="neither"),
            StrOptions(set(RULES)),
            None,
        ],
        "n_spare": [Interval(Integral, 0, None, closed="left")],
        "rank": [StrOptions({"fixed", "auto", "mp", "energy", "interval"})],
        "max_components": [Interval(Integral, 1, None, closed="left"), None],
        "forgetting": [Interval(Real, 0, 1, closed="right")],
        "center": ["boolean"],
        "scale": ["boolean"],
        "whiten": ["boolean"],
        "share": [Interval(Real, 0, 1, closed="neither")],
        "alpha": [Interval(Real, 0, 1, closed="both"), None],
        "beta": [Interval(Real, 0, 1, closed="right"), None],
        "cooldown": [Interval(Integral, 0, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
        "exact": ["boolean", StrOptions({"auto"})],
    }

    def __init__(
        self,
        n_components: Any = None,
        *,
        n_spare: int = N_SPARE,
        rank: str = "fixed",
        max_components: int | None = None,
        forgetting: float = 1.0,
        center: bool = True,
        scale: bool = False,
        whiten: bool = False,
        share: float = 0.95,
        alpha: float | None = None,
        beta: float | None = None,
        cooldown: int = 0,
        batch_size: int | None = None,
        exact: bool | str = "auto",
    ) -> None:
        self.n_components = n_components
        self.n_spare = n_spare
        self.rank = rank
        self.max_components = max_components
        self.forgetting = forgetting
        self.center = center
        self.scale = scale
        self.whiten = whiten
        self.share = share
        self.alpha = alpha
        self.beta = beta
        self.cooldown = cooldown
        self.batch_size = batch_size
        self.exact = exact

    def fit(self, X: Any, y: Any = None, *, on_batch: Callable[[int], None] | None = None) -> Self:
        """Discard the current state, and fit all rows in one pass.

        Parameters
        ----------
        X : rows, path, list of paths, or iterator of batches
            One table; the path to a Parquet, Feather, CSV, TSV, npy, or npz file, or to a folder of
            such files; or an iterator or list of batches. If there are several files, columns are
            matched by name. The blocks of a Dask array or data frame are summarized where they are, in
            no particular order, and the summaries are merged.
        y : None
            Ignored.
        on_batch : callable, optional
            A function to call after each batch with the number of rows seen.
        """
        self._validate_params()
        self._forget_all()
        if is_dask(X):
            self._set_stream(Stream.of(self._merged(X)))
            return self
        for n_seen in self._batches_of(X):
            if on_batch is not None:
                on_batch(n_seen)
        if not self.__sklearn_is_fitted__():
            raise InputError("0 sample(s): X has no rows, but at least 1 is required")
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Update the components with a batch of rows, which may be empty."""
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
        """Check a batch as scikit-learn does, and return it as an array or CSR matrix.

        A plain float64 array with the right number of columns would pass every check, so the checks are
        skipped to save time.
        """
        is_plain = type(X) is np.ndarray and X.ndim == 2 and X.dtype == np.float64
        has_no_names = not reset and not hasattr(self, "feature_names_in_")
        if is_plain and has_no_names and X.shape[1] == self.n_features_in_:
            return X
        rows = validate_data(
            self,
            on_host(X),
            reset=reset,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            ensure_min_samples=0,
            ensure_all_finite=False,  # the mean, which is needed anyway, reveals NaN and infinity
        )
        return canonical(rows) if is_sparse(rows) else rows

    def _refuse_other_parameters(self) -> None:
        """Refuse parameters that were changed after the stream began and would have no effect."""
        carried = self._stream.carried
        if self.rank == "fixed" and self._stream.rank is None:
            wanted, _ = self._rank.first(carried.n_features)
            if wanted != carried.n_components:
                raise InputError(
                    f"n_components={self.n_components}, but the stream began with "
                    f"{carried.n_components}; call fit to start over, or continue with "
                    f"StreamingPCA.from_summary(summary_, {self.n_components})"
                )
        if bool(self.center) != carried.centered:
            raise InputError(
                f"center={self.center}, but the stream began with center={carried.centered}; call fit "
                "to start over"
            )

    def _take(self, rows: Any) -> None:
        """Add checked rows to the stream, and start the stream if there is none."""
        if hasattr(self, "_stream"):
            self._refuse_other_parameters()
        if not hasattr(self, "_stream"):
            if not rows.shape[0]:
                self._rank.first(rows.shape[1])  # reject bad parameters immediately
                return
            self._stream = self._begin(rows.shape[1], rows.shape[0])
        try:
            self._stream.take(rows, forgetting=self.forgetting)
        except NotFinite:
            if not self._stream.n_seen:
                del self._stream
            assert_all_finite(rows, estimator_name=type(self).__name__, input_name="X")
            raise

    def merge(self, other: StreamingPCA | Summary) -> Self:
        """Add all rows that another estimator or a summary has seen.

        If ``other`` has no full scatter matrix, this estimator drops its own matrix and continues with
        directions only.
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
    def from_summary(
        cls, summary: Summary, n_components: Any = None, *, scale: bool = False
    ) -> Self:
        """Create an estimator that has seen a summary's rows and can take more rows.

        ``n_components`` is a number, a share of the variance, or a rule, as in `FederatedPCA`; by
        default, it is the number that the summary was made for. ``scale`` is as in `StreamingPCA`.
        """
        seen = scaled_summary(summary).summary if scale else summary
        wanted = summary.n_components if n_components is None else n_components
        wanted = within_summary(summary, wanted, seen)
        n_directions = max(summary.room, wanted)
        n_spare = n_directions - wanted
        estimator = cls(wanted, n_spare=n_spare, center=summary.centered, scale=scale, exact=False)
        estimator._refuse_scale()
        carried = summary.resize(wanted, n_directions)
        estimator._set_stream(Stream.of(carried))
        return estimator

    @property
    def summary_(self) -> Summary:
        """Return the summary of the rows seen."""
        return self._fitted_stream().summary

    @property
    def mean_(self) -> Array:
        """Return the mean of the rows seen, or zeros if ``center`` is False."""
        return self.summary_.mean.copy()

    @property
    def var_(self) -> Array:
        """Return the variance of each feature, using n as the divisor."""
        return np.asarray(self.summary_.squares / self.summary_.n)

    @property
    def scale_(self) -> Array:
        """Return the scale of each feature, or ones if ``scale`` is False."""
        return self._in_units()[1]

    @property
    def n_samples_seen_(self) -> int:
        """Return the number of rows seen; each row counts once, regardless of its weight."""
        return self._fitted_stream().n_seen

    @property
    def batch_size_(self) -> int:
        """Return the number of rows per batch that `fit` uses if batch size affects the result."""
        return self.batch_size or rows_at_once(self._fitted_stream().carried.room)

    @property
    def angle_bound_(self) -> float:
        """Return a bound on the sine of the largest angle to the components of a fit to all rows."""
        stream, k = self._fitted_stream(), self.n_components_
        return stream.scaled.angle_bound(k) if self.scale else stream.summary.angle_bound(k)

    def facts(self) -> Sections:
        """Return what the model holds and how certain it is, as sections of `fedpca.facts`."""
        components = self._named_components()
        return (
            about("StreamingPCA", self.n_samples_seen_, components, self.n_features_in_),
            records_of_components(components),
            self.summary_.certainty(self.n_components_),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model and the stream's state to a file, so that the stream can be resumed."""
        stream = self._fitted_stream()
        header = file_header(self, stream.n_seen, angle_bound=self.angle_bound_)
        write_stream(path, self._model(), stream, header)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read an estimator that `save` wrote, which then continues as if it had never stopped."""
        return cls._from_file(path, *read_arrays(path, "model"))

    @classmethod
    def _from_file(
        cls, path: str | os.PathLike[str], arrays: Arrays, header: dict[str, Any]
    ) -> Self:
        """Return the fitted estimator in a file that has been read."""
        stream = stream_in(path, arrays, header)
        with usable_header(path):
            estimator = estimator_from_header(cls, path, header)
        estimator._set_stream(stream)
        return estimator

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_stream") and self._stream.n_seen > 0

    def _fitted_stream(self) -> Stream:
        """Return the stream, or raise an error if the estimator has seen no rows."""
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet: it has seen no rows. Call "
                "'fit' or 'partial_fit' first"
            )
        return self._stream

    def _set_stream(self, stream: Stream) -> None:
        """Set the stream and its features."""
        self._stream = stream
        set_features(self, stream.carried.n_features, stream.carried.features)

    def _forget_all(self) -> None:
        """Delete the stream and its features."""
        self.__dict__.pop("_stream", None)
        forget_features(self)

    def _batches_of(self, X: Any) -> Iterator[int]:
        """Process X in batches, and yield the number of rows seen after each batch."""
        source = as_stream(X)
        if isinstance(source, Iterator):
            for batch in source:
                yield self.partial_fit(batch)._n_seen
            return
        if source is None:
            X = validate_data(self, on_host(X), accept_sparse="csr", dtype=[np.float64, np.float32])
        rows = open_rows(X) if source is None else source
        if not hasattr(self, "n_features_in_"):
            set_features(self, rows.n_features, rows.features)
        for batch in self._cut(rows):
            with naming_bad_values(rows):
                self._stream.take(batch, forgetting=self.forgetting)
            yield self._n_seen

    def _merged(self, X: Any) -> Summary:
        """Summarize the blocks of a Dask collection where they are, and return the merged summary."""
        needed = {"rank": "fixed", "forgetting": 1, "center": True}
        for name, value in needed.items():
            if getattr(self, name) != value:
                raise InputError(
                    f"{name}={getattr(self, name)!r} requires rows in order and in one process, unlike "
                    f"the blocks of a Dask collection; use {name}={value!r}, or pass the blocks to "
                    "partial_fit one by one"
                )
        fed = as_federation(X)
        common = common_features(fed)
        d = common.n_features
        begun = self._begin(d, rows_per_block(d))
        carried = begun.carried
        wanted = carried.room if begun.scatter is None else d  # d directions leave nothing out
        asked = directions_to_ask(None, wanted, d, n_spare=0) | {"features": common.to_ask}
        summaries = gather_summaries(fed, summarize_rows, wanted, centered=True, **asked)
        merged = merge_in_tree(summaries, None).resize(carried.n_components, carried.room)
        return replace(merged, features=common.names)

    @property
    def _n_seen(self) -> int:
        return self._stream.n_seen if hasattr(self, "_stream") else 0

    def _cut(self, rows: Rows) -> Iterator[Block]:
        """Cut rows into batches, or return the blocks as read if batch size makes no difference."""
        if rows.n_features < 1:
            raise InputError("0 feature(s): X has no columns, but at least 1 is required")
        at_once = self.batch_size or rows_per_block(rows.n_features)
        self._stream = self._begin(rows.n_features, at_once)
        if self.batch_size is None and self._stream.scatter is not None and self.forgetting == 1:
            return rows.blocks()
        return batches(rows.blocks(), self.batch_size or rows_at_once(self._stream.carried.room))

    def _begin(self, d: int, rows_at_a_time: int) -> Stream:
        """Start a stream with d features; ``rows_at_a_time`` is the expected batch size."""
        names = getattr(self, "feature_names_in_", None)
        wanted, rank = self._rank.first(d)
        carried = Summary.empty(d, wanted, n_spare=self.n_spare, center=self.center, features=names)
        keeps_whole = self.exact
        if self.exact == "auto":
            pays = scatter_pays(d, carried.room, rows_at_a_time)
            keeps_whole = rank is None and (pays or (self.scale and scatter_fits(d)))
        elif keeps_whole and rank is not None:
            raise InputError(
                f"exact=True requires rank='fixed', not rank={self.rank!r}; use exact='auto'"
            )
        scatter = Scatter(d) if keeps_whole else None
        return Stream(carried, scatter, rank, n_spare=int(self.n_spare))

    @property
    def _rank(self) -> StreamRank:
        """Return the parameters that determine the number of components."""
        self._refuse_scale()
        return StreamRank(**{field.name: getattr(self, field.name) for field in fields(StreamRank)})

    def _refuse_scale(self) -> None:
        """Refuse ``scale=True`` if the stream could not apply the scale."""
        if self.scale and not self.center:
            raise InputError(
                "scale=True requires center=True, because a stream that is not centered does not keep "
                "the deviations from the mean"
            )
        if self.scale and self.rank != "fixed":
            raise InputError(
                f"scale=True requires rank='fixed', not rank={self.rank!r}, which looks at rows before "
                "they are scaled; use rank='fixed' with n_components='auto' or a share"
            )

    def _in_units(self) -> tuple[Summary, Array]:
        """Return the summary in the units of the components, and the scale that it was divided by."""
        stream = self._fitted_stream()
        if self.scale:
            return stream.scaled.summary, stream.scaled.scale
        return stream.summary, np.ones(stream.carried.n_features)

    def _model(self) -> Model:
        """Return the linear model of the rows seen."""
        summary, scale = self._in_units()
        refuse_tiny(summary.mean, summary.energy)
        n_seen = self._stream.n_seen
        vectors, eigenvalues = summary.known.leading(self._rank.shown(summary, n_seen))
        return Model.from_eigen(
            vectors, eigenvalues, summary.energy, summary.n, summary.mean, scale, n_seen
        )
