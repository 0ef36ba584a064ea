"""Masks: one answer is random, all answers give the sum, and nothing in between gives anything."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import chi2, ks_2samp

from fedpca.privacy import masks
from fedpca.privacy.bounds import N_RANDOM_WORDS, N_WORDS, SIZE_RING, hidden_size, told_exponent
from fedpca.privacy.masks import (
    masked,
    neighbors,
    new_private_key,
    pair_secrets,
    public_key_of,
)
from fedpca.privacy.rings import NARROW, WIDE, Ring, add_elements
from support import ring_for


def secrets_of(names, seed=b"offers"):
    """Return each site's pair secrets, after an exchange of keys."""
    private = {name: new_private_key() for name in names}
    public = {name: public_key_of(key) for name, key in private.items()}
    shared = {}
    for name in names:
        others = neighbors(name, names, seed)
        secrets = pair_secrets(private[name], [public[other] for other in others], seed)
        shared[name] = dict(zip(others, secrets, strict=True))
    return shared


def total_of(answers, rings):
    total = {field: np.zeros_like(array) for field, array in answers[0].items()}
    for answer in answers:
        for field, array in answer.items():
            add_elements(total[field], array, rings[field].bits)
    return {field: rings[field].decode(array) for field, array in total.items()}


@pytest.mark.parametrize("n_sites", [2, 3, 7, 120])
def test_all_answers_together_give_the_sum(n_sites):
    rng = np.random.default_rng(n_sites)
    names = [f"site-{i}" for i in range(n_sites)]
    values = {
        name: {
            "Y": rng.normal(size=(4, 3)),
            "total": rng.normal(size=5) * 10.0 ** rng.integers(-6, 7, 5),
        }
        for name in names
    }
    rings = {
        "Y": ring_for(NARROW, 8.0 * n_sites),
        "total": ring_for(WIDE, 1e8 * n_sites),
    }
    shared = secrets_of(names)
    answers = [
        masked(
            name,
            shared[name],
            b"q",
            {f: rings[f].encode(v) for f, v in values[name].items()},
            rings,
        )
        for name in names
    ]
    total = total_of(answers, rings)
    for field in rings:
        due = np.sum([values[name][field] for name in names], axis=0)
        largest = np.abs(due).max()
        np.testing.assert_allclose(total[field], due, rtol=0, atol=1e-12 * largest)
    backwards = total_of(answers[::-1], rings)
    assert all((total[field] == backwards[field]).all() for field in rings)


def test_no_part_of_the_answers_gives_a_sum():
    names = ["a", "b", "c", "d"]
    ring = {"Y": ring_for(NARROW, 100.0)}
    values = dict.fromkeys(names, np.full(200, 3.0))
    shared = secrets_of(names)
    answers = {
        n: masked(n, shared[n], b"q", {"Y": ring["Y"].encode(v)}, ring) for n, v in values.items()
    }
    for size in (1, 2, 3):
        for some in combinations(names, size):
            part = total_of([answers[name] for name in some], ring)["Y"]
            assert np.abs(part - 3.0 * size).min() > 1e-6  # not one of 200 numbers is right


def chi_square(data):
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    expected = counts.sum() / 256
    return float(((counts - expected) ** 2 / expected).sum())


def test_a_masked_answer_is_random_and_so_is_its_difference_to_another():
    ring = {"Y": ring_for(NARROW, 100.0)}
    answers = []
    for rows in (np.zeros(1 << 15), np.full(1 << 15, 7.5)):
        shared = secrets_of(["a", "b"])
        answers.append(masked("a", shared["a"], b"q", {"Y": ring["Y"].encode(rows)}, ring)["Y"])
    limit = chi2.ppf(1 - 1e-9, 255)
    for data in (*answers, answers[0] - answers[1]):
        assert chi_square(data.tobytes()) < limit
    plain = ring["Y"].encode(np.random.default_rng(0).normal(size=1 << 15))
    assert chi_square(plain.tobytes()) > limit  # the test can tell


def test_the_same_question_has_the_same_masks_and_another_has_others():
    ring = {"Y": Ring(NARROW, 0)}
    shared = secrets_of(["a", "b"])["a"]
    first, again, other = (
        masked("a", shared, q, {"Y": np.zeros(100, np.uint64)}, ring)["Y"]
        for q in (b"1", b"1", b"2")
    )
    assert (first == again).all()
    assert not (first == other).any()


def test_many_sites_stay_connected_without_half_of_them():
    names = [f"site-{i:03}" for i in range(400)]
    graph = {name: neighbors(name, names, b"seed") for name in names}
    assert all(name in graph[other] for name in names for other in graph[name])
    assert max(len(found) for found in graph.values()) <= 2 * masks.N_RINGS
    rng = np.random.default_rng(0)
    for _ in range(20):
        honest = set(rng.choice(names, 200, replace=False).tolist())
        reached, todo = set(), [min(honest)]
        while todo:
            name = todo.pop()
            if name not in reached:
                reached.add(name)
                todo += [other for other in graph[name] if other in honest]
        assert reached == honest


SIZES = st.floats(0, allow_infinity=False, allow_subnormal=True)


def told(sizes, seed=0):
    """Return the total that sites of these sizes tell, as a whole number."""
    rng, total = np.random.default_rng(seed), np.zeros(N_WORDS, np.uint64)
    for size in sizes:
        words = rng.integers(0, 2**64, N_RANDOM_WORDS, np.uint64, endpoint=False)
        add_elements(total, hidden_size(size, words), SIZE_RING.bits)
    return total, int.from_bytes(total.tobytes(), "little")


@given(sizes=st.lists(SIZES, min_size=1, max_size=30))
@example(sizes=[1.7976931348623157e308] * 30)
@example(sizes=[5e-324, 1.7976931348623157e308])
@example(sizes=[0.0, 0.0])
def test_told_sizes_bound_the_sum_of_all_sizes(sizes):
    total, whole = told(sizes)
    due = sum(map(Fraction, sizes))
    assert due <= Fraction(whole) / 2**1074 <= 2 * due
    assert due <= Fraction(2) ** told_exponent(total) <= max(4 * due, Fraction(1, 2**1074))


@given(size=SIZES, other=SIZES)
def test_what_sizes_tell_is_random_to_the_last_bit(size, other):
    """The lowest bits of an exact sum of floats would be those of the smallest one."""
    lowest = {told([size, other], seed)[1] % 256 for seed in range(40)}
    assert len(lowest) > 20 or max(size, other) < 2.0**-1060


def test_the_total_of_sizes_does_not_tell_which_sites_they_have():
    """The same sum of sizes gives totals of nearly the same distribution."""
    even, uneven = (
        [Fraction(told(sizes, seed)[1], 2**1074) for seed in range(2000)]
        for sizes in ([2.0, 2.0, 2.0], [2.5, 2.0, 1.5])
    )
    assert np.mean(list(map(float, even))) == pytest.approx(9, abs=0.1)
    assert np.mean(list(map(float, uneven))) == pytest.approx(9, abs=0.1)
    assert ks_2samp(list(map(float, even)), list(map(float, uneven))).statistic < 0.06
