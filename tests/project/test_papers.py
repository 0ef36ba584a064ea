"""The scripts that put the papers' figures beside ours run, and meet their targets."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import forked

pytestmark = pytest.mark.process
PAPERS = Path(__file__).parents[2] / "papers"


SEEDS = {name: ["--seeds", "1"] for name in ("faps", "perpca")}  # one draw meets all targets


@pytest.mark.parametrize("paper", ["sapca", "averaging", "faps", "perpca", "dcf_pca"])
def test_a_paper_is_reproduced_quickly(paper, tmp_path):
    command = [sys.executable, "-W", "error", str(PAPERS / paper / "run.py"), "--quick", "--check"]
    command += ["--figures", str(tmp_path), *SEEDS.get(paper, [])]
    # workers of the tests share the cores
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("FEDPCA_DATA", None)
    done = forked.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "curve only" in done.stdout
    assert list(tmp_path.glob("*.png"))
