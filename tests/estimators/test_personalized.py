"""What is shared and what is particular: the promises of every method of `PersonalizedPCA`."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedpca import FederatedPCA, Federation, PersonalizedPCA, Policy, Site, load, search_ranks
from fedpca.errors import FileError, InputError
from fedpca.estimators.rank_search import errors_from_rest
from fedpca.linalg.dense import qr_factor, sine_of_angle
from fedpca.solvers import Polar, Stiefel
from fedpca.solvers.catalogue import PERSONALIZED as METHODS
from fedpca.solvers.personalized.power import Climb, best_of, worth_going_on
from fedpca.solvers.personalized.projections import leading_of_columns
from fedpca.testing import ScriptedEngine, spoil
from support import draws, every_other, first_of

every_method = pytest.mark.parametrize("method", sorted(METHODS))
LONG = {"max_rounds": 5000, "tol": 1e-13}


def draw_sites(
    seed=0, n_sites=8, d=12, shared=2, local=2, n=60, noise=0.1, ratio=1.0, offset=0.0, n_few=None
):
    """Rows with common and own directions, and these directions."""
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((d, shared)))[0]
    sites, own = {}, {}
    for i in range(n_sites):
        W = rng.standard_normal((d, local))
        V = np.linalg.qr(W - U @ (U.T @ W))[0]
        rows = n if n_few is None or i % 2 else n_few
        X = rng.standard_normal((rows, shared)) @ U.T * np.sqrt(2)
        X += ratio * rng.standard_normal((rows, local)) @ V.T
        sites[f"s{i:02d}"] = X + noise * rng.standard_normal((rows, d)) + offset
        own[f"s{i:02d}"] = V
    return sites, U, own


def objective(pca, sites):
    """The mean over sites of the variance along shared and local components, by definition."""
    total = 0.0
    for name, X in sites.items():
        A = np.asarray(X, float) - np.mean(X, axis=0)
        C = np.vstack([pca.components_, pca.local_components_[name]])
        total += np.sum((A @ C.T) ** 2) / len(A)
    return total / len(sites)


def assert_orthonormal(pca):
    for V in pca.local_components_.values():
        C = np.vstack([pca.components_, V])
        assert np.abs(C @ C.T - np.eye(len(C))).max() <= 1e-12


@pytest.mark.slow
@every_method
@pytest.mark.parametrize("weights", ["site", "rows"])
def test_shared_and_local_directions_are_found(method, weights):
    sites, U, own = draw_sites(noise=0.01, n_few=20)
    pca = PersonalizedPCA(2, 2, solver=method, weights=weights, **LONG).fit(sites)
    assert sine_of_angle(U, pca.components_.T) < 0.01
    assert all(sine_of_angle(own[s], V.T) < 0.02 for s, V in pca.local_components_.items())
    assert_orthonormal(pca)
    if weights == "site":
        assert pca.objective_ == pytest.approx(objective(pca, sites), rel=1e-10)


@pytest.mark.slow
@every_method
@pytest.mark.parametrize("retraction", ["polar", "qr"])
def test_every_method_ends_where_no_neighbor_is_better(method, retraction):
    slack = 2e-4 if method == "polar" else 1e-9  # which does not end at a stationary point
    sites, _, _ = draw_sites(seed=1, noise=0.4)
    if method != "power":
        method = type(METHODS[method])(retraction=retraction)
    pca = PersonalizedPCA(2, 2, solver=method, **LONG).fit(sites)
    rng = np.random.default_rng(0)
    U = pca.components_.T
    for size in (1e-2, 1e-3):
        for _ in range(5):
            near = np.linalg.qr(U + size * rng.standard_normal(U.shape))[0]
            assert best_for(near, sites, 2) < pca.objective_ * (1 + slack)


def best_for(U, sites, n_local):
    """The objective of U with the best local directions of every site."""
    total = 0.0
    for X in sites.values():
        A = X - X.mean(axis=0)
        S = A.T @ A / len(A)
        P = np.eye(len(U)) - U @ U.T
        total += np.trace(U.T @ S @ U) + np.linalg.eigvalsh(P @ S @ P)[-n_local:].sum()
    return total / len(sites)


@pytest.mark.slow
@draws(8)
@given(seed=st.integers(0, 2**31), ratio=st.sampled_from([0.5, 2.0, 10.0]))
def test_the_objective_never_falls(seed, ratio):
    sites, _, _ = draw_sites(seed, n_sites=5, d=9, ratio=ratio, noise=0.7, n=15)
    values = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rounds in range(1, 9):
            options = {"n_init": 2, "random_state": seed, "max_rounds": rounds}
            pca = PersonalizedPCA(2, 2, start="random", **options).fit(sites)
            values.append(pca.objective_)
    assert (np.diff(values) >= -1e-12 * values[-1]).all()


@pytest.mark.parametrize("method", [Stiefel(step=3.0), Polar(step=3.0)])
def test_a_step_that_lowers_the_objective_is_taken_back(method):
    sites, U, _ = draw_sites(noise=0.05)
    pca = PersonalizedPCA(2, 2, solver=method, **LONG).fit(sites)
    assert sine_of_angle(U, pca.components_.T) < 0.05


@pytest.mark.parametrize("start", ["average", "random"])
def test_power_finds_the_same_from_every_start(start):
    sites, _, _ = draw_sites(seed=2)
    first = PersonalizedPCA(2, 2, **LONG).fit(sites)
    other = PersonalizedPCA(2, 2, start=start, random_state=3, **LONG).fit(sites)
    assert other.objective_ == pytest.approx(first.objective_, rel=1e-9)
    assert sine_of_angle(first.components_.T, other.components_.T) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_of(range(3)))
def test_the_published_start_fails_where_local_variances_are_large_and_the_default_does_not(seed):
    sites, U, _ = draw_sites(seed, n_sites=20, d=15, local=10, n=80, ratio=14, noise=0.7)
    failed = {}
    for start, method in (("stack", "power"), ("average", "stiefel")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pca = PersonalizedPCA(
                2, 10, solver=method, start=start, max_rounds=60, random_state=seed
            ).fit(sites)
        failed[start] = sine_of_angle(U, pca.components_.T) > 0.5
    assert failed == {"stack": False, "average": True}


@pytest.mark.slow
@every_method
@draws(4)
@given(data=st.data())
def test_the_result_does_not_depend_on_the_order_of_sites(method, data):
    sites, _, _ = draw_sites(data.draw(st.integers(0, 99)), n_sites=5, d=8, local=1, shared=1)
    names = data.draw(st.permutations(list(sites)))
    ours = PersonalizedPCA(1, 1, solver=method).fit(sites)
    other = PersonalizedPCA(1, 1, solver=method).fit({name: sites[name] for name in names})
    # where `polar` stalls is a matter of rounding
    angle, share = (1e-2, 1e-5) if method == "polar" else (1e-7, 1e-12)
    assert sine_of_angle(ours.components_.T, other.components_.T) < angle
    assert ours.objective_ == pytest.approx(other.objective_, rel=share)


@every_method
def test_an_offset_changes_nothing(method):
    sites, _, _ = draw_sites(seed=4)
    plain = PersonalizedPCA(2, 2, solver=method).fit(sites)
    # where `polar` stalls is a matter of rounding
    angle, share = (1e-2, 1e-5) if method == "polar" else (1e-6, 1e-6)
    for offset in (1e4, 1e8):
        moved = {name: X + offset * (1 + i) for i, (name, X) in enumerate(sites.items())}
        ours = PersonalizedPCA(2, 2, solver=method).fit(moved)
        assert sine_of_angle(plain.components_.T, ours.components_.T) < angle
        assert ours.objective_ == pytest.approx(plain.objective_, rel=share)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:solver")
@every_method
def test_sparse_rows_and_float32_give_what_dense_ones_give(method):
    rng = np.random.default_rng(0)
    counts = {f"s{i}": rng.poisson(rng.gamma(0.4, 1, 20), (40, 20)) for i in range(5)}
    dense = {name: X.astype(np.float64) for name, X in counts.items()}
    pca = PersonalizedPCA(2, 2, solver=method, max_rounds=50)
    reference = clone(pca).fit(dense)
    for make in (sp.csr_array, lambda X: X.astype(np.float32), sp.csc_matrix):
        ours = clone(pca).fit({name: make(X) for name, X in dense.items()})
        assert sine_of_angle(reference.components_.T, ours.components_.T) < 1e-7


@pytest.mark.slow
@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_wide_rows_work_without_a_matrix_of_their_features(make):
    d = 5000
    sites, U, _ = draw_sites(n_sites=6, d=d, n=30, noise=0.01)
    rows = {name: make(X) for name, X in sites.items()}
    tracemalloc.start()
    pca = PersonalizedPCA(2, 2).fit(rows)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8 * d**2 / 4
    assert sine_of_angle(U, pca.components_.T) < 0.2
    assert_orthonormal(pca)
    if make is np.asarray:  # by sums alone, so that Lanczos finds the start
        federated = PersonalizedPCA(2, 2).fit(Federation.local(sites))
        assert sine_of_angle(federated.components_.T, pca.components_.T) < 1e-4
        assert max(np.prod(entry.shape) for entry in federated.run_.ledger) == 4 * d * 2


@pytest.mark.parametrize(("d", "n"), [(40, 60), (200, 60), (300, 60), (300, 400)])
def test_the_objective_is_that_of_the_best_local_components(d, n):
    sites, _, _ = draw_sites(seed=6, n_sites=3, d=d, n=n, noise=0.3)
    pca = PersonalizedPCA(2, 2).fit(sites)
    assert pca.objective_ == pytest.approx(best_for(pca.components_.T, sites, 2), rel=1e-9)


@pytest.mark.slow
def test_features_beyond_the_dense_bound_give_the_same(monkeypatch):
    sites, _, _ = draw_sites(seed=5, d=60)
    by_lapack = PersonalizedPCA(2, 2).fit(sites)
    monkeypatch.setattr("fedpca.rows.leading.MAX_DENSE_SIDE", 10)
    by_products = PersonalizedPCA(2, 2).fit(sites)
    assert sine_of_angle(by_lapack.components_.T, by_products.components_.T) < 1e-6
    for name, V in by_lapack.local_components_.items():
        assert sine_of_angle(V.T, by_products.local_components_[name].T) < 1e-6
    assert_orthonormal(by_products)


@every_method
def test_empty_sites_and_sites_of_one_row_take_part(method):
    sites, U, _ = draw_sites(noise=0.01)
    sites |= {"empty": np.empty((0, 12)), "one": np.ones((1, 12)), "two": sites["s00"][:2]}
    pca = PersonalizedPCA(2, 2, solver=method).fit(sites)
    assert sine_of_angle(U, pca.components_.T) < 0.05
    ranks = {name: len(V) for name, V in pca.local_components_.items()}
    assert (ranks["empty"], ranks["one"], ranks["two"], ranks["s01"]) == (0, 0, 1, 2)
    scores = pca.transform(sites["two"], "two")
    assert scores.shape == (2, 4)
    assert (scores[:, 3] == 0).all()
    assert np.isnan(pca.site_variance_["empty"]["shared"])


def test_ranks_may_differ_between_sites():
    sites, _, _ = draw_sites(n_sites=4, noise=0.01, local=3)
    ranks = {"s00": 3, "s01": 3, "s02": 1, "s03": 2}
    pca = PersonalizedPCA(2, ranks, n_init=1).fit(sites)
    assert {name: len(V) for name, V in pca.local_components_.items()} == ranks
    assert pca.transform(sites["s02"], "s02").shape[1] == 5
    with pytest.raises(InputError, match=r"entries for .*'s00'.* but the sites are"):
        PersonalizedPCA(2, {"s00": 3}).fit(sites)
    with pytest.raises(
        InputError, match=r"n_local\['s00'\]=-1 must be a whole number of at least 0"
    ):
        PersonalizedPCA(2, ranks | {"s00": -1}).fit(sites)
    with pytest.raises(InputError, match="n_local=12 for site 's00' exceeds n_features=12"):
        PersonalizedPCA(2, ranks | {"s00": 12}).fit(sites)


@every_method
def test_same_seed_gives_the_same_bits_on_encoded_messages(method):
    sites, _, _ = draw_sites(n_sites=4)
    plain, other = (
        PersonalizedPCA(2, 2, solver=method, start="random", random_state=7).fit(fed)
        for fed in (Federation.local(sites), Federation(ScriptedEngine(sites)))
    )
    assert (plain.components_ == other.components_).all()
    assert plain.run_.ledger == other.run_.ledger


@pytest.mark.slow
@pytest.mark.parametrize(("method", "d"), every_other(sorted(METHODS), [12, 300]))
def test_a_killed_fit_goes_on_from_its_journal_with_the_same_bits(method, d, tmp_path):
    sites, _, _ = draw_sites(n_sites=4, noise=0.3, d=d)
    options = {"solver": method, "random_state": 0, "tol": 1e-6}
    whole = PersonalizedPCA(2, 2, **options).fit(Federation.local(sites))
    for at in {2, 3, whole.run_.rounds // 2, whole.run_.rounds}:
        journal = tmp_path / f"{at}.journal"

        def crash(entry, at=at):
            if entry["round"] == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            PersonalizedPCA(2, 2, **options).fit(
                Federation.local(sites, journal=journal, on_round=crash)
            )
        again = PersonalizedPCA(2, 2, **options).fit(Federation.local(sites, journal=journal))
        assert (again.components_ == whole.components_).all()
        assert again.run_.rounds == whole.run_.rounds


def test_only_sums_are_asked_of_a_federation_and_local_components_stay():
    sites, U, _ = draw_sites(noise=0.01)
    policy = Policy(allow=("personalized",))
    guarded = {name: Site(X, name=name, policy=policy) for name, X in sites.items()}
    pca = PersonalizedPCA(2, 2).fit(Federation.local(guarded))
    assert sine_of_angle(U, pca.components_.T) < 0.01
    assert pca.local_components_ == {} == pca.site_variance_
    assert {entry.question for entry in pca.run_.ledger if entry.how == "seen"} == {"column_names"}
    assert pca.misalignment_ == pytest.approx(PersonalizedPCA(2, 2).fit(sites).misalignment_)
    with pytest.raises(InputError, match="stayed at the site; load the file that the site keeps"):
        pca.transform(sites["s00"], "s00")
    with pytest.raises(InputError, match="gather=True"):
        pca.site_affinity()
    open_minded = PersonalizedPCA(2, 2, gather=True).fit(Federation.local(sites))
    assert set(open_minded.local_components_) == set(sites)


def test_sites_keep_their_own_models(tmp_path):
    sites, _, _ = draw_sites(n_sites=3)
    kept = {name: Site(X, name=name, store=tmp_path / name) for name, X in sites.items()}
    pca = PersonalizedPCA(2, 2, center="common", scale=True).fit(Federation.local(kept))
    for name, X in sites.items():
        (file,) = (tmp_path / name).glob("*.fedpca")
        own = load(file)
        assert isinstance(own, PersonalizedPCA)
        assert list(own.local_components_) == [name]
        assert (own.components_ == pca.components_).all()
        explained = own.inverse_transform(own.transform(X)) - own.site_means_[name]
        assert np.allclose(
            explained + own.split(X).left, X - np.vstack(list(sites.values())).mean(0)
        )


def test_lost_sites_leave_the_result_of_those_that_remain():
    sites, _, _ = draw_sites()

    losing = spoil(lambda answer: None, sites=["s03"], question="power_step")
    fed = Federation(ScriptedEngine(sites, losing), quorum=5)
    pca = PersonalizedPCA(2, 2, gather=True, **LONG).fit(fed)
    left = PersonalizedPCA(2, 2, **LONG).fit({k: X for k, X in sites.items() if k != "s03"})
    assert [entry["site"] for entry in pca.run_.lost] == ["s03"]
    assert sine_of_angle(left.components_.T, pca.components_.T) < 1e-4
    assert pca.objective_ == pytest.approx(left.objective_, rel=1e-9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:ambiguity_")
@pytest.mark.parametrize("center", ["site", "common", "none"])
@pytest.mark.parametrize("scale", [False, True])
def test_parts_sum_to_the_rows_about_their_mean(center, scale):
    sites, _, _ = draw_sites(offset=3.0)
    sites["s00"] = sites["s00"] + 1
    pca = PersonalizedPCA(2, 2, center=center, scale=scale).fit(sites)
    everything = np.vstack(list(sites.values()))
    for name, X in sites.items():
        mean = {"site": X.mean(axis=0), "common": everything.mean(axis=0), "none": 0.0}[center]
        assert np.allclose(pca.site_means_[name], mean)
        parts = pca.split(X, name)
        assert np.allclose(sum(parts), X - mean)
        framed = [part / pca.scale_ for part in parts]
        assert abs(np.vdot(framed[0], framed[1])) < 1e-8 * np.vdot(X, X)
        assert abs(np.vdot(framed[0] + framed[1], framed[2])) < 1e-8 * np.vdot(X, X)
        scores = pca.transform(X, name)
        assert np.allclose(pca.inverse_transform(scores, name) - mean, parts.shared + parts.local)
        left = pca.reconstruction_errors({name: X})[name]
        assert left == pytest.approx(np.mean(np.sum(framed[2] ** 2, axis=1)))
        shares = pca.site_variance_[name]
        assert sum(shares.values()) == pytest.approx(1)
        total = np.mean(np.sum(((X - mean) / pca.scale_) ** 2, axis=1))
        assert shares["left"] == pytest.approx(left / total)
    if scale:
        assert np.allclose(pca.scale_, everything.std(axis=0))


def test_a_site_that_finds_its_file_may_take_in_another_site(tmp_path):
    sites, _, _ = draw_sites(n_sites=3)
    kept = {name: Site(X, name=name, store=str(tmp_path / name)) for name, X in sites.items()}
    pca = PersonalizedPCA(2, 2).fit(kept)
    assert pca.local_components_ == {}  # sites, and not rows, were given
    own = load(next((tmp_path / "s00").glob("*.fedpca")))
    own.add_site("new", sites["s01"] + 100)
    assert np.allclose(own.site_means_["new"], sites["s01"].mean(axis=0) + 100)
    own.save(tmp_path / "two.fedpca")
    assert set(load(tmp_path / "two.fedpca").local_components_) == {"s00", "new"}


def test_a_journal_lends_sites_a_folder_for_its_own_run_alone(tmp_path):
    sites, _, _ = draw_sites(n_sites=3)
    own = {name: Site(X, name=name) for name, X in sites.items()}
    PersonalizedPCA(2, 2).fit(Federation.local(own, journal=tmp_path / "a.journal"))
    PersonalizedPCA(2, 2).fit(Federation.local(own))
    assert {site.store for site in own.values()} == {None}


def test_labels_of_rows_stand_for_sites():
    sites, _, _ = draw_sites(n_sites=4)
    labels = np.repeat(list(sites), [len(X) for X in sites.values()])
    X = np.vstack(list(sites.values()))
    order = np.random.default_rng(0).permutation(len(X))
    by_dict = PersonalizedPCA(2, 2).fit(sites)
    by_label = PersonalizedPCA(2, 2).fit(X[order], sites=labels[order])
    assert sine_of_angle(by_dict.components_.T, by_label.components_.T) < 1e-6
    scores = by_label.transform(X[order], labels[order])
    for name in sites:
        chosen = labels[order] == name
        assert (scores[chosen] == by_label.transform(X[order][chosen], name)).all()
    parts = by_label.split(X, labels)
    assert np.allclose(sum(parts)[: len(sites["s00"])], sites["s00"] - sites["s00"].mean(axis=0))
    assert by_label.reconstruction_errors(X, labels) == pytest.approx(
        by_label.reconstruction_errors(sites)
    )
    with pytest.raises(InputError, match="pass one label for each of the 240 rows"):
        by_label.transform(X, labels[:-1])
    with pytest.raises(InputError, match="no local components for site 'west', only for"):
        by_label.transform(X, "west")
    with pytest.raises(InputError, match="site=None does not identify"):
        by_label.transform(X)


@pytest.mark.parametrize("center", ["site", "common"])
def test_a_new_site_gets_local_components_from_its_own_rows(center):
    sites, _, own = draw_sites(n_sites=9, noise=0.01)
    new = sites.pop("s08")
    pca = PersonalizedPCA(2, 2, center=center).fit(sites)
    shared = pca.components_.copy()
    pca.add_site("s08", new)
    assert (pca.components_ == shared).all()
    assert sine_of_angle(own["s08"], pca.local_components_["s08"].T) < 0.05
    assert_orthonormal(pca)
    assert pca.site_variance_["s08"]["left"] < 0.01
    assert np.allclose(sum(pca.split(new, "s08")), new - pca.site_means_["s08"])
    assert len(pca.add_site("other", new, n_local=1).local_components_["other"]) == 1
    with pytest.raises(InputError, match="the table has 11 columns, but the model has 12 features"):
        pca.add_site("bad", new[:, 1:])
    with pytest.raises(InputError, match="has no rows"):
        pca.add_site("bad", new[:0])
    with pytest.raises(InputError, match="n_local has no entry for site 'bad'; add one"):
        PersonalizedPCA(2, dict.fromkeys(sites, 2)).fit(sites).add_site("bad", new)
    with pytest.raises(InputError, match=r"not finite|NaN"):
        pca.add_site("bad", np.where(new > 1, np.nan, new))


def test_frames_keep_their_names_and_their_order_is_checked():
    sites, _, _ = draw_sites(n_sites=3)
    columns = [f"f{j}" for j in range(12)]
    frames = {name: pd.DataFrame(X, columns=columns) for name, X in sites.items()}
    mixed = frames | {"s02": frames["s02"][columns[::-1]]}
    for center in ("site", "common"):
        plain = PersonalizedPCA(2, 2, center=center).fit(sites)
        ours = PersonalizedPCA(2, 2, center=center).fit(mixed)
        assert list(ours.feature_names_in_) == columns
        assert sine_of_angle(plain.components_.T, ours.components_.T) < 1e-9
        assert np.allclose(plain.site_means_["s02"], ours.site_means_["s02"])
        assert (
            sine_of_angle(plain.local_components_["s02"].T, ours.local_components_["s02"].T) < 1e-7
        )
    ours.add_site("new", mixed["s02"])
    assert sine_of_angle(ours.local_components_["new"].T, ours.local_components_["s02"].T) < 1e-7
    with pytest.raises(InputError, match="there is no column f3"):
        ours.add_site("other", frames["s02"].drop(columns="f3"))
    with pytest.raises(InputError, match="'s01' is already in the model"):
        ours.add_site("s01", frames["s01"])
    assert (
        search_ranks(mixed, [2], [2], n_repeats=1).table
        == search_ranks(frames, [2], [2], n_repeats=1).table
    )
    scores = ours.set_output(transform="pandas").transform(frames["s00"], "s00")
    assert list(scores.columns) == list(ours.get_feature_names_out())


@pytest.mark.parametrize("center", ["site", "common"])
def test_a_saved_model_is_the_same_when_loaded(center, tmp_path):
    sites, _, _ = draw_sites(n_sites=3)
    frames = {k: pd.DataFrame(X, columns=[f"f{j}" for j in range(12)]) for k, X in sites.items()}
    pca = PersonalizedPCA(2, {"s00": 1, "s01": 2, "s02": 2}, center=center).fit(frames)
    pca.save(tmp_path / "m.fedpca")
    again = load(tmp_path / "m.fedpca")
    assert again.get_params() == pca.get_params()
    assert (again.transform(frames["s00"], "s00") == pca.transform(frames["s00"], "s00")).all()
    assert again.misalignment_ == pca.misalignment_
    assert again.site_variance_ == pca.site_variance_
    assert again.run_.ledger == pca.run_.ledger
    with pytest.raises(FileError):
        FederatedPCA.load(tmp_path / "m.fedpca")
    FederatedPCA(2).fit(sites).save(tmp_path / "f.fedpca")
    with pytest.raises(FileError, match="not a personalized model"):
        PersonalizedPCA.load(tmp_path / "f.fedpca")


def test_many_columns_are_decomposed_by_products(monkeypatch):
    B = np.random.default_rng(0).standard_normal((30, 50)) * np.linspace(3, 1, 50)
    by_svd = leading_of_columns(B, 3)
    monkeypatch.setattr("fedpca.solvers.personalized.projections.MAX_SVD_COLUMNS", 20)
    by_products = leading_of_columns(B, 3)
    assert np.allclose(by_svd[0], by_products[0])
    assert sine_of_angle(by_svd[1], by_products[1]) < 1e-6


def test_like_sites_are_told_of():
    X = np.random.default_rng(0).standard_normal((300, 6)) * [5, 4, 3, 2, 1, 1]
    with pytest.warns(UserWarning, match=r"misalignment_=.* is below 0.05"):
        pca = PersonalizedPCA(1, 2).fit(np.array_split(X, 3))
    assert pca.misalignment_ < 0.05


def test_misalignment_is_by_its_definition():
    sites, _, _ = draw_sites(n_sites=5, noise=0.3)
    pca = PersonalizedPCA(2, 2).fit(sites)
    mean = sum(V.T @ V for V in pca.local_components_.values()) / 5
    assert pca.misalignment_ == pytest.approx(1 - np.linalg.eigvalsh(mean)[-1])
    federated = PersonalizedPCA(2, 2).fit(Federation.local(sites))
    assert federated.misalignment_ == pytest.approx(pca.misalignment_, abs=1e-9)


def grouped_sites():
    """Sites of three groups that have the same local directions each."""
    _, U, own = draw_sites(n_sites=3, d=15, local=3)
    rng = np.random.default_rng(1)
    sites, groups = {}, {}
    for i in range(15):
        V = own[f"s0{i % 3}"]
        X = rng.standard_normal((100, 2)) @ U.T + 2 * rng.standard_normal((100, 3)) @ V.T
        sites[f"site {i}"] = X + 0.3 * rng.standard_normal(X.shape)
        groups[f"site {i}"] = i % 3
    return sites, groups


def test_like_sites_fall_into_one_cluster():
    sites, groups = grouped_sites()
    pca = PersonalizedPCA(2, 3).fit(sites)
    found = pca.cluster_sites(3)
    assert set(found) == set(sites)
    assert len({(found[name], groups[name]) for name in sites}) == 3
    affinity = pca.site_affinity()
    same = np.equal.outer(list(groups.values()), list(groups.values()))
    assert affinity[same].min() > 0.9 > 0.5 > affinity[~same].max()
    assert np.allclose(affinity.diagonal(), 1)
    assert set(pca.cluster_sites(1).values()) == {0}
    points = pca.site_map()
    assert points.shape == (15, 2)
    apart = np.linalg.norm(points[:, None] - points, axis=2)
    assert apart[same].max() < 0.5 * apart[~same].min()
    whole = pca.site_map(14)
    V = list(pca.local_components_.values())
    distance = np.linalg.norm(V[0].T @ V[0] - V[1].T @ V[1])
    assert np.linalg.norm(whole[0] - whole[1]) == pytest.approx(distance, rel=1e-6)
    assert sorted(pca.cluster_sites(15).values()) == list(range(15))
    assert (pca.site_map(20)[:, 15:] == 0).all()
    for bad in (0, 16, "3"):
        with pytest.raises(InputError, match="integer from 1 to the number of sites, which is 15"):
            pca.cluster_sites(bad)
    with pytest.raises(InputError, match="n_dimensions=0 must be at least 1"):
        pca.site_map(0)


def test_entries_are_predicted_from_the_rest_of_their_rows():
    sites, _, _ = draw_sites(n_sites=2, noise=0.3)
    model = PersonalizedPCA(2, 2, n_init=1).fit(sites).model_.of_site("s00")
    A, C = sites["s00"] - model.mean, model.components
    noise = ((A - A @ C.T @ C) ** 2).mean(axis=0)
    noise = (60 * noise + 10 * noise.mean()) / 70
    covariance = (C.T * model.explained_variance) @ C + np.diag(noise)
    errors = np.empty_like(A)
    for j in range(12):
        rest = np.delete(np.arange(12), j)
        weights = np.linalg.solve(covariance[np.ix_(rest, rest)], covariance[rest, j])
        errors[:, j] = A[:, j] - A[:, rest] @ weights
    np.testing.assert_allclose(errors_from_rest(model, A, A), (errors**2).mean(axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_of(range(3)))
def test_a_search_is_not_misled_by_columns_of_unequal_noise(seed):
    rng = np.random.default_rng(seed)
    sites, _, _ = draw_sites(seed, n_sites=6, d=15, n=80, ratio=2, noise=0.1)
    noise = 0.3 * np.exp(rng.standard_normal(15) / 2)
    sites = {name: X + noise * rng.standard_normal(X.shape) for name, X in sites.items()}
    assert search_ranks(sites, [1, 2, 3, 4], [0, 1, 2, 3], n_repeats=2).best == (2, 2)


@pytest.mark.slow
def test_held_out_rows_tell_how_many_components_there_are():
    sites, _, _ = draw_sites(1, n_sites=10, d=15, local=3, n=60, ratio=1.5, noise=0.3)
    found = search_ranks(sites, [1, 2, 3], [2, 3, 4], n_repeats=2)
    assert found.best == (2, 3)
    assert [(e["n_shared"], e["n_local"]) for e in found.table][:2] == [(1, 2), (1, 3)]
    entry = next(e for e in found.table if (e["n_shared"], e["n_local"]) == (2, 3))
    assert entry["excess"] <= entry["standard_error"]
    assert 0.05 < entry["misalignment"] < 1
    labels = np.repeat(list(sites), 60)
    table = np.vstack(list(sites.values()))
    by_label = search_ranks(table, [2], [3], sites=labels, n_repeats=2)
    assert by_label.table[0]["error"] == pytest.approx(
        search_ranks(sites, [2], [3], n_repeats=2).table[0]["error"]
    )
    listed = search_ranks([sp.csr_array(X) for X in sites.values()], [2], [3], n_repeats=2)
    assert listed.table[0]["error"] == pytest.approx(by_label.table[0]["error"])
    few = {"a": sites["s00"], "b": sites["s01"], "two": sites["s02"][:2]}
    assert search_ranks(few, [2], [3], n_repeats=1).best == (2, 3)


def test_a_search_needs_rows_that_can_be_held_out():
    sites, _, _ = draw_sites(n_sites=3)
    with pytest.raises(InputError, match=r"held_out=1\.5 must be greater than 0"):
        search_ranks(sites, [1], [1], held_out=1.5)
    with pytest.raises(InputError, match="must each list numbers to try"):
        search_ranks(sites, [], [1])
    with pytest.raises(InputError, match="cannot read the rows of a Federation or a Site"):
        search_ranks(Federation.local(sites), [1], [1])
    with pytest.raises(InputError, match="every site has fewer than 4 rows"):
        search_ranks({name: X[:3] for name, X in sites.items()}, [1], [1])
    with pytest.raises(InputError, match="must each list numbers to try"):
        search_ranks(sites, [0], [0])
    whole = search_ranks({name: X[:, :3] for name, X in sites.items()}, [2], [1], n_repeats=1)
    assert np.isfinite(whole.table[0]["error"])  # all components: each column is its mean's


def test_bad_input_is_refused_before_anything_about_rows_is_asked():
    sites, _, _ = draw_sites(n_sites=3)
    with pytest.raises(InputError, match="n_shared=6 plus n_local=7 exceeds n_features=12"):
        PersonalizedPCA(6, 7).fit(sites)
    for bad in ({"solver": "newton"}, {"center": True}, {"weights": "n"}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            PersonalizedPCA(1, 1, **bad).fit(sites)
    with pytest.raises(InputError, match=r"step=0\.0 must be a positive number"):
        Stiefel(step=0.0)
    with pytest.raises(InputError, match="retraction='svd' must be one of 'polar', 'qr'"):
        Polar(retraction="svd")
    with pytest.raises(ValueError, match="n_shared"):
        PersonalizedPCA(-1, 1).fit(sites)
    for n_local in (0, dict.fromkeys(sites, 0)):
        with pytest.raises(InputError, match="n_shared=0 and n_local=0 leave no components"):
            PersonalizedPCA(0, n_local).fit(sites)
    with pytest.raises(ValueError, match="n_init"):
        PersonalizedPCA(1, 1, n_init=0).fit(sites)
    with pytest.raises(InputError, match="fit_transform takes a single table"):
        PersonalizedPCA(1, 1).fit_transform(sites)
    with pytest.raises(InputError, match=r"NaN|not finite"):
        PersonalizedPCA(1, 1).fit({"a": sites["s00"], "b": np.full((5, 12), np.nan)})
    with pytest.raises(InputError, match="n_samples=0"):
        PersonalizedPCA(1, 1).fit({"a": sites["s00"][:0], "b": sites["s01"][:0]})
    pca = PersonalizedPCA(2, 2).fit(sites)
    with pytest.raises(InputError, match="scores have 3 columns instead of 4"):
        pca.inverse_transform(np.ones((2, 3)), "s00")
    with pytest.warns(ConvergenceWarning, match="max_rounds=1 before reaching tol=1e-10"):
        PersonalizedPCA(2, 2, solver="stiefel", max_rounds=1).fit(sites)


@every_method
@pytest.mark.parametrize("value", [1.0, 0.1, 1e8 / 3])
def test_rows_without_variance_end_at_once(method, value):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "misalignment_=")
        same = np.full((5, 4), value)
        pca = PersonalizedPCA(1, 1, solver=method).fit({"a": same, "b": same[:3]})
    assert pca.objective_ == 0
    assert pca.local_components_["a"].shape == (0, 4)
    assert np.allclose(pca.transform(same, "a"), 0, atol=1e-15 * value)


def test_values_without_squares_are_refused_clearly():
    sites, _, _ = draw_sites(n_sites=3)
    with pytest.raises(InputError, match="rescale the columns"):
        PersonalizedPCA(2, 2).fit({name: X * 1e-160 for name, X in sites.items()})
    with pytest.raises(InputError, match="rescale the columns"):
        PersonalizedPCA(2, 2).fit(sites).add_site("new", sites["s00"] * 1e-160)


@pytest.mark.slow
def test_steps_that_are_too_long_or_too_short_do_not_end_the_search():
    sites, U, _ = draw_sites(noise=0.05)
    for step in (1e4, 1e300, 1e-2):
        pca = PersonalizedPCA(2, 2, solver=Stiefel(step=step), max_rounds=20000).fit(sites)
        assert sine_of_angle(U, pca.components_.T) < 0.05
        assert pca.run_.stop_reason == "converged"


def test_the_qr_retraction_keeps_what_is_orthonormal():
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 3)))[0]
    assert np.allclose(qr_factor(Q), Q)


@pytest.mark.filterwarnings("ignore:misalignment_")
@parametrize_with_checks([PersonalizedPCA(1, 1)])
def test_scikit_learn_compatible(estimator, check):
    check(estimator)


def test_a_constant_column_with_a_large_value_changes_nothing():
    rng = np.random.default_rng(40)
    mixing = rng.standard_normal((2, 5))
    sites = {
        name: 2 * rng.standard_normal((20000, 2)) @ mixing + rng.standard_normal((20000, 5))
        for name in "abc"
    }
    date = np.full((20000, 1), 1.7e12 + 0.1)  # in milliseconds, the same in all rows
    for scale in (False, True):
        plain = fitted(sites, scale)
        beside = fitted({name: np.hstack([X, date]) for name, X in sites.items()}, scale)
        assert sine_of_angle(plain.components_.T, beside.components_[:, :5].T) < 1e-6
        assert not beside.components_[:, 5].any()
        for name, shares in plain.site_variance_.items():
            assert beside.site_variance_[name] == pytest.approx(shares, abs=1e-9)
        later = np.hstack([sites["a"], date + 1e3])
        beside.add_site("later", later)
        assert beside.site_variance_["later"]["shared"] > 0.5


def fitted(sites, scale):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return PersonalizedPCA(2, 1, scale=scale, n_init=1).fit(sites)


def by_class(load):
    X, y = load(return_X_y=True)
    return {str(c): X[y == c] for c in np.unique(y)}


def in_order(load, n):
    X, _ = load(return_X_y=True)
    return {str(i): X[i : i + n] for i in range(0, len(X), n)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:ambiguity_")
@pytest.mark.parametrize(
    ("sites", "ranks"),
    [
        pytest.param(by_class(load_wine), (1, 1), id="wine"),
        pytest.param(
            in_order(load_breast_cancer, 60), (2, 1), id="breast cancer", marks=pytest.mark.long
        ),
    ],
)
def test_several_starts_find_a_better_optimum_than_one(sites, ranks):
    one = PersonalizedPCA(*ranks, scale=True, n_init=1).fit(sites)
    found = PersonalizedPCA(*ranks, scale=True, n_init=8, random_state=0).fit(sites)
    restarts = [
        PersonalizedPCA(*ranks, scale=True, n_init=1, start="random", random_state=seed)
        .fit(sites)
        .objective_
        for seed in range(8)
    ]
    assert found.objective_ > 1.001 * one.objective_
    assert found.objective_ >= (1 - 1e-7) * max(restarts)
    assert min(restarts) < (1 - 1e-4) * max(restarts)  # so that a single random start is a gamble


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:ambiguity_", "ignore:misalignment_", "ignore:solver")
@pytest.mark.parametrize("seed", first_of(range(8), 3))
def test_the_default_ends_no_lower_than_random_restarts_on_planted_problems(seed):
    rng = np.random.default_rng(seed)
    shared, local = rng.integers(1, 4, size=2)
    sites, _, _ = draw_sites(
        seed,
        n_sites=int(rng.integers(2, 8)),
        d=int(rng.integers(8, 20)),
        shared=shared,
        local=local,
        n=int(rng.integers(20, 100)),
        noise=10 ** rng.uniform(-2, 0),
        ratio=10 ** rng.uniform(-0.5, 1),
    )
    found = PersonalizedPCA(shared, local, random_state=seed).fit(sites)
    restarts = PersonalizedPCA(shared, local, start="random", n_init=12, random_state=1).fit(sites)
    assert found.objective_ >= (1 - 1e-6) * restarts.objective_


def test_starts_share_their_rounds_and_all_but_the_best_are_dropped():
    sites, _, _ = draw_sites(seed=2)
    fed = Federation.local(sites)
    one = PersonalizedPCA(2, 2, n_init=1, random_state=0).fit(fed)
    four = PersonalizedPCA(2, 2, n_init=4, random_state=0).fit(fed)
    sizes = [entry.shape[0] for entry in four.run_.ledger if entry.field == "G"]
    assert sizes[0] == 4
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 4
    assert four.run_.rounds <= one.run_.rounds + 105
    np.testing.assert_array_equal(four.components_, one.components_)  # the first start wins
    assert four.ambiguity_ == 0


def test_a_climb_that_stops_because_it_met_another_is_not_the_result():
    U = np.eye(4, 2)
    along = np.eye(2)
    ended, met = Climb(U, tol=1e-3), Climb(U, tol=1e-3)
    ended.take(U, along, local=1.0)  # the polar factor of U is U, so nothing is left to gain
    met.take(np.eye(4)[:, 1:3], along, local=1.0 + 1e-6)  # higher, next to it, and still climbing
    assert ended.has_ended
    assert not met.has_ended
    assert worth_going_on([ended, met], [ended, met], is_late=False) == []
    assert best_of([ended, met]) is ended
    assert best_of([ended]).top.stop_reason == "converged"


def test_optima_that_are_as_good_but_differ_are_told_of(tmp_path):
    with pytest.warns(
        UserWarning, match=r"ambiguity_=0\.9\d?: another start found different shared"
    ):
        pca = PersonalizedPCA(3, 2, scale=True, n_init=8, random_state=0).fit(by_class(load_wine))
    assert pca.ambiguity_ > 0.9
    pca.save(tmp_path / "model")
    assert PersonalizedPCA.load(tmp_path / "model").ambiguity_ == pca.ambiguity_


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:solver", "ignore:misalignment_", "ignore:ambiguity_")
@pytest.mark.parametrize("max_rounds", [3, 30, 300])
@pytest.mark.parametrize("gather", [True, False])
def test_what_all_sites_have_is_shared_after_any_number_of_rounds(max_rounds, gather):
    rng = np.random.default_rng(0)
    background = rng.standard_normal(30)
    background /= np.linalg.norm(background)
    sites = {}
    for i in range(5):
        moving = rng.standard_normal((40, 6)) @ rng.standard_normal((6, 30))
        sites[f"s{i}"] = 200 * background + moving + rng.standard_normal((40, 30)) / 5
    pca = PersonalizedPCA(
        2, 3, center="none", start="random", n_init=1, random_state=1, max_rounds=max_rounds
    ).set_params(gather=gather)
    pca.fit(sites)
    assert np.linalg.norm(pca.components_ @ background) > 0.999
    if gather:
        assert_orthonormal(pca)
        assert pca.objective_ == pytest.approx(
            sum(
                np.sum((X @ np.vstack([pca.components_, pca.local_components_[name]]).T) ** 2) / 40
                for name, X in sites.items()
            )
            / 5
        )


@every_method
def test_without_local_components_the_shared_ones_are_those_of_the_mean_covariance(
    method, tmp_path
):
    sites, _, _ = draw_sites(n_few=20)
    mean = sum(np.cov(X, rowvar=False, bias=True) for X in sites.values()) / len(sites)
    expected = np.linalg.eigh(mean)[1][:, :-4:-1]
    for n_local in (0, dict.fromkeys(sites, 0)):
        pca = PersonalizedPCA(3, n_local, solver=method).fit(sites)
        assert sine_of_angle(expected, pca.components_.T) < 1e-6
        assert pca.transform(sites["s00"], "s00").shape == (20, 3)
        assert pca.misalignment_ == 1
    pca.save(tmp_path / "model")
    loaded = PersonalizedPCA.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.components_, pca.components_)
    with pytest.raises(InputError, match="no local components; fit with gather=True and n_local"):
        pca.site_affinity()


@every_method
def test_without_shared_components_each_site_has_its_own(method, tmp_path):
    sites, _, _ = draw_sites(n_sites=3)
    pca = PersonalizedPCA(0, {"s00": 2, "s01": 0, "s02": 3}, solver=method).fit(sites)
    own = PCA(2).fit(sites["s00"])
    assert sine_of_angle(own.components_.T, pca.local_components_["s00"].T) < 1e-7
    assert pca.components_.shape == (0, 12)
    assert pca.local_components_["s01"].shape == (0, 12)
    scores = pca.transform(sites["s00"], "s00")
    np.testing.assert_allclose(abs(scores[:, :2]), abs(own.transform(sites["s00"])), atol=1e-9)
    assert pca.run_.stop_reason == "exact"
    pca.save(tmp_path / "model")
    loaded = PersonalizedPCA.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(sites["s00"], "s00"), scores)
    sites_alone = PersonalizedPCA(0, 2, solver=method).fit(Federation.local(sites))
    assert sites_alone.components_.shape == (0, 12)


def test_one_site_may_have_no_local_components():
    sites, U, _ = draw_sites(noise=0.01)
    plain = sites["s00"] @ U @ U.T
    ranks = dict.fromkeys(sites, 2) | {"s00": 0}
    pca = PersonalizedPCA(2, ranks).fit(sites | {"s00": plain})
    assert sine_of_angle(U, pca.components_.T) < 0.01
    assert len(pca.local_components_["s00"]) == 0
