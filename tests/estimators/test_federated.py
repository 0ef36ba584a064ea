"""`FederatedPCA` is a scikit-learn estimator to the letter, and its file holds all of it."""

from __future__ import annotations

import ast
import json
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from safetensors.numpy import save_file
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedpca
from fedpca import FederatedPCA, Federation, Site, load
from fedpca.errors import FileError, InputError
from fedpca.linalg.dense import sine_of_angle
from support import gapped_rows, write_contents

RNG = np.random.default_rng(0)
X = gapped_rows(RNG, 90, 6, 3, offset=2.0)
SITES = np.array_split(X, 4)


def checks_that_cannot_pass(estimator):
    """Checks of scikit-learn that ask for more than the data determines, and why."""
    if estimator.n_components is None:
        why = "the check has more components than rows; those without variance are arbitrary"
        names = ("on_dense_data", "on_sparse_data")
        return {f"check_sample_weight_equivalence_{name}": why for name in names}
    if estimator.missing == "drop":
        return {"check_estimators_pickle": "rows with missing values are left out, not scored"}
    return {}


@parametrize_with_checks(
    [
        FederatedPCA(),
        FederatedPCA(solver="lanczos"),
        FederatedPCA(solver="subspace-iteration", max_rounds=5000),
        FederatedPCA(2, solver="covariance", whiten=True, scale=True),
        FederatedPCA(2, solver="lanczos"),
        FederatedPCA(2, missing="mean"),
        FederatedPCA(2, missing="drop", scale=True),
    ],
    expected_failed_checks=checks_that_cannot_pass,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_the_public_names_are_these():
    assert fedpca.__all__ == [
        "FederatedPCA",
        "Federation",
        "FedpcaError",
        "Genotypes",
        "PersonalizedPCA",
        "Policy",
        "Privacy",
        "RobustPCA",
        "Site",
        "StreamingPCA",
        "Summary",
        "__version__",
        "diagnose",
        "load",
        "plan",
        "question",
        "search_ranks",
        "to_anndata",
        "verify",
    ]
    for name in fedpca.__all__:
        assert getattr(fedpca, name).__doc__


@pytest.mark.parametrize("n_components", [1, 2, 6, 0.8, None])
@pytest.mark.parametrize("whiten", [False, True])
def test_everything_fitted_is_what_scikit_learn_fits(n_components, whiten):
    reference = PCA(n_components, svd_solver="full", whiten=whiten).fit(X)
    ours = FederatedPCA(n_components, whiten=whiten).fit(SITES)
    fitted = [name for name in vars(reference) if name.endswith("_") and name[0] != "_"]
    assert len(fitted) >= 9
    for name in fitted:
        expected = getattr(reference, name)
        np.testing.assert_allclose(getattr(ours, name), expected, rtol=1e-9, atol=1e-10)
    scores = ours.transform(X)
    np.testing.assert_allclose(scores, reference.transform(X), atol=1e-9)
    back = ours.inverse_transform(scores)
    np.testing.assert_allclose(back, reference.inverse_transform(scores), atol=1e-9)
    if whiten:  # what is done to scores does not change the model of the rows
        reference = PCA(n_components, svd_solver="full").fit(X)
    np.testing.assert_allclose(ours.get_covariance(), reference.get_covariance(), atol=1e-9)
    np.testing.assert_allclose(ours.get_precision(), reference.get_precision(), atol=1e-9)
    np.testing.assert_allclose(ours.score_samples(X), reference.score_samples(X), rtol=1e-9)
    assert ours.score(X) == pytest.approx(reference.score(X))


def test_scaled_components_are_those_behind_a_standard_scaler():
    wild = X * [1, 100, 1e-4, 1, 5, 1e5]
    pipeline = make_pipeline(StandardScaler(), PCA(2, svd_solver="full")).fit(wild)
    ours = FederatedPCA(2, scale=True).fit(np.array_split(wild, 3))
    np.testing.assert_allclose(ours.scale_, pipeline[0].scale_, rtol=1e-12)
    np.testing.assert_allclose(ours.transform(wild), pipeline.transform(wild), atol=1e-9)
    np.testing.assert_allclose(
        ours.inverse_transform(ours.transform(wild)),
        pipeline.inverse_transform(pipeline.transform(wild)),
        rtol=1e-8,
    )
    scaled = pipeline[0].transform(wild)
    by_scaling = pipeline[1].score_samples(scaled) - np.log(pipeline[0].scale_).sum()
    np.testing.assert_allclose(ours.score_samples(wild), by_scaling, rtol=1e-9)
    product = ours.get_covariance() @ ours.get_precision()
    np.testing.assert_allclose(product, np.eye(6), atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"whiten": True}, {"scale": True}, {"center": False}])
