"""What every solver of the catalogue promises, whatever the rows and however they are split."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from fedpca import FederatedPCA, Federation
from fedpca.errors import InputError
from fedpca.linalg.dense import sine_of_angle
from fedpca.rows import sparse_gram
from fedpca.solvers import SOLVERS
from fedpca.solvers.catalogue import find_solver
from fedpca.testing import ScriptedEngine
from support import draws, every_other, gapped_rows, pooled

EXACT = {name for name, solver in SOLVERS.items() if solver.guarantee == "exact"}
ONE_ROUND = set(SOLVERS) - EXACT  # exact where sites leave nothing out, else within a stated bound

every_solver = pytest.mark.parametrize("solver", sorted(SOLVERS))


def assert_subspace(ours, reference, at_most):
    """The subspace is the reference's, up to rounding and what the sites left out."""
    angle = sine_of_angle(reference.T, ours.components_.T)
    assert angle <= max(at_most, ours.run_.angle_bound)


def assert_variances(found, reference, left_out, rtol):
    """Variances are the reference's, or less by at most what the sites left out."""
    assert (found <= reference * (1 + rtol)).all()
    assert (reference <= found * (1 + rtol) + left_out).all()


def test_catalogue_is_what_users_may_name():
    for name, solver in SOLVERS.items():
        assert find_solver(name) is solver
        assert solver.name == name
        assert solver.guarantee in ("exact", "bounded")
    assert find_solver("auto") is None
    assert {"covariance", "lanczos", "subspace-iteration", "local-power", "faps", "tsqr"} == EXACT


