"""A site counts what its noisy answers spend: once each, before they leave, within its budget."""

from __future__ import annotations

import json
import math
import os
import stat
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disks import full_disk
from fedpca import FederatedPCA, Federation, PersonalizedPCA, Policy, Privacy, RobustPCA, Site
from fedpca.engines.local import LocalEngine
from fedpca.errors import InputError, PolicyRefused, QuorumLost, SiteFailed
from fedpca.privacy.gaussian import epsilon_of, mu_of
from fedpca.privacy.secure_sum import ZERO
from fedpca.protocol.message import compose
from fedpca.protocol.plan import DECLARE, PRIVATE, RunPlan
from fedpca.site import chained_lines, privacy_budget
from fedpca.site.chained_lines import chain_of
from fedpca.site.privacy_budget import PrivacyBudget, Release, Session, Spent
from fedpca.site.store import MEMORY
from fedpca.site.store import PRIVACY as SPENT
from fedpca.testing import ScriptedEngine
from support import fitted_quietly, gapped_rows

PRIVACY = Privacy(epsilon=1.0, delta=1e-6, row_bound=12.0)
MU2 = PRIVACY.mu**2
ROWS = gapped_rows(np.random.default_rng(0), 120, 4, 2)
PLAN = RunPlan(
    "run",
    "FederatedPCA",
    {"solver": "covariance", "n_components": 2},
    {"north": ""},
    purpose="a study",
    privacy={PRIVATE: PRIVACY.to_plain()},
)
SCATTER = {"mean": np.zeros(4)}
FEATURES = {"features": np.empty(0, np.uint8)}


def release(run="a.0", number=1, mu2=0.1, session=b"s", question="noisy_scatter"):
    key = Session(np.frombuffer(session.ljust(16), np.uint8))
    return Release.now(run, key, number, question, replace(PLAN, run=run), mu2)


def budget(max_epsilon=None):
    """Return a budget; without a limit, it is that of an open site."""
    return PrivacyBudget(
        Policy(allow=("any",)) if max_epsilon is None else Policy(max_epsilon=max_epsilon)
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "north.privacy"


@pytest.fixture
def spent(path):
    """A file of five releases, each of which spends 0.1."""
    counting = budget()
    for number in range(1, 6):
        counting.spend(release(number=number), path)
    return path


def test_each_release_has_a_line_and_counts_once(path):
    counting = budget()
    for _ in range(3):
        counting.spend(release(), path)
        budget().spend(release(), path)  # another process, or the same one after a restart
    counting.spend(release(number=2, mu2=0.25), path)
    (first, second) = Spent.read(path).releases
    assert (first.mu2, first.total, second.mu2, second.total) == (0.1, 0.1, 0.25, 0.35)
    assert (first.run, first.round, first.question) == ("a.0", 1, "noisy_scatter")
    assert (first.epsilon, first.delta, first.purpose) == (1.0, 1e-6, "a study")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "other",
    [
        {"run": "a.1"},
        {"run": "b.0"},
        {"number": 2},
        {"session": b"t"},
        {"question": "noisy_product"},
    ],
)
def test_another_attempt_round_session_or_question_is_another_release(path, other):
    counting = budget()
    for where in (path, None):
        counting = budget()
        for each in (release(), release(**other), release(**other)):
            counting.spend(each, where)
        assert len(counting._known(counting._read(where))) == 2


def test_a_budget_is_spent_to_its_end_and_not_beyond(path):
    limit = mu_of(3.0, 1e-6) ** 2
    for where in (path, None):
        counting = budget(3.0)
        for number in range(10):
            counting.spend(release(number=number, mu2=limit / 10), where)
        with pytest.raises(PolicyRefused) as refused:
            counting.spend(release(number=10, mu2=limit / 100), where)
        assert (
            "of which epsilon 0 is left: epsilon 3 is spent, and its policy has max_epsilon=3"
            in (str(refused.value))
        )
        counting.spend(release(number=9, mu2=limit / 10), where)  # which was counted before
    assert Spent.read(path).mu2 == pytest.approx(limit, rel=1e-14)
    with pytest.raises(PolicyRefused, match="max_epsilon=3"):
        budget(3.0).spend(release(number=11, mu2=1e-9), path)  # also after a restart
    budget(4.0).spend(release(number=11, mu2=1e-9), path)
    budget().spend(release(number=12, mu2=math.inf), path)
    assert Spent.read(path).mu2 == math.inf
    with pytest.raises(PolicyRefused, match="epsilon inf is spent"):
        budget(1e6).spend(release(number=13, mu2=1e-9), path)


