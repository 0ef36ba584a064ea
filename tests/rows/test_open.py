"""Rows in whatever they come give the same blocks, and what is wrong with them is named."""

from __future__ import annotations

import decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from sklearn.decomposition import PCA

from fedpca import FederatedPCA, Federation, Site
from fedpca.errors import InputError, QuorumLost
from fedpca.linalg.dense import sine_of_angle
from fedpca.rows import in_memory
from fedpca.rows.formats.files import BED, ENDINGS
from fedpca.rows.in_memory import checksum
from fedpca.rows.open import file_states, open_rows
from support import NAMES, gapped_rows, write_rows

RNG = np.random.default_rng(0)
X = gapped_rows(RNG, 37, 4, 2, offset=10.0)


def everything(source):
    blocks = list(open_rows(source).blocks())
    return np.vstack([b.toarray() if sp.issparse(b) else b for b in blocks])


IN_MEMORY = {
    "list": lambda: X.tolist(),
    "numpy": lambda: X,
    "fortran": lambda: np.asfortranarray(X),
    "object": lambda: X.astype(object),
    "csr": lambda: sp.csr_array(X),
    "csc matrix": lambda: sp.csc_matrix(X),
    "coo with duplicates": lambda: sp.coo_array(
        (np.tile(X.ravel() / 2, 2), tuple(np.tile(np.indices(X.shape).reshape(2, -1), 2)))
    ),
    "pandas": lambda: pd.DataFrame(X, columns=NAMES),
    "polars": lambda: pl.DataFrame(X, schema=NAMES),
    "pyarrow": lambda: pa.table(dict(zip(NAMES, X.T, strict=True))),
}


@pytest.fixture(params=["one block", "many blocks"])
def block_size(request, monkeypatch):
    if request.param == "many blocks":
        monkeypatch.setattr(in_memory, "BLOCK_BYTES", 5 * 8 * 4)


@pytest.mark.parametrize("kind", IN_MEMORY)
def test_every_kind_in_memory_gives_the_same_rows(kind, block_size):
    source = IN_MEMORY[kind]()
    np.testing.assert_array_equal(everything(source), X)
    opened = open_rows(source)
    assert (opened.n_rows, opened.n_features) == X.shape
    assert opened.features in (None, tuple(NAMES))
    assert checksum(opened) == checksum(open_rows(source))


@pytest.mark.parametrize("kind", [kind for kind in ENDINGS if kind != BED])
def test_every_kind_of_file_gives_the_same_rows(kind, tmp_path, block_size):
    path = write_rows(tmp_path, kind, X)
    np.testing.assert_array_equal(everything(path), X)
    opened = open_rows(str(path))
    assert (opened.n_rows, opened.n_features) == X.shape
    assert file_states(str(path)) == file_states(path)


def test_a_folder_is_all_its_files_with_columns_matched_by_name(tmp_path):
    (tmp_path / "deep").mkdir()
    write_rows(tmp_path, ".parquet", X[:20])
    write_rows(tmp_path / "deep", ".csv", X[20:, ::-1], NAMES[::-1])
    (tmp_path / "readme.txt").write_text("not rows")
    opened = open_rows(tmp_path)
    assert opened.n_rows == 37
    assert len(file_states(tmp_path)) == 2
    assert opened.features == ("d", "c", "b", "a")  # deep/rows.csv comes first
    np.testing.assert_array_equal(everything(tmp_path), np.vstack([X[20:], X[:20]])[:, ::-1])


def test_a_fortran_order_file_and_a_sparse_archive_and_a_lone_array(tmp_path):
    np.save(tmp_path / "f.npy", np.asfortranarray(X))
    sp.save_npz(tmp_path / "s.npz", sp.csr_array(X))
    np.savez(tmp_path / "one.npz", anything=X)
    for name in ("f.npy", "s.npz", "one.npz"):
        np.testing.assert_array_equal(everything(tmp_path / name), X)
    np.save(tmp_path / "none.npy", np.empty((3, 0)))
    assert everything(tmp_path / "none.npy").shape == (3, 0)