def test_to_sklearn_gives_the_same_scores(options):
    frame = pd.DataFrame(X, columns=list("abcdef"))
    for rows in (X, frame):
        ours = FederatedPCA(2, **options).fit(rows)
        theirs = ours.to_sklearn()
        np.testing.assert_allclose(theirs.transform(rows), ours.transform(rows), atol=1e-12)
    assert isinstance(FederatedPCA(2).fit(X).to_sklearn(), PCA)


@pytest.mark.parametrize(
    "rows",
    [
        X,
        X.tolist(),
        SITES,
        tuple(SITES),
        [part.tolist() for part in SITES],
        dict(zip("abcd", SITES, strict=True)),
        sp.csc_array(X),
        [sp.csr_array(part) for part in SITES],
        pd.DataFrame(X, columns=list("abcdef")),
        [pl.DataFrame(part, list("abcdef")) for part in SITES],
        Federation.local(SITES),
        [Site(part, name=f"s{i}") for i, part in enumerate(SITES)],
    ],
    ids=lambda rows: type(rows).__name__,
)
def test_fit_takes_rows_in_any_shape(rows):
    model = FederatedPCA(3).fit(rows)
    assert sine_of_angle(PCA(3).fit(X).components_.T, model.components_.T) < 1e-10
    assert model.n_samples_ == 90


