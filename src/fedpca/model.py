"""A fitted linear model, what it does with new rows, and its file.

With components ``C`` (k x d, orthonormal rows), variances ``l`` and noise variance ``v``, scores are
``t = C ((x - m) / s)`` and rows have the density of the normal distribution with covariance
``S = D (C' diag(l - v) C + v I) D``, ``D = diag(s)`` (Tipping and Bishop, "Mixtures of probabilistic
principal component analysers", 1999). Nothing here forms ``S`` but the methods that return it.

A file is in safetensors format with a JSON header; reading it checks everything and runs no code.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fedpca.errors import FileError
from fedpca.linalg import fix_signs
from fedpca.message import Array
from fedpca.rows import is_sparse
from fedpca.tensorfile import Arrays, check_arrays, check_features, read_arrays, write_arrays

SAME_SUBSPACE = 1e-12  # part of a row's squares outside a subspace that is still rounding
SHAPES: dict[str, tuple[str, ...]] = {
    "components": ("k", "d"),
    "explained_variance": ("k",),
    "singular_values": ("k",),
    "mean": ("d",),
    "scale": ("d",),
    "noise_variance": (),
    "total_variance": (),
}


@dataclass(frozen=True)
class Model:
    """Components and what is needed to use them."""

    components: Array  # (k, d)
    explained_variance: Array  # (k,)
    singular_values: Array  # (k,)
    mean: Array  # (d,)
    scale: Array  # (d,)
    noise_variance: Array  # ()
    total_variance: Array  # ()

    def transform(self, X: Any, *, whiten: bool = False) -> Array:
        """Scores of rows, ``(n, k)``, of unit variance where ``whiten``; sparse rows stay sparse."""
        directions = (self.components / self.scale).T
        if whiten:
            directions = directions / self._deviations()
        if is_sparse(X):
            return np.asarray(X @ directions - self.mean @ directions)
        return np.asarray((X - self.mean) @ directions)

    def inverse_transform(self, scores: Array, *, whiten: bool = False) -> Array:
        """The rows, ``(n, d)``, that have these scores and nothing outside the components."""
        if whiten:
            scores = scores * self._deviations()
        return np.asarray(scores @ (self.components * self.scale) + self.mean)

    def covariance(self) -> Array:
        """The covariance that the model gives rows, ``(d, d)``."""
        inner = self._inflate(self.explained_variance, float(self.noise_variance))
        return np.asarray(inner * np.outer(self.scale, self.scale))

    def precision(self) -> Array:
        """The inverse of the covariance; its pseudo-inverse where there is no noise."""
        inner = self._inflate(*self._inverse_variances())
        return np.asarray(inner / np.outer(self.scale, self.scale))

    def log_likelihood(self, X: Array) -> Array:
        """The logarithm of the density of each row, ``(n,)``.

        Without noise the density lives in the components' subspace alone: rows outside it have none.
        """
        k, d = self.components.shape
        v = float(self.noise_variance)
        centred = (X - self.mean) / self.scale
        scores = centred @ self.components.T
        precise, precise_left = self._inverse_variances()
        squares = (centred**2).sum(axis=1)
        outside = np.maximum(squares - (scores**2).sum(axis=1), 0.0)
        distance = (scores**2) @ precise + precise_left * outside
        positive = self.explained_variance[self._has_variance()]
        n_dimensions = d if v > 0 else len(positive)
        log_det = np.log(positive).sum() + 2 * np.log(self.scale).sum()
        log_det += (d - k) * np.log(v) if v > 0 else 0.0
        density = -0.5 * (distance + n_dimensions * np.log(2 * np.pi) + log_det)
        if v > 0 or k == d:
            return np.asarray(density)
        return np.where(outside > SAME_SUBSPACE * squares, -np.inf, density)

    def _has_variance(self) -> Array:
        """Which components have more variance than rounding leaves of none."""
        rounding = self.components.shape[1] * np.finfo(np.float64).eps
        return np.asarray(
            self.explained_variance > rounding * self.explained_variance.max(initial=0)
        )

    def _deviations(self) -> Array:
        """Standard deviations of scores, kept away from zero as scikit-learn does."""
        return np.maximum(np.sqrt(self.explained_variance), np.finfo(np.float64).eps)

    def _inflate(self, along: Array, outside: float) -> Array:
        """``C' diag(along) C + outside (I - C'C)``."""
        C = self.components
        return np.asarray((C.T * (along - outside)) @ C + outside * np.eye(C.shape[1]))

    def _inverse_variances(self) -> tuple[Array, float]:
        v = float(self.noise_variance)
        along = self.explained_variance
        positive = self._has_variance()
        with np.errstate(over="ignore"):  # of variances that are hardly above zero
            inverse = np.where(positive, 1 / np.where(positive, along, 1.0), 0.0)
        return inverse, 1 / v if v > 0 else 0.0

    def arrays(self) -> Arrays:
        """The arrays by name, as a file holds them."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def save(self, path: str | os.PathLike[str], header: dict[str, Any]) -> None:
        """Write the model and what ``header`` says about it, whole or not at all."""
        write_arrays(path, self.arrays(), header)


def model_of(
    vectors: Array,
    eigenvalues: Array,
    energy: float,
    n: float,
    mean: Array,
    scale: Array,
    n_seen: int | None = None,
) -> Model:
    """The model whose components are the leading eigenvectors, ``(d, k)``, of the scatter of n rows.

    ``energy`` is the trace of the scatter, whose eigenvalues over ``n - 1`` are variances. Rows that
    weigh less than one each have come ``n_seen`` times; below two there is half of n in its place, so
    that one row has a finite variance.
    """
    d, k = vectors.shape
    freedom = n - 1 if n >= 2 else max(n, 1e-300) / 2
    variance = eigenvalues / freedom
    total = energy / freedom
    left = max(0.0, total - float(variance.sum()))
    n_left = max(min(n if n_seen is None else n_seen, d) - k, 0)
    return Model(
        components=np.ascontiguousarray(fix_signs(vectors).T),
        explained_variance=variance,
        singular_values=np.sqrt(eigenvalues),
        mean=mean,
        scale=scale,
        noise_variance=np.array(left / n_left if n_left else 0.0),
        total_variance=np.array(total),
    )


def load_model(path: str | os.PathLike[str]) -> tuple[Model, dict[str, Any]]:
    """The model in a file and its header, after every check."""
    arrays, header = read_arrays(path, "model")
    if header.get("kind") == "summary":
        raise FileError(f"{path} is a summary; make it a model with `fedpca merge`")
    return model_in(path, arrays, header), header


def model_in(path: str | os.PathLike[str], arrays: Arrays, header: dict[str, Any]) -> Model:
    """The model among the arrays of a file, after every check."""
    lengths = check_arrays(path, "model", arrays, SHAPES)
    check_features(path, header.get("features"), lengths["d"])
    n = header.get("n_samples")
    if not isinstance(n, int) or n < 1:
        raise FileError(f"{path}: n_samples is {n!r}, not a number of rows")
    if not isinstance(header.get("parameters"), dict):
        raise FileError(f"{path} has a header without parameters")
    return Model(**{name: arrays[name] for name in SHAPES})
