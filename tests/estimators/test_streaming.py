"""`StreamingPCA`: batches of any size, ranks that follow the stream, files, merging, resuming."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedpca
from fedpca import FederatedPCA, Federation, Site, StreamingPCA, Summary
from fedpca.errors import FileError, InputError
from fedpca.linalg.dense import sine_of_angle
from support import contents_of, every_other, gapped_rows, write_contents

both_ways = pytest.mark.parametrize("exact", [True, False])


@parametrize_with_checks(
    [
        StreamingPCA(),
        StreamingPCA(rank="mp"),
        StreamingPCA(rank="energy", forgetting=0.9),
        StreamingPCA(exact=False, whiten=True),
        StreamingPCA(1, exact=True, n_spare=0),
    ]
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def fed_by(model, X, sizes):
    """The model after batches of these sizes, and the rest."""
    for part in np.split(X, np.minimum(np.cumsum(sizes), len(X))):
        model.partial_fit(part)
    return model


@both_ways
@given(
    sizes=st.lists(st.integers(0, 12), max_size=12),
    offset=st.sampled_from([0.0, -40.0, 1e8]),
    dtype=st.sampled_from([np.float64, np.float32]),
    make=st.sampled_from([np.asarray, sp.csr_array]),
)
def test_batches_of_any_size_equal_all_rows_at_once(exact, sizes, offset, dtype, make):
    X = gapped_rows(np.random.default_rng(len(sizes)), 60, 7, 3, offset).astype(dtype)
    model = StreamingPCA(3, exact=exact)
    cuts = np.minimum(np.cumsum(sizes), len(X)).astype(int)
    for part in np.split(X, cuts):
        model.partial_fit(make(part))
    reference = PCA(3, svd_solver="full").fit(X.astype(np.float64))
    assert sine_of_angle(reference.components_.T, model.components_.T) < 1e-8
    np.testing.assert_allclose(model.explained_variance_, reference.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(
        model.explained_variance_ratio_, reference.explained_variance_ratio_, rtol=1e-9
    )
    np.testing.assert_allclose(model.noise_variance_, reference.noise_variance_, rtol=1e-9)
    assert model.n_samples_seen_ == 60
    assert model.summary_.known.missing == 0
    assert model.angle_bound_ < 1e-10


@both_ways
def test_the_fitted_attributes_of_incremental_pca(exact):
    X = gapped_rows(np.random.default_rng(0), 200, 10, 10)
    theirs = IncrementalPCA(10).fit(X)
    ours = StreamingPCA(10, exact=exact).fit(X)
    for name in (
        "components_",
        "explained_variance_",
        "explained_variance_ratio_",
        "singular_values_",
        "mean_",
        "var_",
    ):
        found, due = getattr(ours, name), getattr(theirs, name)
        assert found.shape == due.shape
        if name != "components_":
            np.testing.assert_allclose(found, due, rtol=1e-10, atol=1e-12)
    for name in ("n_components_", "n_samples_seen_", "noise_variance_"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=1e-12)
    assert ours.batch_size_ > 0
    fitted = {name for name in dir(theirs) if name.endswith("_") and not name.startswith("_")}
    assert fitted <= {name for name in dir(ours) if name.endswith("_")}


@both_ways
def test_batches_smaller_than_the_number_of_components(exact):
    X = gapped_rows(np.random.default_rng(1), 30, 8, 5)
    model = StreamingPCA(5, exact=exact)
    for i, row in enumerate(X):
        model.partial_fit(row[None])
        assert model.components_.shape == (5, 8)
        np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(5), atol=1e-12)
        assert model.transform(X[:2]).shape == (2, 5)
        assert np.count_nonzero(model.explained_variance_) == min(i, 5)
    reference = PCA(5, svd_solver="full").fit(X)
    assert sine_of_angle(reference.components_.T, model.components_.T) < 1e-10


@both_ways
def test_an_empty_batch_changes_nothing(exact):
    X = np.random.default_rng(2).standard_normal((20, 4))
    model = StreamingPCA(2, exact=exact, forgetting=0.5)
    model.partial_fit(X[:0])
    with pytest.raises(NotFittedError, match="it has seen no rows"):
        model.transform(X)
    model.partial_fit(X)
    before = model.components_.tobytes(), model.explained_variance_.tobytes()
    model.partial_fit(X[:0])
    assert (model.components_.tobytes(), model.explained_variance_.tobytes()) == before
    with pytest.raises(InputError, match=r"0 sample\(s\)"):
        StreamingPCA(2).fit([X[:0]])


def test_none_takes_as_many_components_as_rows_and_features_allow():
    X = np.random.default_rng(3).standard_normal((20, 6))
    model = StreamingPCA().partial_fit(X[:4])
    assert model.n_components_ == 4
    assert model.partial_fit(X[4:]).n_components_ == 6
    assert StreamingPCA(max_components=3).fit(X).n_components_ == 3


@both_ways
@pytest.mark.parametrize("forgetting", [1.0, 0.8, 0.1])
def test_forgetting_weighs_rows_mean_and_energy_alike(exact, forgetting):
    rng = np.random.default_rng(4)
    batches = [rng.standard_normal((n, 5)) + shift for n, shift in ((9, 3), (1, -2), (14, 1))]
    model = StreamingPCA(5, forgetting=forgetting, exact=exact)
    for batch in batches:
        model.partial_fit(batch)
    weights = np.concatenate(
        [np.full(len(b), forgetting ** (2 * (2 - i))) for i, b in enumerate(batches)]
    )
    X = np.vstack(batches)
    mean = weights @ X / weights.sum()
    scatter = ((X - mean).T * weights) @ (X - mean)
    np.testing.assert_allclose(model.mean_, mean)
    values = np.linalg.eigvalsh(scatter)[::-1]
    np.testing.assert_allclose(model.singular_values_**2, values, rtol=1e-10)
    np.testing.assert_allclose(model.explained_variance_ratio_, values / values.sum(), rtol=1e-10)
    np.testing.assert_allclose(model.explained_variance_, values / (weights.sum() - 1), rtol=1e-10)
    np.testing.assert_allclose(model.var_, np.diag(scatter) / weights.sum(), rtol=1e-10)
    assert model.n_samples_seen_ == 24


def planted(rng, basis, rank, n=50):
    signal = rng.standard_normal((n, rank)) * np.linspace(3, 1.5, rank) @ basis[:rank]
    return signal + 0.1 * rng.standard_normal((n, basis.shape[1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planned", "rule"),
    every_other([(2, (7,)), (30, (7,)), (2, (25,)), (10, (3, 11)), (30, (3, 11))], ["auto", "mp"]),
)
def test_planted_ranks_are_found_from_any_start(planned, rule):
    start, ranks = planned
    rng = np.random.default_rng(5)
    basis = np.linalg.qr(rng.standard_normal((100, 100)))[0]
    model = StreamingPCA(start, rank=rule)
    for rank in ranks:
        before = None
        for _ in range(60):
            model.partial_fit(planted(rng, basis, rank))
            assert before is None or abs(model.n_components_ - before) <= 1
            before = model.n_components_
        assert model.n_components_ == rank
    assert model.components_.shape == (ranks[-1], 100)
    assert len(model.summary_.singular_values) <= ranks[-1] + 10


def test_noise_that_is_not_white_is_noise():
    """Where the Marchenko-Pastur edge sinks with every component, parallel analysis does not."""
    rng = np.random.default_rng(6)
    strong = rng.standard_normal((3, 40))
    noise = np.geomspace(0.1, 3, 40)
    models = {rule: StreamingPCA(rank=rule) for rule in ("auto", "mp")}
    for _ in range(60):
        rows = 4 * rng.standard_normal((50, 3)) @ strong + rng.standard_normal((50, 40)) * noise
        for model in models.values():
            model.partial_fit(rows)
    assert models["auto"].n_components_ == 3
    assert models["mp"].n_components_ > 6


def test_the_energy_rule_follows_the_share_and_max_components_bounds_it():
    rng = np.random.default_rng(6)
    blocks = [rng.standard_normal((50, 40)) * np.geomspace(4, 0.1, 40) for _ in range(40)]
    model = StreamingPCA(rank="energy", share=0.8)
    bounded = StreamingPCA(2, rank="energy", share=0.8, max_components=4)
    for block in blocks:
        model.partial_fit(block)
        bounded.partial_fit(block)
        assert bounded.n_components_ <= 4
    due = PCA(0.8, svd_solver="full").fit(np.vstack(blocks)).n_components_
    assert model.n_components_ == due > 4
    assert bounded.n_components_ == 4


def test_the_interval_rule_and_what_beta_allows():
    rng = np.random.default_rng(7)
    blocks = [rng.standard_normal((50, 60)) for _ in range(40)]  # a flat spectrum
    capped = StreamingPCA(2, rank="interval", beta=0.1, alpha=0.01)
    free = StreamingPCA(2, rank="interval", max_components=30)
    held = StreamingPCA(2, rank="interval", max_components=30, cooldown=3)
    steep = StreamingPCA(18, rank="interval", max_components=20)
    for i, block in enumerate(blocks, start=1):
        for model in (capped, free, held):
            model.partial_fit(block)
        steep.partial_fit(block * np.geomspace(1, 1e-8, 60))
        assert held.n_components_ == min(30, 2 + (i + 3) // 4)
    assert capped.n_components_ == 10  # 1/r of a flat spectrum reaches beta there
    assert 20 < free.n_components_ <= 30
    s = steep.singular_values_
    assert 0.005 <= s[-1] / s.sum() <= 0.05
    assert steep.n_components_ < 18


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"n_components": 9}, "n_components=9 exceeds the 6 features; use at most 6"),
        ({"max_components": 9}, "max_components=9 exceeds the 6 features"),
        ({"n_components": 5, "max_components": 3}, "n_components=5 exceeds max_components=3"),
        ({"rank": "interval", "alpha": 0.5, "beta": 0.2}, "alpha=0.5 must be below beta=0.2"),
        ({"rank": "mp", "exact": True}, "exact=True requires rank="),
        ({"rank": "guess"}, "'rank' parameter"),
        ({"forgetting": 0}, "'forgetting' parameter"),
        ({"forgetting": 1.5}, "'forgetting' parameter"),
    ],
)
def test_bad_parameters_are_named_before_anything_is_read(parameters, text):
    for method in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match=text):
            getattr(StreamingPCA(**parameters), method)(np.ones((4, 6)))


@both_ways
def test_a_bad_batch_is_refused_and_changes_nothing(exact):
    X = np.random.default_rng(8).standard_normal((20, 4))
    model = StreamingPCA(2, exact=exact, forgetting=0.5).partial_fit(X)
    before = model.components_.tobytes(), model.explained_variance_.tobytes()
    for value in (np.nan, np.inf):
        bad = X.copy()
        bad[3, 1] = value
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            model.partial_fit(bad)
    with pytest.raises(ValueError, match="3 features"):
        model.partial_fit(X[:, :3])
    if not exact:
        with pytest.raises(InputError, match="overflow"):
            model.partial_fit(X * 1e200)
    assert (model.components_.tobytes(), model.explained_variance_.tobytes()) == before


@both_ways
@pytest.mark.parametrize("rank", ["fixed", "mp", "interval"])
def test_a_pickled_or_saved_model_goes_on_with_the_same_bits(tmp_path, exact, rank):
    if exact and rank != "fixed":
        pytest.skip("a rank that is found keeps directions")
    rng = np.random.default_rng(9)
    blocks = [rng.standard_normal((17, 30)) * np.geomspace(3, 0.1, 30) + 1e6 for _ in range(12)]
    parameters = {"rank": rank, "exact": exact, "forgetting": 0.97, "cooldown": 2}
    model = StreamingPCA(4, max_components=20, **parameters)
    for block in blocks[:6]:
        model.partial_fit(block)
    model.save(tmp_path / "m.fedpca")
    copies = [pickle.loads(pickle.dumps(model)), fedpca.load(tmp_path / "m.fedpca")]
    for copy in copies:
        assert isinstance(copy, StreamingPCA)
        assert copy.get_params() == model.get_params()
        assert copy.components_.tobytes() == model.components_.tobytes()
    for block in blocks[6:]:
        for one in (model, *copies):
            one.partial_fit(block)
    for copy in copies:
        assert copy.n_components_ == model.n_components_
        assert copy.components_.tobytes() == model.components_.tobytes()
        assert copy.explained_variance_.tobytes() == model.explained_variance_.tobytes()
        assert copy.n_samples_seen_ == model.n_samples_seen_ == 12 * 17


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "m.fedpca"
    StreamingPCA(2).fit(np.random.default_rng(10).standard_normal((20, 4))).save(path)
    arrays, good = contents_of(path)
    assert "scatter/lower" in arrays
    for change, text in (
        ({"rank": {"odd": 1}}, "has an invalid header"),
        ({"carried": None}, "has an invalid header"),
        ({"parameters": {"odd": 1}}, "has an invalid header"),
        ({"parameters": {"n_spare": -1}}, "has an invalid header"),
        ({"estimator": "FederatedPCA"}, "has an invalid header"),
    ):
        write_contents(path, arrays, {**good, **change})
        with pytest.raises(FileError, match=text):
            fedpca.load(path)
    with pytest.raises(FileError, match="holds a FederatedPCA, not a StreamingPCA"):
        StreamingPCA.load(path)
    broken = {**arrays, "scatter/lower": np.full((4, 4), np.nan)}
    write_contents(path, broken, good)
    with pytest.raises(FileError, match="not finite"):
        fedpca.load(path)
    Summary.of(np.eye(3)).save(path)
    with pytest.raises(FileError, match="a summary"):
        fedpca.load(path)


@pytest.mark.parametrize("ways", [(True, True), (True, False), (False, True), (False, False)])
def test_merging_models_equals_one_model_of_all_rows(ways):
    X = gapped_rows(np.random.default_rng(11), 90, 12, 3, 1e6)
    one, other = (
        StreamingPCA(3, exact=exact).fit(part)
        for exact, part in zip(ways, (X[:50], X[50:]), strict=True)
    )
    one.merge(other)
    reference = PCA(3, svd_solver="full").fit(X)
    assert sine_of_angle(reference.components_.T, one.components_.T) < 1e-8
    np.testing.assert_allclose(one.explained_variance_, reference.explained_variance_, rtol=1e-9)
    assert one.n_samples_seen_ == 90
    again = StreamingPCA(3).fit(X[:50]).merge(Summary.of(X[50:], 3))
    assert sine_of_angle(reference.components_.T, again.components_.T) < 1e-8
    one.partial_fit(X[:5])  # it goes on
    assert one.n_samples_seen_ == 95


def test_models_that_do_not_fit_together_are_not_merged():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(np.random.default_rng(12).standard_normal((30, 3)), columns=list("abc"))
    one = StreamingPCA(2).fit(frame[:15])
    assert one.summary_.features == ("a", "b", "c")
    one.merge(StreamingPCA(2).fit(frame[15:][["c", "a", "b"]]))  # matched by name
    reference = PCA(2, svd_solver="full").fit(frame)
    assert sine_of_angle(reference.components_.T, one.components_.T) < 1e-10
    with pytest.raises(InputError, match="the columns differ"):
        one.merge(StreamingPCA(2).fit(frame.rename(columns={"a": "x"})))
    with pytest.raises(InputError, match="about zero"):
        one.merge(StreamingPCA(2, center=False).fit(frame))
    with pytest.raises(InputError, match="not a PCA"):
        one.merge(reference)
    with pytest.raises(NotFittedError):
        one.merge(StreamingPCA(2))


def test_a_model_of_a_summary():
    X = gapped_rows(np.random.default_rng(13), 80, 9, 3)
    model = StreamingPCA.from_summary(Summary.of(X, 4), 3)
    reference = PCA(3, svd_solver="full").fit(X)
    assert sine_of_angle(reference.components_.T, model.components_.T) < 1e-10
    np.testing.assert_allclose(abs(model.transform(X)), abs(reference.transform(X)), atol=1e-9)
    assert StreamingPCA.from_summary(Summary.of(X, 4)).n_components_ == 4
    with pytest.raises(InputError, match="n_components=10 must be between 1 and 9, the number"):
        StreamingPCA.from_summary(Summary.of(X, 4), 10)


def write_all(X, folder):
    """The same rows in every kind of file."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    table = pa.table({f"x{i}": X[:, i] for i in range(X.shape[1])})
    paths = {kind: folder / f"rows.{kind}" for kind in ("npy", "parquet", "csv")}
    np.save(paths["npy"], X)
    pyarrow.parquet.write_table(table, paths["parquet"])
    pyarrow.csv.write_csv(table, paths["csv"])
    many = folder / "many"
    many.mkdir()
    for i, part in enumerate(np.array_split(X, 3)):
        np.save(many / f"{i}.npy", part)
    return {**paths, "folder": many}


