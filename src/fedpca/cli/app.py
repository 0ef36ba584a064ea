"""Assemble the `fedpca` command line from its commands."""

from __future__ import annotations

from typing import Annotated

import typer

from fedpca._version import __version__
from fedpca.cli.audit import audit
from fedpca.cli.console import out
from fedpca.cli.demo import demo
from fedpca.cli.fit import fit
from fedpca.cli.info import info
from fedpca.cli.join import join
from fedpca.cli.merge import merge
from fedpca.cli.serve import serve
from fedpca.cli.site_key import site_key
from fedpca.cli.summarize import summarize
from fedpca.cli.transform import transform

app = typer.Typer(
    name="fedpca",
    help="Find principal components of data that stays where it is.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",  # rewraps the lines of each paragraph
    pretty_exceptions_enable=False,
)
for command in (fit, transform, summarize, merge, info, audit, demo, serve, join, site_key):
    app.command()(command)


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Find principal components of data that stays where it is."""
    if version:
        out.print(__version__)
        raise typer.Exit
