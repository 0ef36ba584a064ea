"""Sum masked answers: choose the rings, add the elements, and read the total.

A masked answer consists of elements of a ring, which look random to the coordinator. Once all sites
have answered, the masks cancel, and the sum of the elements is the sum of the answers. The coordinator
learns nothing about a single site, except that the site answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpca.arrays import Arrays, Dimensions
from fedpca.privacy.bounds import bound_from_bins, masks_cancel
from fedpca.privacy.rings import NARROW, WHOLE, WIDE, Ring
from fedpca.privacy.secure_sum import (
    BEYOND,
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

GROWTH = 4.0  # factor by which answers to a question may exceed those of an earlier round
# the largest error that rounding at the sites may cause in a total, as a share of the largest number in
# the total; smaller for a wide ring, whose small numbers may be in other units and must be accurate too
MAX_ROUNDING = {NARROW: 2.0**-44, WIDE: 2.0**-80}
MAX_FAILED = 2  # once this many bounds in a row have failed for a question, no more are tried


@dataclass(frozen=True)
class Masks:
    """How the answers to one question are masked."""

    question: Question
    rings: Mapping[str, Ring]
    n_sites: int
    is_bound: bool = False  # whether sites are asked only how large their answers are

    @property
    def header(self) -> Any:
        """Return what the sites are told about the masks."""
        return BOUND if self.is_bound else to_header(self.rings)

    @property
    def is_tried(self) -> bool:
        """Return whether the bound is a guess, which answers may exceed."""
        return BEYOND in self.rings

    @property
    def fields(self) -> dict[str, list[int]]:
        """Return the ring of each field of an answer, as a run record stores it."""
        return to_header({name: self.rings[name] for name in self.question.answers})

    def check(self, arrays: Arrays, dimensions: Dimensions) -> Arrays:
        """Return the elements in an answer, or raise an error that names the field."""
        return check_masked(self.question, self.rings, arrays, dimensions)

    def add(self, total: Arrays, elements: Arrays) -> None:
        """Add a site's elements to a total, in place."""
        add_masked(total, elements, self.rings)

    def cancel(self, total: Arrays) -> bool:
        """Return whether all masks have canceled, as far as the total shows.

        A sum of answers is within its bound, but half of all random numbers in a ring are not.
        """
        if self.is_bound:
            return all(masks_cancel(bins) for bins in total.values())
        if self.is_tried and not masks_cancel(total[BEYOND]):
            return False
        return self._has_flags(total) or all(
            ring == WHOLE or float(np.abs(total[name]).max(initial=0.0)) < ring.largest
            for name, ring in self.rings.items()
        )

    def _has_flags(self, total: Arrays) -> bool:
        """Return whether a bound was tried and some site's answer exceeded it."""
        return self.is_tried and bool(total[BEYOND].any())

    def fit(self, total: Arrays) -> bool:
        """Return whether a total is the sum of all answers, with enough correct digits.

        If a bound was tried, some answer may have exceeded it, or the total may be so far below it that
        digits were lost.
        """
        if not self.is_tried:
            return True
        if self._has_flags(total):
            return False
        largest: dict[Ring, float] = {}
        for name in self.question.answers:
            ring, size = self.rings[name], float(np.abs(total[name]).max(initial=0.0))
            largest[ring] = max(largest.get(ring, 0.0), size)
        largest.pop(WHOLE, None)
        return all(
            self.n_sites * math.ldexp(0.5, -ring.fraction_bits) <= MAX_ROUNDING[ring.bits] * size
            for ring, size in largest.items()
        )

    def decode(self, total: Arrays) -> Arrays:
        """Return a total as numbers."""
        return decoded(total, self.rings)

    def elements_like(self, total: Arrays) -> Arrays:
        """Return arrays with the shapes of the elements from which a total was decoded."""
        return {
            name: np.empty(self.rings[name].shape(array.shape), np.int64)
            for name, array in total.items()
        }


class SecureSums:
    """What the coordinator knows about the size of sums in one attempt of a run."""

    def __init__(self) -> None:
        self._energy: float | None = None  # the total sum of squares, once it is known
        self._to_try: dict[str, dict[str, float]] = {}  # bounds by question, from known sizes
        self._n_failed: dict[str, int] = {}  # how many bounds failed in a row, by question

    def masks_for(
        self,
        question: Question,
        arrays: Arrays,
        n_sites: int,
        ask: Callable[[Masks], Arrays],
        *,
        has_failed: bool = False,
    ) -> Masks:
        """Return the masks for a question, and call ``ask`` first if the answers' sizes are unknown.

        If an earlier round asked for the sizes, a bound from that round is tried instead, unless a
        bound has already failed in this round (``has_failed``).
        """
        bounds = explained_bounds(question, arrays, self._energy)
        if bounds is not None:
            return Masks(question, rings_from_bounds(question, bounds), n_sites)
        name = question.name
        to_try = self._to_try.pop(name, None)
        if has_failed:
            self._n_failed[name] = self._n_failed.get(name, 0) + 1
        elif to_try is not None:
            self._to_try[name] = to_try
            return Masks(question, {**rings_from_bounds(question, to_try), BEYOND: WHOLE}, n_sites)
        bins = ask(Masks(question, bins_of(question), n_sites, is_bound=True))
        bounds = {kind: n_sites * bound_from_bins(each) for kind, each in bins.items()}
        if all(bounds.values()) and self._n_failed.get(name, 0) < MAX_FAILED:
            self._to_try[name] = {kind: GROWTH * bound for kind, bound in bounds.items()}
        return Masks(question, rings_from_bounds(question, bounds), n_sites)

    def keep_told(self, masks: Masks, total: Arrays) -> None:
        """Store the total sum of squares if the answers contain it; note that a tried bound fits."""
        if masks.is_tried:
            self._n_failed.pop(masks.question.name, None)
        energy = masks.question.told(total).get("energy")
        if energy is not None:
            self._energy = energy
