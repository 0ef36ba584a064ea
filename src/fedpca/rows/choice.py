"""Choose which columns are features, which columns are ids, and what to read from cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from numbers import Real
from typing import Any

from fedpca.errors import InputError
from fedpca.rows.columns import distinct_names, some_of

TARGET_SUM = 1e4  # by default, the sum to which the values of each cell are scaled


@dataclass(frozen=True)
class CellChoice:
    """What to read from an AnnData object or ``.h5ad`` file, in which each row is a cell.

    Parameters
    ----------
    layer : str, optional
        The layer that holds the values; by default, they are in ``X``.
    mask_var : str, optional
        The column of ``var`` that marks the genes to use, such as "highly_variable".
    log_normalize : float
        The sum S to which each cell's values x are scaled before the logarithm:
        ``log(1 + S x / sum(x))``, where sum(x) runs over all genes of the table. Zero leaves the
        values as they are.
    of_model : bool
        Whether the normalization is that of a fitted model. If so, rows from another source, such as
        an array, are assumed to be normalized already.
    """

    layer: str | None = None
    mask_var: str | None = None
    log_normalize: float = 0.0
    of_model: bool = False

    @classmethod
    def of(
        cls, layer: str | None = None, mask_var: str | None = None, log_normalize: Any = False
    ) -> CellChoice:
        """Return the checked choice; ``log_normalize=True`` stands for `TARGET_SUM`."""
        for word, name in (("layer", layer), ("mask_var", mask_var)):
            if name is not None and (not isinstance(name, str) or not name):
                raise InputError(f"{word}={name!r} must be a name, as a string that is not empty")
        target = TARGET_SUM if log_normalize is True else log_normalize or 0.0
        if not isinstance(target, Real) or not isfinite(target) or target < 0:
            raise InputError(
                f"log_normalize={log_normalize!r} must be True, False, or the sum of each cell's "
                "values before the logarithm, such as 1e4"
            )
        return cls(layer, mask_var, float(target))

    def in_words(self) -> Iterable[tuple[str, str]]:
        """Return each part of the choice as a word and a value."""
        given = (("layer", self.layer or ""), ("genes marked", self.mask_var or ""))
        target = f"{self.log_normalize:.17g}" if self.log_normalize else ""
        return [*given, ("cells log-normalized to", target)]

    def refuse_elsewhere(self) -> None:
        """Refuse a choice for rows that are not cells."""
        choice = replace(self, log_normalize=0.0) if self.of_model else self
        words = [f"{word} {value}" for word, value in choice.in_words() if value]
        if words:
            raise InputError(
                f"{words[0]}: only AnnData objects and .h5ad files have layers, marked genes, and "
                "cells to normalize; leave the option out"
            )


ALL_CELLS = CellChoice()


@dataclass(frozen=True)
class ColumnChoice:
    """The columns that are features, and those that identify the rows.

    Parameters
    ----------
    drop : tuple of str
        Columns that are not read.
    columns : tuple of str, optional
        The features; by default, all columns that are neither dropped nor ids.
    ids : tuple of str
        Columns that identify the rows. They are not features, and never leave the site.
    by_position : bool
        Whether rows without column names are accepted, with their columns in the right order.
    cells : CellChoice
        What to read from rows that are cells.
    """

    drop: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    ids: tuple[str, ...] = ()
    by_position: bool = False
    cells: CellChoice = ALL_CELLS

    def __post_init__(self) -> None:
        if self.columns is not None:
            distinct_names(self.columns)
            if not self.columns:
                raise InputError("columns is empty; name at least one column")
            both = [name for name in self.columns if name in (*self.drop, *self.ids)]
            if both:
                raise InputError(
                    f"{some_of(both)}: listed in columns and also in drop or id; list each column once"
                )

    @classmethod
    def of(
        cls,
        drop: str | Iterable[str] | None = None,
        columns: str | Iterable[str] | None = None,
        id: str | Iterable[str] | None = None,
        **cells: Any,
    ) -> ColumnChoice:
        """Return the choice; each option is a name, several names, or None.

        ``cells`` are the parameters of `CellChoice.of`.
        """
        only = None if columns is None else _names("columns", columns)
        ids = tuple(dict.fromkeys(_names("id", id)))
        return cls(_names("drop", drop), only, ids, cells=CellChoice.of(**cells))

    def also(self, name: str) -> ColumnChoice:
        """Return the choice with this column added, unless the column is chosen already."""
        if name in (*self.drop, *self.ids):
            raise InputError(
                f"column {name} is listed in drop or id, so it cannot have another use; remove it there"
            )
        if self.columns is None or name in self.columns:
            return self
        return replace(self, columns=(*self.columns, name))

    def in_words(self) -> str:
        """Return the choice as a short phrase, which is empty if every column is a feature."""
        parts = (("drop", self.drop), ("columns", self.columns), ("id", self.ids))
        listed = [(word, ", ".join(names)) for word, names in parts if names]
        cells = [(word, value) for word, value in self.cells.in_words() if value]
        return "; ".join(f"{word} {value}" for word, value in [*listed, *cells])

    def features_among(self, names: Sequence[str], index: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the columns that are features; refuse a choice that lists other columns.

        ``index`` names columns that are features only if the choice lists them.
        """
        known = set(names)
        missing = [name for name in self._listed if name not in known]
        if missing:
            raise InputError(
                f"there is no column {some_of(missing)}; the columns are {some_of(names, most=10)}"
            )
        if self.columns is not None:
            return self.columns
        left_out = {*self.drop, *self.ids, *index}
        features = tuple(name for name in names if name not in left_out)
        if names and not features:
            raise InputError("no column is left as a feature; drop fewer columns")
        return features

    def used_among(self, names: Sequence[str]) -> list[str]:
        """Return the columns that are features or ids."""
        features = self.features_among(names)
        return [*features, *self.ids]

    def check_unnamed(self) -> None:
        """Refuse a choice for rows whose columns have no names."""
        listed = self.ids if self.by_position else self._listed
        if listed:
            raise InputError(
                f"the columns have no names, so there is no column {some_of(listed)}; use a file or a "
                "data frame with column names"
            )

    @property
    def _listed(self) -> tuple[str, ...]:
        return (*self.drop, *(self.columns or ()), *self.ids)


ALL_COLUMNS = ColumnChoice()


def _names(option: str, given: str | Iterable[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    is_one = isinstance(given, str) or not isinstance(given, Iterable)
    names: tuple[Any, ...] = (given,) if is_one else tuple(given)
    for name in names:
        if not isinstance(name, str) or not name:
            raise InputError(f"{option}={given!r} must be a column's name or a list of names")
    return names
