"""Masks: one answer is random, all answers give the sum, and nothing in between gives anything."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import chi2

from fedpca.privacy import masks
from fedpca.privacy.bounds import N_WORDS, bound_from_bins, masks_cancel, size_bins
from fedpca.privacy.masks import (
    masked,
    neighbors,
    new_private_key,
    pair_secrets,
    public_key_of,
)
from fedpca.privacy.rings import NARROW, WIDE, Ring, add


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
            add(total[field], array, rings[field].bits)
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
        "Y": Ring.for_bound(NARROW, 8.0 * n_sites),
        "total": Ring.for_bound(WIDE, 1e8 * n_sites),
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
    ring = {"Y": Ring.for_bound(NARROW, 100.0)}
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
    ring = {"Y": Ring.for_bound(NARROW, 100.0)}
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


@pytest.mark.parametrize(
    "sizes", [[1e-12, 3.0, 1e12], [0.0, 1e-9], [5.0], [1e100, 1.0], [700.0] * 20, [3.0] * 20]
)
def test_bins_show_the_largest_size_and_nothing_else(sizes):
    rng, total = np.random.default_rng(0), np.zeros(N_WORDS, np.uint64)
    words = [rng.integers(0, 2**64, N_WORDS, np.uint64, endpoint=False) for _ in sizes]
    for size, own in zip(sizes, words, strict=True):
        total += size_bins(np.array([size, -size / 2]), own)
    assert masks_cancel(total)
    assert not masks_cancel(total + words[0])
    bound = bound_from_bins(total)
    assert max(sizes) < bound <= 512 * max(sizes)
    assert (total[: np.flatnonzero(total)[-1] + 1] != 0).all()
    assert bound_from_bins(size_bins(np.zeros(3), words[0])) == 0
