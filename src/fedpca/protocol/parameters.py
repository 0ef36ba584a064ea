"""Check the numbers that a question asks with, so that a site can refuse what no program would ask.

A field that is asked with may be followed by words that bound its numbers::

    asks={"Z": "float64 d k, orthonormal", "steps": "int64, fixed, 1..1000", "mean": "float64 d, fixed"}

=============  =====================================================================================
word           bound
=============  =====================================================================================
orthonormal    a matrix, or each matrix of a stack, has orthonormal columns
flag           0 or 1
positive       greater than 0
nonnegative    at least 0
A..B           from A to B, both included
fixed          the same in all questions of a run that ask with a fixed field of this name
=============  =====================================================================================

Sites that follow a plan check these bounds; see `fedpca.site.guard`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpca.arrays import Array
from fedpca.protocol.invariants import ROUNDING

FIXED = "fixed"
_WORDS = (FIXED, "orthonormal", "flag", "positive", "nonnegative")


def check_asked_words(words: Sequence[str], field: str) -> None:
    """Refuse words that no declaration of an asked field may use."""
    for word in words:
        if word not in _WORDS and _range(word) is None:
            known = ", ".join(_WORDS)
            raise ValueError(f"field {field!r}: {word!r} must be a range A..B or one of {known}")


def out_of_bounds(array: Array, words: Sequence[str]) -> str | None:
    """Return how a field breaks the bounds of its words, or None."""
    for word in words:
        bounds = _range(word)
        if bounds is not None:
            low, high = bounds
            if array.size and (array.min() < low or array.max() > high):
                return f"must be from {low:g} to {high:g}"
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
    blocks = array if array.ndim > 2 else array[None]
    return all(
        block.shape[1] <= block.shape[0]
        and bool(np.abs(block.T @ block - np.eye(block.shape[1])).max(initial=0.0) <= ROUNDING)
        for block in blocks
    )


def _range(word: str) -> tuple[float, float] | None:
    low, dots, high = word.partition("..")
    try:
        return (float(low), float(high)) if dots else None
    except ValueError:
        return None
