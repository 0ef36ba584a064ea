"""Keys, certificates, policies and ledgers as files: what is written, and what is refused."""

from __future__ import annotations

import json
import resource
import ssl
import stat

import numpy as np
import pytest

from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.engines import credentials
from fedpca.engines.default_locations import coordinator_folder, with_port
from fedpca.errors import FileError, InputError
from fedpca.protocol.message import decode, encode
from fedpca.site.answer_log import AnswerLog
from fedpca.site.store import LEDGER
from fedpca.testing import ScriptedEngine


def test_a_key_pair_is_known_by_the_name_in_it_and_only_its_owner_reads_the_private_half(tmp_path):
    private, public = credentials.make_site_key(tmp_path, "north")
    key = credentials.read_site_key(private)
    moved = public.rename(tmp_path / "mail-attachment")
    assert credentials.read_public_keys([moved]) == {"north": key.public_key()}
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    with pytest.raises(FileError, match=r"north\.key already exists"):
        credentials.make_site_key(tmp_path, "north")


@pytest.mark.parametrize(
    "name", ["", "two words", "a/b", "new\nline", "..", "-x", "7", "a,b", "x" * 65]
)
def test_a_name_that_cannot_be_one_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="is not a valid site name"):
        credentials.make_site_key(tmp_path, name)


def test_files_that_are_no_keys_are_refused_by_name(tmp_path):
    _, public = credentials.make_site_key(tmp_path, "north")
    other = tmp_path / "other"
    other.write_text("nothing")
    with pytest.raises(FileError, match="other is not a key written by `fedpca site-key`"):
        credentials.read_site_key(other)
    with pytest.raises(FileError, match="other is not a public key"):
        credentials.read_public_keys([other])
    with pytest.raises(FileError, match="missing cannot be read: No such file"):
        credentials.read_site_key(tmp_path / "missing")
    with pytest.raises(InputError, match="is a second key for 'north'"):
        credentials.read_public_keys([public, public])
    other.write_text(public.read_text().replace("north", "south"))
    with pytest.raises(InputError, match="other has the same key as a different site"):
        credentials.read_public_keys([public, other])
    with pytest.raises(InputError, match="needs its sites' public keys"):
        credentials.read_public_keys([])


def test_a_key_of_another_kind_is_refused(tmp_path):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path = tmp_path / "north.key"
    openssh = serialization.PrivateFormat.OpenSSH
    path.write_bytes(
        Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, openssh, serialization.NoEncryption()
        )
    )
    with pytest.raises(FileError, match="the wrong type of key"):
        credentials.read_site_key(path)


def test_made_certificates_are_those_of_the_names_given(tmp_path):
    credentials.make_certificates(tmp_path, ["pca.example.org", "10.0.0.7"])
    certificate, key = credentials.server_files(tmp_path)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(
        cadata=credentials.read_authority(tmp_path / "ca.pem").decode()
    )
    for name, fits in (("pca.example.org", True), ("10.0.0.7", True), ("evil.example.org", False)):
        assert _shake_hands(client, server, name) is fits
    with pytest.raises(FileError, match=r"ca\.pem already exists"):
        credentials.make_certificates(tmp_path)
    with pytest.raises(InputError, match="is not an ASCII host name"):
        credentials.make_certificates(tmp_path / "other", ["ünï.example"])


