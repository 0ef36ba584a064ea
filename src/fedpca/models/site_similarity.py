"""Measure how similar sites are by comparing their local components.

    affinity(i, j) = (tr P_i P_j / sqrt(r_i r_j))^2,   distance(i, j) = ||P_i - P_j||_F,

where P_i is the projection onto the r_i components of site i. The affinity of two sites is 1 if their
subspaces are equal and 0 if they are orthogonal.

Source: Shi and Kontar, "Personalized PCA: decoupling shared and unique features" (2024), section 7.1.7.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError

Components = Mapping[str, Array]  # by site, each (r, d) with r at least 1


def site_affinity(sites: Components) -> Array:
    """Return the affinity of each pair of sites, ``(n_sites, n_sites)``, from 0 to 1."""
    common, ranks = _overlaps(sites)
    return np.asarray((common / np.sqrt(np.outer(ranks, ranks))) ** 2)


def cluster_sites(sites: Components, n_clusters: int, random_state: Any = 0) -> dict[str, int]:
    """Group sites with similar components by spectral clustering of their affinities."""
    from sklearn.cluster import SpectralClustering  # slow to import

    affinity = site_affinity(sites)
    if not isinstance(n_clusters, Integral) or not 1 <= n_clusters <= len(affinity):
        raise InputError(
            f"n_clusters={n_clusters!r} must be an integer from 1 to the number of sites, "
            f"which is {len(affinity)}"
        )
    if n_clusters in (1, len(affinity)):
        labels = np.arange(len(affinity)) if n_clusters > 1 else np.zeros(len(affinity))
    else:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Graph is not fully connected")
            labels = SpectralClustering(
                n_clusters, affinity="precomputed", random_state=random_state
            ).fit_predict(affinity)
    return dict(zip(sites, map(int, labels), strict=True))


def map_sites(sites: Components, n_dimensions: int = 2) -> Array:
    """Map each site to a point, ``(n_sites, n_dimensions)``, by classical multidimensional scaling.

    Distances between points approximate the distances between the sites' subspaces.
    """
    common, ranks = _overlaps(sites)
    squares = ranks[:, None] + ranks - 2 * common
    if n_dimensions < 1:
        raise InputError(f"n_dimensions={n_dimensions} must be at least 1")
    inner = -(squares - squares.mean(axis=0) - squares.mean(axis=1)[:, None] + squares.mean()) / 2
    values, vectors = np.linalg.eigh(inner)
    order = np.argsort(-values, kind="stable")[:n_dimensions]
    points = vectors[:, order] * np.sqrt(np.maximum(values[order], 0.0))
    return np.pad(points, ((0, 0), (0, n_dimensions - len(order))))


def _overlaps(sites: Components) -> tuple[Array, Array]:
    """Return ``tr P_i P_j = ||V_i'V_j||_F^2`` for all pairs of sites, and their ranks."""
    components = list(sites.values())
    ranks = np.array([float(len(V)) for V in components])
    stacked = np.vstack(components)
    squares = (stacked @ stacked.T) ** 2
    starts = np.concatenate([[0], np.cumsum([len(V) for V in components])[:-1]])
    return np.add.reduceat(np.add.reduceat(squares, starts, axis=0), starts, axis=1), ranks
