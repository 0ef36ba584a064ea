"""Keys, certificates and secrets that are damaged, or that others can read, are refused by name."""

from __future__ import annotations

import os
import shutil
import stat

import numpy as np
import pytest

from command_line import run
from disks import as_ordinary_user
from fedpca import Federation, Policy
from fedpca.engines import credentials
from fedpca.errors import FedpcaError, FileError

READERS = {
    "north.key": credentials.read_site_key,
    "north.pub": lambda path: credentials.read_public_keys([path]),
    "ca.pem": credentials.read_authority,
    "server.pem": lambda path: credentials.server_files(path.parent),
    "server.key": lambda path: credentials.server_files(path.parent),
    "coordinator.secret": lambda path: credentials.read_secret(path.parent),
    "coordinator.key": lambda path: credentials.read_coordinator_key(path.parent),
    "coordinator.pub": credentials.read_coordinator_public,
    "policy.toml": Policy.load,
}
SECRETS = ["north.key", "server.key", "coordinator.secret", "coordinator.key"]


@pytest.fixture
def folder(tmp_path):
    write_all(tmp_path)
    return tmp_path


def write_all(folder):
    credentials.make_site_key(folder, "north")
    credentials.make_certificates(folder, ["localhost"])
    credentials.make_secret(folder)
    credentials.make_coordinator_key(folder)
    (folder / "policy.toml").write_text("min_rows = 20\nend = true\n")


def damaged(good, rng):
    yield from (good[:size] for size in range(0, len(good), 7))
    yield from (rng.bytes(int(size)) for size in rng.integers(1, 400, 30))
    for _ in range(300):
        spoiled = bytearray(good)
        spoiled[rng.integers(0, len(good))] = rng.integers(0, 256)
        yield bytes(spoiled)


@pytest.mark.parametrize("name", READERS)
def test_no_damage_gives_an_error_of_another_package(name, folder):
    path, told = folder / name, []
    for content in damaged(path.read_bytes(), np.random.default_rng(1)):
        path.write_bytes(content)
        try:
            READERS[name](path)
        except FedpcaError as error:
            told.append(str(error))
    assert told
    assert all(str(path) in text for text in told)


def test_a_public_key_in_a_form_that_is_not_ours_is_refused(folder):
    path = folder / "north.pub"
    kind, data, name = path.read_text().split()
    told = []
    for i in range(len(data)):
        path.write_text(f"{kind} {data[:i]}A{data[i + 1 :]} {name}\n")
        try:
            credentials.read_public_keys([path])
        except FileError as error:
            told.append(str(error))
    assert told
    assert all("north.pub is not a public key" in text for text in told)


@pytest.mark.parametrize("name", READERS)
def test_a_folder_or_an_empty_file_in_its_place_is_refused(name, folder):
    path = folder / name
    path.write_bytes(b"")
    with pytest.raises(FileError, match=str(path)):
        READERS[name](path)
    path.unlink()
    path.mkdir()
    with pytest.raises(FileError, match=str(path)):
        READERS[name](path)


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_may_not_be_read_says_so(name):
    with as_ordinary_user() as folder:
        write_all(folder)
        (folder / name).chmod(0)
        with pytest.raises(FileError, match=f"{name} cannot be read: Permission denied"):
            READERS[name](folder / name)


