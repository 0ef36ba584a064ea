"""Print the commands' progress and errors, and set the exit codes.

Exit codes: 0 for success, 1 for a failed run, 2 for bad usage or input, and 130 for an interrupt.

With ``--json``, an error is one line of JSON on standard error. Standard output holds results only, so
a program that reads it never takes an error for a result.
"""

from __future__ import annotations

import datetime
import json as json_format
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from rich.console import Console

from fedpca.errors import FedpcaError, FileError, InputError, JournalError
from fedpca.protocol.printable import printable
from fedpca.storage import atomic

MAX_LINE_CHARS = 10_000  # longest line in the log of a site or a server
MAX_ERROR_CHARS = 100_000  # longest error, which may list every site of a large federation

# markup and emoji are off, because names may contain text such as [red] or :x:
out = Console(highlight=False, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)


def refuse_overwriting(output: Path, force: bool) -> None:
    """Refuse an output path that cannot be written or would overwrite a file."""
    atomic.check_writable(output)
    if output.exists() and not force:
        raise FileError(
            f"{output} already exists; choose a different name, or use --force to overwrite it"
        )


@contextmanager
def exit_codes(hint: str = "", *, json: bool = False) -> Iterator[None]:
    """Print an error as one line on standard error, as JSON on request, and exit with its code.

    SIGTERM, which service managers send, is treated like a keyboard interrupt, so that the command
    cleans up before it exits.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if json:
            print_error(interrupt, f"interrupted{hint}")
        else:
            err.print(f"interrupted{hint}")
        sys.exit(130)
    except (FedpcaError, OSError, ValueError) as error:
        is_bad_usage = _is_bad_usage(error)
        if not is_bad_usage and not isinstance(error, FedpcaError | OSError):
            raise
        word = "error" if is_bad_usage else "failed"
        if json:
            print_error(error, in_words(error))
        else:
            err.print(f"{word}: {in_words(error)}", style="red", soft_wrap=True)
        sys.exit(2 if is_bad_usage else 1)
    finally:
        signal.signal(signal.SIGTERM, before)


def print_error(error: BaseException, message: str) -> None:
    """Print an error as one line of JSON on standard error."""
    about = {"message": message, "kind": type(error).__name__}
    print(json_format.dumps({"error": about}), file=sys.stderr, flush=True)


def in_words(error: BaseException) -> str:
    """Return the error's text, escaped so that names in it cannot control the terminal."""
    return printable(error, MAX_ERROR_CHARS, keep="\n")


def _is_bad_usage(error: Exception) -> bool:
    """Return whether the user can fix the error by changing the command or its files."""
    if isinstance(error, InputError | FileError | JournalError):
        return True
    # scikit-learn checks parameters; if it has not been imported, it did not raise this error
    checks = sys.modules.get("sklearn.utils._param_validation")
    return checks is not None and isinstance(error, checks.InvalidParameterError)


@contextmanager
def until_stopped() -> Iterator[None]:
    """Handle the errors of a long-running command, but do not treat an interrupt as an error."""
    with exit_codes(), suppress(KeyboardInterrupt):
        yield


def say(text: str) -> None:
    """Print a line without wrapping, so that paths are not broken."""
    out.print(text, soft_wrap=True)


class _Indented(logging.Formatter):
    """A formatter that escapes and indents exceptions, so that none looks like a separate log line."""

    def format(self, record: logging.LogRecord) -> str:
        text = printable(super().format(record), MAX_ERROR_CHARS, keep="\n")
        return text.replace("\n", "\n    ")


def show_warnings_of_package() -> None:
    """Print the warnings and errors that the package logs on standard error."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_Indented())
    logging.getLogger("fedpca").addHandler(handler)


def teller(name: str, quiet: bool) -> Callable[[str], None]:
    """Return a function that prints a line prefixed with the time and the name.

    A repeated line is printed at most once a minute.
    """
    last = "", 0.0

    def tell(text: str) -> None:
        nonlocal last
        if quiet or (text == last[0] and time.monotonic() - last[1] < 60):
            return
        last = text, time.monotonic()
        line = printable(text, MAX_LINE_CHARS)
        now = datetime.datetime.now().astimezone()
        # a site whose log is on a full disk keeps running; `err` would keep every unwritten line
        with suppress(OSError):
            print(f"{now:%Y-%m-%d %H:%M:%S} {name}: {line}", file=sys.stderr, flush=True)

    return tell
