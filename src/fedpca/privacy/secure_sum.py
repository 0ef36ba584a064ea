"""Agree on how the fields of an answer are masked: in which ring, and how large they may be.

Both ends use these rules. A field of whole numbers is summed as it is. A matrix goes into a narrow
ring, and a vector or a number into a wide one, since the columns of a table may have very different
units.

A ring needs a bound. If the question declares with the word "explained" that a field is part of the
rows' sum of squares, the total sum of squares bounds the field. Otherwise, the sites first find a bound
(`fedpca.privacy.bounds`), in a separate message within the round.

When a question is asked again, a bound that is somewhat larger than the last one is tried. A site whose
answer exceeds that bound sends random elements and raises a flag, under masks. The total then shows
only that some site did so, and the round goes on as if no bound had been tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedpca.arrays import Array, Arrays, Declared, Dimensions, check_arrays
from fedpca.errors import MessageError, PolicyRefused
from fedpca.privacy.bounds import N_FLAGS, N_WORDS, flag_beyond, size_bins
from fedpca.privacy.masks import masked, words_of
from fedpca.privacy.rings import NARROW, WHOLE, WIDE, Ring, add
from fedpca.protocol.message import Message
from fedpca.protocol.question import Question

MIN_SITES = 2
ONE_SITE = "a secure sum over one site would show that site's answer; use at least two sites"
BOUND = "bound"  # the mask of a message that asks only for a bound
BEYOND = "beyond bound"  # the field for flags, in answers whose bound is only tried
KINDS = {NARROW: "narrow", WIDE: "wide"}
# enough for the largest and the smallest floats
MIN_FRACTION_BITS, MAX_FRACTION_BITS = (-1100, 1200)
ENERGY_SLACK = 1e-6  # share of itself by which rounding may change a total
_SIZES, _FLAG, _NOTHING = (b"fedpca " + each for each in (b"size words", b"flag", b"no answer"))


class BeyondBound(PolicyRefused):
    """A site refuses to mask a number that is larger than the ring allows."""


def bits_of(declared: Declared) -> int:
    """Return the bits of a field's ring: wide for numbers and vectors, narrow for matrices."""
    is_small = len(declared.dimensions) < 2 and declared.dimensions != ("triangle",)
    return WIDE if is_small and declared.dtype != "int64" else NARROW


def rings_from_bounds(question: Question, bounds: Mapping[str, float]) -> dict[str, Ring]:
    """Return the ring of each field; ``bounds`` has a bound on totals for each kind of ring."""
    rings = {}
    for name, declared in question.answers.items():
        bits, is_whole = bits_of(declared), declared.dtype == "int64"
        rings[name] = WHOLE if is_whole else Ring.for_bound(bits, bounds[KINDS[bits]])
    return rings


def bins_of(question: Question) -> dict[str, Ring]:
    """Return the fields of an answer about bounds: one for each kind of ring with fractions."""
    kinds = {KINDS[bits_of(each)] for each in question.answers.values() if each.dtype != "int64"}
    return dict.fromkeys(sorted(kinds), WHOLE)


def explained_bounds(
    question: Question, arrays: Arrays, energy: float | None
) -> dict[str, float] | None:
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
    return dict.fromkeys(bins_of(question), (1 + ENERGY_SLACK) * factor * energy)


def to_header(rings: Mapping[str, Ring]) -> dict[str, list[int]]:
    """Return rings as plain values for a message's header."""
    return {name: [ring.bits, ring.fraction_bits] for name, ring in rings.items()}


def from_header(question: Question, mask: Any) -> dict[str, Ring]:
    """Return the rings in a message's header; refuse what no coordinator would ask for."""
    try:
        rings = {name: Ring(int(bits), int(fraction)) for name, (bits, fraction) in mask.items()}
    except (AttributeError, TypeError, ValueError):
        raise MessageError("the question does not say how to mask its answer") from None
    for name, declared in question.answers.items():
        ring = rings.get(name)
        is_known = ring is not None and (
            ring == WHOLE
            if declared.dtype == "int64"
            else ring != WHOLE
            and ring.bits == bits_of(declared)
            and MIN_FRACTION_BITS <= ring.fraction_bits <= MAX_FRACTION_BITS
        )
        if not is_known:
            raise MessageError(f"field {name!r} cannot be masked in the ring that was asked for")
    tried = {BEYOND: WHOLE} if BEYOND in rings else {}
    return {name: rings[name] for name in question.answers} | tried


