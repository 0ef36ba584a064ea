"""What a run says about its components is true, also where rounding hides some of them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import PolynomialFeatures

from fedpca import FederatedPCA, Federation, load
from fedpca.linalg.dense import angle_bounds, sine_of_angle
from fedpca.solvers import SOLVERS, Lanczos
from fedpca.solvers.common_features import common_features
from fedpca.solvers.contract import Problem, moments_and_rank
from fedpca.solvers.exact.faps import distance_left
from fedpca.solvers.exact.subspace_iteration import iterate
from fedpca.solvers.standardize import standardize_sites

DIRECT = ("covariance", "tsqr")
ITERATIVE = (
    "lanczos",
    "subspace-iteration",
    "local-power",
)  # FAPS takes thousands of rounds on such tables


def other_unit(deviation):
    """Five strong factors, and one column whose unit makes it larger than all others."""
    rng = np.random.default_rng(0)
    X = 3 * rng.standard_normal((800, 5)) @ rng.standard_normal((5, 500))
    X += rng.standard_normal((800, 500))
    X[:, 0] = rng.standard_normal(800) * deviation
    return X, 6


def scaled_column(factor):
    """The same, but the large column is one of those that the factors explain."""
    rng = np.random.default_rng(123)
    X = 5 * rng.standard_normal((800, 5)) @ rng.standard_normal((5, 500))
    X += rng.standard_normal((800, 500))
    X[:, 0] *= factor
    return X, 6


def far_sites():
    rng = np.random.default_rng(1)
    rows = [rng.standard_normal((100, 20)) * np.linspace(2, 1, 20) for _ in range(3)]
    return np.vstack([rows[0], rows[1] + 1e5, rows[2] - 1e5]), 4


def geometric(smallest, k):
    """Singular values from 0.8 to the smallest within k components, and smaller ones behind."""
    rng = np.random.default_rng(2)
    U = np.linalg.qr(rng.standard_normal((400, 30)))[0]
    V = np.linalg.qr(rng.standard_normal((30, 30)))[0]
    within = np.geomspace(0.8, smallest, k)
    behind = np.geomspace(smallest, smallest / 100, 31 - k)[1:]
    return (U - U.mean(axis=0)) * np.r_[within, behind] @ V.T, k


def squared_cancer():
    X = load_breast_cancer().data
    return PolynomialFeatures(2, include_bias=False).fit_transform(X), 10


TABLES = {
    "a column in units of 1e5": other_unit(1e5),
    "a column in units of 1e6": other_unit(1e6),
    "a column times 1e6": scaled_column(1e6),
    "sites 1e5 apart": far_sites(),
    "singular values to 1e-5": geometric(1e-5, 6),
    "singular values to 1e-12": geometric(1e-12, 12),
    "cancer of degree 2": squared_cancer(),
}


def exact_components(X, k):
    return np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:k].T


def fit(solver, X, k, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = FederatedPCA(k, solver=solver, random_state=0, max_rounds=2000, **more)
        return model.fit(np.array_split(X, 4))


@pytest.mark.parametrize("solver", [*DIRECT, *ITERATIVE, Lanczos(stop="noise")], ids=str)
@pytest.mark.parametrize("name", TABLES)
def test_the_bound_holds_and_no_wrong_component_is_called_certain(name, solver):
    X, k = TABLES[name]
    model = fit(solver, X, k)
    truth, run = exact_components(X, k), model.run_
    angle = sine_of_angle(truth, model.components_.T)
    assert angle <= 1.1 * run.angle_bound
    assert (run.stop_reason in ("uncertain", "within-noise")) == (run.n_certain < k)
    if run.n_certain == k:
        assert run.stop_reason in ("exact", "converged")
        assert angle < 1e-6
    certain = model.components_[: run.n_certain].T
    assert sine_of_angle(exact_components(X, run.n_certain), certain) < 1e-6


@pytest.mark.parametrize("name", sorted(set(TABLES) - {"singular values to 1e-12"}))
def test_factors_find_what_sums_of_squares_lose(name):
    X, k = TABLES[name]
    model = fit("tsqr", X, k)
    assert model.run_.stop_reason == "exact"
    assert sine_of_angle(exact_components(X, k), model.components_.T) < 1e-9


def genotypes(n, d, n_groups, drift):
    """Copies of an allele, 0 to 2, whose frequencies differ between groups."""
    rng = np.random.default_rng(5)
    common = rng.uniform(0.05, 0.5, d)
    spread = np.sqrt(drift * common * (1 - common))
    frequencies = np.clip(common + spread * rng.standard_normal((n_groups, d)), 0.01, 0.99)
    return rng.binomial(2, frequencies[rng.integers(n_groups, size=n)]).astype(np.int8)


@pytest.mark.parametrize("solver", ["subspace-iteration", "local-power"])
def test_the_bound_is_not_a_little_too_small(solver):
    for seed in (9, 32, 33, 36, 44):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(40, 8)) * rng.uniform(0.3, 2, 8)
        model = FederatedPCA(3, solver=solver, random_state=seed).fit([X[:15], X[15:]])
        angle = sine_of_angle(exact_components(X, 3), model.components_.T)
        assert angle <= model.run_.angle_bound


@pytest.mark.parametrize("solver", [*DIRECT, *ITERATIVE, "faps"])
def test_the_bound_knows_that_a_mean_is_rounded(solver):
    X = np.random.default_rng(0).normal(size=(60, 6)) * [3, 2, 1.5, 1, 1, 1]
    for offset in (5e11, 1e14):
        rows = X + offset
        centered = rows - offset  # exact; what is left of the mean is small
        tol = 1e-8 if solver == "faps" else 1e-10
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = FederatedPCA(2, solver=solver, random_state=0, tol=tol)
            model.fit([rows[:25], rows[25:]])
        angle = sine_of_angle(exact_components(centered, 2), model.components_.T)
        assert angle <= model.run_.angle_bound
        assert model.run_.n_certain == (2 if offset == 5e11 else 0)


@pytest.mark.parametrize("solver", ["covariance", "lanczos"])
@pytest.mark.parametrize("offset", [3, 14])
def test_the_bound_knows_that_a_mean_is_subtracted_from_products(solver, offset):
    for seed in range(3):
        X = np.random.default_rng(seed).standard_normal((2000, 5)) * [2, 1, 1, 1, 1]
        rows = X + offset * X.std(axis=0)
        model = FederatedPCA(1, solver=solver, random_state=0).fit(np.array_split(rows, 4))
        angle = sine_of_angle(exact_components(rows, 1), model.components_.T)
        assert angle <= model.run_.angle_bound < 1e-11
        assert model.run_.n_certain == 1


@pytest.mark.parametrize("solver", ["covariance", "lanczos", "tsqr"])
def test_one_of_two_equal_components_is_not_certain(solver):
    rows = np.diag([2.0, 2.0, 1.0])
    with pytest.warns(ConvergenceWarning, match="only 0 of the 1 components are certain"):
        model = FederatedPCA(1, solver=solver, random_state=0).fit([rows, -rows])
    assert model.run_.angle_bound == 1.0
    assert FederatedPCA(2, solver=solver, random_state=0).fit([rows, -rows]).run_.n_certain == 2


def test_faps_is_not_certain_of_components_that_its_penalty_hides():
    X, k = geometric(1e-6, 2)
    model = fit("faps", X, k)
    assert sine_of_angle(exact_components(X, k), model.components_.T) > 0.1
    assert (model.run_.stop_reason, model.run_.n_certain) == ("uncertain", 0)


def test_components_within_noise_take_no_rounds_and_are_not_called_certain():
    X, k, n_groups = genotypes(240, 2000, 4, 0.1), 10, 4
    strict, loose = (fit(Lanczos(stop=stop), X, k) for stop in ("angle", "noise"))
    assert (strict.run_.stop_reason, strict.run_.n_certain) == ("converged", k)
    assert (loose.run_.stop_reason, loose.run_.n_certain) == ("within-noise", n_groups - 1)
    assert loose.run_.solver_rounds < strict.run_.solver_rounds / 2
    above = loose.components_[: n_groups - 1].T
    assert sine_of_angle(exact_components(X, n_groups - 1), above) < 1e-7
    assert sine_of_angle(exact_components(X, k), loose.components_.T) <= loose.run_.angle_bound
    # the others explain what they would explain, up to the error that another sample would make
    error = np.sqrt(2 / len(X)) * strict.explained_variance_
    assert (abs(loose.explained_variance_ - strict.explained_variance_) < error).all()


def test_components_above_the_noise_are_all_found_to_the_tolerance():
    rng = np.random.default_rng(6)
    X = rng.standard_normal((400, 60)) * np.r_[9, 7, 5, 4, np.linspace(1.2, 1, 56)]
    strict, loose = (fit(Lanczos(stop=stop), X, 4) for stop in ("angle", "noise"))
    assert loose.run_.stop_reason == "converged"
    assert loose.components_.tobytes() == strict.components_.tobytes()


@pytest.mark.slow
def test_faps_does_not_converge_where_small_components_are_missing():
    X, k = geometric(1e-5, 6)
    model = fit("faps", X, k, tol=1e-8)
    angle = sine_of_angle(exact_components(X, k), model.components_.T)
    assert model.run_.stop_reason == "max_rounds" or angle < 1e-6
    assert angle <= model.run_.angle_bound


@given(seed=st.integers(0, 2**31), share=st.floats(0.1, 0.95), length=st.integers(4, 30))
def test_steps_that_shrink_steadily_add_up_to_no_more_than_is_said(seed, share, length):
    rng = np.random.default_rng(seed)
    all_steps = 0.1 * np.cumprod(share * rng.uniform(0.9, 1.0, 2000))
    left = all_steps[length - 1 :].sum()
    assert distance_left(all_steps[:length].tolist()) >= min(1.0, left) - 1e-12  # at rest


def test_steps_too_small_to_measure_still_add_up_as_slowly_as_those_before():
    steps = 0.1 * 0.87 ** np.arange(203)
    assert steps[-4] < 1e-13
    assert distance_left(steps.tolist()) >= steps[-1] / (1 - 0.87)


def test_steps_that_do_not_shrink_say_nothing():
    assert distance_left([0.1]) == 1.0
    assert distance_left([0.1, 0.1, 0.1, 0.1]) == 1.0
    assert distance_left([1e-3, 1e-14]) == 2e-13
    assert distance_left([1e-3, 1e-14], least=0.99) == pytest.approx(2e-11)


@given(seed=st.integers(0, 2**31), k=st.integers(1, 5))
def test_the_bound_of_davis_and_kahan_holds_for_any_subspace(seed, k):
    rng = np.random.default_rng(seed)
    d = 8
    values = np.sort(rng.uniform(0, 1, d))[::-1]
    M = np.diag(values)
    near = np.linalg.qr(np.eye(d, k) + 10 ** rng.uniform(-8, -2) * rng.standard_normal((d, k)))[0]
    theta, C = np.linalg.eigh(near.T @ M @ near)
    V, theta = near @ C[:, ::-1], theta[::-1]
    residuals = np.linalg.norm(M @ V - V * theta, axis=0)
    bounds = angle_bounds(theta, residuals, k, others=values[k])
    assert sine_of_angle(np.eye(d, k), V) <= bounds[-1] * (1 + 1e-6) + 1e-15


def test_all_directions_are_certain_and_so_are_those_of_rows_without_variance():
    X = np.random.default_rng(3).standard_normal((40, 5)) * [1, 1, 1, 1e-12, 0]
    for solver in DIRECT:
        run = FederatedPCA(5, solver=solver).fit([X]).run_
        assert (run.n_certain, run.angle_bound, run.stop_reason) == (5, 0.0, "exact")
        run = FederatedPCA(2, solver=solver).fit([np.ones((5, 4))]).run_
        assert (run.n_certain, run.stop_reason) == (2, "exact")


def test_the_warning_says_how_many_are_certain_and_the_way_out(tmp_path):
    X, k = geometric(1e-12, 12)
    with pytest.warns(ConvergenceWarning, match=r"only 4 of the 12 .* solver='tsqr'"):
        model = FederatedPCA(k, solver="covariance").fit([X])
    model.save(tmp_path / "m.fedpca")
    kept = load(tmp_path / "m.fedpca").run_
    assert (kept.n_certain, kept.angle_bound) == (4, model.run_.angle_bound)
    with pytest.warns(ConvergenceWarning, match=r"only 8 of the 12 .*; use scale=True or fewer"):
        FederatedPCA(k, solver="tsqr").fit([X])
    FederatedPCA(None, solver="covariance").fit([X])  # asks for those without variance too


@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_every_solver_bounds_its_angle_on_an_ordinary_table(solver):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((300, 12)) * np.r_[5, 4, 3, np.linspace(1.5, 1, 9)]
    model = FederatedPCA(3, solver=solver, random_state=0).fit(np.array_split(X, 3))
    angle = sine_of_angle(exact_components(X, 3), model.components_.T)
    assert angle <= model.run_.angle_bound < (1.0 if solver in ("merge", "average") else 1e-7)


def test_a_power_iteration_that_has_missed_a_direction_finds_it():
    """A start without the leading direction is an eigenvector as good as any other to a residual."""
    deviations = np.sqrt([9.0, 4.0, 1.0, 0.5])
    X = np.vstack([np.diag(deviations), -np.diag(deviations)])

    def program(fed, start):
        problem = Problem(common_features(fed), 1)
        moments, rank = moments_and_rank(fed, problem)
        energy = standardize_sites(fed, moments, 1)
        return iterate(fed, moments, rank, np.eye(4)[:, 1:2], energy, problem)

    solution = Federation.local([X]).run(program, identity={}, seed=0)
    assert sine_of_angle(np.eye(4)[:, :1], solution.vectors) < 1e-8
    assert solution.stop_reason == "converged"
