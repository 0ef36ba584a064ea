"""A stream of blocks, taken in one after another: SPCA and SAPCA, with spare directions.

What is carried is a `Summary`, or the whole scatter where that is cheaper and fits. After each block
the rank may move by one (`fedpca.rank.AdaptiveRank`). Source: Grammenos et al., "Federated PCA with
adaptive rank estimation", Algorithm 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fedpca.blocks import about_own_mean
from fedpca.errors import InputError
from fedpca.rank import AdaptiveRank
from fedpca.rows import Block
from fedpca.scatter import Scatter
from fedpca.summary import Summary


@dataclass(eq=False)
class Stream:
    """All that is known of the blocks so far.

    Parameters
    ----------
    carried : Summary
        Of the blocks so far; with a scatter, only the room that its summary shall have.
    scatter : Scatter, optional
        In the place of a low-rank summary.
    rank : AdaptiveRank, optional
        How many directions to report; what the summary says, by default.
    n_seen : int
        Rows so far, each counted once whatever it weighs.
    n_spare : int
        Directions to carry beyond the rank, where that moves.
    """

    carried: Summary
    scatter: Scatter | None = None
    rank: AdaptiveRank | None = None
    n_seen: int = 0
    n_spare: int = 0
    _summary: Summary | None = field(default=None, repr=False)

    @classmethod
    def of(cls, summary: Summary) -> Stream:
        """A stream that has seen the rows of a summary, of which a part of one counts as one."""
        n_seen = math.ceil(summary.n - 0.5) or int(summary.n > 0)
        return cls(summary, n_seen=n_seen, n_spare=summary.room - summary.n_components)

    @property
    def summary(self) -> Summary:
        """The summary of the blocks so far, worked out when asked for."""
        if self.scatter is None:
            return self.carried
        if self._summary is None:
            self._summary = self.carried.of_scatter(self.scatter)
        return self._summary

    def take(self, block: Block, *, forgetting: float = 1.0) -> None:
        """Take in a block, discounting those before it; a block without rows changes nothing."""
        if not 0 < forgetting <= 1:
            raise InputError(f"forgetting={forgetting} must be above 0 and at most 1")
        if not block.shape[0]:
            return
        center = self.carried.centered
        if self.scatter is not None:
            self.scatter.update(block, center=center, weight_before=forgetting**2)
            self._summary = None
        else:
            old = self.carried.discount(forgetting)
            self.carried = old.append(
                *about_own_mean(block, center=center, squares_before=old.squares)
            )
            if self.rank is not None:
                self._move_rank(self.rank)
        self.n_seen += block.shape[0]

    def merge(self, other: Stream) -> None:
        """Take in all that another stream has seen."""
        are_alike = self.carried.features == other.carried.features and (
            self.carried.n_features == other.carried.n_features
            and self.carried.centered == other.carried.centered
        )
        if self.scatter is not None and other.scatter is not None and are_alike:
            self.scatter.absorb(other.scatter)
            self._summary = None
        else:
            mine = self.summary
            merged = mine.merge(other.summary)
            self.carried = merged.resize(mine.n_components, mine.room)
            self.scatter = self._summary = None
        self.n_seen += other.n_seen

    def _move_rank(self, rank: AdaptiveRank) -> None:
        self.rank = moved = rank.after(self.carried.spectrum)
        if moved.rank != rank.rank:
            room = min(self.carried.n_features, moved.rank + self.n_spare)
            self.carried = self.carried.resize(moved.rank, room)
