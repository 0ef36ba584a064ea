"""T2 and Q have the distributions that their limits say, at sites of any number and size."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats

from fedpca import FederatedPCA, load
from fedpca.errors import FileError, InputError
from fedpca.linalg.residual import of_even_noise, without_bias
from fedpca.models.control_limits import quantile_of_squares, t2_limit
from fedpca.storage.tensor_file import read_arrays, write_arrays
from support import gapped_rows


def normal_rows(rng, n, d, k, falling):
    """Normally distributed rows: k components far above noise that is even or falls."""
    noise = np.geomspace(2, 0.05, d - k) if falling else np.ones(d - k)
    turn = np.linalg.qr(np.random.default_rng(d).standard_normal((d, d)))[0]
    spread = np.sqrt(np.r_[np.linspace(30, 10, k), noise])
    return rng.standard_normal((n, d)) * spread @ turn.T + 3


@pytest.mark.parametrize(
    ("n", "d", "k", "falling", "center"),
    [
        (100, 5, 2, False, True),
        (100, 6, 2, True, False),
        (200, 12, 3, True, True),
        (200, 50, 2, False, True),
        (400, 30, 5, True, True),
    ],
)
def test_limits_have_the_nominal_rate_of_false_alarms(n, d, k, falling, center):
    rng, alpha, rates = np.random.default_rng(0), 0.05, []
    for _ in range(5000 // n):
        X = normal_rows(rng, n, d, k, falling) - (0 if center else 3)
        model = FederatedPCA(k, solver="covariance", center=center).fit(np.array_split(X, 3))
        others = normal_rows(rng, 200, d, k, falling) - (0 if center else 3)
        limits = [model.control_limits(alpha, new_rows=new) for new in (True, False)]
        assert {each.basis for each in limits} == {"residual spectrum"}
        flags = [
            model.flag_rows(rows, each) for rows, each in zip((others, X), limits, strict=True)
        ]
        rates.append([(f.beyond_t2.mean(), f.beyond_q.mean()) for f in flags])
    # alarms of one fit go together, so the error is that of means over fits
    error = np.std(rates, axis=0) / np.sqrt(len(rates))
    assert (np.abs(np.mean(rates, axis=0) - alpha) < 4 * error + 0.1 * alpha).all()


def test_limits_of_new_rows_are_wider_than_those_of_fitted_rows():
    model = FederatedPCA(2).fit(normal_rows(np.random.default_rng(1), 30, 6, 2, False))
    new, old = (model.control_limits(new_rows=each) for each in (True, False))
    assert new.t2 > 1.1 * old.t2
    assert new.q > 1.1 * old.q
    stricter = model.control_limits(0.001)
    assert stricter.t2 > new.t2
    assert stricter.q > new.q


def test_limits_of_t2_are_the_published_quantiles():
    # Tracy, Young and Mason give the limit of fitted rows by a quantile of F
    m, p = 14, 3
    ratio = p / (m - p - 1) * stats.f.ppf(0.99, p, m - p - 1)
    published = (m - 1) ** 2 / m * ratio / (1 + ratio)
    assert t2_limit(m, p, 0.01, is_for_new_rows=False) == pytest.approx(published)
    published = p * (m + 1) * (m - 1) / (m * (m - p)) * stats.f.ppf(0.99, p, m - p)
    assert t2_limit(m, p, 0.01) == pytest.approx(published)
    assert t2_limit(10**9, 3, 0.05) == pytest.approx(7.8147, abs=1e-3)  # that of chi2
    assert t2_limit(10**9, 3, 0.05, is_for_new_rows=False) == pytest.approx(7.8147, abs=1e-3)
    assert t2_limit(30, 0, 0.05) == 0


@pytest.mark.parametrize(
    "variances", [np.ones(15), 0.7 ** np.arange(12), np.r_[5, np.full(10, 0.2)]], ids=len
)
def test_the_quantile_of_squares_is_that_of_drawn_ones(variances):
    draws = np.random.default_rng(0).standard_normal((200_000, len(variances))) ** 2 @ variances
    traces = [(variances**i).sum() for i in (1, 2, 3)]
    for alpha in (0.05, 0.01):
        share = (draws > quantile_of_squares(traces, alpha)).mean()
        assert share == pytest.approx(alpha, rel=0.08)


def test_the_formula_of_jackson_and_mudholkar():
    # with theta_1 = 0.0862, theta_2 = 0.0074, theta_3 = 0.0006 in one direction, h0 = 1/3
    traces = of_even_noise(0.0862, 1)
    z, h = 1.6448536, 1 / 3
    by_hand = 0.0862 * (1 + z * np.sqrt(2) * h + h * (h - 1)) ** 3
    assert quantile_of_squares(traces, 0.05, "jackson-mudholkar") == pytest.approx(by_hand)
    even = of_even_noise(30.0, 30)
    for alpha in (0.05, 0.01):
        ours = quantile_of_squares(even, alpha)
        assert quantile_of_squares(even, alpha, "jackson-mudholkar") == pytest.approx(
            ours, rel=0.01
        )
    # the power would be negative
    one_large = [
        1 + 100 * 0.05,
        1 + 100 * 0.05**2,
        1 + 100 * 0.05**3,
    ]
    assert quantile_of_squares(one_large, 0.05, "jackson-mudholkar") == quantile_of_squares(
        one_large, 0.05
    )


def test_traces_are_estimated_without_bias():
    rng, spread = np.random.default_rng(0), np.sqrt(np.geomspace(3, 0.3, 20))
    found = []
    for _ in range(3000):
        rows = rng.standard_normal((40, 20)) * spread
        gram = rows @ rows.T
        traces = [np.trace(np.linalg.matrix_power(gram, i)) for i in (1, 2, 3)]
        found.append(without_bias(np.array(traces), 40, 20))
    exact = [(spread ** (2 * i)).sum() for i in (1, 2, 3)]
    np.testing.assert_allclose(np.mean(found, axis=0), exact, rtol=0.02)


def test_planted_rows_are_flagged_for_what_is_wrong_with_them():
    rng = np.random.default_rng(0)
    X = normal_rows(rng, 300, 8, 2, False)
    model = FederatedPCA(2).fit(np.array_split(X, 3))
    limits = model.control_limits(1e-4)
    far, odd = X.mean(axis=0) + 40 * model.components_[0], X[0].copy()
    odd += 9 * np.linalg.svd(model.components_)[2][-1]
    flags = model.flag_rows(np.array([X.mean(axis=0), far, odd]), limits)
    assert flags.beyond_t2.tolist() == [False, True, False]
    assert flags.beyond_q.tolist() == [False, False, True]
    assert flags.flagged.tolist() == [False, True, True]
    assert flags.limits is limits


@pytest.mark.parametrize("scale", [False, True])
def test_t2_and_q_are_what_they_are_defined_to_be(scale):
    X = gapped_rows(np.random.default_rng(0), 60, 5, 2, offset=3.0)
    X[:, 4] = np.where(X[:, 4] > 3.0, X[:, 4], 0.0)
    model = FederatedPCA(2, scale=scale).fit(X)
    flags = model.flag_rows(X)
    scores = model.transform(X)
    np.testing.assert_allclose(flags.t2, (scores**2 / model.explained_variance_).sum(axis=1))
    rest = (X - model.inverse_transform(scores)) / model.scale_
    np.testing.assert_allclose(flags.q, (rest**2).sum(axis=1))
    sparse = model.flag_rows(sp.csr_matrix(X))
    np.testing.assert_allclose(sparse.q, flags.q, atol=1e-9)
    np.testing.assert_allclose(sparse.t2, flags.t2)


def test_without_the_residual_spectrum_noise_is_taken_to_be_even(tmp_path):
    X = normal_rows(np.random.default_rng(2), 200, 10, 2, False)
    known, unknown = (FederatedPCA(2, solver=s).fit(X) for s in ("covariance", "lanczos"))
    assert unknown.residual_traces_ is None
    limits = unknown.control_limits()
    assert limits.basis == "even noise"
    assert limits.q == pytest.approx(known.control_limits().q, rel=0.05)
    for model in (known, unknown):
        model.save(tmp_path / "m.fedpca")
        assert load(tmp_path / "m.fedpca").control_limits() == model.control_limits()


def test_damaged_traces_in_a_file_are_refused(tmp_path):
    model = FederatedPCA(2).fit(gapped_rows(np.random.default_rng(0), 30, 4, 2))
    for wrong in ([1.0], [-1.0, 1.0, 1.0], "many", [1.0, float("inf"), 1.0]):
        model.save(tmp_path / "m.fedpca")
        arrays, header = read_arrays(tmp_path / "m.fedpca", "model")
        try:
            write_arrays(tmp_path / "m.fedpca", arrays, {**header, "residual_traces": wrong})
        except ValueError:
            continue  # no file can hold it
        with pytest.raises(FileError, match="invalid header"):
            load(tmp_path / "m.fedpca")


def test_a_model_of_all_variance_has_no_residual():
    X = gapped_rows(np.random.default_rng(0), 40, 3, 2)
    model = FederatedPCA().fit(X)
    assert model.control_limits().q == 0
    assert model.flag_rows(X).q.max() < 1e-20
    constant = FederatedPCA(1).fit(np.ones((20, 3)))
    with pytest.raises(InputError, match="at least 3 fitted rows, not 0"):
        constant.control_limits()


def test_bad_settings_are_refused():
    model = FederatedPCA(2).fit(gapped_rows(np.random.default_rng(0), 30, 4, 2))
    with pytest.raises(InputError, match="alpha=1 must be between 0 and 1"):
        model.control_limits(1)
    with pytest.raises(InputError, match="method='box' must be one of 'moments'"):
        model.control_limits(method="box")
    few = FederatedPCA(3).fit(gapped_rows(np.random.default_rng(0), 5, 4, 2))
    with pytest.raises(InputError, match="at least 6 fitted rows, not 5"):
        few.control_limits()
    with pytest.raises(ValueError, match="NaN"):
        model.flag_rows([[np.nan, 1.0, 1.0, 1.0]])