def test_a_large_npy_file_is_not_kept_mapped(tmp_path, monkeypatch):
    monkeypatch.setattr(in_memory, "BLOCK_BYTES", 5 * 8 * 4)
    blocks = open_rows(write_rows(tmp_path, ".npy", X)).blocks()
    assert next(blocks).nbytes == 5 * 8 * 4


def test_integers_booleans_decimals_and_narrow_floats_are_numbers(tmp_path):
    table = pa.table(
        {
            "i": pa.array([1, 2, 3], pa.int32()),
            "b": [True, False, True],
            "f": pa.array([0.5, 1.5, 2.5], pa.float32()),
            "d": pa.array([decimal.Decimal("1.25")] * 3),
        }
    )
    expected = np.column_stack([[1, 2, 3], [1, 0, 1], [0.5, 1.5, 2.5], [1.25] * 3])
    np.testing.assert_array_equal(everything(table), expected)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".npy"])
def test_fitting_files_equals_fitting_arrays(suffix, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    sites = {
        "a": str(write_rows(tmp_path / "a", suffix, X[:11])),
        "b": write_rows(tmp_path / "b", suffix, X[11:]),
    }
    reference = PCA(2).fit(X)
    for solver in ("covariance", "lanczos"):
        model = FederatedPCA(2, solver=solver, random_state=0).fit(sites)
        assert sine_of_angle(reference.components_.T, model.components_.T) < 1e-9


def test_columns_are_matched_by_name_whatever_their_order():
    turned = {"north": pd.DataFrame(X[:20], columns=NAMES), "south": pl.DataFrame(X[20:], NAMES)}
    turned["south"] = turned["south"].select(["c", "a", "d", "b"])
    for solver in ("covariance", "lanczos", "subspace-iteration"):
        for scale in (False, True):
            model = FederatedPCA(
                2, solver=solver, scale=scale, random_state=0, max_rounds=5000
            ).fit(turned)
            plain = FederatedPCA(2, solver="covariance", scale=scale).fit([X[:20], X[20:]])
            assert list(model.feature_names_in_) == NAMES
            assert sine_of_angle(plain.components_.T, model.components_.T) < 1e-8
            np.testing.assert_allclose(model.mean_, plain.mean_)
            for here, there in zip(
                model.site_variance_ratio_, plain.site_variance_ratio_, strict=True
            ):
                ours, theirs = model.site_variance_ratio_[here], plain.site_variance_ratio_[there]
                assert ours == pytest.approx(theirs, rel=1e-8)


def site(values, names=NAMES):
    return pd.DataFrame(values, columns=names)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (site(X[:, :3], NAMES[:3]), r"'south'.*1 missing \(d\)"),
        (site(np.hstack([X, X[:, :1]]), [*NAMES, "e"]), r"'south'.*1 extra \(e\)"),
        (site(X, ["a", "b", "c", "x"]), r"'south'.*1 missing \(d\), 1 extra \(x\)"),
        (site(X, ["a", "b", "c", "a"]), r"'south'.*duplicate columns: a"),
        (site(X).assign(e="text"), r"'south'.*not numeric: e"),
        (X, r"'south'.*one has column names"),
    ],
)
def test_other_columns_are_named_with_their_site(other, text):
    with pytest.raises(InputError, match=text):
        FederatedPCA(2).fit({"north": site(X), "south": other})


def test_another_number_of_unnamed_columns_is_refused():
    with pytest.raises(InputError, match=r"'site-2'.*3 columns instead of 4"):
        FederatedPCA(2).fit([X, X[:, :3]])


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array, site, lambda v: pl.DataFrame(v, NAMES)])
@pytest.mark.parametrize("solver", ["covariance", "lanczos"])
def test_nan_and_infinity_are_counted_with_their_columns_and_site(make, solver):
    bad = X.copy()
    bad[3, 1] = bad[5, 1] = np.nan
    bad[7, 3] = np.inf
    made = make(bad)
    names = "b, d" if hasattr(made, "columns") else "1, 3"
    good = make(X)
    with pytest.raises(InputError, match=rf"'south'.*contains NaN and infinity in columns {names}"):
        FederatedPCA(2, solver=solver).fit({"north": good, "south": made})


