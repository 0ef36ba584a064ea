"""Write tables to CSV or Parquet files, completely or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedpca.errors import InputError
from fedpca.storage import atomic

TABLE_SUFFIXES = (".csv", ".parquet")


def check_format(path: Path) -> None:
    """Refuse a file name whose ending does not say which format to write."""
    if path.suffix not in TABLE_SUFFIXES:
        raise InputError(f"{path} must end in {' or '.join(TABLE_SUFFIXES)}, as in {path.stem}.csv")


@contextmanager
def writing_table(path: Path, schema: Any, *, private: bool = False) -> Iterator[Any]:
    """Yield a writer of Arrow record batches to a file.

    If ``private`` is true, only the owner of the file can read it.
    """
    import pyarrow.csv
    import pyarrow.parquet

    check_format(path)
    is_csv = path.suffix == ".csv"
    make = pyarrow.csv.CSVWriter if is_csv else pyarrow.parquet.ParquetWriter
    with atomic.writing(path, private=private) as temporary, make(temporary, schema) as writer:
        yield writer
