"""The commands about keys and ledgers say what they found, and exit with 1 if it was altered."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from command_line import ROWS, run, told
from fedpca import FederatedPCA, Site
from fedpca.coordinator.record import RunRecord
from fedpca.errors import FileError
from fedpca.estimators import load
from fedpca.protocol.proof import NO_HEAD
from fedpca.site.answer_log import AnswerLog
from fedpca.storage.tensor_file import read_arrays, write_arrays

PROOF = dict.fromkeys(("head", "digest_in", "commitment", "key"), NO_HEAD) | {
    "signature": "00" * 96
}


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    """The ledger of the only site here, with three entries."""
    monkeypatch.setenv("FEDPCA_HOME", str(tmp_path))
    path = tmp_path / "sites" / "north" / "ledger.jsonl"
    path.parent.mkdir(parents=True)
    log = AnswerLog(Site(np.ones((3, 2)), name="north"), path, lambda text: None)
    for _ in range(3):
        log.answer(b"garbage")
    return path


def test_a_key_shows_the_fingerprint_that_it_was_made_with(tmp_path):
    made = run("site-key", "north", "--folder", tmp_path).output
    mark = made.split("Its fingerprint is ")[1].strip()
    public = load_ssh_public_key((tmp_path / "north.pub").read_bytes())
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert mark == hashlib.sha256(der).hexdigest()
    for name in ("north.key", "north.pub"):
        assert run("site-key", "--show", tmp_path / name).output.strip() == mark
    assert sorted(path.name for path in tmp_path.iterdir()) == ["north.key", "north.pub"]


def test_a_key_is_either_made_or_shown(tmp_path):
    for words in ((), ("north", "--show", tmp_path / "north.pub")):
        done = run("site-key", *words)
        assert done.exit_code == 2
        assert "give either the name of a site, to create its keys, or --show" in done.output
    (tmp_path / "rows.npy").write_bytes(b"rows")
    done = run("site-key", "--show", tmp_path / "rows.npy")
    assert done.exit_code == 2
    assert "rows.npy is not a key written by" in done.output


def test_a_whole_ledger_is_found_by_itself(ledger):
    head = json.loads(ledger.read_text().splitlines()[-1])["chain"]
    for words in ((), (ledger,), ("--site", "north")):
        done = run("ledger", "verify", *words)
        assert done.exit_code == 0
        shown = told(done)
        assert (shown["entries"], shown["runs"], shown["chain is whole"]) == ("3", "0", "yes")
        assert (shown["head"], shown["file"]) == (head, str(ledger))
        assert shown["proof"] == "use --model to see whether the last lines were removed"
        plain = json.loads(run("ledger", "verify", *words, "--json").stdout)
        assert (plain["entries"], plain["head"], plain["proof"]) == (3, head, None)


def test_which_ledger_is_meant_must_be_clear(ledger):
    other = ledger.parents[1] / "south"
    other.mkdir()
    (other / "ledger.jsonl").touch()
    done = run("ledger", "verify")
    assert done.exit_code == 2
    assert "specify a ledger file, or choose a site with --site; the sites in" in done.output
    assert "are: north, south" in done.output
    done = run("ledger", "verify", "--site", "west")
    assert done.exit_code == 2
    assert "cannot be read" in done.output
    done = run("ledger", "verify", ledger, "--key", ledger)
    assert done.exit_code == 2
    assert "--key requires --model" in done.output


def test_an_altered_ledger_exits_with_1_and_names_the_line(ledger):
    ledger.write_text(ledger.read_text().replace('"bytes_in": 7', '"bytes_in": 8', 1))
    done = run("ledger", "verify")
    assert done.exit_code == 1
    assert (
        f"{ledger}: line 1 was changed; the 0 entries from 0 runs before this point are verified"
        in (done.output)
    )


def test_a_model_that_proves_nothing_says_so(ledger, tmp_path):
    FederatedPCA(2).fit(ROWS).save(tmp_path / "model.fedpca")
    done = run("ledger", "verify", "--model", tmp_path / "model.fedpca")
    assert done.exit_code == 2
    assert "has no signed answer from any site; check the ledger without --model" in done.output


@pytest.mark.parametrize(
    "proofs",
    [
        [],
        {"north": []},
        {"north": {}},
        {"north": {**PROOF, "more": NO_HEAD}},
        {"north": {**PROOF, "head": 1}},
        {"north": {**PROOF, "head": "x" * 64}},
        {"north": {**PROOF, "key": NO_HEAD + "00"}},
        {"north": {**PROOF, "signature": "00" * 10_000}},
    ],
)
def test_a_model_file_with_malformed_proofs_is_refused(tmp_path, proofs):
    path = tmp_path / "model.fedpca"
    model = FederatedPCA(2).fit(ROWS)
    model.run_.proofs = {"north": PROOF}
    model.save(path)
    assert load(path).run_.proofs == {"north": PROOF}
    assert NO_HEAD in run("info", path).output
    arrays, header = read_arrays(path, "model")
    header["run"]["proofs"] = proofs
    for name in ("format", "version"):
        header.pop(name)
    write_arrays(path, arrays, header)
    with pytest.raises(FileError, match=r"model\.fedpca has an invalid header: the proof"):
        load(path)


def test_a_model_file_from_before_there_were_proofs_still_loads(tmp_path):
    FederatedPCA(2).fit(ROWS).save(tmp_path / "model.fedpca")
    _, header = read_arrays(tmp_path / "model.fedpca", "model")
    assert "proofs" not in header["run"]
    assert RunRecord.from_header(header["run"]).proofs == {}
