"""Weights and missing values: every solver equals the pooled rows, whatever the partition."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from fedpca import FederatedPCA, Federation, Site
from fedpca.errors import InputError
from fedpca.linalg.dense import sine_of_angle
from fedpca.solvers import SOLVERS
from fedpca.testing import ScriptedEngine
from support import draws, every_other, gapped_rows

every_solver = pytest.mark.parametrize("solver", sorted(SOLVERS))
RULES = [0.5, 0.9, "auto", "mp", "gap", None]


def pooled_mean(X, w, offset):
    """The weighted mean of the values present, summed without the offset, which takes digits."""
    present = ~np.isnan(X)
    return (w @ np.where(present, X - offset, 0.0)) / (w @ present) + offset


def pooled_scatter(X, w, fill, offset, *, scale):
    """The deviations and the scatter of all rows, where gaps are filled in."""
    Y = np.where(np.isnan(X), fill, X) - offset
    Y = Y - w @ Y / w.sum()
    deviations = np.sqrt(w @ Y**2 / w.sum()) if scale else np.ones(X.shape[1])
    Y = Y / deviations
    return deviations, (Y * w[:, None]).T @ Y


@st.composite
def problems(draw):
    """Unlike sites, some empty or of one row, with weights, gaps, an offset, or all of them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    d, k = draw(st.integers(4, 9)), draw(st.integers(1, 3))
    n = draw(st.integers(40, 120))
    offset = draw(st.sampled_from([0.0, -30.0, 1e8]))
    dtype = draw(st.sampled_from([np.float64, np.float32])) if not offset else np.float64
    X = (np.round(gapped_rows(rng, n, d, k), 6)).astype(dtype)
    is_sparse = draw(st.booleans())
    if is_sparse and not offset:
        X[rng.random(X.shape) < 0.1] = 0
    X = X[np.argsort(X[:, 0])] + dtype(offset)
    missing = draw(st.sampled_from(["error", "mean", "drop"]))
    if missing != "error":
        X[rng.random(X.shape) < draw(st.sampled_from([0.01, 0.06]))] = np.nan
        X[0, 0] = np.nan
    kind = draw(st.sampled_from(["none", "counts", "fractions"]))
    w = {
        "none": np.ones(n),
        "counts": rng.integers(0, 4, n).astype(float),
        "fractions": rng.uniform(0.1, 2.0, n),
    }[kind]
    w[:3] = np.maximum(w[:3], 1.0)
    cuts = np.sort(rng.integers(0, n + 1, draw(st.integers(0, 6))))
    if len(cuts) > 1:
        cuts[:2] = 0, 1
    make = sp.csr_array if is_sparse else np.asarray
    sites = [make(part) for part in np.split(X, cuts)]
    weights = None if kind == "none" else np.split(w, cuts)
    return X, w, sites, weights, k, missing, offset, draw(st.booleans())


@pytest.mark.parametrize("solver", sorted(set(SOLVERS) - {"faps"}))
@draws(10)
@given(problem=problems())
def test_weights_and_gaps_equal_pooled_for_any_partition(solver, problem):
    assert_equals_pooled(solver, *problem)


@pytest.mark.slow
@draws(4)
@given(problem=problems())
def test_weights_and_gaps_equal_pooled_for_faps(problem):
    assert_equals_pooled("faps", *problem)


def test_weights_and_gaps_equal_pooled_for_faps_on_one_partition():
    rng = np.random.default_rng(5)
    X, w = gapped_rows(rng, 80, 6, 2), rng.integers(0, 4, 80).astype(float)
    X[rng.random(X.shape) < 0.05] = np.nan
    cuts = [0, 1, 30]
    for missing in ("mean", "drop"):
        problem = (X, w, np.split(X, cuts), np.split(w, cuts), 2, missing, 0.0, True)
        assert_equals_pooled("faps", *problem)


def assert_equals_pooled(solver, X, w, sites, weights, k, missing, offset, scale):
    ours = FederatedPCA(
        k, solver=solver, missing=missing, scale=scale, random_state=0, max_rounds=5000
    ).fit(sites, sample_weight=weights)
    X, whole = X.astype(float), ~np.isnan(X).any(axis=1)
    if missing == "drop":
        X, w = X[whole], w[whole]
    mean = pooled_mean(X, w, offset)
    np.testing.assert_allclose(ours.mean_, mean, rtol=1e-13, atol=1e-12)
    # at an offset of 1e8, the last bit of what is filled in changes the tenth digit of a variance
    deviations, S = pooled_scatter(X, w, ours.mean_, offset, scale=scale)
    weight = w.sum()
    values, vectors = np.linalg.eigh(S)
    values, vectors = values[::-1], vectors[:, ::-1]
    left_out = ours.run_.left_out * values.sum()
    assert left_out == 0 or SOLVERS[solver].guarantee == "bounded"
    found = ours.singular_values_**2
    rtol = 1e-10
    assert (found <= values[:k] * (1 + rtol)).all()
    assert (values[:k] <= found * (1 + rtol) + left_out).all()
    np.testing.assert_allclose(ours.explained_variance_, found / (weight - 1), rtol=1e-12)
    assert ours.total_variance_ == pytest.approx(values.sum() / (weight - 1), rel=rtol)
    if values[k - 1] - values[k] > 0.01 * values.sum():
        angle = sine_of_angle(vectors[:, :k], ours.components_.T)
        assert angle <= max(1e-8, ours.run_.angle_bound)
    np.testing.assert_allclose(ours.scale_, deviations, rtol=1e-10)


