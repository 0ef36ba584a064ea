"""Rows on a device are multiplied there, and give what the same rows give in numpy.

The arrays of `array_api_strict` on its second device refuse to become numpy arrays unless they are
moved, as those of a GPU do. So a test that passes with them makes no copies that nobody asked for.
"""

from __future__ import annotations

import sys
from functools import partial

import array_api_strict
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

from fedpca import FederatedPCA, Federation, PersonalizedPCA, RobustPCA, Site, StreamingPCA
from fedpca.errors import InputError
from fedpca.linalg.dense import sine_of_angle
from fedpca.rows.gpu import device_rows, products
from fedpca.rows.gpu.device_rows import DeviceRows, MovedRows
from fedpca.rows.gpu.devices import Device, find_device
from fedpca.rows.in_memory import DenseRows
from fedpca.rows.open import open_rows
from fedpca.rows.standardized import Frame, StandardizedRows
from fedpca.solvers import SOLVERS, Covariance
from fedpca.solvers.exact import covariance
from support import fitted_quietly, gapped_rows, low_rank_rows, write_rows

STRICT = Device(array_api_strict, array_api_strict.Device("device1"), 1 << 30)


def strictly(array):
    return array_api_strict.asarray(np.array(array), device=STRICT.device)


def by_torch(array):
    return pytest.importorskip("torch").from_numpy(np.array(array))


every_library = pytest.mark.parametrize("there", [strictly, by_torch])


@pytest.fixture
def small_pieces(monkeypatch):
    """Let small arrays take several blocks, chunks, products, and panels."""
    monkeypatch.setattr(device_rows, "CHUNK_BYTES", 8 * 9 * 50)
    monkeypatch.setattr(device_rows, "BLOCK_BYTES", 8 * 9 * 50)
    monkeypatch.setattr(device_rows, "ROWS_PER_PRODUCT", 16)
    monkeypatch.setattr(products, "ROWS_PER_PRODUCT", 16)
    monkeypatch.setattr(products, "MIN_PANEL", 2)


@pytest.fixture
def transfers(monkeypatch):
    """Count the arrays that are moved to the device, and from it."""
    counts = {"to_device": 0, "to_host": 0}

    def counting(name, move, *arguments):
        counts[name] += 1
        return move(*arguments)

    for name in counts:
        move = getattr(products, name)
        monkeypatch.setattr(products, name, partial(counting, name, move))
    return counts


def mixed(dtype, offset, spread=1.0):
    """Unlike sites: one has no rows, and one has a single row."""
    rng = np.random.default_rng(0)
    X = gapped_rows(rng, 130, 9, 3, scale=spread) + offset
    X = X[np.argsort(X[:, 0])].astype(dtype)
    return np.split(X, [0, 1, 60, 90])


@every_library
@pytest.mark.parametrize(
    ("dtype", "offset", "spread"),
    [
        (np.float64, 0.0, 1.0),
        (np.float64, 1e8, 1.0),
        (np.float32, 3.0, 1.0),
        (np.float32, 1e8, 1e3),
        (np.int16, 30.0, 100.0),
    ],
)
@pytest.mark.usefixtures("small_pieces")
def test_products_equal_those_of_numpy(there, dtype, offset, spread):
    X = np.vstack(mixed(dtype, offset, spread))
    rng = np.random.default_rng(1)
    exact = X.astype(np.float64)
    order = rng.permutation(9)
    frame = Frame(exact.mean(axis=0)[order], rng.uniform(1, 2, 9), order)
    A = (exact - exact.mean(axis=0))[:, order] / frame.scale
    Z = np.linalg.qr(rng.standard_normal((9, 2)))[0]
    close = {"rtol": 1e-11, "atol": 1e-11 * np.sum(A * A)}
    for limit in (0, 1 << 20):  # without A'A, and with it
        ours = StandardizedRows(open_rows(there(X)), frame, max_cache_bytes=limit)
        np.testing.assert_allclose(ours.gram_times(Z), A.T @ (A @ Z), **close)
        np.testing.assert_allclose(ours.energy_along(Z, 1.0), np.sum((A @ Z) ** 2), rtol=1e-11)
        np.testing.assert_allclose(ours.squares(), np.sum(A * A, axis=0), rtol=1e-11)
        np.testing.assert_allclose(ours.gram(), A.T @ A, **close)


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_a_question_moves_z_there_and_the_answer_back_and_nothing_else(limit, transfers):
    X = np.vstack(mixed(np.float64, 5.0))
    frame = Frame(X.mean(axis=0), np.ones(9), n_products=50)
    rows = StandardizedRows(DeviceRows(strictly(X)), frame, max_cache_bytes=limit)
    rows.squares()
    assert transfers == {"to_device": 1, "to_host": 1}  # the mean, and the squares
    for _ in range(3):
        rows.gram_times(np.eye(9, 2))
    assert transfers == {"to_device": 4, "to_host": 4}