@pytest.mark.parametrize("parameters", [{}, {"rank": "mp"}, {"forgetting": 0.9, "exact": False}])
def test_rows_from_an_array_a_file_a_folder_or_an_iterator_give_the_same(tmp_path, parameters):
    X = np.random.default_rng(14).standard_normal((500, 12)) * np.geomspace(5, 0.2, 12)
    expected = StreamingPCA(3, batch_size=40, **parameters).fit(X)
    seen = []
    for kind, path in write_all(X, tmp_path).items():
        model = StreamingPCA(3, batch_size=40, **parameters).fit(path, on_batch=seen.append)
        np.testing.assert_allclose(model.components_, expected.components_, atol=1e-9)
        assert model.n_samples_seen_ == seen[-1] == 500
        assert hasattr(model, "feature_names_in_") == (kind in ("parquet", "csv"))
    batches = [X[i : i + 40] for i in range(0, 500, 40)]
    for given_as in (iter(batches), batches):
        model = StreamingPCA(3, **parameters).fit(given_as)
        np.testing.assert_allclose(model.components_, expected.components_, atol=1e-9)
    frame = StreamingPCA(3).fit(tmp_path / "rows.csv")
    assert list(frame.get_feature_names_out()) == [f"streamingpca{i}" for i in range(3)]
    assert frame.feature_names_in_[1] == "x1"


