"""Numbers in rings: sums are exact, in any order, and masks cancel."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedpca.privacy.rings import NARROW, WIDE, Ring, add_elements, subtract
from support import ring_for

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
    ring = ring_for(bits, sum(abs(v) for v in values) or 1.0)
    total = ring.encode(np.array([values[0]]))
    due = exact(ring, total)
    assert abs(due - Fraction(values[0])) <= Fraction(1, 2) / Fraction(2) ** ring.fraction_bits
    for value in values[1:]:
        elements = ring.encode(np.array([value]))
        due += exact(ring, elements)
        add_elements(total, elements, bits)
    assert exact(ring, total) == due
    assert ring.decode(total)[0] == pytest.approx(float(due), rel=4e-16, abs=0)


@pytest.mark.parametrize("bits", [NARROW, WIDE])
@given(words=st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=2))
def test_what_is_added_can_be_subtracted(bits, words):
    elements = np.array(words[:1] if bits == NARROW else words, np.uint64)
    total = elements.copy()
    subtract(total, elements, bits)
    assert not total.any()
    add_elements(total, elements, bits)
    assert (total == elements).all()


@given(st.floats(1e-300, 1e300))
def test_a_ring_holds_what_it_was_made_for(bound):
    for bits in (NARROW, WIDE):
        ring = ring_for(bits, bound)
        assert bound < 2.0**ring.exponent
        for value in (bound, -bound):
            decoded = float(ring.decode(ring.encode(np.array([value])))[0])
            assert decoded == pytest.approx(value, rel=2.0**-53 if bits == WIDE else 2.0**-60)


def test_no_bound_on_fractions_makes_the_ring_of_whole_numbers():
    assert ring_for(NARROW, 1.5 * 2.0**61) == Ring(NARROW, -1)


def test_whole_numbers_stay_whole():
    counts = np.array([0, 1, -7, 2**48], np.int64)
    ring = Ring(NARROW, 0)
    assert ring.decode(ring.encode(counts)).tolist() == counts.tolist()


ANY = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=True)


@pytest.mark.parametrize("bits", [NARROW, WIDE])
@given(values=st.lists(ANY, min_size=1, max_size=8), fraction_bits=st.integers(-1100, 1200))
@example(values=[1.0, -1.0, 1.5, 2.0], fraction_bits=63)
@example(values=[-(2.0**-64), 2.0**63, 3 * 2.0**-1, 1.7e308], fraction_bits=65)
@example(values=[5e-324, 1.7e308, -1.7e308], fraction_bits=1200)
@example(values=[5e-324, 1.7e308, -1.7e308], fraction_bits=-1100)
def test_every_number_has_its_element_modulo_the_ring(bits, values, fraction_bits):
    ring = Ring(bits, fraction_bits)
    found = ring.encode(np.array(values)).reshape(len(values), -1)
    for value, words in zip(values, found, strict=True):
        element = sum(int(word) << (64 * i) for i, word in enumerate(words))
        assert element == round(Fraction(value) * Fraction(2) ** fraction_bits) % 2**bits


@pytest.mark.parametrize("bits", [NARROW, WIDE])
@given(
    bound_exponent=st.integers(-40, 40),
    exponent=st.integers(-140, 0),
    sign=st.sampled_from([-1, 1]),
)
def test_numbers_far_below_the_bound_are_rounded_like_all_others(
    bits, bound_exponent, exponent, sign
):
    ring = ring_for(bits, 2.0**bound_exponent)
    value = sign * 1.2345 * 2.0 ** (bound_exponent + exponent - 1)
    found = exact(ring, ring.encode(np.array([value])))
    assert abs(found - Fraction(value)) <= Fraction(1, 2) / Fraction(2) ** ring.fraction_bits


@pytest.mark.parametrize("bits", [NARROW, WIDE])
@pytest.mark.parametrize("value", [0.3, -2.9, 0.0, 2.0**40 + 0.25, 7.0])
def test_numbers_are_rounded_up_or_down_at_random_with_the_right_mean(bits, value):
    """Rounded to the nearest number, a total would count the sites above a threshold."""
    rng, ring = np.random.default_rng(0), Ring(bits, 3)
    found = ring.encode(
        np.full(40_000, value / 8), lambda n: rng.integers(0, 2**64, n, np.uint64, endpoint=False)
    )
    whole = 8 * ring.decode(found)
    assert set(whole) == {np.floor(value), np.ceil(value)}
    assert np.mean(whole - np.floor(value)) == pytest.approx(value - np.floor(value), abs=0.01)