def test_labels_split_one_table_into_sites():
    labels = np.array(["south", "north"])[RNG.integers(0, 2, 90)]
    model = FederatedPCA(3).fit(X, sites=labels)
    assert model.run_.sites == ("north", "south")
    assert sine_of_angle(PCA(3).fit(X).components_.T, model.components_.T) < 1e-10
    frame = pd.DataFrame(X, columns=list("abcdef"))
    assert FederatedPCA(3).fit(frame, sites=list(labels)).run_.sites == ("north", "south")
    scores = FederatedPCA(3).fit_transform(X, sites=labels)
    np.testing.assert_allclose(scores, model.transform(X))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: FederatedPCA(7).fit(SITES),
            "n_components=7 exceeds the 6 features; use at most 6",
        ),
        (lambda: FederatedPCA(5).fit([X[:2], X[2:4]]), "n_components=5 exceeds the 4 rows"),
        (lambda: FederatedPCA(1).fit([X[:1], X[:0]]), "n_samples=1"),
        (lambda: FederatedPCA(1).fit([X[:0]]), "n_samples=0"),
        (lambda: FederatedPCA(0).fit(X), "n_components"),
        (lambda: FederatedPCA(1.5).fit(X), "n_components"),
        (lambda: FederatedPCA("most").fit(X), "n_components"),
        (lambda: FederatedPCA(solver="magic").fit(X), "solver"),
        (lambda: FederatedPCA(tol=-1).fit(X), "tol"),
        (lambda: FederatedPCA(max_rounds=0).fit(X), "max_rounds"),
        (lambda: FederatedPCA().fit(X, sites=[1, 2]), "one label for each of the 90 rows"),
        (lambda: FederatedPCA().fit(SITES, sites=[1] * 90), "already split by site"),
        (
            lambda: FederatedPCA().fit(X, sites=[np.nan] * 2 + [1] * 88),
            "no label for 2 of the 90 rows",
        ),
        (lambda: FederatedPCA().fit(X, sites=[None] + ["a"] * 89), "no label for 1 of the 90 rows"),
        (lambda: FederatedPCA().fit([X, X[0]]), "site-2 in the list must be a 2-D table"),
        (lambda: FederatedPCA().fit([X, None]), "site-2 in the list.*NoneType"),
        (lambda: FederatedPCA().fit_transform(SITES), "transform the rows of each site"),
        (lambda: FederatedPCA(2).fit(X).transform(X[:, :3]), "3 features"),
    ],
)
def test_bad_input_names_the_value_and_the_bound(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_a_refused_fit_sends_nothing_but_names():
    fed = Federation.local([X[:2], X[2:4]])
    with pytest.raises(InputError):
        FederatedPCA(5).fit(fed)
    assert {entry["question"] for entry in fed.record.history} == {"column_names", "count_and_sum"}


def test_fitting_again_forgets_the_old_features():
    model = FederatedPCA(2).fit(pd.DataFrame(X, columns=list("abcdef")))
    model.fit([X[:, :4]])
    assert model.n_features_in_ == 4
    assert not hasattr(model, "feature_names_in_")


def test_a_pipeline_and_output_frames():
    y = X[:, 0] > 2
    pipeline = make_pipeline(StandardScaler(), FederatedPCA(3), LogisticRegression())
    assert pipeline.fit(X, y).score(X, y) > 0.8
    frame = pd.DataFrame(X, columns=list("abcdef"))
    for kind, cls in (("pandas", pd.DataFrame), ("polars", pl.DataFrame)):
        scores = FederatedPCA(2).set_output(transform=kind).fit_transform(frame)
        assert isinstance(scores, cls)
        assert list(scores.columns) == ["federatedpca0", "federatedpca1"]


def test_cloning_and_pickling():
    model = FederatedPCA(2, solver="lanczos", random_state=3).fit(SITES)
    assert clone(model).get_params() == model.get_params()
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    assert list(again.run_.ledger) == list(model.run_.ledger)


def test_narrow_floats_stay_narrow():
    narrow = X.astype(np.float32)
    model = FederatedPCA(2).fit(narrow)
    scores = model.transform(narrow)
    assert scores.dtype == model.inverse_transform(scores).dtype == np.float32
    assert model.transform(X).dtype == np.float64


def test_sparse_rows_are_transformed_without_being_filled():
    model = FederatedPCA(2, scale=True).fit(SITES)
    np.testing.assert_allclose(model.transform(sp.csr_array(X)), model.transform(X), atol=1e-10)


def test_seeds_of_every_kind():
    for seed in (0, np.random.RandomState(0), None):
        assert FederatedPCA(2, solver="lanczos", random_state=seed).fit(SITES).run_.seed >= 0


@pytest.mark.parametrize("solver", ["covariance", "lanczos", "subspace-iteration"])
def test_a_saved_model_comes_back_whole_and_the_same_bits_each_time(solver, tmp_path):
    frame = pd.DataFrame(X, columns=list("abcdef"))
    model = FederatedPCA(3, solver=solver, scale=True, whiten=True, random_state=4)
    model.fit({"north": frame[:40], "south": frame[40:]})
    model.save(tmp_path / "a.fedpca")
    back = load(tmp_path / "a.fedpca")
    assert back.get_params() == model.get_params()
    for name, value in vars(model).items():
        if name.endswith("_") and name not in ("run_", "model_"):
            np.testing.assert_array_equal(getattr(back, name), value)
    for name, array in model.model_.arrays().items():
        np.testing.assert_array_equal(getattr(back.model_, name), array)
    same = ("rounds", "solver_rounds", "bytes_up", "bytes_down", "sites", "stop_reason", "seed")
    for name in same:
        assert getattr(back.run_, name) == getattr(model.run_, name)
    assert list(back.run_.ledger) == list(model.run_.ledger)
    of_one = sum(total.bytes for total in back.run_.ledger.totals("north"))
    assert 0 < of_one < back.run_.bytes_up + back.run_.bytes_down
    np.testing.assert_array_equal(back.transform(frame), model.transform(frame))
    back.save(tmp_path / "b.fedpca")
    assert (tmp_path / "a.fedpca").read_bytes() == (tmp_path / "b.fedpca").read_bytes()


def test_a_random_state_object_is_not_saved(tmp_path):
    model = FederatedPCA(2, random_state=np.random.RandomState(0)).fit(SITES)
    model.save(tmp_path / "m")
    assert load(tmp_path / "m").random_state is None


def _arrays(**changes):
    k, d = 2, 3
    arrays = {
        "components": np.eye(k, d),
        "explained_variance": np.ones(k),
        "singular_values": np.ones(k),
        "mean": np.zeros(d),
        "scale": np.ones(d),
        "noise_variance": np.array(0.1),
        "total_variance": np.array(3.0),
    }
    return {name: value for name, value in {**arrays, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("arrays", "header", "text"),
    [
        (_arrays(), None, "not a fedpca model"),
        (_arrays(), [], "not a fedpca model"),
        (_arrays(mean=None), {}, "has no field 'mean'"),
        (_arrays(), {"format": 99}, "format 99"),
        (_arrays(mean=np.zeros(4)), {}, r"'mean' in .* has shape \(4,\) instead of \(d\) with d=3"),
        (_arrays(components=np.zeros(3)), {}, "components"),
        (_arrays(scale=np.ones(3, np.float32)), {}, "'scale' in .* is float32 instead of float64"),
        (
            _arrays(mean=np.array([0, np.nan, 0])),
            {},
            "'mean' in .* has 1 values that are not finite",
        ),
        (_arrays(), {"estimator": "Other"}, "holds a Other"),
        (_arrays(), {"n_samples": "x"}, "n_samples is 'x'"),
        (_arrays(), {"n_samples": 0}, "n_samples is 0; it must be a positive integer"),
        (_arrays(), {"n_samples": -5}, "n_samples is -5"),
        (_arrays(), {"features": ["a"]}, "must be a list of 3 strings"),
        (_arrays(), {"parameters": None}, "the header has no parameters"),
        (_arrays(), {}, "invalid header: 'site_variance_ratio'"),
        (_arrays(), {"parameters": {"exec": 1}}, "invalid header"),
        (_arrays(), {"parameters": {"whiten": "no"}}, "invalid header.*whiten"),
    ],
)
def test_a_wrong_model_file_is_refused_with_the_reason(arrays, header, text, tmp_path):
    usual = {"format": 3, "estimator": "FederatedPCA", "n_samples": 9, "features": None}
    usual["parameters"] = {}
    if isinstance(header, dict):
        write_contents(tmp_path / "m", arrays, {**usual, **header})
    else:
        metadata = None if header is None else {"fedpca": json.dumps(header)}
        save_file(arrays, tmp_path / "m", metadata=metadata)
    with pytest.raises(FileError, match=text):
        load(tmp_path / "m")


def test_a_file_that_is_no_model_at_all(tmp_path):
    (tmp_path / "m").write_bytes(b"junk")
    with pytest.raises(FileError, match="not a readable fedpca model"):
        load(tmp_path / "m")
    with pytest.raises(FileError, match="does not exist"):
        load(tmp_path / "none")


def test_a_model_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    from fedpca.storage import tensor_file as tensorfile

    target = tmp_path / "m"
    target.write_text("old")

    def half(arrays, path, metadata):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(tensorfile, "save_file", half)
    with pytest.raises(OSError, match="disk full"):
        FederatedPCA(2).fit(SITES).save(target)
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    with pytest.raises(FileError, match="does not exist"):
        FederatedPCA(2).fit(SITES).save(tmp_path / "no" / "m")


def test_an_unfitted_estimator_says_so():
    for call in ("transform", "score_samples", "inverse_transform"):
        with pytest.raises(NotFittedError):
            getattr(FederatedPCA(), call)(X)


def test_without_noise_the_density_lives_in_the_subspace():
    flat = np.hstack([X[:, :2], np.zeros((90, 1))])
    model = FederatedPCA(2).fit(flat)
    model.model_ = replace(model.model_, noise_variance=np.array(0.0))
    inside = PCA(2, svd_solver="full").fit(X[:, :2]).score_samples(X[:, :2])
    np.testing.assert_allclose(model.score_samples(flat), inside, rtol=1e-9)
    assert np.all(np.isneginf(model.score_samples(flat + np.eye(3)[2])))


def test_numpy_scalars_are_parameters_too(tmp_path):
    model = FederatedPCA(
        np.int64(2), scale=np.bool_(True), tol=np.float32(1e-6), random_state=np.int64(3)
    )
    model.fit(Federation.local(SITES, journal=tmp_path / "j")).save(tmp_path / "m")
    assert load(tmp_path / "m").get_params()["random_state"] == 3


def test_scale_without_centering_is_the_standard_deviation():
    ours = FederatedPCA(2, center=False, scale=True).fit(SITES)
    np.testing.assert_allclose(ours.scale_, X.std(axis=0), rtol=1e-12)


@pytest.mark.process
def test_importing_needs_no_optional_dependency():
    import subprocess
    import sys

    code = (
        "import sys, sklearn.decomposition; before = set(sys.modules); import fedpca; "
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    added = set(ast.literal_eval(done.stdout))
    assert "fedpca" in added
    optional = {"flwr", "dask", "distributed", "cryptography", "matplotlib", "torch", "polars"}
    assert not added & (optional | {"typer", "pandas"})
