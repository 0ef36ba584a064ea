"""What a private fit will keep is known before any budget is spent."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from fedpca import FederatedPCA, Federation, Privacy
from fedpca.errors import InputError
from fedpca.solvers.private import utility
from fedpca.solvers.private.utility import expected_share
from support import repeat_noise

TOLERANCE = 0.03  # of the share, on average over a few fits
SPECTRUM = np.concatenate([[9.0, 6.0, 4.0], np.linspace(1.0, 0.1, 37)])


def share_of_fits(privacy, variances, n, k, n_sites, secure, center=True, n_fits=11):
    """The mean share of real fits, of rows that have these variances exactly."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, len(variances)))
    X = np.linalg.qr(X - X.mean(axis=0))[0] * np.sqrt(n * variances)
    fed = Federation.local(np.array_split(X, n_sites), secure=secure)
    shares = []
    for _ in range(n_fits):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            V = FederatedPCA(k, privacy=privacy, center=center).fit(fed).components_
        shares.append((V**2 @ variances).sum() / variances[:k].sum())
    return np.mean(shares)


@pytest.mark.parametrize(
    ("n", "epsilon", "bound", "n_sites", "secure", "center"),
    [
        (3000, 1.0, 9.0, 4, True, True),
        (3000, 0.3, 9.0, 4, True, True),
        (3000, 1.0, 9.0, 4, False, True),
        (3000, 1.0, 4.0, 4, True, True),  # shorter than most rows
        (2000, 0.5, 9.0, 2, True, False),
        (20_000, 0.1, 9.0, 4, True, True),
    ],
)
def test_the_expected_share_is_that_of_real_fits(
    n, epsilon, bound, n_sites, secure, center, monkeypatch
):
    repeat_noise(monkeypatch)
    privacy = Privacy(epsilon=epsilon, delta=1e-6, row_bound=bound)
    expected = expected_share(privacy, SPECTRUM, n, 3, n_sites, secure=secure, center=center)
    got = share_of_fits(privacy, SPECTRUM, n, 3, n_sites, secure, center)
    assert got == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_a_smaller_scale_gives_the_same_share(epsilon, monkeypatch):
    variances = np.concatenate([[9.0, 6.0, 4.0], np.full(397, 0.02)])
    privacy = Privacy(epsilon=epsilon, delta=1e-6, row_bound=8.0)
    whole = expected_share(privacy, variances, 10_000, 3, 5)
    monkeypatch.setattr(utility, "MAX_SIDE", 200)
    assert expected_share(privacy, variances, 10_000, 3, 5) == pytest.approx(whole, abs=TOLERANCE)


def test_more_rows_and_a_larger_epsilon_keep_more():
    shares = [
        expected_share(Privacy(epsilon=e, delta=1e-6, row_bound=9.0), SPECTRUM, n, 3, 4)
        for n, e in ((500, 0.1), (2000, 0.3), (8000, 1.0), (8000, 10.0))
    ]
    assert shares == sorted(shares)
    assert shares[0] < 0.5 < 0.999 < shares[-1] <= 1.0 + 1e-12
    assert expected_share(Privacy(epsilon=1, delta=1e-6, row_bound=9), np.zeros(4), 10, 2, 1) == 1.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"variances": [1.0, -1.0]}, "variances must be"),
        ({"variances": []}, "variances must be"),
        ({"variances": [[1.0]]}, "variances must be"),
        ({"n_components": 3}, "n_components=3 must be a whole number from 1 to 2"),
        ({"n_components": 0.5}, "n_components=0.5"),
        ({"n_sites": 0}, "n_sites=0"),
        ({"n_rows": 0}, "n_rows=0"),
    ],
    ids=str,
)
def test_impossible_plans_are_refused_by_name(change, words):
    given = {"variances": [2.0, 1.0], "n_rows": 100, "n_components": 1, "n_sites": 2, **change}
    with pytest.raises(InputError, match=words):
        expected_share(Privacy(epsilon=1, delta=1e-6, row_bound=1), **given)
