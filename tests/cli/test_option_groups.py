"""A group of options is declared once, and every command that takes it has all of its options."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
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


NEW = """
    units: str | None = option(None, "Units of the rows, such as mm.", metavar="UNIT")
    # whether columns and log_normalize"""
PROOF = """
import inspect, sys
import numpy as np
import pyarrow as pa
from importlib import import_module
from typer.testing import CliRunner
import fedpca
from fedpca import Federation, Site, Summary
from fedpca.cli.app import app
from fedpca.rows.reading import Reading

assert "/scratch/" in fedpca.__file__.replace("\\\\", "/"), fedpca.__file__
for name in sys.argv[1:]:
    body = getattr(import_module(f"fedpca.cli.{name}"), name)
    assert "units" in inspect.signature(body).parameters, name
help = CliRunner().invoke(app, ["check", "--help"], env={"COLUMNS": "200"}).output
assert "--units" in help and "Units of the rows, such as mm." in help
for function in (Site, Summary.of, Federation.dask):
    assert "units" in inspect.signature(function).parameters
table = pa.table({"a": [1.0, 2.0], "b": [3.0, 5.0]})
sites = [Site(table, name="a", units=units) for units in (None, "mm", "cm")]
assert len({site.fingerprint for site in sites}) == 3
assert sites[1].source.reading.units == "mm"
Summary.of(table, 1, units="mm")
assert "Units of the rows" in Reading.__doc__
try:
    from fedpca.engines.flower_app.client import settings_of
except ImportError:
    sys.exit()

class Context:
    node_config = {"fedpca.rows": "x", "fedpca.name": "n", "fedpca.units": "mm"}
    run_config = {}

assert settings_of(Context()).reading.units == "mm"
"""


@pytest.mark.process
def test_a_new_option_of_a_reading_is_one_field(tmp_path):
    scratch = tmp_path / "scratch"
    source = Path(fedpca.__file__).parent
    shutil.copytree(source, scratch / "fedpca", ignore=shutil.ignore_patterns("__pycache__"))
    module = scratch / "fedpca" / "rows" / "reading.py"
    text, mark = module.read_text(), "\n    # whether columns and log_normalize"
    assert text.count(mark) == 1
    module.write_text(text.replace(mark, NEW))
    done = subprocess.run(
        [sys.executable, "-c", PROOF, *READ_ROWS],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(scratch)},
        check=False,
    )
    assert done.returncode == 0, done.stderr


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
