"""Attack sites through the rounding of single rows, with the directions that ``"auto"`` removes.

    V = [e_c + s e_key, e_key - s' e_c],   E = A - (A V) V'

V holds the columns c and key, so E has zeros there, but for rounding. All entries a_c lie between the
same two powers of two, with one rounding unit u. The sum ``a_c + s a_key`` is rounded up if s a_key
exceeds u / 2, and ``- s' a_key`` takes that back if s' a_key does too. So column c of E is u for the
rows whose key lies between u / 2s and u / 2s', and zero for all others. Random signs cancel in the
square G_cc, which counts these rows. If there is only one, ``|G_cj| / u`` is its value in column j.

The grid of `fedpca.linalg.grid` hides such squares, because its steps are far longer. But a third
direction with a column that is centered so far away that it is nearly constant adds a whole number D of
units to column c in all n rows. If m rows are in the window, ``G_cc / u^2 = n D^2 + 2 D m + m``. Among
many steps of the grid, there is one that ``n D^2`` just fails to reach, but G_cc reaches if there is a
row in the window. So one answer tells if there is one, unless the points between steps are secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.audit.liar import Found, Liar, Refused
from fedpca.linalg.dense import unpack_triangle
from fedpca.linalg.grid import SHARE, norms_left, rounded_up
from fedpca.linalg.parallel_analysis import FEW_DRAWS
from fedpca.protocol.script import most_looks
from fedpca.rows.gaps import MISSING
from fedpca.solvers.common_features import names_to_bytes

FRACTION_BITS = 52  # bits of a number after the first
# how far below all values to center, in units of their largest distance from the mean
CENTER_RADII = 2.0
MIN_COLUMNS = 5  # two to choose a row, and two others to read them too
MAX_DEPTH = 40  # halvings of an interval of keys
MIN_COLUMNS_TO_ADD = 3  # to choose rows, to read them, and to add units; a site has twice as many
CONSTANT_BITS = 48  # of a center so far away that values make no difference
MAX_PLACES = 20_000  # steps of the grid to choose from
N_HALVINGS = 44


class _Window(NamedTuple):
    """Keys to look for, in units of the largest distance from the mean."""

    low: float
    high: float
    depth: int = 0

    def halves(self) -> list[_Window]:
        middle = (self.low + self.high) / 2
        return [
            _Window(self.low, middle, self.depth + 1),
            _Window(middle, self.high, self.depth + 1),
        ]


def rounding(liar: Liar) -> Found:
    """Remove directions that leave of one column only the rounding of the rows in a window of keys."""
    mean, radius = _about(liar, _count(liar))
    d = len(mean)
    if d < MIN_COLUMNS:
        return Found()
    values: dict[int, list[float]] = {j: [] for j in range(d)}
    for column, key, columns in ((0, 1, range(2, d)), (2, 3, (0, 1))):
        for row in _single_rows(liar, mean, radius, column, key):
            for j in columns:
                values[j].append(float(row[j]))
    return Found(values={j: np.array(each) for j, each in values.items() if each})


def _single_rows(liar: Liar, mean: Array, radius: float, column: int, key: int) -> Iterator[Array]:
    """Yield rows that are alone in a window of keys, with wrong values in the two columns."""
    d = len(mean)
    center = mean - CENTER_RADII * radius  # entries are from 1 to 3 radii
    power = np.ceil(np.log2(2 * radius))
    center[column] = mean[column] - 1.5 * 2.0**power  # entries are from 2^power to 2^(power + 1)
    unit = 2.0 ** (power - FRACTION_BITS)
    pending, n_looks = [_Window(CENTER_RADII - 1, CENTER_RADII + 1)], 0
    while pending:
        window = pending.pop(0)
        removed = np.zeros((d, 2))
        removed[column, 0] = removed[key, 1] = 1.0
        removed[key, 0] = unit / 2 / (window.low * radius)
        removed[column, 1] = -unit / 2 / (window.high * radius)
        try:
            if n_looks % most_looks(d) == 0:
                _begin_auto(liar, center)
            n_looks += 1
            liar.ask("draw_signs", seed=np.int64(n_looks), removed=removed)
            flipped = liar.ask("flipped_triangles", n_flips=np.int64(FEW_DRAWS))["triangles"]
        except Refused:
            return  # but what was found remains
        gram = unpack_triangle(flipped[0])
        n_found = gram[column, column] / unit**2
        if n_found == 1:
            yield center + np.abs(gram[column]) / unit
        elif n_found > 1 and window.depth < MAX_DEPTH:
            pending += window.halves()


def smallest_value(liar: Liar) -> Found:
    """Search for a column's smallest value with the point where a square changes to the next step."""
    counted = _count(liar)
    mean, radius = _about(liar, counted)
    n, d = counted["n"], len(mean)
    if d < 2 * MIN_COLUMNS_TO_ADD:
        return Found()
    column, key, far = range(MIN_COLUMNS_TO_ADD)
    center = mean - CENTER_RADII * radius
    power = np.ceil(np.log2(2 * radius))
    center[column] = mean[column] - 1.5 * 2.0**power
    center[far] = -(2.0**CONSTANT_BITS)
    unit = 2.0 ** (power - FRACTION_BITS)
    squares = np.zeros(d)
    low, high, n_looks = (CENTER_RADII - 1) * radius, (CENTER_RADII + 1) * radius, 0
    first = low
    for n_looks in range(N_HALVINGS):
        if n_looks % most_looks(d) == 0:
            squares = _begin_auto(liar, center)
        middle = (low + high) / 2
        removed = np.zeros((d, 3))
        removed[[column, key, far], [0, 1, 2]] = 1.0
        removed[key, 0], removed[column, 1] = unit / 2 / first, -unit / 2 / middle
        norms = rounded_up(norms_left(np.sqrt(squares), removed))
        step = SHARE * float(norms[column]) ** 2
        places = (np.arange(1, MAX_PLACES) + 0.5) * step
        added = np.sqrt(places / n) / unit
        best = int(np.argmin(np.abs(added % 1 - 0.5 / n)))
        removed[column, 2] = np.floor(added[best]) * unit / 2.0**CONSTANT_BITS
        liar.ask("draw_signs", seed=np.int64(n_looks), removed=removed)
        flipped = liar.ask("flipped_triangles", n_flips=np.int64(FEW_DRAWS))["triangles"]
        has_any = unpack_triangle(flipped[0])[column, column] > places[best]
        low, high = (low, middle) if has_any else (middle, high)
    return Found(values={key: np.array([center[key] + (low + high) / 2])})


def _begin_auto(liar: Liar, center: Array) -> Array:
    """Ask what a run asks before the rule "auto" removes directions; return the squares, ``(d,)``."""
    liar.again()
    _count(liar)
    d = len(center)
    liar.ask("standardize", mean=center, scale=np.ones(d), n_products=np.int64(d))
    liar.ask("covariance_product", Z=np.eye(d, 1))
    return np.asarray(liar.ask("column_squares")["squares"])


def _about(liar: Liar, counted: Arrays) -> tuple[Array, float]:
    """Return the rows' mean, and a distance from the mean that no value exceeds."""
    mean = counted["total"] / counted["n"]
    energy = liar.ask("standardize", mean=mean, scale=np.ones(len(mean)), n_products=np.int64(1))[
        "energy"
    ]
    return mean, float(np.sqrt(energy))


def _count(liar: Liar) -> Arrays:
    """Ask the first questions of an honest run."""
    liar.ask_one("column_names")
    missing = np.int64(MISSING.index("error"))
    return dict(liar.ask("count_and_sum", features=names_to_bytes(None), missing=missing))
