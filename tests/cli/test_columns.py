"""Files with ids, labels and other columns, from the shell."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from command_line import NAMES, ROWS, run
from fedpca import FederatedPCA, Summary, load
from fedpca.engines import credentials

PATIENTS = [f"{i:04d}" for i in range(80)]


@pytest.fixture
def labeled(tmp_path):
    """Files of two sites with an id and a label; south's is as a spreadsheet writes it."""
    frame = pd.DataFrame(ROWS, columns=NAMES).assign(patient=PATIENTS, ward="A")
    frame[:30].to_parquet(tmp_path / "north.parquet")
    frame[30:].to_csv(
        tmp_path / "south.csv.gz", index=False, sep=";", decimal=",", float_format="%.17g"
    )
    return [str(tmp_path / "north.parquet"), str(tmp_path / "south.csv.gz")]


OTHERS = ("--drop", "ward", "--id", "patient")


def test_fit_leaves_out_what_is_dropped_or_an_id(labeled, tmp_path):
    done = run("fit", *labeled, "-k", 2, "-o", tmp_path / "m")
    assert done.exit_code == 2
    assert "not numeric: patient (" in done.output
    assert "ward (" in done.output
    assert "--drop" in done.output
    assert "--id" in done.output
    assert run("fit", *labeled, *OTHERS, "-k", 2, "-o", tmp_path / "m", "-q").exit_code == 0
    model = load(tmp_path / "m")
    assert list(model.feature_names_in_) == NAMES
    assert model.run_.sites == ("north", "south")
    bare = FederatedPCA(2).fit({"north": ROWS[:30], "south": ROWS[30:]})
    np.testing.assert_allclose(model.components_, bare.components_, atol=1e-9)


