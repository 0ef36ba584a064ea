"""Attack sites with the questions of robust PCA, which count and select rows.

``count_values`` says how many values lie in each part of a bin. Asked for every bin that holds a value,
over and over, it spells out all values, six bits in a round. ``clipped_product`` drops entries beyond a
threshold. In a frame in which one row alone has a key within the threshold, it returns that row times
its key. Both work on totals over sites as on one site's answers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.audit.liar import Found, Liar, Refused
from fedpca.solvers.robust.medians import BINS, BITS, FIRST_SHIFT, KINDS, SIGN
from fedpca.solvers.standardize import names_to_bytes

KEY = 0.5  # where the chosen row lies in units of the threshold, so that its product is not zero


def single_values(liar: Liar) -> Found:
    """Read every value of every column, bit by bit, with histograms."""
    d = _count(liar)[0]
    return Found(values=dict(enumerate(_values_of(liar, np.arange(d)))))


def extreme_values(liar: Liar) -> Found:
    """Read the smallest and the largest value of each column with histograms."""
    d = _count(liar)[0]
    ends = [_narrow(liar, np.arange(d), last=last) for last in (False, True)]
    values = {j: np.array([end[j] for end in ends]) for j in range(d)}
    return Found(values=values, facts={"smallest": ends[0], "largest": ends[1]})


def robust_rows(liar: Liar) -> Found:
    """Single out row after row by a threshold on one column, and read the others beside it."""
    d, n = _count(liar)
    key, keys = _key_column(liar, d, n)
    if keys is None:
        return Found()
    scale = np.full(d, 4 * max(1.0, _largest(liar, d)))
    records: list[Array] = []
    for value, gap in zip(keys, _gaps(keys), strict=True):
        mean, own = np.zeros(d), scale.copy()
        own[key] = gap / 2  # all other rows are at least two units away
        mean[key] = value - KEY * own[key]
        try:
            product = _product(liar, mean, own, key)
        except Refused:
            break
        record = product * own * own[key] / (value - mean[key])
        record[key] = value
        records.append(record)
    return Found(np.array(records) if records else None, {key: keys})


def _count(liar: Liar) -> tuple[int, int]:
    """Return the number of columns and the number of rows, which come first in an honest run."""
    d = int(liar.ask_one("column_names")["n_features"])
    return d, int(liar.ask("count_present", features=names_to_bytes(None))["n"])


def _key_column(liar: Liar, d: int, n: int) -> tuple[int, Array | None]:
    """Return a column in which all rows differ, and its values."""
    for column in range(d):
        values = _values_of(liar, np.array([column]))[0]
        if len(np.unique(values)) == n:
            return column, np.sort(values)
    return 0, None


def _largest(liar: Liar, d: int) -> float:
    ends = [np.abs(_narrow(liar, np.arange(d), last=last)).max() for last in (False, True)]
    return float(max(ends))


def _product(liar: Liar, mean: Array, scale: Array, key: int) -> Array:
    """Return the product of a column with all columns in a frame, of entries within one unit."""
    d = len(mean)
    U = np.zeros((d, 1))
    U[key] = 1.0
    frame: dict[str, Any] = {
        "mean": mean,
        "scale": scale,
        "varies": np.ones(d, np.uint8),
        "reference": np.float64(1.0),
    }
    try:
        liar.ask("begin_robust", **frame)
    except Refused:  # a frame may be set once a run, so that each row takes a run
        liar.again()
        _count(liar)
        liar.ask("begin_robust", **frame)
    return np.asarray(liar.ask("clipped_product", U=U, threshold=np.float64(1.0))["Y"][:, 0])


def _gaps(sorted_values: Array) -> Array:
    """Return each value's distance to the nearest other value."""
    apart = np.diff(sorted_values, prepend=-np.inf, append=np.inf)
    gaps = np.minimum(apart[:-1], apart[1:])
    return np.where(np.isfinite(gaps), gaps, 1.0)


def _counts(liar: Liar, features: Array, prefix: Array, shift: int) -> Array:
    """Return how many values of each feature have these leading bits, by the next bits."""
    is_first = shift == FIRST_SHIFT  # whose bins are the same about any guess
    bits = (prefix << np.uint64(BITS)) << np.uint64(0 if is_first else shift)
    guess = np.zeros(len(features)) if is_first else _from_bits(bits)
    answer = liar.ask(
        "count_values",
        features=features.astype(np.int64),
        about=np.zeros(len(features)),
        guess=guess,
        shift=np.int64(shift),
        of=np.int64(KINDS.index("values")),
    )
    return np.asarray(answer["counts"][:, 1 : BINS + 1])


def _values_of(liar: Liar, columns: Array) -> list[Array]:
    """Return all values of some columns: split every bin that holds a value until it is a number."""
    features, prefix = columns.astype(np.int64), np.zeros(len(columns), np.uint64)
    for shift in range(FIRST_SHIFT, -1, -BITS):
        counts = _counts(liar, features, prefix, shift)
        where, part = np.nonzero(counts)
        how_many = counts[where, part]
        features = features[where]
        prefix = (prefix[where] << np.uint64(BITS)) | part.astype(np.uint64)
    numbers = np.repeat(_from_bits(prefix), how_many)
    owners = np.repeat(features, how_many)
    return [numbers[owners == column] for column in columns]


def _narrow(liar: Liar, columns: Array, *, last: bool) -> Array:
    """Return the smallest or the largest value of each column."""
    prefix = np.zeros(len(columns), np.uint64)
    for shift in range(FIRST_SHIFT, -1, -BITS):
        is_held = _counts(liar, columns, prefix, shift) > 0
        part = (
            BINS - 1 - np.argmax(is_held[:, ::-1], axis=1) if last else np.argmax(is_held, axis=1)
        )
        prefix = (prefix << np.uint64(BITS)) | part.astype(np.uint64)
    return _from_bits(prefix)


def _from_bits(ordered: Array) -> Array:
    """Return the numbers whose bits sort like these integers."""
    return np.where(ordered & SIGN, ordered ^ SIGN, ~ordered).view(np.float64)
