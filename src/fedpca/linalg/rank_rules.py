"""Rules that choose the number of components from the leading eigenvalues.

A rule takes the covariance eigenvalues ``l_1 >= l_2 >= ...`` that have already been computed. It
returns a rank, or None if it needs more eigenvalues.

- `fixed` returns the number that the user requested.
- `share` returns the smallest number of components that together explain more than a given share of
  the total variance.
- `parallel_analysis` counts the leading eigenvalues that exceed the noise floor of rows whose columns
  have nothing in common (`fedpca.linalg.parallel_analysis`).
- `marchenko_pastur` counts the eigenvalues above ``1.1 s^2 (1 + sqrt(d/n))^2``. Pure noise with
  variance ``s^2`` would produce no larger eigenvalue; ``s^2`` is the mean of the eigenvalues that are
  not counted.
- `largest_gap` returns the k > 1 with the largest ``l_k - l_(k+1)``. Source: Bhaskara and Wijewardena,
  "On distributed averaging for stochastic k-PCA", section 4.

Two more rules serve `compare_ranks`, which shows what several rules say about one spectrum.

- `gavish_donoho` counts the singular values above ``omega(b) y``, where y is their median and b is the
  ratio of the sides of the table; ``omega(b) = lambda(b) / sqrt(m(b))``, with the median m(b) of the
  Marchenko-Pastur law. Source: Gavish and Donoho, "The optimal hard threshold for singular values is
  4/sqrt(3)" (2014).
- `broken_stick` counts the leading shares of variance above ``(1/p) sum_(i=k)^p 1/i``, the expected
  size of the k-th largest of p pieces of a stick that is broken at random. Source: Jackson, "Stopping
  rules in principal components analysis: a comparison of heuristical and statistical approaches"
  (1993).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from numbers import Real
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.linalg.parallel_analysis import MAX_NOISE_SIDE, count_above_columns, noise_floor

# times the Marchenko-Pastur edge, around which the largest noise eigenvalue varies
EDGE_MARGIN = 1.1
MEDIAN_STEPS = 20_000  # in the integral that finds the median of noise
EQUAL_SHARES = 1e-12  # difference between two shares that rounding explains
FIRST_LOOK = 10  # eigenvalues to compute before the first call to a rule


@dataclass(frozen=True)
class Spectrum:
    """The leading eigenvalues of a covariance, on any scale, and the sum of all its eigenvalues."""

    values: Array
    total: float
    n: float
    d: int
    is_all: bool = False  # no more values can be computed, even if more exist
    squares: Array | None = None  # (d,), the sum of squares of each column, on the scale of values
    vectors: Array | None = None  # (d, p), the eigenvectors of the values, if they are known

    @property
    def is_whole(self) -> bool:
        """Return whether no further eigenvalue can be computed."""
        return self.is_all or len(self.values) >= min(self.n, self.d)


Rule = Callable[[Spectrum], int | None]


@dataclass(frozen=True)
class RankRule:
    """A rule and the number of eigenvalues to compute before its first call."""

    rule: Rule
    first_look: int

    def __call__(self, spectrum: Spectrum) -> int | None:
        return self.rule(spectrum)

    def settle(self, spectrum: Spectrum) -> int:
        """Return the rank for a spectrum that cannot be extended."""
        return self.rule(replace(spectrum, is_all=True)) or 1


def check_n_components(n_components: Any) -> None:
    """Refuse a value that is not a component count, a share of variance, a rule name, or None."""
    is_number = isinstance(n_components, Real) and not isinstance(n_components, bool)
    if n_components is None or (isinstance(n_components, str) and n_components in RULES):
        return
    if is_number and (0 < n_components < 1 or (n_components >= 1 and n_components % 1 == 0)):
        return
    raise InputError(
        f"n_components={n_components!r} is not valid; use a positive integer, a share between 0 "
        f"and 1, None, or one of the rules {', '.join(RULES)}"
    )


def first_look(n_components: Any, limit: int) -> int:
    """Return how many eigenvalues, at most ``limit``, to compute before choosing the rank."""
    if n_components is None:
        return limit
    is_rule = isinstance(n_components, str) or 0 < n_components < 1
    return min(FIRST_LOOK if is_rule else int(n_components), limit)


def rank_rule(n_components: Any, n: int, d: int) -> RankRule:
    """Return the rule for a user's ``n_components``, checked against n rows and d features."""
    limit = min(n, d)
    look = first_look(n_components, limit)
    if n_components is None:
        return RankRule(fixed(limit), look)
    if isinstance(n_components, str):
        return RankRule(RULES[n_components], look)
    if 0 < n_components < 1:
        return RankRule(share(float(n_components)), look)
    if n_components > limit:
        bound = f"{d} features" if d <= n else f"{n} rows across all sites"
        raise InputError(f"n_components={n_components} exceeds the {bound}; use at most {limit}")
    return RankRule(fixed(int(n_components)), look)


