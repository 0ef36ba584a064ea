"""Run `fedpca requests`: show the runs that asked a person at this site for approval."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.console import exit_codes, say
from fedpca.cli.options import Json
from fedpca.cli.terminal import print_json, show
from fedpca.engines.default_locations import home
from fedpca.errors import InputError
from fedpca.facts import as_plain
from fedpca.site.requests import Requests
from fedpca.site.store import REQUESTS

Run = Annotated[str, typer.Argument(help="The run's name, or the beginning of it.")]
Name = Annotated[
    str | None,
    typer.Option(help="The site's name; by default, that of the only site on this machine."),
]
Folder = Annotated[
    Path | None,
    typer.Option(help="The folder in which the site keeps its files, as for `fedpca join`."),
]


def requests(
    name: Name = None,
    folder: Folder = None,
    json: Json = False,
) -> None:
    """Show the runs that asked a person at this site for approval.

    Runs need approval if the site's policy has `approval = true`. Use `fedpca approve` or `fedpca deny`
    to decide.
    """
    with exit_codes(json=json):
        found = requests_of(name, folder).all()
        if json:
            print_json([as_plain(request.facts()) for request in found])
            return
        if not found:
            say("no run has asked for approval here")
        for request in found:
            show(request.facts())


def requests_of(name: str | None, folder: Path | None) -> Requests:
    """Return the requests of a named site, of the site with a folder, or of the only site here."""
    if name is not None:
        return Requests(REQUESTS.path(folder or home() / "sites" / name, name))
    where, pattern = folder or home() / "sites", REQUESTS.pattern
    found = sorted(where.glob(f"*/{pattern}" if folder is None else pattern))
    if len(found) > 1:
        raise InputError(f"several sites keep requests in {where}; choose one with --name")
    if not found and not where.is_dir():
        raise InputError(
            f"{where} does not exist; use the --name or --folder that you passed to fedpca join"
        )
    return Requests(found[0] if found else where)
