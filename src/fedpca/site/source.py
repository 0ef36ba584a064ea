"""Open a site's rows, and notice when they change.

A site may run for months while its files change every night. Changed files are opened again when a run
begins, but files must not change during a run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from fedpca.errors import InputError, SiteFailed
from fedpca.rows.formats.query import Query
from fedpca.rows.genotypes.plink_files import Genotypes
from fedpca.rows.in_memory import Rows, checksum
from fedpca.rows.open import (
    file_states,
    on_device_and_weighted,
    open_unweighted,
    opened_paths,
    refuse_gone,
    resolved,
    state_of,
)
from fedpca.rows.pieces import Pieces
from fedpca.rows.reading import AS_STORED, Reading, reading_of
from fedpca.rows.weighted import weight_fingerprint

log = logging.getLogger("fedpca.site")


class Source:
    """Where a site's rows come from; the parameters are those of `fedpca.site.site.Site`.

    ``how`` may hold the options of the reading instead.
    """

    def __init__(
        self,
        rows: Any,
        *,
        site: str,
        reading: Reading | None,
        how: Mapping[str, Any],
        check: Callable[[Rows], None] | None = None,
    ) -> None:
        self._site, self._check = site, check
        with _naming_site(site):
            self.reading = reading_of(reading, how) if reading or how else AS_STORED
            self._given, self._reading = resolved(rows, self.reading)
            self._asked: tuple[str, SiteFailed | Path] | None = None  # a run, and what a query gave
            self._is_asked_here = False
            # before opening, so that a change while files are opened is noticed
            self.files = file_states(self._given)
            self.rows = self._open()

    def files_now(self) -> dict[Path, str]:
        """Return the files and their current states; raise an error if a file is gone.

        If the rows come from a database, query it again. So call this only when a run begins.
        """
        if isinstance(self._given, Query):
            known = self._asked if self._is_asked_here else None
            found = self._ask(self._given) if known is None else known[1]
            if isinstance(found, SiteFailed):
                raise found
        return files_of(self._given)

    @contextmanager
    def asking_here(self, run: str) -> Iterator[None]:
        """For a run in this process, query a connection in the thread that starts the run.

        The run's questions may be answered in other threads, which most drivers do not let use the
        connection. An address, or a function that opens a connection, works in any thread.
        """
        query = self._given
        if isinstance(query, Query) and query.belongs_to_thread:
            # a run that gave its sites back while people decide keeps the rows that it began with
            if self._asked is None or self._asked[0] != run:
                self._asked = run, self._ask(query)
            self._is_asked_here = True
        try:
            yield
        finally:
            self._is_asked_here = False

    def _ask(self, query: Query) -> SiteFailed | Path:
        """Query the database again; return the file with the rows, or why there is none."""
        try:
            return query.fetch()
        except InputError as error:  # its text is only for the people at the site
            log.error("site %s: %s", self._site, error)
            return SiteFailed(
                "the site's database did not answer its query; see the site's log for details"
            )

    @property
    def fingerprint(self) -> str:
        """Return a string that identifies the current rows, so that a resumed run recognizes them."""
        return self.fingerprint_of(file_states(self._given))

    def fingerprint_of(self, files: Mapping[Path, str]) -> str:
        """Return the fingerprint that the rows have if the files are in these states."""
        states = [f"{file.name} {state}" for file, state in files.items()]
        if isinstance(self._given, Genotypes):
            states.append(self._given.in_words())
        if states and self.reading.weight is not None:
            states.append(weight_fingerprint(self.reading.weight))
        return "; ".join(
            filter(None, ("; ".join(states) or self._checksum, self.reading.in_words()))
        )

    @cached_property
    def _checksum(self) -> str:
        return checksum(self.rows)

    def reopen(self, files: Mapping[Path, str]) -> None:
        """Open changed files again; if rows do not pass the site's check, stay out of the run."""
        try:
            self.rows, self.files = self._open(), dict(files)
        except InputError as error:
            if self._check is None:
                raise
            raise SiteFailed(
                f"the site stays out of this run because its files changed: {error}"
            ) from None

    def has_changed(self) -> bool:
        """Return whether a file has changed since it was opened; raise an error if one is gone."""
        if not self.files:
            return False
        now = {file: state_of(file) for file in self.files}
        refuse_gone(now)
        return now != self.files

    def _open(self) -> Rows:
        """Open and check the rows."""
        rows = open_unweighted(self._given, self._reading)
        if self._check is not None:
            self._check(rows)
        return on_device_and_weighted(rows, self._reading)


def in_pieces(
    load: Sequence[Callable[[], Any]], n_rows: int | None = None, *, are_held: bool = False
) -> Any:
    """Return rows for a site whose table is loaded piece by piece; see `fedpca.rows.pieces.Pieces`."""
    return Pieces(load, n_rows, are_held)


def states_of_paths(paths: Sequence[str]) -> dict[Path, str]:
    """Return each path that a site would open, with its files' states; refuse if a file is gone."""
    return {path: "; ".join(files_of(path).values()) for path in opened_paths(paths)}


def files_of(rows: Any) -> dict[Path, str]:
    """Return the files that hold a site's rows, with their states; rows in memory have none."""
    files = file_states(rows)
    refuse_gone(files)
    return files


@contextmanager
def _naming_site(name: str) -> Iterator[None]:
    """Put the site's name before errors about its rows."""
    try:
        yield
    except InputError as error:
        raise InputError(f"site {name!r}: {error}") from None