@st.composite
def partitions(draw):
    """Rows with a gap after k components, split over unlike sites, some empty or of one row."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    wide = draw(st.booleans())
    d = draw(st.integers(12, 60)) if wide else draw(st.integers(2, 14))
    n = draw(st.integers(6, 12)) if wide else draw(st.integers(max(8, d + 2), 150))
    k = draw(st.integers(1, min(4, d, n - 2)))
    offset = draw(st.sampled_from([0.0, 1.0, -30.0, 1e4, 1e6, 1e8]))
    scale = 10.0 ** draw(st.integers(-6, 6))
    dtype = draw(st.sampled_from([np.float64, np.float32])) if offset == 0 else np.float64
    X = gapped_rows(rng, n, d, k, offset, scale)
    if draw(st.booleans()):
        X = X[np.argsort(X[:, 0])]  # unlike sites
    X = X.astype(dtype)
    n_sites = draw(st.integers(1, 12))
    cuts = np.sort(rng.integers(0, n + 1, n_sites - 1))
    if n_sites > 2 and draw(st.booleans()):
        cuts[:2] = 0, 1  # an empty site and one with one row
        cuts.sort()
    make = draw(st.sampled_from([np.asarray, sp.csr_array]))
    if make is sp.csr_array and offset == 0 and draw(st.booleans()):
        # half of the columns partly empty, which changes the spectrum and not the promise
        holes = rng.random(X.shape) < 0.3
        holes[:, ::2] = False
        X[holes] = 0
    return [make(part) for part in np.split(X, cuts)], k


@pytest.mark.no_cover  # small arrays, over and over
@pytest.mark.parametrize("solver", sorted(set(SOLVERS) - {"faps"}))
@given(problem=partitions())
def test_federated_equals_pooled_for_any_partition(solver, problem):
    assert_equals_pooled(solver, *problem)


@pytest.mark.slow
@draws(4)  # each takes hundreds of rounds where sites are unlike
@given(problem=partitions())
def test_faps_equals_pooled_for_any_partition(problem):
    assert_equals_pooled("faps", *problem)


def assert_equals_pooled(solver, sites, k):
    X = pooled(sites)
    reference = PCA(k, svd_solver="full").fit(X)
    ours = FederatedPCA(k, solver=solver, random_state=0, max_rounds=5000).fit(sites)
    everything = PCA(svd_solver="full").fit(X).explained_variance_
    following = everything[k] if k < len(everything) else 0.0
    gap = (everything[k - 1] - following) / everything.sum()
    if gap > 0.01:
        assert_subspace(ours, reference.components_, 1e-8)
    left_out = ours.run_.left_out
    assert left_out == 0 or solver in ONE_ROUND
    assert_variances(
        ours.explained_variance_,
        reference.explained_variance_,
        left_out * everything.sum(),
        rtol=1e-10,
    )
    assert_variances(
        ours.explained_variance_ratio_, reference.explained_variance_ratio_, left_out, rtol=1e-10
    )
    np.testing.assert_allclose(ours.mean_, X.mean(axis=0), rtol=1e-13, atol=1e-13 * abs(X).max())
    basis = ours.components_
    np.testing.assert_allclose(basis @ basis.T, np.eye(k), atol=1e-12)


@every_solver
def test_small_variances_are_accurate_relative_to_the_largest(solver):
    rng = np.random.default_rng(10)
    X = rng.standard_normal((300, 5)) * [1, 0.5, 1e-2, 1e-4, 1e-5]
    reference = PCA(svd_solver="full").fit(X).explained_variance_
    ours = FederatedPCA(solver=solver, random_state=0).fit(np.array_split(X, 3))
    np.testing.assert_allclose(
        ours.explained_variance_, reference, rtol=0, atol=1e-14 * reference[0]
    )


@every_solver
def test_order_of_sites_does_not_matter(solver):
    rng = np.random.default_rng(0)
    sites = np.array_split(gapped_rows(rng, 90, 8, 3, offset=5.0), [10, 11, 60])
    there = FederatedPCA(3, solver=solver, random_state=0).fit(sites)
    back = FederatedPCA(3, solver=solver, random_state=0).fit(sites[::-1])
    assert sine_of_angle(there.components_.T, back.components_.T) < 1e-9
    np.testing.assert_allclose(there.explained_variance_, back.explained_variance_, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.no_cover  # small arrays, over and over
@every_solver
def test_same_seed_same_bits_sequentially_and_on_threads(solver):
    rng = np.random.default_rng(1)
    sites = np.array_split(rng.standard_normal((900, 40)) * np.geomspace(3, 1, 40), 7)
    fits = [
        FederatedPCA(4, solver=solver, random_state=3, tol=1e-6).fit(
            Federation.local(sites, n_jobs=n_jobs, timeout=timeout)
        )
        for n_jobs, timeout in ((None, None), (None, None), (3, 60.0))
    ]
    for other in fits[1:]:
        assert fits[0].components_.tobytes() == other.components_.tobytes()
        assert fits[0].explained_variance_.tobytes() == other.explained_variance_.tobytes()
        assert list(fits[0].run_.ledger) == list(other.run_.ledger)


@every_solver
@pytest.mark.parametrize("scale", [False, True])
def test_constant_columns_are_handled_as_by_scikit_learn(solver, scale):
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(2)
    X = gapped_rows(rng, 60, 6, 2)
    X[:, 1] = 7.25
    X[:, 4] = 1e8 / 3
    ours = FederatedPCA(2, solver=solver, scale=scale, random_state=0).fit(np.array_split(X, 3))
    scaler = StandardScaler().fit(X)
    if scale:
        np.testing.assert_allclose(ours.scale_, scaler.scale_, rtol=1e-12)
        assert ours.scale_[1] == ours.scale_[4] == 1.0
    reference = PCA(2, svd_solver="full").fit(scaler.transform(X) if scale else X)
    assert sine_of_angle(reference.components_.T, ours.components_.T) < 1e-8
    np.testing.assert_allclose(ours.explained_variance_, reference.explained_variance_, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:only .* components are certain")
@every_solver
def test_more_components_than_rank_gives_an_orthonormal_basis(solver):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((50, 2)) @ rng.standard_normal((2, 9))
    ours = FederatedPCA(5, solver=solver, tol=1e-11, random_state=0).fit(np.array_split(X, 4))
    reference = PCA(5, svd_solver="full").fit(X)
    np.testing.assert_allclose(ours.components_ @ ours.components_.T, np.eye(5), atol=1e-12)
    assert sine_of_angle(reference.components_[:2].T, ours.components_[:2].T) < 1e-10
    largest = reference.explained_variance_[0]
    np.testing.assert_allclose(
        ours.explained_variance_, reference.explained_variance_, atol=1e-12 * largest
    )


@every_solver
def test_rows_without_any_variance(solver):
    ours = FederatedPCA(2, solver=solver, random_state=0).fit([np.full((4, 3), 2.5)] * 2)
    assert not ours.explained_variance_.any()
    assert not ours.explained_variance_ratio_.any()
    assert np.isnan(ours.site_variance_ratio_["site-1"])


@every_solver
@pytest.mark.parametrize("n_components", [0.5, 0.9, 0.999, "auto", "mp", "gap", None, 1])
def test_every_solver_finds_the_same_number_of_components(solver, n_components):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((400, 20)) * ([5, 4.8, 4.6, 4.4, 4.2, 4] + [1] * 14)
    X = X @ np.linalg.qr(rng.standard_normal((20, 20)))[0]  # so that columns have it in common
    ours = FederatedPCA(n_components, solver=solver, random_state=0, max_rounds=3000, tol=1e-6)
    ours.fit(np.array_split(X, 5))
    if isinstance(n_components, str):
        assert ours.n_components_ == 6
    else:
        assert ours.n_components_ == PCA(n_components, svd_solver="full").fit(X).n_components_


@every_solver
def test_uncentered_components_are_about_zero(solver):
    rng = np.random.default_rng(5)
    X = gapped_rows(rng, 80, 7, 2, offset=2.0)
    ours = FederatedPCA(2, solver=solver, center=False, random_state=0).fit(np.array_split(X, 3))
    values, vectors = np.linalg.eigh(X.T @ X)
    assert_subspace(ours, vectors[:, -2:].T, 1e-8)
    left_out = ours.run_.left_out * values.sum()
    assert_variances(ours.singular_values_**2, values[::-1][:2], left_out, rtol=1e-10)
    assert not ours.mean_.any()


@pytest.mark.parametrize("solver", sorted(set(SOLVERS) - {"tsqr"}))  # whose factors are dense
def test_sparse_rows_are_never_densified(solver, monkeypatch):
    rng = np.random.default_rng(6)
    X = sp.random_array((120, 30), density=0.2, format="csr", rng=rng)
    X = (X @ sp.diags_array([4.0, 3.0, 2.0] + [0.5] * 27)).tocsr()
    reference = PCA(3, svd_solver="full").fit(X.toarray())
    monkeypatch.setattr(sparse_gram, "rows_per_block", lambda d: 8)  # so that tiles are parts
    monkeypatch.setattr(sp.csr_array, "todense", None)
    dense_of = sp.csr_array.toarray

    def small_only(self, *args, **kwargs):
        assert self.shape[0] <= 30, "only A'A, and a few rows, may become dense"
        return dense_of(self, *args, **kwargs)

    monkeypatch.setattr(sp.csr_array, "toarray", small_only)
    monkeypatch.setattr(sp.csc_array, "toarray", small_only)
    parts = [X[:50], X[50:51], X[51:]]
    ours = FederatedPCA(3, solver=solver, random_state=0, max_rounds=5000).fit(parts)
    assert_subspace(ours, reference.components_, 1e-8)
    left_out = ours.run_.left_out * ours.total_variance_
    assert_variances(ours.explained_variance_, reference.explained_variance_, left_out, rtol=1e-10)


@pytest.mark.filterwarnings("ignore:only .* components are certain")
@pytest.mark.filterwarnings("ignore:site 'b' has 44.0% of the rows")
@every_solver
@pytest.mark.parametrize(("far", "scale"), every_other([0.0, 10.0, 1e7], [False, True]))
def test_share_of_each_sites_own_variance(solver, far, scale):
    rng = np.random.default_rng(7)
    sites = {"a": gapped_rows(rng, 50, 6, 2, offset=1.0), "b": rng.standard_normal((40, 6)) + far}
    sites |= {"one row": rng.standard_normal((1, 6)), "empty": np.empty((0, 6))}
    ours = FederatedPCA(2, solver=solver, scale=scale, random_state=0, max_rounds=5000).fit(sites)
    for name, rows in sites.items():
        if len(rows) < 2:
            assert np.isnan(ours.site_variance_ratio_[name])
            continue
        centered = (rows - rows.mean(axis=0)) / ours.scale_
        share = np.sum((centered @ ours.components_.T) ** 2) / np.sum(centered**2)
        assert ours.site_variance_ratio_[name] == pytest.approx(share, rel=1e-9)


@every_solver
def test_ledger_counts_the_encoded_bytes_of_every_message(solver):
    rng = np.random.default_rng(8)
    sites = np.array_split(gapped_rows(rng, 60, 6, 2), 3)
    engine = ScriptedEngine(sites)
    over_bytes = FederatedPCA(2, solver=solver, random_state=0).fit(Federation(engine))
    run = over_bytes.run_
    assert (run.bytes_down, run.bytes_up) == (engine.bytes_down, engine.bytes_up)
    assert (run.ledger.bytes_down, run.ledger.bytes_up) == (engine.bytes_down, engine.bytes_up)
    within = FederatedPCA(2, solver=solver, random_state=0).fit(sites)
    assert within.components_.tobytes() == over_bytes.components_.tobytes()
    assert list(within.run_.ledger) == list(run.ledger)


def test_only_sums_leave_the_sites_but_for_names_shares_and_what_a_solver_says_it_sees():
    rng = np.random.default_rng(9)
    for solver in SOLVERS.values():
        X = gapped_rows(rng, 40, 5, 2)
        run = FederatedPCA(2, solver=solver).fit(np.array_split(X, 4)).run_
        seen = {entry.question for entry in run.ledger if entry.how == "seen"}
        assert "column_names" in seen
        assert seen <= {"column_names", "explained_energy", *solver.seen}
        assert bool(seen & {*solver.seen}) == bool(solver.seen)


@every_solver
@pytest.mark.parametrize("size", [1e-155, 1e-160, 1e-200, 1e-300])
def test_values_whose_squares_underflow_are_refused(solver, size):
    X = np.random.default_rng(12).standard_normal((60, 5)) * size
    with pytest.raises(InputError, match="rescale the columns"):
        FederatedPCA(2, solver=solver, random_state=0).fit(np.array_split(X, 3))