@every_solver
def test_whole_weights_equal_repeated_rows_and_zero_weights_removed_ones(solver):
    rng = np.random.default_rng(0)
    X = gapped_rows(rng, 60, 6, 2, offset=4.0)
    w = rng.integers(0, 4, 60)
    w[-20:] = 0
    X[-20:] = np.nan  # nobody looks at a row without weight
    cuts = [0, 1, 25, 45]
    ours = FederatedPCA(2, solver=solver, random_state=0)
    ours.fit(np.split(X, cuts), sample_weight=np.split(w, cuts))
    repeated = np.repeat(X, w, axis=0)
    reference = PCA(2, svd_solver="full").fit(repeated)
    assert sine_of_angle(reference.components_.T, ours.components_.T) < 1e-8
    for name in ("explained_variance_", "explained_variance_ratio_", "noise_variance_", "mean_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(reference, name), rtol=1e-9)
    assert ours.n_samples_ == (w > 0).sum()
    twin = FederatedPCA(2, solver=solver, random_state=0)
    parts = np.split(np.arange(60), cuts)
    twin.fit([repeated_rows(X, w, part) for part in parts])
    for name in ("site-3", "site-4"):  # the others have at most one row
        share = twin.site_variance_ratio_[name]
        np.testing.assert_allclose(ours.site_variance_ratio_[name], share, rtol=1e-9)


def repeated_rows(X, w, part):
    return np.repeat(X[part], w[part], axis=0)


@pytest.mark.filterwarnings("ignore:only .* components are certain")
@every_solver
def test_one_row_with_a_weight_equals_as_many_equal_rows(solver):
    row = np.array([[1.0, 2.0, 5.0]])
    ours = FederatedPCA(1, solver=solver, random_state=0).fit([row], sample_weight=[[4]])
    assert not ours.explained_variance_.any()
    np.testing.assert_array_equal(ours.mean_, row[0])


@pytest.mark.parametrize(("solver", "n_components"), every_other(sorted(SOLVERS), RULES))
def test_rank_rules_count_weighted_rows_as_repeated_ones(solver, n_components):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((200, 12)) * ([5, 4.8, 4.6, 4.4] + [1] * 8)
    X = X @ np.linalg.qr(rng.standard_normal((12, 12)))[0]
    w = np.full(200, 2)
    ours = FederatedPCA(n_components, solver=solver, random_state=0, max_rounds=3000, tol=1e-6)
    found = ours.fit(np.array_split(X, 5), sample_weight=np.array_split(w, 5)).n_components_
    if isinstance(n_components, str):
        assert found == 4
    else:
        reference = PCA(n_components, svd_solver="full").fit(np.repeat(X, w, axis=0))
        assert found == reference.n_components_


@pytest.mark.parametrize(("solver", "n_components"), every_other(sorted(SOLVERS), RULES))
def test_rank_rules_see_filled_rows(solver, n_components):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((400, 12)) * ([5, 4.8, 4.6, 4.4] + [1] * 8)
    X = X @ np.linalg.qr(rng.standard_normal((12, 12)))[0]
    X[rng.random(X.shape) < 0.01] = np.nan
    ours = FederatedPCA(
        n_components, solver=solver, missing="mean", random_state=0, max_rounds=3000, tol=1e-6
    ).fit(np.array_split(X, 5))
    if isinstance(n_components, str):
        assert ours.n_components_ == 4
    else:
        complete = np.where(np.isnan(X), np.nanmean(X, axis=0), X)
        reference = PCA(n_components, svd_solver="full").fit(complete)
        assert ours.n_components_ == reference.n_components_


class Crash(BaseException):
    """A coordinator that dies within a round."""


@pytest.mark.slow
@pytest.mark.parametrize(("solver", "missing"), every_other(sorted(SOLVERS), ["mean", "drop"]))
def test_a_killed_run_with_weights_and_gaps_goes_on_with_the_same_bits(solver, missing, tmp_path):
    rng = np.random.default_rng(9)
    X = gapped_rows(rng, 60, 6, 2)
    X[rng.random(X.shape) < 0.05] = np.nan
    w = rng.integers(0, 4, 60)

    def sites():
        parts = {"a": slice(20), "b": slice(20, 60)}
        return [Site(X[part], name=name, weight=w[part]) for name, part in parts.items()]

    def fit(fed):
        return FederatedPCA(2, solver=solver, missing=missing, random_state=0).fit(fed)

    whole = fit(Federation.local(sites()))
    for at in {3, whole.run_.rounds // 2 + 1, whole.run_.rounds}:
        journal = tmp_path / f"journal-{at}"

        def crash(reply, at=at):
            if reply.round == at and reply.site == "b":
                raise Crash
            return reply.answer

        with pytest.raises(Crash):
            fit(Federation(ScriptedEngine(sites(), crash, journal=journal), journal=journal))
        resumed = fit(Federation.local(sites(), journal=journal))
        assert resumed.components_.tobytes() == whole.components_.tobytes()
        assert resumed.site_variance_ratio_ == whole.site_variance_ratio_


@pytest.mark.parametrize(("solver", "size"), every_other(sorted(SOLVERS), [0.02, 50.0]))
def test_the_size_of_all_weights_changes_no_component_and_no_automatic_rank(solver, size):
    rng = np.random.default_rng(6)
    X = rng.standard_normal((300, 10)) * ([5, 4.5, 4] + [1] * 7)
    X = X @ np.linalg.qr(rng.standard_normal((10, 10)))[0]
    w = rng.uniform(0.5, 1.5, 300)
    fits = [
        FederatedPCA("auto", solver=solver, random_state=0, max_rounds=3000).fit(
            np.array_split(X, 3), sample_weight=np.array_split(factor * w, 3)
        )
        for factor in (1.0, size)
    ]
    assert [fit.n_components_ for fit in fits] == [3, 3]
    assert sine_of_angle(fits[0].components_.T, fits[1].components_.T) < 1e-7


@pytest.mark.filterwarnings("ignore:only .* components are certain")
@every_solver
@pytest.mark.parametrize("far", [0.0, 1e7])
@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_share_of_each_sites_own_variance_with_gaps_and_weights(solver, far, make):
    rng = np.random.default_rng(7)
    X = np.vstack([gapped_rows(rng, 50, 6, 2), 2 * rng.standard_normal((40, 6)) + 1.5])
    X[50:, 0] += far  # a site whose own variance is small compared with its distance
    X[:, 1:][rng.random((90, 5)) < 0.05] = np.nan
    w = rng.uniform(0.5, 2.0, 90)
    assert_shares(solver, X, w, make, tol=1e-10)


@every_solver
def test_share_of_each_sites_own_variance_with_many_sparse_features(solver):
    rng = np.random.default_rng(7)
    X = gapped_rows(rng, 90, 150, 2, offset=1.0)
    X[rng.random(X.shape) < 0.7] = 0.0
    X[rng.random(X.shape) < 0.02] = np.nan
    assert_shares(solver, X, rng.uniform(0.5, 2.0, 90), sp.csr_array, tol=1e-4)


def assert_shares(solver, X, w, make, tol):
    model = FederatedPCA(2, solver=solver, missing="mean", tol=tol, random_state=0, max_rounds=5000)
    weights = {"a": w[:50], "b": w[50:]}
    model.fit({"a": make(X[:50]), "b": make(X[50:])}, sample_weight=weights)
    complete = np.where(np.isnan(X), model.mean_, X)
    for name, part in {"a": slice(50), "b": slice(50, None)}.items():
        rows = complete[part]
        own = np.average(rows, axis=0, weights=w[part])
        squares = w[part] @ (rows - own) ** 2
        along = w[part] @ ((rows - own) @ model.components_.T) ** 2
        share = along.sum() / squares.sum()
        assert model.site_variance_ratio_[name] == pytest.approx(share, rel=1e-7)


@every_solver
@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_gaps_are_refused_by_default_with_the_ways_out(solver, make):
    X = gapped_rows(np.random.default_rng(0), 30, 4, 2)
    X[3, 1] = np.nan
    with pytest.raises(InputError, match=r"contains NaN in columns 1.*missing='mean'.*RobustPCA"):
        FederatedPCA(2, solver=solver).fit([make(X[:20]), make(X[20:])])


@every_solver
@pytest.mark.parametrize("missing", ["mean", "drop"])
def test_infinite_values_are_no_gaps(solver, missing):
    X = gapped_rows(np.random.default_rng(0), 30, 4, 2)
    X[3, 1], X[5, 2] = np.inf, np.nan
    with pytest.raises(InputError, match=r"contains infinity in columns 1; drop these rows"):
        FederatedPCA(2, solver=solver, missing=missing).fit([X[:20], X[20:]])


@every_solver
def test_rows_in_messages_give_the_bits_of_rows_in_memory(solver):
    rng = np.random.default_rng(8)
    X = gapped_rows(rng, 60, 6, 2)
    X[rng.random(X.shape) < 0.05] = np.nan
    sites = dict(zip("abc", np.array_split(X, 3), strict=True))
    fits = [
        FederatedPCA(2, solver=solver, missing="mean", random_state=0).fit(fed)
        for fed in (Federation.local(sites), Federation(ScriptedEngine(sites)))
    ]
    assert fits[0].components_.tobytes() == fits[1].components_.tobytes()