@every_library
@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float32])
def test_sums_on_a_device_are_those_of_numpy_in_float64(there, dtype):
    X = (np.random.default_rng(0).uniform(size=(5000, 3)) * 200).astype(dtype)
    n, sums = products.sums_on_device(DeviceRows(there(X)))
    assert n == 5000
    np.testing.assert_allclose(sums, X.sum(axis=0, dtype=np.float64), rtol=1e-14)


@pytest.mark.parametrize("scale", [1.0, 1e-70, 1e60])
def test_eigenvectors_on_a_device_are_those_of_numpy(scale, monkeypatch):
    monkeypatch.setattr(covariance, "find_device", lambda name: STRICT)
    rows = np.random.default_rng(0).normal(size=(300, 12)) * np.linspace(3, 1, 12) * scale
    sites = np.array_split(rows, 3)
    plain = FederatedPCA(4, solver="covariance", random_state=0).fit(sites)
    ours = FederatedPCA(4, solver=Covariance(device="cuda"), random_state=0).fit(sites)
    np.testing.assert_allclose(ours.components_, plain.components_, atol=1e-12)
    np.testing.assert_allclose(ours.explained_variance_, plain.explained_variance_, rtol=1e-12)
    assert ours.run_.stop_reason == "exact"


def test_a_device_for_eigenvectors_is_checked_before_anything_is_asked():
    with pytest.raises(InputError, match=r"device='gpu' must be 'cuda'"):
        Covariance(device="gpu")
    asked = []
    fed = Federation.local([np.eye(3), np.eye(3)], on_round=asked.append)
    with pytest.raises(InputError, match="device='cuda:99'"):
        FederatedPCA(1, solver=Covariance(device="cuda:99")).fit(fed)
    assert "covariance_triangle" not in [entry["question"] for entry in asked]


@every_library
@pytest.mark.parametrize("solver", sorted(SOLVERS))
@pytest.mark.usefixtures("small_pieces")
def test_sites_in_numpy_and_on_devices_equal_pooled_rows(there, solver):
    sites = mixed(np.float32, 2.0)
    plain = FederatedPCA(3, solver=solver, random_state=0, max_rounds=5000).fit(sites)
    places = [there, np.asarray, there, there, np.asarray]
    placed = [place(rows) for place, rows in zip(places, sites, strict=True)]
    ours = FederatedPCA(3, solver=solver, random_state=0, max_rounds=5000).fit(placed)
    reference = PCA(3, svd_solver="full").fit(np.vstack(sites).astype(np.float64))
    allowed = max(1e-8, ours.run_.angle_bound)
    assert sine_of_angle(reference.components_.T, ours.components_.T) <= allowed
    np.testing.assert_allclose(ours.explained_variance_, plain.explained_variance_, rtol=1e-10)
    np.testing.assert_allclose(ours.mean_, plain.mean_, rtol=1e-14)
    assert type(ours.components_) is np.ndarray
    assert ours.run_.stop_reason == plain.run_.stop_reason
    assert list(ours.run_.ledger) == list(plain.run_.ledger)
    for name, share in plain.site_variance_ratio_.items():
        assert ours.site_variance_ratio_[name] == pytest.approx(share, rel=1e-9, nan_ok=True)


@every_library
def test_an_offset_of_1e8_costs_no_digits(there):
    for dtype, spread in ((np.float64, 1.0), (np.float32, 1e3)):
        sites = mixed(dtype, 1e8, spread)
        reference = PCA(3, svd_solver="full").fit(np.vstack(sites).astype(np.float64))
        ours = FederatedPCA(3).fit([there(rows) for rows in sites])
        assert sine_of_angle(reference.components_.T, ours.components_.T) < 1e-7
        np.testing.assert_allclose(
            ours.explained_variance_, reference.explained_variance_, rtol=1e-7
        )


