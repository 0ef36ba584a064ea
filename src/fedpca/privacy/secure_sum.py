"""Agree on how the fields of an answer are masked: in which ring, and how large they may be.

Both ends use these rules. A field of whole numbers is summed as it is. A matrix goes into a narrow
ring, and a vector or a number into a wide one, since the columns of a table may have very different
units.

A ring needs a bound on the total. If the question declares with the word "explained" that a field is
part of the rows' sum of squares, the total sum of squares bounds the field. The coordinator already has
that total. Otherwise, the sites first tell how large their answers are together
(`fedpca.privacy.bounds`), in a separate message within the round. Later answers to the same question
have such a size beside them. So the coordinator knows whether the total fits its ring. If it does not,
the coordinator asks for the same answer in another ring.

A site compares none of its numbers with a ring. Whichever rings a coordinator chooses, it learns only
the total modulo each ring. Everything that depends on the rows of a site is under masks, also whether
the site could answer: one more field is zero at each site, and random at a site that could not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from fedpca.arrays import Array, Arrays, Declared, Dimensions, check_arrays
from fedpca.errors import MessageError
from fedpca.privacy.bounds import N_RANDOM_WORDS, SIZE_RING, hidden_size, told_exponent
from fedpca.privacy.rings import NARROW, WHOLE, WIDE, WORD_BITS, Ring, add_elements, largest_of
from fedpca.protocol.question import Question

MIN_SITES = 2
ONE_SITE = "a secure sum over one site would show that site's answer; use at least two sites"
SIZES = {NARROW: "narrow size", WIDE: "wide size"}  # the field of the size of all fields in a ring
# a field of zeros, whose total is zero if all masks cancel and all sites answered
ZERO = "zero sum"
# enough for the largest and the smallest floats
MIN_FRACTION_BITS, MAX_FRACTION_BITS = (-1100, 1200)
TOTAL_ENERGY_SLACK = 1e-6  # share of itself by which rounding may change a total

Words = Callable[[bytes, int], Array]  # returns so many random words, which depend on the bytes


def bits_of(declared: Declared) -> int:
    """Return the bits of a field's ring: wide for numbers and vectors, narrow for matrices."""
    is_small = len(declared.dimensions) < 2 and declared.dimensions != ("triangle",)
    return WIDE if is_small and declared.dtype != "int64" else NARROW


def rings_of(question: Question, exponents: Mapping[str, int]) -> dict[str, Ring]:
    """Return the ring of each field; totals are below 2 to the power of these exponents, by size."""
    rings = {}
    for name, declared in question.answers.items():
        bits, is_whole = bits_of(declared), declared.dtype == "int64"
        rings[name] = WHOLE if is_whole else Ring.for_exponent(bits, exponents[SIZES[bits]])
    return rings


def sizes_of(question: Question) -> dict[str, Ring]:
    """Return the fields of an answer's size: one for each kind of ring with fractions."""
    kinds = {SIZES[bits_of(each)] for each in question.answers.values() if each.dtype != "int64"}
    return dict.fromkeys(sorted(kinds), SIZE_RING)


def explained_exponents(
    question: Question, arrays: Arrays, energy: float | None
) -> dict[str, int] | None:
    """Return the bounds on totals that the rows' sum of squares implies, or None without any.

    The norm of ``A'A Z`` is at most the trace of ``A'A`` times the norm of Z. A question may also
    declare a factor, ``times_energy``. A question without fractions needs no bound.
    """
    fractions = [name for name, declared in question.answers.items() if declared.dtype != "int64"]
    if not fractions:
        return {}
    if energy is None:
        return None
    factor = None
    if question.times_energy is not None:
        factor = question.times_energy(arrays)
    elif all("explained" in question.words[name] for name in fractions):
        blocks = (array for array in arrays.values() if array.ndim > 1)
        factor = max([1.0, *(float(np.linalg.norm(block)) for block in blocks)])
    if factor is None:
        return None
    return dict.fromkeys(
        sizes_of(question), math.frexp((1 + TOTAL_ENERGY_SLACK) * factor * energy)[1]
    )


def to_header(rings: Mapping[str, Ring]) -> dict[str, list[int]]:
    """Return rings as plain values for a message's header."""
    return {name: [ring.bits, ring.fraction_bits] for name, ring in rings.items()}


