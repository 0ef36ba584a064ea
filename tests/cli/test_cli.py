"""The command line, as people type it."""

from __future__ import annotations

import signal

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn.decomposition import PCA

from command_line import ROWS, run, told
from fedpca import FederatedPCA, PersonalizedPCA, RobustPCA, load
from fedpca.errors import SiteFailed
from fedpca.linalg.dense import sine_of_angle


def test_fit_transform_and_info(sites, tmp_path):
    model = tmp_path / "m.fedpca"
    done = run("fit", *sites, "-k", 2, "-o", model)
    assert done.exit_code == 0, done.output
    shown = told(done)
    assert (shown["components"], shown["features"], shown["rows"]) == ("2", "5", "80")
    assert shown["sites"] == "2"
    reference = PCA(2).fit(ROWS)
    assert sine_of_angle(reference.components_.T, load(model).components_.T) < 1e-9

    scores = tmp_path / "scores.parquet"
    for i, (site, rows) in enumerate(zip(sites, (ROWS[:30], ROWS[30:]), strict=True)):
        done = run("transform", model, site, "-o", scores, *(["--force"] if i else []))
        assert done.exit_code == 0, done.output
        table = pq.read_table(scores).to_pandas()
        assert list(table.columns) == ["pc1", "pc2"]
        np.testing.assert_allclose(table, reference.transform(rows), atol=1e-8)

    done = run("info", model)
    shown = told(done)
    assert shown["solver"] == "covariance"
    assert shown["stop reason"].startswith("exact (")
    assert "Share of each site's variance" in done.output


@pytest.mark.parametrize(("solver", "columns"), [("covariance", 3), ("merge", 4)])
def test_fit_shows_the_influence_of_each_site_and_the_file_does_not_keep_it(
    solver, columns, sites, tmp_path
):
    model = tmp_path / "m.fedpca"
    done = run("fit", *sites, "-k", 2, "-o", model, "--solver", solver)
    assert "Influence of each site" in done.output
    (titles,) = [
        line
        for line in done.output.splitlines()
        if "site" in line and "rows" in line and "variance" in line
    ]
    assert titles.split()[1::2] == ["site", "rows", "variance", "caused", "angle"][: columns + 1]
    (north,) = [line for line in done.output.splitlines() if "north" in line and "37.50%" in line]
    assert north.count("%") == 3
    assert "Influence of each site" not in run("info", model).output


def test_rows_without_names_are_taken_by_position_with_a_word(sites, tmp_path):
    frame = pd.read_parquet(sites[0])
    model = FederatedPCA(2).fit({"north": frame})
    model.save(tmp_path / "m.fedpca")
    np.save(tmp_path / "bare.npy", frame.to_numpy())
    done = run(
        "transform", tmp_path / "m.fedpca", tmp_path / "bare.npy", "-o", tmp_path / "s.parquet"
    )
    assert done.exit_code == 0, done.output
    assert (
        "bare.npy has no column names; its columns are assumed to be in this order: a, b, c"
        in done.output
    )


@pytest.mark.filterwarnings("ignore:misalignment_")
def test_info_names_the_parts_of_a_sites_variance_rightly(sites, tmp_path):
    rng = np.random.default_rng(0)
    model = PersonalizedPCA(1, 1).fit({name: rng.standard_normal((50, 5)) for name in "ab"})
    model.site_variance_["a"] = {"shared": 0.125, "local": 0.25, "left": 0.625}
    model.save(tmp_path / "m.fedpca")
    row = next(
        line for line in run("info", tmp_path / "m.fedpca").output.split("\n") if "12.50%" in line
    )
    assert row.index("12.50%") < row.index("25.00%") < row.index("62.50%")


