"""A fitted linear model, what it does with new rows, and its file.

With components ``C`` (k x d, orthonormal rows), variances ``l`` and noise variance ``v``, scores are
``t = C ((x - m) / s)`` and rows have the density of the normal distribution with covariance
``S = D (C' diag(l - v) C + v I) D``, ``D = diag(s)`` (Tipping and Bishop, "Mixtures of probabilistic
principal component analysers", 1999). Nothing here forms ``S`` but the methods that return it.

A file is in safetensors format with a JSON header; reading it checks everything and runs no code.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedpca import atomic
from fedpca._version import __version__
from fedpca.errors import FileError
from fedpca.message import Array
from fedpca.rows import is_sparse

FORMAT = 1
SAME_SUBSPACE = 1e-12  # part of a row's squares outside a subspace that is still rounding
HEADER = "fedpca"  # the one key of the file's metadata


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
        inverse = np.where(positive, 1 / np.where(positive, along, 1.0), 0.0)
        return inverse, 1 / v if v > 0 else 0.0

    def save(self, path: str | os.PathLike[str], header: dict[str, Any]) -> None:
        """Write the model and what ``header`` says about it, whole or not at all."""
        about = {"format": FORMAT, "version": __version__, **header}
        # ascontiguousarray would turn a scalar into a vector
        arrays = {f.name: np.asarray(getattr(self, f.name), order="C") for f in fields(self)}
        with atomic.writing(path) as temporary:
            text = json.dumps(about, sort_keys=True)
            save_file(arrays, temporary, metadata={HEADER: text})


def load_model(path: str | os.PathLike[str]) -> tuple[Model, dict[str, Any]]:
    """The model in a file and its header, after every check."""
    path = Path(path)
    if not path.is_file():
        raise FileError(f"{path} does not exist")
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get(HEADER, "null"))
            names = set(file.keys())
            arrays = {f.name: file.get_tensor(f.name) for f in fields(Model) if f.name in names}
    except (SafetensorError, ValueError) as error:
        raise FileError(f"{path} is not a readable model file: {error}") from None
    if not isinstance(header, dict) or len(arrays) < len(fields(Model)):
        raise FileError(f"{path} is not a model of fedpca")
    if header.get("format") != FORMAT:
        raise FileError(f"{path} has format {header.get('format')}; this fedpca reads {FORMAT}")
    _check(path, arrays)
    _check_header(path, header, arrays["mean"].size)
    return Model(**arrays), header


def _check(path: Path, arrays: dict[str, Array]) -> None:
    shape = arrays["components"].shape
    k, d = shape if len(shape) == 2 else (-1, -1)
    due = {
        "components": (k, d),
        "explained_variance": (k,),
        "singular_values": (k,),
        "mean": (d,),
        "scale": (d,),
        "noise_variance": (),
        "total_variance": (),
    }
    for name, array in arrays.items():
        if array.shape != due[name] or array.dtype != np.float64:
            raise FileError(
                f"{path}: {name} is {array.dtype} {array.shape}, not float64 {due[name]}"
            )
        if not np.isfinite(array).all():
            raise FileError(f"{path}: {name} has values that are not finite")


def _check_header(path: Path, header: dict[str, Any], d: int) -> None:
    features = header.get("features")
    are_names = isinstance(features, list) and all(isinstance(name, str) for name in features)
    if features is not None and not (are_names and len(features) == d):
        raise FileError(f"{path}: the names of its {d} features are not {d} words")
    if not isinstance(header.get("n_samples"), int):
        raise FileError(f"{path}: n_samples is {header.get('n_samples')!r}, not a number")
    if not isinstance(header.get("parameters"), dict):
        raise FileError(f"{path} has a header without parameters")
