"""A command certifies a model, or names the drift and exits with 1."""

from __future__ import annotations

import json

import anndata
import numpy as np
import pandas as pd
import pytest

from command_line import NAMES, ROWS, run, told


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


KINDS = (
    ".parquet", ".feather", ".arrow", ".csv", ".tsv", ".csv.gz", ".tsv.gz", ".h5ad"
)  # fmt: skip


def write_with_id(frame, folder, kind):
    """Write a table with one column more, which was not in the fit."""
    path = folder / f"north{kind}"
    more = frame.assign(extra=np.arange(len(frame)) ** 2.0)
    if kind == ".h5ad":
        anndata.AnnData(more.to_numpy(), var=pd.DataFrame(index=more.columns)).write(path)
    elif kind == ".parquet":
        more.to_parquet(path)
    elif kind in (".feather", ".arrow"):
        more.to_feather(path)
    else:
        more.to_csv(path, index=False, float_format="%.17g", sep="\t" if ".tsv" in kind else ",")
    return path


@pytest.mark.parametrize("in_folder", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_were_not_in_the_fit_are_left_out_in_every_format(
    kind, in_folder, model, sites, tmp_path
):
    folder = tmp_path / "north" if in_folder else tmp_path
    folder.mkdir(exist_ok=True)
    path = write_with_id(pd.read_parquet(sites[0]), folder, kind)
    named = f"north={folder if in_folder else path}"
    done = run("verify", model, named, sites[1])
    assert "certified" in done.stdout, done.output
    assert run("diagnose", model, named, sites[1], "--no-site-map", "--quiet").exit_code == 0


def test_arrays_without_names_are_taken_in_the_order_of_the_model(tmp_path):
    np.save(tmp_path / "a.npy", ROWS)
    assert run("fit", tmp_path / "a.npy", "-k", 2, "-q", "-o", tmp_path / "m").exit_code == 0
    assert "certified" in run("verify", tmp_path / "m", tmp_path / "a.npy").stdout


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
        (["rows.csv", "--purpose", "care"], "--purpose: these options require --federation HOST"),
        (["--federation", "host", "--drop", "id"], "only apply to files"),
    ],
)
def test_options_that_do_not_go_together_are_refused(model, words, text):
    done = run("verify", model, *words)
    assert done.exit_code == 2
    assert text in " ".join(done.output.split())
