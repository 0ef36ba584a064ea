"""Results keep the labels of rows, features, and sites."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn

from fedpca import FederatedPCA, PersonalizedPCA, RobustPCA, StreamingPCA, load

NAMES = list("abcdef")


@pytest.fixture
def frames():
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(6, 6)))[0].T
    return {
        site: pd.DataFrame(
            rng.normal(size=(40, 2)) * [4, 2] @ Q[[0, 1 + i]] + 0.1 * rng.normal(size=(40, 6)),
            columns=NAMES,
            index=[f"{site}-{j}" for j in range(40)],
        )
        for i, site in enumerate(("north", "south", "west"))
    }


@pytest.fixture
def personalized(frames):
    return PersonalizedPCA(1, 1, random_state=0).fit(frames)


def test_the_scores_of_a_personalized_model_have_names(personalized, frames):
    assert list(personalized.get_feature_names_out()) == ["shared0", "local0"]
    scores = personalized.set_output(transform="pandas").transform(frames["north"], "north")
    assert list(scores) == ["shared0", "local0"]
    assert list(scores.index) == list(frames["north"].index)


def test_the_parts_of_a_frame_are_frames(personalized, frames):
    parts = personalized.split(frames["south"], "south")
    for part in parts:
        assert list(part.index) == list(frames["south"].index)
        assert list(part.columns) == NAMES
    whole = parts.shared + parts.local + parts.left + personalized.site_means_["south"]
    pd.testing.assert_frame_equal(whole, frames["south"])
    arrays = personalized.fit({k: v.to_numpy() for k, v in frames.items()}).split(
        frames["south"].to_numpy(), "south"
    )
    assert type(arrays.shared) is np.ndarray


@pytest.mark.filterwarnings("ignore:.*lie apart|.*far from the others|.*outliers")
def test_the_parts_and_scores_of_a_robust_model_keep_the_index(frames):
    frame = frames["north"]
    pca = RobustPCA(2, random_state=0).fit(frames)
    low_rank, sparse = pca.split(frame)
    assert list(low_rank.index) == list(sparse.index) == list(frame.index)
    scores = pca.outlier_scores(frame)
    assert list(scores.rows.index) == list(scores.cells.index) == list(frame.index)
    assert list(scores.cells.columns) == NAMES
    plain = pca.model_.outlier_scores(frame.to_numpy())
    np.testing.assert_array_equal(scores.cells, plain.cells)
    np.testing.assert_array_equal(scores.rows, plain.rows)
    polars = pca.outlier_scores(pl.from_pandas(frame))
    assert isinstance(polars.cells, pl.DataFrame)
    assert isinstance(polars.rows, pl.Series)


def test_sites_are_named_in_pandas(personalized):
    bare = personalized.site_affinity()
    assert type(bare) is np.ndarray
    personalized.set_output(transform="pandas")
    affinity, points = personalized.site_affinity(), personalized.site_map()
    names = ["north", "south", "west"]
    assert list(affinity.index) == list(affinity.columns) == list(points.index) == names
    np.testing.assert_array_equal(affinity, bare)
    assert list(points.columns) == ["x0", "x1"]


def test_sites_are_named_in_polars_and_by_the_configuration(personalized):
    with sklearn.config_context(transform_output="polars"):
        affinity, points = personalized.site_affinity(), personalized.site_map()
    assert affinity.columns == ["site", "north", "south", "west"]
    assert points["site"].to_list() == ["north", "south", "west"]


def test_a_site_may_be_called_site(frames):
    named = {"site": frames["north"], "other": frames["south"]}
    pca = PersonalizedPCA(1, 1, random_state=0).fit(named).set_output(transform="polars")
    assert pca.site_affinity().columns == ["site_name", "site", "other"]


@pytest.mark.filterwarnings("ignore:.*lie apart|.*far from the others|.*outliers")
@pytest.mark.parametrize(
    "pca",
    [FederatedPCA(2), StreamingPCA(2), PersonalizedPCA(1, 1), RobustPCA(2)],
    ids=lambda pca: type(pca).__name__,
)
def test_every_estimator_tells_the_share_of_variance(pca, frames, tmp_path):
    pca.fit(pd.concat(frames.values()) if isinstance(pca, StreamingPCA) else frames)
    ratio = pca.explained_variance_ratio_
    assert ratio.shape == pca.explained_variance_.shape
    assert (ratio > 0).all()
    assert ratio.sum() <= 1
    pca.save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").explained_variance_ratio_, ratio)


@pytest.mark.parametrize("weights", ["site", "rows"])
def test_the_shares_of_shared_components_are_of_the_mean_variance(frames, weights):
    frames["north"] = frames["north"][:15]
    pca = PersonalizedPCA(1, 1, weights=weights, random_state=0).fit(frames)
    totals = [float(frame.to_numpy().var(axis=0).sum()) for frame in frames.values()]
    by = None if weights == "site" else [len(frame) for frame in frames.values()]
    assert np.isclose(pca.total_variance_, np.average(totals, weights=by))
    np.testing.assert_allclose(
        pca.explained_variance_ratio_, pca.explained_variance_ / np.average(totals, weights=by)
    )
