"""Run a federation of real processes on one machine: a server, three sites, and a fit.

The demo creates keys and certificates and starts the server and the sites with the same commands that
organizations would type. Each command runs in its own process, and all processes stop at the end.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console

from fedpca.cli.demo import CLINICS, clinics
from fedpca.cli.terminal import print_facts
from fedpca.coordinator.federation import Federation
from fedpca.errors import FedpcaError, LinkError
from fedpca.estimators import FederatedPCA, load

SITES = CLINICS[:3]


def run_federation_demo(console: Console) -> None:
    """Fit three clinics' rows in separate processes, and compare with a fit in this process."""
    import pyarrow.parquet as pq

    clinic = clinics()[0]
    tables = {site: clinic[site] for site in SITES}
    with tempfile.TemporaryDirectory(prefix="fedpca-demo-") as name, ExitStack() as stack:
        trial = Trial(console, Path(name))
        for site, table in tables.items():
            pq.write_table(table, trial.folder / f"{site}.parquet")
            trial.run("site-key", site)
        port = str(free_port())
        keys = [f"{site}.pub" for site in SITES]
        stack.enter_context(
            trial.running(
                "serve", *keys, "--make-certificates", "--credentials", "tls", "--port", port
            )
        )
        await_port(int(port))
        here = f"localhost:{port}"
        for site in SITES:
            own = ("--name", site, "--data", f"{site}.parquet", "--key", f"{site}.key")
            stack.enter_context(trial.running("join", here, *own, "--ca", "tls/ca.pem"))
        asked = (
            "--sites",
            ",".join(SITES),
            "-k",
            "5",
            "--scale",
            "--seed",
            "0",
            "--credentials",
            "tls",
        )
        trial.run("fit", "--federation", here, "--wait", "600", *asked, "-o", "model.fedpca")
        model = load(trial.folder / "model.fedpca")
        stack.close()  # this stops all processes
        console.print("(all processes have stopped)\n")
        files = {site: trial.folder / f"{site}.parquet" for site in SITES}
        within = FederatedPCA(5, scale=True, random_state=0).fit(Federation.local(files))
    print_facts(console, (*model.run_.exchanged(), *model.run_.facts("FederatedPCA")[:1]))
    if not np.array_equal(within.components_, model.components_):
        raise FedpcaError(
            "the model of the federation differs from the model of a single process; please report this"
        )
    console.print("Fitting the same files in a single process gives the same model, bit for bit.")


class Trial:
    """A folder in which fedpca commands run as processes."""

    def __init__(self, console: Console, folder: Path) -> None:
        self._console, self.folder = console, folder
        self._environment: Mapping[str, str] = {
            **os.environ,
            "FEDPCA_HOME": str(folder / "home"),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost"),
        }

    def run(self, *words: str) -> None:
        """Run a command, and wait until it ends."""
        self._show(words)
        done = subprocess.run(self._command(words), cwd=self.folder, env=self._environment)
        if done.returncode:
            raise FedpcaError(
                f"fedpca {words[0]} exited with code {done.returncode}; see its output above"
            )

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command while the block runs, and yield the command's process."""
        self._show((*words, "&"))
        process = subprocess.Popen(self._command(words), cwd=self.folder, env=self._environment)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()

    def _command(self, words: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "fedpca", *words]

    def _show(self, words: tuple[str, ...]) -> None:
        self._console.print(f"$ fedpca {' '.join(words)}", soft_wrap=True)


def free_port() -> int:
    """Return a port that is currently free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_port(port: int, seconds: float = 600.0) -> None:
    """Wait until a process is listening on a port."""
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > until:
                raise LinkError(
                    f"no process is listening on port {port} after {seconds:g} s; see the output above"
                ) from None
            time.sleep(0.1)
        else:
            return