def test_names_may_be_repeated_or_listed_and_quoted(tmp_path):
    frame = pd.DataFrame(ROWS, columns=["cells, live", *NAMES[1:]])
    frame.to_csv(tmp_path / "x.csv", index=False)
    done = run(
        "fit", tmp_path / "x.csv", "--drop", "b,c", "--drop", '"cells, live"', "-k", 1, "-q",
        "-o", tmp_path / "m",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert list(load(tmp_path / "m").feature_names_in_) == ["d", "e"]
    run("fit", tmp_path / "x.csv", "--columns", "e,c", "-k", 1, "-q", "-o", tmp_path / "n")
    assert list(load(tmp_path / "n").feature_names_in_) == ["e", "c"]


def test_a_federation_chooses_its_columns_at_its_sites(tmp_path):
    done = run("fit", "--federation", "localhost", "--drop", "ward", "-o", tmp_path / "m")
    assert done.exit_code == 2
    assert "each site in a federation passes them to fedpca join" in done.output


@pytest.mark.parametrize("kind", [".parquet", ".csv"])
def test_transform_carries_ids_and_ignores_other_columns(labeled, tmp_path, kind):
    bare = FederatedPCA(2).fit({"north": pd.DataFrame(ROWS, columns=NAMES)})
    bare.save(tmp_path / "m")
    scores = tmp_path / f"scores{kind}"
    done = run("transform", tmp_path / "m", labeled[1], "--id", "patient", "-o", scores)
    assert done.exit_code == 0, done.output
    read = (
        pq.read_table(scores).to_pandas()
        if kind == ".parquet"
        else pd.read_csv(scores, dtype={0: str})
    )
    assert list(read.columns) == ["patient", "pc1", "pc2"]
    assert list(read["patient"]) == PATIENTS[30:]
    np.testing.assert_allclose(read[["pc1", "pc2"]], bare.model_.transform(ROWS[30:]), atol=1e-9)


def test_transform_refuses_columns_that_are_not_there_or_would_collide(labeled, tmp_path):
    frame = pd.DataFrame(ROWS, columns=NAMES)
    FederatedPCA(2).fit({"north": frame}).save(tmp_path / "m")
    frame.drop(columns="c").assign(pc1=1).to_csv(tmp_path / "x.csv", index=False)
    frame.assign(pc1=1).to_csv(tmp_path / "y.csv", index=False)
    for options, text in (
        (("x.csv",), "there is no column c"),
        (("y.csv", "--id", "name"), "there is no column name"),
        (("y.csv", "--id", "pc1"), "duplicate columns: pc1"),
        (("y.csv", "--drop", "a"), "a cannot be in drop or id"),
        (("y.csv", "--id", "a"), "a cannot be in drop or id"),
    ):
        file, *more = options
        done = run("transform", tmp_path / "m", tmp_path / file, *more, "-o", tmp_path / "s.csv")
        assert done.exit_code == 2, options
        assert text in done.output
    assert not (tmp_path / "s.csv").exists()


def test_a_model_without_names_takes_what_is_left_by_position(labeled, tmp_path):
    model = FederatedPCA(2).fit([ROWS])
    model.save(tmp_path / "m")
    done = run("transform", tmp_path / "m", labeled[0], *OTHERS, "-o", tmp_path / "s.parquet")
    assert done.exit_code == 0, done.output
    read = pq.read_table(tmp_path / "s.parquet").to_pandas()
    assert list(read.columns) == ["patient", "pc1", "pc2"]
    np.testing.assert_allclose(read.iloc[:, 1:], model.transform(ROWS[:30]), atol=1e-9)


def test_summarize_and_audit_leave_out_the_same(labeled, tmp_path):
    done = run("summarize", labeled[0], *OTHERS, "-k", 2, "-o", tmp_path / "s.summary")
    assert done.exit_code == 0, done.output
    assert Summary.load(tmp_path / "s.summary").features == tuple(NAMES)
    done = run("audit", *labeled, *OTHERS, "-k", 1, "--solver", "covariance", "--refits", 0, "-q")
    assert done.exit_code == 0, done.output
    assert "covariance" in done.output


@pytest.mark.parametrize("n", [1, 2])
def test_a_summary_of_so_few_rows_needs_force(n, tmp_path):
    np.save(tmp_path / "few.npy", ROWS[:n])
    words = ("summarize", tmp_path / "few.npy", "-k", 2, "-o", tmp_path / "s.summary")
    done = run(*words)
    assert done.exit_code == 2
    assert f"{n} row(s), and anyone could compute them from the summary" in done.output
    assert not (tmp_path / "s.summary").exists()
    done = run(*words, "--force")
    assert done.exit_code == 0
    assert "this file reveals them; do not share it" in done.output


@pytest.mark.parametrize("k", ["0", "-1", "1.5", "150%", "0%", "many", ""])
@pytest.mark.parametrize("command", ["fit", "audit", "summarize"])
def test_a_number_of_components_that_cannot_be_says_what_can(k, command, sites, tmp_path):
    out = () if command == "audit" else ("-o", tmp_path / "o")
    done = run(command, sites[0], "-k", k, *out)
    assert done.exit_code == 2
    assert f"-k {k} is not valid; use a whole number of components (1 or more)" in done.output


def test_the_folder_that_one_is_in_is_a_site_too(labeled, tmp_path, monkeypatch):
    (tmp_path / "west").mkdir()
    np.save(tmp_path / "west" / "x.npy", ROWS)
    monkeypatch.chdir(tmp_path / "west")
    assert run("fit", ".", "-k", 2, "-q", "-o", tmp_path / "m").exit_code == 0
    assert load(tmp_path / "m").run_.sites == ("west",)


def test_two_sites_of_one_name_are_both_shown(tmp_path, sites):
    (tmp_path / "more").mkdir()
    pd.read_parquet(sites[0]).to_csv(tmp_path / "more" / "north.csv.gz", index=False)
    done = run("fit", sites[0], tmp_path / "more" / "north.csv.gz", "-o", tmp_path / "m")
    assert done.exit_code == 2
    said = " ".join(done.output.split())
    assert f"two sites are named 'north': {sites[0]} and " in said
    assert f"as in first={sites[0]} second=" in said
    done = run("fit", f"={sites[0]}", "-o", tmp_path / "m")
    assert "must be a path or NAME=PATH" in done.output


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["--query", "select 1"],
        ["--data", "a.csv", "--database", "sqlite:///a.db", "--query", "x"],
    ],
)
def test_a_site_has_rows_from_files_or_from_a_database(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    credentials.make_site_key(tmp_path, "north")
    refused = run("join", "localhost", "--key", "north.key", "--insecure", *given)
    assert refused.exit_code == 2
    assert "--database ADDRESS and --query SQL" in " ".join(refused.stderr.split())
