"""Adapt the rank of a stream by at most one after each block."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np

from fedpca.errors import InputError
from fedpca.linalg.rank_rules import (
    FIRST_LOOK,
    Rule,
    Spectrum,
    marchenko_pastur,
    parallel_analysis,
    share,
)

FLOOR_SIDE = 150  # a noise floor of this size takes milliseconds to compute after each block


def check_most(n_components: int | None, max_components: int | None, most: int, d: int) -> None:
    """Refuse more components than there are features, or more than ``most``."""
    for name, value in (("n_components", n_components), ("max_components", max_components)):
        if value is not None and value > d:
            raise InputError(f"{name}={value} exceeds the {d} features; use at most {d}")
    if n_components is not None and n_components > most:
        raise InputError(
            f"n_components={n_components} exceeds max_components={most}; increase max_components"
        )


@dataclass(frozen=True)
class AdaptiveRank:
    """The number of directions that a stream reports; it changes by at most one after each block.

    The rule "auto" is `parallel_analysis`, "mp" is `marchenko_pastur`, and "energy" is `share`. The
    rule "interval" does not account for noise, so it keeps directions of noise as well. It uses the
    ratio of singular values ``c = s_r / (s_1 + ... + s_r)``. The rank grows if ``c > beta`` and shrinks
    if ``c < alpha`` (Grammenos et al., "Federated PCA with adaptive rank estimation", equation 6).
    Because c is at most 1/r, beta limits the rank to 1/beta. When the rank grows, no new direction is
    made up; the stream starts to report a spare direction that already has a singular value.

    Parameters
    ----------
    rank : int
        The current rank.
    most : int
        The largest allowed rank.
    rule : str
        "auto", "mp", "energy", or "interval".
    share : float
        The share of the variance that the directions must exceed, for "energy".
    alpha, beta : float
        The lower and upper bounds, for "interval".
    cooldown : int
        The number of blocks to wait after a change.
    waiting : int
        The number of blocks left to wait.
    """

    rank: int
    most: int
    rule: str = "auto"
    share: float = 0.95
    alpha: float = 0.0
    beta: float = 1.0
    cooldown: int = 0
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
        cooldown: int,
    ) -> Self:
        """Return the rank before the first block, with defaults for the bounds that are None."""
        beta = float(1 / most if beta is None else beta)
        alpha = float(beta / 10 if alpha is None else alpha)
        if rule == "interval" and alpha >= beta:
            raise InputError(
                f"alpha={alpha} must be below beta={beta}; decrease alpha or increase beta"
            )
        rank = int(first or min(FIRST_LOOK, most))
        return cls(rank, int(most), rule, float(share), alpha, beta, int(cooldown))

    def after(self, spectrum: Spectrum) -> Self:
        """Return the rank after a block, given the current spectrum."""
        if self.waiting or not len(spectrum.values):
            return replace(self, waiting=max(0, self.waiting - 1))
        step = int(np.sign(self._wanted(spectrum) - self.rank))
        rank = min(max(1, self.rank + step), self.most)
        return replace(self, rank=rank, waiting=self.cooldown if rank != self.rank else 0)

    def _wanted(self, spectrum: Spectrum) -> int:
        if self.rule == "interval":
            s = np.sqrt(spectrum.values[: self.rank])
            if len(s) < self.rank or not s.any():
                return self.rank - 1
            # do not add a direction that would be dropped after the next block
            following = np.sqrt(spectrum.values[: self.rank + 1])
            would_stay = (
                len(following) > self.rank and following[-1] >= self.alpha * following.sum()
            )
            c = float(s[-1] / s.sum())
            return self.rank + int(c > self.beta and would_stay) - int(c < self.alpha)
        rules: dict[str, Rule] = {
            "auto": partial(parallel_analysis, max_side=FLOOR_SIDE),
            "mp": marchenko_pastur,
            "energy": share(self.share),
        }
        # a rule returns None if it needs more eigenvalues, so the rank may grow
        return rules[self.rule](spectrum) or self.most