def test_without_max_epsilon_all_runs_together_keep_ten_times_run_epsilon(path):
    policy = Policy(run_epsilon=0.5, delta=1e-7)
    assert (policy.total_epsilon, policy.max_mu2) == (5.0, mu_of(5.0, 1e-7) ** 2)
    assert replace(policy, max_epsilon=0.7).total_epsilon == 0.7
    assert Policy(allow=("any",)).total_epsilon == math.inf
    for where in (path, None):
        counting = PrivacyBudget(policy)
        for number in range(10):
            counting.spend(release(number=number, mu2=policy.max_mu2 / 10), where)
        restarted = PrivacyBudget(policy) if where else counting
        for refuse in (
            lambda: restarted.spend(release(number=10, mu2=1e-9), where),  # noqa: B023
            lambda: restarted.check(PLAN, "other.0", where),  # noqa: B023
        ):
            with pytest.raises(PolicyRefused) as refused:
                refuse()
            assert (
                "epsilon 5 is spent, and its policy has run_epsilon=0.5, so all runs together may "
                "spend 5 (all at delta=1e-07"
            ) in str(refused.value)


def test_processes_that_spend_at_once_never_spend_more_than_all(path):
    """Each has read the same file before any of them writes."""
    policy, n_runs = Policy(), 40
    counting = [PrivacyBudget(policy) for _ in range(4)]
    for each in counting:
        each.check(PLAN, "run.0", path)

    def spend(at):
        try:
            counting[at % 4].spend(release(number=at, mu2=policy.max_mu2 / 10), path)
        except PolicyRefused:
            return 0
        return 1

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(spend, range(n_runs))) == 10
    assert Spent.read(path).mu2 == pytest.approx(policy.max_mu2, rel=1e-14)


def test_a_site_says_what_it_has_spent_and_what_is_left(tmp_path):
    site = Site(ROWS, name="north", policy=Policy(max_epsilon=3.0), store=tmp_path)
    said = "epsilon 0 of 3 is spent, and epsilon 3 is left (at delta 1e-06)"
    assert site.privacy_budget_in_words() == said
    budget().spend(release(mu2=MU2), site.file(SPENT))
    left = epsilon_of(math.sqrt(mu_of(3.0, 1e-6) ** 2 - MU2), 1e-6)
    assert f"epsilon 1 of 3 is spent, and epsilon {left:.4g} is" in site.privacy_budget_in_words()
    follows = Site(ROWS, name="north", policy=Policy(run_epsilon=0.3), store=tmp_path)
    assert follows.privacy_budget_in_words() == site.privacy_budget_in_words()
    assert Site(ROWS, name="north").privacy_budget_in_words() == ""


@pytest.mark.parametrize(
    "change",
    [
        {"mu2": -0.1},
        {"mu2": "nan"},
        {"mu2": 10**400},
        {"round": "1"},
        {"time": "now"},
        {"run": None},
        {"total": []},
    ],
    ids=str,
)
def test_a_chained_line_that_is_no_release_is_refused(spent, change):
    with chained_lines.opened(spent, SPENT) as file:
        line = {**release(number=6).to_plain(), "total": 0.6, **change}
        chained_lines.add(file, line, replace(SPENT, fields={}))
    with pytest.raises(InputError, match="is damaged: line 6 was changed or inserted"):
        budget().spend(release(number=7), spent)


def test_what_a_site_without_a_folder_of_its_own_counted_elsewhere_counts_too(tmp_path):
    """A fit with a journal gives the site a folder, and the next one another folder or none."""
    counting = budget(1.0)
    for number, where in enumerate((None, tmp_path / "one", tmp_path / "two", None)):
        counting.spend(release(number=number, mu2=MU2 / 4), where)
    for where in (None, tmp_path / "one", tmp_path / "three"):
        with pytest.raises(PolicyRefused, match="epsilon 1 is spent"):
            counting.spend(release(number=9, mu2=MU2 / 4), where)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(data=st.data())
