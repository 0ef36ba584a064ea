"""How rows are read: as one value, or by its options."""

from __future__ import annotations

import gc
import sqlite3

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from fedpca import FederatedPCA, Federation, Site, Summary
from fedpca.errors import InputError
from fedpca.rows.open import open_rows
from fedpca.rows.reading import Reading
from support import NAMES, gapped_rows, write_rows

X = gapped_rows(np.random.default_rng(0), 37, 4, 2, offset=10.0)
FRAME = pd.DataFrame(X, columns=NAMES).assign(
    patient=[f"p{i:03d}" for i in range(37)], ward=["north", "south"] * 18 + ["north"]
)


def write(folder, kind):
    path = folder / f"rows{kind}"
    if kind == ".parquet":
        FRAME.to_parquet(path)
    elif kind == ".feather":
        FRAME.to_feather(path)
    else:
        FRAME.to_csv(path, index=False, float_format="%.17g", sep="\t" if ".tsv" in kind else ",")
    return path


SOURCES = {
    "pandas": lambda folder: FRAME,
    "polars": lambda folder: pl.from_pandas(FRAME),
    "pyarrow": lambda folder: pa.table(FRAME),
    **{
        kind: lambda folder, kind=kind: write(folder, kind)
        for kind in (".parquet", ".feather", ".csv", ".tsv", ".csv.gz", ".tsv.gz")
    },
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_site_uses_the_columns_that_are_chosen(kind, tmp_path):
    source = SOURCES[kind](tmp_path)
    site = Site(source, name="a", drop="ward", id=["patient"])
    assert site.rows.features == tuple(NAMES)
    np.testing.assert_array_equal(np.vstack(list(site.rows.blocks())), X)
    chosen = Site(source, name="a", columns=["d", "a"])
    assert chosen.rows.features == ("d", "a")
    np.testing.assert_array_equal(np.vstack(list(chosen.rows.blocks())), X[:, [3, 0]])


@pytest.mark.parametrize("kind", SOURCES)
def test_text_columns_are_named_with_the_way_out(kind, tmp_path):
    with pytest.raises(InputError, match=r"not numeric: patient .*, ward .*--drop.*--id"):
        Site(SOURCES[kind](tmp_path), name="a")


@pytest.mark.parametrize("kind", SOURCES)
def test_ids_come_with_their_rows_as_text(kind, tmp_path):
    rows = open_rows(SOURCES[kind](tmp_path), Reading(drop="ward", id="patient"))
    pairs = list(rows.blocks_with_ids())
    np.testing.assert_array_equal(np.vstack([block for block, _ in pairs]), X)
    assert [i for _, ids in pairs for i in ids.column(0).to_pylist()] == list(FRAME["patient"])


def test_ids_of_a_folder_keep_leading_zeros_whatever_type_each_file_has(tmp_path):
    (tmp_path / "a.csv").write_text("id,x\n007,1\n008,2\n")
    pd.DataFrame({"x": [3.0], "id": [9]}).to_parquet(tmp_path / "b.parquet")
    rows = open_rows(tmp_path, Reading(id="id"))
    pairs = list(rows.blocks_with_ids())
    assert [i for _, ids in pairs for i in ids.column(0).to_pylist()] == ["007", "008", "9"]
    assert np.vstack([block for block, _ in pairs]).ravel().tolist() == [1, 2, 3]


def test_the_row_index_of_pandas_can_be_the_id(tmp_path):
    FRAME.set_index("patient")[NAMES].to_parquet(tmp_path / "x.parquet")
    rows = open_rows(tmp_path / "x.parquet", Reading(id="patient"))
    assert rows.features == tuple(NAMES)
    ids = [i for _, ids in rows.blocks_with_ids() for i in ids.column(0).to_pylist()]
    assert ids == list(FRAME["patient"])


def test_a_mixed_column_can_be_dropped_or_an_id():
    frame = pd.DataFrame({"a": [1.0, 2.0], "odd": [1.5, "x"]})
    assert Site(frame, name="s", drop="odd").rows.features == ("a",)
    assert Site(frame, name="s", id="odd").rows.features == ("a",)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"drop": "wart"}, "there is no column wart; the columns are a, b, c, d, patient, ward"),
        ({"columns": ["a", "z"]}, "there is no column z"),
        ({"columns": ["a", "a"]}, "duplicate columns: a"),
        ({"columns": []}, "columns is empty"),
        (
            {"columns": "a", "drop": "a"},
            "a: listed in columns and also in drop or id",
        ),
        ({"drop": [*NAMES, "patient", "ward"]}, "no column is left as a feature"),
        ({"id": 3}, "id=3 must be a column's name"),
        ({"id": [3]}, r"id=\[3\] must be a column's name"),
    ],
)
def test_a_choice_that_cannot_be_meant_is_refused(options, text):
    with pytest.raises(InputError, match=f"site 'a': {text}"):
        Site(FRAME, name="a", **options)


