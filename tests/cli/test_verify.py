"""A command certifies a model, or names the drift and exits with 1."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from command_line import NAMES, run, told


@pytest.fixture
def model(sites, tmp_path):
    assert run("fit", *sites, "-k", "2", "-o", tmp_path / "m.fedpca", "--quiet").exit_code == 0
    return tmp_path / "m.fedpca"


def test_unchanged_files_are_certified(model, sites):
    done = run("verify", model, *sites)
    assert done.exit_code == 0
    shown = told(done)
    assert shown["verdict"].startswith("certified: the sine of the angle between")
    assert (shown["sites"], shown["rounds"]) == ("2", "4")
    assert "drifted" not in done.stdout
    assert run("verify", model, *sites, "--quiet").stdout == ""


def test_columns_that_identify_rows_need_not_be_named_again(model, sites):
    frame = pd.read_parquet(sites[0])
    frame.insert(0, "patient", [f"n{i}" for i in range(len(frame))])
    frame.to_parquet(sites[0])
    assert "certified" in run("verify", model, *sites).stdout
    assert run("diagnose", model, *sites, "--no-site-map", "--quiet").exit_code == 0


def test_changed_rows_are_drift_and_the_site_is_named_on_request(model, sites):
    frame = pd.read_parquet(sites[0])
    frame.loc[:1, NAMES[2]] += 2.0
    frame.to_parquet(sites[0])
    done = run("verify", model, *sites)
    assert done.exit_code == 1
    last = told(done)["verdict"]
    assert last.startswith("drifted: ")
    assert f"mean along '{NAMES[2]}' changed by" in last
    assert "No site is named, because the sites were not asked or did not answer." in done.stdout
    done = run("verify", model, *sites, "--by-site")
    assert told(done)["verdict"].endswith("; the rows changed at north")
    assert run("verify", model, *sites, "--tol", "10").exit_code == 0


def test_other_programs_read_the_verdict_as_json(model, sites):
    done = run("verify", model, *sites, "--json", "--by-site", "--secure")
    plain = json.loads(done.stdout)
    assert plain["certified"] is True
    assert plain["changed_sites"] is None  # since secure sums hide what each site explains
    assert {each["name"] for each in plain["statistics"]} >= {"mean", "total variance", "residual"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "specify either the sites' files or --federation HOST"),
        (["rows.csv", "--federation", "host"], "but not both"),
        (["rows.csv", "--purpose", "care"], "--purpose require --federation HOST"),
        (["--federation", "host", "--drop", "id"], "only apply to files"),
    ],
)
def test_options_that_do_not_go_together_are_refused(model, words, text):
    done = run("verify", model, *words)
    assert done.exit_code == 2
    assert text in " ".join(done.output.split())
