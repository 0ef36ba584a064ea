"""What the commands share: options, the words users type, progress, exit codes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from sklearn.utils._param_validation import InvalidParameterError

from fedpca.errors import FedpcaError, FileError, InputError, JournalError

# no markup: the names of columns and sites may hold brackets
out = Console(highlight=False, markup=False)
err = Console(stderr=True, highlight=False, markup=False)

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output file.")]
Components = Annotated[
    str,
    typer.Option(
        "-k", "--components", help="A number, a share (0.95 or 95%), auto, mp, gap or all."
    ),
]
FILES = "A file or folder for each site, or NAME=PATH."
Files = Annotated[list[str], typer.Argument(help=FILES)]
Scale = Annotated[bool, typer.Option("--scale", help="Divide by standard deviations.")]
Tls = Annotated[
    Path | None,
    typer.Option(help="The folder of the coordinator's certificates and secret."),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Plain HTTP, in a network of trust.")]
MaxRounds = Annotated[int, typer.Option(help="Most rounds of the solver.")]
FanIn = Annotated[
    int | None, typer.Option(help="Summaries merged at a time, in a tree; all at once by default.")
]


def components_of(text: str) -> Any:
    """What the user means by -k: an int, a share or the name of a rule."""
    if text.endswith("%"):
        text = f"{text[:-1]}e-2"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None if text == "all" else text


def named_sites(files: list[str]) -> dict[str, str]:
    """A name for each site: what stands before "=", else the file's own."""
    sites: dict[str, str] = {}
    for text in files:
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            name, path = Path(text).stem, text
        if name in sites:
            raise InputError(f"two sites are called {name!r}; name them, as in north={path}")
        sites[name] = path
    return sites


def sites_of(text: str | None) -> int | list[str] | None:
    """What the user means by --sites: how many, or which."""
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        return [name.strip() for name in text.split(",")]


def refuse_overwriting(output: Path, force: bool) -> None:
    """Before any work, where the output could not be written or would replace another file."""
    if output.is_dir():
        raise FileError(f"{output} is a folder; give the name of a file")
    if output.exists() and not force:
        raise FileError(f"{output} exists; choose another name, or overwrite it with --force")
    if not output.parent.is_dir():
        raise FileError(f"{output}: the folder {output.parent} does not exist")


def progress(quiet: bool) -> Callable[[dict[str, Any]], None] | None:
    """A line for each round, on a terminal and unless told to be quiet."""
    if quiet or not err.is_terminal:
        return None

    def show(entry: dict[str, Any]) -> None:
        residual = entry["residual"]
        far = "" if residual is None else f"  residual {residual:.1e}"
        err.print(
            f"round {entry['round']:3d}  {entry['question']:20s} {entry['bytes_up']:>12,} bytes up "
            f"{entry['seconds']:7.2f} s{far}"
        )

    return show


def rows_read(quiet: bool) -> Callable[[int], None] | None:
    """One line that counts the rows, on a terminal and unless told to be quiet."""
    if quiet or not err.is_terminal:
        return None
    return lambda n: err.print(f"{n:,} rows read", end="\r")


def attacking(quiet: bool) -> Callable[[str], None] | None:
    """A line for each solver that is attacked, on a terminal and unless told to be quiet."""
    if quiet or not err.is_terminal:
        return None
    return lambda solver: err.print(f"attacking {solver}")


@contextmanager
def exit_codes(hint: str = "") -> Iterator[None]:
    """Errors as one line on standard error: 2 for bad input, 1 for a run that failed.

    A service manager's signal is an interrupt like that of the keyboard: both tidy up.
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
    """For what goes on until an interrupt, which is then no error."""
    with exit_codes(), suppress(KeyboardInterrupt):
        yield
