"""Whether groups of sites are real."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca import PersonalizedPCA
from fedpca.errors import InputError
from fedpca.models.site_similarity import cluster_evidence


def sites_of(kind, seed, n_sites=10, d=12, n=60):
    """Return two leading directions of each site: of one population, of two, or of its own."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(d, d)))[0].T
    sites = {}
    for i in range(n_sites):
        spread = np.ones(d)
        if kind == "own":
            B = np.linalg.qr(rng.normal(size=(d, 2)))[0].T
        elif kind == "two":
            B = Q[:2] if i % 2 else Q[2:4]
        elif kind == "half":
            B = Q[[0, 1 + i % 2]]
        else:
            B, spread = Q[:2], np.linspace(1.8, 0.2, d)
        rows = 3 * rng.normal(size=(n, 2)) @ B + spread * rng.normal(size=(n, d))
        sites[str(i)] = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][:2]
    return sites


@pytest.mark.parametrize("kind", ["one", "own"])
@pytest.mark.parametrize("seed", range(5))
def test_groups_of_one_population_are_no_evidence(kind, seed):
    evidence = cluster_evidence(sites_of(kind, seed), 2, n_draws=40)
    assert evidence.p_value > 0.2
    assert evidence.separation < 1.2 * evidence.expected


@pytest.mark.parametrize("kind", ["two", "half"])
@pytest.mark.parametrize("seed", range(5))
def test_groups_that_are_there_are_evidence(kind, seed):
    evidence = cluster_evidence(sites_of(kind, seed), 2, n_draws=99)
    assert evidence.p_value <= 0.05
    assert evidence.separation > evidence.expected
    halves = [evidence.clusters[str(i)] for i in range(10)]
    assert halves[::2] == [halves[0]] * 5
    assert halves[1::2] == [1 - halves[0]] * 5


def test_the_evidence_is_repeatable_and_checked():
    sites = sites_of("two", 0)
    assert cluster_evidence(sites, 2, 20) == cluster_evidence(sites, 2, 20)
    with pytest.raises(InputError, match="n_draws=0 must be"):
        cluster_evidence(sites, 2, 0)
    with pytest.raises(InputError, match="n_clusters=11 must be"):
        cluster_evidence(sites, 11)


def test_the_estimator_tells_the_evidence():
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(8, 8)))[0].T
    sites = {
        f"s{i}": rng.normal(size=(60, 2)) * [3, 2] @ Q[[0, 1 + i % 2]]
        + 0.3 * rng.normal(size=(60, 8))
        for i in range(8)
    }
    pca = PersonalizedPCA(1, 1, random_state=0).fit(sites)
    evidence = pca.cluster_evidence(2)
    assert evidence.clusters == pca.cluster_sites(2)
    assert evidence.p_value < 0.05
