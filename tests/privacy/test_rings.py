"""Numbers in rings: sums are exact, in any order, and masks cancel."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpca.privacy.rings import NARROW, WIDE, Ring, add, subtract

SIZES = st.one_of(st.just(0.0), st.floats(1e-12, 1e12), st.floats(-1e12, -1e-12))


def exact(ring, elements):
    """Decode one element with whole numbers of any length."""
    words = [int(word) for word in elements.ravel()]
    whole = sum(word << (64 * i) for i, word in enumerate(words))
    if whole >> (ring.bits - 1):
        whole -= 1 << ring.bits
    return Fraction(whole) / Fraction(2) ** ring.fraction_bits


@pytest.mark.parametrize("bits", [NARROW, WIDE])
@given(values=st.lists(SIZES, min_size=1, max_size=20))
def test_a_sum_in_the_ring_is_the_sum_of_the_rounded_numbers(bits, values):
    ring = Ring.for_bound(bits, sum(abs(v) for v in values) or 1.0)
    total = ring.encode(np.array([values[0]]))
    due = exact(ring, total)
    assert abs(due - Fraction(values[0])) <= Fraction(1, 2) / Fraction(2) ** ring.fraction_bits
    for value in values[1:]:
        elements = ring.encode(np.array([value]))
        due += exact(ring, elements)
        add(total, elements, bits)
    assert exact(ring, total) == due
    assert ring.decode(total)[0] == pytest.approx(float(due), rel=4e-16, abs=0)


@pytest.mark.parametrize("bits", [NARROW, WIDE])
@given(words=st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=2))
def test_what_is_added_can_be_subtracted(bits, words):
    elements = np.array(words[:1] if bits == NARROW else words, np.uint64)
    total = elements.copy()
    subtract(total, elements, bits)
    assert not total.any()
    add(total, elements, bits)
    assert (total == elements).all()


@given(st.floats(1e-300, 1e300))
def test_a_ring_holds_what_it_was_made_for(bound):
    for bits in (NARROW, WIDE):
        ring = Ring.for_bound(bits, bound)
        assert bound < ring.largest
        for value in (bound, -bound):
            decoded = float(ring.decode(ring.encode(np.array([value])))[0])
            assert decoded == pytest.approx(value, rel=2.0**-53 if bits == WIDE else 2.0**-60)


def test_no_bound_on_fractions_makes_the_ring_of_whole_numbers():
    assert Ring.for_bound(NARROW, 1.5 * 2.0**61) == Ring(NARROW, -1)


def test_whole_numbers_stay_whole():
    counts = np.array([0, 1, -7, 2**48], np.int64)
    ring = Ring(NARROW, 0)
    assert ring.decode(ring.encode(counts)).tolist() == counts.tolist()


@pytest.mark.parametrize("bits", [NARROW, WIDE])
@given(
    bound_exponent=st.integers(-40, 40),
    exponent=st.integers(-140, 0),
    sign=st.sampled_from([-1, 1]),
)
def test_numbers_far_below_the_bound_are_rounded_like_all_others(
    bits, bound_exponent, exponent, sign
):
    ring = Ring.for_bound(bits, 2.0**bound_exponent)
    value = sign * 1.2345 * 2.0 ** (bound_exponent + exponent - 1)
    found = exact(ring, ring.encode(np.array([value])))
    assert abs(found - Fraction(value)) <= Fraction(1, 2) / Fraction(2) ** ring.fraction_bits
