"""Which sites are alike, by their own components.

    affinity(i, j) = (tr P_i P_j / sqrt(r_i r_j))^2,   distance(i, j) = ||P_i - P_j||_F,

with P_i the projection on the r_i components of site i. The affinity is 1 where two sites have the same
directions and 0 where these are orthogonal. Source: section 7.1.7 of Shi and Kontar, "Personalized
PCA: decoupling shared and unique features" (2024).
"""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedpca.errors import InputError
from fedpca.message import Array


class AffinityMixin:
    """What the local components say of the sites, for an estimator that knows them."""

    local_components_: dict[str, Array]

    def site_affinity(self) -> Array:
        """How alike the sites' own components are, ``(n_sites, n_sites)``, between 0 and 1.

        Sites are in the order of `local_components_`; those without components are left out, here and
        below.
        """
        common, ranks = self._overlaps()
        return np.asarray((common / np.sqrt(np.outer(ranks, ranks))) ** 2)

    def cluster_sites(self, n_clusters: int, random_state: Any = 0) -> dict[str, int]:
        """Sites in groups that have similar components, by spectral clustering of their affinity."""
        from sklearn.cluster import SpectralClustering  # slow to import

        affinity = self.site_affinity()
        if not isinstance(n_clusters, Integral) or not 1 <= n_clusters <= len(affinity):
            raise InputError(
                f"n_clusters={n_clusters!r} is not a number between 1 and the {len(affinity)} sites"
            )
        if n_clusters in (1, len(affinity)):
            labels = np.arange(len(affinity)) if n_clusters > 1 else np.zeros(len(affinity))
        else:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Graph is not fully connected")
                labels = SpectralClustering(
                    n_clusters, affinity="precomputed", random_state=random_state
                ).fit_predict(affinity)
        return dict(zip(self._named(), map(int, labels), strict=True))

    def site_map(self, n_dimensions: int = 2) -> Array:
        """A point for each site, ``(n_sites, n_dimensions)``, by classical multidimensional scaling.

        Distances between points are about those between the subspaces.
        """
        common, ranks = self._overlaps()
        squares = ranks[:, None] + ranks - 2 * common
        if n_dimensions < 1:
            raise InputError(f"n_dimensions={n_dimensions} must be at least 1")
        inner = (
            -(squares - squares.mean(axis=0) - squares.mean(axis=1)[:, None] + squares.mean()) / 2
        )
        values, vectors = np.linalg.eigh(inner)
        order = np.argsort(-values, kind="stable")[:n_dimensions]
        points = vectors[:, order] * np.sqrt(np.maximum(values[order], 0.0))
        return np.pad(points, ((0, 0), (0, n_dimensions - len(order))))

    def _named(self) -> dict[str, Array]:
        """The components of sites that have any."""
        check_is_fitted(self)
        found = {name: V for name, V in self.local_components_.items() if len(V)}
        if not found:
            raise InputError("no site's local components are known here; let fit gather=True")
        return found

    def _overlaps(self) -> tuple[Array, Array]:
        """``tr P_i P_j = ||V_i'V_j||_F^2`` of all pairs, and the ranks."""
        components = list(self._named().values())
        ranks = np.array([float(len(V)) for V in components])
        stacked = np.vstack(components)
        squares = (stacked @ stacked.T) ** 2
        ends = np.concatenate([[0], np.cumsum([len(V) for V in components])[:-1]])
        return np.add.reduceat(np.add.reduceat(squares, ends, axis=0), ends, axis=1), ranks
