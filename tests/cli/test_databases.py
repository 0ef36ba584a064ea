"""Every command that reads rows reads them from a database as well."""

from __future__ import annotations

import sqlite3

import numpy as np
import pandas as pd
import pytest

from command_line import NAMES, ROWS, run
from fedpca import Summary, load
from fedpca.cli.options import source_of, sources_of
from fedpca.errors import InputError
from fedpca.rows.reading import AS_STORED, Reading

SQL = "select a, b, c, d, e, patient from visits order by patient"
WHERE = ("--query", SQL, "--id", "patient")


@pytest.fixture
def databases(tmp_path):
    """The addresses of two sites' databases."""
    addresses = []
    for name, rows in (("north", ROWS[:30]), ("south", ROWS[30:])):
        frame = pd.DataFrame(rows, columns=NAMES)
        frame["patient"] = [f"{name}-{i:02d}" for i in range(len(frame))]
        base = sqlite3.connect(tmp_path / f"{name}.db")
        frame.to_sql("visits", base, index=False)
        base.close()
        addresses += ["--database", f"sqlite:///{tmp_path / name}.db"]
    return addresses


@pytest.fixture
def model(databases, tmp_path):
    path = tmp_path / "m.fedpca"
    assert run("fit", *databases, *WHERE, "-k", 2, "-o", path, "-q").exit_code == 0
    return path


def test_a_fit_to_databases_is_one_to_their_rows(model, sites, tmp_path):
    assert load(model).run_.sites == ("north", "south")
    assert run("fit", *sites, "-k", 2, "-o", tmp_path / "same", "-q").exit_code == 0
    np.testing.assert_allclose(
        load(model).components_, load(tmp_path / "same").components_, atol=1e-12
    )


def test_databases_are_checked_verified_diagnosed_and_attacked(model, databases):
    assert run("check", *databases, *WHERE).exit_code == 0
    assert "certified" in run("verify", model, *databases, "--query", SQL).stdout
    assert run("diagnose", model, *databases, *WHERE, "-q").exit_code == 0
    done = run("audit", *databases, *WHERE, "--solver", "covariance", "-k", 2, "-q", "--refits", 0)
    assert done.exit_code == 0, done.output


def test_one_database_is_summarized_scored_and_drawn(model, databases, tmp_path):
    north = databases[:2]
    output = tmp_path / "n.summary"
    assert run("summarize", *north, *WHERE, "-k", 2, "-o", output).exit_code == 0
    np.testing.assert_allclose(Summary.load(output).mean, ROWS[:30].mean(axis=0))
    scores = tmp_path / "scores.csv"
    assert run("transform", model, *north, *WHERE, "-o", scores, "-q").exit_code == 0
    written = pd.read_csv(scores)
    assert list(written["patient"][:2]) == ["north-00", "north-01"]
    expected = load(model).transform(pd.DataFrame(ROWS[:30], columns=NAMES))
    np.testing.assert_allclose(written[["pc1", "pc2"]], expected, atol=1e-12)
    done = run("plot", model, "control", *north, "--query", SQL, "-o", tmp_path / "c.svg")
    assert done.exit_code == 0, done.output


def test_the_name_of_a_database_is_the_name_of_its_site():
    how = Reading(query="select 1")
    addresses = ["sqlite:///x/north.db", "west=postgresql://u:p@h/d?sslmode=require"]
    assert sources_of([], addresses, how) == {
        "north": "sqlite:///x/north.db",
        "west": "postgresql://u:p@h/d?sslmode=require",
    }
    with pytest.raises(InputError, match="every database needs a name") as error:
        sources_of([], ["postgresql://u:secret@a/d", "postgresql://u:secret@b/d?x=1"], how)
    assert "secret" not in str(error.value)
    with pytest.raises(InputError, match="every database needs a name"):
        sources_of([], ["postgresql://u@host"], how)


@pytest.mark.parametrize(
    ("files", "database", "query"),
    [(["a"], None, "x"), (["a"], "sqlite:///a", "x"), ([], "sqlite:///a", None), ([], None, "x")],
)  # fmt: skip
def test_rows_are_in_files_or_in_a_database(files, database, query):
    with pytest.raises(InputError, match="either as files, or with --database ADDRESS and --query"):
        source_of(files, database, Reading(query=query))


def test_an_address_in_the_environment_changes_nothing_without_a_query(
    sites, tmp_path, monkeypatch
):
    monkeypatch.setenv("FEDPCA_DATABASE", "sqlite:///nowhere.db")
    assert source_of("a.csv", "sqlite:///nowhere.db", AS_STORED) == "a.csv"
    assert run("fit", *sites, "-k", 2, "-o", tmp_path / "m", "-q").exit_code == 0
