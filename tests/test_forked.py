"""A forked process is one of its own, which its parent can end and wait for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import forked
from processes import HANG_S, processes_within

pytestmark = pytest.mark.process
TELL = "import os, sys; print(os.getcwd(), os.environ['GIVEN'], sys.argv[1]); sys.exit(3)"
WAIT = "import sys; print('ready', flush=True); sys.stdin.read()"


def started(words, **options):
    """Start a process with pipes, and come back once it is ready."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = forked.Popen([sys.executable, *words], **pipes, **options)
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_forked_process_has_what_it_was_given_and_reports_its_end(tmp_path):
    words = [sys.executable, "-c", TELL, "an argument"]
    given = {**os.environ, "GIVEN": "a value"}
    done = forked.run(words, cwd=tmp_path, env=given, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout == f"{tmp_path} a value an argument\n"
    apart = subprocess.run(words, cwd=tmp_path, env=given, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (apart.returncode, apart.stdout)
    assert "GIVEN" not in os.environ


def test_a_warning_ends_a_forked_process_where_it_would_end_another():
    words = ["-c", "import warnings; warnings.warn('old', DeprecationWarning, stacklevel=1)"]
    for options, code in ([], 0), (["-W", "error"], 1):
        done = forked.run([sys.executable, *options, *words], capture_output=True, text=True)
        assert done.returncode == code
        assert "DeprecationWarning: old" in done.stderr


def test_a_forked_process_is_a_child_that_signals_reach_and_that_a_search_finds(tmp_path):
    for number in (signal.SIGKILL, signal.SIGTERM):
        with started(["-c", WAIT], cwd=tmp_path) as process:
            assert len(list(processes_within(tmp_path))) == 1
            process.send_signal(number)
            assert process.wait(HANG_S) == -number
        assert not list(processes_within(tmp_path))


def test_a_process_is_not_forked_where_python_would_start_differently():
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    words = [sys.executable, "-c", "import sys; print('fedpca' in sys.modules)"]
    forks, starts = (
        forked.run(words, env=env, capture_output=True, text=True).stdout.strip()
        for env in (None, environment)
    )
    assert (forks, starts) == (str(sys.platform == "linux"), "False")