def test_no_changed_byte_goes_unnoticed(spent, data):
    good = spent.read_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != good[at]))
    try:
        spent.write_bytes(good[:at] + bytes([byte]) + good[at + 1 :])
        with pytest.raises(
            InputError, match=r"north\.privacy, the site's privacy budget, is damaged"
        ):
            budget().spend(release(number=9), spent)
    finally:
        spent.write_bytes(good)


def test_lines_that_were_removed_inserted_or_replaced_are_refused_with_a_way_out(spent):
    lines = spent.read_bytes().splitlines(keepends=True)
    last = json.loads(lines[-1])
    forged = {**last, "mu2": 0.0}
    forged["chain"] = chain_of(forged)
    plain = {k: v for k, v in last.items() if k not in ("chain", "previous", "entry")}
    for content in (
        lines[1:],
        lines[:2] + lines[3:],
        [*lines, lines[-1]],
        [*lines[:-1], json.dumps(forged).encode() + b"\n"],
        [*lines, b"\n"],
        [*lines, json.dumps(plain).encode() + b"\n"],
        [json.dumps(plain).encode() + b"\n"],
        [b"garbage\n"],
        [b"garbage"],
    ):
        spent.write_bytes(b"".join(content))
        with pytest.raises(InputError, match="move it away to start a new budget"):
            budget().spend(release(number=9), spent)
        assert spent.read_bytes() == b"".join(content)


def test_a_file_that_began_without_a_chain_is_refused(path):
    path.parent.mkdir()
    path.write_text('{"mu2": 0.0}\n')
    first = {**release().to_plain(), "total": 0.1}
    with chained_lines.opened(path, SPENT) as file:
        chained_lines.add(file, first, SPENT)
    assert "line 1 was changed or inserted; it has no chain" in Spent.read(path).problem


def test_a_file_is_read_again_only_if_someone_else_has_touched_it(spent, monkeypatch):
    readings, verified = [], privacy_budget.verified
    monkeypatch.setattr(
        privacy_budget, "verified", lambda *given: readings.append(1) or verified(*given)
    )
    counting = budget()
    for number in range(6, 10):
        counting.check(PLAN, "run.0", spent)
        counting.spend(release(number=number), spent)
    assert readings == [1]
    budget().spend(release(number=10), spent)  # as another process does
    assert readings == [1, 1]
    counting.spend(release(number=10), spent)
    assert readings == [1, 1, 1]
    assert Spent.read(spent).mu2 == pytest.approx(1.0)
    lines = spent.read_bytes()
    spent.write_bytes(lines.replace(b'"mu2": 0.1', b'"mu2": 0.0', 1))
    with pytest.raises(InputError, match="is damaged: line 1 was changed"):
        counting.spend(release(number=11), spent)


def test_a_site_that_runs_notices_that_last_lines_or_the_file_are_gone(path):
    counting = budget()
    for number in (1, 2):
        counting.spend(release(number=number), path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0])
    with pytest.raises(InputError, match="lines that the site wrote were removed"):
        counting.spend(release(number=3), path)
    path.unlink()
    with pytest.raises(InputError, match="lines that the site wrote were removed"):
        counting.spend(release(number=3), path)
    budget().spend(release(number=3), path)  # a restart begins a new budget


@pytest.mark.parametrize("missing", [2, 30, 300])
def test_a_torn_last_line_counts_nothing_since_its_answer_did_not_leave(spent, missing):
    spent.write_bytes(spent.read_bytes()[:-missing])
    read = Spent.read(spent)
    if missing == 2:  # all of the chain is there, so nobody can say that the line was torn
        assert read.problem
        return
    assert (read.problem, len(read.releases)) == ("", 4)
    assert "line 5 is torn" in read.notes[0]
    budget().spend(release(number=5), spent)
    read = Spent.read(spent)
    assert (read.problem, len(read.releases), read.mu2) == ("", 5, 0.5)
    assert "line 5 is torn" in read.notes[0]


