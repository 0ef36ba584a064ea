"""Sum masked answers: choose the rings, add the elements, and read the total.

The coordinator sees elements of a ring that look random. Their sum is the sum of the answers, once all
sites have answered. What is known about a site alone is that it answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpca.arrays import Arrays, Dimensions
from fedpca.privacy.bounds import bound_from_bins, masks_cancel
from fedpca.privacy.rings import Ring
from fedpca.privacy.secure_sum import (
    BOUND,
    add_masked,
    bins_of,
    check_masked,
    decoded,
    explained_bounds,
    rings_from_bounds,
    to_header,
)
from fedpca.protocol.question import Question


@dataclass(frozen=True)
class Masks:
    """How the answers to one question are masked."""

    question: Question
    rings: Mapping[str, Ring]
    is_bound: bool = False  # whether only the size of the answers is asked for

    @property
    def header(self) -> Any:
        """Return what the sites are told about the masks."""
        return BOUND if self.is_bound else to_header(self.rings)

    def check(self, arrays: Arrays, dimensions: Dimensions) -> Arrays:
        """Return the elements in an answer, or raise an error that names the field."""
        return check_masked(self.question, self.rings, arrays, dimensions)

    def add(self, total: Arrays, elements: Arrays) -> None:
        """Add a site's elements to a total, in place."""
        add_masked(total, elements, self.rings)

    def cancel(self, total: Arrays) -> bool:
        """Return whether no mask is left in a total, as far as the total shows it."""
        return not self.is_bound or all(masks_cancel(bins) for bins in total.values())

    def decode(self, total: Arrays) -> Arrays:
        """Return a total as numbers."""
        return decoded(total, self.rings)

    def elements_like(self, total: Arrays) -> Arrays:
        """Return arrays with the shapes of the elements that a total was made of."""
        return {
            name: np.empty(self.rings[name].shape(array.shape), np.int64)
            for name, array in total.items()
        }


class SecureSums:
    """What the coordinator knows about the size of sums in one attempt of a run."""

    def __init__(self) -> None:
        self._energy: float | None = None  # the total sum of squares, once it was told

    def masks_for(
        self, question: Question, arrays: Arrays, n_sites: int, ask: Callable[[Masks], Arrays]
    ) -> Masks:
        """Return the masks for a question; ``ask`` asks for the size of the answers if necessary."""
        bounds = explained_bounds(question, arrays, self._energy)
        if bounds is None:
            bins = ask(Masks(question, bins_of(question), is_bound=True))
            bounds = {kind: n_sites * bound_from_bins(each) for kind, each in bins.items()}
        return Masks(question, rings_from_bounds(question, bounds))

    def keep_told(self, question: Question, total: Arrays) -> None:
        """Keep the total sum of squares if an answer tells it."""
        energy = question.told(total).get("energy")
        if energy is not None:
            self._energy = energy
