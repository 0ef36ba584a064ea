"""Attack sites with the questions of private fits, declared with as little noise as possible.

    f(r) = sum of (x - c) min(1, r / |x - c|)

The coordinator declares epsilon, so it can declare that there is no noise. It also declares the center
c and the radius r of the ball that rows are moved into, so the ball is a window in space: the sums of
two runs differ only by the rows that one of the windows cuts off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from fedpca.arrays import Array
from fedpca.audit.liar import Found, Liar, Refused
from fedpca.linalg.dense import unpack_triangle
from fedpca.privacy.gaussian import Privacy
from fedpca.protocol.plan import PRIVATE, RunPlan
from fedpca.rows.bounded import RADIUS
from fedpca.solvers.common_features import names_to_bytes
from fedpca.solvers.private.at_site import AROUND_TIMES, COUNT_UNIT

LYING_EPSILONS = (math.inf, 1e6, 1.0)  # the least noise comes first
CHOSEN_BALL_DELTA = 1e-6
LARGEST_EXPONENT, SMALLEST_EXPONENT = 40, -40  # of the powers of 2 that are tried as radii
NEAR_ONE = 0.1  # rounding may change the sum of a single flag by this
N_SHIFTS = 32  # centers that differ by less than a step of the grid, whose roundings average out
MAX_CENTERS = 4  # centers from which the ball grows
MIN_WIDTH = 2.0**-12  # width of the narrowest interval of radii, as a share of the largest radius
ROUNDINGS = 15  # rounded sums lie this many steps of the grid, at most, from a line
FIRST_RADII = (0.1, 0.02)  # of the ball around a row, as shares of the row's distance
CLOSER = 1e-3  # the next ball around a row is smaller by this factor
N_CLOSER = 3


def noiseless_flag(liar: Liar) -> Found:
    """Declare private runs without noise, whose scatter is the row that has a flag alone."""
    epsilon = _least_noise(liar)
    center, radius = _covering_ball(liar, epsilon)
    # about zero, no flag of zero is rounded
    _, total = _sums(liar, epsilon, 0 * center, float(np.linalg.norm(center)) + radius)
    scatter = _scatter(liar, epsilon, center, radius)
    records = []
    for j in np.flatnonzero(np.abs(total - 1) < NEAR_ONE):
        near = center + scatter[:, j]
        near[j] = 0.0  # so that only the row with the flag has an entry in this column
        records.append(near + _scatter(liar, epsilon, near, 2.0)[:, j])
    return Found(np.array(records) if records else None)


def noiseless_patient(liar: Liar) -> Found:
    """Subtract the sums of private runs without noise between which one row has gone."""
    epsilon = _least_noise(liar)
    center, radius = _covering_ball(liar, epsilon)
    shifted = [center + shift * radius / RADIUS for shift in np.arange(N_SHIFTS) / N_SHIFTS]
    before = [_sums(liar, epsilon, each, radius) for each in shifted]
    liar.meanwhile()
    after = [_sums(liar, epsilon, each, radius) for each in shifted]
    is_one = round(before[0][0] - after[0][0]) == 1
    apart = [at + old - new for at, (_, old), (_, new) in zip(shifted, before, after, strict=True)]
    return Found(np.mean(apart, axis=0)[None] if is_one else None)


def moving_ball(liar: Liar) -> Found:
    """Move the ball of private runs, and solve for the rows that it cuts off one after another.

    While the ball grows, f is a line in r between two rows' distances from the center. At a distance,
    the slope changes by a unit vector, which points to the row. A small ball around this point then
    contains only the row, and in it f(r) is the row plus a line through zero.
    """
    epsilon = _least_noise(liar)
    center, radius = _covering_ball(liar, epsilon)
    n_rows = round(_sums(liar, epsilon, center, radius)[0])
    found: list[Array] = []
    try:
        for i in range(MAX_CENTERS):
            at = center if i == 0 or not found else found[i % len(found)]
            for claim in _rows_around(liar, epsilon, at, radius * (1 + (i > 0))):
                is_new = all(np.linalg.norm(claim - row) > CLOSER * radius for row in found)
                found += [claim] if is_new else []
                if len(found) >= n_rows:
                    return Found(np.array(found))
    except Refused:
        pass
    return Found(np.array(found) if found else None)


def _least_noise(liar: Liar) -> float:
    """Return the largest epsilon that the sites admit; raise `Refused` if they admit none."""
    for epsilon in LYING_EPSILONS[:-1]:
        try:
            _begin(liar, epsilon, np.zeros(1), 1.0)
            return epsilon
        except Refused:
            continue
    _begin(liar, LYING_EPSILONS[-1], np.zeros(1), 1.0)
    return LYING_EPSILONS[-1]


def _begin(liar: Liar, epsilon: float, center: Array, radius: float) -> None:
    """Begin a private run that sums rows in a ball; a center of length 1 stands for any features."""
    around = tuple(center.tolist()) if len(center) > 1 else float(center[0])
    privacy = Privacy(epsilon, CHOSEN_BALL_DELTA, radius / AROUND_TIMES, around).to_plain()
    parameters = {"solver": "covariance", "n_components": 1}
    liar.begin_with(
        RunPlan("", "FederatedPCA", parameters, liar.roster, privacy={PRIVATE: privacy})
    )


def _sums(liar: Liar, epsilon: float, center: Array, radius: float) -> tuple[float, Array]:
    """Return the number of rows, and the sum of their distances from the center, in a ball."""
    _begin(liar, epsilon, center, radius)
    liar.ask_one("column_names")
    sums = liar.ask("noisy_count_and_sum", features=names_to_bytes(None))
    return max(float(sums["n"]) / COUNT_UNIT, 1.0), sums["total"] * (radius / RADIUS)


def _scatter(liar: Liar, epsilon: float, center: Array, radius: float) -> Array:
    """Return the rows' scatter about the center, in a ball."""
    _sums(liar, epsilon, center, AROUND_TIMES * radius)  # the sums come first in a private run
    triangle = liar.ask("noisy_scatter", mean=center)["triangle"]
    return unpack_triangle(triangle * (radius / RADIUS) ** 2)