def test_a_null_is_a_nan(tmp_path):
    table = pa.table({"a": [1.0, None, 2.0], "b": [1, 2, None]})
    pq.write_table(table, tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n,3\n4,\n")
    for name in ("x.parquet", "x.csv"):
        with pytest.raises(InputError, match="contains NaN in columns a, b"):
            FederatedPCA(1).fit([str(tmp_path / name)])


def test_values_whose_sum_overflows_are_refused():
    with pytest.raises(InputError, match="rescale"):
        FederatedPCA(1).fit([np.full((4, 2), 1e308), np.ones((4, 2))])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: p / "missing.npy", "does not exist"),
        (lambda p: _text(p / "x.txt", "a"), "cannot read '.txt'"),
        (lambda p: _text(p / "x.parquet", "junk"), "not a readable .parquet"),
        (lambda p: _text(p / "x.npy", "junk"), "not a readable .npy"),
        (lambda p: _text(p / "x.npz", "junk"), "not a readable .npz"),
        (
            lambda p: _text(p / "x.csv", ""),
            "the file is empty; it must start with a line of column",
        ),
        (lambda p: _text(p / "x.csv", "1.5,2.5\n3,4\n"), "must contain the column names"),
        (lambda p: _text(p / "x.csv", ",a\n0,1\n1,2\n"), "column 1 has no name"),
        (lambda p: _text(p / "x.csv", "a,a\n0,1\n1,2\n"), "duplicate columns: a"),
        (lambda p: _text(p / "x.csv", "a,b\n0,red\n1,2\n"), r"not numeric: b \(string\)"),
        (lambda p: _array(p / "x.npy", np.zeros(3)), "1 dimension"),
        (lambda p: _array(p / "x.npy", np.zeros((2, 2), complex)), "Complex"),
        (lambda p: _array(p / "x.npy", np.array([["a"]])), "not numeric"),
        (lambda p: _array(p / "x.npy", np.array([[object()]])), "not a readable"),
        (lambda p: _two_arrays(p / "x.npz"), "name the rows 'X'"),
        (lambda p: p, "contains no .npy"),
    ],
)
def test_a_file_that_cannot_be_rows_says_why_and_where(make, text, tmp_path):
    with pytest.raises(InputError, match=f"site 'north'.*{text}"):
        Site(make(tmp_path), name="north")


@pytest.mark.slow
def test_a_word_deep_in_a_csv_file_is_not_quoted(tmp_path):
    lines = ["a,b"] + ["1,2"] * 300_000 + ["3,secret"]  # more than one block
    path = _text(tmp_path / "x.csv", "\n".join(lines))
    with pytest.raises(InputError, match="line 300002, column b contains a value") as error:
        FederatedPCA(1).fit([str(path)])
    assert "secret" not in str(error.value)


@pytest.mark.slow
def test_a_word_in_a_csv_file_is_found_on_a_machine_with_one_processor(tmp_path):
    """There, Arrow's error has another form."""
    lines = ["a,b"] + ["1,2"] * 300_000 + ["3,secret"]
    path = _text(tmp_path / "x.csv", "\n".join(lines))
    before = pa.cpu_count()
    pa.set_cpu_count(1)
    try:
        with pytest.raises(InputError, match="line 300002, column b contains a value"):
            FederatedPCA(1).fit([str(path)])
    finally:
        pa.set_cpu_count(before)


@pytest.mark.slow
def test_a_csv_whose_line_is_too_short_is_refused(tmp_path):
    path = _text(tmp_path / "x.csv", "\n".join(["a,b"] + ["1,2"] * 300_000 + ["3"]))
    with pytest.raises(InputError, match="line 300002 has 1 fields, but the header has 2"):
        FederatedPCA(1).fit([str(path)])


def test_numbered_column_names_as_pandas_writes_them_are_names(tmp_path):
    pd.DataFrame(X).to_csv(tmp_path / "x.csv", index=False)
    assert open_rows(tmp_path / "x.csv").features == ("0", "1", "2", "3")