def fixed(k: int) -> Rule:
    """Return the rule that always chooses k."""
    return lambda _: k


def share(wanted: float) -> Rule:
    """Return the rule that picks the fewest components with more than ``wanted`` of the variance.

    As in scikit-learn, components that explain no more than this share are too few. The last digits of
    a share depend on the solver, so a share that differs from ``wanted`` only by rounding counts as
    equal to it.
    """
    # at most half the way to 1, so that all components together still reach it
    more = wanted + min(EQUAL_SHARES, (1 - wanted) / 2)

    def rule(spectrum: Spectrum) -> int | None:
        reached = np.cumsum(spectrum.values / (spectrum.total or 1.0)) > more
        if reached.any():
            return int(reached.argmax()) + 1
        return len(spectrum.values) if spectrum.is_whole else None

    return rule


def parallel_analysis(spectrum: Spectrum, *, max_side: int = MAX_NOISE_SIDE) -> int | None:
    """Return the number of eigenvalues above the noise floor, but at least 1."""
    values, d = spectrum.values, spectrum.d
    if not values.size or values[0] <= 0:
        return 1
    squares, vectors = spectrum.squares, spectrum.vectors
    if squares is None:
        squares, vectors = np.full(d, spectrum.total / d), None

    def floor_of(_: int, left: Array, p: int) -> Array:
        return noise_floor(spectrum.n, left, p, max_side=max_side)

    return settled(count_above_columns(values, vectors, squares, floor_of), spectrum)


def settled(n_above: int | None, spectrum: Spectrum) -> int | None:
    """Return the rank, at least 1; return None if all values are above the floor and more may exist."""
    if n_above is not None:
        return max(1, n_above)
    return len(spectrum.values) if spectrum.is_whole else None


def marchenko_pastur(spectrum: Spectrum) -> int | None:
    """Return the number of eigenvalues that are too large to be noise, but at least 1."""
    values, d = spectrum.values, spectrum.d
    if not values.size or values[0] <= 0:
        return 1
    edge_of_unit_noise = EDGE_MARGIN * (1 + np.sqrt(d / spectrum.n)) ** 2
    rounding = d * np.finfo(np.float64).eps * values[0]
    rank = 0
    while rank < len(values):
        remainder = max(0.0, spectrum.total - float(values[:rank].sum()))
        # if rows are of low rank, the remainder is rounding, and its edge would count rounding as
        # signal
        edge = max(edge_of_unit_noise * remainder / max(1, d - rank), rounding)
        n_above = int((values > edge).sum())
        # counting more components leaves less noise, so the edge only falls; once no value is added, it
        # stays
        if n_above <= rank:
            return max(1, rank)
        rank = n_above
    return rank if spectrum.is_whole else None


def largest_gap(spectrum: Spectrum) -> int | None:
    """Return the k > 1 followed by the largest gap, or 1 if there are fewer than three values."""
    # centering leaves at most n - 1 nonzero eigenvalues; the drop after them is no gap in the data
    values = spectrum.values[: max(1, int(spectrum.n) - 1)]
    if not values.size:
        return 1
    gaps = -np.diff(values)[1:]
    # no later gap can exceed the last value seen
    if not spectrum.is_whole and (not gaps.size or gaps.max() < values[-1]):
        return None
    return int(gaps.argmax()) + 2 if gaps.size else 1


RULES: dict[str, Rule] = {
    "auto": parallel_analysis,
    "mp": marchenko_pastur,
    "gap": largest_gap,
}


