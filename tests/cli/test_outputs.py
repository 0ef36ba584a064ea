"""An output that cannot be written ends a command before its work, not after it."""

from __future__ import annotations

import numpy as np
import pytest

from command_line import run
from disks import as_ordinary_user, full_disk
from fedpca import load

# none of the files that are read exists, so a command that does its work first says something else
COMMANDS = {
    "fit": ("fit", "rows.npy", "-o", "model"),
    "fit --journal": ("fit", "rows.npy", "-o", "{elsewhere}/model", "--journal", "journal"),
    "summarize": ("summarize", "rows.npy", "-o", "summary"),
    "merge": ("merge", "a.summary", "b.summary", "-o", "model"),
    "transform": ("transform", "m.fedpca", "rows.npy", "-o", "scores.parquet"),
    "audit --table": ("audit", "rows.npy", "--table", "leakage.csv"),
    "audit --plot": ("audit", "rows.npy", "--plot", "leakage.png"),
}


def arguments(label, folder, elsewhere):
    words = [word.format(elsewhere=elsewhere) for word in COMMANDS[label]]
    return [*words[:-1], folder / words[-1]], words[-1]


@pytest.mark.parametrize("label", [label for label in COMMANDS if label != "fit --journal"])
def test_a_full_disk_is_told_before_the_work(label, tmp_path):
    words, name = arguments(label, tmp_path, tmp_path)
    with full_disk():
        done = run(*words)
    assert done.exit_code == 2
    assert f"{tmp_path / name} cannot be written: File too large; free space" in done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("label", COMMANDS)
def test_a_folder_that_may_not_be_written_is_told_before_the_work(label):
    with as_ordinary_user() as elsewhere:
        folder = elsewhere / "folder"
        folder.mkdir(0o555)
        words, name = arguments(label, folder, elsewhere)
        done = run(*words)
    assert done.exit_code == 2
    assert f"{folder / name} cannot be written: Permission denied; free space" in done.output


def test_an_output_that_is_there_stays_until_the_new_one_is_whole(sites, tmp_path):
    model = tmp_path / "m.fedpca"
    run("fit", *sites, "-k", 2, "-q", "-o", model)
    before = model.read_bytes()
    with full_disk():
        done = run("fit", *sites, "-k", 3, "--force", "-o", model)
    assert done.exit_code == 2
    assert model.read_bytes() == before
    assert load(model).n_components_ == 2


def test_a_disk_that_fills_up_while_scores_are_written_ends_with_an_error(sites, tmp_path):
    run("fit", *sites, "-k", 2, "-q", "-o", tmp_path / "m.fedpca")
    np.save(tmp_path / "many.npy", np.random.default_rng(0).normal(size=(20_000, 5)))
    with full_disk(100_000):
        done = run("transform", tmp_path / "m.fedpca", tmp_path / "many.npy",
                   "-o", tmp_path / "s.parquet")  # fmt: skip
    assert done.exit_code == 2
    assert "s.parquet cannot be written: File too large; free space" in done.output
    assert not (tmp_path / "s.parquet").exists()


def test_a_site_whose_ledger_cannot_be_written_does_not_join(tmp_path):
    np.save(tmp_path / "rows.npy", np.eye(3))
    run("site-key", "north", "--folder", tmp_path)

    def join(folder):
        key, data = tmp_path / "north.key", tmp_path / "rows.npy"
        where = ("--data", data, "--key", key, "--folder", folder, "--insecure")
        return run("join", "localhost:1", *where)

    with full_disk():
        done = join(tmp_path / "site")
    assert done.exit_code == 2
    assert "ledger.jsonl cannot be written: File too large" in done.output
    (tmp_path / "odd" / "ledger.jsonl").mkdir(parents=True)
    done = join(tmp_path / "odd")
    assert done.exit_code == 2
    assert "ledger.jsonl is a folder; use a file name" in done.output


def test_a_key_is_not_made_where_it_cannot_be_kept(tmp_path):
    with full_disk():
        done = run("site-key", "north", "--folder", tmp_path)
    assert done.exit_code == 2
    assert f"{tmp_path / 'north.key'} cannot be written: File too large" in done.output
    assert not list(tmp_path.iterdir())