@pytest.mark.parametrize("kind", [".npy", ".npz"])
def test_columns_without_names_cannot_be_chosen(kind, tmp_path):
    for source in (X, write_rows(tmp_path, kind, X)):
        with pytest.raises(InputError, match="have no names, so there is no column label"):
            Site(source, name="a", drop="label")


def test_a_fit_of_sites_with_a_choice_equals_a_fit_of_the_bare_rows():
    sites = [Site(FRAME[:20], name="a", id="patient", drop="ward")]
    sites.append(Site(FRAME[20:], name="b", columns=NAMES))
    model = FederatedPCA(2).fit(sites)
    bare = FederatedPCA(2).fit({"a": FRAME[:20][NAMES], "b": FRAME[20:][NAMES]})
    assert model.components_.tobytes() == bare.components_.tobytes()


def test_a_summary_leaves_out_the_same_columns():
    summary = Summary.of(FRAME, 2, drop="ward", id="patient")
    assert summary.features == tuple(NAMES)
    np.testing.assert_array_equal(summary.mean, Summary.of(FRAME[NAMES], 2).mean)


def test_a_run_with_other_columns_is_another_run(tmp_path):
    path = write(tmp_path, ".csv")
    one = Site(path, name="a", drop=["ward", "patient"])
    other = Site(path, name="a", drop=["ward", "patient", "d"])
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint == Site(path, name="a", drop=["ward", "patient"]).fingerprint


def test_sites_may_hide_different_columns():
    other = FRAME.drop(columns="ward").rename(columns={"patient": "case"})
    sites = [Site(FRAME, name="a", drop=["ward", "patient"]), Site(other, name="b", id="case")]
    assert FederatedPCA(2).fit(Federation.local(sites)).n_samples_ == 74


def test_a_reading_is_one_value_or_its_options():
    how = Reading(drop="ward", id=["patient"])
    site = Site(FRAME, name="a", reading=how)
    assert site.rows.features == tuple(NAMES)
    assert site.source.reading is how
    assert Summary.of(FRAME, 2, reading=how).features == tuple(NAMES)
    assert Reading(**how.given).given == how.given == {"drop": ("ward",), "id": ("patient",)}
    with pytest.raises(InputError, match="drop: options of a reading"):
        Site(FRAME, name="a", reading=how, drop="ward")
    with pytest.raises(TypeError, match="dorp"):
        Site(FRAME, name="a", dorp="ward")


def test_what_is_typed_becomes_the_value_of_an_option():
    typed = {"drop": ["a,'b', \"c,d\"", "e"], "id": "p", "columns": [], "log_normalize": "100"}
    how = Reading.typed({**typed, "layer": "", "keep": None})
    assert how.given == {"drop": ("a", "'b'", "c,d", "e"), "id": ("p",), "log_normalize": 100.0}
    with pytest.raises(InputError, match="log_normalize='many' must be a number"):
        Reading.typed({"log_normalize": "many"})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"layer": "x"}, "layer: only AnnData objects"),
        ({"keep": "ids"}, "keep: keep and extract require one .bed file"),
        ({"layer": "x", "keep": "ids"}, "keep: keep and extract require one .bed file"),
        (
            {"extract": ["rs1"], "query": "select 1"},
            "extract: keep and extract require one .bed file",
        ),
        ({"weight": "ward", "drop": "ward"}, "column ward is listed in drop or id"),
    ],
)
def test_options_of_other_rows_are_refused(options, text):
    with pytest.raises(InputError, match=text):
        Site(FRAME, name="a", **options)


def test_a_site_reads_a_database_by_its_query():
    base = sqlite3.connect(":memory:")
    FRAME.to_sql("visits", base, index=False)
    site = Site(base, name="a", query="select * from visits", drop="ward", id="patient")
    np.testing.assert_array_equal(np.vstack(list(site.rows.blocks())), X)
    rows = open_rows(base, Reading(query="select a, b from visits"))
    gc.collect()  # the rows keep the file with the query's result
    np.testing.assert_array_equal(np.vstack(list(rows.blocks())), X[:, :2])
    assert Summary.of(base, 1, query="select a, b from visits").n == 37


@pytest.mark.parametrize(("missing", "whole"), [("drop", "dropna"), ("mean", "fillna")])
def test_a_summary_treats_gaps_as_it_is_told(missing, whole):
    gaps = FRAME[NAMES].copy()
    gaps.iloc[3, 1] = gaps.iloc[5, 0] = np.nan
    expected = gaps.dropna() if whole == "dropna" else gaps.fillna(gaps.mean())
    here, same = Summary.of(gaps, 2, missing=missing), Summary.of(expected, 2)
    assert here.n == same.n
    np.testing.assert_allclose(here.mean, same.mean, rtol=1e-14)
    np.testing.assert_allclose(here.eigenvalues, same.eigenvalues, rtol=1e-12)
    with pytest.raises(InputError, match="NaN"):
        Summary.of(gaps, 2)
    with pytest.raises(InputError, match="missing='often' must be one of error, mean, drop"):
        Summary.of(gaps, 2, missing="often")
    with pytest.raises(InputError, match="takes no weight"):
        Summary.of(FRAME[NAMES], 2, weight="a")
