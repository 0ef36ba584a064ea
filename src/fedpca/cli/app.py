"""Assemble the `fedpca` command line from its commands.

A command's module is imported only when the command is used, so that `fedpca join` at a site does not
wait for imports that only `fedpca fit` needs. The list of commands imports none of them.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from fedpca._version import __version__
from fedpca.cli.console import out

if TYPE_CHECKING:
    import click  # newer releases of typer include click

FITTING, MODELS, SUMMARIES = "Fit", "Use a model", "Work with summaries"
AT_SITES, TRIALS = "Take part as a site, or coordinate", "Try and attack"
COMMANDS = {  # each with its heading in the list of commands
    "check": FITTING,
    "plan": FITTING,
    "fit": FITTING,
    "transform": MODELS,
    "summarize": SUMMARIES,
    "merge": SUMMARIES,
    "info": MODELS,
    "verify": MODELS,
    "plot": MODELS,
    "diagnose": MODELS,
    "report": MODELS,
    "audit": TRIALS,
    "demo": TRIALS,
    "serve": AT_SITES,
    "join": AT_SITES,
    "requests": AT_SITES,
    "approve": AT_SITES,
    "deny": AT_SITES,
    "site-key": AT_SITES,
    "ledger": AT_SITES,
    "policy": AT_SITES,
    "budget": AT_SITES,
}
MARKUP: Literal["markdown"] = "markdown"  # with this, typer rewraps the lines of each paragraph


class Commands(TyperGroup):
    """The group of all commands, each of which is in the module of the same name."""

    _lists = False  # whether commands are only to be listed, not to be run

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        if self._lists:
            return TyperCommand(
                cmd_name,
                help=_first_docstring(name),
                rich_markup_mode=MARKUP,
                rich_help_panel=COMMANDS[cmd_name],
            )
        found = getattr(import_module(f"fedpca.cli.{name}"), name)
        if isinstance(found, typer.Typer):  # a group of commands
            return typer.main.get_command(found)
        one = typer.Typer(add_completion=False, rich_markup_mode=MARKUP)
        one.command(cmd_name)(found)
        return typer.main.get_command(one)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self._lists = True
        super().format_help(ctx, formatter)

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        self._lists = True
        return super().shell_complete(ctx, incomplete)


def _first_docstring(name: str) -> str:
    """Return what a command does, which is read from its source, since an import takes long."""
    body = ast.parse(Path(__file__).with_name(f"{name}.py").read_text("utf-8")).body
    functions = {each.name: each for each in body if isinstance(each, ast.FunctionDef)}
    return ast.get_docstring(functions.get(name) or functions["group"]) or ""


app = typer.Typer(
    cls=Commands,
    name="fedpca",
    help="Find principal components of data that stays where it is.",
    no_args_is_help=True,
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
