"""A site's ledger shows every line that was changed, removed, or inserted, and loses none."""

from __future__ import annotations

import json
import multiprocessing
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpca import FederatedPCA, Federation, Site
from fedpca.errors import FedpcaError, SiteFailed
from fedpca.protocol.message import compose, decode, encode
from fedpca.protocol.proof import NO_HEAD, commitment, digest
from fedpca.site import chained_lines
from fedpca.site.answer_log import AnswerLog, check_chain, check_proof
from fedpca.site.chained_lines import chain_of
from fedpca.site.store import LEDGER
from fedpca.testing import ScriptedEngine
from support import draws

PLAIN = '{"time": "2026-01-01T00:00:00+00:00", "run": "a.0", "round": 1, "refused": null}\n'


def silent(text):
    """Tell nobody."""


def log_of(path):
    return AnswerLog(Site(np.ones((3, 2)), name="a"), path, silent)


def garbage(number):
    return b"garbage" + bytes(number)


@pytest.fixture
def path(tmp_path):
    """A ledger of six entries."""
    path = tmp_path / "ledger.jsonl"
    log = log_of(path)
    for number in range(6):
        log.answer(garbage(number))
    return path


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


def entries_of(path):
    return [json.loads(line) for line in lines_of(path)]


def proof_of(entry):
    """What a run record would hold about an entry."""
    committed = commitment(entry["salt"], entry["digest_out"])
    return {"head": entry["chain"], "digest_in": entry["digest_in"], "commitment": committed}


def test_each_line_holds_digests_of_what_came_and_what_left(tmp_path):
    rng = np.random.default_rng(0)
    rows = {"a": rng.normal(size=(30, 4)), "b": rng.normal(size=(9, 4))}
    logs = {
        name: AnswerLog(Site(X, name=name), tmp_path / name, silent) for name, X in rows.items()
    }
    came, left = [], []

    def carry(reply):
        request = encode(reply.request)
        answer = logs[reply.site].answer(request)
        if reply.site == "b":
            came.append(request)
            left.append(answer)
        return answer

    FederatedPCA(2, solver="local-power", tol=0.1).fit(Federation(ScriptedEngine(rows, carry)))
    entries = entries_of(tmp_path / "b")
    assert [entry["digest_in"] for entry in entries] == [digest(data) for data in came]
    assert [entry["digest_out"] for entry in entries] == [digest(data) for data in left]
    scalars = [
        {name: array.item() for name, array in decode(data).arrays.items() if array.ndim == 0}
        for data in came
    ]
    assert [entry["values"] for entry in entries] == scalars
    assert any("steps" in values for values in scalars)
    check = check_chain(tmp_path / "b")
    assert (check.n_entries, len(check.runs), check.problem) == (len(came), 1, "")
    assert check.head == entries[-1]["chain"] != check_chain(tmp_path / "a").head


def test_numbers_that_json_does_not_have_are_written_as_words(tmp_path):
    path = tmp_path / "ledger.jsonl"
    header = {"run": "r.0", "round": 1, "question": "none", "verb": "sum", "memory": 0}
    log_of(path).answer(encode(compose(header, {"t": np.array(np.nan), "n": np.array(3)})))
    assert entries_of(path)[0]["values"] == {"t": "nan", "n": 3}
    assert check_chain(path).problem == ""


def test_two_sites_with_equal_answers_have_different_heads(tmp_path):
    """A guess of an answer cannot be tried against a head."""
    heads = set()
    for name in ("one", "two"):
        log_of(tmp_path / name).answer(b"garbage")
        heads.add(check_chain(tmp_path / name).head)
        assert len(entries_of(tmp_path / name)[0]["salt"]) == 32
    assert len(heads) == 2


def test_a_whole_ledger_says_its_length_and_head(path):
    check = check_chain(path)
    assert (check.n_entries, check.problem, check.notes) == (6, "", [])
    assert check.head == entries_of(path)[-1]["chain"]


def test_an_empty_ledger_has_no_head_and_a_missing_one_is_refused(tmp_path):
    (tmp_path / "empty").touch()
    check = check_chain(tmp_path / "empty")
    assert (check.n_entries, check.head, check.problem) == (0, NO_HEAD, "")
    for name in ("missing", "."):
        with pytest.raises(FedpcaError, match="cannot be read"):
            check_chain(tmp_path / name)


