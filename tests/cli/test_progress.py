"""Progress: how much is left, on a terminal and in a log."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

import forked
from fedpca.cli.progress import Estimate


def estimate_after(residuals, tol=1e-10, max_rounds=500, seconds=2.0):
    estimate = Estimate(tol, max_rounds)
    for residual in residuals:
        estimate.add({"residual": residual, "seconds": seconds})
    return estimate


def test_the_rounds_left_follow_from_the_decay_of_the_residual():
    estimate = estimate_after([None, 1e-1, 1e-2, 1e-3, 1e-4])
    assert estimate.rounds_left == 6
    assert estimate.in_words == "about 6 rounds left, 12 s"


def test_nothing_is_promised_before_there_is_a_trend():
    assert estimate_after([None, None, 1e-1, 1e-2]).rounds_left is None
    assert estimate_after([None]).in_words == ""


def test_an_estimate_never_exceeds_the_rounds_allowed():
    assert estimate_after([0.5, 0.4999, 0.4998], max_rounds=40).rounds_left == 37
    assert estimate_after([0.1, 0.2, 0.3], max_rounds=40).rounds_left == 37  # no decay
    assert estimate_after([0.1, 0.01, 0.0], max_rounds=40).rounds_left == 0
    assert estimate_after([0.1, 0.01, 0.001], tol=0.0, max_rounds=40).rounds_left == 37


def test_long_times_are_told_in_minutes_and_hours():
    assert estimate_after([1e-1, 1e-2, 1e-3], seconds=60).in_words.endswith(", 7 min")
    assert estimate_after([1e-1, 1e-2, 1e-3], seconds=3600).in_words.endswith(", 7.0 h")


@pytest.mark.process
def test_a_log_gets_plain_lines_and_a_terminal_a_bar(sites, tmp_path):
    command = [sys.executable, "-m", "fedpca", "fit", *sites, "-k", "2", "--solver", "power"]
    plain = forked.run(
        [*command, "-o", str(tmp_path / "a")], capture_output=True, text=True, check=True
    )
    assert plain.stderr.startswith("round 1: asking for column names\n")
    assert "\x1b" not in plain.stderr
    quiet = forked.run(
        [*command, "-q", "-o", str(tmp_path / "c")], capture_output=True, text=True, check=True
    )
    assert quiet.stderr == ""
    main, terminal = pty.openpty()
    forked.run(
        [*command, "-o", str(tmp_path / "b")],
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
        check=True,
    )
    os.close(terminal)
    shown = os.read(main, 1_000_000).decode()
    os.close(main)
    # a bar skips what is over within a tenth of a second, but not the last round
    assert "measuring the variance explained at each site" in shown
    assert "about 0 rounds left" in shown