def test_bad_files_are_named(tmp_path):
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n3,\n")
    with pytest.raises(InputError, match="contains NaN in columns b"):
        StreamingPCA(1).fit(tmp_path / "bad.csv")
    with pytest.raises(InputError, match="does not exist"):
        StreamingPCA(1).fit(tmp_path / "none.csv")
    np.save(tmp_path / "empty.npy", np.empty((5, 0)))
    with pytest.raises(InputError, match=r"0 feature\(s\)"):
        StreamingPCA(1).fit(tmp_path / "empty.npy")
    np.save(tmp_path / "none.npy", np.empty((0, 5)))
    with pytest.raises(InputError, match=r"0 sample\(s\)"):
        StreamingPCA(1).fit(tmp_path / "none.npy")


def synth(alpha, seed, d=400, n=4000):
    """Rows whose covariance has eigenvalues i^-alpha and random eigenvectors."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return rng.standard_normal((n, d)) * np.arange(1, d + 1) ** (-alpha / 2) @ basis.T


@pytest.mark.parametrize(("alpha", "percent"), [(1.0, 0.02), (2.0, 0.002)])
def test_spare_directions_keep_the_error_at_that_of_the_offline_svd(alpha, percent):
    excess = []
    for seed in range(2):
        X = synth(alpha, seed)
        model = StreamingPCA(10, center=False, exact=False)
        for i in range(0, len(X), 50):
            model.partial_fit(X[i : i + 50])
        total = np.linalg.norm(X) ** 2
        best = total - (np.linalg.svd(X, compute_uv=False)[:10] ** 2).sum()
        excess.append((total - np.linalg.norm(X @ model.components_.T) ** 2) / best - 1)
    assert 0 <= np.mean(excess) <= percent / 100


def test_what_is_invariant_under_permutations_is_the_reconstruction_error():
    X = synth(1.0, 0, d=100, n=2000)
    rng = np.random.default_rng(15)
    left = []
    for _ in range(4):
        order = rng.permutation(len(X))
        model = StreamingPCA(8, center=False, exact=False, n_spare=5)
        for part in np.array_split(X[order], 40):
            model.partial_fit(part)
        left.append(np.linalg.norm(X - X @ model.components_.T @ model.components_) ** 2)
    assert max(left) / min(left) - 1 < 1e-3


def test_memory_does_not_grow_with_the_stream():
    rng = np.random.default_rng(16)
    block = rng.standard_normal((20, 3000))

    def peak(n_blocks):
        model = StreamingPCA(5)
        model.partial_fit(block)
        tracemalloc.start()
        for _ in range(n_blocks):
            model.partial_fit(block)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    few = peak(5)
    assert peak(100) < 1.1 * few
    assert few < 40 * 8 * 3000 * 15  # O(d r)


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_large_batches_of_few_features_stay_small(make):
    rng = np.random.default_rng(18)
    batches = [make(rng.standard_normal((20_000, 6)) * [5, 4, 1, 1, 1, 1]) for _ in range(2)]
    model = StreamingPCA(2, exact=False)
    tracemalloc.start()
    for batch in batches:
        model.partial_fit(batch)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20 * 8 * 20_000 * 6
    X = np.vstack([b.toarray() if sp.issparse(b) else b for b in batches])
    reference = PCA(2, svd_solver="full").fit(X)
    assert sine_of_angle(reference.components_.T, model.components_.T) < 1e-9


def test_a_stream_is_a_scikit_learn_citizen():
    X = gapped_rows(np.random.default_rng(17), 60, 6, 2)
    model = StreamingPCA(2, whiten=True)
    scores = make_pipeline(StandardScaler(), clone(model)).fit_transform(X)
    np.testing.assert_allclose(scores.var(axis=0, ddof=1), 1.0)
    model.fit(X)
    reference = PCA(2, whiten=True, svd_solver="full").fit(X)
    np.testing.assert_allclose(abs(model.transform(X)), abs(reference.transform(X)), atol=1e-9)
    plain = StreamingPCA(2).fit(X)
    np.testing.assert_allclose(
        plain.get_covariance(), PCA(2, svd_solver="full").fit(X).get_covariance(), atol=1e-9
    )
    federated = FederatedPCA(2).fit(X)
    np.testing.assert_allclose(plain.score_samples(X), federated.score_samples(X))
    np.testing.assert_allclose(
        model.inverse_transform(model.transform(X)), plain.inverse_transform(plain.transform(X))
    )
    assert plain.transform(X.astype(np.float32)).dtype == np.float32
    twin = model.to_sklearn()
    assert isinstance(twin, PCA)
    np.testing.assert_allclose(twin.transform(X), model.transform(X), atol=1e-12)
    assert twin.n_samples_ == 60


@both_ways
@pytest.mark.parametrize(
    "kind", ["csr_matrix", "csc_matrix", "coo_matrix", "csc_array", "coo_array"]
)
def test_every_kind_of_sparse_batch(exact, kind):
    X = sp.random_array((60, 30), density=0.3, format="csr", rng=np.random.default_rng(19))
    model = StreamingPCA(3, exact=exact)
    for part in (X[:30], X[30:]):
        model.partial_fit(getattr(sp, kind)(part))
    dense = StreamingPCA(3, exact=exact).partial_fit(X[:30].toarray())
    dense.partial_fit(X[30:].toarray())
    np.testing.assert_allclose(model.var_, dense.var_, rtol=1e-10)
    assert sine_of_angle(dense.components_.T, model.components_.T) < 1e-9


def test_entries_that_stand_twice_are_added():
    data = (
        np.array([1.0, 2, 1, 2, 5, 3, 6, 9]),
        np.array([0, 0, 1, 1, 0, 1, 0, 1]),
        [0, 3, 4, 6, 8],
    )
    twice = sp.csr_array(data, shape=(4, 2))
    expected = twice.toarray()
    for model in (StreamingPCA(1, exact=True), StreamingPCA(1, exact=False)):
        np.testing.assert_allclose(model.partial_fit(twice).var_, expected.var(axis=0))
    np.testing.assert_array_equal(twice.toarray(), expected)


def test_scores_come_as_frames_if_asked():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(np.random.default_rng(20).standard_normal((20, 3)), columns=list("abc"))
    for model in (StreamingPCA(2), FederatedPCA(2)):
        scores = model.set_output(transform="pandas").fit(frame).transform(frame)
        assert list(scores.columns) == list(model.get_feature_names_out())


@both_ways
def test_a_merge_that_fails_changes_nothing(exact):
    X = np.random.default_rng(21).standard_normal((50, 5))
    model = StreamingPCA(3, exact=exact).partial_fit(X)
    before = model.components_.tobytes()
    for bad in (Summary.of(np.eye(4)), Summary.of(np.eye(5), center=False)):
        with pytest.raises(InputError):
            model.merge(bad)
    assert model.components_.tobytes() == before
    assert model.summary_.n == model.n_samples_seen_ == 50


@both_ways
def test_squares_that_overflow_are_refused_at_once(exact):
    X = np.random.default_rng(22).standard_normal((50, 5))
    model = StreamingPCA(3, exact=exact, forgetting=0.9).partial_fit(X)
    before = model.components_.tobytes()
    for bad in (np.full((2, 5), 1e200) * [[1], [2]], X * 1e154 * 3, X * 1e200):
        with pytest.raises(InputError, match="overflow"):
            model.partial_fit(bad)
    assert model.components_.tobytes() == before
    assert np.isfinite(StreamingPCA(2, exact=exact).partial_fit(1e150 * X).components_).all()


def test_a_first_batch_that_is_empty_or_bad_leaves_no_trace():
    X = np.random.default_rng(23).standard_normal((200, 600))
    model = StreamingPCA(2).partial_fit(X[:0]).partial_fit(X)
    assert model.explained_variance_.tobytes() == (
        StreamingPCA(2).partial_fit(X).explained_variance_.tobytes()
    )
    with pytest.raises(ValueError, match="features"):
        StreamingPCA(2).partial_fit(X[:0]).partial_fit(X[:, :5])
    model = StreamingPCA(2)
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit(np.full((3, 4), np.nan))
    assert model.partial_fit(X[:, :6]).n_features_in_ == 6


def test_one_row_about_zero_can_be_saved(tmp_path):
    model = StreamingPCA(2, center=False).partial_fit([[1.0, 20, 30]])
    model.save(tmp_path / "m")
    assert np.isfinite(fedpca.load(tmp_path / "m").explained_variance_).all()


def test_the_noise_is_that_of_the_rows_whatever_they_weigh():
    X = np.random.default_rng(24).standard_normal((1000, 50))
    model = StreamingPCA(5, forgetting=0.9)
    for row in X:
        model.partial_fit(row[None])
    plain = model.noise_variance_ * 45 + model.explained_variance_.sum()
    assert model.noise_variance_ < 5
    assert plain == pytest.approx(model.summary_.energy / (model.summary_.n - 1))
    assert np.isfinite(model.score_samples(X)).all()


def test_a_rank_that_moves_keeps_its_spare_directions_and_settles():
    rng = np.random.default_rng(25)
    model = StreamingPCA(10, rank="mp", n_spare=10)
    noiseless = StreamingPCA(3, rank="mp")
    basis = rng.standard_normal((3, 200))
    for _ in range(40):
        model.partial_fit(rng.standard_normal((50, 12)) * np.r_[9, 8, np.ones(10)])
        noiseless.partial_fit(rng.standard_normal((50, 3)) @ basis)
    assert model.n_components_ == 2
    assert model.summary_.room == 12
    assert noiseless.n_components_ == 3
    with pytest.raises(InputError, match="n_spare=0; set n_spare to at least 1"):
        StreamingPCA(2, rank="mp", n_spare=0).fit(rng.standard_normal((9, 4)))
    gap = StreamingPCA(2, rank="interval", max_components=20)
    found = []
    for _ in range(40):
        gap.partial_fit(rng.standard_normal((50, 60)) * np.r_[np.full(8, 10.0), np.full(52, 1e-3)])
        found.append(gap.n_components_)
    assert set(found[-10:]) == {8}


def test_what_is_no_stream_of_rows_is_refused(tmp_path):
    X = np.random.default_rng(26).standard_normal((30, 4))
    with pytest.raises(InputError, match="use FederatedPCA"):
        StreamingPCA(2).fit(Federation.local([X]))
    with pytest.raises(InputError, match="use FederatedPCA"):
        StreamingPCA(2).fit([Site(X, name="a")])
    np.save(tmp_path / "a.npy", X[:10])
    np.save(tmp_path / "b.npy", X[10:])
    seen = []
    model = StreamingPCA(2, batch_size=8)
    model.fit([tmp_path / "a.npy", tmp_path / "b.npy"], on_batch=seen.append)
    assert seen == [8, 16, 24, 30]
    assert model.batch_size_ == 8
    model.set_params(forgetting=2.0)
    with pytest.raises(InputError, match=r"forgetting=2.0 must be above 0 and at most 1"):
        model.partial_fit(X)


def test_columns_of_several_files_are_matched_by_name(tmp_path):
    pd = pytest.importorskip("pandas")
    X = gapped_rows(np.random.default_rng(31), 60, 5, 2)
    frame = pd.DataFrame(X, columns=list("abcde"))
    frame[:20].to_parquet(tmp_path / "a.parquet")
    frame[20:][list("edcba")].to_parquet(tmp_path / "b.parquet")
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for given_as in (paths, dict(enumerate(paths))):
        model = StreamingPCA(2).fit(given_as)
        reference = PCA(2, svd_solver="full").fit(X)
        assert sine_of_angle(reference.components_.T, model.components_.T) < 1e-10
        assert list(model.feature_names_in_) == list("abcde")


def test_merging_keeps_the_room_of_the_stream():
    rng = np.random.default_rng(32)
    model = StreamingPCA(2, n_spare=1, exact=False).fit(rng.standard_normal((30, 9)))
    model.merge(Summary.of(rng.standard_normal((30, 9)), 5))
    assert model.n_components_ == 2
    assert len(model.summary_.singular_values) == model.summary_.room == 3


def test_numpy_scalars_as_parameters_are_saved(tmp_path):
    X = np.random.default_rng(27).standard_normal((30, 6))
    parameters = {"n_spare": np.int64(1), "max_components": np.int64(4), "share": np.float32(0.5)}
    model = StreamingPCA(np.int64(2), rank="energy", center=np.bool_(True), **parameters)
    model.fit(X).save(tmp_path / "m")
    assert fedpca.load(tmp_path / "m").components_.tobytes() == model.components_.tobytes()
    StreamingPCA.from_summary(Summary.of(X, 3), np.int64(2)).save(tmp_path / "m")


def test_no_more_components_than_a_summary_carries():
    X = np.random.default_rng(28).standard_normal((40, 9))
    few = Summary.of(X, 2, n_spare=0)
    with pytest.raises(InputError, match="n_components=5 exceeds the 2 directions"):
        StreamingPCA.from_summary(few, 5)
    faint = few.discount(1e-3)
    assert StreamingPCA.from_summary(faint).n_samples_seen_ == 1


@pytest.mark.slow
def test_sparse_rows_that_repeat_stay_nearly_sparse():
    rng = np.random.default_rng(29)
    distinct = sp.random_array((5, 30_000), density=1e-3, format="csr", rng=rng)
    batch = distinct[rng.integers(0, 5, 300)]
    tracemalloc.start()
    model = StreamingPCA(3).partial_fit(batch)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 12 * 32 * 8 * 30_000
    reference = np.linalg.svd(batch.toarray() - batch.toarray().mean(axis=0), compute_uv=False)
    np.testing.assert_allclose(model.singular_values_, reference[:3], rtol=1e-10)


def test_blas_threads_are_given_back_when_streams_run_side_by_side():
    from concurrent.futures import ThreadPoolExecutor

    from threadpoolctl import threadpool_info

    def threads():
        return [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]

    X = np.random.default_rng(30).standard_normal((2000, 300))
    before = threads()
    with ThreadPoolExecutor(3) as pool:
        fits = [pool.submit(StreamingPCA(5, exact=False, batch_size=20).fit, X) for _ in range(3)]
    assert all(fit.result().n_samples_seen_ == 2000 for fit in fits)
    assert threads() == before


def test_parameters_that_change_in_mid_stream_are_refused():
    X = np.random.default_rng(30).standard_normal((40, 6))
    model = StreamingPCA(3).partial_fit(X)
    model.set_params(n_components=5)
    with pytest.raises(InputError, match="n_components=5, but the stream began with 3"):
        model.partial_fit(X)
    longer = StreamingPCA.from_summary(model.summary_, 5).partial_fit(X)
    assert longer.n_components_ == 5
    model.set_params(n_components=3, center=False)
    with pytest.raises(InputError, match="center=False, but the stream began with center=True"):
        model.partial_fit(X)
    model.set_params(center=True, n_components=3)
    assert model.partial_fit(X).n_samples_seen_ == 80


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("n", "offset", "batch_size"), [(100_000, 1e12, None), (10_000, 1e4, 10), (20_000, 1e8, 1000)]
)
def test_the_bound_holds_at_any_offset_and_for_any_number_of_batches(n, offset, batch_size, exact):
    rng = np.random.default_rng(31)
    X = rng.standard_normal((n, 8)) * np.linspace(2, 1, 8) + offset
    model = StreamingPCA(3, batch_size=batch_size, exact=exact).fit(X)
    A = X - X.mean(axis=0)
    A -= A.mean(axis=0)
    truth = np.linalg.eigh(A.T @ A)[1][:, ::-1][:, :3]
    assert sine_of_angle(truth, model.components_.T) <= model.angle_bound_ < 1e-11
