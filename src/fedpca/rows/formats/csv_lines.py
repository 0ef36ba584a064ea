"""Find the line of a text file that cannot be read, without quoting the line.

Arrow's errors quote values, which are private, and do not count lines. These functions read a file
again after Arrow has refused it.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each line of a file, which may be compressed."""
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            yield number, line.rstrip(b"\r\n")


def fields_of(line: bytes, delimiter: str) -> list[str]:
    """Split a line into fields; quotes may enclose delimiters. Return [] if it cannot be split."""
    text = line.decode("utf-8", errors="replace")
    try:
        return next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error:
        return []


def line_of_other_width(path: Path, delimiter: str, n_fields: int) -> str | None:
    """Describe the first line with more or fewer fields than the header, or return None."""
    for number, line in lines_of(path):
        here = len(fields_of(line, delimiter)) if line else n_fields  # empty lines are skipped
        if here != n_fields:
            return f"line {number} has {here} fields, but the header has {n_fields}"
    return None


def place_of_bad_byte(path: Path) -> str | None:
    """Describe where the first byte is that is not UTF-8, or return None."""
    for number, line in lines_of(path):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            return f"byte {error.start + 1} of line {number} is not UTF-8"
    return None


def line_of_other_value(
    path: Path, delimiter: str, column: int, is_value: Callable[[str], bool]
) -> int | None:
    """Return the number of the first line with a wrong value in a column, or None."""
    for number, line in lines_of(path):
        fields = fields_of(line, delimiter)
        if number > 1 and column < len(fields) and not is_value(fields[column]):
            return number
    return None


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb"))
