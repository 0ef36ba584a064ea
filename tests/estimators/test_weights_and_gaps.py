"""Weights and missing values as users give them to FederatedPCA, and what is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline

from fedpca import FederatedPCA, Federation, PersonalizedPCA, Policy, RobustPCA, Site, load
from fedpca.errors import InputError, JournalError, PolicyRefused
from support import gapped_rows

RNG = np.random.default_rng(0)
X = gapped_rows(RNG, 90, 5, 2, offset=3.0)
W = RNG.integers(0, 4, 90)
NAMES = ["a", "b", "c", "d", "e"]
WITH_GAPS = np.where(RNG.random(X.shape) < 0.05, np.nan, X)


def repeated(rows=X):
    return PCA(2, svd_solver="full").fit(np.repeat(rows, W, axis=0))


def assert_like(model, reference):
    np.testing.assert_allclose(model.explained_variance_, reference.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.mean_, reference.mean_, rtol=1e-12)


@pytest.mark.parametrize("make", [np.asarray, list, pd.Series])
def test_one_table_takes_one_weight_per_row(make):
    assert_like(FederatedPCA(2).fit(X, sample_weight=make(W)), repeated())


def test_weights_are_split_as_the_rows_are():
    labels = np.where(np.arange(90) % 3 == 0, "north", "south")
    assert_like(FederatedPCA(2).fit(X, sites=labels, sample_weight=W), repeated())
    by_name = {"north": X[:40], "south": X[40:]}
    weights = {"south": W[40:], "north": W[:40]}
    assert_like(FederatedPCA(2).fit(by_name, sample_weight=weights), repeated())


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame])
def test_a_column_holds_the_weights_and_is_no_feature(library):
    frame = library({"w": W, **dict(zip(NAMES, X.T, strict=True))})
    model = FederatedPCA(2)
    scores = model.fit_transform(frame, sample_weight="w")
    assert_like(model, repeated())
    assert list(model.feature_names_in_) == NAMES
    assert scores.shape == (90, 2)
    model.fit({"a": frame[:50], "b": frame[50:]}, sample_weight="w")
    assert_like(model, repeated())
    assert list(model.feature_names_in_) == NAMES
    labels = np.repeat(["a", "b"], 45)
    assert_like(model.fit(frame, sites=labels, sample_weight="w"), repeated())


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_sites_of_a_federation_have_their_own_weights(kind, tmp_path):
    frame = pd.DataFrame(X, columns=NAMES).assign(w=W.astype(float))
    for name, part in {"one": frame[:30], "two": frame[30:60][["w", *NAMES[::-1]]]}.items():
        path = tmp_path / f"{name}.{kind}"
        part.to_csv(path, index=False) if kind == "csv" else part.to_parquet(path, index=False)
    sites = [
        Site(tmp_path / f"one.{kind}", name="one", weight="w"),
        Site([tmp_path / f"two.{kind}"], name="two", weight="w"),
        Site(frame[60:][NAMES], name="three", weight=W[60:]),
    ]
    model = FederatedPCA(2).fit(Federation.local(sites))
    assert_like(model, repeated())
    assert list(model.feature_names_in_) == NAMES
    assert model.n_samples_ == (W > 0).sum()


def test_sites_with_and_without_weights_work_together():
    sites = [Site(X[:40], name="one", weight=np.full(40, 1.0)), Site(X[40:], name="two")]
    ours, plain = FederatedPCA(2).fit(sites), FederatedPCA(2).fit([X[:40], X[40:]])
    np.testing.assert_allclose(ours.explained_variance_, plain.explained_variance_, rtol=1e-12)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (W[:5], r"shape \(5,\); pass one weight for each of the 90 rows"),
        (np.ones((90, 2)), r"shape \(90, 2\)"),
        (np.where(W > 2, -1.0, 1.0), r"weights are negative or not finite; use 0 to leave out"),
        (np.where(W > 2, np.nan, 1.0), r"weights are negative or not finite"),
        (["heavy"] * 90, "the weights are not numbers"),
        (np.zeros(90), "all weights are zero"),
        (np.full(90, 1 / 90), "add up to 1; a weight of 1 counts as one row, so .* at least 2"),
        ("w", "X has no column names; pass a data frame"),
    ],
)
def test_bad_weights_are_refused(weights, said):
    with pytest.raises(InputError, match=said):
        FederatedPCA(2).fit(X, sample_weight=weights)


def test_bad_weights_of_a_site_are_refused_by_its_name():
    with pytest.raises(InputError, match="site 'one': the weights are not numbers"):
        Site(X, name="one", weight=[[1], [1, 2]])
    with pytest.raises(InputError, match=r"site 'one': the weights have shape \(5,\)"):
        Site(X, name="one", weight=W[:5])


def test_weights_that_do_not_match_the_sites_are_refused():
    parts, frame = [X[:40], X[40:]], pd.DataFrame(X, columns=NAMES)
    with pytest.raises(InputError, match="must be a list with the weights of each"):
        FederatedPCA().fit(parts, sample_weight=W)
    with pytest.raises(InputError, match="must be a dict with the same names: a, b"):
        FederatedPCA().fit(dict(zip("ab", parts, strict=True)), sample_weight=[W[:40], W[40:]])
    with pytest.raises(InputError, match=r"sample_weight='w' is not a column of X; the columns"):
        FederatedPCA().fit(frame, sample_weight="w")
    with pytest.raises(InputError, match=r"site 'site-2': weight='a' names a column, but"):
        FederatedPCA().fit([frame, X], sample_weight="a")
    with pytest.raises(InputError, match=r"Site\(rows, weight=...\)"):
        FederatedPCA().fit(Federation.local(parts), sample_weight=[W[:40], W[40:]])
    with pytest.raises(InputError, match=r"Site\(rows, weight=...\)"):
        FederatedPCA().fit([Site(X, name="one")], sample_weight=[W])


@pytest.mark.parametrize("estimator", [PersonalizedPCA(1, 1), RobustPCA(2)])
def test_other_methods_refuse_weights_before_they_read_a_row(estimator):
    fed = Federation.local([Site(X, name="one", weight=W), Site(X[:50], name="two")])
    with pytest.raises(InputError, match="the rows of one have weights, which only FederatedPCA"):
        estimator.fit(fed)
    assert {entry["question"] for entry in fed.record.history} == {"column_names"}


def test_other_weights_do_not_resume_a_journal(tmp_path):
    journal = tmp_path / "journal"
    path = tmp_path / "rows.npy"
    np.save(path, X)
    for rows in (X, path):
        fits = [
            FederatedPCA(2).fit(
                Federation.local([Site(rows, name="one", weight=W)], journal=journal)
            )
            for _ in range(2)
        ]
        assert fits[0].components_.tobytes() == fits[1].components_.tobytes()
        with pytest.raises(JournalError):
            FederatedPCA(2).fit(
                Federation.local([Site(rows, name="one", weight=W + 1)], journal=journal)
            )
        journal.unlink()


def test_weights_that_the_caller_changes_later_do_not_change():
    weights = W.astype(float)
    site = Site(X, name="one", weight=weights)
    weights[:] = 1.0
    assert_like(FederatedPCA(2).fit([site]), repeated())


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array, sp.csc_array])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_filled_gaps_equal_an_imputer_before_pca(make, dtype):
    rows = WITH_GAPS.astype(dtype)
    model = FederatedPCA(2, missing="mean").fit(make(rows))
    reference = make_pipeline(SimpleImputer(), PCA(2, svd_solver="full")).fit(rows.astype(float))
    assert_like(model, reference[-1])
    scores = model.transform(make(rows))
    assert scores.dtype == dtype
    np.testing.assert_allclose(
        scores, reference.transform(rows.astype(float)), atol=1e-5 if dtype == np.float32 else 1e-9
    )


def test_gaps_in_frames_are_nulls():
    frame = pd.DataFrame(WITH_GAPS, columns=NAMES)
    model = FederatedPCA(2, missing="mean").fit({"one": frame[:30], "two": frame[30:]})
    reference = PCA(2, svd_solver="full").fit(SimpleImputer().fit_transform(WITH_GAPS))
    assert_like(model, reference)
    assert_like(FederatedPCA(2, missing="mean").fit(frame.convert_dtypes()), reference)


def test_columns_in_another_order_take_their_own_means():
    frame = pd.DataFrame(WITH_GAPS, columns=NAMES) * np.arange(1, 6)
    sites = {"one": frame[:30], "two": frame[30:][["c", "a", "e", "b", "d"]]}
    reference = PCA(2, svd_solver="full").fit(SimpleImputer().fit_transform(frame))
    for solver in ("covariance", "lanczos", "tsqr", "merge"):
        model = FederatedPCA(2, missing="mean", solver=solver).fit(sites)
        assert_like(model, reference)
        rows = SimpleImputer().fit_transform(frame)[30:]
        own = rows - rows.mean(axis=0)
        share = np.sum((own @ model.components_.T) ** 2) / np.sum(own**2)
        assert model.site_variance_ratio_["two"] == pytest.approx(share)


def test_dropped_rows_are_left_out_at_their_sites():
    model = FederatedPCA(2, missing="drop").fit(np.array_split(WITH_GAPS, 4))
    complete = X[~np.isnan(WITH_GAPS).any(axis=1)]
    assert_like(model, PCA(2, svd_solver="full").fit(complete))
    assert model.n_samples_ == len(complete)
    with pytest.raises(
        InputError, match="missing='drop' cannot score rows with NaN; fit with missing='mean'"
    ):
        model.transform(WITH_GAPS)


def test_a_site_whose_policy_asks_for_rows_counts_those_that_are_left():
    north = np.where(np.eye(20, 5, dtype=bool), np.nan, X[:20])
    guarded = Site(north, name="north", policy=Policy(min_rows=18, min_count=1))
    sites = [guarded, Site(X[20:], name="south")]
    FederatedPCA(2, missing="mean").fit(sites)
    with pytest.raises(PolicyRefused, match=r"north.*fewer rows than its policy's min_rows=18"):
        FederatedPCA(2, missing="drop").fit(sites)


def test_a_model_that_is_saved_still_fills_gaps(tmp_path):
    model = FederatedPCA(2, missing="mean").fit(WITH_GAPS)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.missing == "mean"
    np.testing.assert_array_equal(again.transform(WITH_GAPS), model.transform(WITH_GAPS))


def test_gaps_that_cannot_be_filled_are_refused():
    empty = np.where(np.arange(5) == 2, np.nan, X)
    with pytest.raises(InputError, match="no values at any site: 2; drop these columns"):
        FederatedPCA(2, missing="mean").fit([empty[:40], empty[40:]])
    with pytest.raises(InputError, match="n_samples=0; at least 2 complete rows are required"):
        FederatedPCA(2, missing="drop").fit([empty[:40], empty[40:]])
    with pytest.raises(InputError, match="missing='mean' requires center=True"):
        FederatedPCA(2, missing="mean", center=False).fit(WITH_GAPS)
    assert FederatedPCA(2, missing="drop", center=False).fit(WITH_GAPS).mean_.any() is np.False_
    with pytest.raises(InputError, match=r"Input X contains NaN.*missing='mean'.*RobustPCA"):
        FederatedPCA(2).fit(X).transform(WITH_GAPS)
    with pytest.raises(ValueError, match="infinity"):
        FederatedPCA(2, missing="mean").fit(X).transform(np.where(X > 5, np.inf, X))


def test_an_empty_column_at_one_site_takes_the_mean_of_the_others():
    rows = X.copy()
    rows[:30, 1] = np.nan
    model = FederatedPCA(2, missing="mean").fit([rows[:30], rows[30:]])
    assert_like(model, PCA(2, svd_solver="full").fit(SimpleImputer().fit_transform(rows)))
