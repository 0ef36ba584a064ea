"""Attack sites with the questions of robust PCA, which count and select rows.

- ``count_values`` returns how many values are less than a point. If it is asked about many points in
  every round, the counts reveal all values, two bits per round.
- ``clipped_product`` drops entries beyond a threshold. In a frame where only one row has its key within
  the threshold, the product is that row times its key.
- A site that allows "robust" restricts each run to one frame, to thresholds that never rise, and to
  histograms that narrow in order. But the center of ``hard_round`` may move in every round. If it moves
  in small steps, one row after another crosses the threshold. Each change in the sums is that row.

All of these attacks work on totals over sites as well as on one site's answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.audit.liar import Found, Liar, Refused
from fedpca.solvers.common_features import names_to_bytes
from fedpca.solvers.robust.medians import BITS, FIRST_SHIFT, KINDS, SHIFTS, SIGN

DIGIT = 2  # bits of a value that are found per round
MAX_POINTS = 1 << 14  # most points per question
LARGEST = np.finfo(np.float64).max
# how far below all values to center, in units of their largest distance from the mean
ROBUST_CENTER_RADII = 4.0
IS_ONE_ROW = 1e-9  # relative error up to which a product counts as that of one row
NARROWEST = 1e-7  # share of the range; rows that are closer than this are not separated
MAX_DEVIATIONS = 5.0  # standard deviations from the mean within which a moved center looks for rows
CENTER_STEP = 1e-5  # share of that range by which the center moves to show the sums of scores
PER_STEP = 32  # a step is at most the remaining interval divided by this
FLAT = 1e6  # scale of the columns that are read in addition to the key


def single_values(liar: Liar) -> Found:
    """Read every value of every column, bit by bit, by counting the values below many points."""
    d, n, mean = _count(liar)
    liar.ask("squares_present", about=mean)
    columns, ranks = np.divmod(np.arange(d * n), n)
    return Found(values=dict(enumerate(_values_at(liar, columns, ranks).reshape(d, n))))


def extreme_values(liar: Liar) -> Found:
    """Read the smallest and largest value of each column by counting the values below many points."""
    d, n, mean = _count(liar)
    liar.ask("squares_present", about=mean)
    ends = _values_at(liar, np.tile(np.arange(d), 2), np.repeat([0, n - 1], d)).reshape(2, d)
    facts = {"smallest": ends[0], "largest": ends[1]}
    return Found(values=dict(enumerate(ends.T)), facts=facts)


def robust_rows(liar: Liar) -> Found:
    """Single out one row after another with a window in one column, and read the row's other values."""
    d, n, mean = _count(liar)
    radius = np.sqrt(liar.ask("squares_present", about=mean)["squares"])
    best: list[Array] = []
    for pivot in range(d):
        found: list[Array] = []
        with suppress(Refused):
            for record in _records_in_windows(liar, pivot, mean, radius):
                found.append(record)  # keep what was found before a refusal
        best = max(best, found, key=len)
        if len(best) >= n:
            break
    return Found(np.array(best) if best else None)


def moved_center(liar: Liar) -> Found:
    """Keep to the rules of a robust run, but move its center so that rows cross the threshold.

    When the rounds of a run are used up, the next run continues.
    """
    found: list[Array] = []
    with suppress(Refused):
        for record in _Moving(liar).records():
            found.append(record)  # keep what was found before a refusal
    return Found(np.array(found) if found else None)


class _Counted(NamedTuple):
    """What an honest run asks for first: the number of columns and of rows, and the mean."""

    d: int
    n: int
    mean: Array


def _count(liar: Liar) -> _Counted:
    d = int(liar.ask_one("column_names")["n_features"])
    answer = liar.ask("count_present", features=names_to_bytes(None))
    return _Counted(d, int(answer["n"]), answer["total"] / np.maximum(answer["present"], 1))


def _values_at(liar: Liar, columns: Array, ranks: Array) -> Array:
    """Return the values with these ranks in their columns, ``(m,)``; the smallest has rank 0."""
    prefix = np.zeros(len(columns), np.uint64)
    digits = np.arange(1, 1 << DIGIT, dtype=np.uint64)
    for shift in range(64 - DIGIT, -1, -DIGIT):
        begins = (prefix[:, None] << np.uint64(DIGIT) | digits) << np.uint64(shift)
        below = _n_below(liar, np.repeat(columns, len(digits)), _from_bits(begins.ravel()))
        is_reached = below.reshape(begins.shape) <= ranks[:, None]
        prefix = prefix << np.uint64(DIGIT) | is_reached.sum(axis=1).astype(np.uint64)
    return _from_bits(prefix)


