"""Measure how similar sites are by comparing their local components.

    affinity(i, j) = (tr P_i P_j / sqrt(r_i r_j))^2,   distance(i, j) = ||P_i - P_j||_F,

where P_i is the projection onto the r_i components of site i. The affinity of two sites is 1 if their
subspaces are equal and 0 if they are orthogonal.

Even sites without groups can be divided into groups. So `cluster_evidence` compares the groups with
those that one population would give. Each projection is treated as a point. S_t is the sum of squared
distances from the points to their mean. S_w is the sum of squared distances from the points to the
means of their groups:

    separation = 1 - S_w / S_t,   p = share of draws whose separation is at least as large

A draw consists of the same number of points from one normal distribution with the principal variances
of the projections. Its groups are the best ones that k-means finds.

Source: Shi and Kontar, "Personalized PCA: decoupling shared and unique features" (2024), section 7.1.7.
The comparison with one normal distribution is from Liu, Hayes, Nobel, and Marron, "Statistical
significance of clustering for high-dimension, low-sample size data" (2008).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError

SiteComponents = Mapping[str, Array]  # by site, each (r, d) with r at least 1
KMEANS_STARTS = 10  # per draw; with too few, groups from one population would look too weak
KMEANS_PASSES = 50


class ClusterEvidence(NamedTuple):
    """How well sites fall into groups, compared with sites from one population.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import PersonalizedPCA
    >>> rng = np.random.default_rng(0)
    >>> shared, *own = np.eye(6)[:4] * 4
    >>> sites = [rng.normal(size=(40, 2)) @ [shared, v] + rng.normal(size=(40, 6)) for v in own]
    >>> pca = PersonalizedPCA(1, 1, random_state=0).fit([*sites, *sites])
    >>> evidence = pca.cluster_evidence(3)
    >>> evidence.clusters["site-1"] == evidence.clusters["site-4"], evidence.p_value < 0.05
    (True, True)
    """

    clusters: dict[str, int]  # as `cluster_sites` returns them
    separation: float  # the share of the sites' variance that lies between groups, from 0 to 1
    expected: float  # the mean separation of sites from one population
    p_value: float  # the share of draws from one population that separate at least as well


def site_affinity(sites: SiteComponents) -> Array:
    """Return the affinity of each pair of sites, ``(n_sites, n_sites)``, from 0 to 1."""
    common, ranks = _overlaps(sites)
    return np.asarray((common / np.sqrt(np.outer(ranks, ranks))) ** 2)


def cluster_sites(sites: SiteComponents, n_clusters: int, random_state: Any = 0) -> dict[str, int]:
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


def cluster_evidence(
    sites: SiteComponents, n_clusters: int, n_draws: int = 200, random_state: Any = 0
) -> ClusterEvidence:
    """Group sites, and compare the groups with those of sites from one population."""
    if not isinstance(n_draws, Integral) or n_draws < 1:
        raise InputError(f"n_draws={n_draws!r} must be an integer of at least 1")
    clusters = cluster_sites(sites, n_clusters, random_state)
    points = site_points(sites, len(sites))
    found = _separation(points, np.array(list(clusters.values())))
    deviations = np.sqrt((points**2).sum(axis=0) / max(1, len(points) - 1))
    rng = np.random.default_rng(random_state)
    drawn = [
        _best_separation(rng.standard_normal(points.shape) * deviations, n_clusters, rng)
        for _ in range(n_draws)
    ]
    # what was found counts as one of the draws, so the probability is never zero
    p_value = (1 + sum(value >= found for value in drawn)) / (1 + n_draws)
    return ClusterEvidence(clusters, found, float(np.mean(drawn)), p_value)


def _best_separation(points: Array, n_clusters: int, rng: np.random.Generator) -> float:
    """Return the separation of the best groups that k-means finds from several starts.

    All starts run side by side. For ten points, scikit-learn's KMeans takes 200 times as long.
    """
    order = rng.permuted(np.tile(np.arange(len(points)), (KMEANS_STARTS, 1)), axis=1)
    centers = points[order[:, :n_clusters]]  # (starts, k, dimensions)
    squares = (points**2).sum(axis=1)[:, None]
    groups = np.full((KMEANS_STARTS, len(points)), -1)
    for _ in range(KMEANS_PASSES):
        to_centers = (
            squares - 2 * points @ centers.swapaxes(1, 2) + (centers**2).sum(axis=2)[:, None]
        )
        last, groups = groups, to_centers.argmin(axis=2)
        if (groups == last).all():
            break
        members = groups[:, None] == np.arange(n_clusters)[:, None]  # (starts, k, n)
        n_members = members.sum(axis=2)[..., None]
        centers = np.where(n_members > 0, members @ points / np.maximum(n_members, 1), centers)
    return max(_separation(points, own) for own in groups)


def _separation(points: Array, groups: Array) -> float:
    """Return the share of the squared distances to the mean that lies between groups."""
    total = float(((points - points.mean(axis=0)) ** 2).sum())
    within = sum(
        float(((own - own.mean(axis=0)) ** 2).sum())
        for own in (points[groups == group] for group in np.unique(groups))
    )
    return 1 - within / total if total > 0 else 0.0


def site_points(sites: SiteComponents, n_dimensions: int = 2) -> Array:
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
    # the squares are distances between projections, so only rounding makes an eigenvalue negative
    points = vectors[:, order] * np.sqrt(np.maximum(values[order], 0.0))
    return np.pad(points, ((0, 0), (0, n_dimensions - len(order))))


def _overlaps(sites: SiteComponents) -> tuple[Array, Array]:
    """Return ``tr P_i P_j = ||V_i'V_j||_F^2`` for all pairs of sites, and the rank of each site."""
    components = list(sites.values())
    ranks = np.array([float(len(V)) for V in components])
    stacked = np.vstack(components)
    squares = (stacked @ stacked.T) ** 2
    starts = np.concatenate([[0], np.cumsum([len(V) for V in components])[:-1]])
    return np.add.reduceat(np.add.reduceat(squares, starts, axis=0), starts, axis=1), ranks