def test_a_folder_whose_files_disagree_names_both(tmp_path):
    write_rows(tmp_path, ".parquet", X)
    np.save(tmp_path / "more.npy", X)
    with pytest.raises(InputError, match=r"rows\.parquet, compared with .*more\.npy"):
        open_rows(tmp_path)
    (tmp_path / "rows.parquet").unlink()
    np.save(tmp_path / "second.npy", X[:, :2])
    with pytest.raises(InputError, match="2 columns instead of 4"):
        open_rows(tmp_path)


def test_the_same_rows_in_two_formats_do_not_count_twice(tmp_path):
    write_rows(tmp_path, ".parquet", X)
    write_rows(tmp_path, ".csv", X)
    for source in (tmp_path, [tmp_path / "rows.csv", tmp_path / "rows.parquet"]):
        with pytest.raises(InputError, match="have the same name, so their rows would count twice"):
            open_rows(source)
    with pytest.raises(InputError, match="would count twice"):
        open_rows([tmp_path / "rows.csv", tmp_path / "rows.csv"])


def test_an_archive_with_several_tables_is_refused(tmp_path):
    np.savez(tmp_path / "labeled.npz", X=X, y=np.arange(len(X)))
    assert open_rows(tmp_path / "labeled.npz").n_rows == len(X)
    np.savez(tmp_path / "two.npz", X=X, X_test=X[:2])
    with pytest.raises(InputError, match="besides 'X', the file contains the tables X_test"):
        open_rows(tmp_path / "two.npz")


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (np.zeros(3), "1 dimension"),
        (np.zeros((2, 2, 2)), "3 dimension"),
        (np.zeros((2, 2), complex), "Complex"),
        (np.array([["a", "b"]]), "not numeric"),
        (np.array([["2020-01-01"]], dtype="datetime64[D]"), "not numeric"),
        (sp.csr_array(np.eye(2, dtype=complex)), "Complex"),
        (sp.coo_array(np.ones(3)), "1 dimension"),
        (np.empty((3, 0)), "0 feature"),
    ],
)
def test_an_array_that_cannot_be_rows_says_why(bad, text):
    with pytest.raises(InputError, match=text):
        FederatedPCA(1).fit(Federation.local({"north": bad}))


def test_many_wrong_columns_are_listed_in_short():
    names = [f"f{i}" for i in range(9)]
    wide = np.ones((3, 9))
    with pytest.raises(InputError, match=r"8 missing \(f1, f2, f3, f4, f5 and 3 more\)"):
        FederatedPCA(1).fit({"a": site(wide, names), "b": site(wide[:, :1], names[:1])})


def test_narrow_sparse_types_do_not_overflow():
    B = (np.random.default_rng(2).random((200, 6)) < 0.3).astype(np.int8) * 50
    reference = PCA(2).fit(B.astype(float))
    for solver in ("covariance", "lanczos"):
        for dtype in (np.int8, np.uint8, np.float32):
            model = FederatedPCA(2, solver=solver, random_state=0).fit(
                [sp.csr_array(B.astype(dtype))]
            )
            np.testing.assert_allclose(
                model.explained_variance_, reference.explained_variance_, rtol=1e-10
            )


def test_the_row_index_of_pandas_is_no_feature(tmp_path):
    frame = pd.DataFrame(X, columns=NAMES, index=pd.Index([f"p{i}" for i in range(37)], name="id"))
    chosen = frame[frame["a"] > frame["a"].median()]
    chosen.to_parquet(tmp_path / "named.parquet")
    frame.reset_index(drop=True)[frame["a"].to_numpy() > 10].to_parquet(tmp_path / "rest.parquet")
    for source in (chosen, tmp_path / "named.parquet", tmp_path / "rest.parquet"):
        assert open_rows(source).features == tuple(NAMES)
        assert FederatedPCA(1).fit(Federation.local([source])).n_features_in_ == 4


@pytest.mark.parametrize(
    "column",
    [[1.5, "SECRET42"], ["SECRET42", 1.5], [1j, 2.0], pd.Categorical(["x", "y"]), [[1], [2]]],
)
def test_a_column_that_is_no_number_is_named_and_not_quoted(column):
    frame = pd.DataFrame({"a": [1.0, 2.0]})
    frame["odd"] = pd.Series(column)
    with pytest.raises(InputError, match=r"'site-1'.*not numeric: odd") as error:
        FederatedPCA(1).fit([frame])
    assert "SECRET" not in str(error.value)


