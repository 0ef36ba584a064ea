"""Define a fitted linear model, which scores rows, reconstructs them, and computes their density.

A model has components ``C`` (k x d, orthonormal rows), variances ``l``, a noise variance ``v``, a mean
``m``, and a scale ``s``:

    t = C ((x - m) / s)                                   the scores of a row x
    S = D (C' diag(l - v) C + v I) D,   D = diag(s)       the covariance of rows

The model assumes that rows are normally distributed with covariance S. Only the methods that return S
form it.

A model is saved in a safetensors file with a JSON header. Loading a file validates all of it and
executes no code.

Source: Tipping and Bishop, "Mixtures of probabilistic principal component analysers" (1999).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.errors import FileError, InputError
from fedpca.linalg.dense import fix_signs
from fedpca.rows.genotypes.genotype_rows import GenotypeRows
from fedpca.rows.genotypes.products import VariantProducts
from fedpca.rows.in_memory import is_sparse
from fedpca.storage.tensor_file import check_features, check_file_arrays, read_arrays, write_arrays

VARIANCE_ROUNDING = 1e-12  # share of the variance that may be due to rounding
MAX_OUTSIDE_SHARE = 1e-12  # share of a row's squares outside a subspace that rounding may cause
MODEL_SHAPES = {
    "components": "k d",
    "explained_variance": "k",
    "singular_values": "k",
    "mean": "d",
    "scale": "d",
    "noise_variance": "",
    "total_variance": "",
}


@dataclass(frozen=True)
class Model:
    """Components, and everything that is needed to use them."""

    components: Array  # (k, d)
    explained_variance: Array  # (k,)
    singular_values: Array  # (k,)
    mean: Array  # (d,)
    scale: Array  # (d,)
    noise_variance: Array  # ()
    total_variance: Array  # ()

    @classmethod
    def from_eigen(
        cls,
        vectors: Array,
        eigenvalues: Array,
        energy: float,
        n: float,
        mean: Array,
        scale: Array,
        n_seen: int | None = None,
    ) -> Model:
        """Make a model from the leading eigenvectors, ``(d, k)``, of the scatter of n rows.

        ``energy`` is the trace of the scatter. The variances are the scatter's eigenvalues divided by
        ``n - 1``. If rows have weights below one, n is their total weight, and ``n_seen`` is their
        count. If n is below 2, ``n / 2`` replaces ``n - 1`` so that one row has a finite variance.
        """
        d, k = vectors.shape
        freedom = n - 1 if n >= 2 else max(n, 1e-300) / 2
        variance = eigenvalues / freedom
        total = energy / freedom
        remainder = max(0.0, total - float(variance.sum()))
        n_remaining = max(min(n if n_seen is None else n_seen, d) - k, 0)
        return cls(
            components=np.ascontiguousarray(fix_signs(vectors).T),
            explained_variance=variance,
            singular_values=np.sqrt(eigenvalues),
            mean=mean,
            scale=scale,
            noise_variance=np.array(remainder / n_remaining if n_remaining else 0.0),
            total_variance=np.array(total),
        )

    def transform(self, X: Any, *, whiten: bool = False) -> Array:
        """Return the scores of rows, ``(n, k)``, scaled to unit variance if ``whiten`` is true."""
        directions = self._directions(whiten)
        if is_sparse(X):  # subtracting the mean first would fill in the zeros
            return np.asarray(X @ directions - self.mean @ directions)
        return np.asarray((X - self.mean) @ directions)

    def transform_genotypes(self, rows: GenotypeRows, *, whiten: bool = False) -> Array:
        """Return the scores of samples, ``(n, k)``; the mean replaces missing genotypes."""
        return VariantProducts(rows, self.mean, self.mean).scores(self._directions(whiten))

    def inverse_transform(self, scores: Array, *, whiten: bool = False) -> Array:
        """Return the rows, ``(n, d)``, with these scores and nothing outside the components."""
        if whiten:
            scores = scores * self._deviations()
        return np.asarray(scores @ (self.components * self.scale) + self.mean)

    def covariance(self) -> Array:
        """Return the covariance of rows under the model, ``(d, d)``."""
        inner = self._inflate(self.explained_variance, float(self.noise_variance))
        return np.asarray(inner * np.outer(self.scale, self.scale))

    def precision(self) -> Array:
        """Return the inverse of the covariance, or its pseudo-inverse if there is no noise."""
        inner = self._inflate(*self.inverse_variances())
        return np.asarray(inner / np.outer(self.scale, self.scale))

    def log_likelihood(self, X: Array) -> Array:
        """Return the logarithm of each row's density, ``(n,)``.

        Without noise, rows outside the subspace of the components have a density of zero.
        """
        k, d = self.components.shape
        v = float(self.noise_variance)
        centered = (X - self.mean) / self.scale
        scores = centered @ self.components.T
        precision_along, precision_outside = self.inverse_variances()
        squares = (centered**2).sum(axis=1)
        outside = np.maximum(squares - (scores**2).sum(axis=1), 0.0)
        distance = (scores**2) @ precision_along + precision_outside * outside
        positive = self.explained_variance[self.has_variance()]
        n_dimensions = d if v > 0 else len(positive)
        log_det = np.log(positive).sum() + 2 * np.log(self.scale).sum()
        log_det += (d - k) * np.log(v) if v > 0 else 0.0
        density = -0.5 * (distance + n_dimensions * np.log(2 * np.pi) + log_det)
        if v > 0 or k == d:
            return np.asarray(density)
        return np.where(outside > MAX_OUTSIDE_SHARE * squares, -np.inf, density)

    def cos2(self, feature_variances: Any = None) -> Array:
        """Return the share of each feature's variance that each component explains, ``(d, k)``.

        A feature without variance has the share 0. If the model has no scale, and there is variance
        outside its components, the features' variances do not follow from the model and must be given.
        """
        explained = self.explained_variance * self.components.T**2
        if feature_variances is not None:
            variances = np.asarray(feature_variances, float)
            if variances.shape != self.mean.shape or not (variances >= 0).all():
                raise InputError(
                    f"feature_variances must be {len(self.mean)} nonnegative numbers, one for each "
                    "feature"
                )
            variances = variances / self.scale**2
        elif self.noise_variance <= VARIANCE_ROUNDING * self.total_variance:
            variances = explained.sum(axis=1)
        elif (self.scale != 1).any():
            positive = self.has_variance()
            n_less_one = (
                self.singular_values[positive][0] ** 2 / self.explained_variance[positive][0]
            )
            variances = np.full(len(self.mean), (n_less_one + 1) / n_less_one)
        else:
            raise InputError(
                "the variance of each feature does not follow from the model; pass feature_variances, "
                "as in fedpca.diagnose(model, sites).feature_variances, or fit with scale=True"
            )
        tiny = VARIANCE_ROUNDING * float(variances.max(initial=0.0))
        share = np.divide(
            explained,
            variances[:, None],
            out=np.zeros_like(explained),
            where=variances[:, None] > tiny,
        )
        return np.asarray(np.minimum(share, 1.0))

    def has_variance(self) -> Array:
        """Return a mask of the components with more variance than rounding alone would leave."""
        rounding = self.components.shape[1] * np.finfo(np.float64).eps
        return np.asarray(
            self.explained_variance > rounding * self.explained_variance.max(initial=0)
        )

    def _directions(self, whiten: bool) -> Array:
        """Return the matrix, ``(d, k)``, that turns centered rows into scores."""
        directions = (self.components / self.scale).T
        return np.asarray(directions / self._deviations() if whiten else directions)

    def _deviations(self) -> Array:
        """Return the standard deviations of scores, kept away from zero as in scikit-learn."""
        return np.maximum(np.sqrt(self.explained_variance), np.finfo(np.float64).eps)

    def _inflate(self, along: Array, outside: float) -> Array:
        """Return ``C' diag(along) C + outside (I - C'C)``."""
        C = self.components
        return np.asarray((C.T * (along - outside)) @ C + outside * np.eye(C.shape[1]))

    def inverse_variances(self) -> tuple[Array, float]:
        """Return inverse variances along and outside the components, or zero where nothing varies."""
        v = float(self.noise_variance)
        along = self.explained_variance
        positive = self.has_variance()
        with np.errstate(over="ignore"):  # a variance may be barely above zero
            inverse = np.where(positive, 1 / np.where(positive, along, 1.0), 0.0)
        return inverse, 1 / v if v > 0 else 0.0

    def arrays(self) -> Arrays:
        """Return the arrays by name, as stored in a file."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def save(self, path: str | os.PathLike[str], header: dict[str, Any]) -> None:
        """Write the model and its header to a file atomically."""
        write_arrays(path, self.arrays(), header)


