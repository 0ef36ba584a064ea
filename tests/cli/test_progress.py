"""Progress: how much is left, on a terminal and in a log."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

import pytest
from rich.console import Console

import forked
from command_line import run
from fedpca.cli import progress
from fedpca.facts import size
from fedpca.report.remaining import Remaining


def estimate_after(residuals, tol=1e-10, max_rounds=500, seconds=2.0):
    estimate = Remaining(tol, max_rounds)
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


def test_what_is_left_of_a_file_follows_from_what_was_read():
    assert progress.in_words(1000, 4000, "rows", 2.0) == "1,000 of about 4,000 rows, 6 s left"
    assert progress.in_words(10, 4000, "rows", 2.0) == "10 of about 4,000 rows"  # too early to say
    assert progress.in_words(5000, 4000, "rows", 2.0).endswith("5,000 rows, 0 s left")  # a guess
    assert progress.in_words(5000, None, "rows", 2.0) == "5,000 rows"


def test_sizes_are_told_in_the_unit_that_suits_them():
    assert [size(n) for n in (5, 5e3, 5e6, 5e9)] == ["5 bytes", "5.0 kB", "5.0 MB", "5.0 GB"]


@pytest.fixture
def screen(monkeypatch):
    """A terminal, and what was written to it."""
    text = io.StringIO()
    monkeypatch.setattr(
        progress, "err", Console(file=text, force_terminal=True, width=200, _environ={})
    )
    return text


def test_commands_that_read_files_show_a_bar_on_a_terminal(screen, sites, tmp_path):
    summaries = []
    for number, path in enumerate(sites):
        summaries.append(tmp_path / f"{number}.summary")
        run("summarize", path, "-k", 2, "-o", summaries[-1])
    assert "30 of about 30 rows" in screen.getvalue()
    run("merge", *summaries, "-o", tmp_path / "m.fedpca")
    assert "2 of about 2 summaries" in screen.getvalue()
    run("transform", tmp_path / "m.fedpca", sites[0], "-o", tmp_path / "s.csv")
    assert "writing scores" in screen.getvalue()
    run("check", *sites)
    assert "reading south" in screen.getvalue()
    before = len(screen.getvalue())
    run("summarize", sites[0], "-k", 2, "-o", tmp_path / "q.summary", "-q")
    assert len(screen.getvalue()) == before


def test_an_audit_shows_which_solver_it_attacks(screen, sites):
    run("audit", *sites, "-k", 2, "--solver", "covariance", "--solver", "merge", "--refits", 0)
    assert "attacking merge" in screen.getvalue()
    assert "1 of about 2 solvers" in screen.getvalue()


def test_a_bar_says_how_many_sites_have_answered(screen):
    about = {"round": 1, "question": "count_and_sum", "sites": ("a", "b")}
    with progress.progress(False, tol=1e-10, max_rounds=5) as shown:
        for site in (None, "a", "b"):
            shown.on_answer({**about, "site": site})
    assert "0 of 2 sites" in screen.getvalue() or "1 of 2 sites" in screen.getvalue()
    with progress.progress(True, tol=1e-10, max_rounds=5) as shown:
        assert shown == (None, None)


@pytest.mark.process
def test_a_log_gets_plain_lines_and_a_terminal_a_bar(sites, tmp_path):
    command = [
        sys.executable,
        "-m",
        "fedpca",
        "fit",
        *sites,
        "-k",
        "2",
        "--solver",
        "subspace-iteration",
    ]
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
