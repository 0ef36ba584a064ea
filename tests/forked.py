"""Processes that are forked from one that has already imported what they need.

Half of the time of a short process goes to its imports. A process that this module starts is a real one
all the same: it has its own pid, environment, folder, files, and signals, and its parent is the process
that started it, so `wait` and `kill` work as for any other. What `python` does before the first line of
a script is what it does not do again; tests of that use `subprocess`.

The server forks twice. Its grandchild outlives the child, and Linux gives it to the nearest ancestor
that asked for such orphans, which is the process of the tests. On other systems, and where the
environment changes what Python imports, processes are started in the usual way.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import warnings
from importlib import import_module
from pathlib import Path

import numpy as np

MAX_REQUEST_BYTES = 1 << 20
PR_SET_CHILD_SUBREAPER = 36
# variables that a fork would read too late
READ_AT_START = ("PYTHON", "LD_", "OPENBLAS_NUM_THREADS")
PRELOADED = (
    *("fedpca", "fedpca.audit.leakage", "fedpca.engines.flower.engine"),
    *("fedpca.engines.flower.server", "fedpca.engines.flower.site_client"),
    *("rich.console", "rich.table", "typer", "typer.rich_utils"),
    *("pyarrow.csv", "pyarrow.parquet", "sklearn.datasets"),
)


class Popen(subprocess.Popen):
    """A `subprocess.Popen` whose process is forked, where that makes no difference."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):
        words = [os.fspath(word) for word in args]
        if not _is_forkable(words, env):
            given = (executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)
            super()._execute_child(words, *given)
            return
        _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *_, own_session, _ = rest
        given = (p2cread, c2pwrite, errwrite)
        files = [usual if file == -1 else file for usual, file in enumerate(given)]
        request = {
            "words": words[1:],
            "folder": os.fspath(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
            "has_own_session": own_session,
        }
        self.pid = _fork(request, files)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def run(words, *, check=False, timeout=None, capture_output=False, **options):
    """Run a command as `subprocess.run` does."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(words, **options) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(words, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def _is_forkable(words, env):
    def read_at_start(variables):
        return {n: v for n, v in variables.items() if n.startswith(READ_AT_START)}

    return (
        sys.platform == "linux"
        and words[0] == sys.executable
        and (env is None or read_at_start(env) == read_at_start(os.environ))
    )


_lock = threading.Lock()
_server = None  # the socket of this process's server


def _fork(request, files):
    """Have the server fork a process, and return its pid."""
    global _server
    prctl = ctypes.CDLL(None).prctl
    with _lock:
        if _server is None:
            _server = _start_server()
        # only now: orphans of other processes are not ours to wait for
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(_server, [json.dumps(request).encode()], files)
            told = _server.recv(64)
            assert told, "the server of forked processes has ended; its error is on standard error"
            return int(told)
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, 0)


def _start_server():
    """Start the process that forks, and return the socket on which it takes requests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    unmeasured = {n: v for n, v in os.environ.items() if not n.startswith("COVERAGE")}
    with theirs:
        words = [sys.executable, __file__, str(theirs.fileno())]
        process = subprocess.Popen(words, pass_fds=[theirs.fileno()], env=unmeasured)
    atexit.register(process.wait)
    atexit.register(ours.close)  # which comes first, and ends the server
    return ours


def _serve(door):
    """Fork a process for each request, and return the request in that process."""
    while True:
        data, files, *_ = socket.recv_fds(door, MAX_REQUEST_BYTES, 3)
        if not data:  # the tests have ended
            sys.exit()
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            grandchild = os.fork()
            if grandchild:
                os.write(tell, str(grandchild).encode())
                os._exit(0)
            os.close(told)
            os.close(tell)
            door.close()
            return json.loads(data), files
        os.close(tell)
        for file in files:
            os.close(file)
        os.waitpid(child, 0)  # after which the grandchild is the child of the tests
        door.send(os.read(told, 64))
        os.close(told)


def _become(request, files):
    """Give this process the files, folder, and environment that the request names."""
    if request["has_own_session"]:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    np.random.seed()  # from the system, as in a process of its own
    if any(name.startswith("COVERAGE_PROCESS") for name in os.environ):
        import coverage

        coverage.process_startup(force=True)


def _run(words):
    """Run a command line of `python` in this process."""
    if words[0] == "-W":
        assert words[1] == "error"
        # what Python ignores by default; what a library chose for itself stays
        warnings.filters[:] = [each for each in warnings.filters if each not in _usual_filters]
        warnings.simplefilter("error", append=True)
        words = words[2:]
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], str(Path.cwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    _usual_filters = list(warnings.filters)
    for module in PRELOADED:
        import_module(module)
    assert threading.active_count() == 1  # a fork has the thread that forks alone
    gc.freeze()
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    request, files = _serve(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGINT, interrupt)
    _become(request, files)
    try:
        _run(request["words"])
        code = 0
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        code = end.code
    # what Python does at its end, but for taking apart modules whose memory the server shares
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
