"""Streams and summaries whose features are scaled, and whose rank follows a rule, at the end."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from command_line import NAMES, ROWS, run
from fedpca import FederatedPCA, StreamingPCA, Summary, load
from fedpca.errors import InputError
from fedpca.linalg.dense import sine_of_angle
from support import gapped_rows

UNITS = np.geomspace(1e-3, 1e4, 8)
X = gapped_rows(np.random.default_rng(0), 200, 8, 2) * UNITS + 3.0


@parametrize_with_checks(
    [
        StreamingPCA(2, scale=True),
        StreamingPCA(scale=True, exact=False, whiten=True),
        StreamingPCA("auto"),
        StreamingPCA(0.9, scale=True),
    ]
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def scaled_reference(rows, k=2):
    return PCA(k, svd_solver="full").fit(StandardScaler().fit_transform(rows))


def assert_like(model, reference):
    assert sine_of_angle(reference.components_.T, model.components_.T) < 1e-7
    np.testing.assert_allclose(model.explained_variance_, reference.explained_variance_, rtol=1e-9)


@pytest.mark.parametrize("exact", [True, False, "auto"])
@pytest.mark.parametrize("offset", [0.0, 1e8])
@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_scaled_streams_equal_scaled_rows_at_once(exact, offset, make):
    rows = gapped_rows(np.random.default_rng(1), 200, 8, 2) * np.arange(1, 9) + offset
    rows[:, 3] = 7.25
    model = StreamingPCA(2, scale=True, exact=exact)
    for batch in np.split(rows, [1, 1, 30, 35]):
        model.partial_fit(make(batch))
    plain = rows - offset  # the offset takes digits from the reference
    assert_like(model, scaled_reference(plain))
    np.testing.assert_allclose(model.scale_, StandardScaler().fit(plain).scale_, rtol=1e-9)
    assert model.scale_[3] == 1
    assert model.angle_bound_ < 1e-6


@given(
    seed=st.integers(0, 2**32),
    d=st.integers(6, 30),
    k=st.integers(1, 3),
    n_spare=st.integers(0, 8),
    spread=st.sampled_from([0.0, 1.0, 3.0]),
)
def test_a_lossy_stream_is_within_its_bound_after_scaling(seed, d, k, n_spare, spread):
    rng = np.random.default_rng(seed)
    rows = gapped_rows(rng, 120, d, k) * 10 ** (spread * rng.standard_normal(d)) + 1.0
    model = StreamingPCA(k, n_spare=n_spare, scale=True, exact=False, batch_size=17).fit(rows)
    reference = scaled_reference(rows, k)
    angle = sine_of_angle(reference.components_.T, model.components_.T)
    assert angle <= max(1e-7, model.angle_bound_)
    assert (model.explained_variance_ <= reference.explained_variance_ * (1 + 1e-9)).all()
    np.testing.assert_allclose(model.scale_, rows.std(axis=0), rtol=1e-9)


def test_merged_summaries_are_scaled_exactly_if_nothing_was_left_out():
    rows = gapped_rows(np.random.default_rng(1), 200, 8, 2) * np.geomspace(0.1, 10, 8)
    merged = Summary.of(rows[:50]).merge(Summary.of(rows[50:51]), Summary.of(rows[51:]))
    model = StreamingPCA.from_summary(merged, 2, scale=True)
    assert_like(model, scaled_reference(rows))
    assert model.angle_bound_ < 1e-6
    federated = FederatedPCA(2, scale=True).fit(rows)
    np.testing.assert_allclose(model.transform(rows), federated.transform(rows), atol=1e-8)


def test_rounding_that_the_scale_magnifies_shows_in_the_bound():
    merged = Summary.of(X[:50]).merge(Summary.of(X[50:]))  # units from 1e-3 to 1e4
    model = StreamingPCA.from_summary(merged, 2, scale=True)
    angle = sine_of_angle(scaled_reference(X).components_.T, model.components_.T)
    assert 1e-3 < angle <= model.angle_bound_
    assert_like(StreamingPCA(2, scale=True).fit(X), scaled_reference(X))  # the scatter has no such


def test_directions_left_out_for_their_units_show_in_the_bound():
    summary = Summary.of(X, 2, n_spare=0)  # knows the two features with the largest units only
    model = StreamingPCA.from_summary(summary, 2, scale=True)
    assert model.angle_bound_ == 1.0
    np.testing.assert_allclose(model.scale_, X.std(axis=0))


def test_two_scaled_streams_merge_in_the_units_of_their_rows():
    first, second = StreamingPCA(2, scale=True).fit(X[:90]), StreamingPCA(2, scale=True).fit(X[90:])
    before = first.components_
    first.merge(second)
    assert_like(first, scaled_reference(X))
    assert np.abs(before - first.components_).max() > 1e-6


def test_a_scaled_stream_goes_on_from_its_file(tmp_path):
    model = StreamingPCA(2, scale=True).fit(X[:90])
    model.save(tmp_path / "stream")
    again = load(tmp_path / "stream").partial_fit(X[90:])
    whole = model.partial_fit(X[90:])
    assert again.components_.tobytes() == whole.components_.tobytes()
    assert_like(again, scaled_reference(X))
    twin = again.to_sklearn()
    np.testing.assert_allclose(twin.transform(X), again.transform(X), atol=1e-10)
    np.testing.assert_allclose(again.inverse_transform(again.transform(X)).mean(0), X.mean(0))


def test_forgotten_rows_count_less_in_the_scale():
    model = StreamingPCA(2, scale=True, forgetting=0.5).partial_fit(X[:100] * 9)
    model.partial_fit(X[100:])
    np.testing.assert_allclose(model.scale_, np.sqrt(model.var_))


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("n_components", [0.5, 0.9, 0.999, "auto", "mp", "gap"])
@pytest.mark.parametrize("exact", [True, False])
def test_rules_choose_the_number_that_a_fit_at_once_would(scale, n_components, exact):
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((400, 20)) * ([5, 4.8, 4.6, 4.4, 4.2, 4] + [1] * 14)
    rows = rows @ np.linalg.qr(rng.standard_normal((20, 20)))[0]
    model = StreamingPCA(n_components, scale=scale, exact=exact, batch_size=30).fit(rows)
    assert model.n_components_ == FederatedPCA(n_components, scale=scale).fit(rows).n_components_
    merged = Summary.of(rows[:150]).merge(Summary.of(rows[150:]))
    found = StreamingPCA.from_summary(merged, n_components, scale=scale)
    assert found.n_components_ == model.n_components_


def test_a_rule_chooses_anew_as_rows_arrive():
    rng = np.random.default_rng(5)
    model = StreamingPCA(0.9)
    model.partial_fit(rng.standard_normal((50, 1)) @ rng.standard_normal((1, 12)))
    assert model.n_components_ == 1
    model.partial_fit(3 * rng.standard_normal((50, 6)) @ rng.standard_normal((6, 12)))
    assert model.n_components_ > 3


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"scale": True, "center": False}, "scale=True requires center=True"),
        ({"scale": True, "rank": "mp"}, "scale=True requires rank='fixed', not rank='mp'"),
        ({"n_components": "auto", "rank": "mp"}, "n_components='auto' requires rank='fixed'"),
        ({"n_components": 0.5, "max_components": 9}, "max_components=9 exceeds the 8 features"),
    ],
)
def test_what_a_stream_cannot_do_is_refused_with_the_first_row(parameters, said):
    with pytest.raises(InputError, match=said):
        StreamingPCA(**parameters).partial_fit(X[:1])
    if parameters == {"scale": True, "center": False}:
        with pytest.raises(InputError, match=said):
            StreamingPCA.from_summary(Summary.of(X, center=False), 2, scale=True)


def test_the_shell_merges_summaries_and_scales_the_model(tmp_path):
    rows = ROWS * [1, 10, 100, 1000, 10000]
    frame = pd.DataFrame(rows, columns=NAMES)
    files = []
    for name, part in (("north", frame[:30]), ("south", frame[30:])):
        part.to_parquet(tmp_path / f"{name}.parquet")
        files.append(tmp_path / f"{name}.summary")
        done = run("summarize", tmp_path / f"{name}.parquet", "-k", "all", "-o", files[-1])
        assert done.exit_code == 0, done.output
    model = tmp_path / "m.fedpca"
    done = run("merge", *files, "-k", "90%", "--scale", "-o", model)
    assert done.exit_code == 0, done.output
    reference = PCA(0.9, svd_solver="full").fit(StandardScaler().fit_transform(rows))
    assert load(model).n_components_ == reference.n_components_
    assert_like(load(model), reference)
    done = run("merge", *files, "--scale", "-o", tmp_path / "all.summary")
    assert done.exit_code == 2
    assert "--scale applies to a model" in done.output