@every_library
def test_one_table_is_fitted_where_it_is_and_scores_are_numpy(there):
    X = np.vstack(mixed(np.float32, 2.0))
    plain, ours = FederatedPCA(3, scale=True).fit(X), FederatedPCA(3, scale=True).fit(there(X))
    np.testing.assert_allclose(ours.components_, plain.components_, atol=1e-10)
    scores = ours.transform(there(X))
    assert (type(scores), scores.dtype) == (np.ndarray, np.float32)
    np.testing.assert_allclose(scores, plain.transform(X), atol=1e-5)
    labels = np.repeat(["a", "b"], [70, 60])
    split = FederatedPCA(3, scale=True).fit(there(X), sites=labels)
    assert split.run_.sites == ("a", "b")
    np.testing.assert_allclose(split.components_, plain.components_, atol=1e-10)
    weights = np.tile([1.0, 2.0], 65)
    weighted = FederatedPCA(3).fit(there(X), sample_weight=weights)
    expected = FederatedPCA(3).fit(X, sample_weight=weights)
    np.testing.assert_allclose(weighted.components_, expected.components_, atol=1e-12)


def test_other_estimators_take_arrays_on_a_device():
    sites = mixed(np.float64, 2.0)[2:]
    there = [strictly(rows) for rows in sites]
    shared = PersonalizedPCA(1, 1, random_state=0)
    plain = fitted_quietly(shared, sites).components_
    np.testing.assert_allclose(fitted_quietly(shared, there).components_, plain, atol=1e-8)
    stream = StreamingPCA(2)
    plain = stream.fit(sites[0]).components_
    assert stream.fit(there[0]).components_.tobytes() == plain.tobytes()
    assert stream.partial_fit(there[1]).transform(there[1]).shape == (30, 2)
    X, _, _ = low_rank_rows(60, 12, 2)
    robust = RobustPCA(2, random_state=0)
    plain = robust.fit(X).components_
    assert robust.fit(strictly(X)).components_.tobytes() == plain.tobytes()
    assert type(robust.transform(strictly(X))) is np.ndarray


@pytest.mark.parametrize("missing", ["error", "mean", "drop"])
def test_gaps_are_treated_as_in_numpy(missing, monkeypatch):
    X = np.vstack(mixed(np.float64, 2.0))
    whole = FederatedPCA(3, missing=missing).fit(X)
    with monkeypatch.context() as patched:
        patched.setattr(DeviceRows, "blocks", None)  # rows without gaps stay where they are
        ours = FederatedPCA(3, missing=missing).fit(strictly(X))
    np.testing.assert_allclose(ours.components_, whole.components_, atol=1e-10)
    X[3, 1] = X[7, 2] = np.nan
    if missing == "error":
        with pytest.raises(InputError, match=r"contains NaN in columns 1, 2; use FederatedPCA"):
            FederatedPCA(3).fit(strictly(X))
        return
    plain = FederatedPCA(3, missing=missing).fit(X)
    ours = FederatedPCA(3, missing=missing).fit(strictly(X))
    np.testing.assert_allclose(ours.components_, plain.components_, atol=1e-10)
    assert ours.n_samples_ == plain.n_samples_


class CountingRows(DenseRows):
    """Rows that count how often they are read."""

    n_passes = 0

    def blocks(self):
        self.n_passes += 1
        return super().blocks()


@pytest.mark.parametrize(("free_bytes", "n_passes"), [(1 << 20, 1), (100, 4)])
@pytest.mark.usefixtures("small_pieces")
def test_rows_stay_on_a_device_if_they_fit_in_half_of_its_memory(free_bytes, n_passes):
    X = np.vstack(mixed(np.float32, 2.0))
    source = CountingRows(X)
    moved = MovedRows(source, STRICT._replace(free_bytes=free_bytes))
    rows = StandardizedRows(moved, Frame(np.ones(9), np.ones(9)), max_cache_bytes=0)
    rows.squares()  # their norms set the grid of all products
    for _ in range(3):
        product = rows.gram_times(np.eye(9, 2))
    assert source.n_passes == n_passes
    A = X.astype(np.float64) - 1
    np.testing.assert_allclose(product, A.T @ (A @ np.eye(9, 2)), rtol=1e-12)


@pytest.fixture
def strict_device(monkeypatch):
    """Let the name "cuda" stand for a device that no library has to be installed for."""
    monkeypatch.setattr(device_rows, "find_device", {"cuda": STRICT}.__getitem__)