def test_large_integers_are_rounded_as_numpy_rounds_them():
    stamps = np.array([2**53 + 1, 2**53 + 3, 2**60 + 7])
    np.testing.assert_array_equal(
        everything(pd.DataFrame({"t": stamps}))[:, 0], stamps.astype(float)
    )


@pytest.mark.parametrize(
    "odd",
    [pd.Series([1.0]), pl.Series([1.0]), [[1.0], [1.0, 2.0]], np.ma.masked_equal([[1, 2]], 2)],
)
def test_what_is_no_table_is_refused_by_its_type(odd):
    with pytest.raises(InputError, match="site 'north'"):
        Site(odd, name="north")


def test_truth_values_in_a_csv_file(tmp_path):
    path = _text(tmp_path / "x.csv", "a,b\n1,true\n2.5,false\n")
    np.testing.assert_array_equal(everything(path), [[1, 1], [2.5, 0]])


def test_numbered_columns_of_a_frame_are_no_names():
    model = FederatedPCA(2).fit({"a": pd.DataFrame(X[:20]), "b": pd.DataFrame(X[20:])})
    assert not hasattr(model, "feature_names_in_")
    assert model.transform(pd.DataFrame(X)).shape == (37, 2)


def test_the_scores_of_nearly_empty_rows_are_bounded_too(monkeypatch):
    matrix = sp.random_array((5000, 10), density=1e-3, rng=np.random.default_rng(0), format="csr")
    monkeypatch.setattr(in_memory, "BLOCK_BYTES", 8 * 10 * 10)
    assert max(block.shape[0] for block in open_rows(matrix).blocks()) == 320


def test_a_frame_with_a_column_called_column_names():
    frame = pd.DataFrame({"column_names": [1.0, 2.0], "b": [3.0, 4.0]})
    assert open_rows(frame).features == ("column_names", "b")


def test_a_damaged_sparse_archive_is_refused(tmp_path):
    np.savez(
        tmp_path / "x.npz", format=np.array("csr"), shape=np.array([3, 3]), data=np.ones(2),
        indices=np.array([0, 10**9]), indptr=np.array([0, 1, 2, 2]),
    )  # fmt: skip
    with pytest.raises(InputError, match=r"not a readable \.npz"):
        open_rows(tmp_path / "x.npz")
    (tmp_path / "x.npz").write_bytes(b"")
    with pytest.raises(InputError, match=r"not a readable \.npz"):
        open_rows(tmp_path / "x.npz")


def test_a_file_that_vanished_after_it_was_opened(tmp_path):
    path = write_rows(tmp_path, ".parquet", X)
    fed = Federation.local({"north": path})
    path.unlink()
    with pytest.raises(QuorumLost, match=r"'north'.*can no longer be read"):
        FederatedPCA(1).fit(fed)


@pytest.mark.parametrize("solver", ["covariance", "lanczos"])
@pytest.mark.parametrize("scale", [False, True])
def test_values_whose_squares_overflow_are_refused(solver, scale):
    huge = np.random.default_rng(0).standard_normal((9, 3)) * 1e160
    with pytest.raises(InputError, match="rescale the columns"):
        FederatedPCA(1, solver=solver, scale=scale).fit([huge])


def test_the_callers_sparse_matrix_is_left_as_it_was():
    matrix = sp.csr_array((np.ones(3), np.array([1, 0, 1]), np.array([0, 3, 3])), shape=(2, 2))
    before = matrix.indices.copy()
    np.testing.assert_array_equal(everything(matrix), [[1, 2], [0, 0]])
    np.testing.assert_array_equal(matrix.indices, before)


def _text(path, text):
    path.write_text(text)
    return path


def _array(path, array):
    np.save(path, array, allow_pickle=True)
    return path


def _two_arrays(path):
    np.savez(path, a=X, b=X)
    return path
