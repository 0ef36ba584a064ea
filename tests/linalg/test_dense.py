"""Matrix routines that every solver shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpca.linalg import blas_threads, dense
from fedpca.linalg.krylov import KrylovSpace

RNG = np.random.default_rng(0)


@given(st.integers(1, 30))
def test_packing_a_triangle_and_back(d):
    A = np.random.default_rng(d).standard_normal((d, d))
    A = A + A.T
    packed = dense.pack_triangle(A)
    assert packed.shape == (d * (d + 1) // 2,)
    np.testing.assert_array_equal(dense.unpack_triangle(packed), A)


@pytest.mark.parametrize("condition", [1e1, 1e4, 1e8, 1e12])
def test_independent_columns_reproduce_a_block_of_any_condition(condition):
    U, V = (
        np.linalg.qr(RNG.standard_normal((50, 6)))[0],
        np.linalg.qr(RNG.standard_normal((6, 6)))[0],
    )
    Y = (U * np.geomspace(1, 1 / condition, 6)) @ V
    Q, B = dense.independent_columns(Y, 0.0)
    np.testing.assert_allclose(Q.T @ Q, np.eye(6), atol=1e-13)
    np.testing.assert_allclose(Q @ B, Y, atol=1e-14)


def test_dependent_columns_are_dropped():
    Y = RNG.standard_normal((20, 2)) @ RNG.standard_normal((2, 5))
    Q, B = dense.independent_columns(Y, 1e-10)
    assert Q.shape == (20, 2)
    np.testing.assert_allclose(Q @ B, Y, atol=1e-12)


@pytest.mark.parametrize("seed", [640, 1033, 2422, 2986])
def test_a_dependent_column_is_dropped_even_if_rounding_makes_it_look_independent(seed):
    rng = np.random.default_rng(seed)
    Y = rng.standard_normal((5, 1)) * [0.1, 0.3, 1.0]
    Y += 3e-4 * rng.standard_normal((5, 1)) * rng.standard_normal(3)
    Q, B = dense.independent_columns(Y, 1e-13)
    assert Q.shape == (5, 2)
    np.testing.assert_allclose(Q @ B, Y, atol=1e-14)


def test_a_krylov_space_never_has_more_directions_than_there_are():
    rng = np.random.default_rng(221)  # the second block is nearly, but not exactly, dependent
    Q = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    M = Q * 10.0 ** rng.uniform(-4, 0, 5) @ Q.T
    space = KrylovSpace(np.linalg.qr(rng.standard_normal((5, 3)))[0], 1000)
    while not space.is_invariant:
        space.extend(M @ space.Q)
        assert space.K.shape[1] <= 5
    values, vectors = np.linalg.eigh(M)
    assert space.rayleigh_ritz(3).wanted == pytest.approx(values[:-4:-1], rel=1e-10)
    assert dense.sine_of_angle(vectors[:, :-4:-1], space.vectors()) < 1e-10
    assert dense.independent_columns(np.zeros((20, 3)), 1e-10)[0].shape == (20, 0)
    assert dense.independent_columns(np.zeros((20, 0)), 1e-10)[0].shape == (20, 0)


@given(st.integers(0, 8), st.integers(1, 4), st.floats(-14, 0))
def test_what_a_block_adds_is_orthogonal_to_the_basis(k, b, exponent):
    rng = np.random.default_rng(k)
    K = np.linalg.qr(rng.standard_normal((40, k)))[0]
    Y = K @ rng.standard_normal((k, b)) + 10.0**exponent * rng.standard_normal((40, b))
    Q, B, H = dense.orth_against(K, Y, 0.0)
    np.testing.assert_allclose(K.T @ Q, 0, atol=1e-14)
    np.testing.assert_allclose(Q.T @ Q, np.eye(b), atol=1e-13)
    np.testing.assert_allclose(K @ H + Q @ B, Y, atol=1e-13)


def test_small_angles_are_not_lost():
    U = np.eye(5, 2)
    V = np.linalg.qr(U + 1e-11 * RNG.standard_normal((5, 2)))[0]
    assert 1e-12 < dense.sine_of_angle(U, V) < 1e-10
    assert dense.sine_of_angle(U, np.empty((5, 0))) == 0


def test_the_largest_entry_of_a_component_is_positive():
    V = np.array([[0.1, -2.0], [-3.0, 1.0]])
    np.testing.assert_array_equal(dense.fix_signs(V), [[-0.1, 2.0], [3.0, -1.0]])


def test_arrays_of_medium_size_get_a_thread_each(monkeypatch):
    monkeypatch.setattr(blas_threads, "n_threads", lambda: 8)
    small, medium, tall, large = (10, 10), (1000, 100), (10**7, 100), (5000, 2000)
    assert blas_threads.jobs_for_arrays([medium] * 20) == blas_threads.MAX_JOBS
    assert blas_threads.jobs_for_arrays([medium, tall]) == 2  # no block of it takes long
    assert blas_threads.jobs_for_arrays([medium] * 20 + [large]) == 1  # which takes all threads
    assert blas_threads.jobs_for_arrays([small] * 20) == 1
    assert blas_threads.jobs_for_arrays([]) == 1


def test_only_long_products_of_rows_use_all_threads(monkeypatch):
    wanted = []
    monkeypatch.setattr(blas_threads, "threads_for_entries", wanted.append)
    for shape in ((10_000, 200), (2000, 1000)):
        blas_threads.threads_for_gram(*shape)
    assert wanted == [0, np.inf]


@pytest.mark.parametrize(("n", "d"), [(3000, 200), (1001, 320)])
def test_threads_that_share_a_product_change_no_bit(n, d, monkeypatch):
    A = np.random.default_rng(0).standard_normal((n, d))
    found = []
    for n_threads in (1, 3):
        monkeypatch.setattr(blas_threads, "n_threads", lambda n_threads=n_threads: n_threads)
        found.append(dense.gram_of(A))
    assert found[0].tobytes() == found[1].tobytes()
    np.testing.assert_allclose(found[0], A.T @ A, rtol=1e-12, atol=1e-9)


def test_the_number_of_threads_is_that_without_our_own_limits():
    usual = blas_threads.n_threads()
    with blas_threads.threads_for_entries(0):
        assert blas_threads.n_threads() == usual


def test_large_arrays_keep_their_threads(monkeypatch):
    monkeypatch.setattr(blas_threads, "_blas", None)  # would fail if it were called
    with blas_threads.threads_for(np.empty(blas_threads.ONE_THREAD_ENTRIES + 1)):
        pass
