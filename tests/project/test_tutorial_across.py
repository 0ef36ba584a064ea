"""The tutorial of a federation across organizations runs as written, with real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedpca import load
from fedpca.cli.demo_federation import free_port
from processes import HANG_S

pytestmark = pytest.mark.process
PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "across-organizations.md"
BLOCK = re.compile(r"```(python|sh)\n(.*?)```", re.DOTALL)
SECONDS = HANG_S


def script_of(page: Path, port: int) -> str:
    """The page's blocks in their order, for one shell, so that what runs in the background goes on.

    The page uses the usual port, which another process of this machine may have. No variable of the
    environment names another one, so the words that do are put in here; nothing else is changed.
    """
    parts = ["set -eu"]
    for kind, code in BLOCK.findall(page.read_text()):
        code = code.replace("localhost", f"localhost:{port}")
        code = code.replace("fedpca serve", f"fedpca serve --port {port}")
        parts.append(f"python - <<'PYTHON'\n{code}PYTHON" if kind == "python" else code)
    return "\n".join(parts)


def has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_tutorial_runs_from_keys_to_models_and_leaves_no_process(tmp_path):
    script, log = tmp_path / "tutorial.sh", tmp_path / "tutorial.log"
    script.write_text(script_of(PAGE, free_port()))
    work = tmp_path / "work"
    work.mkdir()
    lacking = tmp_path / "lacking"  # what the installation that the page names does not bring
    lacking.mkdir()
    (lacking / "pandas.py").write_text("raise ImportError('not installed')")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{lacking}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "FEDPCA_HOME": str(work / "kept"),
        "OPENBLAS_NUM_THREADS": "1",
    }
    # to a file: what is left in the background would hold a pipe open
    with log.open("w") as output:
        shell = subprocess.Popen(
            ["bash", str(script)],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = shell.wait(timeout=SECONDS)
        until = time.monotonic() + HANG_S  # what ended is taken away by init, in its own time
        while has_members(shell.pid) and time.monotonic() < until:
            time.sleep(0.1)
        assert code == 0, log.read_text()[-5000:]
        assert not has_members(shell.pid), "the last block left processes behind"
    finally:
        if has_members(shell.pid):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
    told = log.read_text()
    assert "Traceback" not in told, told
    assert load(work / "model.fedpca").run_.sites == ("north", "south", "west")
    assert load(work / "two.fedpca").run_.sites == ("north", "south")
    assert load(work / "long.fedpca").run_.stop_reason == "converged"
    # west's rule, kept in every fit
    assert "the policy does not let the coordinator see this site's own answer" in told
    # the fit that was killed had asked, and the second one did not ask the same again
    assert told.count("west: round 1, column_names") == len(
        set(re.findall(r'"run": "(\w+\.0)"', (work / "kept/sites/west/ledger.jsonl").read_text()))
    )