def gavish_donoho(spectrum: Spectrum) -> int | None:
    """Return the number of singular values above the optimal hard threshold for unknown noise.

    Return None if only part of the spectrum is known, because its median is then unknown.
    """
    # n centered rows count as n - 1, because they sum to zero
    m, d = max(1, int(spectrum.n) - 1), spectrum.d
    if len(spectrum.values) < min(m, d):
        return None
    singular = np.sqrt(np.maximum(spectrum.values[: min(m, d)], 0.0))
    threshold = threshold_factor(min(m, d) / max(m, d)) * float(np.median(singular))
    # the median of rows of low rank is rounding, and so would be the values above it
    rounding = np.sqrt(d * np.finfo(np.float64).eps) * singular[0]
    return int((singular > max(threshold, rounding)).sum())


@lru_cache(maxsize=64)
def threshold_factor(aspect: float) -> float:
    """Return ``omega``, the optimal threshold as a multiple of the median singular value.

    ``aspect`` is the ratio of the shorter to the longer side of the table.
    """
    b = aspect
    squared = 2 * (b + 1) + 8 * b / ((b + 1) + np.sqrt(b**2 + 14 * b + 1))
    return float(np.sqrt(squared / _median_of_noise(b)))


def _median_of_noise(aspect: float) -> float:
    """Return the median of the Marchenko-Pastur law.

    With ``x = 1 + b + 2 sqrt(b) cos(t)``, the law's density ``sqrt((x - low) (high - x)) / (2 pi b x)``
    becomes a density in t without steep ends, which the midpoint rule integrates well.
    """
    root, step = np.sqrt(aspect), np.pi / MEDIAN_STEPS
    middles = (np.arange(MEDIAN_STEPS) + 0.5) * step
    density = np.sin(middles) ** 2 / (1 + aspect + 2 * root * np.cos(middles))
    mass_above = np.cumsum(density) * step * 2 / np.pi
    angle = np.interp(0.5, mass_above, middles + step / 2)
    return float(1 + aspect + 2 * root * np.cos(angle))


def broken_stick(spectrum: Spectrum) -> int | None:
    """Return the number of leading shares of variance larger than the pieces of a broken stick.

    Return None if all known shares are larger, because unknown shares may then be larger too.
    """
    p = max(1, min(int(spectrum.n) - 1, spectrum.d))
    values = spectrum.values[:p]
    pieces = np.cumsum(1 / np.arange(p, 0, -1))[::-1][: len(values)] / p
    above = values / (spectrum.total or 1.0) > pieces
    if not above.all():
        return int(above.argmin())
    return len(values) if spectrum.is_whole or len(values) == p else None


@dataclass(frozen=True)
class RankComparison:
    """What several rules say about the number of components.

    ``ranks`` has each rule's number; ``unknown`` says, for each other rule, why it gave no number.
    """

    ranks: Mapping[str, int]
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def consensus(self) -> int | None:
        """Return the median of the numbers, or the lower of two medians; None without numbers."""
        ordered = sorted(self.ranks.values())
        return ordered[(len(ordered) - 1) // 2] if ordered else None

    @property
    def agrees(self) -> bool:
        """Return whether all rules give the same number."""
        return len(set(self.ranks.values())) == 1


NEEDS_MORE_EIGENVALUES = "needs eigenvalues beyond those that were found"


def compare_ranks(
    spectrum: Spectrum, others: Mapping[str, int | str | None] | None = None
) -> RankComparison:
    """Return what each rule says about a spectrum, together with ``others``.

    ``others`` has the results of further rules, by name. A text in place of a number says why the rule
    gave none.
    """
    found: dict[str, int | str | None] = dict(others or {})
    found |= {name: rule(spectrum) for name, rule in SPECTRUM_RULES.items()}
    return RankComparison(
        {name: k for name, k in found.items() if isinstance(k, int)},
        {name: k or NEEDS_MORE_EIGENVALUES for name, k in found.items() if not isinstance(k, int)},
    )


SPECTRUM_RULES: dict[str, Rule] = {  # rules that need nothing but eigenvalues
    "gavish-donoho": gavish_donoho,
    "broken-stick": broken_stick,
    "mp": marchenko_pastur,
    "gap": largest_gap,
}