def _n_below(liar: Liar, columns: Array, points: Array) -> Array:
    """Return, for each column and its point, how many values are less than the point, ``(m,)``."""
    counts = []
    for start in range(0, len(points), MAX_POINTS):
        about = np.clip(points[start : start + MAX_POINTS], -LARGEST, LARGEST)
        some = columns[start : start + MAX_POINTS]
        counts.append(_histograms(liar, some, about, np.zeros(len(some)), FIRST_SHIFT)["less"])
    return np.concatenate(counts)


def _histograms(liar: Liar, features: Array, about: Array, guess: Array, shift: int) -> Any:
    return liar.ask(
        "count_values",
        features=features.astype(np.int64),
        about=about,
        guess=guess,
        shift=np.int64(shift),
        of=np.int64(KINDS.index("values")),
    )


def _from_bits(ordered: Array) -> Array:
    """Return the numbers whose bits sort like these integers, with infinity for those too large."""
    numbers = np.where(ordered & SIGN, ordered ^ SIGN, ~ordered).view(np.float64)
    ends = np.where(ordered & SIGN, np.inf, -np.inf)
    return np.where(np.isnan(numbers), ends, numbers)


def value_in_bins(
    liar: Liar, column: int, d: int, prefer: Callable[[Array], Any] = np.argmin
) -> float:
    """Return a number near some value of a column, by narrowing to the bin with the fewest values."""
    guess = np.zeros(d)
    for shift in SHIFTS:
        counts = _histograms(liar, np.arange(d), np.zeros(d), guess, shift)["counts"][column, 1:-1]
        held = np.flatnonzero(counts)
        if not held.size:
            break
        ordered = (guess[column : column + 1] + 0.0).view(np.uint64)
        ordered = np.where(ordered & SIGN, ~ordered, ordered | SIGN) >> np.uint64(shift)
        part = np.uint64(held[prefer(counts[held])])
        bits = np.uint64(BITS)
        guess = guess.copy()
        guess[column] = _from_bits((ordered >> bits << bits | part) << np.uint64(shift))[0]
    return float(guess[column])


def _records_in_windows(liar: Liar, pivot: int, mean: Array, radius: Array) -> Iterator[Array]:
    """Yield the records whose value in one column lies in a window that holds no other row.

    The other columns are centered on points below all their values. One of these columns is
    centered first on one such point, and then on another. So the products reveal the sum of the
    pivot's entries in the window, and the sum of their squares. If the sum of squares is the square
    of the sum, the window holds one row.
    """
    d, far = len(mean), ROBUST_CENTER_RADII * float(radius.max()) or 1.0
    other = (pivot + 1) % d
    windows = [(mean[pivot] - radius[pivot], mean[pivot] + radius[pivot])]
    narrowest = NARROWEST * 2 * radius[pivot]
    while windows:
        low, high = windows.pop()
        middle, half = (low + high) / 2, (high - low) / 2
        scale = np.full(d, ROBUST_CENTER_RADII * ROBUST_CENTER_RADII * far / half if half else 1.0)
        scale[pivot] = 1.0
        sums = []
        for times in (1, 2):
            center = mean - far
            center[[pivot, other]] = middle, mean[other] - times * far
            sums.append(_product(liar, center, scale, pivot, half) * scale)
        squares, total = sums[0][pivot], (sums[1][other] - sums[0][other]) / far
        if squares and abs(squares - total**2) <= IS_ONE_ROW * squares:
            record = sums[0] / total + mean - far
            record[pivot] = total + middle
            yield record
        elif squares and high - low > narrowest:
            windows += [(low, middle), (middle, high)]


def _product(liar: Liar, center: Array, scale: Array, key: int, threshold: float) -> Array:
    """Return the product of a column with all columns in a frame, over entries within a threshold."""
    d = len(center)
    frame: dict[str, Any] = {
        "mean": center,
        "scale": scale,
        "varies": np.ones(d, np.uint8),
        "reference": np.float64(1.0),
    }
    try:
        liar.ask("begin_robust", **frame)
    except Refused:  # a frame may be set only once per run, so each window takes a run
        liar.again()
        liar.ask("squares_present", about=_count(liar).mean)
        liar.ask("begin_robust", **frame)
    U = np.eye(d)[:, [key]]
    answer = liar.ask("clipped_product", U=U, threshold=np.float64(threshold))
    return np.asarray(answer["Y"][:, 0])


