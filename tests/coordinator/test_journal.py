"""A run that was killed is resumed from its journal with the same bits and no question twice."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import forked
from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.coordinator.journal import Journal
from fedpca.engines.local import LocalEngine
from fedpca.errors import InputError, JournalError, PolicyRefused, QuorumLost
from fedpca.protocol.message import PREFIX_BYTES, compose, decode, encode, encoded_size
from fedpca.protocol.question import question
from fedpca.solvers import SOLVERS
from fedpca.testing import ScriptedEngine, spoil
from support import gapped_rows

RNG = np.random.default_rng(0)
SITES = dict(zip("abc", np.array_split(gapped_rows(RNG, 120, 9, 3), 3), strict=True))


class Crash(BaseException):
    """What no handler of the package catches, as a kill would not be."""


def crashing(sites, at=None, journal=None):
    """An engine that dies in a given round, after some sites have worked on it."""

    def script(reply):
        if reply.round == at and reply.site == list(sites)[1]:
            raise Crash
        return reply.answer

    return ScriptedEngine(sites, script, journal=journal)


def rounds_asked(engine):
    return [asked.round for asked in engine.asked]


@question(verb="gather", asks={"step": "float64"}, answers={"total": "float64"})
def twice_the_step(site, step):
    return {"total": 2 * step}


@question(asks={"step": "float64"}, answers={"total": "float64"}, remembers=True)
def add_to_memory(site, step):
    site.memory["total"] = site.memory.get("total", 0.0) + step
    return {"total": site.memory["total"]}


def fit(engine, path, solver, **options):
    if engine is LocalEngine:
        engine = LocalEngine(SITES, journal=path)
    model = FederatedPCA(3, solver=solver, max_rounds=2000, **options)
    return model.fit(Federation(engine, journal=path))


@pytest.mark.slow
@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_a_crash_in_any_round_changes_no_bit_and_asks_nothing_twice(solver, tmp_path):
    options = {"random_state": 5, "tol": 1e-3}  # some rounds, not hundreds
    whole = fit(LocalEngine, tmp_path / "whole", solver, **options)
    rounds = min(whole.run_.rounds, 12)
    for at in range(1, rounds + 1) if rounds < 12 else (1, 2, 4, 5, rounds):
        path = tmp_path / f"{at}.journal"
        with pytest.raises(Crash):
            fit(crashing(SITES, at, path), path, solver, **options)
        again = crashing(SITES, None, path)
        resumed = fit(again, path, solver, **options)
        assert rounds_asked(again)[0] == at
        assert resumed.components_.tobytes() == whole.components_.tobytes()
        assert resumed.explained_variance_.tobytes() == whole.explained_variance_.tobytes()
        assert resumed.site_variance_ratio_ == whole.site_variance_ratio_
        assert list(resumed.run_.ledger) == list(whole.run_.ledger)


def test_a_finished_journal_gives_the_result_without_any_question(tmp_path):
    path = tmp_path / "j"
    first = fit(LocalEngine, path, "lanczos")
    engine = crashing(SITES)
    second = fit(engine, path, "lanczos")
    assert rounds_asked(engine) == []
    assert first.components_.tobytes() == second.components_.tobytes()
    assert first.run_.seed == second.run_.seed


def test_what_sites_remember_outlives_the_process(tmp_path):
    def program(fed, _):
        return [float(fed.sum(add_to_memory, step=np.float64(i))["total"]) for i in range(1, 7)]

    expected = Federation.local(SITES).run(program, identity={})
    assert expected == [3.0, 9.0, 18.0, 30.0, 45.0, 63.0]
    for at in range(1, 7):
        path = tmp_path / f"{at}"
        with pytest.raises(Crash):
            Federation(crashing(SITES, at, path), journal=path).run(program, identity={})
        engine = crashing(SITES, None, path)
        assert Federation(engine, journal=path).run(program, identity={}) == expected
        assert rounds_asked(engine) == list(range(at, 7))


def test_sites_of_similar_names_do_not_share_their_memory(tmp_path):
    sites = {"a/b": np.eye(3), "a b": np.eye(3), "ä": np.eye(3)}
    federation = Federation.local(sites, journal=tmp_path / "j")
    federation.run(lambda f, _: f.sum(add_to_memory, step=np.float64(1)), identity={})
    assert len(list((tmp_path / "j.sites").iterdir())) == 3


def test_a_site_given_whole_keeps_its_memory_beside_the_journal(tmp_path):
    site = Site(np.eye(3), name="a")
    federation = Federation.local([site], journal=tmp_path / "j")
    federation.run(lambda f, _: f.sum(add_to_memory, step=np.float64(1)), identity={})
    assert len(list((tmp_path / "j.sites").iterdir())) == 1


def test_losing_a_site_is_recorded_too(tmp_path):
    junk = spoil(lambda answer: b"junk", sites="b", from_round=4)
    path = tmp_path / "j"
    options = {"solver": "lanczos", "random_state": 1}
    engine = ScriptedEngine(SITES, junk)
    first = FederatedPCA(2, **options).fit(Federation(engine, quorum=2, journal=path))
    assert first.run_.sites == ("a", "c")
    engine = ScriptedEngine(SITES, junk)
    second = FederatedPCA(2, **options).fit(Federation(engine, quorum=2, journal=path))
    assert rounds_asked(engine) == []
    assert second.run_.lost == first.run_.lost
    data, void = path.read_bytes(), []
    while data:
        record, data = decode(data[: (n := encoded_size(data[:PREFIX_BYTES]))]), data[n:]
        void += [record.arrays] if record.header.get("lost") else []
    assert void == [{}]  # nothing of a round that came to nothing is kept
    assert second.components_.tobytes() == first.components_.tobytes()
    assert list(second.run_.ledger) == list(first.run_.ledger)


@pytest.mark.parametrize("cut", [1, 7, 30, 200])
def test_a_torn_last_record_is_dropped(cut, tmp_path):
    path = tmp_path / "j"
    first = fit(LocalEngine, path, "lanczos", random_state=2)
    path.write_bytes(path.read_bytes()[:-cut])
    engine = crashing(SITES, None, path)
    second = fit(engine, path, "lanczos", random_state=2)
    assert rounds_asked(engine)[-1] == first.run_.rounds
    assert len(rounds_asked(engine)) <= 2
    assert first.components_.tobytes() == second.components_.tobytes()
    third = crashing(SITES)
    fit(third, path, "lanczos", random_state=2)
    assert rounds_asked(third) == []


def test_a_torn_record_that_contains_the_mark_of_records_is_dropped(tmp_path):
    """Answers are arbitrary bytes, such as column names, so the mark may be among them."""
    path = tmp_path / "j"
    with pytest.raises(Crash):
        fit(crashing(SITES, 6, path), path, "lanczos", random_state=2)
    marks = np.frombuffer(b"FedP" * 50 + encode(compose({"round": 7}, {}))[:-1], np.uint8)
    torn = encode(compose({"round": 6}, {"features": marks, "x": RNG.standard_normal(9)}))[:-1]
    path.write_bytes(path.read_bytes() + torn)
    resumed = fit(LocalEngine, path, "lanczos", random_state=2)
    whole = fit(LocalEngine, None, "lanczos", random_state=2)
    assert resumed.components_.tobytes() == whole.components_.tobytes()


def test_what_is_torn_leaves_nothing_behind_what_is_written_in_its_place(tmp_path):
    path = tmp_path / "j"
    with pytest.raises(Crash):
        fit(crashing(SITES, 6, path), path, "lanczos", random_state=2)
    torn = encode(compose({"round": 6}, {"x": RNG.standard_normal(100_000)}))[:-1]
    path.write_bytes(path.read_bytes() + torn)
    first = fit(LocalEngine, path, "lanczos", random_state=2)
    engine = crashing(SITES)
    second = fit(engine, path, "lanczos", random_state=2)
    assert rounds_asked(engine) == []
    assert first.components_.tobytes() == second.components_.tobytes()


def test_zeros_that_a_file_system_left_are_dropped(tmp_path):
    path = tmp_path / "j"
    fit(LocalEngine, path, "covariance")
    path.write_bytes(path.read_bytes() + bytes(100))
    engine = crashing(SITES)
    fit(engine, path, "covariance")
    assert rounds_asked(engine) == []


def test_a_last_record_with_a_wrong_checksum_is_dropped(tmp_path):
    path = tmp_path / "j"
    fit(LocalEngine, path, "covariance")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    engine = crashing(SITES, None, path)
    fit(engine, path, "covariance")
    assert rounds_asked(engine) == [4]


@pytest.mark.parametrize("damage", ["a flipped bit", "zeros", "a length"])
def test_a_journal_damaged_in_the_middle_is_refused(damage, tmp_path):
    path = tmp_path / "j"
    fit(LocalEngine, path, "lanczos")
    data = bytearray(path.read_bytes())
    second = encoded_size(bytes(data[:PREFIX_BYTES]))
    if damage == "zeros":
        data[second : second + 40] = bytes(40)
    elif damage == "a length":
        data[second + PREFIX_BYTES - 4] = 1
    else:
        data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(JournalError, match="damaged at byte"):
        fit(LocalEngine, path, "lanczos")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"tol": 1e-3}, "parameters, tol: 1e-10 in the journal, 0.001 now"),
        ({"n_components": 2}, "parameters, n_components: 3 in the journal, 2 now"),
        ({"sites": "ab"}, "quorum: 3 in the journal, 2 now"),
        ({"quorum": 2}, "quorum: 3 in the journal, 2 now"),
        ({"random_state": 2}, "a run with seed 1, not 2"),
    ],
)
def test_a_journal_of_another_run_is_refused(change, text, tmp_path):
    path = tmp_path / "j"
    fit(LocalEngine, path, "lanczos", random_state=1)
    sites = {name: SITES[name] for name in change.pop("sites", "abc")}
    quorum = change.pop("quorum", None)
    before = path.read_bytes()
    options = {"n_components": 3, "solver": "lanczos", "max_rounds": 2000, "random_state": 1}
    options |= change
    with pytest.raises(JournalError, match=text):
        FederatedPCA(**options).fit(Federation.local(sites, journal=path, quorum=quorum))
    assert path.read_bytes() == before


def test_a_file_that_is_no_journal_is_refused_and_left_alone(tmp_path):
    for text in ("precious notes, longer than a prefix", "short"):
        path = tmp_path / "notes.txt"
        path.write_text(text)
        with pytest.raises(JournalError):
            fit(LocalEngine, path, "lanczos")
        assert path.read_text() == text


def test_a_program_that_asks_something_else_is_refused(tmp_path):
    def asks(question_name):
        step = np.float64(1)
        verbs = {
            "sum": lambda f, _: f.sum(add_to_memory, step=step),
            "gather": lambda f, _: f.gather(twice_the_step, step=step),
        }
        return verbs[question_name]

    path = tmp_path / "j"
    Federation.local(SITES, journal=path).run(asks("sum"), identity={})
    with pytest.raises(JournalError, match="does not match this run"):
        Federation.local(SITES, journal=path).run(asks("gather"), identity={})


def test_gathered_answers_are_replayed_by_site(tmp_path):
    path = tmp_path / "j"
    results = []
    for _ in range(2):
        fed = Federation.local(SITES, journal=path)
        results.append(
            fed.run(lambda f, _: f.gather(twice_the_step, step=np.float64(1)), identity={})
        )
    assert list(results[1]) == ["a", "b", "c"]
    assert [float(answer["total"]) for answer in results[1].values()] == [2.0, 2.0, 2.0]


def test_two_runs_cannot_write_one_journal(tmp_path):
    first = Journal(tmp_path / "j", identity={}, seed=1)
    with pytest.raises(JournalError, match="in use by another run"):
        Journal(tmp_path / "j", identity={}, seed=1)
    first.close()
    Journal(tmp_path / "j", identity={}, seed=1).close()


def test_rows_that_changed_are_noticed_at_the_site(tmp_path):
    def program(fed, _):
        for _ in range(4):
            fed.sum(add_to_memory, step=np.float64(1))

    path = tmp_path / "j"
    with pytest.raises(Crash):
        Federation(crashing(SITES, 3, path), journal=path).run(program, identity={})
    changed = {**SITES, "a": SITES["a"] + 1e-9}
    with pytest.raises(JournalError, match="rows, a: "):
        Federation.local(changed, journal=path).run(program, identity={})
    engine = crashing(changed, None, path)  # as if the coordinator could not look at the rows
    engine.fingerprints = LocalEngine(SITES).fingerprints
    with pytest.raises(InputError, match=r"site 'a'.*rows have changed since the run began"):
        Federation(engine, journal=path).run(program, identity={})


def test_memory_that_is_gone_or_damaged_is_told_with_the_way_out(tmp_path):
    path = tmp_path / "j"
    with pytest.raises(Crash):
        fit(crashing(SITES, 6, path), path, "lanczos")
    memory = sorted((tmp_path / "j.sites").iterdir())
    memory[0].write_bytes(memory[0].read_bytes()[:50])
    with pytest.raises(InputError, match=r"site 'a'.*damaged.*new journal"):
        fit(LocalEngine, path, "lanczos")
    for file in memory:
        file.unlink()
    with pytest.raises(QuorumLost, match="start over with a new journal"):
        fit(LocalEngine, path, "lanczos")


def test_a_folder_is_no_journal_and_an_empty_file_becomes_one(tmp_path):
    with pytest.raises(JournalError, match="cannot open journal"):
        fit(LocalEngine, tmp_path, "covariance")
    (tmp_path / "j").touch()
    fit(LocalEngine, tmp_path / "j", "covariance")
    assert (tmp_path / "j").stat().st_size > 0


def test_a_run_that_ended_for_want_of_a_quorum_asks_again_when_it_is_resumed(tmp_path):
    whole = fit(LocalEngine, tmp_path / "whole", "lanczos", random_state=2)
    path = tmp_path / "j"
    for at in (1, 4, 6):  # one outage after another
        junk = spoil(lambda answer: b"junk", from_round=at)
        engine = ScriptedEngine(SITES, junk, journal=path)
        with pytest.raises(QuorumLost, match=f"0 of 3 sites are left.*round {at},"):
            fit(engine, path, "lanczos", random_state=2)
    engine = crashing(SITES, None, path)
    resumed = fit(engine, path, "lanczos", random_state=2)
    assert rounds_asked(engine)[0] == 6
    assert resumed.run_.lost == []
    assert resumed.components_.tobytes() == whole.components_.tobytes()
    assert list(resumed.run_.ledger) == list(whole.run_.ledger)


def test_a_loss_is_kept_where_the_quorum_holds_and_asked_again_where_it_does_not(tmp_path):
    def outages(reply):
        since = {"b": 4, "c": 7}.get(reply.site, np.inf)
        return b"junk" if reply.round >= since else reply.answer

    path = tmp_path / "j"
    options = {"quorum": 2, "journal": path}
    engine = ScriptedEngine(SITES, outages, journal=path)
    with pytest.raises(QuorumLost, match=r"1 of 2 sites are left.*site 'c', round 7"):
        FederatedPCA(2, random_state=1).fit(Federation(engine, **options))
    engine = crashing(SITES, None, path)
    model = FederatedPCA(2, random_state=1).fit(Federation(engine, **options))
    assert rounds_asked(engine)[0] == 7
    assert model.run_.sites == ("a", "c")
    assert [lost["site"] for lost in model.run_.lost] == ["b"]


@pytest.mark.parametrize("left", [1, 4, 20, 24, 100, -1])
def test_a_torn_first_record_is_an_empty_journal(left, tmp_path):
    whole = fit(LocalEngine, tmp_path / "whole", "covariance", random_state=2)
    path = tmp_path / "j"
    Journal(path, identity={"another": "run"}, seed=1).close()
    path.write_bytes(path.read_bytes()[:left])
    resumed = fit(LocalEngine, path, "covariance", random_state=2)
    assert resumed.components_.tobytes() == whole.components_.tobytes()
    engine = crashing(SITES)
    fit(engine, path, "covariance", random_state=2)
    assert rounds_asked(engine) == []


def test_a_first_record_of_which_only_zeros_reached_the_disk_is_an_empty_journal(tmp_path):
    path = tmp_path / "j"
    path.write_bytes(bytes(300))
    fit(LocalEngine, path, "covariance")
    engine = crashing(SITES)
    fit(engine, path, "covariance")
    assert rounds_asked(engine) == []


@pytest.mark.process
def test_killed_with_kill_9_in_the_middle_of_a_fit_and_resumed(tmp_path):
    script = tmp_path / "fit.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, time
            import numpy as np
            from fedpca import FederatedPCA, Federation
            rng = np.random.default_rng(0)
            X = rng.standard_normal((400, 50)) * np.geomspace(2, 1, 50)
            slow = float(sys.argv[2])
            fed = Federation.local(
                np.array_split(X, 3), journal=sys.argv[1],
                on_round=lambda entry: (print(entry["round"], flush=True), time.sleep(slow)),
            )
            model = FederatedPCA(3, solver="lanczos", random_state=7).fit(fed)
            print("done", model.components_.tobytes().hex())
            """
        )
    )

    def start(journal, slow):
        command = [sys.executable, str(script), str(tmp_path / journal), str(slow)]
        return forked.Popen(command, stdout=subprocess.PIPE, text=True)

    whole = start("whole", 0).communicate()[0].splitlines()[-1]
    assert whole.startswith("done")
    victim = start("killed", 0.3)
    while victim.stdout.readline().strip() != "6":
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    victim.stdout.close()
    assert start("killed", 0).communicate()[0].splitlines()[-1] == whole


