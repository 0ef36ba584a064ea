"""Print results, progress and errors of the commands, and set their exit codes.

Exit codes: 0 for success, 2 for bad usage or input, 1 for a run that failed, 130 for an interrupt.
"""

from __future__ import annotations

import datetime
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from sklearn.utils._param_validation import InvalidParameterError

from fedpca.errors import FedpcaError, FileError, InputError, JournalError

# without markup, since names of columns and sites may hold brackets
out = Console(highlight=False, markup=False)
err = Console(stderr=True, highlight=False, markup=False)


def refuse_overwriting(output: Path, force: bool) -> None:
    """Refuse an output that cannot be written or would replace a file, before any work."""
    if output.is_dir():
        raise FileError(f"{output} is a folder; give the name of a file")
    if output.exists() and not force:
        raise FileError(f"{output} exists; choose another name, or overwrite it with --force")
    if not output.parent.is_dir():
        raise FileError(f"{output}: the folder {output.parent} does not exist; create it first")


def progress(quiet: bool) -> Callable[[dict[str, Any]], None] | None:
    """Return a function that prints a line for each round, or None if quiet or not on a terminal."""
    if quiet or not err.is_terminal:
        return None

    def show(entry: dict[str, Any]) -> None:
        residual = entry["residual"]
        residual_text = "" if residual is None else f"  residual {residual:.1e}"
        err.print(
            f"round {entry['round']:3d}  {entry['question']:20s} {entry['bytes_up']:>12,} bytes up "
            f"{entry['seconds']:7.2f} s{residual_text}"
        )

    return show


def rows_read(quiet: bool) -> Callable[[int], None] | None:
    """Return a function that prints the row count, or None if quiet or not on a terminal."""
    if quiet or not err.is_terminal:
        return None
    return lambda n: err.print(f"{n:,} rows read", end="\r")


def attacking(quiet: bool) -> Callable[[str], None] | None:
    """Return a function that prints each solver attacked, or None if quiet or not on a terminal."""
    if quiet or not err.is_terminal:
        return None
    return lambda solver: err.print(f"attacking {solver}")


@contextmanager
def exit_codes(hint: str = "") -> Iterator[None]:
    """Print an error as one line on standard error, and exit with its code.

    SIGTERM, the signal of a service manager, counts as an interrupt from the keyboard: both clean up.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"interrupted{hint}")
        sys.exit(130)
    except (InputError, InvalidParameterError, FileError, JournalError) as error:
        err.print(f"error: {error}", style="red", soft_wrap=True)
        sys.exit(2)
    except (FedpcaError, OSError) as error:
        err.print(f"failed: {error}", style="red", soft_wrap=True)
        sys.exit(1)
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def until_stopped() -> Iterator[None]:
    """Handle errors of a command that runs until an interrupt, which is then no error."""
    with exit_codes(), suppress(KeyboardInterrupt):
        yield


def say(text: str) -> None:
    """Print a line without wrapping, so that a path in it stays whole."""
    out.print(text, soft_wrap=True)


def teller(name: str, quiet: bool) -> Callable[[str], None]:
    """Return a function that prints a line with the time and the name.

    A line that repeats is printed once a minute.
    """
    last = "", 0.0

    def tell(text: str) -> None:
        nonlocal last
        if quiet or (text == last[0] and time.monotonic() - last[1] < 60):
            return
        last = text, time.monotonic()
        now = datetime.datetime.now().astimezone()
        err.print(f"{now:%Y-%m-%d %H:%M:%S} {name}: {text}", soft_wrap=True)

    return tell
