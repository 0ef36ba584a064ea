"""Check that the numbers in an answer are possible, so that no impossible answer enters a result.

A field's declaration may be followed by words that say what its numbers mean::

    answers={"n": "int64, count, rows", "squares": "float64 d, squares, energy"}

=============  =====================================================================================
word           promise
=============  =====================================================================================
count          whole numbers from 0 to 2^48
squares        sums of squares: not negative
nonnegative    not negative
large          up to 1e304, almost as large as a float can be; other fields are limited to 1e146
share          from 0 to 1
decreasing     each number is at most the one before
orthonormal    a matrix whose vectors along its shorter side are orthonormal
semidefinite   a matrix, or its packed triangle, with a diagonal that is not negative and entries of at
               most ``sqrt(c_ii c_jj)``
explained      at most the site's energy times the norm of what was sent to the site
rows           adds up to the site's row count (no check)
weight         the site's weight, if that is not its row count (no check)
of rows        the total weight of the site's rows, which is their number if they have no weights
weighted       1 if the site's rows have weights, and 0 otherwise (no check)
energy         adds up to the site's sum of squares; in a matrix, the diagonal does (no check)
=============  =====================================================================================

What a site tells about its rows must agree with what it told before in the same run: see
`contradiction`.

Every float64 field is also limited in size, so that neither a total over sites nor its square
overflows. The limit leaves room for sums of squares of values up to 1e68.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from scipy.linalg.blas import dspr

from fedpca.arrays import Array, Declared

MAX_COUNT = 1 << 48  # counts of 32,768 sites add up to less than 2^63
MAX_NORM = 1e146  # of a field; the squares of the totals of 10,000 sites stay finite
MAX_LARGE = 1e304  # of a field that is not squared; totals of 10,000 sites stay finite
MAX_VALUE = 1e68  # of a column's mean; 1e10 such values have a sum of squares within MAX_NORM
ROUNDING = 1e-8  # relative error that rounding may cause in an answer
SHORT_COLUMNS = 512  # of a packed triangle, too short to be worth checking one by one
# words that say what a site contributes
TOLD = ("rows", "weight", "of rows", "weighted", "energy")

Contradiction = str | None


def check_words(words: Sequence[str], field: str) -> None:
    """Refuse words that no declaration may use."""
    known = (*_CHECKS, "explained", "large", *TOLD)
    for word in words:
        if word not in known:
            raise ValueError(f"field {field!r}: {word!r} must be one of {', '.join(known)}")


def norm_of(array: Array, declared: Declared, words: Sequence[str]) -> float:
    """Return the norm of a field, or of the diagonal of a packed triangle, in one pass.

    The diagonal of a triangle limits all other entries; a later check makes sure of that.
    """
    if array.dtype != np.float64:
        return 0.0
    if not array.ndim:
        return abs(float(array.item()))
    if "large" in words:
        return float(np.abs(array).max(initial=0.0))
    part = _diagonal(array, declared) if _is_packed(declared, words) else array
    return math.sqrt(np.vdot(part, part))  # infinite if it overflows


def limit_of(words: Sequence[str]) -> float:
    """Return the largest norm that a field may have."""
    return MAX_LARGE if "large" in words else MAX_NORM


def broken_promise(
    array: Array, declared: Declared, words: Sequence[str], norm: float, energy: float | None
) -> Contradiction:
    """Return how a field with this norm breaks a promise of its words, or None.

    ``energy`` is the most that the site's rows can explain, if it is known.
    """
    slack = 0.0
    if "explained" in words:
        if energy is None:  # without it, nobody knows which negative numbers are due to rounding
            return None
        if norm > energy:
            return "exceeds the sum of squares of the site's rows"
        slack = ROUNDING * energy
    for word in words:
        problem = _CHECKS[word](array, declared, slack) if word in _CHECKS else None
        if problem is not None:
            return problem
    return None


def told(array: Array, declared: Declared, words: Sequence[str]) -> dict[str, float]:
    """Return what a field says about the site's contribution: its rows, weight, or energy."""
    found = [word for word in TOLD if word in words]
    if not found:
        return {}
    amount = _diagonal(array, declared) if "semidefinite" in words else array
    return dict.fromkeys(found, float(amount.sum()))


def contradiction(told: Mapping[str, float], before: Mapping[str, float]) -> Contradiction:
    """Return how an answer contradicts itself, or what other questions of the run were told, or None.

    ``told`` and ``before`` map words to amounts. A site that is not known to have no weights may claim
    any weight.
    """
    if before.get("weighted") != 0 or "rows" not in told:
        return None
    if "of rows" in told and told["of rows"] != told["rows"]:
        return "has a weight that is not its row count, although its rows have no weights"
    if "rows" in before and told["rows"] != before["rows"]:
        return "has a row count other than in an earlier round"
    return None