class _Below(NamedTuple):
    """The number of rows below an edge, the sum of their keys, and the sums of their scores."""

    n: int
    keys: float
    scores: Array

    def less(self, other: _Below) -> _Below:
        return _Below(
            self.n - other.n, self.keys - other.keys, np.asarray(self.scores - other.scores)
        )


class _Moving:
    """Rounds of robust PCA in which the center of one column, the key, moves; other columns are scores.

    An entry counts if its distance from the center is within the threshold. The center lies far below
    an edge or far above it, so either the keys below the edge count, or those above it.
    """

    def __init__(self, liar: Liar) -> None:
        self._liar = liar
        d, n, mean = _count(liar)
        squares = self._squares(mean)
        self._key = key = int(np.argmax(squares))
        self._others = np.delete(np.arange(d), key)
        away = MAX_DEVIATIONS * float(np.sqrt(squares[key] / n)) or 1.0
        self._low, self._high = float(mean[key]) - away, float(mean[key]) + away
        self._middle, self._reach = float(mean[key]), 4 * away
        self._scale = np.full(d, FLAT)
        self._scale[key] = 1.0
        self._all: _Below | None = None
        self._begin()

    def _squares(self, mean: Array) -> Array:
        return np.asarray(self._liar.ask("squares_present", about=mean)["squares"])

    def _begin(self) -> None:
        d = len(self._scale)
        self._liar.ask(
            "begin_robust",
            mean=np.zeros(d),
            scale=self._scale,
            varies=np.ones(d, np.uint8),
            reference=np.float64(1.0),
        )
        self._is_first = 1

    def _go_on(self) -> None:
        """Begin another run like this one."""
        self._liar.again()
        self._squares(_count(self._liar).mean)
        self._begin()

    def records(self) -> Iterator[Array]:
        """Yield the rows, halving ranges between two edges until each range holds one row."""
        self._all = self._below(self._high, CENTER_STEP * (self._high - self._low))
        none = _Below(0, 0.0, np.zeros(len(self._others)))
        pending = [] if self._all is None else [(self._low, self._high, none, self._all)]
        while pending:
            low, high, before, after = pending.pop()
            between = after.less(before)
            if between.n == 1:
                record = np.empty(len(self._scale))
                record[self._key], record[self._others] = between.keys, between.scores
                yield record
            elif between.n > 1 and high - low > NARROWEST * (self._high - self._low):
                middle, at_middle = self._split(low, high)
                pending += [(low, middle, before, at_middle), (middle, high, at_middle, after)]

    def _split(self, low: float, high: float) -> tuple[float, _Below]:
        """Return an edge near the middle of a range, with no row at it, and the sums below it."""
        step = min(CENTER_STEP * (self._high - self._low), (high - low) / PER_STEP)
        edge = (low + high) / 2
        while (at_edge := self._below(edge, step)) is None:
            edge += 2 * step
        return edge, at_edge

    def _below(self, edge: float, step: float) -> _Below | None:
        """Return the sums over the rows below an edge, or None if a row is at the edge.

        The center moves twice, and no row crosses the edge in between. Then the products differ by the
        distance between the two centers times the sums of the scores.
        """
        side = 1 if edge >= self._middle or self._all is None else -1
        first, second = (self._ask(e, side) for e in (edge, edge + step))
        if first[0] != second[0]:
            return None
        scores = (first[2] - second[2]) / step * FLAT
        found = _Below(first[0], first[1], scores)
        return found if side == 1 or self._all is None else self._all.less(found)

    def _ask(self, edge: float, side: int) -> tuple[int, float, Array]:
        """Return the number and the sum of the keys that count, and their products with the scores."""
        center = np.zeros(len(self._scale))
        center[self._key] = edge - side * self._reach
        asked: dict[str, Any] = {
            "U": np.eye(len(center))[:, self._others],
            "turn": np.eye(len(self._others)),
            "center": center,
            "mean_scores": np.zeros(len(self._others)),
            "threshold": np.float64(self._reach),
            "reach": np.zeros(len(center)),
        }
        try:
            answer = self._liar.ask("hard_round", **asked, is_first=np.int64(self._is_first))
        except Refused:  # the rounds of the run are used up
            self._go_on()
            answer = self._liar.ask("hard_round", **asked, is_first=np.int64(1))
        self._is_first = 0
        n = int(answer["good"][self._key])
        keys = float(answer["total"][self._key]) + n * float(center[self._key])
        return n, keys, answer["AV"][self._key]
