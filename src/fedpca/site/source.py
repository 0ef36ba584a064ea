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
from fedpca.rows.choice import ALL_COLUMNS, ColumnChoice
from fedpca.rows.formats.query import Query
from fedpca.rows.genotypes.genotype_rows import GenotypeRows
from fedpca.rows.genotypes.plink_files import Genotypes
from fedpca.rows.gpu.device_rows import rows_on
from fedpca.rows.in_memory import Rows, checksum
from fedpca.rows.open import file_states, open_rows, opened_paths, refuse_gone, state_of
from fedpca.rows.pieces import Pieces
from fedpca.rows.weighted import WeightedRows, as_numbers, weight_fingerprint

log = logging.getLogger("fedpca.site")


class Source:
    """Where a site's rows come from; the parameters are those of `fedpca.site.site.Site`."""

    def __init__(
        self,
        rows: Any,
        *,
        site: str,
        drop: str | Sequence[str] | None = None,
        columns: str | Sequence[str] | None = None,
        id: str | Sequence[str] | None = None,
        weight: Any = None,
        check: Callable[[Rows], None] | None = None,
        device: str | None = None,
        precision: str | None = None,
        layer: str | None = None,
        mask_var: str | None = None,
        log_normalize: bool | float = False,
    ) -> None:
        self._site, self._check = site, check
        self._query = rows if isinstance(rows, Query) else None
        self._device, self._precision = device, precision
        with _naming_site(site):
            self._given = rows if self._query is None else self._query.fetch()
            cells = {"layer": layer, "mask_var": mask_var, "log_normalize": log_normalize}
            is_chosen = any(option is not None for option in (drop, columns, id, layer, mask_var))
            is_chosen = is_chosen or log_normalize is not False
            choice = ColumnChoice.of(drop, columns, id, **cells) if is_chosen else ALL_COLUMNS
            self._choice = choice
            is_array = weight is not None and not isinstance(weight, str)
            self._weight = as_numbers(weight) if is_array else weight
            # before opening, so that a change while files are opened is noticed
            self.files = file_states(self._given)
            self.rows = self._open()

    def files_now(self) -> dict[Path, str]:
        """Return the files and their current states; raise an error if a file is gone.

        If the rows come from a database, query it again. So call this only when a run begins.
        """
        if self._query is not None:
            try:
                self._given = self._query.fetch()
            except InputError as error:  # its text is only for the people at the site
                log.error("site %s: %s", self._site, error)
                raise SiteFailed(
                    "the site's database did not answer its query; see the site's log for details"
                ) from None
        return files_of(self._given)

    @property
    def log_normalized(self) -> float:
        """Return the sum to which each cell is normalized, or 0 if cells are not normalized."""
        return self._choice.cells.log_normalize

    @property
    def fingerprint(self) -> str:
        """Return a string that identifies the current rows, so that a resumed run recognizes them."""
        return self.fingerprint_of(file_states(self._given))

    def fingerprint_of(self, files: Mapping[Path, str]) -> str:
        """Return the fingerprint that the rows have if the files are in these states."""
        states = [f"{file.name} {state}" for file, state in files.items()]
        if isinstance(self._given, Genotypes):
            states.append(self._given.in_words())
        if states and self._weight is not None:
            states.append(weight_fingerprint(self._weight))
        return "; ".join(
            filter(None, ("; ".join(states) or self._checksum, self._choice.in_words()))
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
        choice = self._choice
        if isinstance(self._weight, str):
            choice = choice.also(self._weight)
        try:
            rows = open_rows(self._given, choice)
        except InputError as error:
            if self._query is None:
                raise
            raise InputError(
                str(error).replace(str(self._given), "the query's result", 1)
            ) from None
        if isinstance(rows, GenotypeRows):
            self._refuse_options_of_tables()
        if self._check is not None:
            self._check(rows)
        if self._device is not None or self._precision is not None:
            rows = rows_on(rows, self._device, self._precision)
        return rows if self._weight is None else WeightedRows(rows, self._weight)

    def _refuse_options_of_tables(self) -> None:
        """Refuse weights and devices for genotypes, which are multiplied in their packed form."""
        given = {"weight": self._weight, "device": self._device, "precision": self._precision}
        for option, value in given.items():
            if value is not None:
                raise InputError(
                    f"the rows are genotypes, which take no {option}; omit it, or choose samples "
                    "with keep instead"
                )


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
