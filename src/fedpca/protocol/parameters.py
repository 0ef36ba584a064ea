"""Check numbers: options, and those in a question's fields, which a site can so refuse.

The declaration of a question's field may be followed by words that bound its numbers::

    asks={"Z": "float64 d k, orthonormal", "steps": "int64, fixed, 1..1000", "mean": "float64 d, fixed"}

=============  =====================================================================================
word           bound
=============  =====================================================================================
orthonormal    a matrix, or each matrix of a stack, has orthonormal columns; "orthonormal by FIELD"
               means that the columns with the same number in FIELD are orthonormal
columns A..B   a matrix has from A to B columns
one of A B     one of these numbers
flag           0 or 1
positive       greater than 0
nonnegative    at least 0
A..B           from A to B, both included
fixed          the same in all questions of a run that have a fixed field of this name
=============  =====================================================================================

A program's script may bound a field further, in the same words. Sites that follow a plan check these
bounds; see `fedpca.site.guard`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.protocol.invariants import ROUNDING

FIXED = "fixed"
_WORDS = (FIXED, "orthonormal", "flag", "positive", "nonnegative")
_COLUMNS, _ONE_OF, _BY = "columns ", "one of ", "orthonormal by "


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Refuse an option that is not a whole number within its bounds."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        bounds = f" of at least {least}" if most is None else f" from {least} to {most}"
        raise InputError(f"{name}={value!r} must be a whole number{bounds}")


def check_number(name: str, value: Any, least: float, most: float) -> None:
    """Refuse an option that is not a number within its bounds."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not least <= float(value) <= most:
        raise InputError(f"{name}={value!r} must be a number from {least:g} to {most:g}")


def check_asked_words(words: Sequence[str], field: str) -> None:
    """Refuse words that the declaration of a question's field may not use."""
    for word in words:
        is_known = word in _WORDS or word.startswith(_BY) or _numbers(word) is not None
        if not is_known and _range(word.removeprefix(_COLUMNS)) is None:
            known = ", ".join((*_WORDS, f"{_COLUMNS}A..B", f"{_ONE_OF}A B", f"{_BY}FIELD"))
            raise ValueError(f"field {field!r}: {word!r} must be a range A..B or one of {known}")


def split_words(text: str) -> list[str]:
    """Return the words in a text such as "fixed, 1..8"."""
    return [word.strip() for word in text.split(",") if word.strip()]


def out_of_bounds(
    array: Array, words: Sequence[str], others: Mapping[str, Array] | None = None
) -> str | None:
    """Return what a field must be but is not, or None; ``others`` has the question's fields."""
    for word in words:
        bounds, numbers = _range(word.removeprefix(_COLUMNS)), _numbers(word)
        if bounds is not None:
            low, high = bounds
            if word.startswith(_COLUMNS):
                if not low <= array.shape[-1] <= high:
                    return f"must have from {low:g} to {high:g} columns"
            elif array.size and (array.min() < low or array.max() > high):
                return f"must be from {low:g} to {high:g}"
        elif numbers is not None and not np.isin(array, numbers).all():
            return f"must be one of {', '.join(f'{number:g}' for number in numbers)}"
        elif word.startswith(_BY):
            groups = (others or {})[word.removeprefix(_BY)]
            if not all(_is_orthonormal(array[:, groups == group]) for group in np.unique(groups)):
                return "must have orthonormal columns in each group of columns"
        elif word == "orthonormal" and not _is_orthonormal(array):
            return "must have orthonormal columns"
        elif word == "flag" and not np.isin(array, (0, 1)).all():
            return "must be 0 or 1"
        elif word == "positive" and array.min(initial=1) <= 0:
            return "must be greater than 0"
        elif word == "nonnegative" and array.min(initial=0) < 0:
            return "must not be negative"
    return None


def _is_orthonormal(array: Array) -> bool:
    if array.ndim > 2:
        return all(_is_orthonormal(block) for block in array)
    d, k = array.shape
    if k > d:
        return False
    defect = array.T @ array
    defect.flat[:: k + 1] -= 1
    return bool(np.abs(defect).max(initial=0.0) <= ROUNDING)


@lru_cache(maxsize=256)
def _numbers(word: str) -> list[float] | None:
    try:
        listed = word.removeprefix(_ONE_OF).split()
        return [float(number) for number in listed] if word.startswith(_ONE_OF) else None
    except ValueError:
        return None


@lru_cache(maxsize=256)
def _range(word: str) -> tuple[float, float] | None:
    low, dots, high = word.partition("..")
    try:
        return (float(low), float(high)) if dots else None
    except ValueError:
        return None