def test_a_key_that_belongs_to_another_certificate_is_refused(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    credentials.make_certificates(other)
    (other / "server.key").replace(folder / "server.key")
    with pytest.raises(FileError, match="are not a PEM certificate and its key"):
        credentials.server_files(folder)


def test_a_coordinator_key_and_its_public_part_belong_together(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    credentials.make_coordinator_key(other)
    public = (folder / "coordinator.pub").read_bytes()
    shutil.copy(other / "coordinator.pub", folder)
    with pytest.raises(FileError, match=r"coordinator\.pub does not belong to .*coordinator\.key"):
        credentials.make_coordinator_key(folder)
    (folder / "coordinator.pub").unlink()
    credentials.make_coordinator_key(folder)
    assert (folder / "coordinator.pub").read_bytes() == public  # written again from the key
    (folder / "coordinator.key").unlink()
    with pytest.raises(FileError, match=r"coordinator\.pub exists without its key"):
        credentials.make_coordinator_key(folder)
    assert not (folder / "coordinator.key").exists()


def test_a_key_of_another_kind_is_refused(folder):
    shutil.copy2(folder / "north.key", folder / "coordinator.key")
    with pytest.raises(FileError, match=r"coordinator\.key is not a coordinator's key"):
        credentials.read_coordinator_key(folder)
    with pytest.raises(FileError, match=r"north\.pub is not a coordinator's public key"):
        credentials.read_coordinator_public(folder / "north.pub")
    with pytest.raises(FileError, match=r"coordinator\.pub is not a public key written by"):
        credentials.read_public_keys([folder / "coordinator.pub"])


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o610])
@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_that_others_can_read_is_refused_as_ssh_does(name, mode, folder):
    path = folder / name
    READERS[name](path)
    path.chmod(mode)
    with pytest.raises(FileError) as refused:
        READERS[name](path)
    others = f"other users of this machine can read or change it (mode {mode:o})"
    assert f"{path} holds a secret, but {others}; run " in str(refused.value)
    assert f"run chmod 600 {path}; if someone may have read the secret, replace it" in str(
        refused.value
    )
    path.chmod(0o400)
    READERS[name](path)


def test_a_secret_of_another_user_is_that_users_to_keep(folder):
    path = folder / "north.key"
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        credentials.read_site_key(path)


@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_new_secrets_are_closed_whatever_the_umask(mask, tmp_path):
    before = os.umask(mask)
    try:
        write_all(tmp_path)
    finally:
        os.umask(before)
    for name in SECRETS:
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_the_commands_refuse_secrets_that_others_can_read(folder):
    np.save(folder / "rows.npy", np.eye(3))
    for name in SECRETS:
        (folder / name).chmod(0o644)
    (folder / "kept").mkdir()
    for name in ("server.pem", "server.key", "coordinator.key"):
        shutil.copy2(folder / name, folder / "kept")
    (folder / "kept" / "server.key").chmod(0o600)
    where = ("--credentials", folder)
    commands = {
        "north.key": ("join", "localhost:1", "--data", folder / "rows.npy", "--key",
                      folder / "north.key", "--ca", folder / "ca.pem", "--folder", folder / "n"),
        "server.key": ("serve", folder / "north.pub", *where),
        "coordinator.secret": ("fit", "--federation", "localhost:1", *where, "-o", folder / "m"),
    }  # fmt: skip
    commands["kept/coordinator.key"] = (
        "serve", folder / "north.pub", "--credentials", folder / "kept"
    )  # fmt: skip
    for name, words in commands.items():
        done = run(*words)
        assert done.exit_code == 2
        assert f"run chmod 600 {folder / name}" in done.output
    with pytest.raises(FileError, match="run chmod 600"):
        Federation.flower("localhost:1", credentials=folder)


def test_the_commands_refuse_damaged_credentials_with_one_line(folder):
    np.save(folder / "rows.npy", np.eye(3))
    for name in READERS:
        path = folder / name
        path.write_bytes(path.read_bytes()[:30])
    key = ("--data", folder / "rows.npy", "--key", folder / "north.key")
    for words, name in (
        (("join", "localhost:1", *key), "north.key"),
        (("join", "localhost:1", *key, "--ca", folder / "ca.pem"), "ca.pem"),
        (("serve", folder / "north.pub", "--credentials", folder), "north.pub"),
        (("fit", "--federation", "localhost:1", "--credentials", folder, "-o", folder / "m"),
         "coordinator.secret"),
    ):  # fmt: skip
        done = run(*words)
        assert done.exit_code == 2
        assert f"error: {folder / name} " in done.output
