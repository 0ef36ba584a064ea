"""Choose which columns of a table are features, and which identify its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedpca.errors import InputError
from fedpca.rows.columns import distinct_names, some_of


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
    """

    drop: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    ids: tuple[str, ...] = ()
    by_position: bool = False

    def __post_init__(self) -> None:
        if self.columns is not None:
            distinct_names(self.columns)
            if not self.columns:
                raise InputError("columns is empty; name at least one column")
            both = [name for name in self.columns if name in (*self.drop, *self.ids)]
            if both:
                raise InputError(
                    f"columns lists {some_of(both)}, which drop or id lists too; list each once"
                )

    @classmethod
    def of(
        cls,
        drop: str | Iterable[str] | None = None,
        columns: str | Iterable[str] | None = None,
        id: str | Iterable[str] | None = None,
    ) -> ColumnChoice:
        """Return the choice for one name or several names each; None stands for no choice."""
        only = None if columns is None else _names("columns", columns)
        return cls(_names("drop", drop), only, tuple(dict.fromkeys(_names("id", id))))

    def also(self, name: str) -> ColumnChoice:
        """Return the choice with one more column, which all columns together contain anyway."""
        if name in (*self.drop, *self.ids):
            raise InputError(
                f"column {name} is dropped or an id, so it cannot be used otherwise; list it once"
            )
        if self.columns is None or name in self.columns:
            return self
        return replace(self, columns=(*self.columns, name))

    def in_words(self) -> str:
        """Return the choice as a short phrase, or an empty text if every column is a feature."""
        parts = (("drop", self.drop), ("columns", self.columns), ("id", self.ids))
        return "; ".join(f"{word} {', '.join(names)}" for word, names in parts if names)

    def features_among(self, names: Sequence[str], index: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the columns that are features, or refuse a choice of columns that do not exist.

        ``index`` names columns that are features only if the choice lists them.
        """
        missing = [name for name in self._listed if name not in set(names)]
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
        """Return the features and ids."""
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
