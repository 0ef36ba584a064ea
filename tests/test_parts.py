"""The small parts: matrix routines, framed rows, rank rules, ledger."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from fedpca import atomic, framed, linalg
from fedpca.framed import FramedRows, column_sums
from fedpca.ledger import Ledger
from fedpca.rank import Spectrum, largest_gap, marchenko_pastur, rank_rule, share
from fedpca.rows import open_rows

RNG = np.random.default_rng(0)


@given(st.integers(1, 30))
def test_packing_a_triangle_and_back(d):
    A = np.random.default_rng(d).standard_normal((d, d))
    A = A + A.T
    packed = linalg.pack_triangle(A)
    assert packed.shape == (d * (d + 1) // 2,)
    np.testing.assert_array_equal(linalg.unpack_triangle(packed), A)


@pytest.mark.parametrize("condition", [1e1, 1e4, 1e8, 1e12])
def test_independent_columns_reproduce_a_block_of_any_condition(condition):
    U, V = (
        np.linalg.qr(RNG.standard_normal((50, 6)))[0],
        np.linalg.qr(RNG.standard_normal((6, 6)))[0],
    )
    Y = (U * np.geomspace(1, 1 / condition, 6)) @ V
    Q, B = linalg.independent_columns(Y, 0.0)
    np.testing.assert_allclose(Q.T @ Q, np.eye(6), atol=1e-13)
    np.testing.assert_allclose(Q @ B, Y, atol=1e-14)


def test_dependent_columns_are_dropped():
    Y = RNG.standard_normal((20, 2)) @ RNG.standard_normal((2, 5))
    Q, B = linalg.independent_columns(Y, 1e-10)
    assert Q.shape == (20, 2)
    np.testing.assert_allclose(Q @ B, Y, atol=1e-12)
    assert linalg.independent_columns(np.zeros((20, 3)), 1e-10)[0].shape == (20, 0)
    assert linalg.independent_columns(np.zeros((20, 0)), 1e-10)[0].shape == (20, 0)


@given(st.integers(0, 8), st.integers(1, 4), st.floats(-14, 0))
def test_what_a_block_adds_is_orthogonal_to_the_basis(k, b, exponent):
    rng = np.random.default_rng(k)
    K = np.linalg.qr(rng.standard_normal((40, k)))[0]
    Y = K @ rng.standard_normal((k, b)) + 10.0**exponent * rng.standard_normal((40, b))
    Q, B, H = linalg.orth_against(K, Y, 0.0)
    np.testing.assert_allclose(K.T @ Q, 0, atol=1e-14)
    np.testing.assert_allclose(Q.T @ Q, np.eye(b), atol=1e-13)
    np.testing.assert_allclose(K @ H + Q @ B, Y, atol=1e-13)


def test_small_angles_are_not_lost():
    U = np.eye(5, 2)
    V = np.linalg.qr(U + 1e-11 * RNG.standard_normal((5, 2)))[0]
    assert 1e-12 < linalg.sine_of_angle(U, V) < 1e-10
    assert linalg.sine_of_angle(U, np.empty((5, 0))) == 0


def test_the_largest_entry_of_a_component_is_positive():
    V = np.array([[0.1, -2.0], [-3.0, 1.0]])
    np.testing.assert_array_equal(linalg.fix_signs(V), [[-0.1, 2.0], [3.0, -1.0]])


def test_large_arrays_keep_their_threads(monkeypatch):
    monkeypatch.setattr(linalg, "_blas", None)  # would fail if it were called
    with linalg.threads_for(np.empty(linalg.SMALL + 1)):
        pass


MAKERS = {
    "dense": np.asarray,
    "float32": lambda A: A.astype(np.float32),
    "integer": lambda A: np.round(A).astype(np.int32),
    "sparse": lambda A: sp.csr_array(np.where(abs(A) < 0.7, 0, A)),
    "sparse with full columns": lambda A: sp.csr_array(np.where(abs(A - A.mean(0)) < 0.1, 0, A)),
}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("offset", [0.0, 3.0, 1e6])
@pytest.mark.parametrize("n_products", [1, 10_000])
@pytest.mark.parametrize("blocks", [1, 4])
def test_products_are_those_of_the_centred_scaled_ordered_rows(
    make, offset, n_products, blocks, monkeypatch
):
    monkeypatch.setattr("fedpca.rows.BLOCK_BYTES", 8 * 5 * 40 // blocks)
    rng = np.random.default_rng(1)
    X = MAKERS[make](rng.standard_normal((40, 5)) + offset)
    dense = X.toarray() if sp.issparse(X) else X.astype(float)
    order = np.array([3, 0, 4, 1, 2])
    mean = dense[:, order].mean(axis=0) + 0.25  # the global mean is not the site's own
    scale = np.linspace(0.5, 2, 5)
    A = (dense[:, order] - mean) / scale
    rows = open_rows(X)
    count, sums = column_sums(rows)
    assert count == 40
    np.testing.assert_allclose(sums, dense.sum(axis=0), rtol=1e-14)
    view = FramedRows(rows, mean=mean, scale=scale, order=order, sums=sums, n_products=n_products)
    Z = rng.standard_normal((5, 2))
    tolerance = {"rtol": 1e-11, "atol": 1e-11 * max(1.0, offset) * 40}
    if offset == 0 or "sparse" not in make:
        tolerance = {"rtol": 1e-12, "atol": 1e-11}
    np.testing.assert_allclose(view.gram_times(Z), A.T @ (A @ Z), **tolerance)
    np.testing.assert_allclose(view.gram(), A.T @ A, **tolerance)
    np.testing.assert_allclose(view.squares(), (A**2).sum(axis=0), **tolerance)
    energy = float((A**2).sum())
    along = view.energy_along(Z, energy)
    assert along == pytest.approx(np.sum((A @ Z) ** 2), rel=1e-8)


def test_raw_moments_serve_near_the_origin_and_nowhere_else():
    near = framed.RawMoments(np.zeros(3))
    assert near.add(RNG.standard_normal((50, 3)), None)
    assert not near.add(RNG.standard_normal((50, 3)).astype(np.float32), None)
    far = framed.RawMoments(np.full(3, 1e3))
    assert not far.add(RNG.standard_normal((50, 3)) + 1e3, None)


def test_the_gram_matrix_is_cached_only_where_it_pays_and_fits():
    rows = open_rows(RNG.standard_normal((1000, 20)))
    frame = {"mean": np.zeros(20), "scale": np.ones(20)}
    Z = np.ones((20, 2))
    for options, kept in (
        ({"n_products": 1}, False),
        ({"n_products": 500}, True),
        ({"n_products": 500, "memory_limit": 8 * 400 - 1}, False),
    ):
        view = FramedRows(rows, **frame, **options)
        view.gram_times(Z)
        assert (view._gram is not None) == kept


def test_an_empty_site_adds_nothing():
    view = FramedRows(open_rows(np.empty((0, 4))), mean=np.ones(4), scale=np.ones(4))
    assert not view.gram_times(np.ones((4, 2))).any()
    assert not view.gram().any()
    assert view.energy_along(np.ones((4, 1)), 0.0) == 0


def spectrum(values, total=None, n=1000, d=None):
    values = np.asarray(values, float)
    return Spectrum(values, values.sum() if total is None else total, n, d or len(values))


def test_a_share_is_reached_by_the_fewest_components():
    values = [4.0, 3.0, 2.0, 1.0]
    assert share(0.39)(spectrum(values)) == 1
    assert share(0.4)(spectrum(values)) == 2  # more than the share, as scikit-learn
    assert share(0.9999)(spectrum(values)) == 4
    assert share(0.9)(spectrum(values[:2], total=10.0, d=4)) is None
    assert share(0.999)(spectrum([1.0, 0.5], total=10.0, d=2)) == 2


@pytest.mark.parametrize("planted", [1, 7, 25])
@pytest.mark.parametrize(("n", "d"), [(3000, 60), (200, 400)])
def test_the_marchenko_pastur_edge_finds_a_planted_rank(planted, n, d):
    rng = np.random.default_rng(planted)
    deviations = np.ones(d)
    deviations[:planted] = 8.0
    X = rng.standard_normal((n, d)) * deviations
    values = np.linalg.svd(X - X.mean(0), compute_uv=False) ** 2 / (n - 1)
    assert marchenko_pastur(spectrum(values, n=n, d=d)) == planted
    seen = spectrum(values[: planted + 1], total=values.sum(), n=n, d=d)
    assert marchenko_pastur(seen) == planted
    if planted > 1:
        assert marchenko_pastur(spectrum(values[: planted - 1], values.sum(), n, d)) is None


def test_noise_alone_and_no_noise_at_all():
    assert marchenko_pastur(spectrum([1.0, 1.0, 1.0, 1.0])) == 1
    assert marchenko_pastur(spectrum([3.0, 2.0, 0.0, 0.0])) == 2
    assert marchenko_pastur(spectrum([3.0, 2.0, 1.0], n=10**9)) == 2  # the last may be noise


def test_the_largest_gap_is_looked_for_behind_the_first_component():
    values = [10.0, 4.0, 3.8, 3.6, 0.5, 0.4]
    assert largest_gap(spectrum(values)) == 4
    assert largest_gap(spectrum(values[:3], total=30.0, d=6)) is None
    assert largest_gap(spectrum(values[:5], total=30.0, d=6)) == 4  # no later gap can be larger
    assert largest_gap(spectrum([2.0, 1.0])) == 1
    assert largest_gap(spectrum([9.0, 8.0, 7.0, 4.0, 3.0, 0.0], n=6, d=50)) == 3  # not the last


def test_a_number_of_components_is_checked_against_rows_and_features():
    assert rank_rule(None, n=5, d=9).first_look == 5
    assert rank_rule("mp", n=5, d=9).first_look == 5
    assert rank_rule(0.5, n=50, d=90).first_look == 10
    with pytest.raises(ValueError, match="use at most 5"):
        rank_rule(6, n=5, d=9)


def test_totals_of_a_ledger_add_up_to_its_bytes():
    ledger = Ledger()
    ledger.record(1, "q", "sent", {"x": np.zeros(4)}, {"a": 100, "b": 100})
    ledger.record(1, "q", "summed", {"y": np.zeros((2, 3))}, {"a": 120, "b": 130})
    ledger.record(2, "q", "seen", {"y": np.zeros((2, 3))}, {"a": 120})
    assert sum(total.bytes for total in ledger.totals()) == 570
    assert (ledger.bytes_down, ledger.bytes_up) == (200, 370)
    entries = list(ledger)
    assert sum(entry.bytes for entry in entries) == 570
    assert entries[0]._asdict() == {
        "round": 1,
        "site": "a",
        "direction": "down",
        "question": "q",
        "field": "x",
        "shape": (4,),
        "bytes": 32,
        "how": "sent",
    }


def test_a_file_is_replaced_only_when_it_is_complete(tmp_path):
    target = tmp_path / "f"
    with atomic.writing(target) as path:
        path.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    with pytest.raises(TypeError), atomic.writing(target) as path:
        path.write_text(b"half")
    assert target.read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 1
