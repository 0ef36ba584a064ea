"""`fedpca check`, and a site that checks its rows before it joins."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest

import forked
from command_line import NAMES, ROWS, run, told
from processes import HANG_S, until

FRAME = pd.DataFrame(ROWS, columns=NAMES)


def test_good_files_pass_with_a_table(sites):
    done = run("check", *sites, "--list")
    assert done.exit_code == 0, done.output
    assert told(done)["findings that stop a fit"] == "0"
    assert "5 double" in done.output
    assert "Columns of north" in done.output


def test_everything_that_stops_a_fit_is_listed_at_once(sites, tmp_path):
    bad = FRAME.copy()
    bad.loc[3, "b"] = np.nan
    bad["constant"] = 1.0
    bad.to_csv(tmp_path / "west.csv", index=False)
    (tmp_path / "east.csv").write_text("a,b\n1,2\n3\n")
    FRAME.assign(name="x").to_feather(tmp_path / "text.feather")
    files = [tmp_path / name for name in ("west.csv", "east.csv", "text.feather")]
    done = run("check", *sites, *files, tmp_path / "none.csv")
    assert done.exit_code == 2
    said = done.output
    assert "stops a fit: west: contains NaN in columns b; fill in the values" in said
    assert "note: west: constant columns: constant" in said
    assert "stops a fit: west: compared with north: the columns differ: 1 extra" in said
    assert "line 3 has 1 fields, but the header has 2" in said
    assert "not numeric: name (" in said
    assert "leave them out with --drop" in said
    assert "none.csv does not exist" in said
    assert "a fit would fail; correct the problems above that stop it (5)" in said
    assert run("fit", *sites, tmp_path / "west.csv", "-o", tmp_path / "m").exit_code == 2


def test_gaps_pass_if_they_are_allowed_and_columns_if_they_are_dropped(tmp_path):
    bad = FRAME.copy()
    bad.loc[3, "b"] = np.nan
    bad.assign(ward="A").to_csv(tmp_path / "x.csv", index=False)
    assert run("check", tmp_path / "x.csv", "--drop", "ward").exit_code == 2
    done = run("check", tmp_path / "x.csv", "--drop", "ward", "--allow-missing")
    assert done.exit_code == 0
    assert "or RobustPCA" in done.output
    assert run("check", tmp_path / "x.csv", "--drop", "ward,b").exit_code == 0


def test_many_columns_are_listed_in_short(tmp_path):
    wide = np.random.default_rng(0).normal(size=(6, 30))
    wide[2, 29] = np.nan
    np.save(tmp_path / "x.npy", wide)
    done = run("check", tmp_path / "x.npy", "--list")
    assert done.exit_code == 2
    assert "... and 10 more" in done.output
    assert "29" in done.output.split("Columns of x")[1]


@pytest.mark.process
def test_a_site_with_gaps_does_not_join(tmp_path):
    bad = FRAME.copy()
    bad.loc[3, "b"] = np.nan
    bad.to_csv(tmp_path / "x.csv", index=False)
    assert run("site-key", "north", "--folder", tmp_path).exit_code == 0
    words = ["join", "localhost:1", "--data", "x.csv", "--key", "north.key", "--insecure"]
    done = forked.run(
        [sys.executable, "-m", "fedpca", *words, "--folder", "kept"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 2
    assert "site 'north': contains NaN in columns b" in done.stderr
    assert "--allow-missing" in done.stderr


@pytest.mark.process
def test_a_site_joins_with_the_columns_and_gaps_that_it_allows(tmp_path):
    rows = FRAME.assign(patient=[f"p{i}" for i in range(80)], ward="A")
    rows.loc[3, "b"] = np.nan
    rows.to_csv(tmp_path / "x.csv", index=False)
    assert run("site-key", "north", "--folder", tmp_path).exit_code == 0
    words = ["join", "localhost:1", "--data", "x.csv", "--key", "north.key", "--insecure"]
    words += ["--drop", "ward", "--id", "patient", "--allow-missing", "--folder", "kept"]
    log = tmp_path / "log"
    with log.open("wb") as file:
        site = forked.Popen(
            [sys.executable, "-m", "fedpca", *words], cwd=tmp_path, stdout=file, stderr=file
        )
    try:
        until(
            lambda: site.poll() is not None or "cannot connect" in log.read_text(),
            "a site that looks for its server",
        )
    finally:
        site.terminate()
        code = site.wait(HANG_S)
    assert code == 0
    assert "contains NaN in columns b; a fit needs missing=" in log.read_text()
    assert "80 rows with 5 features" in log.read_text()
