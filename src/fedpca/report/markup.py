"""Write text and tables into a page, so that names from elsewhere can never act as markup."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from fedpca.facts import ROWS, Fact, Records, Section, in_words
from fedpca.protocol.printable import MAX_REASON_CHARS, printable

MAX_SHOWN_CHARS = 80  # characters of a name in a table


def shown(text: object, max_chars: int = MAX_REASON_CHARS) -> str:
    """Return text for a page: without markup or invisible characters, and of limited length."""
    return escape(printable(text, max_chars))


def script_hash(page: str) -> str:
    """Return the hash of a page's only script, as a Content-Security-Policy names it."""
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def table(
    heads: Sequence[str], lines: Iterable[Sequence[Any]], n_text: int = 1, kind: str = ""
) -> str:
    """Return a table whose first ``n_text`` columns are text and whose others are numbers."""
    top = "".join(f"<th{_text(i, n_text)}>{shown(head)}</th>" for i, head in enumerate(heads))
    rows = "".join(
        "<tr>"
        + "".join(f"<td{_text(i, n_text)}>{_cell(v)}</td>" for i, v in enumerate(line))
        + "</tr>"
        for line in lines
    )
    body = f"<thead><tr>{top}</tr></thead><tbody>{rows}</tbody>"
    return f'<div class="table"><table class="{kind}">{body}</table></div>'


def records_as_table(records: Records, kind: str = "", most: int | None = None) -> str:
    """Return records as a table, with at most so many lines."""
    columns, rows = records.shown()
    heads = [column.words for column in columns]
    texts = [
        [in_words(v, c.kind) for c, v in zip(columns, row, strict=True)] for row in rows[:most]
    ]
    n_text = next((j for j, c in enumerate(columns) if c.kind.is_number), len(columns))
    return table(heads, texts, n_text, kind)


def paragraphs(section: Section, fewest: int) -> Iterator[str]:
    """Yield a paragraph for each fact, which hides a number of rows below ``fewest``."""
    for fact, _ in section.shown():
        note = f". {fact.note[0].upper()}{fact.note[1:]}" if fact.note else ""
        words = f"{fact.words[0].upper()}{fact.words[1:]}: {as_text(fact, fewest)}{note}"
        yield f"<p>{shown(words.removesuffix('.'))}.</p>"


def as_text(fact: Fact, fewest: int) -> str:
    """Return a fact's value as text, but hide a number of rows below ``fewest``."""
    if fact.kind is ROWS and 0 < fact.value < fewest:
        return f"fewer than {fewest}"
    return in_words(fact.value, fact.kind)


def sortable(name: str, heads: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """Return a table of names and numbers; a click on a column's title sorts it by that column."""
    top = "".join(
        f"<th{_text(i, 1)}><button>{shown(head, MAX_SHOWN_CHARS)}</button></th>"
        for i, head in enumerate(heads)
    )
    rows = "".join(
        f'<tr><td class="text">{shown(line[0], MAX_SHOWN_CHARS)}</td>'
        + "".join(f'<td data-value="{v!r}">{v:+.3f}</td>' for v in line[1:])
        + "</tr>"
        for line in lines
    )
    body = f"<thead><tr>{top}</tr></thead><tbody>{rows}</tbody>"
    return f'<div class="table"><table class="sortable {name}" id="{name}">{body}</table></div>'


def _text(position: int, n_text: int) -> str:
    return ' class="text"' if position < n_text else ""


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else shown(value, 4 * MAX_SHOWN_CHARS)
