"""Read rows from CSV and TSV files with a header line; files may be compressed.

Arrow's errors quote values, which are private, and do not count lines. So a file that Arrow has refused
is read again, to find the line that cannot be read without quoting it.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any, cast

from fedpca.errors import InputError, SiteFailed
from fedpca.rows.columns import distinct_names
from fedpca.rows.reading import Reading

CHARACTERS = 8  # rough length of a number in a CSV file
COMPRESSION = 3  # rough factor by which gzip shrinks a file of numbers
DELIMITERS = ",;\t|"
DAMAGED_CSV = "the compressed data is damaged or cut off; copy the file again"


class CsvFile:
    """A CSV or TSV file, parsed one block at a time."""

    pass_cost = 1000.0
    has_names = True
    index = ()

    def __init__(self, path: Path, reading: Reading) -> None:
        self._path = path
        header = _header_line(path)
        is_tsv = path.name.lower().endswith((".tsv", ".tsv.gz"))
        self._delimiter = "\t" if is_tsv else _delimiter(header)
        self.names = distinct_names(_header(_split_fields(header, self._delimiter)))
        self._ids = set(reading.id)
        used = reading.used_among(self.names)
        self._decimal = "."
        inferred = self._inferred(used)
        if self._delimiter != "," and _n_texts(inferred):  # the texts may be numbers such as 1,5
            self._decimal = ","
            with_commas = self._inferred(used)
            if _n_texts(with_commas) < _n_texts(inferred):
                inferred = with_commas
            else:
                self._decimal = "."
        self.schema = inferred

    @cached_property
    def n_rows(self) -> int:
        names = list(self.schema.names[:1])
        return sum(batch.num_rows for batch in self.batches(names, 0))

    @cached_property
    def about_n_rows(self) -> float:
        """Return an estimate of the number of rows, from the size of the file."""
        ratio = COMPRESSION if self._path.suffix.lower() == ".gz" else 1
        return ratio * self._path.stat().st_size / (CHARACTERS * len(self.names))

    def batches(self, columns: Sequence[str], size: int) -> Iterator[Any]:
        import pyarrow as pa

        try:
            n_rows = 0
            # Arrow's default block of 1 MB of text stays well below BLOCK_BYTES once parsed
            with self._open(columns, self._types(columns)) as reader:
                for batch in reader:
                    n_rows += batch.num_rows
                    yield batch
            self.n_rows = n_rows  # counted for free by this pass
        except pa.ArrowInvalid as error:
            raise InputError(f"{self._path}: {self._explained(error)}") from None
        except OSError as error:
            if error.errno is None:  # an error from Arrow, about the contents of the file
                raise InputError(f"{self._path}: {DAMAGED_CSV}") from None
            raise SiteFailed(
                f"{self._path} can no longer be read; the site must restore it"
            ) from None

    def _types(self, columns: Sequence[str]) -> dict[str, Any]:
        """Return the type as which to read each column.

        A column may start with integers and continue with fractions, so numbers are read as float64.
        Booleans keep their type, because Arrow cannot parse "true" as a float.
        """
        import pyarrow as pa

        fields = [self.schema.field(name) for name in columns]
        keeps = [f for f in fields if f.name in self._ids or pa.types.is_boolean(f.type)]
        return dict.fromkeys(columns, pa.float64()) | {f.name: f.type for f in keeps}

    def _inferred(self, columns: Sequence[str]) -> Any:
        """Return the column types that Arrow infers from the first block of the file."""
        import pyarrow as pa

        texts = dict.fromkeys(self._ids, pa.string())  # an id such as 007 keeps its zeros
        try:
            with self._open(columns, texts) as reader:
                schema = reader.schema
        except pa.ArrowInvalid as error:
            raise self._explained(error) from None
        except OSError as error:
            if error.errno is None:  # Arrow reads ahead, so it may find the damage here or later
                raise InputError(DAMAGED_CSV) from None
            raise
        if any(pa.types.is_binary(field.type) for field in schema):
            raise self._not_utf8()
        return schema

    def _open(self, columns: Sequence[str], types: dict[str, Any]) -> Any:
        import pyarrow.csv as csv

        convert = csv.ConvertOptions(
            column_types=types, include_columns=list(columns), decimal_point=self._decimal
        )
        parse = csv.ParseOptions(delimiter=self._delimiter)
        return csv.open_csv(self._path, parse_options=parse, convert_options=convert)

    def _explained(self, error: Exception) -> InputError:
        """Return an error that says what Arrow refused, and on which line, but never quotes a value."""
        if "UTF8" in str(error):
            return self._not_utf8()
        column = re.search(r"CSV column #(\d+): (?:Row #\d+: )?CSV conversion error", str(error))
        if column is None:
            where = _line_of_other_width(self._path, self._delimiter, len(self.names))
            problem = where or "a line has more or fewer fields than the header"
            return InputError(f"{problem}; correct or remove the line")
        which = int(column[1])
        line = _line_of_other_value(self._path, self._delimiter, which, self._is_number_or_gap)
        where = (
            f"column {self.names[which]}"
            if line is None
            else f"line {line}, column {self.names[which]}"
        )
        return InputError(
            f"{where} contains a value that is not a number; correct the value, or leave the column "
            "out with --drop"
        )

    def _not_utf8(self) -> InputError:
        return not_utf8(_place_of_bad_byte(self._path) or "the file is not UTF-8")

    def _is_number_or_gap(self, text: str) -> bool:
        import pyarrow.csv as csv

        plain = text.strip().replace(self._decimal, ".")
        return plain in csv.ConvertOptions().null_values or _is_number(plain)


def not_utf8(where: str) -> InputError:
    """Return an error about a file that is not UTF-8; ``where`` says where."""
    return InputError(
        f"{where}; the file may be Latin-1 (Windows-1252); save it as UTF-8, or convert it with: iconv "
        "-f WINDOWS-1252 -t UTF-8"
    )


def _header_line(path: Path) -> bytes:
    """Return the first line that is not empty, without the byte order mark that may precede it."""
    for number, line in _lines_of(path):
        header = line.removeprefix(b"\xef\xbb\xbf")
        if header:
            try:
                header.decode("utf-8")
            except UnicodeDecodeError as error:
                raise not_utf8(f"byte {error.start + 1} of line {number} is not UTF-8") from None
            return header
    raise InputError("the file is empty; it must start with a line of column names")


def _delimiter(header: bytes) -> str:
    """Return the character that separates the names in a header line."""
    return max(DELIMITERS, key=lambda mark: len(_split_fields(header, mark)))


def _header(names: list[str]) -> list[str]:
    """Return the column names; refuse a header that lacks a name or contains only numbers."""
    if "" in names:
        raise InputError(
            f"column {names.index('') + 1} has no name; name it, or save the file without its row index"
        )
    looks_like_data = all(_is_number(name) for name in names)
    if looks_like_data and names != [str(i) for i in range(len(names))]:
        raise InputError("the first line contains numbers; it must contain the column names")
    return names


def _n_texts(schema: Any) -> int:
    import pyarrow as pa

    return sum(pa.types.is_string(field.type) for field in schema)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each line of a file, which may be compressed."""
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            yield number, line.rstrip(b"\r\n")


def _split_fields(line: bytes, delimiter: str) -> list[str]:
    """Split a line into fields; quotes may enclose delimiters. Return [] if it cannot be split."""
    text = line.decode("utf-8", errors="replace")
    try:
        return next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error:
        return []


def _line_of_other_width(path: Path, delimiter: str, n_fields: int) -> str | None:
    """Describe the first line with more or fewer fields than the header, or return None."""
    for number, line in _lines_of(path):
        here = len(_split_fields(line, delimiter)) if line else n_fields  # empty lines are skipped
        if here != n_fields:
            return f"line {number} has {here} fields, but the header has {n_fields}"
    return None


def _place_of_bad_byte(path: Path) -> str | None:
    """Describe where the first byte is that is not UTF-8, or return None."""
    for number, line in _lines_of(path):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            return f"byte {error.start + 1} of line {number} is not UTF-8"
    return None


def _line_of_other_value(
    path: Path, delimiter: str, column: int, is_value: Callable[[str], bool]
) -> int | None:
    """Return the number of the first line with a wrong value in a column, or None."""
    for number, line in _lines_of(path):
        fields = _split_fields(line, delimiter)
        if number > 1 and column < len(fields) and not is_value(fields[column]):
            return number
    return None


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb"))