def _count(array: Array, declared: Declared, slack: float) -> Contradiction:
    if not array.ndim and 0 <= array.item() <= MAX_COUNT and array.item() % 1 == 0:
        return None
    # read as unsigned, negative numbers are the largest, so one pass is enough
    counts = array.view(np.uint64) if array.dtype == np.int64 else array
    if counts.max(initial=0) > MAX_COUNT or (array.dtype.kind == "f" and (array < 0).any()):
        return "has negative counts" if array.min() < 0 else f"has counts above {MAX_COUNT:,}"
    is_whole = array.dtype.kind != "f" or bool((array == np.floor(array)).all())
    return None if is_whole else "has counts that are not whole numbers"


def _squares(array: Array, declared: Declared, slack: float) -> Contradiction:
    return "has negative sums of squares" if _least(array) < -slack else None


def _nonnegative(array: Array, declared: Declared, slack: float) -> Contradiction:
    return "has negative values" if _least(array) < -slack else None


def _share(array: Array, declared: Declared, slack: float) -> Contradiction:
    is_outside = array.min(initial=0.0) < 0 or array.max(initial=0.0) > 1
    return "has shares that are not between 0 and 1" if is_outside else None


def _decreasing(array: Array, declared: Declared, slack: float) -> Contradiction:
    return "has values that are not in decreasing order" if (np.diff(array) > 0).any() else None


def _orthonormal(array: Array, declared: Declared, slack: float) -> Contradiction:
    # there are never more orthonormal directions than entries in each, so the smaller product decides
    rows = array if array.shape[0] <= array.shape[1] else array.T
    defect = np.abs(rows @ rows.T - np.eye(len(rows))).max(initial=0.0)
    return "has directions that are not orthonormal" if defect > ROUNDING else None


def _least(array: Array) -> float:
    """Return a scalar itself; of an array, return its smallest number or 0, whichever is less."""
    return float(array.min(initial=0.0) if array.ndim else array.item())


def _semidefinite(array: Array, declared: Declared, slack: float) -> Contradiction:
    diagonal = _diagonal(array, declared)
    slack = slack or ROUNDING * float(diagonal.max(initial=0.0))
    if diagonal.min(initial=0.0) < -slack:
        return "has negative variances on its diagonal"
    # Cauchy and Schwarz for each pair, which takes d^2 steps; eigenvalues would say more, but take d^3
    roots = np.sqrt(np.maximum(diagonal, 0.0))
    is_packed = declared.dimensions[-1] == "triangle"
    excesses = _packed_excesses if is_packed else _square_excesses
    if any(excess > slack for excess in excesses(array, roots)):
        return "has covariances that exceed what its variances allow"
    return None


def _is_packed(declared: Declared, words: Sequence[str]) -> bool:
    return "semidefinite" in words and declared.dimensions[-1] == "triangle"


def _diagonal(array: Array, declared: Declared) -> Array:
    """Return the diagonals of square matrices, or of triangles packed column by column."""
    if declared.dimensions[-1] != "triangle":
        return np.asarray(np.diagonal(array, axis1=-2, axis2=-1))
    return np.asarray(array[..., _diagonal_positions(array.shape[-1])])


@lru_cache(maxsize=64)
def _diagonal_positions(n_entries: int) -> Array:
    """Return where the diagonal of a matrix is in its packed triangle."""
    return np.cumsum(np.arange(1, int(np.sqrt(2 * n_entries)) + 1)) - 1


def _square_excesses(array: Array, roots: Array) -> Iterator[float]:
    """Yield the largest amount by which an entry of the matrices exceeds its limit."""
    limits = roots[..., :, None] * roots[..., None, :]
    yield float((np.abs(array) - limits).max(initial=0.0))


def _packed_excesses(array: Array, roots: Array) -> Iterator[float]:
    """Yield the largest amount by which an entry exceeds its limit, for each part of the triangles.

    The first columns are short, so they form one part, and BLAS subtracts their limits in a single
    call. Each longer column is a separate part.
    """
    triangles, each_roots = array.reshape(-1, array.shape[-1]), roots.reshape(-1, roots.shape[-1])
    for triangle, own in zip(triangles, each_roots, strict=True):
        n_short = min(len(own), SHORT_COLUMNS)
        n_entries = n_short * (n_short + 1) // 2
        if n_short:
            sizes = np.abs(triangle[:n_entries])
            yield float(dspr(n_short, -1.0, own[:n_short], sizes, overwrite_ap=True).max())
        for j in range(n_short, len(own)):
            start = j * (j + 1) // 2
            column = np.abs(triangle[start : start + j + 1])
            yield float((column - own[: j + 1] * own[j]).max())


_CHECKS: dict[str, Callable[[Array, Declared, float], Contradiction]] = {
    "count": _count,
    "squares": _squares,
    "nonnegative": _nonnegative,
    "share": _share,
    "decreasing": _decreasing,
    "orthonormal": _orthonormal,
    "semidefinite": _semidefinite,
}
