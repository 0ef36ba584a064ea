"""What noise costs: the accounting of Gaussian releases, and the settings that ask for it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from fedpca import Privacy
from fedpca.errors import InputError
from fedpca.privacy.gaussian import (
    MAX_EPSILON,
    MIN_EPSILON,
    around_point,
    delta_of,
    epsilon_of,
    mu_of,
    noise_variance,
)
from fedpca.protocol.plan import PRIVATE, SECURE, RunPlan

epsilons = st.floats(MIN_EPSILON, 1e3)
deltas = st.floats(-15, -1).map(lambda power: 10**power)
mus = st.floats(-4, 1).map(lambda power: 10**power)


def plan_of(n_sites=5, secure=True, **settings):
    privacy = Privacy(**{"epsilon": 1.0, "delta": 1e-6, "row_bound": 1.0, **settings})
    asked = {PRIVATE: privacy.to_plain()} | ({SECURE: True} if secure else {})
    sites = {f"site-{i}": "" for i in range(n_sites)}
    return privacy, RunPlan("r", "FederatedPCA", {}, sites, privacy=asked)


# accounting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.0235, 0.2367, 1.85])
def test_one_release_costs_what_dp_accounting_says(mu):
    interval = 1e-5 if mu < 0.1 else 1e-4
    oracle = pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval)
    for delta in (1e-3, 1e-6, 1e-10):
        assert epsilon_of(mu, delta) == pytest.approx(oracle.get_epsilon_for_delta(delta), rel=1e-5)
    for epsilon in (mu / 2, mu, 3 * mu):
        assert delta_of(epsilon, mu) == pytest.approx(
            oracle.get_delta_for_epsilon(epsilon), rel=1e-4
        )


@pytest.mark.parametrize("mus", [(0.05, 0.1, 0.2), (0.3,) * 7, (1e-3, 0.5)])
def test_several_releases_cost_what_dp_accounting_says(mus):
    oracle = None
    for mu in mus:
        each = pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-4)
        oracle = each if oracle is None else oracle.compose(each)
    for delta in (1e-4, 1e-8):
        epsilon = epsilon_of(math.hypot(*mus), delta)
        assert epsilon == pytest.approx(oracle.get_epsilon_for_delta(delta), rel=1e-4)


@given(st.floats(0.05, 3.0), st.floats(0.05, 4.0))
def test_delta_is_the_integral_of_what_the_odds_exceed(mu, ratio):
    epsilon = ratio * mu

    def density(x, center):
        return math.exp(-((x - center) ** 2) / 2) / math.sqrt(2 * math.pi)

    def excess(x):
        return max(density(x, mu) - math.exp(epsilon) * density(x, 0.0), 0.0)

    threshold = epsilon / mu + mu / 2
    integral = quad(excess, threshold, threshold + 40, epsabs=0, epsrel=1e-10, limit=200)[0]
    assert delta_of(epsilon, mu) == pytest.approx(integral, rel=1e-6)


@given(epsilons, deltas)
def test_mu_spends_the_promise_and_no_more(epsilon, delta):
    mu = mu_of(epsilon, delta)
    assert delta_of(epsilon, mu) <= delta
    assert delta_of(epsilon, mu * (1 + 1e-6)) > delta * (1 - 1e-6)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-9, abs=1e-14)


@given(mus, deltas, st.floats(1.001, 3.0))
def test_more_noise_costs_less(mu, delta, factor):
    assert epsilon_of(mu * factor, delta) >= epsilon_of(mu, delta)
    assert epsilon_of(mu, delta / factor) >= epsilon_of(mu, delta)
    epsilon = mu * mu / 2 + mu
    assert delta_of(epsilon, mu * factor) > delta_of(epsilon, mu)
    assert delta_of(epsilon * factor, mu) < delta_of(epsilon, mu)


def test_no_noise_promises_nothing_and_no_release_costs_nothing():
    assert mu_of(math.inf, 1e-6) == epsilon_of(math.inf, 1e-6) == math.inf
    assert delta_of(1.0, math.inf) == 1.0
    assert delta_of(0.5, 0.0) == epsilon_of(0.0, 1e-6) == 0.0
    assert noise_variance(2.0**72, math.inf, 3) == 0


def test_extreme_promises_have_a_mu_between_those_around_them():
    assert 0 < mu_of(MIN_EPSILON, 1e-15) < 1e-4
    assert math.sqrt(2 * MAX_EPSILON) * 0.9 < mu_of(MAX_EPSILON, 1e-6) < math.sqrt(2 * MAX_EPSILON)


def test_whole_numbers_differ_from_rounded_normal_ones_by_a_share_of_one_over_their_variance():
    """On these shares the slack of the accounting rests; docs/decisions/0024 adds them up."""
    for deviation in (4.0, 20.0, 100.0):
        x = np.arange(-6 * round(deviation), 6 * round(deviation) + 1)
        whole = np.exp(-(x**2) / (2 * deviation**2))
        whole /= np.exp(-(np.arange(-2000, 2001) ** 2) / (2 * deviation**2)).sum()
        points, weights = np.polynomial.legendre.leggauss(20)
        inside = np.exp(-((x[:, None] + points / 2) ** 2) / (2 * deviation**2)) @ weights / 2
        rounded = inside / math.sqrt(2 * math.pi * deviation**2)
        share = (x**2 / deviation**2 - 1) / (24 * deviation**2)
        np.testing.assert_allclose(
            rounded / whole - 1, share, rtol=0, atol=10 * np.abs(share).max() ** 2
        )


# noise ----------------------------------------------------------------------------------------------


@given(st.floats(1.0, 2.0**72), st.floats(1e-10, 1e4), st.integers(1, 1000), st.integers(0, 1200))
def test_each_sites_noise_suffices_when_silent_sites_add_none(sensitivity2, mu2, n, silent):
    privacy, plan = plan_of(n_sites=n, n_silent=silent)
    n_noisy = privacy.n_noisy(plan)
    assert n_noisy == max(1, n - silent)
    variance = noise_variance(sensitivity2, mu2, n_noisy)
    assert isinstance(variance, int)
    n_left = max(1, n - silent)  # at least the site whose row it is adds its part
    assert sensitivity2 / (n_left * variance) <= mu2 * (1 + 1e-12)
    if variance > 1:
        assert sensitivity2 / (n_noisy * (variance - 1)) >= mu2 * (1 - 1e-12)


def test_without_secure_sums_each_site_adds_all_of_the_noise():
    privacy, plan = plan_of(n_sites=9, secure=False)
    assert privacy.n_noisy(plan) == 1


# settings -------------------------------------------------------------------------------------------

GIVEN = {"epsilon": 1.0, "delta": 1e-6, "row_bound": 8.0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": 0.0}, "epsilon=0.0 must be a number from 0.0001 to 1e\\+06"),
        ({"epsilon": -1.0}, "epsilon=-1.0"),
        ({"epsilon": math.nan}, "epsilon=nan"),
        ({"epsilon": 2e6}, "epsilon=2000000.0"),
        ({"epsilon": "1"}, "epsilon='1'"),
        ({"epsilon": True}, "epsilon=True"),
        ({"delta": 0.0}, "delta=0.0 must be a number from 1e-15 to 0.1"),
        ({"delta": 0.5}, "delta=0.5"),
        ({"delta": math.nan}, "delta=nan"),
        ({"row_bound": 0.0}, "row_bound=0.0 must be"),
        ({"row_bound": math.inf}, "row_bound=inf"),
        ({"row_bound": None}, "row_bound=None"),
        ({"n_silent": -1}, "n_silent=-1 must be a whole number from 0"),
        ({"n_silent": 1.5}, "n_silent=1.5"),
        ({"n_silent": True}, "n_silent=True"),
        ({"n_products": 0}, "n_products=0 must be a whole number from 1 to 100"),
        ({"n_products": 101}, "n_products=101"),
        ({"around": math.inf}, "around must be"),
        ({"around": [[1.0, 2.0]]}, "around must be"),
        ({"around": [1.0, math.nan]}, "around must be"),
        ({"around": "here"}, "around must be"),
        ({"around": {"a": 1}}, "around must be"),
        ({"around": [1, [2, 3]]}, "around must be"),
    ],
    ids=str,
)
def test_settings_that_promise_nothing_are_refused_by_name(change, words):
    with pytest.raises(InputError, match=words):
        Privacy(**{**GIVEN, **change})


def test_settings_survive_a_plan():
    for around in (0.0, 3, np.array([1.0, 2.0]), [1, 2, 3]):
        numbers = {"epsilon": np.float32(0.5), "delta": np.float64(1e-6), "row_bound": 8}
        privacy = Privacy(**numbers, around=around, n_silent=np.int64(2))
        again = Privacy.from_plain(json.loads(json.dumps(privacy.to_plain())))
        assert again == privacy
        assert asdict(again) == asdict(privacy)
        assert hash(again) == hash(privacy)


def test_settings_that_cannot_be_read_are_refused():
    for plain in ({}, {**GIVEN, "noise": 0}, {"epsilon": 1.0}):
        with pytest.raises(InputError, match="the privacy settings cannot be read"):
            Privacy.from_plain(plain)


def test_a_guess_must_have_a_number_for_each_feature():
    privacy = Privacy(**GIVEN, around=(1.0, 2.0))
    assert around_point(privacy, 2).tolist() == [1.0, 2.0]
    assert around_point(Privacy(**GIVEN, around=3), 2).tolist() == [3.0, 3.0]
    with pytest.raises(InputError, match="around has 2 numbers for 3 features"):
        around_point(privacy, 3)
