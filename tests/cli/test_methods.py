"""Personalized and robust fits in the shell, on files and over a federation."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from command_line import run
from fedpca import PersonalizedPCA, RobustPCA, load
from processes import Processes

NAMES = ["a", "b", "c", "d", "e", "f"]
SITES = ("north", "south", "west")


@pytest.fixture
def tables():
    """Each site has two effects in common with the others, and a disturbance and an outlier."""
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.normal(size=(6, 6)))[0].T
    tables = {}
    for i, site in enumerate(SITES):
        shared = rng.normal(size=(50, 2)) * [4, 3] @ directions[:2]
        own = rng.normal(size=(50, 1)) * 2 * directions[2 + i]
        rows = 5 + shared + own + 0.05 * rng.normal(size=(50, 6))
        tables[site] = pd.DataFrame(rows, columns=NAMES)
    return tables


@pytest.fixture
def files(tables, tmp_path):
    for i, (site, table) in enumerate(tables.items()):
        table[list(np.roll(NAMES, i))].to_parquet(tmp_path / f"{site}.parquet")
    return [str(tmp_path / f"{site}.parquet") for site in SITES]


def spoil(tables):
    """Put one wrong entry into each table, and return where."""
    places = {"north": (7, "c"), "south": (20, "a"), "west": (33, "f")}
    for site, (row, column) in places.items():
        tables[site].loc[row, column] += 80
    return places


def test_a_personalized_fit_equals_that_of_python(files, tables, tmp_path):
    done = run(
        "fit", *files, "--kind", "personalized", "--shared", 2, "--local", 1, "--seed", 0,
        "-o", tmp_path / "m.fedpca", "--local-models", tmp_path / "own",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    ours = load(tmp_path / "m.fedpca")
    theirs = PersonalizedPCA(2, 1, random_state=0).fit(tables)
    np.testing.assert_allclose(ours.components_, theirs.components_, atol=1e-10)
    assert list(ours.local_components_) == list(SITES)
    assert "shared0" in done.output
    lines = [line.replace("│", " ").split()[:2] for line in done.output.splitlines()]
    assert ["north", "local0"] in lines

    own = load(tmp_path / "own" / "north.fedpca")
    assert list(own.local_components_) == ["north"]
    np.testing.assert_array_equal(own.local_components_["north"], ours.local_components_["north"])
    assert np.isnan(own.misalignment_)
    assert not own.run_.sites  # nothing about the others
    np.testing.assert_allclose(own.explained_variance_ratio_, ours.explained_variance_ratio_)


def test_ranks_and_other_parameters_can_be_typed(files, tmp_path):
    done = run(
        "fit", *files, "--kind", "personalized", "--shared", 1, "--local",
        "north=2, south=1,west=0", "--solver", "stiefel", "--option", "retraction=qr",
        "--parameter", "center=common", "--parameter", "n_init=1", "-q", "-o", tmp_path / "m",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    model = load(tmp_path / "m")
    assert {site: len(V) for site, V in model.local_components_.items()} == {
        "north": 2,
        "south": 1,
        "west": 0,
    }
    assert (model.center, model.n_init, model.solver.retraction) == ("common", 1, "qr")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("rank", [("-k", 3), ("--max-components", 4)])
def test_a_robust_fit_lists_its_outliers(files, tables, tmp_path, suffix, rank):
    places = spoil(tables)
    for path, site in zip(files, SITES, strict=True):
        tables[site].to_parquet(path)
    listed = tmp_path / f"outliers{suffix}"
    done = run(
        "fit", *files, "--kind", "robust", *rank, "--seed", 0, "-o", tmp_path / "m",
        "--outliers", listed,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    model = load(tmp_path / "m")
    if suffix == ".csv":
        table = pd.read_csv(listed, float_precision="round_trip")  # pandas 2 reads other last bits
    else:
        table = pd.read_parquet(listed)
    assert list(table) == ["site", "row", "column", "value", "fitted", "score"]
    largest = table.sort_values("score", ascending=False).groupby("site").first()
    assert {s: (r, c) for s, r, c in largest[["row", "column"]].itertuples()} == places
    for site, own in table.groupby("site"):
        scores = model.outlier_scores(tables[site])
        at = [(r, NAMES.index(c)) for r, c in own[["row", "column"]].itertuples(index=False)]
        assert at == [tuple(map(int, where)) for where in np.argwhere(scores.cells.to_numpy() > 1)]
        cells = tuple(np.transpose(at))
        np.testing.assert_allclose(own["score"], scores.cells.to_numpy()[cells])
        np.testing.assert_array_equal(own["value"], tables[site].to_numpy()[cells])
        fitted = model.split(tables[site]).low_rank.to_numpy()[cells]
        np.testing.assert_allclose(own["fitted"], fitted)


def test_robust_scores_of_a_file_are_written_without_a_warning(files, tmp_path):
    model, scores = tmp_path / "m.fedpca", tmp_path / "s.csv"
    assert run("fit", *files, "--kind", "robust", "-k", 2, "-o", model).exit_code == 0
    done = run("transform", model, str(files[0]).split("=")[-1], "-o", scores)
    assert done.exit_code == 0, done.output
    assert "warning" not in done.output.lower()


CASES = {
    "no ranks": (["--kind", "personalized"], "--shared 2 --local 1"),
    "no local rank": (["--kind", "personalized", "--shared", 2], "--shared 2 --local 1"),
    "-k of a personalized fit": (
        ["--kind", "personalized", "--shared", 2, "--local", 1, "-k", 2],
        "-k does not apply to --kind personalized",
    ),
    "local rank in words": (
        ["--kind", "personalized", "--shared", 2, "--local", "one"],
        "--local one must be a number",
    ),
    "no rank": (["--kind", "robust"], "either -k"),
    "two ranks": (["--kind", "robust", "-k", 2, "--max-components", 3], "either -k"),
    "shared of a plain fit": (["--shared", 2], "--shared does not apply to --kind pca"),
    "outliers of a plain fit": (
        ["--outliers", "o.csv"],
        "--outliers does not apply to --kind pca",
    ),
    "outliers of no known format": (
        ["--kind", "robust", "-k", 2, "--outliers", "o.xls"],
        "o.xls must end in .csv or .parquet",
    ),
    "weights of a robust fit": (
        ["--kind", "robust", "-k", 2, "--weight", NAMES[0]],
        "--weight does not apply to --kind robust",
    ),
    "weights in a column that is dropped": (
        ["--drop", NAMES[0], "--weight", NAMES[0]],
        f"column {NAMES[0]} is listed in drop or id",
    ),
    "unknown parameter": (["--parameter", "speed=9"], "no parameter speed"),
    "unknown method": (["--kind", "magic"], "magic"),
    "both formats": (["--csv", "--json"], "mutually exclusive"),
    "gather on files": (
        ["--kind", "personalized", "--shared", 1, "--local", 1, "--gather"],
        "--gather requires --federation",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_options_that_do_not_suit_the_method_are_refused(name, files, tmp_path):
    words, told = CASES[name]
    done = run("fit", *files, *words, "-o", tmp_path / "m")
    assert done.exit_code == 2, done.output
    assert told in " ".join(done.output.split())
    assert not (tmp_path / "m").exists()


def test_local_models_and_outliers_are_not_overwritten_by_accident(files, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "x.fedpca").write_text("kept")
    (tmp_path / "o.csv").write_text("kept")
    personalized = ("--kind", "personalized", "--shared", 1, "--local", 1)
    done = run(
        "fit", *files, *personalized, "-o", tmp_path / "m", "--local-models", tmp_path / "own"
    )
    assert done.exit_code == 2
    assert "already contains models" in done.output
    robust = ("--kind", "robust", "-k", 2, "--outliers", tmp_path / "o.csv")
    assert run("fit", *files, *robust, "-o", tmp_path / "m").exit_code == 2
    assert (tmp_path / "o.csv").read_text() == "kept"


def test_a_fit_prints_its_result_as_json(files, tmp_path):
    done = run("fit", *files, "--kind", "robust", "-k", 2, "--json", "-o", tmp_path / "m")
    shown = json.loads(done.stdout)
    model = load(tmp_path / "m")
    assert shown["kind"] == "RobustPCA"
    assert shown["threshold"] == model.threshold_
    assert [c["share"] for c in shown["components"]] == list(model.explained_variance_ratio_)


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:solver .* stopped at max_rounds=5")
def test_over_a_federation_local_models_and_outliers_stay_at_the_sites(tables, files, tmp_path):
    places = spoil(tables)
    folder = tmp_path / "federation"
    folder.mkdir()
    for site, table in tables.items():
        table.to_parquet(folder / f"{site}.parquet")
    opened = 'allow = ["federated", "personalized", "robust"]\ngather = true\n'
    opened += 'max_share = "unlimited"\n'  # outliers dominate columns, which is why one is here
    (folder / "policy.toml").write_text(f"{opened}end = true\n")
    running = Processes(folder, SITES)
    try:
        for site in SITES:
            running.join(site, f"{site}.parquet", "--policy", "policy.toml")
        far = ("--federation", running.address, "--credentials", "tls", "--wait", "900")
        robust = ("--kind", "robust", "-k", "3", "--seed", "0")
        robust += ("--max-rounds", "5")  # far from the end, but the same messages
        refused = running.run("fit", *far, *robust, "-o", "x", "--outliers", "o.csv", check=False)
        assert refused.returncode == 2
        assert "each site keeps its local model" in " ".join(refused.stderr.split())
        running.run("fit", *far, *robust, "-o", "robust.fedpca")
        personal = ("--kind", "personalized", "--shared", "2", "--local", "1")
        personal += ("--max-rounds", "5")
        shown = running.run("fit", *far, *personal, "-o", "personal.fedpca")
        assert "at the site" in shown.stdout
        gathered = running.run("fit", *far, *personal, "--gather", "-o", "gathered.fedpca", "-q")
        assert gathered.stdout == ""
    finally:
        running.stop_all()
    here = RobustPCA(3, max_rounds=5, random_state=0).fit(tables)
    np.testing.assert_array_equal(here.components_, load(folder / "robust.fedpca").components_)
    assert load(folder / "personal.fedpca").local_components_ == {}
    assert list(load(folder / "gathered.fedpca").local_components_) == list(SITES)
    for site, (row, column) in places.items():
        store = folder / "home" / "sites" / site
        (own,) = store.glob("*.outliers.parquet")
        assert own.stat().st_mode & 0o777 == 0o600
        first = pq.read_table(own).to_pandas().sort_values("score", ascending=False).iloc[0]
        assert (first["site"], first["row"], first["column"]) == (site, row, column)
        assert first["value"] == tables[site].loc[row, column]
        (model,) = store.glob("*.fedpca")
        assert list(load(model).local_components_) == [site]
