"""Round counts, restarts and stop reasons of the solvers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

from fedpca import FederatedPCA, Federation
from fedpca.errors import InputError
from fedpca.linalg.dense import sine_of_angle
from fedpca.solvers import Lanczos, Problem
from fedpca.solvers.catalogue import cheapest_exact
from fedpca.solvers.common_features import common_features
from fedpca.solvers.costs import expected_rounds, payload
from fedpca.solvers.exact.covariance import covariance_triangle

SPECTRA = {  # of the singular values, d = 1000; and the most rounds to a scaled residual of 2e-6
    "xi=1.01": (1.01 ** -np.arange(1000.0), 13),
    "xi=1+10^-2.5": ((1 + 10**-2.5) ** -np.arange(1000.0), 21),
    "arithmetic": (np.linspace(1, 0.01, 1000), 33),
}


def rows_with(singular_values, seed):
    """Square rows, whose Gram matrix has the spectrum and random eigenvectors."""
    rng = np.random.default_rng(seed)
    d = len(singular_values)
    U, V = (np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(2))
    return (U * singular_values) @ V.T


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECTRA)
def test_lanczos_takes_few_rounds_on_the_spectra_of_the_faps_paper(name):
    singular_values, most = SPECTRA[name]
    rounds = []
    for seed in range(3):
        sites = np.array_split(rows_with(singular_values, seed), 4)
        model = FederatedPCA(10, solver="lanczos", center=False, tol=2e-6, random_state=seed)
        rounds.append(rounds_to(2e-6, model.fit(sites).run_))
    assert np.median(rounds) <= most


def rounds_to(residual, run):
    """The rounds until a residual was reached; a run goes on until the angle is small as well."""
    reported = [entry["residual"] for entry in run.history if entry["residual"] is not None]
    return next(number for number, value in enumerate(reported, 1) if value <= residual)


@pytest.mark.slow
def test_subspace_iteration_takes_over_ten_times_as_many():
    sites = np.array_split(rows_with(SPECTRA["xi=1.01"][0], 0), 4)
    model = FederatedPCA(
        10, solver="subspace-iteration", center=False, tol=2e-6, random_state=0
    ).fit(sites)
    assert rounds_to(2e-6, model.run_) > 150
    assert model.run_.stop_reason == "converged"


def solve(X, k, fed=None, tol=1e-11, max_rounds=2000, **options):
    fed = fed or Federation.local(np.array_split(X, 3))

    def program(fed, start):
        settings = {"start": start, "tol": tol, "max_rounds": max_rounds}
        return Lanczos(**options).solve(fed, Problem(common_features(fed), k, **settings))

    return fed.run(program, identity={}, seed=0), fed.record


@pytest.mark.parametrize("block", [1, 5, 10, 40])
@pytest.mark.parametrize("krylov_bytes", [1, 1 << 14, 1 << 30])
def test_any_block_width_and_any_restart_bound_give_the_same_answer(block, krylov_bytes):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 60)) * np.geomspace(4, 0.5, 60)
    expected = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    solution, record = solve(X, 5, block=block, max_krylov_bytes=krylov_bytes)
    assert solution.stop_reason in ("converged", "exact")
    assert sine_of_angle(expected[2][:5].T, solution.vectors) < 1e-8
    np.testing.assert_allclose(solution.eigenvalues, expected[1][:5] ** 2, rtol=1e-12)
    np.testing.assert_allclose(solution.vectors.T @ solution.vectors, np.eye(5), atol=1e-12)
    assert record.history[-1]["residual"] <= 1e-11


def test_the_basis_stays_orthogonal_over_hundreds_of_rounds():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((700, 600))
    solution, record = solve(X, 1, tol=1e-14, max_krylov_bytes=8 * 600 * 40)
    assert record.solver_rounds > 60
    expected = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(solution.eigenvalues, expected[1][:1] ** 2, rtol=1e-12)
    assert sine_of_angle(expected[2][:1].T, solution.vectors) < 1e-8


def test_a_low_rank_is_found_exactly_in_few_rounds():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((200, 3)) @ rng.standard_normal((3, 80))
    solution, record = solve(X, 5, tol=0.0)
    assert solution.stop_reason == "uncertain"  # two of the directions have no variance
    assert solution.n_certain == 3
    assert solve(X, 3, tol=0.0)[0].stop_reason == "exact"
    assert record.solver_rounds <= 3
    assert solution.vectors.shape == (80, 5)
    np.testing.assert_allclose(solution.eigenvalues[3:], 0, atol=1e-12 * solution.eigenvalues[0])


def test_the_reported_residual_is_that_of_the_answer():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((200, 50))
    solution, record = solve(X, 4, max_rounds=6)
    A = X - X.mean(axis=0)
    R = A.T @ (A @ solution.vectors) - solution.vectors * solution.eigenvalues
    residual = np.linalg.norm(R) / np.linalg.norm(A) ** 2
    assert solution.stop_reason == "max_rounds"
    assert record.history[-1]["residual"] == pytest.approx(residual, rel=1e-6)


@pytest.mark.parametrize("solver", ["lanczos", "subspace-iteration"])
@pytest.mark.parametrize("n_components", [3, "mp", 0.9999])
def test_too_few_rounds_are_told_in_a_warning(solver, n_components):
    X = np.random.default_rng(4).standard_normal((100, 30))
    model = FederatedPCA(n_components, solver=solver, max_rounds=2)
    with pytest.warns(ConvergenceWarning, match="max_rounds=2"):
        model.fit(np.array_split(X, 2))
    assert model.run_.stop_reason == "max_rounds"
    assert model.run_.solver_rounds == 2
    assert model.n_components_ >= 1


def test_auto_takes_the_solver_that_moves_fewer_bytes():
    assert cheapest_exact(n=10_000, d=500, k=20).name == "covariance"
    assert cheapest_exact(n=10_000, d=20_000, k=10).name == "lanczos"
    assert cheapest_exact(n=20, d=5_000, k=10).name == "lanczos"
    d, k, rounds = 700, 12, expected_rounds(10_000, 700, 12)
    cheaper = d + 1 < 4 * k * rounds
    assert (cheapest_exact(10_000, d, k).name == "covariance") == cheaper
    for d in (50, 3000):
        X = np.random.default_rng(5).standard_normal((40, d))
        model = FederatedPCA(2).fit(np.array_split(X, 2))
        assert model.run_.solver == cheapest_exact(40, d, 2).name


def test_planned_bytes_are_those_that_cross():
    X = np.random.default_rng(6).standard_normal((200, 90))
    run = FederatedPCA(4, solver="covariance").fit([X]).run_
    triangle = [e.bytes for e in run.ledger if e.field == "triangle"]
    assert sum(triangle) == payload(covariance_triangle, d=90) - 16 * 90
    run = FederatedPCA(4, solver="lanczos", tol=1e-4, random_state=0).fit([X]).run_
    product = [e.bytes for e in run.ledger if e.question == "covariance_product" and e.shape]
    assert sum(product) == 16 * 90 * 4 * run.solver_rounds


@pytest.mark.filterwarnings("ignore:only .* components are certain")
@pytest.mark.parametrize("solver", ["covariance", "lanczos", "subspace-iteration"])
@pytest.mark.parametrize("n_components", [0.6, 0.9, "gap"])
def test_rules_see_every_copy_of_a_repeated_eigenvalue(solver, n_components):
    deviations = np.sqrt(np.r_[np.full(15, 10.0), np.full(15, 5.0), np.zeros(20)])
    A = np.vstack([np.diag(deviations), -np.diag(deviations)])
    model = FederatedPCA(n_components, solver=solver, random_state=0).fit([A[::2], A[1::2]])
    expected = {0.6: (14,), 0.9: (26,), "gap": (15, 30)}  # both gaps are 5
    assert model.n_components_ in expected[n_components]
    values = np.r_[np.full(15, 10.0), np.full(15, 5.0)] * 2 / 99
    np.testing.assert_allclose(model.explained_variance_, values[: model.n_components_], rtol=1e-9)


def test_rounds_that_end_while_a_rule_looks_further():
    X = np.random.default_rng(7).standard_normal((60, 10)) @ np.eye(10, 40)
    for max_rounds in range(1, 6):
        model = FederatedPCA("mp", solver="lanczos", random_state=0, max_rounds=max_rounds)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit([X])
        assert model.components_.shape == (model.n_components_, 40)


def test_a_covariance_too_large_for_a_message_is_refused_before_it_is_formed():
    rows = sp.csr_array((3, 20_000))
    with pytest.raises(InputError, match=r"covariance of 20000 features .* use solver='lanczos'"):
        FederatedPCA(2, solver="covariance").fit(rows)


@pytest.mark.parametrize("solver", ["lanczos", "subspace-iteration", "local-power", "faps"])
@pytest.mark.parametrize("scale", [1e-80, 1e-140, 1e80, 1e140])
def test_rows_whose_products_would_lose_their_digits_are_refused(solver, scale):
    X = np.random.default_rng(0).standard_normal((60, 6)) * [5, 4, 3, 0.5, 0.4, 0.3] * scale
    bound = "between 1e-140 and" if scale < 1 else r"mean is beyond 1e\+68"
    with pytest.raises(InputError, match=rf"{bound}.*; rescale the columns"):
        FederatedPCA(2, solver=solver).fit(np.array_split(X, 3))


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["lanczos", "subspace-iteration", "local-power", "faps"])
@pytest.mark.parametrize("scale", [1e-69, 1e67])
def test_rows_near_the_limit_keep_their_digits(solver, scale):
    X = np.random.default_rng(0).standard_normal((60, 6)) * [5, 4, 3, 0.5, 0.4, 0.3]
    fits = [
        FederatedPCA(2, solver=solver, random_state=0).fit(np.array_split(X * c, 3))
        for c in (1.0, scale)
    ]
    assert sine_of_angle(fits[0].components_.T, fits[1].components_.T) < 1e-9