def from_header(question: Question, mask: Any) -> dict[str, Ring]:
    """Return the rings in a message's header; refuse what no coordinator would ask for.

    The rings are those of the answer, those of its sizes, or both.
    """
    try:
        rings = {name: Ring(int(bits), int(fraction)) for name, (bits, fraction) in mask.items()}
    except (AttributeError, TypeError, ValueError):
        raise MessageError("the question does not say how to mask its answer") from None
    own, due = question.answers.keys(), {**sizes_of(question), ZERO: WHOLE}
    is_whole = rings.keys() in (own | {ZERO}, own | due.keys())
    if not is_whole and (rings.keys() != due.keys() or len(due) == 1):
        raise MessageError("the question does not say how to mask each field of its answer")
    for name, ring in rings.items():
        if not (ring == due[name] if name in due else _is_ring_of(question.answers[name], ring)):
            raise MessageError(f"field {name!r} cannot be masked in the ring that was asked for")
    return dict(sorted(rings.items()))  # both ends of a mask need the same order


def _is_ring_of(declared: Declared, ring: Ring) -> bool:
    """Return whether a coordinator may ask for a field in this ring."""
    if declared.dtype == "int64" or ring == WHOLE:
        return declared.dtype == "int64" and ring == WHOLE
    is_known = MIN_FRACTION_BITS <= ring.fraction_bits <= MAX_FRACTION_BITS
    return is_known and ring.bits == bits_of(declared)


def encoded(question: Question, rings: Mapping[str, Ring], answer: Arrays, words: Words) -> Arrays:
    """Return an answer, its sizes, or both, as elements of rings.

    ``words`` must return the same words whenever it gets the same bytes. Otherwise, the average over
    many equal questions would be exact. The bytes depend on the answer, since words that stay the same
    while the answer changes would hide nothing.
    """
    elements = {}
    for name, ring in rings.items():
        if name in question.answers:
            about = name.encode() + b"%d %d" % (ring.bits, ring.fraction_bits) + _mark(answer[name])
            elements[name] = ring.encode(answer[name], partial(words, about))
        elif ring == SIZE_RING:
            own = [
                answer[field]
                for field, declared in question.answers.items()
                if declared.dtype != "int64" and SIZES[bits_of(declared)] == name
            ]
            about = b"".join([name.encode(), *map(_mark, own)])
            drawn = words(about, N_RANDOM_WORDS)
            elements[name] = hidden_size(max(map(largest_of, own)), drawn)
        else:
            elements[name] = np.zeros((), np.uint64)
    return elements


def _mark(values: Array) -> bytes:
    """Return a few bytes that change with any number."""
    words = values.reshape(-1).view(np.uint64)
    # a sum alone would miss two changes that cancel
    return bytes(words.sum(keepdims=True).data) + bytes(np.bitwise_xor.reduce(words, keepdims=True))


def no_answer(
    rings: Mapping[str, Ring], shapes: Mapping[str, tuple[int, ...]], words: Words
) -> Arrays:
    """Return random elements, which hide the total; ``shapes`` has that of each field of the answer.

    ``words`` must return other words for each message. The same elements in two rings would cancel in
    the difference, and leave what the other sites sent.
    """
    of = {name: ring.shape(shapes.get(name, ())) for name, ring in rings.items()}
    return {
        name: words(name.encode(), math.prod(shape)).reshape(shape) for name, shape in of.items()
    }


def check_masked(
    question: Question, rings: Mapping[str, Ring], arrays: Arrays, dimensions: Dimensions
) -> Arrays:
    """Return the elements in a masked answer, or raise an error that names the field."""
    declared = {}
    for name, ring in rings.items():
        lengths = question.answers[name].dimensions if name in question.answers else ()
        n_words = ring.bits // WORD_BITS
        # messages have no uint64; the same bits are read as uint64 below
        declared[name] = Declared("int64", (*lengths, *((str(n_words),) if n_words > 1 else ())))
    if set(arrays) != set(declared):
        raise MessageError(f"the answer has fields {sorted(arrays)} instead of {sorted(declared)}")
    checked = check_arrays(declared, arrays, dimensions, "the answer", MessageError)
    return {name: array.view(np.uint64) for name, array in checked.items()}


def add_masked(total: Arrays, elements: Arrays, rings: Mapping[str, Ring]) -> None:
    """Add a site's elements to a total, in place."""
    for name, array in elements.items():
        add_elements(total[name], array, rings[name].bits)


def decoded(total: Arrays, rings: Mapping[str, Ring]) -> Arrays:
    """Return the total over all sites as numbers, once no mask is left in it.

    A size becomes the power of 2 that the total is below.
    """
    numbers = {}
    for name, ring in rings.items():
        if ring == SIZE_RING:
            numbers[name] = np.array(told_exponent(total[name]), np.int64)
        else:
            numbers[name] = (
                total[name].view(np.int64) if ring == WHOLE else ring.decode(total[name])
            )
    return numbers
