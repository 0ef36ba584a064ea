"""A new user's files, with ids, labels, gaps, and columns in any order, in the shell and in Python."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow.csv
import pytest

import fedpca
import forked
from fedpca.linalg.dense import sine_of_angle

TABLES = Path(__file__).parents[2] / "examples" / "tables"
JOBS = ("tumors", "wines", "diabetes", "digits")


def run(*words):
    """Run a command with the `fedpca` of this environment, and return what it printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = forked.run(
        words, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    run(sys.executable, str(TABLES / "make_tables.py"), str(folder))
    return folder


@pytest.mark.process
def test_four_jobs_end_alike_in_the_shell_and_in_python(folder):
    in_python = run(sys.executable, "-W", "error", str(TABLES / "in_python.py"), str(folder))
    assert [line.split(":")[0] for line in in_python.splitlines()] == ["tumors", *JOBS]
    in_shell = run("sh", str(TABLES / "in_the_shell.sh"), str(folder))
    assert in_shell.count("Wrote ") >= len(JOBS)
    for job in JOBS:
        typed, called = (fedpca.load(folder / f"{job}{end}.fedpca") for end in ("", "-python"))
        assert sine_of_angle(typed.components_.T, called.components_.T) < 1e-6, job
    scores = pyarrow.csv.read_csv(folder / "north-scores.csv")
    assert scores.column_names[0] == "patient"
    patients = pyarrow.csv.read_csv(folder / "north.csv")["patient"]
    assert scores["patient"].equals(patients)
    outliers = pyarrow.csv.read_csv(folder / "outliers.csv")
    assert set(outliers["site"].to_pylist()) == {"east", "center"}
    assert sorted(path.stem for path in (folder / "cultivars").iterdir()) == [
        "barbera",
        "barolo",
        "grignolino",
    ]
