"""A question that takes too long is ended, and the site goes on as if it had not been asked."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest

from fedpca import FederatedPCA, Federation, Site
from fedpca.protocol.message import decode, encode
from fedpca.protocol.question import find_question
from fedpca.site.answer_log import AnswerLog
from fedpca.site.time_limit import interrupted_after
from fedpca.testing.scripted import ScriptedEngine
from processes import HANG_S

LIMIT_S = 0.5


@pytest.fixture
def endless(monkeypatch):
    """Let the first question of a name change the site's memory and then never end."""

    def replace(name, loop):
        question = find_question(name)
        usual = question.function

        def first(site, **arrays):
            answer = usual(site, **arrays)  # which changes the memory of a question that remembers
            if signal.getitimer(signal.ITIMER_REAL)[0]:
                object.__setattr__(question, "function", usual)
                loop()
            return answer  # of the scripted engine's own site, which has no time limit

        monkeypatch.setattr(type(question), "__setattr__", object.__setattr__)
        monkeypatch.setattr(question, "function", first)

    return replace


def forever():
    while True:
        np.ones(100).sum()


def forever_but_for_one_error():
    """As a careless question would that catches what it should not."""
    try:
        forever()
    except Exception:
        forever()


def fit_with_log(tmp_path, timeout):
    rng = np.random.default_rng(0)
    rows = {"a": rng.normal(size=(30, 5)), "b": rng.normal(size=(20, 5))}
    told = []
    logs = {
        name: AnswerLog(Site(X, name=name), tmp_path / f"{name}.jsonl", told.append, timeout)
        for name, X in rows.items()
    }
    engine = ScriptedEngine(rows, lambda reply: logs[reply.site].answer(encode(reply.request)))
    return FederatedPCA(2, solver="lanczos", random_state=0).fit(Federation(engine)), told


@pytest.mark.parametrize("loop", [forever, forever_but_for_one_error])
@pytest.mark.parametrize("name", ["count_and_sum", "standardize"])
def test_an_interrupted_question_leaves_no_trace_in_the_result(tmp_path, endless, name, loop):
    expected, _ = fit_with_log(tmp_path, None)
    endless(name, loop)
    model, told = fit_with_log(tmp_path, LIMIT_S)
    assert model.components_.tobytes() == expected.components_.tobytes()
    refused = [line for line in told if "not answered" in line]
    assert len(refused) == 1
    assert "was stopped after 0.5 s, the site's time limit; ask the site to increase" in refused[0]


def test_only_a_question_s_own_work_is_interrupted():
    began = time.monotonic()
    with interrupted_after(0.01):
        while time.monotonic() - began < 0.2:
            time.sleep(0.01)


def test_the_alarm_is_as_before_afterwards():
    before = signal.getsignal(signal.SIGALRM)
    with interrupted_after(HANG_S):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


def test_without_a_limit_a_site_answers_on_any_thread(tmp_path):
    log = AnswerLog(Site(np.ones((5, 2)), name="a"), tmp_path / "a.jsonl", lambda text: None)
    replies = []
    thread = threading.Thread(target=lambda: replies.append(log.answer(b"garbage")))
    thread.start()
    thread.join()
    assert decode(replies[0]).header["error"] == "MessageError"
