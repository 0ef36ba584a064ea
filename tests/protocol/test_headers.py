"""A header with any contents is refused by name at the door, at both ends, and without a traceback."""

from __future__ import annotations

import logging
import math
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpca import Policy, Site
from fedpca.errors import MessageError
from fedpca.protocol.message import (
    ANSWER,
    ECHOED,
    MAX_HEADER_BYTES,
    QUESTION,
    check_header,
    compose,
    decode,
    encode,
)
from fedpca.protocol.plan import AGREE, DECLARE
from fedpca.site.answer_log import AnswerLog
from support import draws

HEADER = {
    "run": "r.0",
    "round": 1,
    "question": "count_and_sum",
    "verb": "sum",
    "n_sites": 2,
    "memory": 0,
}
WRONG = {
    "run": [None, "", 7, ["r"], {"r": 1}, "x" * 201, "\ud800", "a\n", True],
    "round": [None, -1, 1.0, math.inf, math.nan, "1", True, [1], 1 << 49],
    "question": [None, "", 7, ["count_and_sum"], {}, "\x1b[2J"],
    "verb": [None, 7, ["sum"], "", "x" * 201],
    "n_sites": [None, -1, 2.5, "2", False, 1 << 60],
    "memory": [None, -1, "0", 0.0, [0], True],
    "mask": [
        None,
        7,
        ["bound"],
        {"n": [64]},
        {"n": [64, math.inf]},
        {"n": 64},
        {"n": [64, 1 << 70]},
    ],
}


def sites():
    rows = np.random.default_rng(0).normal(size=(20, 3))
    return [Site(rows, name="north"), Site(rows, name="north", policy=Policy())]


def answered(site, header, caplog, arrays=None):
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        answer = decode(site.answer_bytes(encode(compose(header, arrays or {}))))
    assert not [record for record in caplog.records if record.exc_info]
    assert len(caplog.records) <= 1
    return answer


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, each in WRONG.items() for v in each])
def test_an_entry_with_an_unexpected_type_or_size_is_refused_by_name(name, value, caplog):
    for site in sites():
        for header in ({**HEADER, name: value}, {**HEADER, "question": DECLARE, name: value}):
            answer = answered(site, header, caplog)
            assert answer.header["error"] == "MessageError"
            assert f"'{name}' in the message's header must be" in answer.header["text"]


@pytest.mark.parametrize("name", list(HEADER))
def test_an_entry_that_is_not_there_is_refused_by_name(name, caplog):
    lacking = {key: value for key, value in HEADER.items() if key != name}
    for site in sites():
        text = answered(site, lacking, caplog).header["text"]
        assert f"'{name}' in the message's header must be" in text


def test_the_answer_repeats_only_what_is_valid():
    long = {**HEADER, "run": "x" * (MAX_HEADER_BYTES - 300)}  # a reply with it would be too long
    answer = decode(sites()[0].answer_bytes(encode(compose(long, {}))))
    assert answer.header["run"] is None
    assert answer.header["round"] == 1


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = st.sampled_from([*QUESTION, *ANSWER, "fields_", "other"]) | st.text(max_size=8)
QUESTIONS = st.sampled_from([DECLARE, AGREE, "count_and_sum", "column_names", "squares"])


@draws(100)
@given(
    st.dictionaries(NAMES, VALUES, max_size=8),
    st.fixed_dictionaries({}, optional={name: st.just(value) for name, value in HEADER.items()}),
    st.none() | QUESTIONS,
)
def test_no_header_leads_to_an_exception_or_a_traceback(random, valid, question):
    header = {**valid, **random, **({"question": question} if question else {})}
    header.pop("fields", None)
    lines = []
    handler = logging.Handler()
    handler.emit = lines.append
    log = logging.getLogger("fedpca.site")
    log.addHandler(handler)
    try:
        for site in sites():
            decode(site.answer_bytes(encode(compose(header, {}))))
    finally:
        log.removeHandler(handler)
    assert [line.getMessage() for line in lines] == []
    with suppress(MessageError):
        check_header(header, ANSWER)


def test_the_ledger_of_a_site_records_such_a_message_in_one_line(tmp_path, caplog):
    told = []
    log = AnswerLog(sites()[1], tmp_path / "ledger.jsonl", tell=told.append)
    log.answer(encode(compose({**HEADER, "run": {"a": [1]}}, {})))
    assert len(told) == 1
    assert "not answered: 'run' in the message's header must be" in told[0]
    assert not caplog.records


def test_every_entry_that_is_echoed_is_declared():
    assert set(ECHOED) <= set(QUESTION)
