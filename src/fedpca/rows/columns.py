"""Check column names, and match the columns of two tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from fedpca.errors import InputError
from fedpca.rows.genotypes.variants import is_variant


class HasColumns(Protocol):
    """An object with columns that may have names."""

    @property
    def features(self) -> tuple[str, ...] | None: ...

    @property
    def n_features(self) -> int: ...


def matching_order(reference: HasColumns, other: HasColumns, where: str) -> list[int] | None:
    """Return the position in ``other`` of each column of ``reference``; None if the order matches."""
    if other.features is not None and reference.features is not None:
        return column_order(reference.features, other.features, where)
    if other.n_features != reference.n_features:
        raise InputError(
            f"{where}: there are {other.n_features} columns instead of {reference.n_features}"
        )
    if (other.features is None) != (reference.features is None):
        raise InputError(
            f"{where}: one has column names and the other does not; name the columns in both"
        )
    return None


def column_order(wanted: Sequence[str], present: Sequence[str], where: str) -> list[int] | None:
    """Return the position of each wanted column in ``present``, or None if the order matches."""
    if tuple(wanted) == tuple(present):
        return None
    ours, theirs = set(wanted), set(present)
    missing = [name for name in wanted if name not in theirs]
    extra = [name for name in present if name not in ours]
    if missing or extra:
        differences = [
            f"{len(group)} {word} ({some_of(group)})"
            for word, group in (("missing", missing), ("extra", extra))
            if group
        ]
        is_cohort = is_variant(([*missing, *extra])[0])
        way_out = (
            "use the same variants in both: choose them with --extract"
            if is_cohort
            else "use the same columns in both, or choose them with --columns or --drop"
        )
        raise InputError(f"{where}: the columns differ: {', '.join(differences)}; {way_out}")
    position = {name: index for index, name in enumerate(present)}
    return [position[name] for name in wanted]


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the column names; refuse them if any name occurs twice."""
    duplicates = [name for name, times in Counter(names).items() if times > 1]
    if duplicates:
        raise InputError(
            f"duplicate columns: {some_of(duplicates)}; give each column a unique name"
        )
    return tuple(names)


def some_of(names: Sequence[str], most: int = 5) -> str:
    """Return the first few names and a count of the rest, for an error message."""
    shown = ", ".join(str(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
