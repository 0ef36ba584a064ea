"""What `fedpca info` shows of a model, for people and for programs."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pandas as pd
import pytest

from command_line import ROWS, run
from fedpca import FederatedPCA, PersonalizedPCA, load

LONG = [f"{name} at the beginning of the examination" for name in "abcde"]


@pytest.fixture
def model(tmp_path):
    frames = {"north": ROWS[:30], "a hospital with a very long name indeed": ROWS[30:]}
    frames = {site: pd.DataFrame(rows, columns=LONG) for site, rows in frames.items()}
    FederatedPCA(2, random_state=0).fit(frames).save(tmp_path / "m.fedpca")
    return tmp_path / "m.fedpca"


def test_the_features_with_the_largest_loadings_are_named_in_full(model):
    shown = run("info", model).output
    loadings = load(model).components_[0]
    first = int(np.abs(loadings).argmax())
    assert f"│ 1         │ {LONG[first]} {loadings[first]:+.2f}, " in shown
    for name in LONG:
        assert name in shown


def test_features_without_names_are_shown_by_their_position(tmp_path):
    FederatedPCA(1).fit({"a": ROWS}).save(tmp_path / "m")
    assert "column 0 " in run("info", tmp_path / "m").output


def test_names_are_folded_on_a_narrow_terminal_and_never_cut(model):
    from rich.console import Console

    from fedpca.cli.terminal import print_facts

    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=60, no_color=True, markup=False)
    print_facts(console, load(model).facts())
    shown = text.getvalue()
    assert "…" not in shown
    words = " ".join(shown.replace("│", " ").split())
    assert all(name in words for name in LONG)


def test_a_long_question_is_not_cut_in_the_ledger(model):
    shown = run("info", model, "--ledger").output
    assert "…" not in shown
    assert "covariance_triangle" in shown


def test_components_as_csv(model):
    lines = list(csv.DictReader(io.StringIO(run("info", model, "--csv").stdout)))
    fitted = load(model)
    assert len(lines) == 2 * len(LONG)
    assert [line["feature"] for line in lines[:5]] == LONG
    shown = np.array([float(line["loading"]) for line in lines]).reshape(2, 5)
    np.testing.assert_array_equal(shown, fitted.components_)
    assert float(lines[5]["share"]) == fitted.explained_variance_ratio_[1]


def test_everything_as_json(model):
    shown = json.loads(run("info", model, "--json", "--ledger").stdout)
    fitted = load(model)
    assert shown["kind"] == "FederatedPCA"
    assert shown["run"]["sites"] == list(fitted.run_.sites)
    assert shown["site_variance_ratio"] == fitted.site_variance_ratio_
    assert list(shown["components"][1]["loadings"].values()) == list(fitted.components_[1])
    assert sum(entry["bytes"] for entry in shown["ledger"]) == (
        fitted.run_.bytes_up + fitted.run_.bytes_down
    )


def test_the_ledger_as_csv(model):
    shown = run("info", model, "--csv", "--site", "north").stdout
    lines = list(csv.DictReader(io.StringIO(shown)))
    totals = load(model).run_.ledger.totals("north")
    assert [int(line["bytes"]) for line in lines] == [total.bytes for total in totals]
    assert run("info", model, "--csv", "--site", "nowhere").exit_code == 2
    assert run("info", model, "--csv", "--json").exit_code == 2


@pytest.mark.filterwarnings("ignore:misalignment_")
def test_local_components_name_their_site_in_csv_and_json(tmp_path):
    rng = np.random.default_rng(0)
    pca = PersonalizedPCA(1, 1).fit({name: rng.normal(size=(50, 5)) for name in "xy"})
    pca.save(tmp_path / "m")
    lines = list(csv.DictReader(io.StringIO(run("info", tmp_path / "m", "--csv").stdout)))
    assert [(line["site"], line["component"]) for line in lines[::5]] == [
        ("", "shared0"),
        ("x", "local0"),
        ("y", "local0"),
    ]
    shown = json.loads(run("info", tmp_path / "m", "--json").stdout)
    assert [c.get("site") for c in shown["components"]] == [None, "x", "y"]


def test_numbers_that_json_lacks_are_null(tmp_path):
    rng = np.random.default_rng(0)
    spread = {"x": [9, 5, 1, 0.1, 0.1], "y": [9, 0.1, 0.1, 5, 1]}
    sites = {name: rng.normal(size=(50, 5)) * by for name, by in spread.items()}
    PersonalizedPCA(1, 1).fit(sites).save_site("x", tmp_path / "x")
    assert json.loads(run("info", tmp_path / "x", "--json").stdout)["misalignment"] is None


def test_a_summary_as_csv_and_json(tmp_path):
    np.save(tmp_path / "x.npy", ROWS)
    run("summarize", tmp_path / "x.npy", "-k", 2, "-o", tmp_path / "x.summary")
    assert json.loads(run("info", tmp_path / "x.summary", "--json").stdout)["n_rows"] == len(ROWS)
    assert run("info", tmp_path / "x.summary", "--csv").stdout.count("\n") == 11
