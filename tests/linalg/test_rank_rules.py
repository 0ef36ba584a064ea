"""How many components a spectrum shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.decomposition import PCA

from fedpca import FederatedPCA
from fedpca.linalg.parallel_analysis import count_above, permuted_floor
from fedpca.linalg.rank_rules import (
    NEEDS_MORE_EIGENVALUES,
    RankComparison,
    Spectrum,
    broken_stick,
    compare_ranks,
    gavish_donoho,
    largest_gap,
    marchenko_pastur,
    rank_rule,
    share,
    threshold_factor,
)

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
        reference = PCA(svd_solver="full").fit(X)
        for wanted in np.cumsum(reference.explained_variance_ratio_)[:-1]:
            expected = PCA(wanted, svd_solver="full").fit(X)
            values = PCA(svd_solver="full").fit(X).explained_variance_
            spectrum = Spectrum(values, float(values.sum()), len(X), d)
            assert share(wanted)(spectrum) == expected.n_components_


def test_a_share_equal_to_a_sum_of_a_models_own_shares_takes_one_more():
    for seed in range(8):
        rng = np.random.default_rng(seed)
        sites = [rng.normal(size=(12, 6)), rng.normal(size=(18, 6))]
        for solver in ("covariance", "tsqr"):
            model = FederatedPCA(solver=solver).fit(sites)
            wanted = np.cumsum(model.explained_variance_ratio_)[seed % 5]
            fewer = FederatedPCA(float(wanted), solver=solver).fit(sites)
            assert fewer.n_components_ == seed % 5 + 2


def planted(n=400, d=30, k=4, seed=0):
    """The spectrum of rows with k components in noise that is the same in all directions."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    X = rng.standard_normal((n, d)) * np.r_[np.linspace(6, 4, k), np.ones(d - k)] @ turn
    values = np.linalg.svd(X - X.mean(axis=0), compute_uv=False) ** 2
    return Spectrum(values[: min(n, d)], values.sum(), n, d)


@pytest.mark.parametrize(("n", "d"), [(400, 30), (60, 200), (100, 100)])
@pytest.mark.parametrize("k", [1, 4])
def test_rules_for_comparison_find_the_planted_rank(n, d, k):
    spectrum = planted(n, d, k)
    assert gavish_donoho(spectrum) == k
    assert broken_stick(spectrum) == k
    compared = compare_ranks(spectrum, {"own": k, "silent": "it was not asked", "open": None})
    assert compared.consensus == k
    assert compared.unknown == {"silent": "it was not asked", "open": NEEDS_MORE_EIGENVALUES}


def test_the_threshold_is_the_published_one():
    # Gavish and Donoho: 4/sqrt(3) over the root of the median of square noise, and a polynomial
    assert threshold_factor(1.0) == pytest.approx(2.858, abs=5e-4)
    for b in (0.1, 0.3, 0.5, 0.8, 1.0):
        fitted = 0.56 * b**3 - 0.95 * b**2 + 1.82 * b + 1.43
        assert threshold_factor(b) == pytest.approx(fitted, abs=0.02)


def test_pieces_of_a_broken_stick_are_the_published_ones():
    pieces = np.array([0.5208, 0.2708, 0.1458, 0.0625])  # Jackson (1993), of four pieces
    for k in range(1, 5):
        shares = pieces + np.where(np.arange(4) < k, 1e-3, -1e-3)
        assert broken_stick(Spectrum(shares, 1.0, 50, 4)) == k
    assert broken_stick(Spectrum(pieces[:2] + 1e-3, 1.0, 50, 4)) is None
    assert broken_stick(Spectrum(pieces - 1e-3, 1.0, 50, 4)) == 0


def test_a_part_of_the_spectrum_has_no_median():
    spectrum = planted()
    assert gavish_donoho(replace(spectrum, values=spectrum.values[:20])) is None
    assert compare_ranks(replace(spectrum, values=spectrum.values[:20])).unknown == {
        "gavish-donoho": NEEDS_MORE_EIGENVALUES
    }


def test_the_consensus_is_the_lower_median():
    assert RankComparison({"a": 2, "b": 3, "c": 9}).consensus == 3
    assert RankComparison({"a": 2, "b": 3}).consensus == 2
    assert RankComparison({}).consensus is None
    assert not RankComparison({"a": 2, "b": 3}).agrees


def test_permuted_columns_have_no_component():
    rng = np.random.default_rng(0)
    for shape in ((200, 20), (30, 90)):
        A = rng.standard_normal((shape[0], 2)) @ rng.standard_normal((2, shape[1])) * 2
        A += rng.standard_normal(shape)
        values = np.linalg.svd(A, compute_uv=False) ** 2
        assert count_above(values, permuted_floor(A, len(values), 20)) == 2
