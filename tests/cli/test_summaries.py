"""A federation without a server: `fedpca summarize`, `merge` and `info`, as people type them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import PCA

import forked
from command_line import NAMES, ROWS, run, told
from fedpca import StreamingPCA, Summary, load
from fedpca.linalg.dense import sine_of_angle
from support import contents_of, gapped_rows, write_contents


def summarized(sites, tmp_path, *more):
    """The summaries of two sites, written by the command."""
    paths = []
    for site in sites:
        path = tmp_path / f"{len(paths)}.summary"
        done = run("summarize", site, "-k", 2, "-o", path, *more)
        assert done.exit_code == 0, done.output
        paths.append(path)
    return paths


def test_summaries_of_sites_merge_into_the_pooled_model(sites, tmp_path):
    paths = summarized(sites, tmp_path)
    model = tmp_path / "both.fedpca"
    done = run("merge", *paths, "-o", model)
    assert done.exit_code == 0, done.output
    assert told(done)["rows"] == "80"
    reference = PCA(2, svd_solver="full").fit(ROWS)
    merged = load(model)
    assert isinstance(merged, StreamingPCA)
    assert sine_of_angle(reference.components_.T, merged.components_.T) < 1e-10
    np.testing.assert_allclose(merged.explained_variance_, reference.explained_variance_)
    assert list(merged.feature_names_in_) == NAMES
    scores = tmp_path / "scores.parquet"
    assert run("transform", model, sites[1], "-o", scores).exit_code == 0
    np.testing.assert_allclose(
        abs(pd.read_parquet(scores)), abs(reference.transform(ROWS[30:])), atol=1e-8
    )


def test_info_says_what_a_summary_tells_and_how_far_it_can_be_off(sites, tmp_path):
    paths = summarized(sites, tmp_path)
    done = run("info", paths[0])
    shown = told(done)
    assert (shown["rows"], shown["components"], shown["directions kept"]) == ("30", "2", "5")
    assert "directions" in done.output
    assert "5 x 5" in done.output
    assert "do not share it" not in done.output
    assert "the components are exactly those of the pooled rows" in done.output

    few = [tmp_path / "few0.summary", tmp_path / "few1.summary"]
    for site, path in zip(sites, few, strict=True):
        run("summarize", site, "-k", 2, "--spare", 1, "-o", path)
    run("merge", *few, "-o", tmp_path / "few.fedpca")
    done = run("info", tmp_path / "few.fedpca")
    bound = load(tmp_path / "few.fedpca").angle_bound_
    assert 0 < bound < 1
    assert f"at most {bound:.1e}" in done.output
    assert "variance bound" in told(done)
    done = run("info", tmp_path / "few.fedpca", "--ledger")
    assert done.exit_code == 2
    assert "has no ledger" in done.output


def test_a_summary_of_few_rows_is_said_to_give_them_away(tmp_path):
    np.save(tmp_path / "few.npy", np.random.default_rng(0).standard_normal((3, 6)))
    done = run("summarize", tmp_path / "few.npy", "-k", 2, "-o", tmp_path / "few.summary")
    assert "do not share it" in done.output


def test_a_tree_of_aggregators_is_merging_summaries_into_summaries(sites, tmp_path):
    north, south = summarized(sites, tmp_path)
    region = tmp_path / "region.summary"
    assert run("merge", north, "-o", region, "-q").exit_code == 0
    assert Summary.load(region).n == 30
    for more in ((), ("--fan-in", 2)):
        done = run("merge", region, south, "-o", tmp_path / "all.fedpca", "--force", *more)
        assert done.exit_code == 0, done.output
        assert load(tmp_path / "all.fedpca").n_samples_seen_ == 80


@pytest.mark.parametrize("k", ["auto", "mp", "0.5", "90%", "gap", "all"])
def test_sites_may_find_their_own_rank(sites, tmp_path, k):
    done = run("summarize", sites[0], "-k", k, "-o", tmp_path / "s.summary")
    assert done.exit_code == 0, done.output
    assert 1 <= Summary.load(tmp_path / "s.summary").n_components <= 5


@pytest.mark.parametrize("k", ["auto", "mp", "0.5", "gap"])
def test_a_rule_chooses_among_the_merged_directions(sites, tmp_path, k):
    paths = summarized(sites, tmp_path)
    done = run("merge", *paths, "-k", k, "-o", tmp_path / "m.fedpca")
    assert done.exit_code == 0, done.output
    found = load(tmp_path / "m.fedpca")
    assert 1 <= found.n_components_ <= 5
    if k == "0.5":
        assert found.explained_variance_ratio_.sum() > 0.5
    done = run("merge", *paths, "-k", "many", "-o", tmp_path / "n.fedpca")
    assert done.exit_code == 2
    assert "-k many is not valid" in done.output


def test_nothing_is_overwritten_without_force(sites, tmp_path):
    paths = summarized(sites, tmp_path)
    before = paths[0].read_bytes()
    for command in (("summarize", sites[1], "-k", 2), ("merge", *paths)):
        done = run(*command, "-o", paths[0])
        assert done.exit_code == 2
        assert (
            "already exists; choose a different name, or use --force to overwrite it" in done.output
        )
        assert paths[0].read_bytes() == before
    assert run("summarize", sites[1], "-k", 2, "-o", paths[0], "--force").exit_code == 0
    assert paths[0].read_bytes() != before


def test_what_cannot_be_merged_is_refused(sites, tmp_path):
    north, south = summarized(sites, tmp_path)
    other = pd.DataFrame(np.eye(9)[:, :5], columns=[*NAMES[:4], "z"])
    other.to_csv(tmp_path / "odd.csv", index=False)
    run("summarize", tmp_path / "odd.csv", "-k", 2, "-o", tmp_path / "odd.summary")
    np.save(tmp_path / "bare.npy", np.eye(9)[:, :5])
    run("summarize", tmp_path / "bare.npy", "-k", 2, "-o", tmp_path / "bare.summary")
    run("fit", *sites, "-k", 2, "-q", "-o", tmp_path / "model.fedpca")
    arrays, header = contents_of(south)
    (tmp_path / "copy.summary").write_bytes(north.read_bytes())
    write_contents(tmp_path / "newer.summary", arrays, {**header, "format": 4})
    broken = {**arrays, "mean": np.full(5, np.nan)}
    write_contents(tmp_path / "nan.summary", broken, header)
    for name, text in {
        "odd.summary": "the columns differ: 1 missing (e), 1 extra (z)",
        "bare.summary": "one has column names and the other does not",
        "model.fedpca": "is a model, not a summary",
        "newer.summary": "has format 4; this version of fedpca reads format 3",
        "nan.summary": "has 5 values that are not finite",
        "0.summary": "use each only once",
        "copy.summary": "use each only once",
        "gone.summary": "does not exist",
    }.items():
        done = run("merge", north, tmp_path / name, "-o", tmp_path / "m.fedpca")
        assert done.exit_code == 2, name
        assert text in done.output
        assert name in done.output
        assert not (tmp_path / "m.fedpca").exists()
    done = run("merge", north, south, "-k", 6, "-o", tmp_path / "m.fedpca")
    assert done.exit_code == 2
    assert "n_components=6 must be between 1 and 5, the number of features" in done.output


def test_merging_takes_k_and_refuses_what_holds_no_rows(sites, tmp_path):
    paths = summarized(sites, tmp_path)
    done = run("merge", *paths, "-k", 1, "-o", tmp_path / "one.summary")
    assert done.exit_code == 0, done.output
    assert Summary.load(tmp_path / "one.summary").n_components == 1
    np.save(tmp_path / "none.npy", np.empty((0, 5)))
    run("summarize", tmp_path / "none.npy", "-k", 2, "-o", tmp_path / "none.summary")
    done = run("merge", tmp_path / "none.summary", "-o", tmp_path / "m.fedpca")
    assert done.exit_code == 2
    assert "contain no rows" in done.output
    done = run("info", tmp_path)
    assert done.exit_code == 2
    assert "is a folder" in done.output
    for k in ("foo", "150%", "0%", "-1"):
        done = run("summarize", sites[0], "-k", k, "-o", tmp_path / "k.summary")
        assert done.exit_code == 2, k
        assert f"-k {k} is not valid" in done.output


def test_bad_rows_are_refused_before_anything_is_written(tmp_path):
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n3,\n5,6\n")
    done = run("summarize", tmp_path / "bad.csv", "-k", 1, "-o", tmp_path / "s.summary")
    assert done.exit_code == 2
    assert "NaN in columns b" in done.output
    done = run("summarize", tmp_path / "bad.csv", "-k", 9, "-o", tmp_path / "s.summary")
    assert done.exit_code == 2
    assert "n_components=9 must be between 1 and 2, the number of features" in done.output
    assert not list(tmp_path.glob("*.summary"))


@pytest.mark.process
def test_a_terminal_shows_how_many_rows_were_read(tmp_path):
    np.save(tmp_path / "rows.npy", gapped_rows(np.random.default_rng(0), 70, 4, 2))
    command = [sys.executable, "-m", "fedpca", "summarize", str(tmp_path / "rows.npy")]
    command += ["-k", "2", "-o", str(tmp_path / "s.summary")]
    master, slave = pty.openpty()
    done = forked.run(command, stdout=subprocess.DEVNULL, stderr=slave)
    os.close(slave)
    assert done.returncode == 0
    assert "70 of about 70 rows" in os.read(master, 10_000).decode()
    os.close(master)


@pytest.mark.parametrize("missing", ["mean", "drop"])
def test_a_summary_and_an_audit_treat_missing_values_as_they_are_told(missing, tmp_path):
    rows = np.array(ROWS)
    rows[::9, 1] = np.nan
    paths = [tmp_path / "north.npy", tmp_path / "south.npy"]
    np.save(paths[0], rows[:40])
    np.save(paths[1], rows[40:])
    words = ("summarize", paths[0], "-k", 2, "-q", "-o", tmp_path / "s.summary")
    assert "NaN" in run(*words).output
    assert run(*words, "--missing", missing).exit_code == 0
    expected = Summary.of(rows[:40], 2, missing=missing)
    np.testing.assert_array_equal(Summary.load(tmp_path / "s.summary").mean, expected.mean)
    attack = ("audit", *paths, "--solver", "covariance", "-k", 2, "--refits", 0, "-q")
    assert "NaN" in run(*attack).output
    done = run(*attack, "--missing", missing)
    assert done.exit_code == 0, done.output
    assert run(*attack, "--lying", "--missing", missing).exit_code == 2