@pytest.mark.parametrize("at", range(6))
def test_a_changed_line_is_named(path, at):
    lines = lines_of(path)
    lines[at] = lines[at].replace(b'"refused": "', b'"refused": "not ')
    path.write_bytes(b"".join(lines))
    assert check_chain(path).problem == f"line {at + 1} was changed"


@pytest.mark.parametrize("at", range(5))
def test_a_line_that_was_replaced_with_a_good_chain_is_named(path, at):
    lines, entry = lines_of(path), entries_of(path)[at]
    entry["question"] = "something_harmless"
    entry["chain"] = chain_of(entry)
    lines[at] = json.dumps(entry).encode() + b"\n"
    path.write_bytes(b"".join(lines))
    assert check_chain(path).problem == (
        f"line {at + 1} was replaced: line {at + 2} follows from a different line"
    )


@pytest.mark.parametrize(("first", "n"), [(0, 1), (2, 1), (1, 3)])
def test_removed_lines_are_named(path, first, n):
    lines = lines_of(path)
    path.write_bytes(b"".join(lines[:first] + lines[first + n :]))
    assert check_chain(path).problem == f"{n} entries before line {first + 1} were removed"


def test_an_inserted_line_is_named(path, tmp_path):
    lines = lines_of(path)
    forged = {**entries_of(path)[2], "previous": entries_of(path)[2]["chain"], "entry": 4}
    forged["chain"] = chain_of(forged)
    for added, problem in [
        (lines[1], "line 4 does not follow from line 3; one of them was inserted"),
        (json.dumps(forged).encode() + b"\n",
         "line 5 does not follow from line 4; one of them was inserted"),
        (PLAIN.encode(), "line 4 was changed or inserted; it has no chain"),
        (b"\n", "line 4 was changed or inserted; it has no chain"),
        (b'{"rou\n', "line 4 was changed or inserted; it has no chain"),
    ]:  # fmt: skip
        path.write_bytes(b"".join([*lines[:3], added, *lines[3:]]))
        assert check_chain(path).problem == problem


def test_a_key_that_is_given_twice_does_not_hide_a_change(path):
    lines = lines_of(path)
    lines[2] = lines[2].replace(b'"entry": 3', b'"round": 99, "entry": 3')
    path.write_bytes(b"".join(lines))
    assert json.loads(lines[2])["round"] is None  # a parser takes the last
    assert check_chain(path).problem == "line 3 was changed"


@settings(draws(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_changed_byte_goes_unnoticed(path, data):
    good = path.read_bytes()
    at = data.draw(st.integers(0, len(good) - 2))  # the last newline is no part of an entry
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != good[at]))
    try:
        path.write_bytes(good[:at] + bytes([byte]) + good[at + 1 :])
        assert check_chain(path).problem
    finally:
        path.write_bytes(good)


@pytest.mark.parametrize("kept", [0, 3, 5])
def test_lines_removed_from_the_end_show_only_against_a_kept_head(path, kept):
    proof = proof_of(entries_of(path)[-1])
    assert check_proof(path, proof) == (6, "")
    path.write_bytes(b"".join(lines_of(path)[:kept]))
    assert check_chain(path).problem == ""  # the chain alone cannot show it
    number, problem = check_proof(path, proof)
    assert number == 0
    assert f"no verified entry has the head {proof['head']}" in problem
    log_of(path).answer(b"another")  # nor does going on hide it
    assert check_proof(path, proof)[0] == 0


def test_a_ledger_that_was_rewritten_from_the_start_shows_against_a_kept_head(path, tmp_path):
    proof = proof_of(entries_of(path)[-1])
    path.unlink()
    log = log_of(path)
    for number in range(6):
        log.answer(garbage(number))
    assert check_chain(path).problem == ""
    assert check_proof(path, proof)[0] == 0


def test_a_proof_of_another_question_or_answer_does_not_match(path):
    first, last = entries_of(path)[0], entries_of(path)[-1]
    wrong_question = {**proof_of(last), "digest_in": first["digest_in"]}
    wrong_answer = {**proof_of(last), "commitment": proof_of(first)["commitment"]}
    assert check_proof(path, wrong_question) == (
        6, "entry 6 records a different question than the run record")  # fmt: skip
    assert check_proof(path, wrong_answer) == (
        6, "entry 6 records a different answer than the run record")  # fmt: skip


