"""Run `fedpca check`: find what would make a fit fail, before the fit starts."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from fedpca.cli.console import exit_codes
from fedpca.cli.option_groups import LeftOut, with_groups
from fedpca.cli.options import (
    FILES,
    NOTHING_MULTIPLIED,
    AllowMissing,
    Databases,
    Json,
    sources_of,
)
from fedpca.cli.progress import counting
from fedpca.cli.terminal import show
from fedpca.errors import InputError
from fedpca.rows.check import (
    Checked,
    Examined,
    Finding,
    examine,
    few_findings,
    findings_at,
    findings_between,
)
from fedpca.rows.open import open_unweighted, resolved
from fedpca.rows.reading import AS_STORED, Reading
from fedpca.site.policy import JOINING


@with_groups
def check(
    files: Annotated[list[str] | None, typer.Argument(help=FILES)] = None,
    databases: Databases = [],  # noqa: B006
    reading: Annotated[Reading, LeftOut(NOTHING_MULTIPLIED)] = AS_STORED,
    allow_missing: AllowMissing = False,
    min_count: Annotated[
        int, typer.Option(help="Show what a site would refuse if its policy had this min_count.")
    ] = JOINING.min_count,
    list_columns: Annotated[
        bool, typer.Option("--list", help="Also list the columns of each site.")
    ] = False,
    json: Json = False,
) -> None:
    """Check the rows of sites, and list everything that would stop a fit.

    Each of FILES is a file or folder with one site's rows, or NAME=PATH. The command reads all rows
    once and sends nothing. The exit code is 2 if a fit would fail.
    """
    with exit_codes(json=json), ExitStack() as at_end:
        examined: dict[str, Examined] = {}
        findings: list[Finding] = []
        sites = sources_of(files, databases, reading)
        on_site = at_end.enter_context(counting(False, "sites", lambda: len(sites)))
        for number, (name, path) in enumerate(sites.items()):
            if on_site is not None:
                on_site(number, f"reading {name}")
            try:
                source, rest = resolved(path, reading)
                rows = open_unweighted(source, rest)
                examined[name] = examine(rows)
            except InputError as error:
                findings.append(Finding(name, str(error), True))
            else:
                findings += findings_at(name, examined[name], allow_missing=allow_missing)
                findings += few_findings(name, rows, min_count)
        at_end.close()
        findings += findings_between(examined)
        found = Checked(examined, findings)
        show(found.facts(has_columns=list_columns), json=json)
        if found.n_stops:
            raise InputError(
                f"a fit would fail; correct the problems above that stop it ({found.n_stops})"
            )
