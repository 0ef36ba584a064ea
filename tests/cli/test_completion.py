"""Shells complete commands, options, and values; help and completion import no command for a list."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import forked

SHELLS = ("bash", "zsh", "fish")


def completed(shell, words):
    """Return what a process of its own suggests after words, as a shell would ask it."""
    line = " ".join(["fedpca", *words])
    asked = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words))},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    code = "import sys; sys.argv[0] = 'fedpca'; from fedpca.cli.app import app; app()"
    done = forked.run(
        [sys.executable, "-c", code],
        env={**os.environ, **asked, "_FEDPCA_COMPLETE": f"complete_{shell}"},
        capture_output=True,
        text=True,
    )
    assert not done.stderr
    return done.stdout


@pytest.mark.process
@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete_commands_options_and_values(shell):
    assert "diagnose" in completed(shell, ["di"])
    assert "--on-refusal" in completed(shell, ["fit", "--on-r"])
    shown = completed(shell, ["fit", "--kind", "robust", "--solver", "d"])
    assert "dcf" in shown
    assert "lanczos" not in shown
    assert "subspace-iteration" in completed(shell, ["audit", "--solver", "s"])
    assert "personalized" in completed(shell, ["policy", "--kind", "p"])
    assert "mean" in completed(shell, ["fit", "--missing", "m"])


PROOF = """
import sys
from typer.testing import CliRunner
from fedpca.cli.app import COMMANDS, FITTING, app
shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
assert all(f" {name} " in shown for name in COMMANDS), shown
assert all(f" {panel} " in shown for panel in COMMANDS.values()), shown
assert "Fit components to the rows at several sites." in shown
loaded = {"scipy", "sklearn", "pyarrow", "pandas", "fedpca.solvers"} & sys.modules.keys()
assert not loaded, loaded
"""


@pytest.mark.process
def test_the_list_of_commands_imports_none_of_them():
    # a forked process would have imported everything already
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROOF], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
