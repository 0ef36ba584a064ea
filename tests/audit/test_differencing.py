"""Exact totals tell whether one person is there, and private ones only as much as was promised."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpca.audit.differencing import guess_person
from fedpca.errors import InputError
from support import repeat_noise

BOUND, N_TRIALS = 6.0, 150


@pytest.fixture(scope="module")
def found():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((60, 4))
    rows[-1] = [5.0, -3.0, 1.0, 0.5]
    with pytest.MonkeyPatch.context() as patch:
        repeat_noise(patch)
        return {(g.attack, g.epsilon): g for g in guess_person(rows, BOUND, n_trials=N_TRIALS)}


@pytest.mark.slow
def test_without_noise_every_guess_is_right(found):
    for attack in ("flag", "added"):
        assert found[attack, math.inf].right == found[attack, math.inf].most == 1.0


def test_noise_keeps_guesses_below_what_the_promise_allows(found):
    for (attack, epsilon), guesses in found.items():
        if not math.isinf(epsilon):
            deviation = math.sqrt(0.25 / N_TRIALS)
            assert guesses.right <= guesses.most + 3 * deviation, (attack, epsilon)
    assert found["added", 0.1].most < 0.52 < found["added", 1.0].most < 0.56


def test_a_weak_promise_still_lets_a_person_be_found(found):
    """So that the attack is one: an unusual person stands out at epsilon 10."""
    assert found["added", 10.0].right > 0.65


def test_rows_without_others_are_refused():
    with pytest.raises(InputError, match="at least two rows"):
        guess_person(np.ones((1, 3)), 1.0)
