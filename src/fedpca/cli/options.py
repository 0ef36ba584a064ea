"""Define the options shared by several commands, and parse what users type."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from fedpca.errors import InputError
from fedpca.linalg.rank_rules import RULES, check_n_components
from fedpca.protocol.script import FEDERATED
from fedpca.rows.formats.files import name_of
from fedpca.rows.reading import Reading
from fedpca.site.policy import Policy
from fedpca.site.site import Site, cache_share
from fedpca.solvers.catalogue import AUTO, SOLVERS, find_solver, policy_words

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing output file.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print the components as CSV.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result, or an error, as JSON.")]
FILES = "One file or folder of rows per site, or NAME=PATH."
Files = Annotated[list[str], typer.Argument(help=FILES)]
Databases = Annotated[
    list[str],
    typer.Option(
        "--database",
        envvar="FEDPCA_DATABASE",
        help="Address of a database with one site's rows, or NAME=ADDRESS, as in "
        "north=sqlite:///north.db; in place of FILES, with --query; may be repeated.",
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        envvar="FEDPCA_DATABASE",
        help="Address of a database with the rows, as in sqlite:///rows.db; in place of a file, with "
        "--query.",
    ),
]
# options of a reading that some commands leave out, with the reasons
NOTHING_MULTIPLIED = dict.fromkeys(("device", "precision"), "the command multiplies no rows")
BY_MODEL = NOTHING_MULTIPLIED | dict.fromkeys(
    ("mask_var", "log_normalize", "extract", "weight"), "the model says what its fit used"
)
AllowMissing = Annotated[
    bool,
    typer.Option("--allow-missing", help="Accept missing values, for fits with --missing."),
]
USE_PLAIN_HTTP = "Use plain HTTP; only for a network that you trust."
CREDENTIALS_FOLDER = "Folder with the coordinator's secret and certificates."
Credentials = Annotated[Path | None, typer.Option(help=CREDENTIALS_FOLDER)]
Insecure = Annotated[bool, typer.Option("--insecure", help=USE_PLAIN_HTTP)]
FanIn = Annotated[
    int | None,
    typer.Option(
        help="Merge this many summaries at a time, in a tree; by default, all of them, or 32 if the "
        "summaries are many or large."
    ),
]


def components_of(text: str) -> Any:
    """Parse the value of -k: a number, a share, the name of a rule, or None for all."""
    wanted = None if text == "all" else _number(text)
    try:
        check_n_components(wanted)
    except InputError:
        raise InputError(
            f"-k {text} is not valid; use a whole number of components (1 or more), a share of the "
            f"variance between 0 and 1 (as in 0.95 or 95%), {', '.join(RULES)}, or all"
        ) from None
    return wanted


def _number(text: str) -> int | float | str:
    """Return the number in a text, or the text if there is none."""
    plain = f"{text[:-1]}e-2" if text.endswith("%") else text
    for kind in (int, float):
        try:
            return kind(plain)
        except ValueError:
            continue
    return text


def named_sites(files: list[str]) -> dict[str, str]:
    """Map each site's name, which is the text before "=" or the file name, to its path."""
    sites: dict[str, str] = {}
    for text in files:
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            name, path = name_of(Path(text).absolute()), text
        if not name or not path:
            raise InputError(f"{text} must be a path or NAME=PATH, as in north=rows.csv")
        if name in sites:
            raise InputError(
                f"two sites are named {name!r}: {sites[name]} and {path}; use different names, as in "
                f"first={sites[name]} second={path}"
            )
        sites[name] = path
    return sites


def _named_databases(addresses: list[str]) -> dict[str, str]:
    """Map each site's name to the address of its database; errors never quote an address.

    The name is the text before "=", or the name of the database.
    """
    sites: dict[str, str] = {}
    for text in addresses:
        name, equals, address = text.partition("=")
        if not equals or ":" in name:  # an address may contain "=" itself
            name, address = name_of(Path(urlsplit(text).path)), text
        if not name or name in sites:
            raise InputError(
                "every database needs a name that no other site has; use NAME=ADDRESS, as in "
                "north=sqlite:///north.db"
            )
        sites[name] = address
    return sites


def sources_of(files: list[str] | None, databases: list[str], reading: Reading) -> dict[str, str]:
    """Return each site's file, folder, or address of a database, by the site's name."""
    if _is_query(files, databases, reading):
        return _named_databases(databases)
    return named_sites(files or [])


def source_of(file: Any, database: str | None, reading: Reading) -> Any:
    """Return the file, or the files, of one site, or the address of its database."""
    return database if _is_query(file, database, reading) else file


def _is_query(files: Any, databases: Any, reading: Reading) -> bool:
    """Return whether the rows come from databases; without a query, an address has no effect.

    So people can keep the address, which may contain a password, in the environment.
    """
    if (files or databases) and bool(files) == (reading.query is None):
        return not files
    raise InputError("specify the rows either as files, or with --database ADDRESS and --query SQL")


def opened_sites(sources: Mapping[str, Any], reading: Reading) -> dict[str, Site]:
    """Open the rows of each site, and return the sites by name."""
    share = cache_share(len(sources))
    return {
        name: Site(source, name=name, memory_limit=share, reading=reading)
        for name, source in sources.items()
    }


def table_or_sites(files: list[str]) -> list[str] | dict[str, str]:
    """Return the paths of one table's files, or a path for each site if all texts are NAME=PATH."""
    n_named = sum("=" in text for text in files)
    if n_named not in (0, len(files)):
        raise InputError(
            "with --cluster, either all FILES or none of them must be NAME=PATH, one for each site"
        )
    # paths are relative to this folder, not to the folder in which a worker was started
    if not n_named:
        return [str(Path(path).absolute()) for path in files]
    return {name: str(Path(path).absolute()) for name, path in named_sites(files).items()}


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


def read_policy(path: Path) -> Policy:
    """Read a site's policy, and refuse words in its ``allow`` that allow nothing."""
    policy = Policy.load(path)
    words = policy_words()
    for word in policy.allow:
        if word in words:
            continue
        if word in SOLVERS:
            raise InputError(
                f"{path}: allow has {word!r}; use {FEDERATED!r}, which includes that solver"
            )
        near = get_close_matches(word, words, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(
            f"{path}: allow has {word!r}, which is unknown here; {hint}the known words are "
            f"{', '.join(words)}"
        )
    return policy


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
