"""Make text that came from elsewhere safe to print.

A name or an error from someone else could hide a sequence that clears a terminal, a line that looks as
if this program had written it, or a mark that reverses the reading direction.
"""

from __future__ import annotations

from typing import Any

MAX_CHARS = 200  # of a name
MAX_REASON_CHARS = 2000  # of an error's text from another party


def printable(text: Any, max_chars: int = MAX_CHARS, *, keep: str = "") -> str:
    r"""Return the text on one line, at most ``max_chars`` long, with escapes for unprintable parts.

    The characters in ``keep`` stay as they are.

    >>> printable("north\x1b[2J\nserver: all is well")
    'north\\x1b[2J\\nserver: all is well'
    """
    # no character becomes shorter, so the rest would be cut off anyway
    start = str(text)[: max_chars + 1]
    shown = "".join(c if c.isprintable() or c in keep else _escape(c) for c in start)
    return shown if len(shown) <= max_chars else shown[: max_chars - 3] + "..."


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