def test_info_lists_what_left_a_site(sites, tmp_path):
    run("fit", *sites, "-k", "95%", "-q", "-o", tmp_path / "m")
    done = run("info", tmp_path / "m", "--ledger")
    assert "Data exchanged" in done.output
    assert "covariance" in done.output
    assert "Data exchanged with north" in run("info", tmp_path / "m", "--site", "north").output
    done = run("info", tmp_path / "m", "--site", "nowhere")
    assert done.exit_code == 2
    assert "the sites are north, south" in done.output
    assert load(tmp_path / "m").n_components == 0.95


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_fit_says_how_to_go_on(sites, tmp_path, monkeypatch, how):
    def interrupt(self, ROWS):
        signal.raise_signal(how)

    # a background job starts with SIGINT ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(FederatedPCA, "fit", interrupt)
    try:
        done = run("fit", *sites, "-o", tmp_path / "m")
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.exit_code == 130
    assert "--journal" in done.output


def test_options_of_fit(sites, tmp_path):
    model = tmp_path / "m"
    done = run(
        "fit", f"first={sites[0]}", f"second={sites[1]}", "-k", "0.99", "--solver", "lanczos",
        "--scale", "--seed", 3, "--jobs", 2, "--tol", "1e-6", "-q", "-o", model,
        "--journal", tmp_path / "j",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert done.output == ""
    fitted = load(model)
    assert fitted.run_.sites == ("first", "second")
    assert (fitted.run_.solver, fitted.scale, fitted.random_state) == ("lanczos", True, 3)
    assert (tmp_path / "j").exists()
    assert run("fit", *sites, "-k", "all", "-o", tmp_path / "n", "-q").exit_code == 0
    assert load(tmp_path / "n").n_components_ == 5


def test_weights_and_missing_values_in_files(tmp_path):
    rng = np.random.default_rng(1)
    counts = rng.integers(0, 4, len(ROWS))
    holes = np.where(rng.random(ROWS.shape) < 0.05, np.nan, ROWS)
    frame = pd.DataFrame(holes, columns=list("abcde"))
    frame.assign(w=counts)[:30].to_csv(tmp_path / "north.csv", index=False)
    frame.assign(w=counts)[30:].to_parquet(tmp_path / "south.parquet", index=False)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    files, model = [tmp_path / "north.csv", tmp_path / "south.parquet"], tmp_path / "m.fedpca"

    done = run("fit", *files, "-k", 2, "-o", model, "--weight", "w")
    assert done.exit_code == 2
    assert "NaN" in done.output
    assert "missing='mean'" in done.output
    done = run("fit", *files, "-k", 2, "-o", model, "--weight", "w", "--missing", "mean")
    assert done.exit_code == 0, done.output
    fitted = load(model)
    reference = PCA(2, svd_solver="full")
    reference.fit(np.repeat(np.where(np.isnan(holes), fitted.mean_, holes), counts, axis=0))
    np.testing.assert_allclose(fitted.explained_variance_, reference.explained_variance_)
    np.testing.assert_allclose(fitted.mean_, reference.mean_)
    scores = tmp_path / "scores.parquet"
    done = run("transform", model, tmp_path / "rows.csv", "-o", scores)
    assert done.exit_code == 0, done.output
    np.testing.assert_allclose(pq.read_table(scores).to_pandas(), fitted.transform(frame))

    done = run("fit", *files, "-k", 2, "-o", model, "--force", "--missing", "guess")
    assert done.exit_code == 2
    assert "missing" in done.output
    for option in ("--weight", "--device", "--precision", "--layer", "--mask-var"):
        done = run("fit", "--federation", "localhost", "-o", model, "--force", option, "w")
        assert done.exit_code == 2
        assert "only apply to files; each site in a federation passes them" in done.output


def test_a_device_that_does_not_exist_is_named(sites, tmp_path):
    done = run("fit", *sites, "-k", 2, "-o", tmp_path / "m", "--device", "gpu")
    assert done.exit_code == 2
    assert "device='gpu' must be 'cuda', 'cuda:1' for the second GPU" in " ".join(
        done.output.split()
    )
    done = run("fit", *sites, "-k", 2, "-o", tmp_path / "m", "--precision", "float32")
    assert done.exit_code == 2
    assert "applies to rows on a device; set device" in " ".join(done.output.split())


def test_the_default_number_of_components_is_automatic(sites, tmp_path):
    assert run("fit", *sites, "-o", tmp_path / "m", "-q").exit_code == 0
    assert load(tmp_path / "m").n_components == "auto"


def _bad(sites, tmp_path):
    (tmp_path / "bad.csv").write_text("a,b,c,d,e\n1,2,3,4,NaN\n" + "1,2,3,4,5\n" * 9)
    (tmp_path / "text.txt").write_text("x")
    model = tmp_path / "m.fedpca"
    run("fit", *sites, "-k", 2, "-q", "-o", model)
    np.save(tmp_path / "narrow.npy", np.ones((3, 2)))
    out = tmp_path / "out.parquet"
    return {
        "exists": ("fit", *sites, "-k", 2, "-o", model),
        "more components than features": ("fit", *sites, "-k", 9, "-o", tmp_path / "o"),
        "unknown rule": ("fit", *sites, "-k", "many", "-o", tmp_path / "o"),
        "missing file": ("fit", tmp_path / "none.csv", "-o", tmp_path / "o"),
        "two sites of one name": ("fit", sites[0], sites[0], "-o", tmp_path / "o"),
        "NaN": ("fit", tmp_path / "bad.csv", "-o", tmp_path / "o"),
        "no folder": ("fit", *sites, "-o", tmp_path / "no" / "o"),
        "not a journal": ("fit", *sites, "-o", tmp_path / "o", "--journal", tmp_path / "text.txt"),
        "no option": ("fit", *sites, "--frobnicate"),
        "no output": ("fit", *sites),
        "not a model": ("info", tmp_path / "text.txt"),
        "scores of no kind": ("transform", model, sites[0], "-o", tmp_path / "s.txt"),
        "other columns": ("transform", model, tmp_path / "narrow.npy", "-o", out),
        "NaN in rows": ("transform", model, tmp_path / "bad.csv", "-o", out),
    }


@pytest.mark.parametrize("name", range(14))
def test_bad_usage_and_bad_input_end_with_2_and_write_nothing(name, sites, tmp_path):
    cases = _bad(sites, tmp_path)
    before = sorted(p.name for p in tmp_path.iterdir())
    label = list(cases)[name]
    done = run(*cases[label])
    assert done.exit_code == 2, (label, done.output)
    assert "rror" in done.output
    assert "Traceback" not in done.output
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_failed_run_ends_with_1(sites, tmp_path, monkeypatch):
    from fedpca.engines.local import LocalEngine

    def ask(self, names, request, timeout):
        for name in names:
            yield name, SiteFailed("gone")

    monkeypatch.setattr(LocalEngine, "ask", ask)
    done = run("fit", *sites, "-o", tmp_path / "o")
    assert done.exit_code == 1
    assert "gone" in done.output
    assert not (tmp_path / "o").exists()


def test_demo_shows_that_federated_equals_pooled():
    done = run("demo")
    assert done.exit_code == 0
    shown = told(done)
    assert shown["rounds"] == "5"
    assert float(shown["sine of the largest angle between the two subspaces"]) < 1e-10


def test_version_and_help():
    assert run("--version").output.strip() == "0.1.0"
    assert run("--help").exit_code == 0
    for command in ("fit", "transform", "info", "demo"):
        assert command in run("--help").output


def test_more_than_twenty_components_are_listed_in_short(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((60, 25)))
    done = run("fit", tmp_path / "x.npy", "-k", 23, "-o", tmp_path / "m")
    assert "... and 3 more" in done.output


def test_info_tells_who_was_lost(tmp_path, sites):
    run("fit", *sites, "-k", 2, "-q", "-o", tmp_path / "m")
    model = load(tmp_path / "m")
    loss = {
        "site": "west",
        "round": 3,
        "question": "count_and_sum",
        "reason": "site 'west': too slow",
    }
    model.run_.lost.append(loss)
    model.save(tmp_path / "m")
    assert "Lost in round 3: site 'west': too slow" in run("info", tmp_path / "m").output


def test_brackets_in_names_are_text(tmp_path):
    frame = pd.DataFrame(ROWS, columns=["cells [/uL]", "mass [kg]", "c", "d", "e"])
    frame.to_csv(tmp_path / "x.csv", index=False)
    done = run("fit", f"a[/b]={tmp_path / 'x.csv'}", "-k", 2, "-o", tmp_path / "m")
    assert done.exit_code == 0
    assert "a[/b]" in done.output
    frame.loc[3, "mass [kg]"] = np.nan
    frame.to_csv(tmp_path / "x.csv", index=False)
    done = run("fit", tmp_path / "x.csv", "-o", tmp_path / "n")
    assert done.exit_code == 2
    assert "NaN in columns mass [kg]" in done.output


def test_a_path_with_an_equals_sign_is_a_path(tmp_path):
    np.save(tmp_path / "year=2020.npy", ROWS)
    assert (
        run("fit", tmp_path / "year=2020.npy", "-k", 2, "-q", "-o", tmp_path / "m").exit_code == 0
    )
    assert load(tmp_path / "m").run_.sites == ("year=2020",)


def test_a_folder_is_no_output_and_no_journal(sites, tmp_path):
    assert run("fit", *sites, "-o", tmp_path, "--force").exit_code == 2
    done = run("fit", *sites, "-o", tmp_path / "m", "--journal", tmp_path)
    assert done.exit_code == 2


def test_a_robust_model_is_shown_and_used(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 5))
    rows[7, 2] = 50
    np.save(tmp_path / "rows.npy", rows)
    pca = RobustPCA(2, center="none", random_state=0).fit({"a": rows[:30], "b": rows[30:]})
    pca.save(tmp_path / "m.fedpca")
    shown = run("info", tmp_path / "m.fedpca")
    assert told(shown)["threshold"].startswith(f"{pca.threshold_:.3g} (")
    assert "outliers among each site's entries" in shown.stdout
    scores = tmp_path / "scores.parquet"
    assert (
        run("transform", tmp_path / "m.fedpca", tmp_path / "rows.npy", "-o", scores).exit_code == 0
    )
    assert np.allclose(pq.read_table(scores).to_pandas(), pca.transform(rows))