def test_a_line_of_which_only_the_newline_is_missing_counts(spent):
    spent.write_bytes(spent.read_bytes()[:-1])
    budget().spend(release(number=5), spent)
    assert (Spent.read(spent).problem, Spent.read(spent).mu2) == ("", 0.5)


def test_a_full_disk_keeps_the_answer_back_and_counts_nothing(spent):
    before = spent.read_bytes()
    counting = budget()
    for room in (0, 40):
        with (
            full_disk(len(before) + room),
            pytest.raises(SiteFailed, match="free up disk space at the site"),
        ):
            counting.spend(release(number=9), spent)
        assert spent.read_bytes() == before
    counting.spend(release(number=9), spent)
    assert len(Spent.read(spent).releases) == 6


def test_a_file_that_cannot_be_read_or_written_keeps_the_answer_back(tmp_path):
    with pytest.raises(SiteFailed, match="cannot save its privacy budget"):
        budget().spend(release(), tmp_path)  # a folder
    with pytest.raises(InputError, match="cannot be read"):
        budget(1.0).check(PLAN, "run.0", tmp_path)


# ---- a site that is asked ----


class Asking:
    """A coordinator that asks one site, whose process can be killed and started again."""

    def __init__(self, folder, policy, rows=ROWS, **site):
        self.memory = 0  # the last round that changed the site's memory
        self._rows, self._options = rows, {"policy": policy, "store": folder, **site}
        self.start()

    def start(self):
        self.site = Site(self._rows, name="north", **self._options)

    @property
    def file(self):
        return self.site.file(SPENT)

    def declare(self, plan=PLAN, run="run.0", memory=None):
        arrays = {"plan": np.frombuffer(plan.to_bytes(), np.uint8)}
        return self._send(
            run, 0, DECLARE, "gather", arrays, self.memory if memory is None else memory
        )

    def ask(self, name, arrays, number, run="run.0", verb="sum"):
        return self._send(run, number, name, verb, arrays, self.memory)

    def _send(self, run, number, name, verb, arrays, memory):
        header = {"run": run, "round": number, "question": name, "verb": verb, "n_sites": 1}
        return self.site.answer(compose({**header, "memory": memory}, arrays))


def answered(message):
    """The bytes of an answer, if it is one."""
    assert "error" not in message.header, message.header["text"]
    return {name: array.tobytes() for name, array in message.arrays.items()}


QUESTIONS = [
    ("column_names", {}, "gather"),
    ("noisy_count_and_sum", FEATURES, "sum"),
    ("noisy_scatter", SCATTER, "sum"),
]


class Killed(BaseException):
    """What a process does that is killed: nothing further."""


@contextmanager
def killed_at(step, monkeypatch):
    """Raise at one of the steps by which a site writes to its disk, which are counted from 0."""
    count = iter(range(10**6))

    def step_done():
        if next(count) == step:
            raise Killed

    class Tearing:
        """A file of which a killed process leaves half a line."""

        def __init__(self, file):
            self._file = file

        def __getattr__(self, name):
            return getattr(self._file, name)

        def write(self, data):
            step_done()
            half = len(data) // 2
            written = self._file.write(data[:half])
            step_done()
            written += self._file.write(data[half:])
            step_done()
            return written

    @contextmanager
    def opened(path, kind):
        with privacy_opened(path, kind) as file:
            yield Tearing(file)

    def around(function):
        def call(*arguments, **options):
            step_done()
            result = function(*arguments, **options)
            step_done()
            return result

        return call

    privacy_opened = privacy_budget.opened
    with monkeypatch.context() as patch:
        patch.setattr(privacy_budget, "opened", opened)
        patch.setattr(os, "fsync", around(os.fsync))
        patch.setattr(Path, "replace", around(Path.replace))
        yield


