"""The solvers of one round: `merge` and `average`."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.decomposition import PCA

from fedpca import FederatedPCA, Federation, Policy, Site, Summary, load
from fedpca.errors import InputError, PolicyRefused, SiteFailed
from fedpca.linalg.dense import sine_of_angle
from fedpca.rows.in_memory import DenseRows
from fedpca.solvers import Average, Merge
from fedpca.summary.summary import merge_in_tree
from support import gapped_rows, pooled, solver_with


def unlike_sites(d=60, k=4, n_sites=8, n=150):
    """Sites with other means, each with a part of the common variance."""
    X = gapped_rows(np.random.default_rng(d + n_sites), n * n_sites, d, k)
    X = X[np.argsort(X[:, 0])]
    return [part + 0.5 * i for i, part in enumerate(np.array_split(X, n_sites))]


def asked(model):
    """The questions of a fit, in order."""
    return [entry["question"] for entry in model.run_.history]


def test_merging_own_means_takes_one_round_and_one_pass(monkeypatch):
    passes = []
    blocks = DenseRows.blocks

    def counting(self):
        passes.append(self)
        return blocks(self)

    monkeypatch.setattr(DenseRows, "blocks", counting)
    sites = unlike_sites()
    model = FederatedPCA(4, solver="merge").fit(sites)
    assert asked(model) == ["column_names", "summarize_rows", "explained_in_summary"]
    assert len(passes) == len(sites)
    assert model.run_.solver == "merge"
    reference = PCA(4, svd_solver="full").fit(pooled(sites))
    assert sine_of_angle(reference.components_.T, model.components_.T) <= model.run_.angle_bound
    assert sine_of_angle(reference.components_.T, model.components_.T) < 0.01
    np.testing.assert_allclose(model.mean_, reference.mean_, rtol=1e-12)
    total = PCA(svd_solver="full").fit(pooled(sites)).explained_variance_.sum()
    assert model.total_variance_ == pytest.approx(total, rel=1e-12)
    for name, share in model.site_variance_ratio_.items():
        rows = sites[int(name.removeprefix("site-")) - 1]
        centered = rows - rows.mean(axis=0)
        due = np.linalg.norm(centered @ model.components_.T) ** 2 / np.linalg.norm(centered) ** 2
        assert due - 0.02 < share <= due * (1 + 1e-12)


@pytest.mark.parametrize("scale", [False, True])
def test_merging_about_the_common_mean_takes_one_round_after_it(scale):
    sites = unlike_sites()
    model = FederatedPCA(4, solver=Merge(own_means=False), scale=scale).fit(sites)
    rounds = ["column_names", "count_and_sum", "squares", "summarize_about", "explained_energy"]
    assert asked(model) == [r for r in rounds if scale or r != "squares"]
    X = pooled(sites)
    X = (X - X.mean(axis=0)) / (X.std(axis=0) if scale else 1.0)
    reference = PCA(4, svd_solver="full").fit(X)
    angle = sine_of_angle(reference.components_.T, model.components_.T)
    assert angle <= model.run_.angle_bound
    assert angle < 0.05


@pytest.mark.parametrize("solver", ["merge", "average"])
def test_scaled_sparse_rows_give_the_same_as_dense_ones(solver):
    rng = np.random.default_rng(4)
    X = sp.random_array((90, 12), density=0.4, format="csr", rng=rng)
    sparse = FederatedPCA(3, solver=solver, scale=True).fit([X[:50], X[50:]])
    dense = FederatedPCA(3, solver=solver, scale=True).fit([X[:50].toarray(), X[50:].toarray()])
    assert sine_of_angle(dense.components_.T, sparse.components_.T) < 1e-10
    np.testing.assert_allclose(sparse.explained_variance_, dense.explained_variance_, rtol=1e-10)


@pytest.mark.parametrize("solver", ["merge", "average"])
@pytest.mark.parametrize("n_components", [2, "mp", "gap", 0.9])
def test_rows_without_variance_under_any_rule(solver, n_components):
    model = FederatedPCA(n_components, solver=solver).fit([np.full((4, 3), 2.5)] * 2)
    assert not model.explained_variance_.any()
    assert np.isfinite(model.components_).all()


def test_scale_asks_for_the_mean_even_where_sites_have_their_own():
    model = FederatedPCA(4, solver="merge", scale=True).fit(unlike_sites())
    assert "summarize_about" in asked(model)


@pytest.mark.parametrize("fan_in", [None, 2, 3, 100])
def test_any_tree_stays_within_the_bound(fan_in):
    sites = unlike_sites(d=120, n_sites=9)
    model = FederatedPCA(5, solver=Merge(fan_in=fan_in)).fit(sites)
    reference = PCA(5, svd_solver="full").fit(pooled(sites))
    angle = sine_of_angle(reference.components_.T, model.components_.T)
    assert 0 < angle <= model.run_.angle_bound < 1
    assert angle < 0.02
    short = reference.explained_variance_ - model.explained_variance_
    assert (short >= 0).all()
    assert (short <= model.run_.left_out * model.total_variance_).all()
    assert model.run_.stop_reason == "approximate"


def test_sites_may_choose_how_many_directions_they_send():
    rng = np.random.default_rng(1)
    noise = [rng.standard_normal((400, 30)) for _ in range(2)]
    basis = np.linalg.qr(rng.standard_normal((30, 30)))[0]
    ranks = (3, 9)
    sites = [
        0.1 * rows + rng.standard_normal((400, r)) * 3 @ basis[:r]
        for rows, r in zip(noise, ranks, strict=True)
    ]
    model = FederatedPCA(3, solver=Merge(site_components="mp")).fit(sites)
    sent = [e.shape for e in model.run_.ledger if e.field == "directions" and e.direction == "up"]
    assert sent == [(r + 10, 30) for r in ranks]  # ten spare ones each
    reference = PCA(3, svd_solver="full").fit(pooled(sites))
    assert sine_of_angle(reference.components_.T, model.components_.T) < 1e-3


@pytest.mark.parametrize("solver", ["merge", "average"])
def test_a_rule_that_must_see_more_asks_again(solver):
    rng = np.random.default_rng(2)
    X = rng.standard_normal((600, 80)) * np.r_[np.linspace(5, 4, 45), np.full(35, 0.1)]
    model = FederatedPCA(0.99, solver=solver).fit(np.array_split(X, 3))
    assert model.n_components_ == PCA(0.99, svd_solver="full").fit(X).n_components_ > 30
    question = "summarize_rows" if solver == "merge" else "summarize_about"
    assert asked(model).count(question) > 1


def test_averaging_takes_one_round_after_the_mean_and_three_columns_for_each_component():
    sites = unlike_sites()
    model = FederatedPCA(4, solver="average").fit(sites)
    assert asked(model) == ["column_names", "count_and_sum", "summarize_about", "explained_energy"]
    sent = {e.shape for e in model.run_.ledger if e.field == "directions" and e.direction == "up"}
    assert sent == {(12, 60)}
    few = FederatedPCA(4, solver="average").fit([site[:5] for site in sites])
    sent = {e.shape for e in few.run_.ledger if e.field == "directions" and e.direction == "up"}
    assert sent == {(5, 60)}  # no more than rows


def decaying_spectrum():
    """Fifty eigenvalues with a gap of 0.3 behind the sixth."""
    values = [1.0]
    for i in range(1, 50):
        values.append(values[-1] - 0.3 if i == 6 else 0.9 * values[-1])
    return np.array(values)


@pytest.mark.slow
def test_weighted_averages_come_near_the_pooled_eigenvectors_and_unweighted_ones_do_not():
    deviations = np.sqrt(decaying_spectrum())
    errors = {"pooled": [], "eigenvalues": [], "unweighted": []}
    for seed in range(12):
        rng = np.random.default_rng(seed)
        sites = [rng.standard_normal((300, 50)) * deviations for _ in range(20)]
        V = np.linalg.eigh(pooled(sites).T @ pooled(sites))[1]
        errors["pooled"].append(1 - np.diag(V[:3, ::-1][:, :3]) ** 2)
        for weights in ("eigenvalues", "unweighted"):
            solver = Average(weights=weights, site_components=7)
            model = FederatedPCA(7, solver=solver, center=False)
            C = model.fit(sites).components_
            errors[weights].append(1 - np.diag(C[:3, :3]) ** 2)
    mean = {name: np.mean(error, axis=0) for name, error in errors.items()}
    np.testing.assert_allclose(mean["eigenvalues"], mean["pooled"], rtol=0.1)
    assert (mean["unweighted"] > 3 * mean["pooled"]).all()


@pytest.mark.parametrize("n", [50, 400])
def test_the_gap_is_found_in_one_round(n):
    deviations = np.sqrt(decaying_spectrum())
    found = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        sites = [rng.standard_normal((n, 50)) * deviations for _ in range(20)]
        model = FederatedPCA("gap", solver="average", center=False).fit(sites)
        assert asked(model).count("summarize_about") == 1
        found.append(model.n_components_)
    assert found.count(6) >= 9


def test_a_rule_is_settled_by_what_sites_send():
    rng = np.random.default_rng(5)
    slow = np.sqrt(np.linspace(2, 1, 12))
    sites = [rng.standard_normal((5000, 12)) * slow for _ in range(4)]
    # behind the five that each site sends the average falls to nothing, which is no gap of the rows
    average = FederatedPCA("gap", solver=Average(site_components=5)).fit(sites)
    assert 2 <= average.n_components_ < 5
    for solver in ("merge", "average"):
        most = FederatedPCA(0.9, solver=solver_with(solver, site_components=5)).fit(sites)
        assert most.n_components_ >= 5  # as near to the share as what was sent allows


def test_unequal_sites_count_by_their_rows():
    rng = np.random.default_rng(3)
    large = rng.standard_normal((4000, 10)) * np.r_[3, np.ones(9)]
    small = rng.standard_normal((40, 10)) * np.r_[np.ones(9), 9]
    model = FederatedPCA(1, solver="average", center=False).fit([large, small])
    X = np.vstack([large, small])
    vector = np.linalg.eigh(X.T @ X)[1][:, -1:]
    assert sine_of_angle(vector, model.components_.T) < 0.02
    equal = FederatedPCA(1, solver=Average(weights="unweighted"), center=False)
    equal.fit([large, small])
    assert equal.run_.angle_bound == 1  # it cannot say
    assert equal.run_.stop_reason == "approximate"


def test_unweighted_averages_give_the_subspace_and_variances_along_it():
    sites = unlike_sites()
    model = FederatedPCA(4, solver=Average(weights="unweighted")).fit(sites)
    assert (np.diff(model.explained_variance_) <= 0).all()
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(4), atol=1e-12)
    along = (pooled(sites) - model.mean_) @ model.components_.T
    np.testing.assert_allclose(model.explained_variance_, along.var(axis=0, ddof=1), rtol=0.05)


def test_bad_options_are_refused():
    with pytest.raises(TypeError, match="weights"):
        Merge(weights="unweighted")
    with pytest.raises(InputError, match="fan_in=1 must be a whole number of at least 2"):
        Merge(fan_in=1)
    with pytest.raises(InputError, match="site_components='half' is not valid"):
        Average(site_components="half")
    with pytest.raises(InputError, match="weights='rows' must be one of 'eigenvalues'"):
        Average(weights="rows")


@pytest.mark.parametrize("solver", ["merge", "average"])
def test_bad_rows_and_policies_stop_the_round(solver):
    good = np.random.default_rng(11).standard_normal((20, 4))
    bad = good.copy()
    bad[2, 3] = np.nan
    with pytest.raises(InputError, match=r"'b'.*contains NaN in columns 3"):
        FederatedPCA(2, solver=solver).fit({"a": good, "b": bad})
    with pytest.raises(InputError, match="n_components=5 exceeds the 4 features"):
        FederatedPCA(5, solver=solver).fit([good, good])
    with pytest.raises(InputError, match="n_samples=1"):
        FederatedPCA(1, solver=solver).fit([good[:1], good[:0]])
    shy = Site(good, name="shy", policy=Policy(gather=False))
    with pytest.raises(PolicyRefused, match="shy"):
        FederatedPCA(2, solver=solver).fit(Federation.local({"shy": shy, "open": good}))


@pytest.mark.parametrize("solver", ["merge", "average"])
def test_columns_in_another_order_are_matched_by_name(solver):
    pd = pytest.importorskip("pandas")
    X = gapped_rows(np.random.default_rng(12), 80, 5, 2)
    frame = pd.DataFrame(X, columns=list("abcde"))
    for scale in (False, True):
        model = FederatedPCA(2, solver=solver, scale=scale).fit(
            {"one": frame[:30], "two": frame[30:][["e", "b", "a", "d", "c"]]}
        )
        same = FederatedPCA(2, solver=solver, scale=scale).fit({"one": X[:30], "two": X[30:]})
        assert sine_of_angle(same.components_.T, model.components_.T) < 1e-10


@pytest.mark.parametrize("solver", ["merge", "average"])
def test_a_lost_site_leaves_the_result_of_the_others(solver):
    class Failing(Site):
        def answer(self, request, *, keep=True):
            if request.header["round"] > 1:
                return self.refusal(request.header, SiteFailed("gone"))
            return super().answer(request, keep=keep)

    sites = unlike_sites(n_sites=4)
    failing = {"f": Failing(sites[0], name="f"), **{f"s{i}": s for i, s in enumerate(sites[1:])}}
    model = FederatedPCA(3, solver=solver).fit(Federation.local(failing, quorum=3))
    alone = FederatedPCA(3, solver=solver).fit(sites[1:])
    assert [loss["site"] for loss in model.run_.lost] == ["f"]
    np.testing.assert_array_equal(model.explained_variance_, alone.explained_variance_)


@pytest.mark.parametrize("solver", ["merge", "average"])
def test_a_saved_model_keeps_its_bound(tmp_path, solver):
    model = FederatedPCA(2, solver=solver_with(solver, site_components=3)).fit(unlike_sites())
    model.save(tmp_path / "m")
    back = load(tmp_path / "m")
    assert back.run_.angle_bound == model.run_.angle_bound > 0
    assert back.run_.left_out == model.run_.left_out > 0
    assert back.get_params() == model.get_params()


@pytest.mark.parametrize("solver", ["merge", "average"])
def test_directions_that_no_site_sent_are_not_called_exact(solver):
    X = np.random.default_rng(6).standard_normal((200, 20)) * np.linspace(3, 1, 20)
    model = FederatedPCA(15, solver=solver_with(solver, site_components=2)).fit([X, X[:0]])
    assert model.run_.stop_reason == "approximate"
    assert model.run_.angle_bound == 1
    assert model.run_.left_out > 0
    # more than there are features
    more = FederatedPCA(2, solver=solver_with(solver, site_components=50)).fit([X])
    reference = PCA(2, svd_solver="full").fit(X)
    assert sine_of_angle(reference.components_.T, more.components_.T) < 1e-8


def test_few_rows_a_site_do_not_hide_the_spectrum_from_a_rule():
    rng = np.random.default_rng(7)
    deviations = np.r_[9, 8, 7, 6, 5, np.full(35, 0.1)]
    sites = [rng.standard_normal((3, 40)) * deviations for _ in range(6)]
    exact = FederatedPCA(0.95, solver="covariance").fit(sites)
    average = FederatedPCA(0.95, solver="average").fit(sites)
    assert average.n_components_ == exact.n_components_ == 5


@pytest.mark.parametrize("solver", ["merge", "average"])
def test_the_gap_to_nothing_is_a_gap(solver):
    rng = np.random.default_rng(8)
    X = rng.standard_normal((200, 3)) @ rng.standard_normal((3, 40))
    for n_components in ("gap", "mp"):
        exact = FederatedPCA(n_components, solver="covariance").fit([X[:90], X[90:]])
        found = FederatedPCA(n_components, solver=solver).fit([X[:90], X[90:]])
        assert found.n_components_ == exact.n_components_ == 3


def test_shares_about_zero_are_about_each_sites_own_mean_too():
    rng = np.random.default_rng(9)
    sites = [rng.standard_normal((60, 6)), rng.standard_normal((50, 6)) + 10]
    merged = FederatedPCA(2, solver="merge", center=False).fit(sites)
    exact = FederatedPCA(2, solver="covariance", center=False).fit(sites)
    for name, share in exact.site_variance_ratio_.items():
        assert merged.site_variance_ratio_[name] == pytest.approx(share)


def test_the_coordinator_forms_nothing_of_the_size_of_a_covariance():
    rng = np.random.default_rng(10)
    d, n_sites, t = 6000, 20, 10
    sites = [
        Summary.of(rng.standard_normal((12, d)), t, n_spare=0, center=False) for _ in range(n_sites)
    ]
    tracemalloc.start()
    merged = merge_in_tree(sites)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(merged.directions) == t
    assert most < 4 * 8 * n_sites * t * d < 8 * d**2 / 7