@pytest.mark.usefixtures("strict_device")
@pytest.mark.parametrize("kind", [".parquet", ".csv", ".npy"])
def test_files_are_moved_to_a_device(kind, tmp_path):
    X = np.vstack(mixed(np.float32, 2.0))[:, :4]
    path = write_rows(tmp_path, kind, X)
    site = Site(path, name="a", device="cuda")
    assert all(b.dtype == array_api_strict.float32 for b in site.rows.device_blocks()) == (
        kind != ".csv"  # whose numbers are read as float64
    )
    plain = FederatedPCA(2).fit([Site(path, name="a")])
    ours = FederatedPCA(2).fit(Federation.local([site]))
    np.testing.assert_allclose(ours.components_, plain.components_, atol=1e-10)
    assert list(ours.run_.ledger) == list(plain.run_.ledger)
    np.save(tmp_path / "rows.npy", 2 * X)
    if kind == ".npy":  # a new run reads the file again
        again = FederatedPCA(2).fit(Federation.local([site]))
        np.testing.assert_allclose(
            again.explained_variance_, 4 * ours.explained_variance_, rtol=1e-6
        )


@pytest.mark.usefixtures("strict_device")
def test_arrays_that_a_device_cannot_multiply_are_refused():
    with pytest.raises(InputError, match="sparse rows are not multiplied on a device; omit device"):
        FederatedPCA(2).fit([Site(sp.eye_array(5, format="csr"), name="a", device="cuda")])
    with pytest.raises(InputError, match="2-D array"):
        DeviceRows(strictly([1.0, 2.0]))
    with pytest.raises(InputError, match="Complex data not supported"):
        DeviceRows(strictly(np.eye(2) * 1j))
    kept = Site(strictly(np.eye(3)), name="a", device="cuda")
    assert kept.rows.device == STRICT.device


def test_errors_about_devices_name_the_way_out(monkeypatch):
    with pytest.raises(InputError, match="device='gpu' must be 'cuda', 'cuda:1' for the second"):
        Site(np.eye(3), name="a", device="gpu")
    for name in ("torch", "cupy"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match="device='cuda:1' requires PyTorch or CuPy"):
        Site(np.eye(3), name="a", device="cuda:1")
    with pytest.raises(InputError, match="device='cpu' requires PyTorch, which is not installed"):
        find_device("cpu")
    monkeypatch.setitem(sys.modules, "array_api_compat", None)
    with pytest.raises(InputError, match=r"array-api-compat; install it with: pip install"):
        find_device("cuda")
    with pytest.raises(InputError, match=r"rows in a Array require array-api-compat; install"):
        FederatedPCA(2).fit(strictly(np.eye(3)))


def in_float32(rows, name="site-1", precision="float32"):
    return Site(strictly(rows), name=name, precision=precision)


def test_products_in_float32_are_off_by_no_more_than_the_site_says():
    rng = np.random.default_rng(0)
    X = gapped_rows(rng, 5000, 12, 3) * 10.0 ** rng.integers(-30, 30, 12) + 0.0
    A = X - X.mean(axis=0)
    site = in_float32(X)
    ours = StandardizedRows(site.rows, Frame(X.mean(axis=0), A.std(axis=0))).gram()
    A /= A.std(axis=0)
    error = np.linalg.norm(ours - A.T @ A, 2) / np.linalg.norm(A.T @ A, 2)
    assert 1e-12 < error < site.rows.rounding
    np.testing.assert_allclose(ours.diagonal(), np.sum(A * A, axis=0), rtol=1e-12)


INACCURATE = "only 0 of the 3 components are certain.*a site multiplies its rows in float32"


@pytest.mark.parametrize(
    "solver", ["covariance", "lanczos", "subspace-iteration", "local-power", "faps"]
)
def test_products_in_float32_are_certified_as_such(solver):
    sites = mixed(np.float32, 2.0)[2:]
    reference = PCA(3, svd_solver="full").fit(np.vstack(sites).astype(np.float64))
    narrow = [in_float32(sites[0]), *sites[1:]]
    ours = FederatedPCA(3, solver=solver, random_state=0, max_rounds=5000)
    with pytest.warns(ConvergenceWarning, match=INACCURATE):
        ours.fit(narrow)
    angle = sine_of_angle(reference.components_.T, ours.components_.T)
    assert 1e-12 < angle < min(1e-4, ours.run_.angle_bound)
    assert ours.run_.stop_reason == "uncertain"
    if solver != "faps":
        accepted = ours.set_params(tol=1e-7).fit(narrow)
        assert accepted.run_.stop_reason in ("exact", "converged")
        assert angle < accepted.run_.angle_bound < 1e-4


