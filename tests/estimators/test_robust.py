"""Low rank plus sparse across sites: the promises of `RobustPCA`."""

from __future__ import annotations

import itertools
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedpca import FederatedPCA, Federation, PersonalizedPCA, Policy, RobustPCA, Site, load
from fedpca.errors import FileError, InputError, QuorumLost
from fedpca.linalg.dense import orth, sine_of_angle
from fedpca.solvers.robust import hard
from fedpca.solvers.robust.at_site import Scores, SparsePart
from fedpca.testing import ScriptedEngine, spoil
from support import draws, every_other, first_of
from support import low_rank_rows as draw

METHODS = ["auto", "threshold", "least-squares", "dcf"]
every_method = pytest.mark.parametrize("method", METHODS)


def error(pca, X, L):
    """The relative error of the low-rank part."""
    return np.linalg.norm(pca.split(X).low_rank - L) / np.linalg.norm(L)


def fit(X, r=10, n_sites=10, **options):
    options = {"center": "none", "random_state": 0, **options}
    return RobustPCA(r, **options).fit(np.array_split(X, n_sites))


@pytest.mark.parametrize(("n", "rounds"), [(200, 16), (500, 15)])
def test_without_noise_the_low_rank_part_is_exact(n, rounds):
    X, L, bad = draw(n, r=n // 20)
    pca = fit(X, n // 20)
    assert error(pca, X, L) < 1e-8
    assert pca.run_.solver_rounds <= rounds
    assert pca.run_.stop_reason == "converged"
    assert ((pca.split(X).sparse != 0) == bad).all()
    assert sine_of_angle(np.linalg.svd(L)[2][: n // 20].T, pca.components_.T) < 1e-8
    assert np.allclose(
        pca.explained_variance_, np.linalg.svd(L)[1][: n // 20] ** 2 / (n - 1), rtol=1e-8
    )


@pytest.mark.parametrize(("rank", "share"), [(10, 0.3), (20, 0.2), (30, 0.1), (40, 0.1)])
def test_many_outliers_and_high_ranks_are_told_apart(rank, share):
    X, L, _ = draw(r=rank, share=share)
    assert error(fit(X, rank), X, L) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.01, 0.5])
def test_under_noise_it_is_within_a_twentieth_of_an_oracle(noise):
    X, L, bad = draw(noise=noise)
    U = np.linalg.svd(np.where(bad, 0, X))[2][:10].T
    V = np.where(bad, 0, X) @ U
    for _ in range(50):  # least squares that know which entries are bad
        D = np.where(bad, V @ U.T, X)
        U = np.linalg.svd(D, full_matrices=False)[2][:10].T
        V = D @ U
    oracle = np.linalg.norm(V @ U.T - L) / np.linalg.norm(L)
    pca = fit(X)
    assert error(pca, X, L) < 1.05 * oracle
    assert pca.noise_variance_ == pytest.approx(noise**2, rel=0.1)


def test_outliers_as_large_as_the_data_are_found():
    X, L, _ = draw(size=3.0)
    assert error(fit(X), X, L) < 1e-8


@pytest.mark.filterwarnings("ignore:solver 'least-squares'")
@pytest.mark.parametrize(
    "options",
    [{}, {"solver": "threshold"}, {"solver": "least-squares"}, {"r": None, "max_components": 20}],
)
def test_missing_values_are_filled_in(options):
    X, L, _ = draw()
    holes = np.random.default_rng(1).random(X.shape) < 0.2
    X = np.where(holes, np.nan, X)
    pca = fit(X, **options)
    assert pca.n_components_ == 10
    assert error(pca, X, L) < 1e-6
    parts = pca.split(X)
    assert np.isfinite(parts.low_rank).all()
    assert (parts.sparse[holes] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bounded", "center"), every_other([(10, 0.05), (11, 0.1), (20, 0.1)], ["none", "median"])
)
def test_the_rank_is_found_from_a_bound(bounded, center):
    bound, share = bounded
    X, L, _ = draw(share=share)
    pca = fit(X, None, max_components=bound, center=center)
    assert pca.n_components_ == 10
    assert error(pca, X, L) < 1e-8
    assert pca.run_.solver == "least-squares, threshold"


@pytest.mark.parametrize(
    ("moved", "bound"), every_other([(0.0, 0.0), (7.0, 0.0), (0.0, 0.05)], [3, 4, 6, 10])
)
def test_the_rank_is_found_about_a_center_that_moves(moved, bound):
    offset, noise = moved
    X, L, _ = draw(300, 40, r=3, noise=noise)
    pca = RobustPCA(max_components=bound, random_state=0).fit(np.array_split(X + offset, 5))
    assert pca.n_components_ == 3
    assert error(pca, X + offset, L + offset) < (0.02 if noise else 1e-8)


def test_a_bound_of_all_features_leaves_one():
    X, _, _ = draw(200, 8, r=7, size=100.0, share=0.01)
    assert RobustPCA(max_components=8, random_state=0).fit(X).n_components_ == 7


CORRUPTIONS = {
    "large": lambda rng, L: np.where(
        rng.random(L.shape) < 0.6, 200 * rng.choice([-1, 1], L.shape), L
    ),
    "noise": lambda rng, L: 200 * rng.standard_normal(L.shape),
    "shifted": lambda rng, L: L + 1000,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_corrupted_site_is_named_and_does_not_spoil_the_others(kind):
    X, L, _ = draw(120, r=6)
    parts, truth = np.array_split(X, 10), np.array_split(L, 10)
    parts[3] = CORRUPTIONS[kind](np.random.default_rng(1), truth[3])
    with pytest.warns(UserWarning, match=r"more than 40% .* at sites \{'site-4'"):
        pca = RobustPCA(6, center="none", random_state=0).fit(parts)
    assert pca.corrupted_sites_ == ["site-4"]
    others = [error(pca, parts[i], truth[i]) for i in range(10) if i != 3]
    assert max(others) < 1e-8
    assert pca.sparse_share_["site-1"] == pytest.approx(0.05, abs=0.02)
    without = np.linalg.svd(np.vstack(truth[:3] + truth[4:]))[1][:6] ** 2 / 107
    assert np.allclose(pca.explained_variance_, without, rtol=1e-6 if kind != "large" else 0.05)


def test_the_default_center_survives_outliers_on_one_side():
    rng = np.random.default_rng(0)
    _, L, _ = draw(300, 40, r=3)
    X = np.where(rng.random(L.shape) < 0.2, L + 300, L)
    assert error(RobustPCA(3, random_state=0).fit(np.array_split(X, 5)), X, L) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize(("share", "tol"), [(0.0, 1e-9), (0.05, 1e-6), (0.05, 0.0)])
@pytest.mark.filterwarnings("ignore:solver 'threshold'")
def test_small_outliers_of_new_rows_are_found(share, tol):
    X, L, bad = draw(share=share)
    new, fitted = slice(150, 200), slice(0, 150)
    pca = fit(X[fitted], tol=tol)
    assert ((pca.split(X[fitted]).sparse != 0) == bad[fitted]).all()
    rng = np.random.default_rng(0)
    few = rng.random((50, 200)) < 0.02
    rows = L[new] + np.where(few, 5.0, 0.0)
    parts = pca.split(rows)
    assert ((parts.sparse != 0) == few).all()
    assert np.allclose(parts.sparse[few], 5.0, atol=1e-3)


def falling(sizes, n=300, d=40, share=0.05, noise=0.0, missing=0.0, seed=0):
    """Rows whose components are of unlike sizes, and an orthonormal basis of these, ``(d, r)``."""
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.normal(size=(d, len(sizes))))[0]
    X = (rng.normal(size=(n, len(sizes))) * sizes) @ U.T * np.sqrt(d) + 5
    X += noise * rng.normal(size=X.shape) + 10 * (rng.random(X.shape) < share) * rng.normal(
        size=X.shape
    )
    return np.where(rng.random(X.shape) < missing, np.nan, X), U


@pytest.mark.parametrize(
    "drawn",
    [
        {"sizes": [1, 0.5, 0.25, 0.125], "share": 0.0},
        {"sizes": [1, 0.5, 0.25, 0.125]},
        {"sizes": [1, 0.5, 0.25, 0.125], "noise": 0.02, "missing": 0.3},
        {"sizes": [1, 0.1], "noise": 0.02},
        {"sizes": np.geomspace(1, 0.03, 8), "d": 60, "n": 400, "noise": 0.005},
        {"sizes": np.geomspace(1, 0.1, 6), "d": 60, "share": 0.2, "noise": 0.01},
        {"sizes": [1, 0.05, 0.05], "noise": 0.005},
    ],
)
def test_small_components_beside_large_ones_are_found_from_any_start(drawn):
    for seed in range(2):
        X, U = falling(**drawn, seed=seed)
        pca = RobustPCA(U.shape[1], random_state=seed).fit(np.array_split(X, 3))
        assert pca.run_.stop_reason == "converged"
        noise = drawn.get("noise", 0) / np.min(drawn["sizes"])
        assert sine_of_angle(pca.components_.T, U) < max(0.15 * noise, 1e-7)


def test_what_ran_is_told_where_components_are_of_unlike_size():
    X, _ = falling([1, 0.1])
    assert RobustPCA(2, random_state=0).fit(X).run_.solver == "least-squares, threshold"


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_rows_of_which_much_is_missing_are_fitted_to_the_rest(noise):
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(3, 20))
    low_rank = rng.normal(size=(800, 3)) @ mixing
    X = low_rank + noise * rng.normal(size=low_rank.shape)
    pca = RobustPCA(3, center="none", random_state=0).fit(X[:300])
    holes = rng.random((500, 20)) < 0.6
    rows, L = np.where(holes, np.nan, X[300:]), low_rank[300:]
    enough = (~holes).sum(axis=1) >= 6
    rows, L, holes = rows[enough], L[enough], holes[enough]
    best = np.array(
        [
            np.linalg.lstsq(pca.components_[:, p].T, x[p], rcond=None)[0]
            for x, p in zip(rows, ~holes, strict=True)
        ]
    )
    ours, least = (
        np.abs(found - L)[holes] for found in (pca.split(rows).low_rank, best @ pca.components_)
    )
    assert np.quantile(ours, 0.99) < max(1.5 * np.quantile(least, 0.99), 1e-9)
    if not noise:
        assert not pca.split(rows).sparse.any()


def test_constant_features_change_nothing():
    X, _, _ = draw(200, 20, r=3, noise=0.05, size=20.0)
    plain = RobustPCA(3, random_state=0).fit(X)
    Y = np.hstack([X, np.tile([7.0, 0.1, 0.0, 1e8, -3.0], (200, 5))])
    pca = RobustPCA(3, random_state=0).fit(Y)
    assert pca.threshold_ == pytest.approx(plain.threshold_, rel=1e-6)
    assert pca.sparse_share_ == plain.sparse_share_
    assert np.allclose(pca.explained_variance_, plain.explained_variance_, rtol=1e-6)
    assert not pca.components_[:, 20:].any()
    low_rank, sparse = pca.split(Y)
    assert np.allclose(low_rank[:, 20:], Y[:, 20:], rtol=1e-15)
    assert np.median(np.abs(low_rank[:, :20] - plain.split(X).low_rank)) < 1e-6
    assert not sparse[:, 20:].any()
    Y[3, 22] = 9.0  # constant no longer
    assert pca.split(Y).sparse[3, 22] == pytest.approx(9.0)


@pytest.mark.filterwarnings("ignore:solver 'least-squares'")
def test_the_rank_by_least_squares_does_not_depend_on_how_long_they_go_on():
    for seed in range(2):
        X, _, _ = draw(150, 30, r=3, noise=0.05, size=20.0, seed=seed)
        for max_rounds in (25, 200):
            options = {"solver": "least-squares", "max_rounds": max_rounds, "random_state": 0}
            assert RobustPCA(max_components=6, **options).fit(X).n_components_ == 3


@pytest.mark.filterwarnings("ignore:solver 'least-squares'")
@pytest.mark.filterwarnings("ignore:most entries of")
@pytest.mark.filterwarnings("ignore:more than 40%")
@pytest.mark.parametrize("method", ["auto", "threshold", "least-squares"])
@pytest.mark.parametrize(("n", "d", "r"), [(5, 50, 5), (2, 5, 2), (5, 5, 5)])
def test_as_many_components_as_rows_are_an_end_and_no_error(n, d, r, method):
    X = np.random.default_rng(0).normal(size=(n, d))
    pca = RobustPCA(r, solver=method, random_state=0).fit(X)
    assert np.isfinite(pca.components_).all()
    assert pca.explained_variance_[-1] < 1e-6 * max(pca.explained_variance_[0], 1.0)


def near_a_plane(seed=0):
    """300 rows in two directions, with a little noise."""
    rng = np.random.default_rng(seed)
    L = rng.normal(size=(300, 2)) @ rng.normal(size=(2, 20))
    return L + 0.01 * rng.normal(size=L.shape), L


@pytest.mark.filterwarnings("ignore:most entries of")
@pytest.mark.parametrize(
    ("wild", "scale"), every_other([1e15, -1e20, 9.97e36, 1e60], [False, True])
)
def test_one_entry_of_any_size_changes_nothing(wild, scale):
    X, L = near_a_plane()
    plain = RobustPCA(2, scale=scale, random_state=0).fit(X)
    expected = error(plain, X, L)
    X[5, 3] = wild
    pca = RobustPCA(2, scale=scale, random_state=0).fit(X)
    assert error(pca, X, L) < 1.2 * expected
    assert pca.run_.rounds <= plain.run_.rounds + 20
    assert np.allclose(pca.scale_, plain.scale_, rtol=0.03)


@pytest.mark.filterwarnings("ignore:most entries of")
def test_scale_leaves_features_alone_that_are_mostly_one_value():
    X, _ = near_a_plane()
    rng = np.random.default_rng(1)
    X[:, 4] = rng.random(300) < 0.3
    X[:, 5] = np.where(rng.random(300) < 0.4, 8.0, 0.1)
    X[7, 4] = 1e15
    pca = RobustPCA(2, scale=True, random_state=0).fit(X)
    assert pca.scale_[4] == 1
    assert pca.scale_[5] == pytest.approx(7.9)


@pytest.mark.filterwarnings("ignore:most entries of")
@pytest.mark.parametrize("center", ["median", "mean", "none"])
@pytest.mark.parametrize("value", [0.1, -3.3, 1e5])
def test_the_scale_of_a_constant_feature_is_one(value, center):
    X, _ = near_a_plane()
    X[:, 4] = value
    pca = RobustPCA(2, scale=True, center=center, random_state=0).fit(X)
    assert pca.scale_[4] == 1


def test_tables_that_are_mostly_zero_have_a_size():
    rng = np.random.default_rng(0)
    X = (rng.random((300, 20)) < 0.4) * (rng.random((300, 1)) + 1)
    plain = FederatedPCA(2).fit(X)
    pca = RobustPCA(2, random_state=0).fit(X)
    assert np.allclose(pca.explained_variance_, plain.explained_variance_, rtol=0.2)


@pytest.mark.filterwarnings("ignore:solver")
@every_method
def test_rows_without_any_value_have_no_say(method):
    X, _ = near_a_plane()
    empty = np.full((400, 20), np.nan)
    options = {"solver": method, "max_rounds": 60, "random_state": 0}
    plain = RobustPCA(2, **options).fit([X[:200], X[200:]])
    for parts in ([X[:200], X[200:], empty], [np.vstack([empty[:90], X[:200], empty]), X[200:]]):
        pca = RobustPCA(2, **options).fit(parts)
        assert sine_of_angle(pca.components_.T, plain.components_.T) < 1e-9
        assert np.allclose(pca.explained_variance_, plain.explained_variance_)
        assert np.allclose(pca.mean_, plain.mean_)
        assert pca.n_samples_ == 300


def rows_of_unlike_size(seed):
    """Rows of which some are much larger than others, about an offset, and their outliers."""
    rng = np.random.default_rng(seed)
    L = rng.exponential(size=(300, 3)) @ rng.standard_normal((3, 30)) + 5
    bad = rng.random(L.shape) < 0.05
    return np.where(bad, L + 20 * rng.choice([-1, 1], L.shape), L), L, bad


@pytest.mark.parametrize("seed", first_of([0, 2, 21, 3, 5, 9], 3))
def test_large_rows_and_columns_are_found_within_a_few_rounds(seed):
    X, L, bad = rows_of_unlike_size(seed)
    pca = RobustPCA(3, random_state=0).fit(np.array_split(X, 4))
    assert error(pca, X, L) < 1e-8
    assert pca.run_.solver_rounds <= 40
    assert np.mean(list(pca.sparse_share_.values())) == pytest.approx(bad.mean())


@pytest.mark.parametrize("seed", [1, 3])
def test_a_row_alone_is_split_as_among_others(seed):
    X, L, _ = rows_of_unlike_size(seed)
    pca = RobustPCA(3, random_state=0).fit(np.array_split(X, 4))
    whole = pca.split(X)
    alone = [pca.split(row[None]) for row in X]
    assert np.allclose(
        whole.low_rank, np.vstack([parts.low_rank for parts in alone]), rtol=0, atol=1e-12
    )
    assert np.allclose(
        whole.sparse, np.vstack([parts.sparse for parts in alone]), rtol=0, atol=1e-12
    )
    assert np.allclose(whole.low_rank, L)


def test_a_component_that_is_one_feature_is_no_outlier_of_small_rows():
    X, L, _ = draw(120, 40, r=2, seed=5)
    X[:, 7], L[:, 7] = 3.0, 3.0
    pca = RobustPCA(3, center="none", random_state=0).fit(X)
    assert error(pca, X, L) < 1e-7


@pytest.mark.filterwarnings("ignore:solver")
@pytest.mark.filterwarnings("ignore:more than 40%")
@pytest.mark.parametrize(
    ("method", "unit"), every_other(METHODS, [2.0**-100, 2.0**-40, 2.0**-12, 2.0**32])
)
def test_the_unit_of_the_rows_changes_nothing(unit, method):
    # powers of 16: bins that a site does not divide span four octaves, and the center is a median
    X, _, _ = draw(120, 20, r=2)
    for rows, r in ((X, 2), (X[:2], 1)):
        options = {"solver": method, "max_rounds": 60, "random_state": 0}
        plain = RobustPCA(r, **options).fit(rows)
        pca = RobustPCA(r, **options).fit(rows * unit)
        assert sine_of_angle(pca.components_.T, plain.components_.T) < 1e-6
        assert pca.threshold_ == pytest.approx(plain.threshold_ * unit, rel=1e-3)
        assert np.allclose(pca.explained_variance_ / unit**2, plain.explained_variance_)


@pytest.mark.parametrize(
    ("given", "drawn"),
    every_other(
        [(load_breast_cancer, 6), (load_digits, 8), (load_wine, 3)], [(True, 2), (False, 0)]
    ),
)
def test_real_tables_end_by_default(given, drawn):
    (table, r), (scale, seed) = given, drawn
    sites = np.array_split(table().data, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        warnings.filterwarnings("ignore", "most entries of")
        warnings.filterwarnings("ignore", "1 rows lie apart")
        pca = RobustPCA(r, scale=scale, random_state=seed).fit(sites)
    assert pca.run_.stop_reason == "converged"
    assert pca.run_.solver_rounds <= 130
    assert 0.01 < np.mean(list(pca.sparse_share_.values())) < 0.35


def test_what_is_left_to_do_at_the_end_is_far_below_the_noise(monkeypatch):
    X = load_breast_cancer().data
    rows = np.random.default_rng(0).permutation(len(X))
    options = {"n_components": 6, "scale": True, "random_state": 0}
    ended = RobustPCA(**options).fit(X)
    half = RobustPCA(**options).fit(X[rows[: len(rows) // 2]])
    monkeypatch.setattr(hard, "MAX_NOISE_SHARE", 0.0)
    settled = RobustPCA(**options, tol=1e-7, max_rounds=1000).fit(X)
    left, by_sample = (sine_of_angle(settled.components_.T, p.components_.T) for p in (ended, half))
    assert left < 0.03
    assert left < by_sample / 10


def test_features_that_are_mostly_outliers_are_named():
    frame = load_wine(as_frame=True).data
    with pytest.warns(UserWarning, match=r"most entries of proline are .* use scale=True"):
        RobustPCA(3, random_state=0).fit(frame)
    X, L, _ = draw()
    X[:, 5] = 200 * np.random.default_rng(0).standard_normal(200)
    with pytest.warns(UserWarning, match="most entries of column 5 are outliers"):
        pca = fit(X)
    assert pca.run_.stop_reason == "converged"
    others = np.arange(200) != 5
    found = pca.split(X).low_rank
    assert np.linalg.norm((found - L)[:, others]) < 1e-8 * np.linalg.norm(L)


def test_where_no_rank_shows_the_bound_is_taken_and_told():
    X = load_breast_cancer().data
    with pytest.warns(UserWarning, match="no rank up to max_components=4 is clear, so 4 comp"):
        pca = RobustPCA(max_components=4, scale=True, random_state=0).fit(X)
    assert pca.n_components_ == 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:most entries of column")
@pytest.mark.parametrize(
    ("sizes", "seed"), every_other([(1, 0.2), (1, 0.7, 0.4), (1, 0.2, 0.1)], range(2))
)
def test_the_rank_is_found_within_a_wide_bound(sizes, seed):
    rng = np.random.default_rng(seed)
    n, d, r = 200, 80, len(sizes)
    L = 9 * rng.standard_normal((n, r)) * sizes @ orth(rng.standard_normal((d, r))).T
    X = L + 0.1 * rng.standard_normal((n, d)) * np.exp(rng.standard_normal(d) / 2)
    X[rng.random((n, d)) < 0.1] = 10 * rng.standard_normal()
    pca = RobustPCA(max_components=12, random_state=0).fit(np.array_split(X, 4))
    assert pca.n_components_ == r


def test_rows_of_which_most_is_wrong_are_often_found():
    rng = np.random.default_rng(0)
    X, L, _ = draw(300, 40, r=3, noise=0.05)
    pca = RobustPCA(3, center="none", random_state=0).fit(np.array_split(X, 3))
    wrong = L + np.where(rng.random(L.shape) < 0.6, 50 * rng.standard_normal(L.shape), 0.0)
    is_found = np.abs(pca.split(wrong).low_rank - L).max(axis=1) < 0.3
    assert is_found.mean() > 0.45


@pytest.mark.parametrize(("d", "r", "largest"), [(200, 5, 0.5), (200, 5, 0.8), (40, 3, 0.8)])
def test_large_features_are_drawn_to_where_they_belong(d, r, largest):
    X, L, _ = draw(300, d, r=r)
    sizes = 10 ** np.linspace(0, largest, d)
    pca = RobustPCA(r, random_state=0).fit(np.array_split(X * sizes, 5))
    assert error(pca, X * sizes, L * sizes) < 1e-8


@pytest.mark.slow
@draws(8)
@given(data=st.data())
def test_any_partition_of_the_rows_gives_the_low_rank_part(data):
    seed, n = data.draw(st.integers(0, 2**31)), data.draw(st.integers(60, 120))
    offset = data.draw(st.sampled_from([0.0, 5.0, 1e6]))
    X, L, _ = draw(n, 30, r=2, seed=seed)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=6)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "more than 40%")  # of a site of one row
        pca = RobustPCA(2, random_state=0).fit(np.split(X + offset, cuts))
    assert error(pca, X + offset, L + offset) < 1e-7


@pytest.mark.filterwarnings("ignore:solver 'least-squares'")
def test_least_squares_move_the_center_and_tell_the_noise():
    X, L, _ = draw(300, 40, r=3, noise=0.05)
    pca = RobustPCA(3, solver="least-squares", random_state=0).fit(np.array_split(X + 7, 5))
    assert error(pca, X + 7, L + 7) < 3e-3
    assert np.allclose(pca.mean_, (L + 7).mean(axis=0), atol=0.02)
    assert pca.noise_variance_ == pytest.approx(0.05**2, rel=0.2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:solver 'least-squares'")
@pytest.mark.filterwarnings("ignore:solver 'dcf'")
@every_method
def test_every_method_comes_near(method):
    X, L, _ = draw(120, r=6)
    pca = fit(X, 6, solver=method)
    assert error(pca, X, L) < (0.05 if method == "dcf" else 1e-8)
    assert pca.run_.solver == ("threshold" if method == "auto" else method)
    if method != "threshold":  # which needs to know the rank, and "auto" finds it
        assert fit(X, None, max_components=9, solver=method).n_components_ == 6


@pytest.mark.filterwarnings("ignore:solver 'dcf'")
@pytest.mark.filterwarnings("ignore:solver 'least-squares'")
@every_method
def test_the_result_does_not_depend_on_the_order_of_sites(method):
    X, _, _ = draw(80, r=3)
    sites = dict(zip("abcd", np.array_split(X, 4), strict=True))
    options = {"solver": method, "center": "none", "random_state": 0, "max_rounds": 60}
    one = RobustPCA(3, **options).fit(sites)
    other = RobustPCA(3, **options).fit({name: sites[name] for name in "cadb"})
    assert sine_of_angle(one.components_.T, other.components_.T) < 1e-8


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e8])
def test_an_offset_changes_nothing(offset):
    X, _, _ = draw(150, r=3, noise=0.1)
    plain = RobustPCA(3, random_state=0).fit(np.array_split(X, 5))
    moved = RobustPCA(3, random_state=0).fit(np.array_split(X + offset, 5))
    assert sine_of_angle(plain.components_.T, moved.components_.T) < 1e-6
    assert np.allclose(moved.mean_ - offset, plain.mean_, atol=1e-7)


@pytest.mark.parametrize("center", ["median", "mean"])
@pytest.mark.parametrize("offset", [0.0, 7.0])
def test_the_center_moves_into_the_plane_of_the_rows(center, offset):
    X, L, _ = draw(300, 40, r=3)
    pca = RobustPCA(3, center=center, random_state=0).fit(np.array_split(X + offset, 5))
    assert error(pca, X + offset, L + offset) < 1e-8
    assert np.allclose(pca.mean_, (L + offset).mean(axis=0), atol=1e-6)


def test_float32_sparse_and_wide_rows_work():
    X, L, _ = draw(60, 300, r=2)
    reference = fit(X, 2, 4)
    assert error(reference, X, L) < 1e-7
    for make in (sp.csr_array, lambda Y: Y.astype(np.float32)):
        ours = RobustPCA(2, center="none", random_state=0).fit(
            [make(Y) for Y in np.array_split(X, 4)]
        )
        assert sine_of_angle(reference.components_.T, ours.components_.T) < 1e-5


def test_empty_sites_sites_of_one_row_and_constant_columns_take_part():
    X, L, _ = draw(120, 40, r=2)
    X[:, 7], L[:, 7] = 3.0, 3.0
    parts = [X[:0], X[:1], X[1:60], X[60:]]
    pca = RobustPCA(3, center="none", random_state=0).fit(parts)
    assert error(pca, X, L) < 1e-7
    assert np.isnan(pca.sparse_share_["site-1"])
    scaled = RobustPCA(2, scale=True, random_state=0).fit(parts)
    assert scaled.scale_[7] == 1
    assert scaled.mean_[7] == pytest.approx(3)


def test_scale_lets_outliers_of_small_features_be_found():
    rng = np.random.default_rng(0)
    units = 10.0 ** rng.integers(-3, 4, 12)
    directions = rng.standard_normal((2, 12))
    L = rng.standard_normal((300, 2)) @ (directions / np.linalg.norm(directions, axis=0))
    X = L + 0.05 * rng.standard_normal(L.shape)
    bad = rng.random(X.shape) < 0.03
    X = np.where(bad, X + 6 * rng.choice([-1, 1], X.shape), X) * units
    pca = RobustPCA(2, scale=True, random_state=0).fit(np.array_split(X, 3))
    scores = pca.outlier_scores(X)
    assert scores.cells.shape == X.shape
    assert (scores.cells[bad] > 1).mean() > 0.95
    assert (scores.cells[~bad] > 1).mean() < 0.05
    assert np.allclose(scores.rows, (scores.cells > 1).mean(axis=1))
    low_rank, sparse = pca.split(X)
    assert np.abs((low_rank + sparse - X) / units).max() < 1


@every_method
def test_same_seed_gives_the_same_bits_on_encoded_messages(method):
    X, _, _ = draw(60, r=2)
    sites = dict(zip("abc", np.array_split(X, 3), strict=True))

    def run(fed):
        options = {"solver": method, "random_state": 3, "max_rounds": 20, "tol": 1e-6}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return RobustPCA(2, **options).fit(fed)

    plain, other = run(Federation.local(sites)), run(Federation(ScriptedEngine(sites)))
    assert (plain.components_ == other.components_).all()
    assert plain.run_.ledger == other.run_.ledger


@pytest.mark.slow
@every_method
def test_a_killed_fit_goes_on_from_its_journal_with_the_same_bits(method, tmp_path):
    X, _, _ = draw(60, r=2)
    sites = dict(zip("abc", np.array_split(X, 3), strict=True))
    options = {"solver": method, "random_state": 0, "max_rounds": 12, "tol": 1e-4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = RobustPCA(2, **options).fit(Federation.local(sites))
        for at in {2, 3, whole.run_.rounds // 2, whole.run_.rounds}:
            journal = tmp_path / f"{at}.journal"

            def crash(entry, at=at):
                if entry["round"] == at:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                RobustPCA(2, **options).fit(
                    Federation.local(sites, journal=journal, on_round=crash)
                )
            again = RobustPCA(2, **options).fit(Federation.local(sites, journal=journal))
            assert (again.components_ == whole.components_).all()


def test_only_sums_leave_the_sites_and_scores_and_outliers_stay():
    X, L, _ = draw(100, 30, r=2)
    sites = {
        name: Site(rows, name=name, policy=Policy(("robust",), min_rows_per_direction=0))
        for name, rows in zip("abc", np.array_split(X, 3), strict=True)
    }
    pca = RobustPCA(2, center="none", random_state=0).fit(Federation.local(sites))
    assert error(pca, X, L) < 1e-8
    assert pca.sparse_share_ == {}
    assert {entry.question for entry in pca.run_.ledger if entry.how == "seen"} == {"column_names"}
    V, part = sites["a"].recall(Scores).V, sites["a"].recall(SparsePart)
    assert V.shape == (sites["a"].rows.n_rows, 2)
    kept = sp.csr_array((part.values, part.columns, part.row_starts), shape=(len(V), 30))
    assert np.allclose(kept.toarray(), pca.split(X[: len(V)]).sparse, atol=1e-7)


def test_lost_sites_leave_the_result_of_those_that_remain():
    X, L, _ = draw(100, 30, r=2)
    sites = dict(zip("abcd", np.array_split(X, 4), strict=True))

    losing = ScriptedEngine(sites, spoil(lambda answer: None, sites="b", question="hard_round"))
    pca = RobustPCA(2, center="none", random_state=0).fit(Federation(losing, quorum=3))
    assert [entry["site"] for entry in pca.run_.lost] == ["b"]
    assert error(pca, X, L) < 1e-7


def test_a_site_lost_after_the_rank_was_found_lets_it_be_found_again():
    X, L, _ = draw()
    sites = {f"s{i}": rows for i, rows in enumerate(np.array_split(X, 10))}

    hard_rounds = set()

    def lose_later(reply):
        if reply.question == "hard_round":
            hard_rounds.add(reply.round)
        return None if reply.site == "s3" and len(hard_rounds) >= 3 else reply.answer

    options = {"max_components": 20, "center": "none", "random_state": 0}
    pca = RobustPCA(**options).fit(Federation(ScriptedEngine(sites, lose_later), quorum=5))
    assert [entry["site"] for entry in pca.run_.lost] == ["s3"]
    assert pca.n_components_ == 10
    assert error(pca, X, L) < 1e-7


@pytest.mark.parametrize("at", ["count_values", "clipped_product", "hard_round", "finish_robust"])
def test_a_run_is_not_resumed_without_the_sites_memory(at, tmp_path):
    X, _, _ = draw(60, r=2)
    sites = dict(zip("abc", np.array_split(X, 3), strict=True))

    def crash(entry):
        if entry["question"] == at:
            raise KeyboardInterrupt

    journal = tmp_path / "run.journal"
    with pytest.raises(KeyboardInterrupt):
        RobustPCA(2, random_state=0).fit(Federation.local(sites, journal=journal, on_round=crash))
    shutil.rmtree(tmp_path / "run.journal.sites")
    with pytest.raises(QuorumLost, match="memory is gone; start over with a new journal"):
        RobustPCA(2, random_state=0).fit(Federation.local(sites, journal=journal))


@every_method
def test_rows_without_variance_end_at_once(method):
    pca = RobustPCA(2, solver=method).fit([np.full((9, 5), 3.0), np.full((4, 5), 3.0)])
    assert np.allclose(pca.explained_variance_, 0)
    assert np.allclose(pca.mean_, 3)


def test_frames_are_matched_by_name_and_models_are_saved(tmp_path):
    X, _, _ = draw(90, 6, r=2, noise=0.1)
    columns = list("pqrstu")
    frames = {
        name: pd.DataFrame(rows, columns=columns)
        for name, rows in zip("ab", np.array_split(X, 2), strict=True)
    }
    pca = RobustPCA(2, scale=True, random_state=0).fit(frames)
    mixed = RobustPCA(2, scale=True, random_state=0).fit(frames | {"b": frames["b"][columns[::-1]]})
    assert np.allclose(pca.components_, mixed.components_)
    pca.save(tmp_path / "m.fedpca")
    again = load(tmp_path / "m.fedpca")
    assert isinstance(again, RobustPCA)
    assert (again.transform(frames["a"]) == pca.transform(frames["a"])).all()
    assert again.get_params() == pca.get_params()
    assert (again.threshold_, again.sparse_share_) == (pca.threshold_, pca.sparse_share_)
    with pytest.raises(FileError, match="holds a RobustPCA"):
        FederatedPCA.load(tmp_path / "m.fedpca")
    FederatedPCA(2).fit(X).save(tmp_path / "f.fedpca")
    with pytest.raises(FileError, match="holds a FederatedPCA"):
        RobustPCA.load(tmp_path / "f.fedpca")


def test_scores_and_rows_go_back_and_forth():
    X, L, _ = draw(100, 30, r=3)
    pca = RobustPCA(3, center="none", random_state=0).fit(np.array_split(X, 4))
    assert np.allclose(pca.inverse_transform(pca.transform(X)), L, atol=1e-6)
    assert pca.fit_transform(X).shape == (100, 3)
    assert list(pca.get_feature_names_out()) == ["robustpca0", "robustpca1", "robustpca2"]


def test_bad_input_is_refused_with_the_way_out():
    X, _, _ = draw(40, 8, r=2)
    for ranks in ({}, {"n_components": 2, "max_components": 4}):
        with pytest.raises(InputError, match="pass either the rank or a bound on it, but not both"):
            RobustPCA(**ranks).fit(X)
    with pytest.raises(InputError, match="'threshold' requires n_components"):
        RobustPCA(max_components=3, solver="threshold").fit(X)
    with pytest.raises(InputError, match="n_components=9 exceeds the 8 features; use at most 8"):
        RobustPCA(9).fit(X)
    with pytest.raises(InputError, match="infinite values; use NaN for missing values"):
        RobustPCA(2).fit({"a": X, "b": np.where(X > 1, np.inf, X)})
    empty = X.copy()
    empty[:, 3] = np.nan
    with pytest.raises(InputError, match="no site has a value for column 3"):
        RobustPCA(2).fit({"a": empty, "b": empty})
    for factor in (1e-160, 1e160):
        with pytest.raises(InputError, match="rescale the columns"):
            RobustPCA(2).fit([X * factor, X * factor])
    for estimator, factor in itertools.product((FederatedPCA, RobustPCA), (5e153, 5e307)):
        with pytest.raises(InputError, match="rescale the columns"):
            estimator(2).fit([np.random.default_rng(0).random((40, 8)) * factor] * 2)
    with pytest.raises(InputError, match="n_samples=1"):
        RobustPCA(2).fit({"a": X[:1], "b": X[:0]})
    with pytest.raises(InputError, match="fit_transform takes a single table"):
        RobustPCA(2).fit_transform([X, X])
    for bad in ({"center": "mode"}, {"solver": "alm"}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            RobustPCA(2, **bad).fit(X)
    with pytest.raises(
        InputError, match="n_components=8 exceeds the 5 rows across all sites; use at"
    ):
        RobustPCA(8).fit([X[:3], X[3:5]])
    with pytest.raises(InputError, match="max_components=9 exceeds the 8 features; use at most 8"):
        RobustPCA(max_components=9).fit(X)


@pytest.mark.parametrize("threshold", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_file_with_a_threshold_that_no_fit_gives_is_refused(threshold, tmp_path):
    X, _, _ = draw(40, 8, r=2)
    pca = RobustPCA(2, random_state=0).fit(X)
    pca.model_ = replace(pca.model_, threshold=threshold)
    pca.save(tmp_path / "m.fedpca")
    with pytest.raises(FileError, match=f"threshold={threshold} must be positive and finite"):
        RobustPCA.load(tmp_path / "m.fedpca")


@pytest.mark.filterwarnings("ignore:misalignment_")
@pytest.mark.parametrize(
    ("pca", "too_many"),
    [
        (FederatedPCA(2), {"n_components": 5}),
        (PersonalizedPCA(2, 1), {"n_shared": 5}),
        (RobustPCA(2, random_state=0), {"n_components": 5}),
    ],
)
def test_a_fit_that_fails_leaves_the_last_one_usable(pca, too_many):
    X, _, _ = draw(40, 8, r=2)
    scores = pca.fit(pd.DataFrame(X, columns=list("abcdefgh"))).components_
    with pytest.raises(InputError, match="exceed"):
        pca.set_params(**too_many).fit(X[:, :4])
    assert pca.n_features_in_ == 8
    assert list(pca.feature_names_in_) == list("abcdefgh")
    assert pca.components_ is scores


@pytest.mark.parametrize("estimator", [FederatedPCA, RobustPCA])
def test_scores_of_another_width_are_refused(estimator):
    pca = estimator(2, random_state=0).fit(draw(40, 8, r=2)[0])
    with pytest.raises(InputError, match="scores have 5 columns, but the model has 2 components"):
        pca.inverse_transform(np.ones((3, 5)))


def test_a_rank_of_true_is_one():
    assert RobustPCA(True, random_state=0).fit(draw(40, 8, r=1)[0]).n_components_ == 1


@every_method
@pytest.mark.filterwarnings("ignore:no rank up to")
def test_rounds_that_do_not_suffice_are_told_with_what_ran(method):
    X, _, _ = draw(40, 8, r=2)
    ranks = {"max_components": 3} if method == "auto" else {"n_components": 2}
    ran = {"auto": "least-squares, threshold"}.get(method, method)
    with pytest.warns(ConvergenceWarning, match=f"solver '{ran}' stopped at max_rounds=1 "):
        pca = RobustPCA(**ranks, solver=method, max_rounds=1, random_state=0).fit(X)
    assert pca.run_.solver == ran
    assert pca.run_.solver_rounds == (2 if method == "auto" else 1)


@pytest.mark.filterwarnings("ignore:solver")
@pytest.mark.filterwarnings("ignore:more than 40%")
@pytest.mark.filterwarnings("ignore:most entries of")
@parametrize_with_checks([RobustPCA(1)])
def test_scikit_learn_compatible(estimator, check):
    check(estimator)


def rows_off_together(share, seed=0, n=400, d=20):
    """Rows of three components and noise, some off in one direction; the components; which are off."""
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((d, 3)))[0]
    X = rng.standard_normal((n, 3)) * [5, 3, 2] @ U.T + 0.3 * rng.standard_normal((n, d))
    w = rng.standard_normal(d)
    w -= U @ (U.T @ w)
    k = round(share * n)
    X[:k] += (30 + rng.standard_normal((k, 1))) * (w / np.linalg.norm(w))
    order = rng.permutation(n)
    return X[order], U, order < k


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:solver")  # with such rows, one fit may need more rounds
@pytest.mark.parametrize(("share", "seed"), every_other([0.12, 0.2, 0.4], [0, 1]))
def test_rows_that_are_off_together_are_left_out(share, seed):
    X, U, is_off = rows_off_together(share, seed)
    with pytest.warns(UserWarning, match=f"{is_off.sum()} rows lie apart from all others"):
        pca = RobustPCA(3, random_state=0).fit(np.array_split(X, 4))
    assert sine_of_angle(U, pca.components_.T) < 0.06
    assert pca.n_left_out_ == is_off.sum()
    assert pca.n_samples_ == (~is_off).sum()
    with pytest.warns(UserWarning, match=r"cause (9\d|100)% of the variance of component 1"):
        kept = RobustPCA(3, rows="all", random_state=0).fit(np.array_split(X, 4))
    assert kept.n_left_out_ == 0
    assert sine_of_angle(U, kept.components_.T) > 0.9


@pytest.mark.slow
def test_rows_left_out_survive_a_file_missing_values_and_a_crash(tmp_path):
    X, U, is_off = rows_off_together(0.2)
    X[::7, 3] = np.nan
    X[5] = np.nan
    sites = dict(zip("abcd", np.array_split(X, 4), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pca = RobustPCA(3, random_state=0).fit(sites)
        path = tmp_path / "journal"
        RobustPCA(3, random_state=0).fit(Federation.local(sites, journal=path))
        # a second fit replays the whole journal
        again = RobustPCA(3, random_state=0).fit(Federation.local(sites, journal=path))
    assert pca.n_left_out_ == is_off.sum() - is_off[5]
    assert sine_of_angle(U, pca.components_.T) < 0.06
    np.testing.assert_array_equal(again.components_, pca.components_)
    pca.save(tmp_path / "model")
    assert load(tmp_path / "model").n_left_out_ == pca.n_left_out_


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("draws", ["normal", "uniform", "laplace", "exponential"])
def test_ordinary_rows_all_count(draws, seed):
    rng = np.random.default_rng(seed)
    Z = getattr(rng, draws)(size=(200, 3))
    X = Z @ rng.standard_normal((3, 12)) + 0.2 * rng.standard_normal((200, 12))
    assert RobustPCA(3, random_state=0).fit(X).n_left_out_ == 0


def test_a_component_that_depends_on_few_rows_is_told_of():
    rng = np.random.default_rng(0)
    Z = rng.lognormal(size=(400, 2)) * [5, 3]
    X = Z @ np.linalg.qr(rng.standard_normal((15, 2)))[0].T + 0.2 * rng.standard_normal((400, 15))
    with pytest.warns(
        UserWarning, match=r"of 400 rows lie far from the others and cause \d+% of the"
    ):
        pca = RobustPCA(2, random_state=0).fit(X)
    assert pca.n_left_out_ == 0


def test_many_entries_take_a_sample_for_their_median(monkeypatch):
    X, L, _ = draw(400, r=5)
    whole = fit(X, 5, 3)
    monkeypatch.setattr("fedpca.solvers.robust.blocks.MAX_SIZES", 1 << 10)
    monkeypatch.setattr("fedpca.solvers.robust.blocks.BLOCK_ENTRIES", 1 << 10)
    monkeypatch.setattr("fedpca.solvers.robust.blocks.MIN_ROWS", 2)
    sampled = fit(X, 5, 3)
    assert error(sampled, X, L) < 1e-8
    assert sine_of_angle(whole.components_.T, sampled.components_.T) < 1e-8