def load_model(path: str | os.PathLike[str]) -> tuple[Model, dict[str, Any]]:
    """Read a model and its header from a file, and validate both."""
    arrays, header = read_arrays(path, "model")
    return linear_model_in(path, arrays, header), header


def linear_model_in(path: str | os.PathLike[str], arrays: Arrays, header: dict[str, Any]) -> Model:
    """Return the model of a file that has been read; refuse a summary."""
    if header.get("kind") == "summary":
        raise FileError(f"{path} is a summary, not a model; use `fedpca merge` to convert it")
    return model_in(path, arrays, header)


def model_in(path: str | os.PathLike[str], arrays: Arrays, header: dict[str, Any]) -> Model:
    """Return the model from a file's arrays after validating them."""
    table = {name: f"float64 {shape}" for name, shape in MODEL_SHAPES.items()}
    arrays, lengths = check_file_arrays(path, arrays, table)
    check_features(path, header.get("features"), lengths["d"])
    n = header.get("n_samples")
    if not isinstance(n, int) or n < 1:
        raise FileError(
            f"{path}: n_samples is {n!r}; it must be a positive integer; rewrite the file"
        )
    if not isinstance(header.get("parameters"), dict):
        raise FileError(f"{path}: the header has no parameters; rewrite the file")
    return Model(**arrays)