def test_a_personalized_model_is_shown_and_used_for_one_site(tmp_path):
    rng = np.random.default_rng(0)
    spread = {"north": [5, 3, 2, 0.1, 0.1], "south": [5, 0.1, 0.1, 3, 2]}
    sites = {name: rng.normal(size=(30, 5)) * deviations for name, deviations in spread.items()}
    np.save(tmp_path / "north.npy", sites["north"])
    pca = PersonalizedPCA(1, 2).fit(sites)
    model, scores = tmp_path / "m.fedpca", tmp_path / "scores.parquet"
    pca.save(model)
    shown = run("info", model, "--ledger")
    assert told(shown)["components"] == "1"
    assert told(shown)["misalignment"].startswith(f"{pca.misalignment_:.3g} (")
    assert "power_step" in shown.stdout
    which = run("transform", model, tmp_path / "north.npy", "-o", scores)
    assert which.exit_code == 2
    assert "set site to one of" in " ".join(which.stderr.split())
    assert (
        run("transform", model, tmp_path / "north.npy", "-o", scores, "--site", "north").exit_code
        == 0
    )
    table = pq.read_table(scores)
    assert table.column_names == ["shared0", "local0", "local1"]
    assert np.allclose(table.to_pandas(), pca.transform(sites["north"], "north"))
    FederatedPCA(2).fit(sites).save(tmp_path / "f.fedpca")
    none = run(
        "transform", tmp_path / "f.fedpca", tmp_path / "north.npy", "-o", scores, "--site", "x"
    )
    assert none.exit_code == 2
