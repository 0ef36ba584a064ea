"""Print the facts of a result on a terminal, or as JSON for other programs."""

from __future__ import annotations

import json as json_format
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from fedpca.cli.console import out
from fedpca.facts import Column, Records, Section, Sections, as_plain, in_words
from fedpca.protocol.printable import MAX_REASON_CHARS, printable

WIDE = 10_000  # characters per line if the output has no width because it is not a terminal
ALARM = "red"


def show(sections: Sections, *, json: bool = False, quiet: bool = False) -> None:
    """Print facts for people, or with ``json`` for other programs, which is never quiet."""
    if json:
        print_json(as_plain(sections))
    elif not quiet:
        print_facts(out, sections)


def print_json(value: Any) -> None:
    """Print plain values as JSON on standard output."""
    typer.echo(json_format.dumps(value, indent=2))


def print_facts(console: Console, sections: Sections) -> None:
    """Print sections of facts as lines, and records as tables; parts without facts are left out."""
    for section in sections:
        if isinstance(section, Section):
            _print_section(console, section)
        elif section.rows and section.as_lines:
            _print_lines(console, section)
        elif section.rows:
            _print_records(console, section)


def _print_section(console: Console, section: Section) -> None:
    facts = section.shown()
    if facts and section.title:
        console.print(section.title, style="italic")
    width = max((len(fact.words) for fact, _ in facts), default=0)
    for fact, text in facts:
        note = f" ({fact.note})" if fact.note else ""
        text = printable(text, MAX_REASON_CHARS)
        style = ALARM if fact.kind.is_alarm and fact.value else None
        console.print(f"{fact.words:{width}}  {text}{note}", soft_wrap=True, style=style)


def _print_lines(console: Console, records: Records) -> None:
    columns, rows = records.shown()
    if records.title:
        console.print(records.title, style="italic")
    for row in rows:
        text = ": ".join(filter(None, _texts(columns, row)))
        console.print(text, soft_wrap=True, style=_style(columns, row))


def _print_records(console: Console, records: Records) -> None:
    """Print a table; long texts get a table of their own, with the names of the lines before them."""
    columns, rows = records.shown()
    shown = rows[: records.n_shown]
    if not columns:
        return
    _print_table(console, records.title, columns, shown, [not c.kind.is_long for c in columns])
    names = [column in records.columns[: records.n_names] for column in columns]
    for j, long in enumerate(columns):
        if long.kind.is_long:
            told = [row for row in shown if in_words(row[j], long.kind)]
            chosen = [is_name or i == j for i, is_name in enumerate(names)]
            _print_table(console, long.words.capitalize(), columns, told, chosen)
    if len(shown) < len(rows):
        console.print(f"... and {len(rows) - len(shown):,} more")
    if records.note:
        console.print(records.note, soft_wrap=True)


def _print_table(
    console: Console,
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    chosen: Sequence[bool],
) -> None:
    table = Table()
    for column, is_chosen in zip(columns, chosen, strict=True):
        if is_chosen:
            justify: Any = "right" if column.kind.is_number else "left"
            head = column.key if column.kind.is_long else column.words
            table.add_column(head, justify=justify, overflow="fold")  # never cut
    for row in rows:
        texts = zip(_texts(columns, row), chosen, strict=True)
        table.add_row(*(text for text, is_in in texts if is_in), style=_style(columns, row))
    if not console.is_terminal:
        console = Console(file=console.file, width=WIDE, highlight=False, markup=False, emoji=False)
    if title:
        console.print(title, style="italic")
    console.print(table)


def _texts(columns: Sequence[Column], row: Sequence[Any]) -> list[str]:
    return [
        printable(in_words(value, column.kind), MAX_REASON_CHARS)
        for column, value in zip(columns, row, strict=True)
    ]


def _style(columns: Sequence[Column], row: Sequence[Any]) -> str | None:
    values = zip(columns, row, strict=True)
    return ALARM if any(column.kind.is_alarm and value for column, value in values) else None
