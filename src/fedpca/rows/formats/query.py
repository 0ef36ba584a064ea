"""Read rows from a database: keep the result of a query in a private file for the length of a run.

A database may return rows in a different order, or different rows, each time it is queried. The rows of
a run must not change. So the database is queried once when a run begins, and the result is kept in an
Arrow file that only the owner of the process can read. The next run queries the database again.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from decimal import Decimal
from importlib import import_module
from operator import index
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fedpca.errors import InputError

BATCH_ROWS = 10_000  # rows to fetch at a time
EMPTY_QUERY = "the query returns no rows; use a select statement"
_ALIASES = {"postgres": "postgresql", "grpc": "flightsql"}  # schemes whose drivers have other names


class Query:
    """Rows that a database returns for a query.

    Parameters
    ----------
    database : str, callable, or connection
        The database: an address, such as ``sqlite:///rows.db``, ``duckdb:///rows.duckdb``, or
        ``postgresql://user@host/name``, a function that returns a DB-API connection, or a connection.
        Addresses other than the first two need the ADBC driver for their scheme, such as the package
        ``adbc-driver-postgresql``.
    sql : str
        A query that returns the rows of the table. With an ORDER BY, a restarted site can continue its
        run.
    """

    def __init__(self, database: Any, sql: str) -> None:
        if not isinstance(sql, str) or not sql.strip():
            raise InputError("the query is empty; write it in SQL, as in 'select * from visits'")
        # many drivers let only the thread that opened a connection use it
        self.belongs_to_thread = hasattr(database, "cursor")
        self._connect = _connector(database)
        self._sql = sql
        # only its owner may enter this folder
        self._folder = Path(tempfile.mkdtemp(prefix="fedpca-query-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._kept: Path | None = None

    @property
    def result(self) -> Path:
        """Return the file with the rows that the database returned last."""
        return self._kept or self.fetch()

    def fetch(self) -> Path:
        """Query the database, and return the file with the rows.

        The name and the modification time of the file depend only on the rows, so a resumed run can
        tell that the rows are the same.
        """
        arriving = self._folder / f"{secrets.token_hex(4)}.part"
        try:
            self._write(arriving)
            with arriving.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.utime(arriving, ns=(0, 0))
            kept = self._folder / f"query-{digest[:32]}.arrow"
            arriving.replace(kept)
        finally:
            arriving.unlink(missing_ok=True)
        if self._kept not in (None, kept):
            self._kept.unlink(missing_ok=True)
        self._kept = kept
        return kept

    def _write(self, path: Path) -> None:
        import pyarrow as pa

        try:
            with self._connect() as connection, _result_of(connection, self._sql) as result:
                schema, batches = result
                with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
                    for batch in batches:
                        writer.write_batch(batch)
        except InputError:
            raise
        except Exception as error:  # each driver has its own exceptions
            raise InputError(
                f"the database did not answer the query: {type(error).__name__}: {str(error).strip()}; "
                "check the address, the access rights, and the query"
            ) from None


def _connector(database: Any) -> Callable[[], Any]:
    """Return a function that opens a connection as a context manager."""
    if isinstance(database, str):
        return _connector_to(database)
    if hasattr(database, "cursor"):  # first, since connections of sqlite3 are callable
        return lambda: nullcontext(database)
    if callable(database):
        return lambda: closing(database())
    raise InputError(
        f"the database is a {type(database).__name__}; pass an address, a DB-API connection, or a "
        "function that returns one"
    )


def _connector_to(address: str) -> Callable[[], Any]:
    scheme, colon, _ = address.partition(":")
    if not colon or not scheme.isidentifier():
        # the rest of an address may contain a password
        raise InputError(
            "the address of the database has no scheme; write it as in sqlite:///rows.db, "
            "duckdb:///rows.duckdb, or postgresql://user@host/name"
        )
    if scheme == "sqlite":
        where = f"{_file_in(address).absolute().as_uri()}?mode=ro"
        return lambda: closing(sqlite3.connect(where, uri=True))
    if scheme == "duckdb":
        duckdb = _driver("duckdb", "duckdb")
        file = str(_file_in(address))
        return lambda: closing(duckdb.connect(file, read_only=True))
    name = _ALIASES.get(scheme, scheme)
    driver = _driver(f"adbc_driver_{name}.dbapi", f"adbc-driver-{name}")
    return lambda: closing(driver.connect(address))


def _file_in(address: str) -> Path:
    """Return the file of an address; a relative path follows three slashes, an absolute path four."""
    parts = urlsplit(address)
    text = unquote(parts.netloc + parts.path)
    path = Path(text[1:] if address.partition(":")[2].startswith("//") else text)
    if not path.is_file():
        raise InputError(f"{path} is not a file; check the address of the database")
    return path


def _driver(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise InputError(
            f"this database requires a driver; install it with: pip install {package}"
        ) from None


@contextmanager
def _result_of(connection: Any, sql: str) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Run a query, and yield the schema of its result and its Arrow record batches."""
    if hasattr(connection, "sql"):  # DuckDB; its cursors would copy the rows once more
        relation = connection.sql(sql)
        if relation is None:
            raise InputError(EMPTY_QUERY)
        reader = relation.to_arrow_reader(BATCH_ROWS)
        yield reader.schema, iter(reader)
        return
    with closing(connection.cursor()) as cursor:
        cursor.execute(sql)
        if cursor.description is None:
            raise InputError(EMPTY_QUERY)
        if hasattr(cursor, "fetch_record_batch"):  # ADBC
            yield with_numbers(cursor.fetch_record_batch())
        else:
            yield _from_tuples(cursor, [column[0] for column in cursor.description])


