"""Answers are bound to the sites' keys, and a run record proves what a site was asked."""

from __future__ import annotations

import json
import re
import shutil
import signal

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from command_line import told
from fedpca import FederatedPCA, Federation, Policy, Site, load
from fedpca.engines import credentials
from fedpca.engines.flower import envelope as wire
from fedpca.errors import FileError, LedgerError, MessageError, QuorumLost
from fedpca.protocol.proof import NO_HEAD, Proof, commitment, digest, statement
from fedpca.site.answer_log import check_chain, check_proof
from processes import HANG_S, Processes, save_rows

HONEST, SITES = ("north", "south"), ("north", "south", "third")


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A server that knows three sites, two of which are there and stay."""
    folder = tmp_path_factory.mktemp("federation")
    save_rows(folder, SITES, seed=7)
    processes = Processes(folder, SITES)
    for site in HONEST:
        processes.join(site, f"{site}.npy")
    processes.federation(sites=HONEST).close()
    yield processes
    processes.stop_all()


def ledger_of(there, site):
    return there.folder / "home" / "sites" / site / "ledger.jsonl"


REFUSED = "the signature of this answer to this question was not made with the key "


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("unsigned", "the answer is not signed; install the same version of fedpca there"),
        ("altered", REFUSED),
        ("stolen:north.key", REFUSED),
        ("rewritten", REFUSED),
        ("truncated:100", REFUSED),
        ("truncated:48", "a proof of 48 bytes is too short"),
        ("truncated:0", "a proof of 0 bytes is too short"),
        ("unrecorded", "the site cannot save its ledger"),
    ],
)
def test_a_site_without_a_good_signature_is_given_up_by_name(there, kind, said):
    site = there.rogue("third", "third.npy", kind)
    with there.federation(sites=SITES) as fed:
        with pytest.raises(QuorumLost, match=r"2 of 3 sites are left.*site 'third'"):
            FederatedPCA(3).fit(fed)
        fed.terms.quorum = 2
        run = FederatedPCA(3).fit(fed).run_
    there.stop(site, signal.SIGINT)
    assert run.sites == HONEST
    assert [lost["site"] for lost in run.lost] == ["third"]
    (loss,) = run.lost
    where = r"site 'third', round (0, while declaring the run|1, while asking for column names): "
    assert re.search(where + re.escape(said), loss["reason"])
    assert set(run.proofs) == set(HONEST)
    if said == REFUSED:
        assert there.fingerprint("third") in run.lost[0]["reason"]


@pytest.mark.process
def test_an_answer_of_another_round_is_refused_with_its_own_good_signature(there):
    site = there.rogue("third", "third.npy", "replayed")
    with there.federation(sites=SITES, quorum=2) as fed:
        run = FederatedPCA(3).fit(fed).run_
    there.stop(site, signal.SIGINT)
    where = "site 'third', round 1, while asking for column names: "
    assert where + REFUSED in run.lost[0]["reason"]
    assert set(run.proofs) == set(HONEST)


@pytest.mark.process
def test_a_run_record_proves_what_each_site_was_asked(there):
    with there.federation(sites=HONEST) as fed:
        model = FederatedPCA(3, random_state=0).fit(fed)
        again = FederatedPCA(3, random_state=0).fit(fed)
    model.save(there.folder / "signed.fedpca")
    proofs = load(there.folder / "signed.fedpca").run_.proofs
    assert proofs == model.run_.proofs
    assert list(proofs) == list(HONEST)
    for site, proof in proofs.items():
        path = ledger_of(there, site)
        number, problem = check_proof(path, proof)
        entry = json.loads(path.read_text().splitlines()[number - 1])
        assert problem == ""
        assert (entry["round"], entry["question"]) == (
            model.run_.history[-1]["round"],
            model.run_.history[-1]["question"],
        )
        assert proof["key"] == there.fingerprint(site)
        own = credentials.public_key_in(there.folder / f"{site}.key")
        credentials.refuse_unproven(proof, own)
        assert check_proof(path, again.run_.proofs[site])[0] > number
        for field in ("head", "digest_in", "commitment"):
            with pytest.raises(LedgerError, match="was not made with this key"):
                credentials.refuse_unproven({**proof, field: NO_HEAD}, own)
    with pytest.raises(LedgerError, match="not with"):
        credentials.refuse_unproven(
            proofs["north"], credentials.public_key_in(there.folder / "south.pub")
        )


@pytest.mark.process
def test_a_federation_in_one_process_has_the_ledger_of_many_and_no_proofs(there):
    with there.federation(sites=HONEST) as fed:
        far = FederatedPCA(3, random_state=0).fit(fed)
    sites = {n: Site(there.folder / f"{n}.npy", name=n, policy=Policy()) for n in HONEST}
    within = FederatedPCA(3, random_state=0).fit(Federation.local(sites))
    assert list(far.run_.ledger) == list(within.run_.ledger)
    assert far.components_.tobytes() == within.components_.tobytes()
    assert within.run_.proofs == {}
    assert "proofs" not in within.run_.to_header()


@pytest.mark.process
def test_the_shell_compares_a_ledger_with_a_model(there):
    there.run(
        *("fit", "--federation", there.address, "--credentials", "tls", "--sites", "north,south"),
        *("-k", "3", "--seed", "0", "--timeout", str(HANG_S), "-o", "shell.fedpca"),
    )
    proofs = load(there.folder / "shell.fedpca").run_.proofs
    shown = there.run("info", "shell.fedpca").stdout
    for site in HONEST:
        assert proofs[site]["head"] in shown
        assert there.fingerprint(site) in shown
    plain = json.loads(there.run("info", "shell.fedpca", "--json").stdout)
    assert plain["run"]["proofs"] == proofs
    checked = told(there.run("ledger", "verify", "--site", "north", "--model", "shell.fedpca",
                             "--key", "north.pub"))  # fmt: skip
    n = check_chain(ledger_of(there, "north")).n_entries
    assert checked["entries"] == f"{n:,}"
    assert checked["entry"] == (
        f"{n:,} (the last answer of north in shell.fedpca, and its signature is valid)"
    )
    own = there.folder / "copy" / "north" / "ledger.jsonl"
    own.parent.mkdir(parents=True)
    lines = ledger_of(there, "north").read_bytes().splitlines(keepends=True)
    own.write_bytes(b"".join(lines[:-1]))
    assert there.run("ledger", "verify", str(own)).returncode == 0
    words = ("ledger", "verify", str(own), "--model", "shell.fedpca")
    refused = there.run(*words, check=False)
    assert refused.returncode == 1
    assert f"no verified entry has the head {proofs['north']['head']}" in refused.stderr
    own.write_bytes(b"".join(lines))
    assert there.run(*words).returncode == 0
    other = there.run(*words, "--key", "south.pub", check=False)
    assert other.returncode == 1
    assert "the run record holds an answer signed with the key" in other.stderr
    other = there.run(*words, "--site", "south", check=False)
    assert other.returncode == 1
    other = there.run(*words, "--site", "nobody", check=False)
    assert other.returncode == 2
    assert (
        "has no signed answer from 'nobody'; use --site with one of: north, south" in other.stderr
    )


@pytest.mark.process
def test_keys_that_the_coordinator_keeps_win_over_those_of_the_server(there, tmp_path):
    own = tmp_path / "own"
    shutil.copytree(there.credentials, own)
    pinned = own / "sites"
    pinned.mkdir()
    shutil.copy(there.folder / "north.pub", pinned)
    with Federation.flower(there.address, sites=HONEST, credentials=own, wait=HANG_S) as fed:
        FederatedPCA(3).fit(fed)
    (pinned / "north.pub").unlink()
    credentials.make_site_key(pinned, "north")  # another key than the one that north has
    with (
        Federation.flower(there.address, sites=HONEST, credentials=own, wait=HANG_S) as fed,
        pytest.raises(QuorumLost, match=f"site 'north'.*{REFUSED}") as refused,
    ):
        FederatedPCA(3).fit(fed)
    key = credentials.public_key_in(pinned / "north.pub")
    assert credentials.fingerprint(key) in str(refused.value)
    (pinned / "north.pub").write_text("damaged")
    with pytest.raises(FileError, match=r"north\.pub is not a public key"):
        Federation.flower(there.address, sites=HONEST, credentials=own, wait=HANG_S)


@pytest.mark.process
def test_serve_writes_a_key_for_the_sites_once(there):
    folder = there.credentials
    public = credentials.read_coordinator_public(folder / "coordinator.pub")
    assert credentials.read_coordinator_key(folder).public_key() == public
    log = there.log(there.server)
    assert "coordinator.pub; give it to the sites" in log
    assert f"Its fingerprint is {credentials.fingerprint(public)}" in log


@pytest.mark.parametrize("size", [100, 12 << 20])  # in one object, or in pieces
def test_a_proof_travels_beside_a_message_and_does_not_change_it(size):
    data, proof = bytes(size), b"proof"
    message = wire.message_to(1, 2, wire.wrap(data, proof))
    assert wire.unwrap(message) == data
    assert wire.unwrap_proof(message) == proof
    assert wire.unwrap_proof(wire.message_to(1, 2, wire.wrap(data))) is None


def test_a_proof_has_one_length_and_comes_back_as_it_was():
    key = ec.generate_private_key(ec.SECP384R1())
    proofs = [Proof("ab" * 32, "cd" * 16, credentials.sign(key, bytes([i]))) for i in range(50)]
    assert {len(proof.to_bytes()) for proof in proofs} == {32 + 16 + 96}
    assert [Proof.from_bytes(proof.to_bytes()) for proof in proofs] == proofs
    with pytest.raises(MessageError, match="48 bytes is too short"):
        Proof.from_bytes(bytes(48))


def test_a_statement_depends_on_everything_it_is_about():
    parts = [digest(bytes([i])) for i in range(6)]
    seen = {
        statement(question, commitment(salt * 16, answer), head)
        for question in parts[:2]
        for answer in parts[2:4]
        for head in parts[4:]
        for salt in ("00", "01")
    }
    assert len(seen) == 16


@pytest.mark.parametrize("make", [
    lambda: ec.generate_private_key(ec.SECP384R1()),
    lambda: ec.generate_private_key(ec.SECP521R1()),
    Ed25519PrivateKey.generate,
])  # fmt: skip
def test_only_the_right_key_data_and_signature_verify(make):
    key, other = make(), make()
    signature = credentials.sign(key, b"data")
    assert credentials.verify_signature(key.public_key(), signature, b"data")
    assert not credentials.verify_signature(key.public_key(), signature, b"date")
    assert not credentials.verify_signature(other.public_key(), signature, b"data")
    for bad in (b"", signature[:-1], signature + b"\0", bytes(len(signature)), signature[::-1]):
        assert not credentials.verify_signature(key.public_key(), bad, b"data")
    assert credentials.fingerprint(key.public_key()) != credentials.fingerprint(other.public_key())
    assert len(credentials.fingerprint(key.public_key())) == 64


def test_a_key_of_the_server_that_cannot_be_used_is_refused():
    wrong = rsa.generate_private_key(65537, 2048).public_key()
    pem = wrong.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for text in (b"", b"nothing", pem):
        with pytest.raises(FileError, match="cannot be read"):
            credentials.public_key_from_pem(text)
