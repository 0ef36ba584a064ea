"""A group of options is declared once, and every command that takes it has all of its options."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any, ClassVar

import pytest
import typer

import fedpca
from fedpca import Site
from fedpca.cli.app import COMMANDS
from fedpca.cli.option_groups import LeftOut, groups_of, with_groups
from fedpca.rows.reading import Reading, option_names

READ_ROWS = (
    "check", "fit", "transform", "summarize", "verify", "plot", "diagnose", "audit", "join"
)  # fmt: skip


def body_of(command):
    name = command.replace("-", "_")
    return getattr(import_module(f"fedpca.cli.{name}"), name)


def offered(command):
    return set(inspect.signature(body_of(command)).parameters)


def test_every_command_that_reads_rows_takes_a_reading():
    functions = {name: body_of(name) for name in COMMANDS if name != "policy" and name != "budget"}
    functions = {k: f for k, f in functions.items() if not isinstance(f, typer.Typer)}
    takes = {
        name for name, f in functions.items() if any(kind is Reading for kind, _ in groups_of(f))
    }
    assert takes == set(READ_ROWS)


@pytest.mark.parametrize("command", READ_ROWS)
def test_a_command_has_every_option_of_a_reading_or_a_reason(command):
    ((_, left_out),) = [pair for pair in groups_of(body_of(command)) if pair[0] is Reading]
    assert set(option_names()) - offered(command) == set(left_out)
    assert all(left_out.values())
    assert {"database", "databases"} & offered(command)


def test_python_offers_the_same_options_as_the_shell():
    for function in (Site, fedpca.Summary.of, fedpca.Federation.dask):
        assert set(option_names()) <= set(inspect.signature(function).parameters)


@dataclass(frozen=True)
class Paint:
    """A group for these tests."""

    panel: ClassVar[str] = "Paint"
    color: str | None = field(default=None, metadata={"help": "Color.", "shell": str | None})
    coats: int = field(
        default=2, metadata={"help": "Coats.", "shell": int, "flags": ("-c", "--layers")}
    )
    is_dry: bool = field(
        default=False,
        metadata={"help": "Dry.", "shell": bool, "flags": ("--dry",), "panel": "Weather"},
    )
    mixed: bool = False  # not an option

    @classmethod
    def typed(cls, texts: Any) -> Paint:
        return cls(**texts)


def test_a_group_becomes_options_and_comes_back_as_its_value():
    seen = []

    @with_groups
    def draw(
        width: int, paint: Annotated[Paint, LeftOut({"color": "it is blue"})] = Paint()
    ) -> None:
        seen.append((width, paint))

    assert list(inspect.signature(draw).parameters) == ["width", "coats", "is_dry"]
    app = typer.Typer()
    app.command()(draw)
    from typer.testing import CliRunner

    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "100"}).output
    assert {"--layers", "-c", "--dry", "Paint", "Weather"} <= set(shown.split())
    assert "[default: 2]" in shown
    assert "--no-dry" not in shown
    CliRunner().invoke(app, ["3", "-c", "4", "--dry"])
    assert seen == [(3, Paint(coats=4, is_dry=True))]


def test_what_is_left_out_must_be_an_option():
    def draw(paint: Annotated[Paint, LeftOut({"colour": "it is blue"})]) -> None: ...

    with pytest.raises(TypeError, match="colour"):
        with_groups(draw)