def test_a_finished_run_in_which_a_site_withheld_an_answer_asks_nothing_when_resumed(tmp_path):
    def fit(policy):
        sites = {n: Site(rows, name=n, policy=policy) for n, rows in SITES.items()}
        engine = ScriptedEngine(sites, journal=tmp_path / "j")
        model = FederatedPCA(2, random_state=0).fit(Federation(engine, journal=tmp_path / "j"))
        return model, [asked.question for asked in engine.asked]

    first, asked = fit(Policy())
    assert asked[-1] == "explained_energy"
    again, asked_again = fit(Policy())
    assert asked_again == []
    assert again.site_variance_ratio_ == first.site_variance_ratio_ == {}
    assert list(again.run_.ledger) == list(first.run_.ledger)
    assert again.components_.tobytes() == first.components_.tobytes()


def test_a_run_that_a_policy_ended_asks_again_when_it_is_resumed(tmp_path):
    def fit(policy):
        sites = {n: Site(rows, name=n, policy=policy) for n, rows in SITES.items()}
        fed = Federation.local(sites, journal=tmp_path / "j")
        return FederatedPCA(2, random_state=0).fit(fed)

    with pytest.raises(PolicyRefused, match="min_rows=50"):
        fit(Policy(min_rows=50))
    assert fit(Policy()).n_samples_ == 120
