"""Write text and tables into a page, so that names from elsewhere can never act as markup."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from fedpca.protocol.printable import MAX_REASON_CHARS, printable

MAX_NAME = 80  # characters of a name in a table


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


def sortable(name: str, heads: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """Return a table of names and numbers; a click on a column's title sorts it by that column."""
    top = "".join(
        f"<th{_text(i, 1)}><button>{shown(head, MAX_NAME)}</button></th>"
        for i, head in enumerate(heads)
    )
    rows = "".join(
        f'<tr><td class="text">{shown(line[0], MAX_NAME)}</td>'
        + "".join(f'<td data-value="{v!r}">{v:+.3f}</td>' for v in line[1:])
        + "</tr>"
        for line in lines
    )
    body = f"<thead><tr>{top}</tr></thead><tbody>{rows}</tbody>"
    return f'<div class="table"><table class="sortable {name}" id="{name}">{body}</table></div>'


def _text(position: int, n_text: int) -> str:
    return ' class="text"' if position < n_text else ""


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else shown(value, 2 * MAX_NAME)
