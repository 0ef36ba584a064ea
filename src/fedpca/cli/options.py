"""Define the options shared by several commands, and parse what users type."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpca.errors import InputError
from fedpca.solvers.catalogue import AUTO, find_solver

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing output file.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print the components as CSV.")]
Json = Annotated[bool, typer.Option("--json", help="Print the contents of the model as JSON.")]
Components = Annotated[
    str,
    typer.Option(
        "-k",
        "--components",
        help="Number of components, share of variance (0.95 or 95%), auto, mp, gap, or all.",
    ),
]
FILES = "One file or folder of rows per site, or NAME=PATH."
Files = Annotated[list[str], typer.Argument(help=FILES)]
Scale = Annotated[
    bool, typer.Option("--scale", help="Divide each feature by its standard deviation.")
]
Credentials = Annotated[
    Path | None,
    typer.Option(help="Folder with the coordinator's secret and certificates."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Use plain HTTP; only for a network that you trust.")
]
MaxRounds = Annotated[int, typer.Option(help="Stop the solver after this many rounds.")]
FanIn = Annotated[
    int | None,
    typer.Option(
        help="Merge this many summaries at a time, in a tree; by default, all at once, or 32 if there "
        "are hundreds."
    ),
]


def components_of(text: str) -> Any:
    """Parse the value of -k: a number, a share, the name of a rule, or None for all."""
    if text.endswith("%"):
        text = f"{text[:-1]}e-2"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None if text == "all" else text


def named_sites(files: list[str]) -> dict[str, str]:
    """Map each site's name, which is the text before "=" or the file name, to its path."""
    sites: dict[str, str] = {}
    for text in files:
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            name, path = Path(text).stem, text
        if name in sites:
            raise InputError(
                f"two sites are named {name!r}; use different names, as in north={path}"
            )
        sites[name] = path
    return sites


def sites_of(text: str | None) -> int | list[str] | None:
    """Parse the value of --sites: a number of sites, or their names."""
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        return [name.strip() for name in text.split(",")]


def values_of(option: str, texts: list[str], example: str) -> dict[str, Any]:
    """Parse the values of a repeated option, each of which is NAME=VALUE."""
    given: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"{option} {text} must be NAME=VALUE, as in {example}")
        try:
            given[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            given[key] = value
    return given


def solver_of(name: str, options: list[str], find: Callable[[str], Any] = find_solver) -> Any:
    """Parse --solver and --option, and return a solver's name or a solver with options."""
    if not options:
        return name
    solver = find(name)
    if solver is None:
        raise InputError(f"--option requires a --solver other than {AUTO!r}, which has no options")
    given = values_of("--option", options, "penalty=0.2")
    names = [field.name for field in fields(solver)] if is_dataclass(solver) else []
    unknown = [key for key in given if key not in names]
    if unknown:
        raise InputError(
            f"solver {name!r} has no option {', '.join(unknown)}; its options are: "
            f"{', '.join(names) or 'none'}"
        )
    return type(solver)(**given)
