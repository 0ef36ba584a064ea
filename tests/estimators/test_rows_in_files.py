"""Estimators that take the path of a file, and the column that names each row's site."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fedpca import FederatedPCA, PersonalizedPCA, RobustPCA, StreamingPCA, load, search_ranks
from fedpca.errors import InputError
from fedpca.storage import tensor_file
from support import NAMES, gapped_rows

X = gapped_rows(np.random.default_rng(0), 60, 4, 2, offset=3.0)
LABELS = np.array(["north", "south", "south"] * 20)
FRAME = pd.DataFrame(X, columns=NAMES)
LABELED = FRAME.assign(ward=LABELS)
MODELS = [
    pytest.param(lambda: FederatedPCA(2), id="federated"),
    pytest.param(lambda: StreamingPCA(2), id="streaming"),
    pytest.param(lambda: RobustPCA(2, random_state=0), id="robust"),
    pytest.param(lambda: PersonalizedPCA(1, 1, random_state=0), id="personalized"),
]

pytestmark = pytest.mark.filterwarnings("ignore:misalignment_", "ignore::UserWarning")


@pytest.fixture
def folder(tmp_path):
    FRAME.to_parquet(tmp_path / "rows.parquet")
    FRAME[NAMES[::-1]].assign(ward=LABELS).to_csv(
        tmp_path / "more.csv", index=False, float_format="%.17g"
    )
    np.save(tmp_path / "bare.npy", X)
    return tmp_path


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("as_text", [str, lambda path: path])
def test_a_path_is_a_table(make, as_text, folder):
    path = as_text(folder / "rows.parquet")
    model = make().fit(path)
    same = make().fit(FRAME)
    assert list(model.feature_names_in_) == NAMES
    np.testing.assert_allclose(model.components_, same.components_, atol=1e-9)
    np.testing.assert_allclose(model.transform(path), same.transform(FRAME), atol=1e-8)
    np.testing.assert_allclose(make().fit_transform(path), same.transform(FRAME), atol=1e-8)


@pytest.mark.parametrize("make", MODELS)
def test_columns_of_a_file_are_matched_by_name_and_others_ignored(make, folder):
    model = make().fit(FRAME)
    scores = model.transform(folder / "more.csv")
    np.testing.assert_allclose(scores, model.transform(FRAME), atol=1e-9)


def test_a_file_without_names_is_taken_by_position_with_a_warning(folder):
    model = FederatedPCA(2).fit(FRAME)
    with pytest.warns(UserWarning, match=r"bare\.npy has no column names"):
        scores = model.transform(folder / "bare.npy")
    np.testing.assert_allclose(scores, model.transform(FRAME))


def test_a_file_that_does_not_match_is_refused(folder):
    model = FederatedPCA(2).fit(FRAME)
    FRAME.drop(columns="c").to_parquet(folder / "less.parquet")
    with pytest.raises(InputError, match=r"less\.parquet: there is no column c"):
        model.transform(folder / "less.parquet")
    with pytest.raises(InputError, match=r"4 columns, but the model has 3 features"):
        FederatedPCA(1).fit(X[:, :3]).transform(folder / "bare.npy")
    gap = FRAME.copy()
    gap.loc[2, "b"] = np.nan
    gap.to_parquet(folder / "gap.parquet")
    with pytest.raises(
        InputError, match="contains NaN, but a model with missing='error' cannot score rows"
    ):
        model.transform(folder / "gap.parquet")
    assert np.isfinite(RobustPCA(2).fit(FRAME).transform(folder / "gap.parquet")).all()


def test_scores_of_a_file_come_as_the_container_that_was_asked_for(folder):
    model = FederatedPCA(2).fit(FRAME).set_output(transform="pandas")
    scores = model.transform(folder / "rows.parquet")
    assert list(scores.columns) == ["federatedpca0", "federatedpca1"]


@pytest.mark.parametrize("make", [MODELS[0], *MODELS[2:]])
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(lambda folder: LABELED, id="pandas"),
        pytest.param(lambda folder: pl.from_pandas(LABELED), id="polars"),
        pytest.param(lambda folder: folder / "more.csv", id="file"),
    ],
)
def test_a_column_names_the_site_of_each_row(make, source, folder):
    model = make().fit(source(folder), sites="ward")
    same = make().fit(FRAME, sites=LABELS)
    assert model.run_.sites == ("north", "south")
    assert sorted(model.feature_names_in_) == NAMES
    order = [list(model.feature_names_in_).index(name) for name in NAMES]
    np.testing.assert_allclose(model.components_[:, order], same.components_, atol=1e-6)


def test_fit_transform_leaves_the_column_out_too(folder):
    expected = FederatedPCA(2).fit(FRAME, sites=LABELS).transform(FRAME)
    scores = FederatedPCA(2).fit_transform(LABELED, sites="ward")
    np.testing.assert_allclose(scores, expected, atol=1e-9)
    apart = PersonalizedPCA(1, 1, random_state=0)
    scores = apart.fit_transform(LABELED, sites="ward")
    np.testing.assert_allclose(scores, apart.transform(FRAME, LABELS), atol=1e-9)


def test_ranks_are_searched_with_a_column_of_labels():
    by_column = search_ranks(LABELED, [1, 2], [1], sites="ward", random_state=0)
    by_array = search_ranks(FRAME, [1, 2], [1], sites=LABELS, random_state=0)
    assert by_column.table == by_array.table


@pytest.mark.parametrize(
    ("rows", "sites", "text"),
    [
        (LABELED, "wart", "there is no column wart"),
        (X, "ward", "the columns have no names, so there is no column ward"),
        ([X, X], "ward", "X is already split by site"),
        (LABELED.assign(ward=[None, *LABELS[1:]]), "ward", "no label for 1 of the 60 rows"),
        (LABELED.assign(other="x"), "ward", "not numeric: other"),
    ],
)
def test_labels_that_are_not_there_are_refused(rows, sites, text):
    with pytest.raises(InputError, match=text):
        FederatedPCA(2).fit(rows, sites=sites)


def test_an_empty_label_in_a_file_is_none(tmp_path):
    (tmp_path / "x.csv").write_text("a,b,ward\n1,2,north\n3,5,\n5,9,north\n")
    with pytest.raises(InputError, match="no label for 1 of the 3 rows"):
        FederatedPCA(1).fit(tmp_path / "x.csv", sites="ward")


def test_a_file_takes_no_labels_beside_it(folder):
    with pytest.raises(InputError, match="sites must be the name of the column"):
        FederatedPCA(2).fit(folder / "rows.parquet", sites=LABELS)
    model = PersonalizedPCA(1, 1).fit(FRAME, sites=LABELS)
    with pytest.raises(InputError, match="site must be the name of one site"):
        model.transform(folder / "rows.parquet", LABELS)
    scores = model.transform(folder / "rows.parquet", "north")
    np.testing.assert_allclose(scores, model.transform(FRAME, "north"), atol=1e-9)


@pytest.mark.parametrize("make", MODELS)
def test_a_model_file_is_read_once(make, folder, monkeypatch):
    make().fit(FRAME).save(folder / "m.fedpca")
    opened = []
    whole = tensor_file.safe_open

    def counted(path, **how):
        opened.append(path)
        return whole(path, **how)

    monkeypatch.setattr(tensor_file, "safe_open", counted)
    model = load(folder / "m.fedpca")
    assert opened == [folder / "m.fedpca"]
    assert type(model) is type(make())
    again = type(model).load(folder / "m.fedpca")
    np.testing.assert_array_equal(again.components_, model.components_)