@pytest.mark.parametrize("missing", [1, 2, 30, 300])
def test_a_torn_last_line_is_kept_and_never_verified(path, missing):
    torn = path.read_bytes()[:-missing]
    path.write_bytes(torn)
    check = check_chain(path)
    if missing == 1:  # only the newline is missing, and the entry is whole
        assert (check.n_entries, check.problem) == (6, "")
    else:
        assert check.n_entries == 5
        assert check.problem == (
            "line 6 is torn, as by a power failure; it is not verified, but once "
            "the next answer is recorded, nobody can change it unnoticed"
        )
    log_of(path).answer(b"another")
    assert path.read_bytes().startswith(torn + b"\n")
    check = check_chain(path)
    assert check.problem == ""
    assert check.n_entries == (7 if missing == 1 else 6)
    if missing > 1:
        assert check.notes == [
            "line 6 is torn, as by a power failure: not verified, but unchanged since line 7 was "
            "written"
        ]
        lines = lines_of(path)
        path.write_bytes(b"".join([*lines[:5], lines[5][:40] + b"\n", lines[6]]))
        assert check_chain(path).problem == "line 6 was changed or inserted; it has no chain"
        path.write_bytes(b"".join([*lines[:5], lines[6]]))
        assert check_chain(path).problem == ("the lines without a chain before line 6 were removed")


def test_a_power_failure_while_a_torn_line_is_ended_tears_two_lines(path):
    path.write_bytes(path.read_bytes()[:-50] + b'\n{"entry": 6, "ti')
    log_of(path).answer(b"another")
    check = check_chain(path)
    assert (check.n_entries, check.problem) == (6, "")
    assert "lines 6 to 7 are torn" in check.notes[0]


def test_a_whole_line_without_a_chain_is_never_taken_for_a_torn_one(path):
    """Even if the site went on after somebody put it there."""
    lines = lines_of(path)
    path.write_bytes(b"".join([*lines[:-1], PLAIN.encode()]))
    text = "line 6 was changed or inserted; it has no chain"
    assert check_chain(path).problem == text
    log_of(path).answer(b"another")
    assert check_chain(path).problem == text


def test_an_entry_longer_than_the_end_that_is_read_first_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(chained_lines, "TAIL_BYTES", 10)
    path = tmp_path / "ledger.jsonl"
    log = log_of(path)
    for number in range(4):
        log.answer(garbage(number))
    check = check_chain(path)
    assert (check.n_entries, check.problem, check.notes) == (4, "", [])


def test_an_answer_that_cannot_be_written_down_has_no_head(tmp_path):
    log = log_of(tmp_path)  # a folder
    recorded = log.reply(b"garbage")
    assert recorded.head == NO_HEAD
    assert decode(recorded.data).header["text"] == LEDGER.unsaved


def test_the_reply_names_the_head_of_its_own_line(path):
    recorded = log_of(path).reply(b"another")
    last = entries_of(path)[-1]
    assert (recorded.head, recorded.salt) == (last["chain"], last["salt"])
    assert (recorded.digest_in, digest(recorded.data)) == (last["digest_in"], last["digest_out"])
    assert digest(recorded.data) not in recorded.statement().hex()  # only a commitment to it
    assert proof_of(last)["commitment"] in recorded.statement().hex()


def append_often(path, n):
    for number in range(n):
        log_of(path).answer(garbage(number))


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="there are no file locks")
def test_two_processes_that_write_to_one_ledger_keep_one_chain(tmp_path):
    path = tmp_path / "ledger.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=append_often, args=(path, 40)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    check = check_chain(path)
    assert (check.n_entries, check.problem) == (80, "")


def test_a_full_disk_leaves_the_chain_as_it_was(path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    before = path.read_bytes()
    monkeypatch.setattr(chained_lines.os, "fsync", full)
    with pytest.raises(SiteFailed) as failed, chained_lines.opened(path, LEDGER) as file:
        chained_lines.add(file, {}, LEDGER)
    assert "No space" in str(failed.value.__cause__)
    assert path.read_bytes() == before