@pytest.mark.slow
@pytest.mark.parametrize("policy", [Policy(max_epsilon=1.0), Policy()], ids=["budget", "follows"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
@given(
    steps=st.lists(st.integers(0, 14), max_size=8),
    lost=st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_a_site_that_is_killed_anywhere_spends_once_and_never_releases_unspent(
    monkeypatch, policy, steps, lost
):
    with tempfile.TemporaryDirectory() as folder:
        asking = Asking(Path(folder), policy)
        # just one run is left
        budget().spend(release("old.0", mu2=policy.max_mu2 - MU2), asking.file)
        kills, left = list(steps), {}

        def persist(send):
            """Send until the site is not killed; it may be killed again and again."""
            while True:
                try:
                    with killed_at(kills.pop() if kills else None, monkeypatch):
                        return send()
                except Killed:
                    asking.start()

        answered(persist(asking.declare))
        for number, (name, arrays, verb) in enumerate(QUESTIONS, 1):
            for _ in range(1 + lost[number - 1]):  # an answer that is lost is asked for again
                reply = persist(lambda: asking.ask(name, arrays, number, verb=verb))  # noqa: B023
                left.setdefault(name, set()).add(
                    json.dumps({k: v.hex() for k, v in answered(reply).items()})
                )
                counted = {each.question for each in Spent.read(asking.file).releases}
                assert name in counted or verb == "gather"
                asking.start()
            asking.memory = number if verb == "sum" else 0
        assert {name: len(each) for name, each in left.items()} == {q[0]: 1 for q in QUESTIONS}
        read = Spent.read(asking.file)
        assert [each.question for each in read.releases[1:]] == [name for name, *_ in QUESTIONS[1:]]
        assert read.mu2 == pytest.approx(policy.max_mu2, rel=1e-12)
        assert (
            f"epsilon {policy.total_epsilon:g} is spent"
            in asking.declare(replace(PLAN, run="b"), "b.0", 0).header["text"]
        )


def test_a_run_that_is_resumed_may_spend_the_rest_of_what_it_asked_for(tmp_path):
    asking = Asking(tmp_path, Policy(max_epsilon=1.0))
    asking.declare()
    for number, (name, arrays, verb) in enumerate(QUESTIONS[:2], 1):
        answered(asking.ask(name, arrays, number, verb=verb))
    asking.memory = 2
    asking.start()
    answered(asking.declare())  # although another whole run would be too much
    answered(asking.ask("noisy_scatter", SCATTER, 3))
    assert Spent.read(asking.file).mu2 == pytest.approx(MU2, rel=1e-14)


@pytest.mark.parametrize("restarts", [False, True], ids=["alive", "restarted"])
def test_a_run_that_begins_again_under_the_same_name_spends_again(tmp_path, restarts):
    """A coordinator that lies would otherwise get the same sums with other noise for nothing."""
    asking = Asking(tmp_path, Policy(max_epsilon=1.2))
    answers = []
    for run in ("run", "b", "run"):
        asking.declare(replace(PLAN, run=run), f"{run}.0")
        for number, (name, arrays, verb) in enumerate(QUESTIONS[:2], 1):
            reply = asking.ask(name, arrays, number, f"{run}.0", verb)
        answers.append(answered(reply)["total"])
        if restarts:
            asking.start()
    assert len(set(answers)) == 3
    assert len(Spent.read(asking.file).releases) == 3


def test_a_run_that_begins_again_finds_its_budget_spent(tmp_path):
    asking = Asking(tmp_path, Policy(max_epsilon=1.0))
    for _ in range(2):
        asking.declare()
        replies = [
            asking.ask(name, arrays, number, verb=verb)
            for number, (name, arrays, verb) in enumerate(QUESTIONS, 1)
        ]
        asking.site.file(MEMORY).unlink()
        asking.start()
    assert "the answer asks for epsilon" in replies[1].header["text"]
    assert "epsilon 1 is spent" in replies[1].header["text"]
    assert len(Spent.read(asking.file).releases) == 2


def test_a_full_disk_at_a_site_keeps_the_answer_back_until_there_is_room(tmp_path):
    asking = Asking(tmp_path, Policy(max_epsilon=1.0))
    asking.declare()
    answered(asking.ask(*QUESTIONS[0][:2], 1, verb="gather"))
    with full_disk():
        reply = asking.ask(*QUESTIONS[1][:2], 2)
    assert reply.header["error"] == "SiteFailed"
    assert not reply.arrays
    assert Spent.read(asking.file).releases == []
    answered(asking.ask(*QUESTIONS[1][:2], 2))
    assert len(Spent.read(asking.file).releases) == 1


FLAGGED = np.column_stack([ROWS[:, :3], np.eye(120, 1)])


@pytest.mark.parametrize("rows", [FLAGGED, ROWS[:3]], ids=["rare flag", "few rows"])
@pytest.mark.parametrize(
    ("epsilon", "delta", "is_enough"),
    [
        (1.0, 1e-6, True),
        (1.0, 1e-7, True),
        (1.01, 1e-6, False),
        (1.0, 1e-5, False),
        (0.1, 0.1, False),  # which is epsilon 1.5 at the policy's delta
        (1e6, 1e-6, False),
        (math.inf, 1e-6, False),
    ],
)
def test_only_noise_that_is_enough_takes_the_place_of_rules_about_few_rows(
    rows, epsilon, delta, is_enough, tmp_path
):
    asking = Asking(tmp_path, Policy(), rows)
    exact = replace(PLAN, run="exact", privacy={})
    asking.declare(exact, "exact.0")
    answered(asking.ask(*QUESTIONS[0][:2], 1, "exact.0", verb="gather"))
    reply = asking.ask("count_and_sum", {**FEATURES, "missing": np.array(0)}, 2, "exact.0")
    assert "min_count=5" in reply.header["text"]

    settings = Privacy(epsilon, delta, row_bound=12.0).to_plain()
    reply = asking.declare(replace(PLAN, privacy={PRIVATE: settings}))
    if is_enough:
        for number, (name, arrays, verb) in enumerate(QUESTIONS, 1):
            answered(asking.ask(name, arrays, number, verb=verb))
        return
    assert reply.header["error"] == "PolicyRefused"
    asked = f"{epsilon_of(mu_of(epsilon, delta), 1e-6):.4g}"
    assert f"run_epsilon=1, but the plan asks for epsilon {asked} at" in reply.header["text"]
    assert "use at most epsilon=1 with delta=1e-06" in reply.header["text"]
    assert "error" in asking.ask(*QUESTIONS[0][:2], 1, verb="gather").header
    assert Spent.read(asking.file).releases == []


def test_a_site_may_admit_more_than_one_epsilon_in_a_run(tmp_path):
    settings = Privacy(3.0, 1e-6, row_bound=12.0).to_plain()
    asking = Asking(tmp_path, Policy(run_epsilon=3.0), FLAGGED)
    answered(asking.declare(replace(PLAN, privacy={PRIVATE: settings})))


def test_rows_that_cannot_be_used_spend_nothing(tmp_path):
    rows = np.where(np.arange(480).reshape(120, 4) == 9, np.nan, ROWS)
    asking = Asking(tmp_path, Policy(max_epsilon=1.0), rows)
    asking.declare()
    answered(asking.ask(*QUESTIONS[0][:2], 1, verb="gather"))
    reply = asking.ask(*QUESTIONS[1][:2], 2)
    assert reply.header["error"] == "InputError"
    assert Spent.read(asking.file).releases == []


def test_noisy_questions_belong_to_private_runs_and_exact_ones_to_others(tmp_path):
    asking = Asking(tmp_path, Policy(allow=("any",), gather=True, min_count=1))
    reply = asking.ask(*QUESTIONS[1][:2], 1)
    assert "is only for differentially private runs, but no plan" in reply.header["text"]
    secure = replace(PLAN, sites={"north": "", "south": ""}, privacy={"secure": True})
    asking.declare(secure)
    reply = asking.ask(*QUESTIONS[1][:2], 1)
    assert "is only for differentially private runs" in reply.header["text"]
    asking.declare(replace(PLAN, run="b"), "b.0")
    reply = asking.ask("count_and_sum", {**FEATURES, "missing": np.array(0)}, 1, "b.0")
    assert "is differentially private, but question 'count_and_sum' asks" in reply.header["text"]
    answered(asking.ask(*QUESTIONS[1][:2], 2, "b.0"))
    assert not list(tmp_path.glob("*.budget"))
    assert len(Spent.read(asking.file).releases) == 1  # counted, although there is no limit


# ---- fits ----


def sites_of(rows, folder, policy, names=("north", "south", "west")):
    parts = zip(names, np.array_split(rows, len(names)), strict=True)
    return {name: Site(part, name=name, policy=policy, store=folder) for name, part in parts}


MANY = gapped_rows(np.random.default_rng(1), 3000, 5, 2)


def fit(sites, epsilon=1.0, **options):
    privacy = Privacy(epsilon=epsilon, delta=1e-6, row_bound=12.0)
    with Federation.local(sites, **{"secure": True, **options}) as fed:
        return fitted_quietly(FederatedPCA(2, privacy=privacy), fed)


def test_a_run_beyond_the_budget_is_refused_before_its_first_question(tmp_path):
    policy = Policy(max_epsilon=1.2)
    left = epsilon_of(math.sqrt(mu_of(1.2, 1e-6) ** 2 - MU2), 1e-6)
    sites = sites_of(MANY, tmp_path, policy)
    fit(sites)
    for _ in range(2):
        with pytest.raises(PolicyRefused) as refused:
            fit(sites, 0.9)
        for name in sites:
            assert (
                f"site '{name}', round 0, while declaring the run: the run asks for epsilon 0.9 of the "
                f"site's privacy budget, of which epsilon {left:.4g} is left: epsilon 1 is spent, and "
                "its policy has max_epsilon=1.2 (all at delta=1e-06"
            ) in str(refused.value)
        sites = sites_of(MANY, tmp_path, policy)
    fit(sites, left)
    for file in tmp_path.glob("*.privacy"):
        assert len(Spent.read(file).releases) == 4


def test_a_budget_counts_in_memory_without_a_folder():
    sites = sites_of(MANY, None, Policy(max_epsilon=1.2))
    fit(sites)
    with pytest.raises(PolicyRefused, match="epsilon 1 is spent"):
        fit(sites)
    fit(sites_of(MANY, None, Policy(max_epsilon=1.2)))


def test_a_budget_has_a_delta_of_its_own(tmp_path):
    """Epsilon 1 at delta 1e-6 is a larger epsilon at a smaller delta."""
    with pytest.raises(PolicyRefused, match=r"asks for epsilon 1\.\d+ .*max_epsilon=1.2 .*1e-09"):
        fit(sites_of(MANY, tmp_path, Policy(run_epsilon=2.0, max_epsilon=1.2, delta=1e-9)))
    fit(sites_of(MANY, tmp_path, Policy(max_epsilon=1.2, delta=1e-5)))


@pytest.mark.parametrize(
    "policy", [Policy(max_epsilon=5.0), Policy(require=("private",))], ids=["budget", "required"]
)
def test_runs_that_are_not_private_are_refused_by_name(tmp_path, policy):
    policy = replace(policy, allow=("federated", "personalized", "robust", "merge"), gather=True)
    sites = sites_of(MANY, tmp_path, policy)
    rule = "max_epsilon=5" if policy.max_epsilon else "require='private'"
    for estimator, named in (
        (FederatedPCA(2), "but this FederatedPCA with solver 'auto' is not private"),
        (
            FederatedPCA(2, solver="merge"),
            "but this FederatedPCA with solver 'merge' is not private",
        ),
        (PersonalizedPCA(1, 1), "but this PersonalizedPCA"),
        (RobustPCA(2), "but this RobustPCA"),
    ):
        with pytest.raises(PolicyRefused) as refused:
            estimator.fit(Federation.local(sites))
        assert f"site 'north', round 0, while declaring the run: the policy has {rule}" in (
            str(refused.value)
        )
        assert named in str(refused.value)
        assert "fedpca fit --epsilon" in str(refused.value)
    with pytest.raises(PolicyRefused, match="run_epsilon=1, but the plan asks for epsilon inf at"):
        fit(sites, math.inf)
    fit(sites)


def test_a_program_that_only_claims_to_be_private_is_refused(tmp_path):
    policy = Policy(max_epsilon=5.0, allow=("personalized",))
    engine = _Changing(sites_of(MANY, tmp_path, policy), _claiming_privacy)
    with pytest.raises(PolicyRefused, match=r"but PersonalizedPCA with solver .* without noise"):
        PersonalizedPCA(1, 1).fit(Federation(engine))


def _claiming_privacy(request):
    if request.header["question"] != DECLARE:
        return request
    plan = RunPlan.from_bytes(request.arrays["plan"].tobytes())
    plan = replace(plan, privacy=PLAN.privacy)
    return compose(request.header, {"plan": np.frombuffer(plan.to_bytes(), np.uint8)})


class _Changing:
    """An engine of a coordinator that lies: it changes what the sites are told."""

    declares = True

    def __init__(self, sites, change):
        self._engine, self._change = LocalEngine(sites), change
        self.names = self._engine.names

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def ask(self, names, request, timeout):
        return self._engine.ask(names, self._change(request), timeout)


SIZE = {"narrow size": [2176, 1074], ZERO: [64, 0]}


@pytest.mark.parametrize("mask", [SIZE, {**SIZE, "triangle": [64, 0]}, {ZERO: [64, 0]}])
def test_the_size_of_a_noisy_answer_is_not_told_by_itself(tmp_path, mask):

    def change(request):
        if request.header["question"] != "noisy_scatter":
            return request
        return compose({**request.header, "mask": mask}, request.arrays)

    engine = _Changing(sites_of(MANY, tmp_path, Policy(max_epsilon=5.0)), change)
    with pytest.raises(QuorumLost, match="how to mask each field"):
        FederatedPCA(2, privacy=PRIVACY).fit(Federation(engine, secure=True))


def test_a_run_that_starts_over_without_a_lost_site_spends_again_and_says_so(tmp_path):
    def lose_west(reply):
        return None if reply.site == "west" and reply.round >= 3 else reply.answer

    sites = sites_of(MANY, tmp_path, Policy(max_epsilon=2.0))
    with Federation(ScriptedEngine(sites, lose_west), quorum=2, secure=True) as fed:
        run = fitted_quietly(FederatedPCA(2, privacy=PRIVACY), fed).run_
    assert run.sites == ("north", "south")
    assert run.privacy["promised"] == 1.0
    assert run.privacy["mu"] == pytest.approx(math.sqrt(2) * PRIVACY.mu)
    for name in ("north", "south"):
        read = Spent.read(sites[name].file(SPENT))
        assert [each.run[-2:] for each in read.releases] == [".0", ".0", ".1", ".1"]
        assert read.mu2 == pytest.approx(run.privacy["mu"] ** 2)


def test_a_killed_coordinator_that_resumes_spends_nothing_more(tmp_path):
    journal = tmp_path / "journal"
    sites = sites_of(MANY, tmp_path, Policy(max_epsilon=1.0))

    class Stop(BaseException):
        """The end of the coordinator's process."""

    for last in (2, 3):

        def stop(reply):
            if reply.round == last and reply.site == "west":  # noqa: B023
                raise Stop
            return reply.answer

        with (
            pytest.raises(Stop),
            Federation(ScriptedEngine(sites, stop), secure=True, journal=journal) as fed,
        ):
            FederatedPCA(2, privacy=PRIVACY, random_state=0).fit(fed)
    with Federation.local(sites, secure=True, journal=journal) as fed:
        run = fitted_quietly(FederatedPCA(2, privacy=PRIVACY, random_state=0), fed).run_
    assert run.privacy["epsilon"] == pytest.approx(1.0)
    for site in sites.values():
        assert len(Spent.read(site.file(SPENT)).releases) == 2


def test_a_damaged_budget_stops_private_runs_with_or_without_a_limit(tmp_path):
    for policy in (Policy(max_epsilon=5.0), Policy()):
        sites = sites_of(MANY, tmp_path / str(policy.max_epsilon), policy)
        fit(sites)
        file = sites["north"].file(SPENT)
        file.write_text(file.read_text().replace('"mu2": 0.0', '"mu2": 0.1', 1))
        with pytest.raises(InputError, match=r"site 'north'.*is damaged: line 1 was changed"):
            fit(sites)
