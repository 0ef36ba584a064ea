"""Text that came from elsewhere is printed on one line, changes no terminal, and is not endless."""

from __future__ import annotations

import json
import logging
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpca import FederatedPCA, Federation, Site
from fedpca.cli import console
from fedpca.cli.console import teller, until_stopped
from fedpca.engines.flower import server
from fedpca.engines.flower.reservations import Hold
from fedpca.errors import LinkError, QuorumLost
from fedpca.protocol.message import compose, decode, encode
from fedpca.protocol.printable import printable
from fedpca.site.answer_log import AnswerLog
from fedpca.testing.scripted import ScriptedEngine

HOSTILE = "north\x1b[2J\r\n2026-11-16 12:00:00 server: all is well\u202e\u2028\x07\x9b1m\ud800"
SHOWN = r"north\x1b[2J\r\n2026-11-16 12:00:00 server: all is well\u202e\u2028\x07\x9b1m\ud800"


@given(st.text(), st.integers(3, 300))
def test_what_is_printed_is_printable_and_bounded(text, most):
    shown = printable(text, most)
    assert shown.isprintable()
    assert len(shown) <= most
    if text.isprintable() and len(text) <= most:
        assert shown == text


def test_a_long_text_is_cut_and_what_is_kept_stays():
    assert printable("x" * 500, 10) == "x" * 7 + "..."
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"
    assert printable(HOSTILE) == SHOWN


def test_a_site_prints_a_hostile_question_on_one_line(tmp_path):
    told, path = [], tmp_path / "ledger.jsonl"
    log = AnswerLog(Site(np.ones((5, 2)), name="a"), path, told.append)
    long = HOSTILE + "x" * 200_000
    header = {"run": long, "round": long, "question": long, "verb": "sum", "n_sites": long}
    reply = decode(log.answer(encode(compose({**header, "memory": 0}, {HOSTILE: np.ones(2)}))))
    assert "error" in reply.header
    (line,) = told
    assert line.isprintable()
    assert line.startswith(rf"round {SHOWN}")
    assert len(line) < 5000
    assert len(path.read_text()) < 10_000
    assert json.loads(path.read_text())["run"].isprintable()


def test_the_coordinator_repeats_a_site_s_error_on_one_line():
    rows = {"a": np.random.default_rng(0).normal(size=(9, 3)), "b": np.eye(3)}

    def answer(reply):
        if reply.site == "a":
            return reply.answer
        header = {**reply.answer.header, "error": "InputError", "text": HOSTILE + "x" * 10_000}
        return compose(header, {})

    with pytest.raises(ValueError, match="site 'b'") as caught:
        FederatedPCA(2).fit(Federation(ScriptedEngine(rows, answer, as_bytes=False)))
    assert str(caught.value).isprintable()
    assert SHOWN in str(caught.value)
    assert len(str(caught.value)) <= 2000


def test_the_coordinator_repeats_a_site_s_false_name_on_one_line():
    rows = {"a": np.eye(3), "b": np.eye(3)}

    def answer(reply):
        return compose({**reply.answer.header, "site": HOSTILE}, dict(reply.answer.arrays))

    with pytest.raises(QuorumLost, match="the answer's site is ") as caught:
        FederatedPCA(2).fit(Federation(ScriptedEngine(rows, answer, as_bytes=False)))
    assert str(caught.value).isprintable()


def test_logs_and_errors_of_the_commands_are_printable(capsys):
    teller("site", quiet=False)(HOSTILE)
    with pytest.raises(SystemExit), until_stopped():
        raise LinkError(HOSTILE + "\nfailed twice")
    first, second, third = capsys.readouterr().err.splitlines()[:3]
    assert first.endswith(f"site: {SHOWN}")
    assert second.startswith(r"failed: north\x1b[2J\r")
    assert third.startswith("2026-11-16 12:00:00 server: all is well\\u202e\\u2028\\x07")


def test_an_exception_in_the_log_of_a_site_quotes_nothing_that_looks_like_a_line():
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record = logging.LogRecord("fedpca", 40, "", 0, "cannot answer", (), sys.exc_info())
    first, *rest = console._Indented().format(record).split("\n")
    assert first == "cannot answer"
    assert all(line.isprintable() and line.startswith("    ") for line in rest)
    assert any(r"ValueError: north\x1b[2J" in line for line in rest)


def test_flower_s_log_lines_are_printable():
    record = logging.LogRecord("flwr", logging.ERROR, "", 0, "no object %s", (HOSTILE,), None)
    assert server._escape(record)
    assert record.getMessage() == f"no object {SHOWN}"


def test_the_holder_of_a_reservation_is_named_in_printable_words():
    hold = object.__new__(Hold)
    hold._sites = ["north"]
    busy = hold._busy({"sites": ["north"], "holder": HOSTILE}, "in use:")
    assert str(busy).isprintable()
    assert "it was started by north\\x1b[2J" in str(busy)