def _covering_ball(liar: Liar, epsilon: float) -> tuple[Array, float]:
    """Return a ball that contains all rows, and whose center is nearly their mean."""
    _begin(liar, epsilon, np.zeros(1), 1.0)
    center = np.zeros(int(liar.ask_one("column_names")["n_features"]))
    n, _ = _sums(liar, epsilon, center, 1.0)
    for exponent in range(LARGEST_EXPONENT, SMALLEST_EXPONENT, -3):
        radius = 2.0**exponent
        # a typical row is within the last ball, so all rows are within sqrt(n) times its radius
        if np.trace(_scatter(liar, epsilon, center, radius)) > n * radius**2 / 64:
            break
    _, total = _sums(liar, epsilon, center, radius * math.sqrt(n))
    energy = np.trace(_scatter(liar, epsilon, center + total / n, 2 * radius * math.sqrt(n)))
    # noise may make the energy negative
    return center + total / n, math.sqrt(max(abs(float(energy)), 4.0**SMALLEST_EXPONENT))


def _rows_around(liar: Liar, epsilon: float, center: Array, reach: float) -> Iterator[Array]:
    """Yield the rows at whose distances from the center the slope of f changes."""
    known = {0.0: np.zeros_like(center)}

    def at(radius: float) -> Array:
        if radius not in known:
            known[radius] = _sums(liar, epsilon, center, radius)[1]
        return known[radius]

    lines: list[tuple[float, float]] = []  # intervals in which f is a line, in ascending order
    left = [(0.0, reach)]
    while left:
        low, high = left.pop()
        middle = (low + high) / 2
        off = at(low) + at(high) - 2 * at(middle)
        if float(np.linalg.norm(off)) < ROUNDINGS * high / RADIUS:
            lines.append((low, high))
        elif high - low > MIN_WIDTH * reach:
            left += [(middle, high), (low, middle)]
        for before, after in pairwise(lines[-2:]):
            if before[1] < after[0] == lines[-1][0] and lines[-1] == (low, high):
                slopes = [(at(b) - at(a)) / (b - a) for a, b in (before, after)]
                toward = slopes[0] - slopes[1]
                distance = (before[1] + after[0]) / 2
                row = _closer(
                    liar, epsilon, center + distance * toward / np.linalg.norm(toward), distance
                )
                if row is not None:
                    yield row


def _closer(liar: Liar, epsilon: float, near: Array, distance: float) -> Array | None:
    """Return the only row in a small ball around a point, or None if there is none, or several."""
    for share in FIRST_RADII:
        radius, row = share * distance, near
        for _ in range(N_CLOSER):
            # a center that is off, because around the row itself f is the same as without a row
            aside = row + np.eye(len(row))[0] * radius / 2
            first, second, third = (
                _sums(liar, epsilon, aside, times * radius)[1] for times in (1.0, 1.5, 2.0)
            )
            offset = 2 * first - third
            is_line = np.linalg.norm(first + third - 2 * second) < CLOSER * radius
            if not is_line or not radius / 8 < np.linalg.norm(offset) < radius:
                break
            row, radius = aside + offset, radius * CLOSER
        else:
            return row
    return None