def with_numbers(reader: Any) -> tuple[Any, Iterator[Any]]:
    """Return a result with decimals of any size, which ADBC leaves as text, as float64."""
    import pyarrow as pa

    are_texts = [getattr(kind, "type_name", "") == "numeric" for kind in reader.schema.types]
    if not any(are_texts):
        return reader.schema, iter(reader)
    fields = zip(reader.schema, are_texts, strict=True)
    schema = pa.schema([pa.field(f.name, pa.float64()) if is_text else f for f, is_text in fields])

    def batches() -> Iterator[Any]:
        for batch in reader:
            columns = zip(batch.columns, are_texts, strict=True)
            arrays = [c.storage.cast(pa.float64()) if is_text else c for c, is_text in columns]
            yield pa.record_batch(arrays, schema=schema)

    return schema, batches()


def _from_tuples(cursor: Any, names: list[str]) -> tuple[Any, Iterator[Any]]:
    """Return the result of a cursor without Arrow; its first rows set the types of the columns."""
    import pyarrow as pa

    first = cursor.fetchmany(BATCH_ROWS)
    columns = zip(*first, strict=True) if first else [()] * len(names)
    kinds = [_kind_of(values) for values in columns]
    schema = pa.schema(list(zip(names, kinds, strict=True)))

    def batches() -> Iterator[Any]:
        rows = first
        while rows:
            arrays = []
            for field, values in zip(schema, zip(*rows, strict=True), strict=True):
                try:
                    arrays.append(pa.array(_converted(values, field.type), field.type))
                except (pa.ArrowException, TypeError, ValueError):
                    raise InputError(
                        f"column {field.name} has values that are not {field.type}, unlike its first "
                        "values; cast the column in the query"
                    ) from None
            yield pa.record_batch(arrays, schema=schema)
            rows = cursor.fetchmany(BATCH_ROWS)

    return schema, batches()


def _kind_of(values: Any) -> Any:
    """Return the Arrow type of a column: whole numbers, other numbers, or text."""
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    if kinds and kinds <= {int, bool}:
        return pa.int64()
    return pa.float64() if kinds <= {int, bool, float, Decimal} else pa.string()


def _converted(values: Any, kind: Any) -> Any:
    """Convert a column's values to its type; Arrow would cut off digits or refuse mixed types."""
    import pyarrow as pa

    if kind == pa.float64():
        return [None if value is None else float(value) for value in values]
    if kind == pa.int64():
        return [None if value is None else index(value) for value in values]
    return [None if value is None else str(value) for value in values]
