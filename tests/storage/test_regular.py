"""A pipe, a socket, or a device is refused by name wherever a path is opened, and never blocks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from fedpca.errors import FileError, InputError
from fedpca.storage.regular import refuse_special
from processes import HANG_S

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
KINDS = (".csv", ".csv.gz", ".tsv", ".npy", ".npz", ".parquet", ".feather", ".h5", ".h5ad", ".bed")


@pytest.fixture
def fifo(tmp_path):
    def make(name):
        path = tmp_path / name
        os.mkfifo(path)
        return path

    return make


def run(*words, folder):
    """Run a command in a process of its own, which a pipe could block for ever."""
    command = [sys.executable, "-m", "fedpca", *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_S)


def test_pipes_sockets_and_devices_are_named_and_files_are_not_refused(tmp_path, fifo, monkeypatch):
    fifo("x")
    for error in (FileError, InputError):  # an InputError is also a ValueError
        with pytest.raises(error, match="a pipe"):
            refuse_special(tmp_path / "x", error)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "x")
    with pytest.raises(FileError, match="link is a pipe"):
        refuse_special(link)
    with pytest.raises(FileError, match="a device"):
        refuse_special("/dev/null")
    monkeypatch.chdir(tmp_path)  # since the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s")
        with pytest.raises(FileError, match="a socket"):
            refuse_special("s")
    file = tmp_path / "file"
    file.write_bytes(b"")
    for path in (file, tmp_path, tmp_path / "nothing", "a\0b"):
        refuse_special(path)


def test_data_in_a_pipe_is_refused_by_every_reader(fifo, tmp_path):
    paths = [str(fifo(f"rows{kind}")) for kind in KINDS]
    code = (
        "import sys\nfrom fedpca.errors import InputError\nfrom fedpca.rows.open import open_rows\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n        open_rows(path)\n    except InputError as error:\n        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *paths], capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(KINDS)
    for path, line in zip(paths, lines, strict=True):
        assert f"{path} is a pipe, which fedpca does not read" in line


@pytest.mark.parametrize("part", [".bim", ".fam"])
def test_a_part_of_a_fileset_that_is_a_pipe_is_refused(part, fifo, tmp_path):
    (tmp_path / "rows.bed").write_bytes(b"\x6c\x1b\x01")
    (tmp_path / "rows.bim").write_text("1 rs1 0 100 A C\n" if part == ".fam" else "")
    (tmp_path / f"rows{part}").unlink(missing_ok=True)
    fifo(f"rows{part}")
    done = run("check", "rows.bed", folder=tmp_path)
    assert done.returncode in (1, 2)
    assert f"rows{part} is a pipe" in " ".join(done.stdout.split() + done.stderr.split())


COMMANDS = {
    "check": ("check", "{}.csv"),
    "fit": ("fit", "rows.npy", "{}.csv", "-k", "1", "-o", "m.fedpca"),
    "transform": ("transform", "{}", "rows.npy", "-o", "scores.csv"),
    "info": ("info", "{}"),
    "merge": ("merge", "{}", "{}", "-k", "1", "-o", "m.fedpca"),
    "policy": ("policy", "--explain", "{}"),
    "key": ("site-key", "--show", "{}"),
    "journal": ("fit", "rows.npy", "-k", "1", "--journal", "{}", "-o", "m.fedpca"),
    "serve": ("serve", "{}", "--insecure"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_pipe_in_place_of_a_file(command, fifo, tmp_path):
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(20, 3)))
    fifo("p.csv" if command in ("check", "fit") else "p")
    words = [word.replace("{}", "p") for word in COMMANDS[command]]
    done = run(*words, folder=tmp_path)
    assert done.returncode in (1, 2), done.stderr
    assert "is a pipe, which fedpca does not read" in " ".join((done.stdout + done.stderr).split())


def test_standard_input_is_refused_if_it_is_a_pipe(tmp_path):
    (tmp_path / "rows.csv").symlink_to("/dev/stdin")
    command = [sys.executable, "-m", "fedpca", "check", "rows.csv"]
    done = subprocess.run(
        command, cwd=tmp_path, input="a,b\n1,2\n", capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode in (1, 2)
    assert "is a pipe" in done.stdout + done.stderr
