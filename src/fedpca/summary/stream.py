"""Process a stream block by block with SPCA or SAPCA, plus spare directions.

A stream keeps a `Summary`, or the full scatter matrix if that fits and is cheaper. After each block,
the rank may change by one (see `fedpca.summary.adaptive_rank.AdaptiveRank`). Source: Grammenos et al.,
"Federated PCA with adaptive rank estimation", Algorithm 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fedpca.errors import InputError
from fedpca.linalg.blas_threads import threads_for_entries
from fedpca.rows.centering import about_own_mean
from fedpca.rows.genotypes.variants import refuse_unmatched
from fedpca.rows.in_memory import Block
from fedpca.summary.adaptive_rank import AdaptiveRank
from fedpca.summary.scaled import Scaled, scaled_scatter, scaled_summary
from fedpca.summary.scatter import Scatter
from fedpca.summary.summary import Summary


@dataclass(eq=False)
class Stream:
    """The state of a stream after the blocks received.

    Parameters
    ----------
    carried : Summary
        The summary of the blocks received. If ``scatter`` is given, this summary contains no rows, and
        only its settings matter.
    scatter : Scatter, optional
        The full scatter matrix, used instead of a low-rank summary.
    rank : AdaptiveRank, optional
        The number of directions to report; by default, the summary's ``n_components``.
    n_seen : int
        The number of rows received, each counted once regardless of its weight.
    n_spare : int
        The number of directions to carry beyond an adaptive rank.
    """

    carried: Summary
    scatter: Scatter | None = None
    rank: AdaptiveRank | None = None
    n_seen: int = 0
    n_spare: int = 0
    _summary: Summary | None = field(default=None, repr=False)
    _scaled: Scaled | None = field(default=None, repr=False)

    @classmethod
    def of(cls, summary: Summary) -> Stream:
        """Return a stream that starts from a summary; its row count is rounded, but not to zero."""
        n_seen = math.ceil(summary.n - 0.5) or int(summary.n > 0)
        return cls(summary, n_seen=n_seen, n_spare=summary.room - summary.n_components)

    @property
    def summary(self) -> Summary:
        """Return the summary of the blocks received, computed on demand."""
        if self.scatter is None:
            return self.carried
        if self._summary is None:
            self._summary = self.carried.of_scatter(self.scatter)
        return self._summary

    @property
    def scaled(self) -> Scaled:
        """Return the summary of the blocks received, in units of standard deviations."""
        if self._scaled is None:
            if self.scatter is None:
                self._scaled = scaled_summary(self.carried)
            else:
                self._scaled = scaled_scatter(self.carried, self.scatter)
        return self._scaled

    def take(self, block: Block, *, forgetting: float = 1.0) -> None:
        """Discount earlier blocks and add a new one; a block without rows changes nothing."""
        if not 0 < forgetting <= 1:
            raise InputError(f"forgetting={forgetting} must be above 0 and at most 1")
        if not block.shape[0]:
            return
        with threads_for_entries(0):  # only a long product starts more threads
            self._add(block, forgetting)
        self.n_seen += block.shape[0]

    def _add(self, block: Block, forgetting: float) -> None:
        center = self.carried.centered
        self._scaled = None
        if self.scatter is not None:
            self.scatter.update(block, center=center, weight_before=forgetting**2)
            self._summary = None
        else:
            old = self.carried.discount(forgetting)
            self.carried = old.append(*about_own_mean(block, center=center, may_shift=True))
            if self.rank is not None:
                self._move_rank(self.rank)

    def merge(self, other: Stream) -> None:
        """Add all rows that another stream has received."""
        refuse_unmatched(self.carried.features or ())
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
        self._scaled = None
        self.n_seen += other.n_seen

    def _move_rank(self, rank: AdaptiveRank) -> None:
        self.rank = moved = rank.after(self.carried.spectrum)
        if moved.rank != rank.rank:
            room = min(self.carried.n_features, moved.rank + self.n_spare)
            self.carried = self.carried.resize(moved.rank, room)
