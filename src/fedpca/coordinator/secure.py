"""Sum masked answers: choose the rings, add the elements, and read the total.

A masked answer consists of elements of a ring, which look random to the coordinator. Once all sites
have answered, the masks cancel, and the sum of the elements is the sum of the answers. The coordinator
learns nothing about a single site, except that the site sent something.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpca.arrays import Arrays, Dimensions
from fedpca.privacy.bounds import SIZE_RING
from fedpca.privacy.rings import NARROW, UNIT_EXPONENT, WHOLE, WIDE, Ring, exponent_of
from fedpca.privacy.secure_sum import (
    SIZES,
    ZERO,
    add_masked,
    check_masked,
    decoded,
    explained_exponents,
    rings_of,
    sizes_of,
    to_header,
)
from fedpca.protocol.question import Question

HEADROOM_BITS = 6  # by which answers to a question may exceed those of an earlier round
# the largest error that rounding at the sites may cause in a total, as a share of the size of all
# answers; smaller for a wide ring, whose small numbers may be in other units and must be accurate too
MAX_ROUNDING_EXPONENT = {NARROW: -44, WIDE: -80}


@dataclass(frozen=True)
class Masks:
    """How the answers to one question are masked; ``asked`` are the rings of all fields but one."""

    question: Question
    asked: Mapping[str, Ring]
    n_sites: int

    @property
    def rings(self) -> dict[str, Ring]:
        """Return the ring of each field that the sites send."""
        return {**self.asked, ZERO: WHOLE}

    @property
    def header(self) -> Any:
        """Return what the sites are told about the masks."""
        return to_header(self.rings)

    @property
    def is_size(self) -> bool:
        """Return whether sites are asked only how large their answers are."""
        return set(self.asked.values()) == {SIZE_RING}

    @property
    def fields(self) -> dict[str, list[int]]:
        """Return the ring of each field of an answer, as a run record stores it."""
        return to_header({name: self.asked[name] for name in self.question.answers})

    def check(self, arrays: Arrays, dimensions: Dimensions) -> Arrays:
        """Return the elements in an answer, or raise an error that names the field."""
        return check_masked(self.question, self.rings, arrays, dimensions)

    def add(self, total: Arrays, elements: Arrays) -> None:
        """Add a site's elements to a total, in place."""
        add_masked(total, elements, self.rings)

    def cancel(self, total: Arrays) -> bool:
        """Return whether all masks cancel in a total of elements, and all sites have answered."""
        return not total[ZERO].any()

    def fit(self, total: Arrays) -> bool:
        """Return whether a total is the sum of all answers, with enough correct digits.

        That is known if the size of the answers was known before. Otherwise, the sizes that are told
        with the answers show whether the sum may exceed its ring, and whether digits were lost.
        """
        return all(
            self._fits(ring, int(total[SIZES[ring.bits]]))
            for ring in {self.asked[name] for name in self.question.answers} - {WHOLE}
            if SIZES[ring.bits] in total
        )

    def _fits(self, ring: Ring, exponent: int) -> bool:
        if exponent == UNIT_EXPONENT:  # all answers are zero
            return True
        rounding = math.log2(self.n_sites) - ring.fraction_bits - 1
        is_exact = rounding <= exponent - 1 + MAX_ROUNDING_EXPONENT[ring.bits]
        return exponent <= ring.exponent and is_exact

    def is_within(self, total: Arrays) -> bool:
        """Return whether a total stays below its bound, as all sums of honest answers do."""
        return all(
            ring == WHOLE or exponent_of(total[name]) <= ring.exponent
            for name, ring in self.asked.items()
            if name in self.question.answers
        )

    def decode(self, total: Arrays) -> Arrays:
        """Return a total of elements as numbers."""
        return decoded(total, self.asked)

    def elements_like(self, total: Arrays) -> Arrays:
        """Return arrays with the shapes of the elements from which a total was decoded."""
        shapes = {name: total[name].shape for name in self.asked} | {ZERO: ()}
        return {
            name: np.empty(ring.shape(shapes[name]), np.int64) for name, ring in self.rings.items()
        }


class SecureSums:
    """What the coordinator knows about the size of sums in one attempt of a run."""

    def __init__(self) -> None:
        self._energy: float | None = None  # the total sum of squares, once it is known
        self._sizes: dict[str, dict[str, int]] = {}  # of the last answers, by question

    def masks_for(
        self, question: Question, arrays: Arrays, n_sites: int, ask: Callable[[Masks], Arrays]
    ) -> Masks:
        """Return the masks for a question; call ``ask`` first to learn the size of its first answer."""
        exponents = explained_exponents(question, arrays, self._energy)
        if exponents is not None:
            return Masks(question, rings_of(question, exponents), n_sites)
        sizes = sizes_of(question)
        if question.name not in self._sizes:
            masks = Masks(question, sizes, n_sites)
            self.keep_told(masks, ask(masks))
            return self.masks_again(masks)
        roomy = {kind: each + HEADROOM_BITS for kind, each in self._sizes[question.name].items()}
        return Masks(question, {**rings_of(question, roomy), **sizes}, n_sites)

    def masks_again(self, masks: Masks) -> Masks:
        """Return the masks for the same answer, whose size has now been told."""
        question = masks.question
        return Masks(question, rings_of(question, self._sizes[question.name]), masks.n_sites)

    def keep_told(self, masks: Masks, total: Arrays) -> None:
        """Store the size of the answers and the total sum of squares, if the total contains them."""
        sizes = {name: int(total[name]) for name, ring in masks.asked.items() if ring == SIZE_RING}
        if sizes:
            self._sizes[masks.question.name] = sizes
        if not masks.is_size and masks.fit(total):
            energy = masks.question.told(total).get("energy")
            if energy is not None:
                self._energy = energy