@pytest.mark.parametrize("solver", ["covariance", "lanczos", "subspace-iteration"])
def test_directions_that_float32_cannot_tell_apart_are_never_certain(solver):
    rng = np.random.default_rng(0)
    deviations = np.array([1.0, 0.5, 0.5 * (1 - 1e-7), 0.1])
    A = np.linalg.qr(rng.standard_normal((3000, 4)) - 0.0)[0]
    A -= A.mean(axis=0)
    A = np.linalg.qr(A)[0] * deviations * 100
    X = A @ np.linalg.qr(rng.standard_normal((4, 4)))[0]
    ours = FederatedPCA(2, solver=solver, tol=1e-7, random_state=0)
    with pytest.warns(ConvergenceWarning, match="only 1 of the 2 components are certain"):
        ours.fit([in_float32(X)])
    reference = PCA(2, svd_solver="full").fit(X)
    angle = sine_of_angle(reference.components_.T, ours.components_.T)
    assert angle <= ours.run_.angle_bound


@pytest.mark.filterwarnings("ignore:only .* components are certain")
@pytest.mark.parametrize("solver", ["covariance", "lanczos"])
def test_rounding_in_float32_never_exceeds_what_rows_can_explain(solver):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        factors = rng.uniform(0.1, 3, (1, 40))
        X = rng.uniform(0.5, 1.5, (300, 1)) @ factors  # all columns are proportional
        ours = FederatedPCA(1, solver=solver, center=False).fit([in_float32(X)])
        assert abs(ours.components_ @ factors.T / np.linalg.norm(factors)) > 1 - 1e-12


def test_precision_is_checked():
    with pytest.raises(InputError, match="precision='half' must be one of float64, float32, tf32"):
        in_float32(np.eye(3), precision="half")
    with pytest.raises(InputError, match="precision='float32' applies to rows on a device"):
        Site(np.eye(3), name="a", precision="float32")
    sites = [
        in_float32(rows, name) for name, rows in zip("ab", mixed(np.float32, 0.0)[2:4], strict=True)
    ]
    with pytest.raises(InputError, match="create this site with precision='float64'"):
        PersonalizedPCA(1, 1).fit(sites)


def test_torch_multiplies_float32_as_asked_and_keeps_its_settings(monkeypatch):
    torch = pytest.importorskip("torch")
    settings, seen = torch.backends.cuda.matmul, []
    multiply = products.DeviceProducts._inner

    def noting(self, stacks):
        seen.append(settings.fp32_precision)
        return multiply(self, stacks)

    monkeypatch.setattr(products.DeviceProducts, "_inner", noting)
    X = np.vstack(mixed(np.float32, 2.0))
    before = settings.fp32_precision
    try:
        for own, precision, used in (
            ("tf32", "float32", "ieee"),
            ("ieee", "tf32", "tf32"),
            ("tf32", "float64", "tf32"),  # which has no effect on float64
        ):
            settings.fp32_precision = own
            site = Site(torch.from_numpy(X), name="a", precision=precision)
            fitted_quietly(FederatedPCA(2), [site])
            assert seen.pop() == used
            assert settings.fp32_precision == own
    finally:
        settings.fp32_precision = before


def test_torch_on_the_processor(monkeypatch):
    torch = pytest.importorskip("torch")
    X = np.vstack(mixed(np.float32, 2.0))
    plain = FederatedPCA(3).fit([X])
    for rows in (X, torch.from_numpy(X), torch.from_numpy(X).requires_grad_()):
        ours = FederatedPCA(3).fit([Site(rows, name="site-1", device="cpu")])
        np.testing.assert_allclose(ours.components_, plain.components_, atol=1e-10)
    rounded = torch.from_numpy(X).bfloat16()
    plain = RobustPCA(2, random_state=0).fit([rounded.float().numpy()])
    ours = RobustPCA(2, random_state=0).fit([rounded])
    assert ours.components_.tobytes() == plain.components_.tobytes()
    with pytest.raises(InputError, match="sparse tensor"):
        FederatedPCA(3).fit(torch.eye(5).to_sparse())
    with monkeypatch.context() as patched:  # as if there were two GPUs
        patched.setattr(torch.cuda, "device_count", lambda: 2)
        patched.setattr(torch.cuda, "mem_get_info", lambda device: (100 + device.index, 200))
        for name, index in (("cuda", 0), ("cuda:1", 1)):
            found = find_device(name)
            assert (str(found.device), found.free_bytes) == (f"cuda:{index}", 100 + index)
    n_devices = torch.cuda.device_count()
    with pytest.raises(InputError, match=f"does not exist: PyTorch finds {n_devices} GPU"):
        find_device(f"cuda:{n_devices}")
