"""Assemble the `fedpca` command line from its commands.

A command's module is imported only when the command is used, so that `fedpca join` at a site does not
wait for imports that only `fedpca fit` needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer.core import TyperGroup

from fedpca._version import __version__
from fedpca.cli.console import out

if TYPE_CHECKING:
    import click  # newer releases of typer include click

COMMANDS = (
    "check",
    "plan",
    "fit",
    "transform",
    "summarize",
    "merge",
    "info",
    "verify",
    "plot",
    "diagnose",
    "report",
    "audit",
    "demo",
    "serve",
    "join",
    "requests",
    "approve",
    "deny",
    "site-key",
    "ledger",
    "policy",
    "budget",
)
MARKUP: Literal["markdown"] = "markdown"  # with this, typer rewraps the lines of each paragraph


class Commands(TyperGroup):
    """The group of all commands, each of which is in the module of the same name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        found = getattr(import_module(f"fedpca.cli.{name}"), name)
        if isinstance(found, typer.Typer):  # a group of commands
            return typer.main.get_command(found)
        one = typer.Typer(add_completion=False, rich_markup_mode=MARKUP)
        one.command(cmd_name)(found)
        return typer.main.get_command(one)


app = typer.Typer(
    cls=Commands,
    name="fedpca",
    help="Find principal components of data that stays where it is.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=MARKUP,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Find principal components of data that stays where it is."""
    if version:
        out.print(__version__)
        raise typer.Exit