def masked_answer(
    question: Question,
    request: Message,
    answer: Arrays,
    site: str,
    secrets: Mapping[str, bytes],
    private: bytes,
) -> Arrays:
    """Return a site's answer, or only the size of its numbers, under masks.

    ``secrets`` holds the secret that the site shares with each neighbor, by name. ``private`` is a
    secret that only the site knows. A number beyond the bound is never clipped. It is refused, unless
    the bound is only tried.
    """
    mask, digest = request.header.get("mask"), request.digest
    if mask == BOUND:
        rings = bins_of(question)
        elements = _sizes(question, answer, digest, private)
    else:
        rings = from_header(question, mask)
        elements = _elements(rings, answer, request, private)
    hidden = masked(site, secrets, digest, elements, rings)
    return {name: array.view(np.int64) for name, array in hidden.items()}


def _sizes(question: Question, answer: Arrays, digest: bytes, private: bytes) -> Arrays:
    """Return the bins of the largest number among narrow fields, and among wide ones."""
    sizes: dict[str, list[float]] = {kind: [] for kind in bins_of(question)}
    for name, declared in question.answers.items():
        if declared.dtype != "int64":
            sizes[KINDS[bits_of(declared)]].append(_largest(answer[name]))
    return {
        kind: size_bins(
            np.array(found), words_of(private, _SIZES + kind.encode() + digest, N_WORDS)
        )
        for kind, found in sizes.items()
    }


def _elements(
    rings: Mapping[str, Ring], answer: Arrays, request: Message, private: bytes
) -> Arrays:
    """Return an answer as elements of its rings, or random elements if it exceeds a tried bound.

    The bound limits the total. If the bound is only tried, each site's answer must be within an equal
    share of it. Otherwise, the answers of all sites together are known to be within the bound.
    """
    own = {name: ring for name, ring in rings.items() if name != BEYOND}
    n_shares, digest = request.header["n_sites"] if BEYOND in rings else 1, request.digest
    beyond = [
        name
        for name, ring in own.items()
        if ring != WHOLE and n_shares * _largest(answer[name]) >= ring.largest
    ]
    if BEYOND not in rings:
        if beyond:
            raise BeyondBound(
                f"field {beyond[0]!r} is larger than the bound of {own[beyond[0]].largest:.3g} in "
                "the question; numbers beyond the bound are refused, not clipped"
            )
        return {name: ring.encode(answer[name]) for name, ring in own.items()}
    if beyond:  # random elements of one site hide what the others add to the total
        elements = {
            name: _random(
                ring.shape(answer[name].shape), _NOTHING + name.encode() + digest, private
            )
            for name, ring in own.items()
        }
    else:
        elements = {name: ring.encode(answer[name]) for name, ring in own.items()}
    return {
        **elements,
        BEYOND: flag_beyond(bool(beyond), words_of(private, _FLAG + digest, N_FLAGS)),
    }


def _random(shape: tuple[int, ...], context: bytes, private: bytes) -> Array:
    """Return random elements that are the same whenever the same question is asked."""
    return words_of(private, context, math.prod(shape)).reshape(shape).copy()


def _largest(array: Array) -> float:
    """Return the size of the largest number, without making an array of sizes."""
    return float(max(array.max(initial=0.0), -array.min(initial=0.0)))


def check_masked(
    question: Question, rings: Mapping[str, Ring], arrays: Arrays, dimensions: Dimensions
) -> Arrays:
    """Return the elements in a masked answer, or raise an error that names the field.

    The rings are those of the answer's fields, or those of the bins that `bins_of` returns.
    """
    if set(question.answers) <= set(rings):
        declared = {
            name: Declared(
                "int64", (*each.dimensions, *(("2",) if rings[name].bits == WIDE else ()))
            )
            for name, each in question.answers.items()
        }
        if BEYOND in rings:
            declared[BEYOND] = Declared("int64", (str(N_FLAGS),))
    else:
        declared = {name: Declared("int64", (str(N_WORDS),)) for name in rings}
    if set(arrays) != set(declared):
        raise MessageError(f"the answer has fields {sorted(arrays)} instead of {sorted(declared)}")
    checked = check_arrays(declared, arrays, dimensions, "the answer", MessageError)
    return {name: array.view(np.uint64) for name, array in checked.items()}


def add_masked(total: Arrays, elements: Arrays, rings: Mapping[str, Ring]) -> None:
    """Add a site's elements to a total, in place."""
    for name, array in elements.items():
        add(total[name], array, rings[name].bits)


def decoded(total: Arrays, rings: Mapping[str, Ring]) -> Arrays:
    """Return the total over all sites as numbers, once no mask is left in it."""
    return {
        name: array.view(np.int64) if rings[name] == WHOLE else rings[name].decode(array)
        for name, array in total.items()
    }
