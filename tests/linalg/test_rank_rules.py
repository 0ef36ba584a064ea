"""How many components a spectrum shows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA

from fedpca.linalg.rank_rules import Spectrum, largest_gap, marchenko_pastur, rank_rule, share

RNG = np.random.default_rng(0)


def spectrum(values, total=None, n=1000, d=None):
    values = np.asarray(values, float)
    return Spectrum(values, values.sum() if total is None else total, n, d or len(values))


def test_a_share_is_reached_by_the_fewest_components():
    values = [4.0, 3.0, 2.0, 1.0]
    assert share(0.39)(spectrum(values)) == 1
    assert share(0.4)(spectrum(values)) == 2  # more than the share, as scikit-learn
    assert share(0.9999)(spectrum(values)) == 4
    assert share(0.9)(spectrum(values[:2], total=10.0, d=4)) is None
    assert share(0.999)(spectrum([1.0, 0.5], total=10.0, d=2)) == 2


@pytest.mark.parametrize("planted", [1, 7, 25])
@pytest.mark.parametrize(("n", "d"), [(3000, 60), (200, 400)])
def test_the_marchenko_pastur_edge_finds_a_planted_rank(planted, n, d):
    rng = np.random.default_rng(planted)
    deviations = np.ones(d)
    deviations[:planted] = 8.0
    X = rng.standard_normal((n, d)) * deviations
    values = np.linalg.svd(X - X.mean(0), compute_uv=False) ** 2 / (n - 1)
    assert marchenko_pastur(spectrum(values, n=n, d=d)) == planted
    seen = spectrum(values[: planted + 1], total=values.sum(), n=n, d=d)
    assert marchenko_pastur(seen) == planted
    if planted > 1:
        assert marchenko_pastur(spectrum(values[: planted - 1], values.sum(), n, d)) is None


def test_noise_alone_and_no_noise_at_all():
    assert marchenko_pastur(spectrum([1.0, 1.0, 1.0, 1.0])) == 1
    assert marchenko_pastur(spectrum([3.0, 2.0, 0.0, 0.0])) == 2
    assert marchenko_pastur(spectrum([3.0, 2.0, 1.0], n=10**9)) == 2  # the last may be noise


def test_the_largest_gap_is_looked_for_behind_the_first_component():
    values = [10.0, 4.0, 3.8, 3.6, 0.5, 0.4]
    assert largest_gap(spectrum(values)) == 4
    assert largest_gap(spectrum(values[:3], total=30.0, d=6)) is None
    assert largest_gap(spectrum(values[:5], total=30.0, d=6)) == 4  # no later gap can be larger
    assert largest_gap(spectrum([2.0, 1.0])) == 1
    assert largest_gap(spectrum([9.0, 8.0, 7.0, 4.0, 3.0, 0.0], n=6, d=50)) == 3  # not the last


def test_a_number_of_components_is_checked_against_rows_and_features():
    assert rank_rule(None, n=5, d=9).first_look == 5
    assert rank_rule("mp", n=5, d=9).first_look == 5
    assert rank_rule(0.5, n=50, d=90).first_look == 10
    with pytest.raises(ValueError, match="use at most 5"):
        rank_rule(6, n=5, d=9)


def test_a_share_that_equals_a_sum_of_shares_is_that_of_scikit_learn():
    """One third of three equal variances, and the like, in rounded numbers."""
    for d in range(2, 12):
        deviations = np.sqrt(np.arange(d, 0, -1.0))
        X = np.vstack([np.diag(deviations), -np.diag(deviations)])
        reference = PCA(svd_solver="covariance_eigh").fit(X)
        for wanted in np.cumsum(reference.explained_variance_ratio_)[:-1]:
            expected = PCA(wanted, svd_solver="full").fit(X)
            values = PCA(svd_solver="full").fit(X).explained_variance_
            spectrum = Spectrum(values, float(values.sum()), len(X), d)
            assert share(wanted)(spectrum) == expected.n_components_
