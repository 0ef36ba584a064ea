"""The shell diagnoses a model at its sites, and flags rows where they are."""

from __future__ import annotations

import csv
import json

import numpy as np
import pandas as pd
import pytest

from command_line import run, told
from fedpca import FederatedPCA, load

D = 12
NAMES = [f"x{j}" for j in range(D)]


def rows(rng, n, mix):
    return rng.normal(size=(n, 2)) @ mix + 0.4 * rng.normal(size=(n, D)) + 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    rng = np.random.default_rng(0)
    mix = 4 * np.linalg.qr(rng.normal(size=(D, 2)))[0].T
    for name, n in (("a", 80), ("b", 70), ("c", 90)):
        own = rows(rng, n, mix)
        if name == "b":
            own[:, 3] += 6
        np.savetxt(folder / f"{name}.csv", own, delimiter=",", header=",".join(NAMES), comments="")
    files = [folder / f"{name}.csv" for name in "abc"]
    assert (
        run("fit", *files, "-k", 3, "--solver", "lanczos", "-o", folder / "m.fedpca").exit_code == 0
    )
    return folder


def files_of(folder):
    return [folder / f"{name}.csv" for name in "abc"]


def test_the_shell_prints_what_a_diagnosis_finds(folder, tmp_path):
    more = ["--permutations", 5, "-o", tmp_path / "known.fedpca", "--plots", tmp_path / "plots"]
    more += ["--report", tmp_path / "d.html"]
    done = run("diagnose", folder / "m.fedpca", *files_of(folder), *more)
    assert done.exit_code == 0, done.stderr
    shown = told(done)
    assert shown["median of the rules"] == "2"
    assert shown["ordinary rows beyond each limit"] == "1.00%"
    assert int(shown["bytes from the sites"].replace(",", "")) > 0
    assert "permutations" in done.stdout
    assert "b stands out in its mean, along x3 +" in done.stdout
    drawn = {path.name for path in (tmp_path / "plots").iterdir()}
    assert drawn == {"scree.svg", "sites.svg", "stability.svg"}
    page = (tmp_path / "d.html").read_text()
    for text in (
        ">sign-flips</th>",
        "Their median is 2.",
        "b stands out in its mean, along x3 +",
        "Basis: residual spectrum.",
        'aria-label="How far each site is from the others"',
        "(cos2)",
    ):
        assert text in page
    before, after = load(folder / "m.fedpca"), load(tmp_path / "known.fedpca")
    assert before.residual_traces_ is None
    assert after.control_limits().basis == "residual spectrum"
    np.testing.assert_array_equal(before.components_, after.components_)
    again = run("diagnose", folder / "m.fedpca", *files_of(folder), "-o", tmp_path / "known.fedpca")
    assert again.exit_code == 2
    assert "already exists" in again.stderr


def test_the_shell_prints_json(folder):
    asked = ["diagnose", folder / "m.fedpca", *files_of(folder), "--json"]
    found = json.loads(run(*asked).stdout)
    assert found["ranks"]["by_rule"]["sign-flips"] == 2
    assert found["components"][-1]["cumulative"] > 0.9
    by_site = {each["site"]: each for each in found["sites"]}
    assert next(iter(by_site["b"]["odd"]["mean"])) == "x3"
    assert sum(found["contributions"]["pc1"].values()) == pytest.approx(1)
    closed = json.loads(run(*asked, "--no-site-map", "--alpha", 0.05).stdout)
    assert closed["sites"] is None
    assert closed["limits"]["t2"] < found["limits"]["t2"]
    hidden = run(*asked[:-1], "--secure", "--quiet")
    assert (hidden.exit_code, hidden.stdout) == (0, "")


def test_without_a_site_map_the_tables_say_what_sums_tell(folder, tmp_path):
    done = run(
        "diagnose",
        folder / "m.fedpca",
        *files_of(folder),
        "--secure",
        "--plots",
        tmp_path / "plots",
        "--report",
        tmp_path / "d.html",
    )
    assert told(done)["no map of sites"].startswith("secure sums hide")
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["scree.svg"]
    page = (tmp_path / "d.html").read_text()
    assert "There is no map of sites: secure sums hide" in page
    assert "How far each site" not in page


def test_bad_usage_is_refused(folder, tmp_path):
    both = run("diagnose", folder / "m.fedpca")
    assert "either the sites' files or --federation" in both.stderr
    far = run("diagnose", folder / "m.fedpca", "--federation", "localhost", "--drop", "x1")
    assert "only apply to files" in far.stderr
    named = run("diagnose", folder / "m.fedpca", *files_of(folder), "--report", tmp_path / "d.txt")
    assert "must end in .html" in named.stderr
    run("fit", *files_of(folder), "--kind", "robust", "-k", 2, "-o", tmp_path / "r.fedpca")
    robust = run("diagnose", tmp_path / "r.fedpca", *files_of(folder))
    assert "is a RobustPCA" in robust.stderr
    flags = run(
        "transform", tmp_path / "r.fedpca", folder / "a.csv", "-o", tmp_path / "r.csv", "--flags"
    )
    assert "has no limits for rows" in flags.stderr


@pytest.mark.parametrize("missing", ["error", "mean"])
def test_transform_flags_rows_at_the_site_that_has_them(missing, folder, tmp_path):
    model = FederatedPCA(3, missing=missing).fit([str(path) for path in files_of(folder)])
    model.save(tmp_path / "m.fedpca")
    table = np.loadtxt(folder / "a.csv", delimiter=",", skiprows=1)
    table[4] += 50
    if missing == "mean":
        table[6, 0] = np.nan
    np.savetxt(tmp_path / "own.csv", table, delimiter=",", header=",".join(NAMES), comments="")
    done = run(
        "transform",
        tmp_path / "m.fedpca",
        tmp_path / "own.csv",
        "-o",
        tmp_path / "s.csv",
        "--flags",
    )
    assert done.exit_code == 0, done.stderr
    assert "even noise" not in done.stderr
    with (tmp_path / "s.csv").open() as file:
        written = list(csv.DictReader(file))
    assert list(written[0]) == ["pc1", "pc2", "pc3", "t2", "q", "flagged"]
    flags = model.flag_rows(pd.read_csv(tmp_path / "own.csv"))
    np.testing.assert_allclose([float(row["q"]) for row in written], flags.q)
    np.testing.assert_allclose([float(row["t2"]) for row in written], flags.t2)
    assert [float(row["flagged"]) for row in written] == flags.flagged.tolist()
    assert flags.flagged[4]
    warned = run(
        "transform", folder / "m.fedpca", folder / "a.csv", "-o", tmp_path / "w.csv", "--flags"
    )
    assert "the limit of Q assumes even noise" in warned.stderr


def test_a_control_chart_of_own_rows_is_drawn(folder, tmp_path):
    asked = ["plot", folder / "m.fedpca", "control", "-o", tmp_path / "control.svg"]
    assert "control shows your own rows; give the file" in run(*asked).stderr
    done = run(*asked, "--rows", folder / "a.csv")
    assert done.exit_code == 0, done.stderr
    assert "80 rows beyond a limit" in (tmp_path / "control.svg").read_text()
    flags = load(folder / "m.fedpca").flag_rows(folder / "a.csv")
    assert flags.t2.shape == (80,)