def _shake_hands(client, server, name):
    """Whether a client that expects this name accepts the server, without any socket."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(down, up, server_hostname=name)
    far = server.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for end in (near, far):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return True


def test_certificates_and_secrets_that_are_not_there_are_named(tmp_path):
    with pytest.raises(FileError, match=r"server\.pem does not exist.*--make-certificates"):
        credentials.server_files(tmp_path)
    (tmp_path / "server.key").touch()
    with pytest.raises(
        FileError, match=r"server\.key exists without its certificate.*move the key"
    ):
        credentials.server_files(tmp_path)
    with pytest.raises(FileError, match=r"coordinator\.secret cannot be read"):
        credentials.read_secret(tmp_path)
    secret = credentials.make_secret(tmp_path)
    assert credentials.make_secret(tmp_path) == credentials.read_secret(tmp_path) == secret
    (tmp_path / "coordinator.secret").write_text("short")
    with pytest.raises(FileError, match="is not a secret"):
        credentials.read_secret(tmp_path)
    with pytest.raises(FileError, match="does not contain a PEM certificate"):
        credentials.read_authority(tmp_path / "coordinator.secret")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("server", "server:9092"),
        ("server:8000", "server:8000"),
        ("[::1]", "[::1]:9092"),
        ("[::1]:80", "[::1]:80"),
    ],
)
def test_an_address_without_a_port_has_the_usual_one(given, meant):
    assert with_port(given) == meant


@pytest.mark.parametrize(
    "given",
    [
        "server:port",
        "https://server:80",
        "server:99999",
        "server:",
        "",
        ":80",
        "::1",
        "[::1",
        "host:²",
        "localhost..:9193",
        f"{64 * 'x'}.example.org",
        "localhost#x:9193",
        "localhost?:9193",
        "me@localhost",
        "local\\host",
        "local host",
    ],
)
def test_an_address_that_is_none_is_refused(given):
    with pytest.raises(InputError, match="must be HOST or HOST:PORT"):
        with_port(given)


def test_files_of_ours_go_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPCA_HOME", str(tmp_path))
    assert coordinator_folder(None) == tmp_path / "coordinator"
    assert coordinator_folder("here").name == "here"


def test_a_site_writes_down_what_left_and_agrees_with_the_coordinator(tmp_path):
    rng = np.random.default_rng(0)
    rows = {"a": rng.normal(size=(30, 4)), "b": rng.normal(size=(9, 4))}
    told = []
    logs = {
        name: AnswerLog(Site(X, name=name), tmp_path / f"{name}.jsonl", told.append)
        for name, X in rows.items()
    }
    engine = ScriptedEngine(rows, lambda reply: logs[reply.site].answer(encode(reply.request)))
    run = FederatedPCA(2).fit(Federation(engine)).run_
    lines = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    up = [entry for entry in run.ledger if entry.site == "b" and entry.direction == "up"]
    down = [entry for entry in run.ledger if entry.site == "b" and entry.direction == "down"]
    assert sum(line["bytes_out"] for line in lines) == sum(entry.bytes for entry in up)
    assert sum(line["bytes_in"] for line in lines) == sum(entry.bytes for entry in down)
    fields = [(e.question, e.field, list(e.shape)) for e in up if e.field != "(envelope)"]
    assert [(line["question"], *item) for line in lines for item in line["left"].items()] == fields
    assert "summed over 2 sites" in told[2]
    assert "which the coordinator will see" in told[0]


def test_what_a_site_refuses_is_written_down_too(tmp_path):
    site = Site(np.ones((3, 2)), name="a", policy=Policy(min_rows=10))
    told = []
    ledger = AnswerLog(site, tmp_path / "a.jsonl", told.append)
    assert decode(ledger.answer(b"garbage")).header["error"] == "MessageError"
    assert "not a fedpca message" in told[0]
    assert json.loads((tmp_path / "a.jsonl").read_text())["left"] == {}


def test_nothing_leaves_that_cannot_be_written_down(tmp_path):
    told = []
    ledger = AnswerLog(Site(np.ones((3, 2)), name="a"), tmp_path, told.append)  # a folder
    reply = decode(ledger.answer(b"garbage"))
    assert reply.header["error"] == "SiteFailed"
    assert not reply.arrays
    assert "Is a directory" in told[0]
    assert "no answers will leave until this is fixed" in told[0]


def test_a_disk_that_was_full_leaves_no_half_line_in_a_ledger(tmp_path):
    path, told = tmp_path / "a.jsonl", []
    ledger = AnswerLog(Site(np.ones((3, 2)), name="a"), path, told.append)
    ledger.answer(b"garbage")
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        reply = decode(ledger.answer(b"garbage"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert reply.header["text"] == LEDGER.unsaved
    assert path.read_bytes() == before
    ledger.answer(b"garbage")
    assert [json.loads(line)["bytes_in"] for line in path.read_text().splitlines()] == [7, 7]


def test_a_line_that_a_power_cut_tore_spoils_no_other(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"round": 1}\n{"rou')
    AnswerLog(Site(np.ones((3, 2)), name="a"), path, lambda text: None).answer(b"garbage")
    lines = path.read_text().splitlines()
    assert lines[:2] == ['{"round": 1}', '{"rou']
    assert json.loads(lines[2])["bytes_in"] == 7


def test_several_files_are_one_site(tmp_path):
    parts = np.arange(12.0).reshape(2, 3, 2)
    for i, part in enumerate(parts):
        np.save(tmp_path / f"part-{i}.npy", part)
    both = Site([tmp_path / "part-0.npy", tmp_path / "part-1.npy"], name="a")
    found = Site(str(tmp_path / "part-*.npy"), name="b")
    for site in (both, found):
        assert np.array_equal(np.vstack(list(site.rows.blocks())), np.vstack(parts))
    with pytest.raises(InputError, match=r"no file matches .*other-\*"):
        Site(str(tmp_path / "other-*.npy"), name="c")
    with pytest.raises(InputError, match="the name of a file or folder is empty"):
        Site("", name="d")
