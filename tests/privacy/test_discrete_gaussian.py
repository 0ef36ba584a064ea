"""Noise from the discrete Gaussian: its distribution is exact, down to the last bit."""

from __future__ import annotations

import inspect
import math
import os
import random
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from fedpca.errors import InputError
from fedpca.privacy import discrete_gaussian as module
from fedpca.privacy.discrete_gaussian import MAX_VARIANCE, discrete_gaussian

SMALL_VARIANCES = (1, 2, 10, 10**4)
LEAST_P_VALUE = 1e-3  # the bytes are fixed, so a test that passes once always does


def fixed_bytes(seed=0):
    return np.random.default_rng(seed).bytes


def chi_square_p_value(values, variance):
    """Compare counts with the probabilities; count together what is expected less than 10 times."""
    reach = math.isqrt(variance) * 12
    weights = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2 * variance))
    expected = weights * (len(values) / weights.sum())
    observed = np.bincount(values + reach, minlength=2 * reach + 1)
    first, *_, last = np.flatnonzero(expected >= 10)
    binned = [
        [counts[: first + 1].sum(), *counts[first + 1 : last], counts[last:].sum()]
        for counts in (observed, expected)
    ]
    return stats.chisquare(*binned).pvalue


@pytest.mark.parametrize("variance", SMALL_VARIANCES)
def test_each_value_is_as_frequent_as_its_probability(variance):
    values = discrete_gaussian(variance, 400_000, random_bytes=fixed_bytes())
    assert values.dtype == np.int64
    assert chi_square_p_value(values, variance) > LEAST_P_VALUE


@pytest.mark.slow
@pytest.mark.parametrize("variance", SMALL_VARIANCES)
def test_decisions_by_exact_numbers_alone_have_the_same_distribution(variance, monkeypatch):
    decisions = []
    exactly = module._is_below_exactly
    monkeypatch.setattr(module, "ERROR_BOUND", 1.0)
    monkeypatch.setattr(
        module,
        "_is_below_exactly",
        lambda *given: decisions.append(exactly(*given)) or decisions[-1],
    )
    values = discrete_gaussian(variance, 4_000, random_bytes=fixed_bytes(1))
    assert len(decisions) > len(values)
    assert sum(decisions) >= len(values)
    assert chi_square_p_value(values, variance) > LEAST_P_VALUE


@pytest.mark.parametrize("variance", [3, 2**61 - 1, 2**76 + 1, MAX_VARIANCE])
def test_float64_and_exact_numbers_decide_the_same(variance, monkeypatch):
    fast = discrete_gaussian(variance, 3_000, random_bytes=fixed_bytes(2))
    monkeypatch.setattr(module, "ERROR_BOUND", 1.0)
    exact = discrete_gaussian(variance, 3_000, random_bytes=fixed_bytes(2))
    np.testing.assert_array_equal(fast, exact)


def no_bytes(count):
    raise AssertionError("more random bits than needed")


@pytest.mark.parametrize("bits", [1, 5, 50, 60, 76, 109, 110])
@pytest.mark.parametrize("block", [0, 1, 2, 3, 4, 63])
def test_the_error_bound_holds_with_room_to_spare(bits, block):
    rng = random.Random(100 * bits + block)
    room = Fraction(module.ERROR_BOUND) / 64
    for _ in range(20):
        variance = rng.randint(1 << (bits - 1), 1 << bits)
        block_size = 1 << ((variance - 1).bit_length() + 1) // 2
        x = block * block_size + rng.randrange(block_size)
        p = float(module._probability(variance, np.array([x]), np.array([block], np.uint8))[0])
        lower, upper = (int((Fraction(p) + off) * 2**64) for off in (-room, room))
        assert lower < 0 or module._is_below_exactly(variance, x, block, lower, no_bytes)
        assert upper >= 2**64 or not module._is_below_exactly(variance, x, block, upper, no_bytes)


@pytest.mark.parametrize("n_equal_words", [1, 2, 5])
@pytest.mark.parametrize(("change", "is_below"), [(-2, True), (2, False)])
def test_bits_are_drawn_until_they_differ_from_those_of_p(n_equal_words, change, is_below):
    # p = exp(1/2) / 2 for variance 1 and x = 0, by the power series in whole numbers
    n_spare = 64
    term, total, n_terms = 1 << (64 * (n_equal_words + 1) + n_spare), 0, 0
    while term:
        total, n_terms = total + term, n_terms + 1
        term //= 2 * n_terms
    digits = (total >> (n_spare + 1)) + change
    words = [digits >> (64 * k) & (2**64 - 1) for k in range(n_equal_words, -1, -1)]
    drawn = iter(word.to_bytes(8, "little") for word in words[1:])
    assert module._is_below_exactly(1, 0, 0, words[0], lambda count: next(drawn)) == is_below
    assert next(drawn, None) is None


def test_large_noise_is_normal():
    values = discrete_gaussian(2**80, 300_000, random_bytes=fixed_bytes(3))
    z = values / 2.0**40
    assert abs(z.mean()) < 4 / math.sqrt(len(z))
    assert abs(z.var() - 1) < 4 * math.sqrt(2 / len(z))
    assert abs(stats.kurtosis(z)) < 4 * math.sqrt(24 / len(z))
    assert stats.kstest(z, "norm").pvalue > LEAST_P_VALUE


@pytest.mark.parametrize("modulus", [2, 3, 5, 7, 64, 101])
def test_large_noise_has_every_remainder_equally_often(modulus):
    values = discrete_gaussian(MAX_VARIANCE, 200_000, random_bytes=fixed_bytes(4))
    counts = np.bincount(values % modulus, minlength=modulus)
    assert stats.chisquare(counts).pvalue > LEAST_P_VALUE


@pytest.mark.parametrize(("coins", "due"), [(1 << 63, [1 - 2**61]), (0, [])])
def test_the_largest_trial_that_can_be_kept_is_below_64_blocks(coins, due):
    words = np.array([2**64 - 1, coins, 0], np.uint64)  # the last place, a block, and the number 0
    first = iter([words.tobytes()])
    kept = module._kept_trials(MAX_VARIANCE, 1, lambda count: next(first, bytes(count)))
    assert kept.tolist() == due  # 0 is below any p, however small: the block alone decides


@pytest.mark.parametrize("variance", [0, -1, MAX_VARIANCE + 1, 2.5, 1e30, math.nan, "4", None])
def test_a_variance_that_is_no_whole_number_in_range_is_refused(variance):
    with pytest.raises(InputError, match=r"variance=.* must be a whole number from 1 to 2\^110"):
        discrete_gaussian(variance, 1)


@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_as_many_values_come_as_were_asked_for(size):
    assert discrete_gaussian(2**76, size).shape == (size,)


def test_noise_comes_from_the_system_and_repeats_only_with_the_same_bytes():
    assert inspect.signature(discrete_gaussian).parameters["random_bytes"].default is os.urandom
    assert (discrete_gaussian(2**76, 8) != discrete_gaussian(2**76, 8)).any()
    np.testing.assert_array_equal(
        *(discrete_gaussian(2**76, 8, random_bytes=fixed_bytes(5)) for _ in range(2))
    )
