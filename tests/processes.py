"""Federations of real processes, for tests: a server with keys and TLS, sites, and sites that err.

No limit here says how fast a machine is. Each is a bound on how long a broken test may hang.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import command_line
import forked
from fedpca import Federation
from fedpca.cli.demo_federation import await_port, free_port
from fedpca.engines import credentials
from support import gapped_rows

HANG_S = 900.0  # after which a test has failed, on however busy a machine
LATE_S = 15.0  # after which a site that was killed counts as lost; others answer in milliseconds
ROGUE = Path(__file__).with_name("rogue_site.py")
EXAMPLE_SOLVER = Path(__file__).parents[1] / "examples" / "solver_package"


class Processes:
    """A folder with the keys of sites, and the processes that were started in it.

    The processes count for coverage if they are measured, which takes them half as long again.
    """

    def __init__(self, folder, sites, is_measured=False, served=()):
        self.folder, self.port = folder, free_port()
        self.address = f"localhost:{self.port}"
        self.credentials = folder / "tls"
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if is_measured or not name.startswith("COVERAGE")
        }
        self.environment["FEDPCA_HOME"] = str(folder / "home")
        self.running, self._served = [], served
        for site in sites:
            credentials.make_site_key(folder, site)
        self.server = self.serve(sites)

    def serve(self, sites):
        made = () if self.credentials.exists() else ("--make-certificates",)
        keys = [f"{site}.pub" for site in sites]
        where = ("--credentials", "tls", "--port", str(self.port))
        server = self.start("serve", *keys, *made, *where, *self._served)
        await_port(self.port, HANG_S)
        return server

    def join(self, site, data, *more):
        return self.start(
            "join", self.address, *self._site(site, data), "--ca", "tls/ca.pem", *more
        )

    def rogue(self, site, data, kind):
        """Start a site that does what no site should; see rogue_site.py."""
        own = [self.address, site, data, f"{site}.key", "tls/ca.pem", f"home/sites/{site}", kind]
        return self._start([sys.executable, str(ROGUE), *own])

    def fingerprint(self, site):
        """The fingerprint of a site's key."""
        return credentials.fingerprint(credentials.public_key_in(self.folder / f"{site}.pub"))

    def federation(self, **options):
        usual = {"wait": HANG_S, "timeout": HANG_S}
        return Federation.flower(self.address, credentials=self.credentials, **{**usual, **options})

    def start(self, *words):
        return self._start(self._command(words))

    def run(self, *words, check=True):
        """Run a command in the folder, within this process, which spares it its imports."""
        with contextlib.chdir(self.folder), pytest.MonkeyPatch.context() as here:
            here.setenv("FEDPCA_HOME", self.environment["FEDPCA_HOME"])
            done = command_line.run(*words)
        assert not check or done.exit_code == 0, done.stderr
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)

    def run_apart(self, *words, check=True):
        """Run a command in a process of its own."""
        return self.run_python(*self._command(words)[1:], check=check)

    def run_python(self, *words, check=True, **options):
        done = forked.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            **options,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def log(self, process):
        return process.log.read_text()

    def stop(self, process, how=signal.SIGTERM):
        process.send_signal(how)
        process.wait(HANG_S)

    def stop_all(self):
        """Ask all to end; each must do so by itself, and leave nothing behind."""
        left = [process for process in self.running if process.poll() is None]
        for process in left:
            process.terminate()
        codes = [process.wait(HANG_S) for process in left]
        assert codes == [0] * len(left)
        assert not list(processes_within(self.folder))

    def _site(self, site, data):
        return ("--name", site, "--data", data, "--key", f"{site}.key")

    def _command(self, words):
        return [sys.executable, "-m", "fedpca", *words]

    def _start(self, command):
        log = self.folder / f"process-{len(self.running)}.log"
        with log.open("wb") as file:
            process = forked.Popen(
                command, cwd=self.folder, env=self.environment, stdout=file, stderr=file
            )
        process.log = log
        self.running.append(process)
        return process


def save_rows(folder, sites, seed):
    """Write NAME.npy for each site: 60 rows or more of 8 features, with 3 components that stand out."""
    rng = np.random.default_rng(seed)
    for i, site in enumerate(sites):
        np.save(folder / f"{site}.npy", gapped_rows(rng, 60 + 20 * i, 8, 3, offset=i))


def install_example_solver(folder):
    """Install the package that adds a solver into a folder, and return the folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(folder), str(EXAMPLE_SOLVER)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    return folder


def page_state(address):
    """The present state that a live page sends."""
    with urllib.request.urlopen(f"{address}events", timeout=HANG_S) as stream:
        for line in stream:
            if line.startswith(b"data: "):
                return json.loads(line.removeprefix(b"data: "))
    raise AssertionError(f"{address} sent no state")


def until(condition, waited_for="what was waited for", seconds=HANG_S):
    """Come back once the condition holds; say what did not come about otherwise."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{waited_for} did not come about in {seconds:g} s"
        time.sleep(0.05)


def processes_within(folder):
    """Yield the command lines of processes that work in a folder, or that name it."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            named = (
                (process / "environ").read_bytes() + command + bytes((process / "cwd").readlink())
            )
        except OSError:
            continue
        if b"python" in command and bytes(folder) in named:
            yield command
