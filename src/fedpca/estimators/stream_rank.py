"""Choose how many components a stream carries, and how many it shows."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

from fedpca.errors import InputError
from fedpca.linalg.rank_rules import check_n_components, rank_rule
from fedpca.summary.adaptive_rank import AdaptiveRank, check_most
from fedpca.summary.from_rows import MAX_CHOSEN_COMPONENTS
from fedpca.summary.summary import Summary


@dataclass(frozen=True)
class StreamRank:
    """The parameters of `StreamingPCA` that determine the number of components."""

    n_components: Any
    n_spare: int
    rank: str
    max_components: int | None
    share: float
    alpha: float | None
    beta: float | None
    cooldown: int

    @property
    def is_rule(self) -> bool:
        """Return whether the number of components is a share or the name of a rule."""
        return self.n_components is not None and not isinstance(self.n_components, Integral)

    def first(self, d: int) -> tuple[int, AdaptiveRank | None]:
        """Return the initial number of components, and the rule that adapts the number, or None."""
        is_fixed, is_rule = self.rank == "fixed", self.is_rule
        most = min(
            d, self.max_components or (d if is_fixed and not is_rule else MAX_CHOSEN_COMPONENTS)
        )
        check_most(None if is_rule else self.n_components, self.max_components, most, d)
        if is_fixed:
            return most if is_rule else int(self.n_components or most), None
        if is_rule:
            raise InputError(
                f"n_components={self.n_components!r} requires rank='fixed', not rank={self.rank!r}, "
                "which begins with a number of components; pass a number or None"
            )
        if not self.n_spare:
            raise InputError(
                f"rank={self.rank!r} needs spare directions, but n_spare=0; set n_spare to at least 1"
            )
        adaptive = AdaptiveRank.begin(
            self.rank,
            self.n_components,
            most,
            share=self.share,
            alpha=self.alpha,
            beta=self.beta,
            cooldown=self.cooldown,
        )
        return adaptive.rank, adaptive

    def shown(self, summary: Summary, n_seen: int) -> int:
        """Return how many of a summary's components to show."""
        carried = summary.n_components
        if self.is_rule:
            return min(carried, chosen_by(self.n_components, summary))
        if self.n_components is None and self.rank == "fixed":
            return max(1, min(carried, n_seen))
        return carried


def chosen_by(rule: Any, summary: Summary) -> int:
    """Return the number of components that a share or a rule chooses for a summary."""
    n, d = max(2, round(summary.n)), summary.n_features
    return rank_rule(rule, n, d).settle(summary.spectrum)


def within_summary(summary: Summary, n_components: Any, seen: Summary) -> int:
    """Return how many components to take from a summary; refuse a number that it cannot provide.

    A share or a rule is applied to ``seen``, which is the summary in the units of the components.
    """
    wanted = n_components
    if not isinstance(wanted, Integral):
        check_n_components(wanted)
        wanted = chosen_by(wanted, seen)
    if not 1 <= wanted <= summary.n_features:
        raise InputError(
            f"n_components={wanted} must be between 1 and {summary.n_features}, the number of features"
        )
    n_carried = len(summary.singular_values)
    if wanted > n_carried and summary.known.dropped > 0:
        raise InputError(
            f"n_components={wanted} exceeds the {n_carried} directions that the summary carries; "
            "summarize the rows with more components"
        )
    return int(wanted)
