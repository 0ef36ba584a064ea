"""How many components: rules that look at the spectrum from the top.

A rule gets the leading eigenvalues ``l_1 >= l_2 >= ...`` of the covariance, as many as are known, and
answers with a rank, or with None where it must see more of them.

- `fixed`: the number that was asked for.
- `share`: fewest components with more than a share of the total variance.
- `marchenko_pastur`: eigenvalues above ``1.1 s^2 (1 + sqrt(d/n))^2``, the largest that noise of
  variance ``s^2`` alone would show, with ``s^2`` the mean of what the kept ones leave.
- `largest_gap`: the k > 1 with the largest ``l_k - l_(k+1)`` (Bhaskara and Wijewardena, "On
  distributed averaging for stochastic k-PCA", section 4).

A stream has a rank already when a block arrives; `AdaptiveRank` moves it by one at the most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Self

import numpy as np

from fedpca.errors import InputError
from fedpca.message import Array

MARGIN = 1.1  # of the Marchenko-Pastur edge, for the fluctuation of the largest noise eigenvalue
FIRST_LOOK = 10  # eigenvalues to find before a rule is asked for the first time


@dataclass(frozen=True)
class Spectrum:
    """The leading eigenvalues of a covariance, in any scale, and what is known of the others."""

    values: Array
    total: float
    n: float
    d: int
    is_all: bool = False  # that will ever be known, whether or not there are others

    @property
    def is_whole(self) -> bool:
        """Whether no eigenvalue is left to be found."""
        return self.is_all or len(self.values) >= min(self.n, self.d)


Rule = Callable[[Spectrum], int | None]


@dataclass(frozen=True)
class RankRule:
    """A rule, and how many eigenvalues to look for first."""

    rule: Rule
    first_look: int

    def __call__(self, spectrum: Spectrum) -> int | None:
        return self.rule(spectrum)

    def settle(self, spectrum: Spectrum) -> int:
        """The rank by what is known, where no more of the spectrum can be had."""
        return self.rule(replace(spectrum, is_all=True)) or 1


def check_n_components(n_components: Any) -> None:
    """Refuse what is neither a number of components, nor a share, nor the name of a rule."""
    is_number = isinstance(n_components, Real) and not isinstance(n_components, bool)
    if n_components is None or (isinstance(n_components, str) and n_components in RULES):
        return
    if is_number and (0 < n_components < 1 or (n_components >= 1 and n_components % 1 == 0)):
        return
    raise InputError(
        f"n_components={n_components!r} is no number of components, no share between 0 and 1 and none "
        f"of the rules {', '.join(RULES)}"
    )


def first_look(n_components: Any, limit: int) -> int:
    """How many of at most ``limit`` eigenvalues to find before ``n_components`` is settled."""
    if n_components is None:
        return limit
    is_rule = isinstance(n_components, str) or 0 < n_components < 1
    return min(FIRST_LOOK if is_rule else int(n_components), limit)


def rank_rule(n_components: Any, n: int, d: int) -> RankRule:
    """The rule that a user's ``n_components`` stands for, checked against n rows and d features."""
    limit = min(n, d)
    look = first_look(n_components, limit)
    if n_components is None:
        return RankRule(fixed(limit), look)
    if isinstance(n_components, str):
        return RankRule(RULES[n_components], look)
    if 0 < n_components < 1:
        return RankRule(share(float(n_components)), look)
    if n_components > limit:
        what = f"{d} features" if d <= n else f"{n} rows of all sites"
        raise InputError(f"n_components={n_components} exceeds the {what}; use at most {limit}")
    return RankRule(fixed(int(n_components)), look)


def fixed(k: int) -> Rule:
    """The rule that always says k."""
    return lambda _: k


def share(wanted: float) -> Rule:
    """The rule for fewest components with more than ``wanted`` of the total variance."""

    def rule(spectrum: Spectrum) -> int | None:
        reached = np.cumsum(spectrum.values) > wanted * spectrum.total
        if reached.any():
            return int(reached.argmax()) + 1
        return len(spectrum.values) if spectrum.is_whole else None

    return rule


def marchenko_pastur(spectrum: Spectrum) -> int | None:
    """The number of eigenvalues above what noise alone would show; at least 1."""
    values, d = spectrum.values, spectrum.d
    if not values.size or values[0] <= 0:
        return 1
    edge_of_unit_noise = MARGIN * (1 + np.sqrt(d / spectrum.n)) ** 2
    rounding = d * np.finfo(np.float64).eps * values[0]
    rank = 0
    while rank < len(values):
        left = max(0.0, spectrum.total - float(values[:rank].sum()))
        edge = max(edge_of_unit_noise * left / max(1, d - rank), rounding)
        above = int((values > edge).sum())
        if above <= rank:
            return max(1, rank)
        rank = above
    return rank if spectrum.is_whole else None


