"""Sums over rows are on their grid: whole multiples of a step that no coordinator can shrink."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpca import FederatedPCA, Federation, Site
from fedpca.linalg.dense import unpack_triangle
from fedpca.linalg.grid import (
    SHARE,
    TRACE_ERROR,
    growth,
    norms_left,
    rounded_up,
    score_norms,
    to_add,
    to_grid,
)
from fedpca.rows.open import open_rows
from fedpca.rows.standardized import Frame, StandardizedRows
from fedpca.solvers.common_features import common_features
from fedpca.solvers.exact.tsqr import triangular_factor, unpack_factor
from fedpca.solvers.sign_flips import (
    FlipSecret,
    _flipped,
    flipped_product,
    flipped_triangles,
)
from fedpca.solvers.standardize import ask_means

UNIT = 2.0**-53
SEEDS = st.integers(0, 2**32 - 1)
AS_ROWS = {
    "dense": np.asarray,
    "float32": lambda X: X.astype(np.float32),
    "sparse": lambda X: sp.csr_array(np.where(abs(X) < 0.5, 0, X)),
}


def random_rows(rng, n, d):
    """Rows with an offset and columns in very different units."""
    units = 10.0 ** rng.uniform(-3, 3, d)
    return (rng.standard_normal((n, d)) + rng.choice([0.0, 3.0, 1e6])) * units


def exact(array):
    return np.asarray(array).astype(np.longdouble)


def are_multiples(values, steps):
    ratios = values / np.where(steps > 0, steps, 1)
    return bool((ratios == np.rint(ratios)).all() and (values[steps == 0] == 0).all())


def dense(X):
    return np.asarray(X.toarray() if sp.issparse(X) else X, np.float64)


@given(st.lists(st.floats(0, 1e150).filter(lambda x: x == 0 or x > 1e-290), min_size=1))
def test_norms_are_rounded_up_to_powers_of_two(norms):
    norms = np.array(norms)
    mantissas, exponents = np.frexp(norms)
    expected = np.where(norms > 0, np.ldexp(np.where(mantissas == 0.5, 0.5, 1.0), exponents), 0)
    assert np.array_equal(rounded_up(norms), expected)


@pytest.mark.parametrize("exponent", [-140, -75, 0, 75, 150])
def test_rounding_is_to_the_nearest_multiple_whatever_the_size(exponent):
    rng = np.random.default_rng(0)
    left, right = rng.uniform(1, 9, 300) * 10.0**exponent, rng.uniform(1, 9, 70)
    left[4] = right[7] = 0.0
    values = rng.uniform(-1, 1, (300, 70)) * np.outer(left, right)
    values[4, 0] = 1.0
    steps = SHARE * np.outer(rounded_up(left), rounded_up(right)) * growth(100)
    rounded = to_grid(values.copy(), left, right, 100)
    expected = np.rint(values / np.where(steps > 0, steps, 1)) * steps
    np.testing.assert_array_equal(rounded, expected)
    by_adding = to_add(left * growth(100), right)
    is_kept = steps > 0
    np.testing.assert_array_equal(((values + by_adding) - by_adding)[is_kept], rounded[is_kept])


def test_products_that_underflow_do_not_count_rows():
    norms = np.array([1e-160, 1.0])
    assert to_grid(np.full((2, 2), 5e-324), norms, norms)[0, 0] == 0


def test_the_step_grows_with_the_terms_of_an_entry():
    assert [growth(m) for m in (1, 32, 33, 64, 65, 20_000)] == [1, 1, 2, 2, 4, 1024]


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, kind=st.sampled_from(sorted(AS_ROWS)), power=st.integers(-60, 60))
def test_grams_and_squares_are_on_a_grid_that_no_scale_can_shrink(seed, kind, power):
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 50)), int(rng.integers(1, 9))
    X = AS_ROWS[kind](random_rows(rng, n, d))
    mean = dense(X).mean(axis=0) + rng.choice([0.0, 1.0])
    A = exact(dense(X)) - mean
    scale = np.ldexp(np.ones(d), rng.integers(-abs(power), abs(power) + 1, d))
    plain, scaled = (StandardizedRows(open_rows(X), Frame(mean, s)) for s in (np.ones(d), scale))
    gram = plain.gram()
    own = rounded_up(np.sqrt(gram.diagonal()))
    steps = SHARE * np.outer(own, own)
    assert are_multiples(gram, steps)
    # sums are rounded too, and more so if the mean is subtracted from them
    raw = np.sqrt((dense(X) ** 2).sum(axis=0)) + np.sqrt((A**2).sum(axis=0)).astype(float)
    slack = (n + 8) * UNIT * np.outer(raw, raw) * (1 if kind == "sparse" else 4)
    assert (np.abs(gram - A.T @ A) <= steps / 2 + slack).all()
    assert np.array_equal(scaled.gram(), gram / np.outer(scale, scale))
    squares = plain.squares()
    of_squares = rounded_up(np.sqrt(squares))
    assert are_multiples(squares, SHARE * of_squares**2)
    assert (np.abs(squares - (A**2).sum(axis=0)) <= steps.diagonal() / 2 + slack.diagonal()).all()
    assert np.array_equal(scaled.squares(), squares / scale**2)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, kind=st.sampled_from(sorted(AS_ROWS)))
def test_products_from_rows_are_on_a_grid_that_no_direction_can_shrink(seed, kind):
    rng = np.random.default_rng(seed)
    n, d, k = (int(rng.integers(low, high)) for low, high in ((1, 50), (2, 80), (1, 5)))
    X = AS_ROWS[kind](random_rows(rng, n, d))
    mean = dense(X).mean(axis=0)
    A = exact(dense(X)) - mean
    rows = StandardizedRows(open_rows(X), Frame(mean, np.ones(d)), max_cache_bytes=0)
    Z = np.linalg.qr(rng.standard_normal((d, k)))[0] if k <= d else np.eye(d, k)
    Y = rows.gram_times(Z)
    left = rounded_up(np.sqrt(rows.squares()))
    # whatever cancels in a score, the step is that of the terms
    least = rounded_up(score_norms(np.sqrt(rows.squares()), Z))
    assert are_multiples(Y, SHARE * np.outer(left, least))
    raw = np.sqrt((dense(X) ** 2).sum(axis=0)) + np.sqrt((A**2).sum(axis=0)).astype(float)
    sizes = SHARE * np.outer(left, rounded_up(score_norms(raw, Z))) * growth(d)
    slack = (n + d + 8) * UNIT * np.outer(raw, score_norms(raw, Z))
    assert (np.abs(Y - A.T @ (A @ exact(Z))) <= sizes / 2 + slack).all()


def test_a_direction_whose_scores_cancel_has_the_steps_of_its_terms():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((40, 3))
    X[:, 2] = X[:, 0]
    Z = np.array([[1.0], [2.0**-52], [-1.0]]) / np.sqrt(2)
    rows = StandardizedRows(open_rows(X), Frame(np.zeros(3), np.ones(3)), max_cache_bytes=0)
    assert not rows.gram_times(Z).any()  # what is left is rounding


def site_with(X, V, seed=0):
    """A site that has agreed to remove V, in the frame of its own mean."""
    site = Site(X, name="north")
    d = X.shape[1]
    memory = {FlipSecret: FlipSecret(np.arange(8) + seed, V)}
    view = StandardizedRows(site.rows, Frame(X.mean(axis=0), np.ones(d)))
    return SimpleNamespace(
        standardized=view, recall=memory.__getitem__, rounding_secret=lambda: None
    )


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, is_unit=st.booleans())
def test_flips_are_on_the_grid_of_what_they_are_formed_from(seed, is_unit):
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(2, 50)), int(rng.integers(2, 9))
    k = int(rng.integers(0, d // 2 + 1))
    X = random_rows(rng, n, d)
    # directions along features leave nothing of them but rounding
    V = np.eye(d, k) if is_unit else np.linalg.qr(rng.standard_normal((d, d)))[0][:, :k]
    site = site_with(X, np.ascontiguousarray(V))
    norms = norms_left(np.sqrt(site.standardized.squares()), V)
    assert (norms >= np.sqrt(site.standardized.squares())).all()  # V cannot shrink them
    own, times = rounded_up(norms), growth(d + k if k else 1)
    steps = SHARE * times * np.outer(own, own)
    triangles = flipped_triangles.function(site, np.int64(5))["triangles"]
    flipped = dict(_flipped(site, range(5), site.standardized.dense_blocks()))
    for flip, triangle in enumerate(triangles):
        gram = unpack_triangle(triangle)
        assert are_multiples(gram, steps)
        E = exact(flipped[flip])
        slack = n * UNIT * np.outer(norms, norms)
        assert (np.abs(gram - E.T @ E) <= steps / 2 + slack).all()
    Z = np.eye(d, 2)[:, ::-1]
    Y = flipped_product.function(site, np.ascontiguousarray(Z), np.array([0, 3]))["Y"]
    of_scores = SHARE * np.outer(own, rounded_up(score_norms(norms, Z)))
    assert are_multiples(Y, of_scores * growth((d + k if k else 1) + d))


def test_factors_are_on_the_grid_of_their_columns():
    X = random_rows(np.random.default_rng(2), 40, 6)

    def ask(fed, start):
        ask_means(fed, common_features(fed))
        (answer,) = fed.gather(triangular_factor, mean=X.mean(axis=0), scale=np.ones(6)).values()
        return unpack_factor(answer["entries"], int(answer["rank"]), 6)

    R = Federation.local([X]).run(ask, identity={})
    steps = SHARE * rounded_up(np.linalg.norm(R, axis=0))
    assert are_multiples(R, np.tile(steps, (6, 1)))


def test_a_site_that_starts_again_gives_the_same_bits():
    rng = np.random.default_rng(3)
    X, Z = random_rows(rng, 50, 20), np.eye(20, 3)
    frame = Frame(X.mean(axis=0), np.linspace(0.5, 2, 20))
    views = [StandardizedRows(open_rows(X), frame, max_cache_bytes=0) for _ in range(2)]
    views[0].squares()  # one has asked for the norms before, the other has not
    views[0].gram()
    first, again = (view.gram_times(Z) for view in views)
    assert first.tobytes() == again.tobytes()


@pytest.mark.parametrize("solver", ["covariance", "lanczos", "tsqr"])
def test_certificates_cover_what_the_grid_changes(solver, monkeypatch):
    """With steps a million times as large, a bound that left out the grid would be too small."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((300, 12)) * np.r_[5, 4, 3, np.linspace(1.5, 1, 9)]
    exactly = FederatedPCA(3, solver=solver, random_state=0).fit([X]).components_
    times = 2.0**20
    monkeypatch.setattr("fedpca.linalg.grid.SHARE", times * SHARE)
    monkeypatch.setattr("fedpca.solvers.exact.tsqr.SHARE", times * SHARE)
    monkeypatch.setattr("fedpca.solvers.standardize.TRACE_ERROR", times * TRACE_ERROR)
    rounded = FederatedPCA(3, solver=solver, random_state=0, tol=1e-6).fit([X])
    outside = exactly - (exactly @ rounded.components_.T) @ rounded.components_
    angle = float(np.linalg.norm(outside, 2))
    assert 1e-12 < angle <= rounded.run_.angle_bound
