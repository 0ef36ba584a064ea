"""The scripts that put the papers' figures beside ours run, and meet their targets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PAPERS = Path(__file__).parent.parent / "papers"


@pytest.mark.parametrize(
    "script", ["sapca.py", "averaging.py", "faps.py", "perpca.py", "dcf_pca.py"]
)
def test_a_paper_is_reproduced_quickly(script, tmp_path):
    command = [sys.executable, "-W", "error", str(PAPERS / script)]
    command += ["--quick", "--check", "--figures", str(tmp_path)]
    # two workers of the tests share two cores
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("FEDPCA_DATA", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "curve only" in done.stdout
    assert list(tmp_path.glob("*.png"))