def largest_gap(spectrum: Spectrum) -> int | None:
    """The k > 1 with the largest gap below it, or 1 where there are fewer than three values."""
    # centred rows have at most n - 1 eigenvalues: where these end says nothing of the rows
    values = spectrum.values[: max(1, int(spectrum.n) - 1)]
    if not values.size:
        return 1
    gaps = -np.diff(values)[1:]
    # no gap further down can exceed the last value seen
    if not spectrum.is_whole and (not gaps.size or gaps.max() < values[-1]):
        return None
    return int(gaps.argmax()) + 2 if gaps.size else 1


RULES: dict[str, Rule] = {
    "auto": marchenko_pastur,
    "mp": marchenko_pastur,
    "gap": largest_gap,
}


def check_most(n_components: int | None, max_components: int | None, most: int, d: int) -> None:
    """Refuse more components than features, or than the largest number that is allowed."""
    for name, value in (("n_components", n_components), ("max_components", max_components)):
        if value is not None and value > d:
            raise InputError(f"{name}={value} exceeds the {d} features; use at most {d}")
    if n_components is not None and n_components > most:
        raise InputError(
            f"n_components={n_components} exceeds max_components={most}; allow as many as that"
        )


@dataclass(frozen=True)
class AdaptiveRank:
    """How many directions a stream reports, moved after each block by at most one.

    Rules are "mp" and "energy" (`marchenko_pastur` and `share`), and "interval": with
    ``c = s_r / (s_1 + ... + s_r)`` of the singular values, grow where ``c > beta``, shrink where
    ``c < alpha`` (Grammenos et al., "Federated PCA with adaptive rank estimation", equation 6). Since
    c is at most 1/r, beta bounds the rank by 1/beta. Nothing is appended when the rank grows: a spare
    direction, with the singular value that it has earned, becomes one of those reported.

    Parameters
    ----------
    rank : int
        The rank now.
    most : int
        The largest that it may become.
    rule : str
        "mp", "energy" or "interval".
    share : float
        Of the variance, for "energy".
    alpha, beta : float
        The bounds of "interval".
    hold_off : int
        Blocks after a change without another.
    waiting : int
        How many of them are still to come.
    """

    rank: int
    most: int
    rule: str = "mp"
    share: float = 0.95
    alpha: float = 0.0
    beta: float = 1.0
    hold_off: int = 0
    waiting: int = 0

    @classmethod
    def begin(
        cls,
        rule: str,
        first: int | None,
        most: int,
        *,
        share: float,
        alpha: float | None,
        beta: float | None,
        hold_off: int,
    ) -> Self:
        """The rank before the first block, with the bounds of "interval" that are not told."""
        beta = float(1 / most if beta is None else beta)
        alpha = float(beta / 10 if alpha is None else alpha)
        if rule == "interval" and alpha >= beta:
            raise InputError(f"alpha={alpha} must be below beta={beta}")
        rank = int(first or min(FIRST_LOOK, most))
        return cls(rank, int(most), rule, float(share), alpha, beta, int(hold_off))

    def after(self, spectrum: Spectrum) -> Self:
        """The rank after a block, by the spectrum that is known then."""
        if self.waiting or not len(spectrum.values):
            return replace(self, waiting=max(0, self.waiting - 1))
        step = int(np.sign(self._wanted(spectrum) - self.rank))
        rank = min(max(1, self.rank + step), self.most)
        return replace(self, rank=rank, waiting=self.hold_off if rank != self.rank else 0)

    def _wanted(self, spectrum: Spectrum) -> int:
        if self.rule == "interval":
            s = np.sqrt(spectrum.values[: self.rank])
            if len(s) < self.rank or not s.any():
                return self.rank - 1
            # a direction that would be given up again is not taken
            following = np.sqrt(spectrum.values[: self.rank + 1])
            stays = len(following) > self.rank and following[-1] >= self.alpha * following.sum()
            last = float(s[-1] / s.sum())
            return self.rank + int(last > self.beta and stays) - int(last < self.alpha)
        rule = marchenko_pastur if self.rule == "mp" else share(self.share)
        return rule(spectrum) or self.most  # where it must see more, there are more to be had
